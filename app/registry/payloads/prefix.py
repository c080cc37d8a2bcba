"""The id of a record's schema, as serializers of Confluent's registry write it: in a header, or before the payload.

Byte 0 and four bytes of an id, or byte 1 and the 16 bytes of a GUID. In a header these may be followed by the indexes of a Protobuf
message, which stand before the payload otherwise. Tests: ``tests/registry/test_payloads.py``.
"""

from __future__ import annotations

from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

_ID: Final = Struct(">I")
ID_BYTES: Final = 5
GUID_BYTES: Final = 17

SchemaRef: TypeAlias = int | str
"""The id of a schema, or its GUID as text."""


class Side(StrEnum):
    """The part of a record that has a schema."""

    KEY = "key"
    VALUE = "value"

    @property
    def header(self) -> str:
        """The name of the header that may hold the id."""
        return f"__{self.value}_schema_id"


class Prefix(NamedTuple):
    """The id that bytes begin with, and how long it is with its first byte."""

    ref: SchemaRef
    size_bytes: int


def read_prefix(data: bytes, start: int = 0, end: int | None = None) -> Prefix | None:
    """The id at the start of bytes; None if there is none."""
    size = (len(data) if end is None else end) - start
    if size >= ID_BYTES and data[start] == 0:
        return Prefix(_ID.unpack_from(data, start + 1)[0], ID_BYTES)
    if size >= GUID_BYTES and data[start] == 1:
        return Prefix(str(UUID(bytes=bytes(data[start + 1 : start + GUID_BYTES]))), GUID_BYTES)
    return None
