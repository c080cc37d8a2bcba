"""The framing of a batch's compressed records: whether all clients can read it.

A batch that one client reads and another does not stops the other at its offset for ever. So a batch is refused if its framing
shows that the Java client, librdkafka, franz-go, Sarama or kafka-python cannot read it. Nothing is decompressed. The table of
variants and clients is in ``docs/compatibility.md``; ``tests/interop/test_codec_variants.py`` tries it with real clients.

    gzip    RFC 1952; not zlib data, though librdkafka reads it
    snappy  one stream of xerial's format, or a bare block; not the framing format of the snappy project
    lz4     one frame of version 1 with independent blocks, without a dictionary; not a legacy frame, nor a skippable frame
    zstd    frames with a window of at most 128 MiB, without a dictionary
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import lz4.frame

from app.records.compression import (
    LZ4_BLOCK_CHECKSUM,
    LZ4_CONTENT_SIZE,
    LZ4_DICTIONARY,
    LZ4_MAGIC,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    Buffer,
    Codec,
)

_GZIP_START: Final = b"\x1f\x8b\x08"
_GZIP_USUAL: Final = int.from_bytes(_GZIP_START + b"\x00", "little")
"""Without a name, a comment or extra fields."""
_GZIP_HEADER_BYTES: Final = 10
_GZIP_RESERVED: Final = 0xE0
_SNAPPY_FRAMED: Final = b"\xff\x06\x00\x00sNaPpY"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_DICTIONARY: Final = 0x03
_ZSTD_RESERVED: Final = 0x08
_ZSTD_UNUSUAL: Final = _ZSTD_DICTIONARY | _ZSTD_RESERVED
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_ZSTD_WINDOW_MAX: Final = 0x88
"""Descriptor of a window of 128 MiB: 2 ** (10 + 17), and no eighths. Java and zstd itself read no larger window."""
_ZSTD_HEADER_BYTES: Final = 6
"""Magic, descriptor, and a window or a size."""
_LZ4_START_BYTES: Final = 7
_LZ4_VERSION: Final = 0x40
_LZ4_VERSION_MASK: Final = 0xC0
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_RESERVED: Final = 0x02
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_BLOCK_SIZES: Final = (0x40, 0x50, 0x60, 0x70)
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"
"""Of the magic, without its first byte, which is 0x50 to 0x5f."""
BLOCKS_LOOKED_AT_MAX: Final = 1024
"""Lengths of snappy and LZ4 blocks that are followed to the end of a batch. Clients write one for 32 KiB or more of records."""
_INT32: Final = Struct(">i")
_UINT32: Final = Struct("<I")
_START_BYTES: Final = 16
"""The longest of these headers."""
_GZIP, _SNAPPY, _LZ4, _ZSTD = (int(codec) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))
"""Numbers, which are compared faster than members of an enumeration."""
_USUAL_BYTES_MIN: Final = 20
_ZSTD_START: Final = Struct(">IBB")
_ZSTD_MAGIC_NUMBER: Final = int.from_bytes(_ZSTD_MAGIC, "big")
_LZ4_START: Final = Struct("<7sI")
"""The header of a frame without a content size, and the size of its first block."""
_LZ4_USUAL: Final = LZ4_MAGIC + b"\x60\x40\x82"
"""Blocks of 64 KiB, no checksums: Java's client, librdkafka and Go's clients write small batches so."""
_LZ4_SIZE_MASK: Final = 0x7FFFFFFF
_LZ4_AROUND_BLOCK_BYTES: Final = _LZ4_START.size + 4
"""Bytes of a frame of one block besides that: the header, the block's size, the mark of the end."""
_XERIAL_START: Final = Struct(">16si")
"""Xerial's header, and the size of the first block."""


def is_readable(codec: int, data: Buffer, position: int = 0) -> bool:
    """Whether ``framing_fault`` is None. Costs less than half a microsecond for one block, the usual case."""
    left = len(data) - position
    if left >= _USUAL_BYTES_MIN:
        if codec == _ZSTD:
            magic, descriptor, window = _ZSTD_START.unpack_from(data, position)
            if (
                magic == _ZSTD_MAGIC_NUMBER
                and not descriptor & _ZSTD_UNUSUAL
                and (window <= _ZSTD_WINDOW_MAX or descriptor & _ZSTD_SINGLE_SEGMENT)
            ):
                return True
        elif codec == _LZ4:
            start, size = _LZ4_START.unpack_from(data, position)
            if start == _LZ4_USUAL and (size & _LZ4_SIZE_MASK) + _LZ4_AROUND_BLOCK_BYTES == left:
                return True
        elif codec == _SNAPPY:
            start, size = _XERIAL_START.unpack_from(data, position)
            if start == XERIAL_HEADER and size + _XERIAL_START.size == left:
                return True
        elif _UINT32.unpack_from(data, position)[0] == _GZIP_USUAL:
            return True
    return framing_fault(codec, data, position) is None


