"""recaps: five capsule-network papers, regenerated end to end."""

__version__ = "0.1.0"
