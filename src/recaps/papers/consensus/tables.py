"""Tables of the paper `consensus`."""

from recaps.papers.consensus.metrics import table_1, table_2, table_3, table_4

__all__ = ["table_1", "table_2", "table_3", "table_4"]
