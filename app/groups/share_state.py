"""The share-partitions of one partition of ``__share_group_state``: acquired and finished records (KIP-932). Pure.

A share-partition is one partition of a topic that one share group reads. ``share_window.py`` has the rules for its records.
This module writes changes before they count, and keeps time limits. Acquisitions are not written: after a restart the records
are available again, with the delivery counts of the log.

The log has a snapshot (Kafka's ShareSnapshot: the whole window), and then updates (ShareUpdate). Each update has all changes
since the snapshot. So the newest snapshot and the newest update are enough, and compaction keeps these. Updates grow because
they repeat earlier changes, so a new snapshot is due when the updates together contain as much as it would.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from app.coordinator.partition import ReplayedBatch
from app.coordinator.records import SHARE_STATE_RECORDS
from app.coordinator.schemas.share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)
from app.coordinator.shell import Turn
from app.errors import ErrorCode, RequestRejected
from app.groups.counters import ShareCounters
from app.groups.share_window import Acknowledgement, Acquired, RecordState, Run, Window, pieces
from app.metadata.group_configs import LATEST
from app.metrics import Registry
from app.tiering.waiting import Waiters
from app.units import PartitionIndex

RETRY_MS: Final = 1000
"""Pause after a failed append before due work is retried."""

UPDATES_MAX: Final = 500
"""Default maximum of updates between two snapshots."""
RUNS_FREE: Final = 8
"""Updates may repeat so many runs more than a snapshot has before the next snapshot is due. With few runs, updates are smaller."""


class ShareKey(NamedTuple):
    """Names a share-partition."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def name(self) -> str:
        """The text that is hashed for the partition of ``__share_group_state``, and that clients use as name. The topic id is
        in Kafka's form, Base64."""
        topic_id = urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def parse(cls, name: str) -> ShareKey:
        """Parse the name of a share-partition. The group id may contain colons. Raises: ValueError."""
        group_id, topic_id, partition = name.rsplit(":", 2)
        if not group_id.strip():
            raise ValueError("the group's id is empty")
        return cls(group_id, UUID(bytes=urlsafe_b64decode(topic_id + "==")), int(partition))


class ShareSettings(NamedTuple):
    """The sharing settings of a group."""

    lock_ms: int
    deliveries_max: int
    window_max: int
    committed: bool = False
    """Whether records of open and aborted transactions are held back."""
    reset: str = LATEST
    """The start position in a partition that the group has not read before."""
    renews: bool = True
    """Whether a member may request more time."""
    updates_max: int = UPDATES_MAX
    """Maximum updates between two snapshots."""


class SharePartition:
    """One share-partition in memory."""

    __slots__ = (
        "changed",
        "is_begun_anew",
        "repeated",
        "snapshot",
        "snapshot_epoch",
        "state_epoch",
        "updates",
        "window",
    )

    def __init__(self, window: Window, state_epoch: int = 0, snapshot_epoch: int = 0) -> None:
        self.window = window
        self.state_epoch = state_epoch
        """Rises whenever the progress is reset."""
        self.snapshot_epoch = snapshot_epoch
        """Epoch of the newest snapshot in the log; 0 if there is none."""
        self.snapshot: frozenset[Run] = frozenset()
        """The runs of that snapshot."""
        self.updates = 0
        """Number of updates in the log after the snapshot."""
        self.repeated = 0
        """Number of runs in all these updates."""
        self.is_begun_anew = False
        """Whether the snapshot in the log is from before a reset."""
        self.changed = Waiters()
        """Woken when records may have become available."""


