"""Figures of the paper `probabilistic`."""

from recaps.papers.probabilistic.metrics import figure_3, figure_4, figure_5, figure_6, figure_7, figure_8, figure_9

__all__ = ["figure_3", "figure_4", "figure_5", "figure_6", "figure_7", "figure_8", "figure_9"]
