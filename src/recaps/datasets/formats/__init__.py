"""Readers of the official file formats. Each is strict: a file that is not exactly as documented is refused."""
