"""Tables of the paper `discriminative`."""

from recaps.papers.discriminative.metrics import table_1, table_2

__all__ = ["table_1", "table_2"]
