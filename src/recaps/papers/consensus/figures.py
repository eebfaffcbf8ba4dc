"""Figures of the paper `consensus`."""

from recaps.papers.consensus.metrics import figure_2, figure_4, figure_5, figure_6, figure_7, figure_8

__all__ = ["figure_2", "figure_4", "figure_5", "figure_6", "figure_7", "figure_8"]
