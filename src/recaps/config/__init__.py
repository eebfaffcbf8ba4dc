"""The configuration as typed models, and the loader that turns YAML files into them."""
