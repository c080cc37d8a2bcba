"""What a log knows of its producers and leader epochs, as an object of the write-ahead log keeps it (ADR 0037, J28). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.producers import ProducerStates, encode_snapshot, parse_snapshot
from app.records.batch import CONTROL, TRANSACTIONAL
from app.records.control import ControlType, EndTransactionMarker
from app.units import Offset, ProducerId, TimestampMs
from app.wal.format import BatchFields, Marker, OlderBatch, PartitionState


def captured(producers: ProducerStates, leader_epochs: Iterable[EpochStart], offset: Offset) -> PartitionState:
    """The state of a log that ends at ``offset``. It has all batches of each producer that can still be repeated."""
    older = [
        OlderBatch(ProducerId(producer_id), sequence, last_sequence, Offset(base), Offset(last), TimestampMs(timestamp))
        for producer_id, entry in producers.entries.items()
        for sequence, last_sequence, base, last, timestamp in entry.batches[:-1]
    ]
    return PartitionState(offset, tuple(leader_epochs), encode_snapshot(producers.rows()), tuple(older))


def restored(state: PartitionState) -> tuple[ProducerStates, LeaderEpochs]:
    """The state of a log as it was captured. Raises: CorruptionError."""
    producers = ProducerStates()
    producers.load_rows(parse_snapshot(state.snapshot))
    older: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for one in state.older:
        batch = (one.base_sequence, one.last_sequence, one.base_offset, one.last_offset, one.timestamp)
        older.setdefault(one.producer_id, []).append(batch)
    for key, batches in older.items():
        entry = producers.entries.get(key)
        if entry is not None:
            entry.batches = [*batches, *entry.batches]
    return producers, LeaderEpochs(state.leader_epochs)


def replay(producers: ProducerStates, epochs: LeaderEpochs, batches: Iterable[BatchFields]) -> None:
    """Apply batches that follow, from their footers alone, as a log applies them when it is read."""
    for fields in batches:
        epochs.assign(fields.leader_epoch, fields.base_offset)
        last_offset = Offset(fields.end_offset - 1)
        if fields.attributes & CONTROL:
            if fields.marker != Marker.NONE:
                producers.apply_marker(
                    EndTransactionMarker(
                        ControlType(fields.marker),
                        fields.coordinator_epoch,
                        fields.producer_id,
                        fields.producer_epoch,
                        last_offset,
                        fields.max_timestamp,
                    )
                )
        elif fields.producer_id >= 0 and (fields.base_sequence >= 0 or fields.attributes & TRANSACTIONAL):
            producers.apply(
                fields.producer_id,
                fields.producer_epoch,
                fields.base_sequence,
                fields.base_offset,
                last_offset,
                fields.max_timestamp,
                fields.attributes & TRANSACTIONAL,
            )
