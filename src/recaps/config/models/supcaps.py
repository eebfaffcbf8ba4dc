"""Options of the family `supcaps`: capsules with a label, *Dynamic Routing Between Capsules*."""

from __future__ import annotations

from typing import Literal

from recaps.config.network import Supervised


class Options(Supervised):
    """A capsule per class by dynamic routing, margin loss, reconstruction from the label's capsule."""

    family: Literal["supcaps"] = "supcaps"
