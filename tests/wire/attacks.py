"""Hostile bytes of each message."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from app.wire.primitives import uvarint
from tests.wire import reference
from tests.wire.reference import Notes, Spot, Subject

HOSTILE_VARINTS = (
    bytes.fromhex("ff ff ff ff 0f"),  # 2³² − 1
    bytes.fromhex("ff ff ff ff 07"),  # 2³¹ − 1
    bytes.fromhex("80 80 80 80 08"),  # 2³¹
    bytes.fromhex("ff ff ff ff 1f"),  # 33 bits
    bytes.fromhex("ff ff ff ff 7f"),
    bytes.fromhex("ff ff ff ff ff 0f"),  # six bytes
    bytes.fromhex("80 80 80 80 80 01"),
    bytes.fromhex("80 80 80 80 80 80 80 80 80 80 80 80"),
    bytes.fromhex("c2 84 3d"),  # 1,000,002
    bytes.fromhex("ff ff 03"),  # 65,535
)
HOSTILE_INT32 = tuple(struct.pack(">i", value) for value in (0x7FFF_FFFF, -0x8000_0000, -2, 1_000_001, 65_535, -0xFFFF))
HOSTILE_INT16 = tuple(struct.pack(">h", value) for value in (0x7FFF, -0x8000, -2, 12_345))
REFUSED_AT_ONCE = "claims|claimed|longer than 32 bits"
"""What a refusal says that comes from looking at the count or length itself, not from running out of bytes later."""


def full_message(subject: Subject) -> Notes:
    return reference.encode(subject, reference.make(subject, random.Random(7), full=True))


def replaced(notes: Notes, spot: Spot, new: bytes) -> bytes:
    return notes.data[: spot.position] + new + notes.data[spot.position + spot.size :]


def attacks(subject: Subject, notes: Notes) -> Iterator[tuple[Spot, bytes]]:
    """Each count and each length of a message, replaced by each hostile value."""
    for spot in notes.spots + notes.tag_sections:
        if subject.is_flexible:
            values = HOSTILE_VARINTS
        else:
            values = HOSTILE_INT16 if spot.size == 2 else HOSTILE_INT32
        for value in values:
            yield spot, replaced(notes, spot, value)


def with_texts(notes: Notes, size: int) -> Iterator[bytes]:
    """A flexible message with each of its strings, which are short, replaced by one of so many bytes."""
    for start in notes.texts:
        length = notes.data[start - 1] - 1
        yield notes.data[: start - 1] + uvarint(size + 1) + b"x" * size + notes.data[start + length :]
