"""Tables of the paper `probabilistic`."""

from recaps.papers.probabilistic.metrics import table_1, table_2, table_3

__all__ = ["table_1", "table_2", "table_3"]
