"""The models of all papers under one protocol."""
