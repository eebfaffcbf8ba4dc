"""The paper `example`."""
