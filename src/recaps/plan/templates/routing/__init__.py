"""A routing of votes and a routing of pose matrices."""
