"""What the models share: capsule layers, routing, losses."""
