"""Options of the family `rbm`: a restricted Boltzmann machine, the baseline of products of experts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recaps.config.base import Section


class Options(Section):
    """Binary hidden units on pixels taken as probabilities, trained by persistent contrastive divergence."""

    family: Literal["rbm"] = "rbm"
    hidden: int = Field(320, ge=1)
    """Hidden units: as many as 20 capsules of 16 dimensions have numbers."""
    samples: int = Field(2000, ge=1)
    """Pictures that the probe `samples` makes, each by a Gibbs chain of its own."""
    gibbs_steps: int = Field(1000, ge=1)
    """Steps of these chains."""
