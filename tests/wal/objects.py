"""Batches, sections and objects for the tests of the write-ahead log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from app.core.units import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.hot.checkpoints import EpochStart
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId
from app.records.batch import parse_header
from app.records.builder import build_batch
from app.records.control import ControlType, build_marker
from app.wal.format import BatchFields, PartitionState, SectionDraft, WalFooter, batch_fields, encode_object
from app.wal.states import captured

WAL = WalId(3, 17)
TOPIC = TopicId(uuid.UUID("0198c0de-0000-7000-8000-00000000000a"))
P = TopicIdPartition(TOPIC, PartitionIndex(0))
Q = TopicIdPartition(TOPIC, PartitionIndex(1))
NONCE = bytes(range(16))
NOW = TimestampMs(2000)


def batch(
    base_offset: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch of ``count`` records."""
    records = [(1000 + index, None, b"value %d" % (base_offset + index), ()) for index in range(count)]
    return build_batch(
        records,
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(epoch),
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(0 if producer >= 0 else -1),
        base_sequence=sequence,
        transactional=transactional,
    )


def marker(base_offset: int, producer: int, *, aborted: bool = False, epoch: int = 0) -> bytes:
    """The batch that ends a producer's transaction."""
    return build_marker(
        ControlType.ABORT if aborted else ControlType.COMMIT,
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(0),
        coordinator_epoch=5,
        timestamp=TimestampMs(1000),
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(epoch),
    )


def fields_of(data: bytes, *, marker: int = -1) -> BatchFields:
    """What a footer says of a batch."""
    return batch_fields(parse_header(data), marker, 5 if marker >= 0 else -1)


def empty_state(offset: int = 0, epochs: Sequence[tuple[int, int]] = ()) -> PartitionState:
    """The state of a log without producers."""
    lineage = [EpochStart(LeaderEpoch(epoch), Offset(at)) for epoch, at in epochs]
    return captured(ProducerStates(), lineage, Offset(offset))


def draft(
    partition: TopicIdPartition, batches: Sequence[bytes], number: int, *, state_number: int | None = None
) -> SectionDraft:
    """A section, with an empty state unless its state is in an earlier object."""
    fields = [fields_of(data) for data in batches]
    if state_number is not None and state_number != number:
        return SectionDraft(partition, batches, fields, state_number, None)
    return SectionDraft(partition, batches, fields, number, empty_state(fields[0].base_offset))


def small_object(number: int = 4) -> tuple[bytes, WalFooter]:
    """Object 4 of log 3/17: two batches of one partition, and one of another."""
    drafts = [
        draft(P, [batch(10, 2), batch(12, 3, producer=7, sequence=0)], number, state_number=number - 1),
        draft(Q, [batch(0, 1)], number),
    ]
    return encode_object(WAL, number, NONCE, NOW, drafts)
