"""*Capsule Networks, a Probabilistic Perspective*."""