def framing_fault(codec: int, data: Buffer, position: int = 0) -> str | None:
    """The reason why a client cannot read the compressed records at ``position``; None if the framing shows none."""
    start = bytes(data[position : position + _START_BYTES])
    match codec:
        case Codec.GZIP:
            return _gzip_fault(start)
        case Codec.SNAPPY:
            return _snappy_fault(start, data, position)
        case Codec.LZ4:
            return _lz4_fault(start, data, position)
        case Codec.ZSTD:
            return _zstd_fault(start)
        case _:
            return None


def _gzip_fault(start: bytes) -> str | None:
    if len(start) < _GZIP_HEADER_BYTES or not start.startswith(_GZIP_START):
        return "gzip data does not begin with a gzip header"
    if start[3] & _GZIP_RESERVED:
        return "a gzip header has reserved flags"
    return None


def _snappy_fault(start: bytes, data: Buffer, position: int) -> str | None:
    if not start:
        return "snappy data is empty"
    if start.startswith(XERIAL_MAGIC) and not _is_one_stream(data, position + len(XERIAL_HEADER)):
        return "snappy data is not one stream of whole blocks of xerial's format"
    if start.startswith(_SNAPPY_FRAMED):
        return "snappy data is in the snappy framing format, where clients read xerial's format or a bare block"
    return None


def _is_one_stream(data: Buffer, position: int) -> bool:
    """Whether whole blocks of xerial's format follow one another from ``position`` to the end. Blocks after the first
    ``BLOCKS_LOOKED_AT_MAX`` are taken for such. Only Java's client reads a second stream."""
    end = len(data)
    for _ in range(BLOCKS_LOOKED_AT_MAX):
        if position + 4 > end:
            return position == end
        length = _INT32.unpack_from(data, position)[0]
        if length <= 0:  # the magic of another stream is negative
            return False
        position += 4 + length
    return True


def _lz4_fault(start: bytes, data: Buffer, position: int) -> str | None:
    if len(start) < _LZ4_START_BYTES or not start.startswith(LZ4_MAGIC):
        return "lz4 data does not begin with an LZ4 frame"
    flags, block = start[4], start[5]
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION:
        return f"an LZ4 frame has version {flags >> 6}, where clients read version 1"
    if not flags & _LZ4_INDEPENDENT:
        return "an LZ4 frame has linked blocks, where the Java client reads independent blocks"
    if flags & (LZ4_DICTIONARY | _LZ4_RESERVED):
        return "an LZ4 frame has a dictionary or reserved flags"
    if block not in _LZ4_BLOCK_SIZES:
        return f"an LZ4 frame has the block descriptor 0x{block:02x}, which is not defined"
    try:
        lz4.frame.get_frame_info(start)
    except RuntimeError:
        return "the header of an LZ4 frame does not match its checksum"
    blocks_at = position + (_LZ4_START_BYTES if not flags & LZ4_CONTENT_SIZE else _LZ4_START_BYTES + 8)
    if not _ends_with_its_frame(data, blocks_at, flags):
        return "lz4 data is not one whole frame, where the Java client reads no second one"
    return None


def _ends_with_its_frame(data: Buffer, position: int, flags: int) -> bool:
    """Whether the blocks of an LZ4 frame from ``position`` on, and the mark of their end, fill the data. Frames of more than
    ``BLOCKS_LOOKED_AT_MAX`` blocks are taken for such."""
    end = len(data)
    after = 8 if flags & LZ4_BLOCK_CHECKSUM else 4
    for _ in range(BLOCKS_LOOKED_AT_MAX):
        if position + 4 > end:
            return False
        size = _UINT32.unpack_from(data, position)[0]
        if size == 0:
            return position + (8 if flags & _LZ4_CONTENT_CHECKSUM else 4) == end
        position += after + (size & _LZ4_SIZE_MASK)
    return True


def _zstd_fault(start: bytes) -> str | None:
    if start[1:4] == _ZSTD_SKIPPABLE and start[0] & 0xF0 == 0x50:
        return None
    if len(start) < _ZSTD_HEADER_BYTES or not start.startswith(_ZSTD_MAGIC):
        return "zstd data does not begin with a zstd frame"
    descriptor = start[4]
    if descriptor & _ZSTD_RESERVED:
        return "a zstd frame has a reserved flag"
    single = descriptor & _ZSTD_SINGLE_SEGMENT
    if not single and start[5] > _ZSTD_WINDOW_MAX:
        return "a zstd frame has a window of more than 128 MiB, which the Java client does not read"
    dictionary_bytes = (0, 1, 2, 4)[descriptor & _ZSTD_DICTIONARY]
    dictionary_at = 5 if single else 6
    if any(start[dictionary_at : dictionary_at + dictionary_bytes]):
        return "a zstd frame needs a dictionary"
    return None
