"""Figures of the paper `experts`."""

from recaps.papers.experts.metrics import figure_1, figure_2, figure_3, figure_4, figure_5, figure_6, figure_7

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "figure_7"]
