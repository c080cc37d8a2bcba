"""The protocol's variable-length pieces: varints, strings, bytes, uuids, tagged fields; and how bad bytes are reported.

Readers take a buffer and a position and return the value and the position after it. They look at each byte before they
use it, so running off the end shows as ``IndexError`` or ``struct.error``, which ``explain`` turns into ProtocolError;
lengths and counts are compared with the bytes left before anything is sliced or allocated.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final, TypeAlias
from uuid import UUID

from app.core.errors import ErrorCode, ProtocolError, clause
from app.core.limits import TAGGED_FIELDS_MAX
from app.wire.schema import ZERO_UUID

Buffer: TypeAlias = bytes | memoryview

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")

STRING_BYTES_MAX: Final = 0x7FFF
"""Longest string on the wire. A compact length could be larger, but Kafka accepts no more, and stored strings (group ids, member
ids) have an int16 for their length."""

UUIDS_KEPT_MAX: Final = 8192
"""Uuids kept by ``uuid_of``: topic ids come again with every Produce and Fetch. Ever new ones only empty it."""


class Truncated(ProtocolError):
    """The message ends before its fields do, or claims more than is left."""

    def __init__(self, message: str = "the message ends early") -> None:
        super().__init__(message)


TROUBLES: Final = (ProtocolError, IndexError, StructError, UnicodeDecodeError)
"""All exceptions that a reader raises on bad bytes."""


def explain(trouble: Exception, what: str) -> ProtocolError:
    """The ProtocolError for one of ``TROUBLES`` met while reading ``what``."""
    if isinstance(trouble, ProtocolError):
        return ProtocolError(f"{what}: {clause(trouble)}.", trouble.code)
    if isinstance(trouble, UnicodeDecodeError):
        return ProtocolError(f"{what}: a string is not UTF-8.")
    return ProtocolError(f"{what}: the message ends early.")


# --- varints --------------------------------------------------------------------------------------------------------


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint (LEB128) and the position after it.

    Raises: ProtocolError beyond five bytes or 32 bits; IndexError at the end of the buffer.
    """
    value = buffer[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        if byte < 0x80:
            value |= byte << shift
            if value > 0xFFFF_FFFF:
                break
            return value, position
        value |= (byte & 0x7F) << shift
    raise ProtocolError("A varint is longer than 32 bits.")


def uvarint(value: int) -> bytes:
    """``value`` (0 to 2³² − 1) as an unsigned varint."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise ValueError(f"{value} does not fit in a varint")
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 1 << 28:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    first = (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21 & 0x7F | 0x80)
    return bytes((*first, value >> 28))


UVARINTS: Final = tuple(uvarint(value) for value in range(1024))
"""The first varints, ready made."""


# --- uuids ----------------------------------------------------------------------------------------------------------

uuids_kept: Final[dict[bytes, UUID]] = {bytes(16): ZERO_UUID}


def uuid_of(raw: bytes) -> UUID:
    """The uuid of 16 bytes. Building one costs a microsecond, so those seen lately are kept."""
    found = uuids_kept.get(raw)
    if found is None:
        if len(uuids_kept) >= UUIDS_KEPT_MAX:
            uuids_kept.clear()
        found = uuids_kept[raw] = UUID(bytes=raw)
    return found


# --- tagged fields --------------------------------------------------------------------------------------------------


def tagged_field_count(buffer: Buffer, position: int) -> tuple[int, int]:
    """The count that opens a section of tagged fields, and the position after it.

    Raises: ProtocolError if the count is over the limit or cannot fit in the bytes left.
    """
    count, position = read_uvarint(buffer, position)
    if count > TAGGED_FIELDS_MAX or 2 * count > len(buffer) - position:
        raise Truncated(f"{count} tagged fields are claimed.")
    return count, position


def next_tagged_field(buffer: Buffer, position: int, previous_tag: int) -> tuple[int, int, int]:
    """``(tag, start, end)`` of the tagged field at ``position``.

    Raises: ProtocolError if tags do not rise (KIP-482 wants them sorted, each at most once) or the field is cut off.
    """
    tag, position = read_uvarint(buffer, position)
    if tag <= previous_tag:
        raise ProtocolError(f"Tagged field {tag} follows {previous_tag}.")
    size, position = read_uvarint(buffer, position)
    end = position + size
    if end > len(buffer):
        raise Truncated(f"Tagged field {tag} claims {size} bytes.")
    return tag, position, end


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """The position after a section of tagged fields of which none is known; ``position`` is that of its count."""
    count, position = tagged_field_count(buffer, position)
    tag = -1
    for _ in range(count):
        tag, _, position = next_tagged_field(buffer, position, tag)
    return position


# --- strings for hand-written codecs --------------------------------------------------------------------------------


def compact_string_end(buffer: Buffer, start: int, size: int, name: str) -> int:
    """Where the COMPACT_STRING ends that begins at ``start``, ``size`` its length plus one as it was read.

    Raises: ProtocolError if it is null, longer than a string may be, or than the bytes left.
    """
    if not size:
        raise refuse_null(name)
    end = start + size - 1
    if end > len(buffer) or size > STRING_BYTES_MAX + 1:
        raise refuse_length(size - 1, name)
    return end


def put_string(parts: list[bytes], text: str | None) -> None:
    """Add a STRING or NULLABLE_STRING to ``parts``. Raises: ValueError if it is too long."""
    if text is None:
        parts.append(b"\xff\xff")
        return
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise too_long(len(encoded))
    parts.append(INT16.pack(len(encoded)))
    parts.append(encoded)


def put_compact_string(parts: list[bytes], text: str | None) -> None:
    """Add a COMPACT_STRING or COMPACT_NULLABLE_STRING to ``parts``. Raises: ValueError if it is too long."""
    if text is None:
        parts.append(b"\0")
        return
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise too_long(len(encoded))
    parts.append(uvarint(len(encoded) + 1))
    parts.append(encoded)


# --- refusals, called by compiled codecs ----------------------------------------------------------------------------


def too_long(length: int) -> ValueError:
    """For a string that is to be written and cannot be."""
    return ValueError(f"a string of {length} bytes, of {STRING_BYTES_MAX} at most")


def refuse_count(count: int, name: str) -> ProtocolError:
    """For a count that is below -1, over the limit, or more than fits in the bytes left."""
    return Truncated(f"{name} claims {count} elements.")


def refuse_length(length: int, name: str) -> ProtocolError:
    """For a length that is below -1, more than the bytes left, or more than a string may have."""
    return Truncated(f"{name} claims {length} bytes.")


def refuse_null(name: str) -> ProtocolError:
    """For a null where the version has none."""
    return ProtocolError(f"{name} must not be null.")


def refuse_marker(marker: int, name: str) -> ProtocolError:
    """For a nullable struct that begins with neither the null marker nor 1 (KIP-893)."""
    return ProtocolError(f"{name} opens with {marker}, which says neither null nor struct.")


def refuse_tag_size(name: str) -> ProtocolError:
    """For a tagged field whose value is not as long as its size says."""
    return ProtocolError(f"Tagged field {name} is not as long as it says.")


def refuse_rest(count: int) -> ProtocolError:
    """For bytes after the end of the message."""
    return ProtocolError(f"{count} bytes follow the message.", ErrorCode.INVALID_REQUEST)
