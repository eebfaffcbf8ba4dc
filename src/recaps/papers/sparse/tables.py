"""Tables of the paper `sparse`."""

from recaps.papers.sparse.metrics import table_1, table_2

__all__ = ["table_1", "table_2"]
