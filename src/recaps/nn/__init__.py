"""Building blocks of the models: layers, routing, losses, poses, attention, noise."""
