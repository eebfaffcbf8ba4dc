"""Losses, and the accuracy of class scores. Each has a module, so that a change makes only the runs that use it new."""
