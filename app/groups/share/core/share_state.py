"""The stored state of share-partitions: one partition of ``__share_group_state`` (KIP-932). Pure.

A share-partition is one partition of a topic that one share group reads. The leader of that partition hands its records out
(``share_partitions.py``) and asks the share coordinator, which is the leader of a partition of ``__share_group_state``, to store
which records are finished, and how often each was delivered. This module is the share coordinator. It does not know who has
acquired a record: acquisitions are not stored.

Two epochs fence (ADR 0027). The *leader epoch* of the topic's partition: a new leader reads the state, and from then on writes of
older leaders are refused (H1, H2). The *state epoch*: it rises when the progress is set anew, and writes that build on the earlier
progress are refused (H3).

The log has a snapshot (Kafka's ShareSnapshot: the whole state), and then updates (ShareUpdate). Each update has all changes
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
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex
from app.groups.share.core.share_window import DONE, RecordState, Run, Window
from app.metadata.changes.group_configs import LATEST

NOT_BEGUN: Final = -1
"""In place of a start offset: the group has not read the partition."""
ANY_EPOCH: Final = -1
"""In place of a state epoch: a state that exists stays as it is."""
RESET_EPOCHS: Final = 64
"""A reset raises the state epoch to the next multiple. The epochs between are for the leader (H5)."""

UPDATES_MAX: Final = 500
"""Default maximum of updates between two snapshots."""
RUNS_FREE: Final = 8
"""Runs that updates may repeat beyond those of a snapshot, before the next snapshot is due. With few runs, updates are smaller."""


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


def epoch_after_reset(state_epoch: int) -> int:
    """The state epoch after a reset: above all epochs that the earlier progress' leader may use."""
    return (state_epoch // RESET_EPOCHS + 1) * RESET_EPOCHS


class ShareState(NamedTuple):
    """The state of a share-partition, as it is read."""

    state_epoch: int
    leader_epoch: int
    start: int
    """The first unfinished offset; ``NOT_BEGUN`` if the group has not read the partition."""
    runs: tuple[Run, ...]
    """Runs in order, without gaps, from ``start`` on."""

    @property
    def done_count(self) -> int:
        """Number of finished records after ``start``."""
        return sum(run.end - run.first for run in self.runs if run.state in DONE)


class StoredShare:
    """The state of one share-partition in memory."""

    __slots__ = (
        "is_begun_anew",
        "leader_epoch",
        "repeated",
        "snapshot",
        "snapshot_epoch",
        "state_epoch",
        "updates",
        "window",
    )

    def __init__(self, window: Window, state_epoch: int = 0, snapshot_epoch: int = 0, leader_epoch: int = 0) -> None:
        self.window = window
        """Has no acquired records."""
        self.state_epoch = state_epoch
        """Rises whenever the progress is set anew."""
        self.leader_epoch = leader_epoch
        """The newest leader of the topic's partition that has read or written the state."""
        self.snapshot_epoch = snapshot_epoch
        """Epoch of the newest snapshot in the log; 0 if there is none."""
        self.snapshot: frozenset[Run] = frozenset()
        """The runs of that snapshot."""
        self.updates = 0
        """Number of updates in the log after the snapshot."""
        self.repeated = 0
        """Number of runs in all these updates."""
        self.is_begun_anew = False
        """Whether the snapshot in the log has another state epoch."""

    @property
    def state(self) -> ShareState:
        return ShareState(self.state_epoch, self.leader_epoch, self.window.start, self.window.runs)


class ShareStateShard:
    """States of share-partitions by key."""

    def __init__(self, partition: PartitionIndex, settings: Callable[[str], ShareSettings]) -> None:
        """``settings`` returns the present settings of a group."""
        self.partition = partition
        self._settings = settings
        self.partitions: dict[ShareKey, StoredShare] = {}
        self._next_epoch = 0
        """First state epoch of a new state: above the epochs of all deleted states, so that their leaders are fenced."""

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
            self._drop(at)
            return
        value: ShareSnapshotValue = SHARE_STATE_RECORDS.decode_value(key, raw_value)
        runs = _runs_of(value.state_batches)
        shared = StoredShare(
            Window(value.start_offset, runs), value.state_epoch, value.snapshot_epoch, value.leader_epoch
        )
        shared.snapshot = frozenset(runs)
        self.partitions[at] = shared

    def _load_update(self, key: ShareUpdateKey, raw_value: bytes) -> None:
        shared = self.partitions.get(ShareKey(key.group_id, key.topic_id, key.partition))
        value: ShareUpdateValue = SHARE_STATE_RECORDS.decode_value(key, raw_value)
        if shared is None or shared.snapshot_epoch != value.snapshot_epoch:
            return  # Compaction has left it behind a snapshot that a newer one has replaced.
        runs = _runs_of(value.state_batches)
        shared.window = shared.window.with_runs(value.start_offset, runs)
        shared.leader_epoch = max(shared.leader_epoch, value.leader_epoch)
        shared.updates += 1
        shared.repeated += len(runs)

    def loaded(self, turn: Turn) -> None:
        """Nothing to do: nothing here has a time limit."""

    def unloaded(self, turn: Turn) -> None:
        """Nothing to do: no caller waits here."""

    def due(self, turn: Turn, key: ShareKey) -> None:
        raise AssertionError("nothing here has a time limit")

    # --- events -------------------------------------------------------------------------------------------------------

    def shared(self, key: ShareKey) -> StoredShare | None:
        return self.partitions.get(key)

    def initialize(self, turn: Turn, key: ShareKey, state_epoch: int, start: int) -> None:
        """Create the state of a share-partition, or set it anew under a higher state epoch.

        With ``ANY_EPOCH`` and ``NOT_BEGUN``, a state that exists stays as it is, so the event may come any number of times (H4).

        Raises: RequestRejected FENCED_STATE_EPOCH if the state has this epoch or a higher one, except if it has just been set so;
        the errors of an append.
        """
        known = self.partitions.get(key)
        if known is not None:
            if state_epoch == ANY_EPOCH and start == NOT_BEGUN:
                return
            if state_epoch <= known.state_epoch:
                if state_epoch in (ANY_EPOCH, known.state_epoch) and known.window == Window(start):
                    return
                raise RequestRejected(
                    ErrorCode.FENCED_STATE_EPOCH, f"The state epoch of {key.name} is {known.state_epoch} now."
                )
            shared = StoredShare(Window(start), state_epoch, known.snapshot_epoch, known.leader_epoch)
            shared.is_begun_anew = True
        else:
            shared = StoredShare(Window(start), max(state_epoch, self._next_epoch))
        self._write(turn, key, shared, shared.window, shared.leader_epoch)
        self.partitions[key] = shared

    def reset(self, turn: Turn, key: ShareKey, start: int) -> None:
        """Set the progress anew, in every state. Raises: the errors of an append."""
        known = self.partitions.get(key)
        self.initialize(turn, key, ANY_EPOCH if known is None else epoch_after_reset(known.state_epoch), start)

    def read(self, turn: Turn, key: ShareKey, leader_epoch: int) -> ShareState:
        """The state, for the leader of the topic's partition. From now on leaders of older epochs are refused (H1).

        Raises: RequestRejected FENCED_LEADER_EPOCH; INVALID_REQUEST if there is no state; the errors of an append.
        """
        shared = self._known(key)
        self._check_leader(key, shared, leader_epoch)
        if leader_epoch > shared.leader_epoch:
            self._write(turn, key, shared, shared.window, leader_epoch)
            shared.leader_epoch = leader_epoch
        return shared.state

    def write(
        self,
        turn: Turn,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        start: int,
        runs: Sequence[Run],
        *,
        whole: bool = False,
    ) -> None:
        """Store the progress of the topic's partition from its leader: the first unfinished offset, and changed runs in order, or
        with ``whole`` all runs. A leader may raise the state epoch of its own progress, to fence its own earlier writes (H5).

        Raises, with nothing written: RequestRejected FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH; INVALID_REQUEST if there is no
        state; the errors of an append.
        """
        shared = self._known(key)
        self._check_leader(key, shared, leader_epoch)
        if not shared.state_epoch <= state_epoch < epoch_after_reset(shared.state_epoch):
            raise RequestRejected(
                ErrorCode.FENCED_STATE_EPOCH,
                f"The state epoch of {key.name} is {shared.state_epoch}, not {state_epoch}.",
            )
        if runs and NOT_BEGUN == start == shared.window.start:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"{key.name} has no start offset yet.")
        window = Window(start, tuple(runs)) if whole else _merged(shared.window, start, runs)
        before = shared.state_epoch, shared.is_begun_anew
        if state_epoch > shared.state_epoch:
            shared.state_epoch, shared.is_begun_anew = state_epoch, True
        try:
            self._write(turn, key, shared, window, leader_epoch)
        except RequestRejected:
            shared.state_epoch, shared.is_begun_anew = before
            raise
        shared.window, shared.leader_epoch = window, leader_epoch

    def forget(self, turn: Turn, keys: Iterable[ShareKey]) -> None:
        """Delete the states of these share-partitions, as far as there are any. Raises: the errors of an append."""
        known = [key for key in keys if key in self.partitions]
        if not known:
            return
        tombstones = []
        for key in known:
            tombstones.append(SHARE_STATE_RECORDS.record(ShareSnapshotKey(*key), None))
            tombstones.append(SHARE_STATE_RECORDS.record(ShareUpdateKey(*key), None))
        turn.append(tombstones)
        for key in known:
            self._drop(key)

    def _drop(self, key: ShareKey) -> None:
        shared = self.partitions.pop(key, None)
        if shared is not None:
            self._next_epoch = max(self._next_epoch, epoch_after_reset(shared.state_epoch))

    def _known(self, key: ShareKey) -> StoredShare:
        """Raises: RequestRejected INVALID_REQUEST."""
        shared = self.partitions.get(key)
        if shared is None:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"There is no state of {key.name}.")
        return shared

    def _check_leader(self, key: ShareKey, shared: StoredShare, leader_epoch: int) -> None:
        """Raises: RequestRejected FENCED_LEADER_EPOCH."""
        if leader_epoch < shared.leader_epoch:
            raise RequestRejected(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"A leader of epoch {shared.leader_epoch} has read the state of {key.name}; epoch {leader_epoch} is over.",
            )

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, turn: Turn, key: ShareKey, shared: StoredShare, window: Window, leader_epoch: int) -> None:
        """Write a window as an update since the snapshot, or as a new snapshot. Raises: the errors of an append."""
        runs = window.runs
        changed = [run for run in runs if run not in shared.snapshot]
        repeated = shared.repeated + len(changed)
        if (
            shared.snapshot_epoch == 0
            or shared.updates >= self._settings(key.group_id).updates_max
            or repeated > len(runs) + RUNS_FREE
            or shared.is_begun_anew
        ):
            self._write_snapshot(turn, key, shared, window, leader_epoch)
        else:
            update = ShareUpdateValue(
                snapshot_epoch=shared.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=window.start,
                state_batches=[_batch_of(run) for run in changed],
            )
            turn.append([SHARE_STATE_RECORDS.record(ShareUpdateKey(*key), update)])
            shared.updates += 1
            shared.repeated = repeated

    def _write_snapshot(
        self, turn: Turn, key: ShareKey, shared: StoredShare, window: Window, leader_epoch: int
    ) -> None:
        snapshot = ShareSnapshotValue(
            snapshot_epoch=shared.snapshot_epoch + 1,
            state_epoch=shared.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=window.start,
            create_timestamp=turn.now_ms,
            write_timestamp=turn.now_ms,
            state_batches=[_batch_of(run) for run in window.runs],
        )
        turn.append([SHARE_STATE_RECORDS.record(ShareSnapshotKey(*key), snapshot)])
        shared.snapshot_epoch += 1
        shared.snapshot = frozenset(window.runs)
        shared.updates = shared.repeated = 0
        shared.is_begun_anew = False


def _merged(window: Window, start: int, runs: Sequence[Run]) -> Window:
    """A window in which these runs replace earlier ones. Offsets in between, without a run, are available."""
    base = window.begin_at(start)
    changed = [run._replace(first=max(run.first, base.start)) for run in runs if run.end > base.start]
    if changed and changed[-1].end > base.end:
        base = Window(base.start, (*base.runs, Run(base.end, changed[-1].end)))
    return base.with_runs(base.start, changed)


def _batch_of(run: Run) -> StateBatch:
    return StateBatch(run.first, run.end - 1, run.state, run.delivery_count)


def _runs_of(batches: Iterable[StateBatch]) -> tuple[Run, ...]:
    return tuple(
        [
            Run(each.first_offset, each.last_offset + 1, RecordState(each.delivery_state), each.delivery_count)
            for each in batches
        ]
    )
