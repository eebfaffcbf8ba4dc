"""Figures of the paper `sparse`."""

from recaps.papers.sparse.metrics import figure_1, figure_2, figure_3, figure_4, figure_5

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5"]
