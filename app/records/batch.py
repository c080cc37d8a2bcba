"""The v2 record batch header (KIP-98, KIP-32): parse, check and patch, per batch, never per record.

All numbers are big endian. The CRC-32C covers everything from ``attributes`` to the end of the batch, so the base
offset, the length, the leader epoch and the magic can be patched without touching it.

    0  base offset        int64      43  producer id            int64
    8  batch length       int32      51  producer epoch         int16
   12  leader epoch       int32      53  base sequence          int32
   16  magic              int8       57  record count           int32
   17  CRC-32C            uint32     61  records …
   21  attributes         int16
   23  last offset delta  int32
   27  base timestamp     int64
   35  max timestamp      int64
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from app.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and batch length: what ``batch_length`` does not count."""
CRC_START: Final = 21
"""First byte that the CRC covers."""
MAGIC_V2: Final = 2

assert HEADER.size == HEADER_BYTES

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
HAS_DELETE_HORIZON: Final = 0x40


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order."""

    base_offset: Offset
    batch_length: int
    """Bytes after the length field itself."""
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def end_offset(self) -> Offset:
        """One past the offset of the last record."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def parse_header(view: memoryview | bytes | bytearray, position: int = 0) -> BatchHeader:
    """Read the header at ``position``; at least ``HEADER_BYTES`` must be there. Nothing is checked."""
    return BatchHeader._make(HEADER.unpack_from(view, position))


def iter_headers(view: memoryview | bytes | bytearray) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch of trusted bytes (our own disk, already verified); a partial last one is left out."""
    position, end = 0, len(view)
    while position + HEADER_BYTES <= end:
        header = parse_header(view, position)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes
