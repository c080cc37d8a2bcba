"""The schemas of messages in the generated modules of ``app/wire/apis``, and how they are read.

Every generated module holds plain dataclasses, one per struct, as wide as all versions together, and ``FIELDS``: for each
struct its rows in wire order. A row is a tuple of constants, so that importing a module builds no table; ``app.wire.codec``
turns the rows of one version into ``Field`` objects when that version is first used.

A field that changes between versions (only ever from "never null" to "may be null" so far) has one row per run of versions.

Tests: ``tests/wire/test_codec.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

ZERO_UUID: Final = UUID(int=0)
"""On the wire, and in messages: "no id"."""

Default: TypeAlias = int | float | bool | str | None
"""A default that a constant can say; ``[]``, ``b""``, the zero uuid and structs follow from the kind."""

Row: TypeAlias = tuple[str, str, bool, int, int, bool, int | None, Default]
Rows: TypeAlias = Mapping[str, tuple[Row, ...]]


class Field(NamedTuple):
    """One field of a struct in a run of versions."""

    name: str
    kind: str
    """``bool int8 int16 int32 int64 uint16 float64 uuid string bytes records``, or the class name of a struct."""
    is_array: bool
    version_first: int
    version_last: int
    is_nullable: bool
    """Whether null is allowed in these versions: of the array if it is one, else of the value."""
    tag: int | None
    default: Default
    """The field's value in a message that does not carry it. Of nullable values it is None. Of arrays and bytes, "" and 0 mean
    empty. Of structs, "" means a struct of defaults."""


def fields_of(rows: Rows, struct: str, version: int) -> list[Field]:
    """The fields of ``struct`` in ``version``, in wire order, tagged ones among them."""
    return [Field(*row) for row in rows[struct] if row[3] <= version <= row[4]]


def all_fields(rows: Rows, struct: str) -> list[Field]:
    """The fields of the dataclass of ``struct``, one each, in the order of its arguments; the newest row of each."""
    newest: dict[str, Field] = {}
    for row in rows[struct]:
        newest[row[0]] = Field(*row)
    return list(newest.values())
