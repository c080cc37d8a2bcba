"""Damages of objects in a bucket."""

from __future__ import annotations

import struct
from pathlib import Path

from crc32c import crc32c

from app.tiering.store.segment_format import FOOTER_MAGIC

TRAILER = struct.Struct("<II8s")
"""Of a segment object: bytes of the footer, CRC-32C, magic."""


def flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)


def of_the_future(path: Path) -> None:
    """Give the footer a format version that nobody knows yet, and the checksum that goes with it."""
    data = bytearray(path.read_bytes())
    footer_bytes, _, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    start = len(data) - TRAILER.size - footer_bytes
    struct.pack_into("<H", data, start + len(FOOTER_MAGIC), 9)
    crc = crc32c(footer_bytes.to_bytes(4, "little"), crc32c(data[start : start + footer_bytes]))
    TRAILER.pack_into(data, len(data) - TRAILER.size, footer_bytes, crc, magic)
    path.write_bytes(data)