class ShareStateShard:
    """Share-partitions by key."""

    def __init__(
        self,
        partition: PartitionIndex,
        settings: Callable[[str], ShareSettings],
        counters: ShareCounters | None = None,
    ) -> None:
        """``settings`` returns the present settings of a group. ``counters`` is optional."""
        self._counters = ShareCounters(Registry()) if counters is None else counters
        self.partition = partition
        self._settings = settings
        self.partitions: dict[ShareKey, SharePartition] = {}

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch) -> None:
        for raw_key, raw_value in batch.records:
            key = SHARE_STATE_RECORDS.decode_key(raw_key)
            if isinstance(key, ShareSnapshotKey):
                self._load_snapshot(key, raw_value)
            elif isinstance(key, ShareUpdateKey) and raw_value is not None:
                self._load_update(key, raw_value)

    def _load_snapshot(self, key: ShareSnapshotKey, raw_value: bytes | None) -> None:
        at = ShareKey(key.group_id, key.topic_id, key.partition)
        if raw_value is None:
            self.partitions.pop(at, None)
            return
        value: ShareSnapshotValue = SHARE_STATE_RECORDS.decode_value(key, raw_value)
        runs = _runs_of(value.state_batches)
        shared = SharePartition(Window(value.start_offset, runs), value.state_epoch, value.snapshot_epoch)
        shared.snapshot = frozenset(runs)
        self.partitions[at] = shared

    def _load_update(self, key: ShareUpdateKey, raw_value: bytes) -> None:
        shared = self.partitions.get(ShareKey(key.group_id, key.topic_id, key.partition))
        value: ShareUpdateValue = SHARE_STATE_RECORDS.decode_value(key, raw_value)
        if shared is None or shared.snapshot_epoch != value.snapshot_epoch:
            return  # Compaction has left it behind a snapshot that a newer one has replaced.
        runs = _runs_of(value.state_batches)
        shared.window = shared.window.with_runs(value.start_offset, runs)
        shared.updates += 1
        shared.repeated += len(runs)

    def loaded(self, turn: Turn) -> None:
        """Nothing to do: no records are acquired after a load, so no time limits run."""

    def unloaded(self, turn: Turn) -> None:
        for shared in self.partitions.values():
            shared.changed.wake()

    def due(self, turn: Turn, key: ShareKey) -> None:
        """The locks of acquired records have expired."""
        shared = self.partitions.get(key)
        if shared is None:
            return
        had = shared.window.acquired_count
        window = shared.window.expire(turn.steady_ms, deliveries_max=self._settings(key.group_id).deliveries_max)
        try:
            self._put(turn, key, shared, window)
        except RequestRejected:
            turn.set_timer(key, RETRY_MS)
        else:
            self._counters.locks_expired.value += had - window.acquired_count

    # --- events -------------------------------------------------------------------------------------------------------

    def shared(self, key: ShareKey) -> SharePartition | None:
        return self.partitions.get(key)

    def begin(self, turn: Turn, key: ShareKey, start: int) -> None:
        """Make the group read the partition from ``start`` on, regardless of its progress. Raises: the errors of an append."""
        known = self.partitions.get(key)
        shared = SharePartition(Window(start))
        if known is not None:
            shared.state_epoch, shared.snapshot_epoch = known.state_epoch + 1, known.snapshot_epoch
            shared.is_begun_anew = True
        self._write(turn, key, shared, shared.window)
        self.partitions[key] = shared
        turn.cancel_timer(key)
        if known is not None:
            known.changed.wake()

    def reset(self, turn: Turn, key: ShareKey, start: int | None) -> None:
        """Begin the group's progress in the partition at ``start``, or reset it to there. Raises: the errors of an append."""
        if start is not None:
            self.begin(turn, key, start)
        elif key in self.partitions:
            self.forget(turn, [key])

    def forget(self, turn: Turn, keys: Sequence[ShareKey]) -> None:
        """Delete the progress in these share-partitions. Raises: the errors of an append."""
        tombstones = []
        for key in keys:
            tombstones.append(SHARE_STATE_RECORDS.record(ShareSnapshotKey(*key), None))
            tombstones.append(SHARE_STATE_RECORDS.record(ShareUpdateKey(*key), None))
        turn.append(tombstones)
        for key in keys:
            turn.cancel_timer(key)
            self.partitions.pop(key).changed.wake()

    def acquire(
        self,
        turn: Turn,
        key: ShareKey,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        not_for_anybody: Iterable[tuple[int, int]],
        log_start: int,
        count_max: int,
        *,
        whole_batches: bool = False,
    ) -> list[Acquired]:
        """Give a member the available records of batches that were read, without the records that nobody must get.

        Raises: RequestRejected if the progress cannot be written (it is written only if records were finished).
        """
        shared = self.partitions.get(key)
        if shared is None:
            return []
        settings = self._settings(key.group_id)
        window = shared.window.begin_at(log_start).archive(not_for_anybody, window_max=settings.window_max)
        window, acquired = window.acquire(
            batches,
            member_id,
            turn.steady_ms + settings.lock_ms,
            count_max=count_max,
            window_max=settings.window_max,
            whole_batches=whole_batches,
        )
        if window.start > shared.window.start:
            self._write(turn, key, shared, window)
        shared.window = window
        self._arm(turn, key, window)
        self._counters.acquired.value += sum(each.end - each.first for each in acquired)
        return acquired

    def acknowledge(self, turn: Turn, key: ShareKey, member_id: str, said: Sequence[Acknowledgement]) -> None:
        """Raises: RequestRejected as ``Window.acknowledge``, UNKNOWN_TOPIC_OR_PARTITION if the group does not read it."""
        shared = self.partitions.get(key)
        if shared is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The group does not read the partition.")
        settings = self._settings(key.group_id)
        window = shared.window.acknowledge(
            member_id, said, turn.steady_ms + settings.lock_ms, deliveries_max=settings.deliveries_max
        )
        self._put(turn, key, shared, window)
        for each in said:
            for first, end, kind in pieces(each):
                self._counters.acknowledged[kind].value += end - first

    def release(self, turn: Turn, key: ShareKey, member_id: str) -> None:
        """Release all records of a member. Raises: the errors of an append."""
        shared = self.partitions.get(key)
        if shared is not None:
            deliveries_max = self._settings(key.group_id).deliveries_max
            self._put(turn, key, shared, shared.window.release(member_id, deliveries_max=deliveries_max))

    # --- writing ------------------------------------------------------------------------------------------------------

    def _put(self, turn: Turn, key: ShareKey, shared: SharePartition, window: Window) -> None:
        if window != shared.window:
            self._write(turn, key, shared, window)
            shared.window = window
            shared.changed.wake()
        self._arm(turn, key, window)

    def _arm(self, turn: Turn, key: ShareKey, window: Window) -> None:
        due_ms = window.next_due_ms
        if due_ms is None:
            turn.cancel_timer(key)
        else:
            turn.set_timer(key, max(0, due_ms - turn.steady_ms))

    def _write(self, turn: Turn, key: ShareKey, shared: SharePartition, window: Window) -> None:
        """Write a window as an update since the snapshot, or as a new snapshot. Raises: the errors of an append."""
        runs = tuple([_written(run) for run in window.runs])
        changed = [run for run in runs if run not in shared.snapshot]
        repeated = shared.repeated + len(changed)
        if (
            shared.snapshot_epoch == 0
            or shared.updates >= self._settings(key.group_id).updates_max
            or repeated > len(runs) + RUNS_FREE
            or shared.is_begun_anew
        ):
            self._write_snapshot(turn, key, shared, window.start, runs)
        else:
            update = ShareUpdateValue(
                snapshot_epoch=shared.snapshot_epoch,
                start_offset=window.start,
                state_batches=[_batch_of(run) for run in changed],
            )
            turn.append([SHARE_STATE_RECORDS.record(ShareUpdateKey(*key), update)])
            shared.updates += 1
            shared.repeated = repeated

    def _write_snapshot(
        self, turn: Turn, key: ShareKey, shared: SharePartition, start: int, runs: Sequence[Run]
    ) -> None:
        snapshot = ShareSnapshotValue(
            snapshot_epoch=shared.snapshot_epoch + 1,
            state_epoch=shared.state_epoch,
            start_offset=start,
            create_timestamp=turn.now_ms,
            write_timestamp=turn.now_ms,
            state_batches=[_batch_of(run) for run in runs],
        )
        turn.append([SHARE_STATE_RECORDS.record(ShareSnapshotKey(*key), snapshot)])
        shared.snapshot_epoch += 1
        shared.snapshot = frozenset(runs)
        shared.updates = shared.repeated = 0
        shared.is_begun_anew = False


def _written(run: Run) -> Run:
    """A run in its written form, without its acquirer."""
    state = RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state
    return Run(run.first, run.end, state, run.delivery_count)


def _batch_of(run: Run) -> StateBatch:
    return StateBatch(run.first, run.end - 1, run.state, run.delivery_count)


def _runs_of(batches: Iterable[StateBatch]) -> tuple[Run, ...]:
    return tuple(
        [
            Run(each.first_offset, each.last_offset + 1, RecordState(each.delivery_state), each.delivery_count)
            for each in batches
        ]
    )
