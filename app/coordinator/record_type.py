"""A kind of record in an internal topic: a row of the tables in ``app/coordinator/schemas``.

Tests: ``tests/coordinator/test_records.py``.
"""

from __future__ import annotations

from typing import NamedTuple


class RecordType(NamedTuple):
    """One kind of record. A key begins with ``number`` as an int16, a value with the version it is written in."""

    number: int
    key: type
    value: type
    version_first: int
    """Version range of the value. Keys have only one form."""
    version_last: int
    flexible_first: int
    """First version of the value with compact lengths and tagged fields (KIP-482, KIP-915)."""
