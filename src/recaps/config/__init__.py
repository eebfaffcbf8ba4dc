"""The configuration: typed models, one file per section, and the way from YAML to them."""
