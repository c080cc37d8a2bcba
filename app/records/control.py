"""Control records: the markers that end a transaction in each partition it wrote to (KIP-98).

    key     version int16 (0), type int16: 0 ABORT, 1 COMMIT
    value   version int16 (0), coordinator epoch int32

A marker is a batch of its own with one record, TRANSACTIONAL and CONTROL set, without a sequence number. Further types
belong to Kafka's Raft log and to nothing here; readers skip types they do not know.

A marker may have one header, which says of which decision it is (``app/transactions/decisions.py``). Kafka and its clients skip it.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from app.core.errors import CorruptionError
from app.core.units import NO_LEADER_EPOCH, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.batch import parse_header
from app.records.builder import FIRST_OFFSET, build_batch
from app.records.record import iter_records


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """The content of a marker batch."""

    control_type: ControlType
    coordinator_epoch: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    offset: Offset
    timestamp: TimestampMs


_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")

DECISION_HEADER: Final = "firn-decision"


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(0, control_type)


def control_value(coordinator_epoch: int) -> bytes:
    return _VALUE.pack(0, coordinator_epoch)


def parse_control_key(key: bytes | None) -> ControlType | None:
    """The type that a control record's key names; None for one that is not known here.

    Raises: CorruptionError if it is not a control key.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptionError("A control record's key is too short.")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptionError(f"A control record's key has version {version}.")
    return ControlType(kind) if kind in (ControlType.ABORT, ControlType.COMMIT) else None


def build_marker(
    control_type: ControlType,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    coordinator_epoch: int,
    timestamp: TimestampMs,
    base_offset: Offset = FIRST_OFFSET,
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    decision: bytes = b"",
) -> bytes:
    """The batch that ends the producer's transaction in a partition. ``decision``: the value of the header; empty for none."""
    headers = ((DECISION_HEADER, decision),) if decision else ()
    return build_batch(
        [(timestamp, control_key(control_type), control_value(coordinator_epoch), headers)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decision_of(batch: memoryview | bytes | bytearray) -> bytes:
    """The header of a marker; empty if it has none. Raises: CorruptionError if the batch's interior is not sound."""
    for record in iter_records(batch):
        for key, value in record.headers:
            if key == DECISION_HEADER and value is not None:
                return value
    return b""


def parse_marker(batch: memoryview | bytes | bytearray) -> EndTransactionMarker | None:
    """The marker in the checked control batch that ``batch`` starts with; None if it is another kind of control batch.

    Raises: CorruptionError if its interior is not sound.
    """
    header = parse_header(batch)
    records = list(iter_records(batch))
    if not records:
        return None
    record = records[0]
    control_type = parse_control_key(record.key)
    if control_type is None:
        return None
    if len(records) != 1:
        raise CorruptionError(f"The end-transaction batch at offset {header.base_offset} has {len(records)} records.")
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptionError(f"The end-transaction marker at offset {header.base_offset} has no whole value.")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptionError(f"The end-transaction marker at offset {header.base_offset} has version {version}.")
    return EndTransactionMarker(
        control_type, coordinator_epoch, header.producer_id, header.producer_epoch, record.offset, record.timestamp
    )
