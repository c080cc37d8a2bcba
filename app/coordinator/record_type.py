"""What a kind of record in an internal topic is: the row of the tables in ``app/coordinator/schemas``."""

from __future__ import annotations

from typing import NamedTuple


class RecordType(NamedTuple):
    """One kind of record. A key begins with ``number`` as an int16, a value with the version it is written in."""

    number: int
    key: type
    value: type
    version_first: int
    """Of the value; keys have one form only."""
    version_last: int
    flexible_first: int
    """First version of the value with compact lengths and tagged fields (KIP-482, KIP-915)."""
