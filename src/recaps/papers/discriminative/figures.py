"""Figures of the paper `discriminative`."""

from recaps.papers.discriminative.metrics import figure_2, figure_3, figure_4, figure_5

__all__ = ["figure_2", "figure_3", "figure_4", "figure_5"]
