"""Batches, segment files and footers for the tests of this directory."""

from __future__ import annotations

import random
import uuid

from app.core.units import (
    FilePosition,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    SegmentId,
    TimestampMs,
    TopicId,
)
from app.records.batch import parse_header
from app.records.builder import build_batch
from app.tiering.store.segment_format import (
    AbortedTransaction,
    ChunkCodec,
    ChunkEntry,
    EpochStart,
    SegmentFooter,
)
from app.tiering.store.store_work import UploadJob

TOPIC = TopicId(uuid.UUID("0198c0de-0000-7000-8000-00000000000a"))
SEGMENT = SegmentId(uuid.UUID("0198c0de-0000-7000-8000-00000000000b"))


def batch(
    base_offset: int, count: int = 1, *, value_bytes: int = 20, timestamp: int = 1000, codec: int = 0, seed: int = 0
) -> bytes:
    """A batch of ``count`` records whose values are random, hence do not compress."""
    rng = random.Random(base_offset * 7919 + seed)
    records = [(timestamp + index, None, rng.randbytes(value_bytes), ()) for index in range(count)]
    return build_batch(records, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(0), codec=codec)


def segment_bytes(
    base_offset: int = 0, batches: int = 10, *, records: int = 3, value_bytes: int = 20, codec: int = 0
) -> tuple[bytes, Offset]:
    """Contiguous batches and the offset after them."""
    pieces = []
    offset = base_offset
    for index in range(batches):
        pieces.append(batch(offset, records, value_bytes=value_bytes, timestamp=1000 + index * 10, codec=codec))
        offset += records
    return b"".join(pieces), Offset(offset)


def upload_job(path: str, data: bytes, *, base_offset: int = 0, **changes: object) -> UploadJob:
    end = base_offset
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        end = header.end_offset
        position += header.size_bytes
    fields: dict[str, object] = {
        "key": f"data/00/{TOPIC}/0/{base_offset:020d}-{SEGMENT}.seg",
        "segment_id": SEGMENT.bytes,
        "topic_id": TOPIC.bytes,
        "partition": 0,
        "path": path,
        "log_bytes": len(data),
        "base_offset": base_offset,
        "end_offset": end,
        "leader_epochs": [(0, 0)],
        "aborted": [],
        "producer_snapshot": b"snapshot",
        "compression": "none",
        "chunk_bytes": 1000,
        "created_ms": 5,
    }
    return UploadJob(**(fields | changes))  # type: ignore[arg-type]


def small_footer() -> SegmentFooter:
    """A footer of two chunks with everything in it."""
    chunks = (
        ChunkEntry(
            FilePosition(0), 200, 200, Offset(10), 5, 2, TimestampMs(1000), TimestampMs(1009), 0x01020304,
            ChunkCodec.VERBATIM,
        ),
        ChunkEntry(
            FilePosition(200), 50, 300, Offset(15), 7, 3, TimestampMs(990), TimestampMs(1020), 0xFFFFFFFE,
            ChunkCodec.ZSTD,
        ),
    )  # fmt: skip
    return SegmentFooter(
        topic_id=TOPIC,
        segment_id=SEGMENT,
        partition=PartitionIndex(3),
        base_offset=Offset(10),
        end_offset=Offset(22),
        min_timestamp=TimestampMs(990),
        max_timestamp=TimestampMs(1020),
        record_count=12,
        batch_count=5,
        raw_bytes=500,
        stored_bytes=250,
        created_ms=TimestampMs(2000),
        leader_epochs=(EpochStart(LeaderEpoch(0), Offset(0)), EpochStart(LeaderEpoch(4), Offset(12))),
        aborted=(AbortedTransaction(ProducerId(77), Offset(11), Offset(30), Offset(11)),),
        producer_snapshot=b"\x00\x01abc",
        chunks=chunks,
    )
