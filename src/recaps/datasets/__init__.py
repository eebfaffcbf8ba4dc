"""Data sets: sources and download, official formats, derived sets, and embedded stand-ins."""
