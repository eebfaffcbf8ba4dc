"""Tables of the paper `experts`."""

from recaps.papers.experts.metrics import table_1

__all__ = ["table_1"]
