"""Files that `python -m recaps new` copies. Each is a working module; only the names change."""
