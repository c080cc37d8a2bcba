"""The producers and leader epochs of a log, as an object of the write-ahead log keeps it (ADR 0037, J28). Pure.

Tests: ``tests/wal/test_takeover.py``, ``tests/wal/test_writer.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from app.core.errors import LimitExceeded
from app.core.limits import MIB, WAL_STATE_BYTES_MAX
from app.core.units import Offset
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction
from app.hot.producers import ProducerStates, SnapshotRow, aborted_entry, encode_snapshot, parse_snapshot
from app.records.batch import CONTROL, TRANSACTIONAL
from app.records.control import ControlType, EndTransactionMarker
from app.wal.format import BatchFields, MarkerKind, OlderBatch, PartitionState

STATE_BYTES: Final = 8 * MIB
"""A longer state loses the least needed parts: older batches first, then the producers that were silent longest."""

_ROW_BYTES: Final = 46
_OLDER_BYTES: Final = 40
_TIMESTAMP: Final = 5
_FIRST_OFFSET: Final = 7
"""Places in a row of a snapshot."""


_new_older: Final[Callable[[type[OlderBatch], tuple[int, int, int, int, int, int]], OlderBatch]] = tuple.__new__
"""Creates an ``OlderBatch`` at a quarter of the cost of calling the class: a state may have thousands."""


def captured(
    producers: ProducerStates, leader_epochs: Iterable[EpochStart], offset: Offset, *, state_bytes: int = STATE_BYTES
) -> PartitionState:
    """The state of a log that ends at ``offset``. It has all batches of each producer that can still be repeated.

    A state that would be longer than ``state_bytes`` has only the last batch of each producer, as Kafka's snapshots have; and then
    not the producers that were silent longest, as if they had expired. Producers with open transactions stay.
    Raises: LimitExceeded if these alone are too many.
    """
    rows = producers.rows()
    older: list[OlderBatch] = []
    if len(rows) * (_ROW_BYTES + _OLDER_BYTES) <= state_bytes:
        older = [
            _new_older(OlderBatch, (producer_id, *batch))
            for producer_id, entry in producers.entries.items()
            if len(entry.batches) > 1
            for batch in entry.batches[:-1]
        ]
        if len(rows) * _ROW_BYTES + len(older) * _OLDER_BYTES > state_bytes:
            older = []
    if len(rows) * _ROW_BYTES > state_bytes:
        rows = _spoken_last(rows, state_bytes // _ROW_BYTES)
        if len(rows) * _ROW_BYTES > WAL_STATE_BYTES_MAX:
            raise LimitExceeded(
                f"A partition has {len(rows)} open transactions: their state is too long for a write-ahead log."
            )
    return PartitionState(offset, tuple(leader_epochs), encode_snapshot(rows), tuple(older))


def _spoken_last(rows: Sequence[SnapshotRow], count: int) -> list[SnapshotRow]:
    """``count`` rows: those with open transactions, even if they are more, and those that were not silent for long."""
    rows = sorted(rows, key=lambda row: (row[_FIRST_OFFSET] < 0, -row[_TIMESTAMP]))
    opened = sum(row[_FIRST_OFFSET] >= 0 for row in rows)
    return rows[: max(count, opened)]


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


def replay(producers: ProducerStates, epochs: LeaderEpochs, batches: Iterable[BatchFields]) -> list[AbortedTransaction]:
    """Apply batches that follow, from their footers alone, as a log applies them when it is read.

    Returns: the transactions that were aborted in them. All that ended hold the last stable offset back until ``decide_below``.
    """
    aborted: list[AbortedTransaction] = []
    for fields in batches:
        (
            base_offset,
            _,
            leader_epoch,
            attributes,
            delta,
            timestamp,
            producer_id,
            producer_epoch,
            sequence,
            _,
            marker,
            _,
        ) = fields
        epochs.assign(leader_epoch, base_offset)
        if attributes & CONTROL:
            if marker != MarkerKind.NONE:
                completed = producers.apply_marker(
                    EndTransactionMarker(
                        ControlType(marker),
                        fields.coordinator_epoch,
                        producer_id,
                        producer_epoch,
                        Offset(base_offset + delta),
                        timestamp,
                    )
                )
                if completed is not None and completed.aborted:
                    aborted.append(aborted_entry(completed, producers.last_stable_offset_after(completed)))
        elif producer_id >= 0 and (sequence >= 0 or attributes & TRANSACTIONAL):
            producers.apply(
                producer_id,
                producer_epoch,
                sequence,
                base_offset,
                base_offset + delta,
                timestamp,
                attributes & TRANSACTIONAL,
            )
    return aborted
