"""The high watermarks of partitions with several replicas, as they were a few seconds ago (ADR 0024, A4).

``.firn/high-watermarks`` is the CRC-32C (uint32) of the rest, and then a msgpack array: format version (1), and an array of topic
id (16 bytes), partition and offset for each partition. A high watermark of the past is still true. A file that cannot be read
counts as absent: then a log's start is all that is known to be committed, until its leader says more.

Tests: ``tests/broker/test_high_watermarks.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec
from crc32c import crc32c

from app.core.units import PartitionIndex, TopicId, TopicIdPartition

HIGH_WATERMARKS_FILE: Final = "high-watermarks"
VERSION: Final = 1

_decoder = msgspec.msgpack.Decoder(tuple[int, list[tuple[bytes, int, int]]])


def encode_high_watermarks(offsets: Mapping[TopicIdPartition, int]) -> bytes:
    """The bytes of the file."""
    rows = [(key.topic_id.bytes, key.partition, offset) for key, offset in offsets.items()]
    body = msgspec.msgpack.encode((VERSION, rows))
    return crc32c(body).to_bytes(4, "big") + body


def parse_high_watermarks(data: bytes) -> dict[TopicIdPartition, int]:
    """The entries of the file; none if it is damaged or of another version."""
    if len(data) < 4 or int.from_bytes(data[:4], "big") != crc32c(data[4:]):
        return {}
    try:
        version, rows = _decoder.decode(data[4:])
        if version != VERSION:
            return {}
        return {
            TopicIdPartition(TopicId(UUID(bytes=topic_id)), PartitionIndex(index)): offset
            for topic_id, index, offset in rows
        }
    except (msgspec.MsgspecError, ValueError):
        return {}
