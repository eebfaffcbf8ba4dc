"""Readers of the official file formats. They refuse files that do not match the documentation exactly."""
