"""Figures of the paper `example`: `figure_1` draws `figure-1` of paper.yaml."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recaps.report.results import Results


def figure_1(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the lengths of the class capsules by rank; return the figure and the data that it shows."""
    drawing, axis = plt.subplots(figsize=(4, 3))
    frames = []
    for variant, settings in results.paper.variants.items():
        ranked = -np.sort(-results.arrays(variant, "lengths")["lengths"], axis=1).mean(0)
        axis.plot(ranked, marker="o", label=settings.title)
        frames.append(pd.DataFrame({"variant": variant, "rank": range(len(ranked)), "length": ranked}))
    axis.set(xlabel="rank", ylabel="length")
    axis.legend()
    return drawing, pd.concat(frames)
