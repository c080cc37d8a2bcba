"""The share-partitions whose records this broker hands out, as leader of the topics' partitions (KIP-932). Pure.

``share_window.py`` has the rules for the records of one share-partition. This module stores changes before they count, and keeps
time limits. The share coordinator stores the window without the acquisitions (``share_state.py``). Acquisitions end with the
leadership: the next leader reads the state, and there the records are available (H2).

A change that is refused at once does not happen. A change that is on its way to the coordinator counts in memory, and a response
that tells of it waits until it is stored (``share_leader.py``).

Tests: ``tests/groups/test_share_state_model.py``, ``tests/groups/test_share.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Protocol

from app.core.errors import ErrorCode, RequestRejected
from app.core.wake import Wake
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_state import NOT_BEGUN, ShareKey, ShareSettings, ShareState
from app.groups.share.core.share_window import Acknowledgement, Acquired, RecordState, Run, Window, pieces

RETRY_MS: Final = 1000
"""Pause after a failed write before due work is retried."""


class Moment(Protocol):
    """Time, while one event is served."""

    @property
    def steady_ms(self) -> int:
        """Monotonic time."""
        ...

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        """Call ``due`` with ``key`` in ``delay_ms``. This replaces an earlier timer of ``key``."""
        ...

    def cancel_timer(self, key: Hashable) -> None: ...


class SharePartition:
    """One share-partition in memory."""

    __slots__ = ("changed", "is_over", "key", "leader_epoch", "state_epoch", "window")

    def __init__(self, key: ShareKey, state: ShareState, leader_epoch: int) -> None:
        self.key = key
        self.window = Window(state.start, state.runs)
        self.state_epoch = state.state_epoch
        self.leader_epoch = leader_epoch
        """The leader epoch of the topic's partition when the state was read."""
        self.changed = Wake()
        """Woken when records may have become available."""
        self.is_over = False
        """Whether this broker does not hand its records out any more."""

    @property
    def is_begun(self) -> bool:
        """Whether the group has read the partition before."""
        return self.window.start != NOT_BEGUN


class SharePartitions:
    """Share-partitions by key."""

    def __init__(
        self,
        settings: Callable[[str], ShareSettings],
        store: Callable[[SharePartition, Window], None],
        counters: ShareCounters,
    ) -> None:
        """``settings`` returns the present settings of a group.

        ``store`` stores the next window of a share-partition, or begins to. It raises RequestRejected if it cannot; then the window
        stays as it is.
        """
        self._settings = settings
        self._store = store
        self._counters = counters
        self.partitions: dict[ShareKey, SharePartition] = {}

    def open(self, key: ShareKey, state: ShareState, leader_epoch: int) -> SharePartition:
        """Begin to hand out the records of a share-partition whose state was read under ``leader_epoch``."""
        shared = self.partitions[key] = SharePartition(key, state, leader_epoch)
        return shared

    def drop(self, moment: Moment, key: ShareKey) -> None:
        """Hand out nothing of a share-partition any more, and forget who has its records."""
        shared = self.partitions.pop(key, None)
        if shared is not None:
            shared.is_over = True
            moment.cancel_timer(key)
            shared.changed.wake()

    def begin(self, key: ShareKey, start: int) -> None:
        """A group reads the partition for the first time, from ``start`` on. Raises: as ``store``."""
        shared = self.partitions.get(key)
        if shared is not None and not shared.is_begun:
            window = Window(start)
            self._store(shared, window)
            shared.window = window

    def acquire(
        self,
        moment: Moment,
        key: ShareKey,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        not_for_anybody: Iterable[tuple[int, int]],
        log_start: int,
        count_max: int,
        *,
        whole_batches: bool = False,
    ) -> list[Acquired]:
        """Give a member the available records of batches that were read, without the records that no member must get.

        Raises: RequestRejected if the progress cannot be stored (it is stored only if records were finished).
        """
        shared = self.partitions.get(key)
        if shared is None:
            return []
        settings = self._settings(key.group_id)
        window = shared.window.begin_at(log_start).archive(not_for_anybody, window_max=settings.window_max)
        window, acquired = window.acquire(
            batches,
            member_id,
            moment.steady_ms + settings.lock_ms,
            count_max=count_max,
            window_max=settings.window_max,
            whole_batches=whole_batches,
        )
        if window.start > shared.window.start:
            self._store(shared, window)
        shared.window = window
        self._arm(moment, key, window)
        self._counters.acquired.value += sum(each.end - each.first for each in acquired)
        return acquired

    def acknowledge(self, moment: Moment, key: ShareKey, member_id: str, said: Sequence[Acknowledgement]) -> None:
        """Raises: RequestRejected as ``Window.acknowledge``, UNKNOWN_TOPIC_OR_PARTITION if the group does not read it."""
        shared = self.partitions.get(key)
        if shared is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The group does not read the partition.")
        settings = self._settings(key.group_id)
        window = shared.window.acknowledge(
            member_id, said, moment.steady_ms + settings.lock_ms, deliveries_max=settings.deliveries_max
        )
        self._put(moment, shared, window)
        for each in said:
            for first, end, kind in pieces(each):
                self._counters.acknowledged[kind].value += end - first

    def release(self, moment: Moment, key: ShareKey, member_id: str) -> None:
        """Release all records of a member. Raises: as ``store``."""
        shared = self.partitions.get(key)
        if shared is not None:
            deliveries_max = self._settings(key.group_id).deliveries_max
            self._put(moment, shared, shared.window.release(member_id, deliveries_max=deliveries_max))

    def due(self, moment: Moment, key: ShareKey) -> None:
        """The locks of acquired records have expired."""
        shared = self.partitions.get(key)
        if shared is None:
            return
        had = shared.window.acquired_count
        window = shared.window.expire(moment.steady_ms, deliveries_max=self._settings(key.group_id).deliveries_max)
        try:
            self._put(moment, shared, window)
        except RequestRejected:
            moment.set_timer(key, RETRY_MS)
        else:
            self._counters.locks_expired.value += had - window.acquired_count

    def _put(self, moment: Moment, shared: SharePartition, window: Window) -> None:
        if window != shared.window:
            self._store(shared, window)
            shared.window = window
            shared.changed.wake()
        self._arm(moment, shared.key, window)

    def _arm(self, moment: Moment, key: ShareKey, window: Window) -> None:
        due_ms = window.next_due_ms
        if due_ms is None:
            moment.cancel_timer(key)
        else:
            moment.set_timer(key, max(0, due_ms - moment.steady_ms))


def stored_runs(window: Window) -> tuple[Run, ...]:
    """The runs of a window in the form that is stored: without their acquirers."""
    return tuple([_stored(run) for run in window.runs])


def _stored(run: Run) -> Run:
    state = RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state
    return Run(run.first, run.end, state, run.delivery_count)
