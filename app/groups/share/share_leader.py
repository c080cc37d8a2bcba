"""This broker as leader of partitions that share groups read: it hands records out, and has progress stored (ADR 0027).

``share_partitions.py`` decides. This shell reads states when it begins to lead, stores the decisions, and serves time limits.

If the share coordinator is on this broker, a change is in its log before it counts, in one turn of the loop. Else the change
counts in memory and is *outgoing*: it leaves with the next write to that coordinator. At most one write of a share-partition is on
its way; later changes leave together with the next one. A response that tells of a change waits until the change is stored.

    open (read the state) → hand out ⇄ store → dropped: leadership is over, the state was set anew, or no member reads any more
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from app.configs import BrokerConfig
from app.coordinator.timers import Timers
from app.coordinator.topics import SHARE_GROUP_STATE, partition_for
from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of
from app.core.faults import Faults, Limited
from app.core.log_events import Event
from app.core.loop_time import loop_time_ms
from app.core.turns import Portion
from app.core.units import BrokerId
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_partitions import SharePartition, SharePartitions, stored_runs
from app.groups.share.core.share_sessions import Place, ShareSession, ShareSessions
from app.groups.share.core.share_state import RESET_EPOCHS, ShareKey, ShareSettings
from app.groups.share.core.share_state_wire import Read, StateAnswer, Write
from app.groups.share.core.share_window import DONE, Acknowledgement, Acquired, Run, Window
from app.groups.share.share_states import NOT_YET, ShareStates
from app.metadata.image.image import ClusterImage

STORED_WITHIN_S: Final = 15.0
"""How long an acknowledgement waits until it is stored by another broker. It stays outgoing afterwards."""
SEND_AGAIN_S: Final = 0.1
"""Pause after a write that was not stored."""
DUE_AT_ONCE: Final = 256
"""Timers served before the event loop serves other work."""

FENCED: Final = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""The state is not this leader's any more: another leader has read it, it was set anew, or it was deleted."""


class CoordinatorHere(Protocol):
    """The share coordinator of this broker."""

    def store(self, key: ShareKey, state_epoch: int, leader_epoch: int, window: Window, runs: tuple[Run, ...]) -> None:
        """Write a state into the log. Raises: RequestRejected, with nothing written."""
        ...

    def stored(self, key: ShareKey) -> Awaitable[None] | None:
        """None if all writes are stored, else an awaitable of that. Both may raise RequestRejected."""
        ...


class _Outgoing:
    """The progress of a share-partition on its way to a coordinator on another broker."""

    __slots__ = ("acked", "is_sent", "shared", "stored", "version", "waiting")

    def __init__(self, shared: SharePartition) -> None:
        self.shared = shared
        self.version = 0
        """Rises with each change."""
        self.stored = 0
        """The newest version that is stored."""
        self.acked: frozenset[Run] | None = None
        """The runs that the coordinator has; None if they are unknown."""
        self.is_sent = False
        """Whether a write is on its way."""
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The waiting callers, each with the version that it waits for."""

    def tell(self, error: RequestRejected | None = None) -> None:
        """Tell waiting callers that a version is stored, or (``error``) that it will not be."""
        left = []
        for version, future in self.waiting:
            if future.done():
                continue
            if error is not None:
                future.set_exception(copy_of(error))
            elif version <= self.stored:
                future.set_result(None)
            else:
                left.append((version, future))
        self.waiting = left


class ShareLeader:
    """Hands out records of the partitions that this broker leads. Belongs to its loop; keep ``run`` running."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        broker_id: BrokerId,
        settings: Callable[[str], ShareSettings],
        states: ShareStates,
        here: CoordinatorHere,
        counters: ShareCounters,
        log_line: Callable[[str], None],
        faults: Faults,
        is_shut: Callable[[ShareKey], bool] = lambda key: False,
    ) -> None:
        """``is_shut``: whether clients are refused a partition because this broker is isolated (ADR 0040)."""
        self._is_shut = is_shut
        self.sessions = ShareSessions(config)
        self._broker_id = broker_id
        self._states = states
        self._here = here
        self._log_line = Limited(log_line)
        self._faults = faults
        self.core = SharePartitions(settings, self._store, counters)
        self._opening: dict[tuple[ShareKey, int], asyncio.Future[None]] = {}
        """States that are being read, with the leader epoch."""
        self._outgoing: dict[ShareKey, _Outgoing] = {}
        self._unsent: dict[ShareKey, _Outgoing] = {}
        self._wake = asyncio.Event()
        self._busy: set[BrokerId | None] = set()
        """Coordinators to which a request is on its way."""
        self._timers: Timers[ShareKey] = Timers()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._image = ClusterImage()
        self._coordinates: frozenset[int] = frozenset()
        """The partitions of ``__share_group_state`` that this broker leads."""

    # --- leading ------------------------------------------------------------------------------------------------------

    def find(self, key: ShareKey, leader_epoch: int | None = None) -> SharePartition | None:
        """The share-partition, if this broker hands out its records, in this epoch of leadership if one is given."""
        shared = self.core.partitions.get(key)
        if shared is not None and leader_epoch is not None and shared.leader_epoch != leader_epoch:
            self.drop(key)
            return None
        return shared

    async def open(self, wanted: Iterable[tuple[ShareKey, int]]) -> dict[ShareKey, RequestRejected]:
        """Read the states of share-partitions whose partitions this broker leads in the given epochs. Returns: the errors of states
        that could not be read; INVALID_REQUEST if there is no state."""
        mine: list[tuple[ShareKey, int]] = []
        others: list[asyncio.Future[None]] = []
        for key, leader_epoch in wanted:
            if self.find(key, leader_epoch) is None:
                opening = self._opening.get((key, leader_epoch))
                if opening is None:
                    # One read at a time: an older answer must not replace a newer state.
                    self._opening[key, leader_epoch] = asyncio.get_running_loop().create_future()
                    mine.append((key, leader_epoch))
                else:
                    others.append(opening)
        failed: dict[ShareKey, RequestRejected] = {}
        if mine:
            try:
                answers = await self._states.ask_once([Read(key, leader_epoch) for key, leader_epoch in mine])
                for (key, leader_epoch), answer in zip(mine, answers, strict=True):
                    if answer.state is None:
                        failed[key] = RequestRejected(answer.error, answer.sentence or "")
                    elif not self._leads(key, leader_epoch):
                        failed[key] = _lost(key)
                    elif self.find(key) is None:
                        self.core.open(key, answer.state, leader_epoch)
            finally:
                for one in mine:
                    self._opening.pop(one).set_result(None)
        for opening in others:
            await opening
        return failed

    def begin(self, key: ShareKey, start: int) -> None:
        """The group reads the partition for the first time. Raises: RequestRejected."""
        self.core.begin(key, start)

    def drop(self, key: ShareKey, error: RequestRejected | None = None) -> None:
        """Hand out no more records of a share-partition. ``error``: for the callers that wait until a change is stored."""
        self.core.drop(self, key)
        self._unsent.pop(key, None)
        outgoing = self._outgoing.pop(key, None)
        if outgoing is not None:
            outgoing.tell(error or _lost(key))

    def end_waits(self) -> None:
        """This broker is isolated and refuses clients some partitions. Callers that wait until changes of them are stored get an
        error now. The changes stay outgoing."""
        for key, outgoing in self._outgoing.items():
            if self._is_shut(key):
                outgoing.tell(_shut(key))

    def follow(self, image: ClusterImage, changed: Collection[UUID] | None = None) -> None:
        """The cluster has changed: drop share-partitions that this broker does not lead any more, or leads under a new epoch.
        ``changed``: only these topics."""
        self._image = image
        for key, shared in list(self.core.partitions.items()):
            if (changed is None or key.topic_id in changed) and not self._leads(key, shared.leader_epoch):
                self.drop(key)
        topic = image.topic(SHARE_GROUP_STATE.name)
        if topic is None or (changed is not None and topic.topic_id not in changed):
            return
        led = frozenset([each.partition_index for each in topic.partitions if each.leader == self._broker_id])
        if self._coordinates - led:
            for key, shared in self.core.partitions.items():
                # The coordinator has moved away. The last writes here may not have been stored (H6).
                if shared.is_begun and partition_for(key.name, len(topic.partitions)) in self._coordinates - led:
                    self._send(shared)
        self._coordinates = led
        self._wake.set()

    def _leads(self, key: ShareKey, leader_epoch: int) -> bool:
        topic = self._image.topic_by_id(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return False
        partition = topic.partitions[key.partition]
        return partition.leader == self._broker_id and partition.leader_epoch == leader_epoch

    # --- events -------------------------------------------------------------------------------------------------------

    def acquire(
        self,
        key: ShareKey,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        not_for_anybody: Iterable[tuple[int, int]],
        log_start: int,
        count_max: int,
        *,
        whole_batches: bool,
    ) -> list[Acquired]:
        """As ``SharePartitions.acquire``."""
        return self.core.acquire(
            self, key, member_id, batches, not_for_anybody, log_start, count_max, whole_batches=whole_batches
        )

    def acknowledge(self, key: ShareKey, member_id: str, said: Sequence[Acknowledgement]) -> Awaitable[None] | None:
        """As ``SharePartitions.acknowledge``. Returns: as ``stored``."""
        self.core.acknowledge(self, key, member_id, said)
        return self.stored(key)

    def stored(self, key: ShareKey) -> Awaitable[None] | None:
        """None if all changes of a share-partition are stored, else an awaitable of that. Both may raise RequestRejected."""
        outgoing = self._outgoing.get(key)
        if outgoing is not None:
            return None if outgoing.stored >= outgoing.version else self._when_sent(outgoing)
        shared = self.core.partitions.get(key)
        if shared is None:
            return None
        waiting = self._here.stored(key)
        return None if waiting is None else self._when_stored_here(shared, waiting)

    def release(self, group_id: str, member_id: str, session: ShareSession) -> None:
        """Release the records of an ended session. If that cannot be written, their locks expire later."""
        for place in session.places:
            key = ShareKey(group_id, *place)
            try:
                self.core.release(self, key, member_id)
            except RequestRejected as error:
                self._log_line(
                    Event.GROUP_FAILED.line(
                        f"{key.name} is not given back by {member_id} before its time is up: {error}"
                    )
                )
            self._drop_if_unread(key)

    def _drop_if_unread(self, key: ShareKey) -> None:
        """Forget a share-partition that no session reads. The next session reads its state anew (H3)."""
        shared = self.core.partitions.get(key)
        place: Place = (key.topic_id, key.partition)
        if shared is None or shared.window.acquired_count or self.sessions.is_read(key.group_id, place):
            return
        outgoing = self._outgoing.get(key)
        if outgoing is None or outgoing.stored >= outgoing.version:
            self.drop(key)

    # --- storing ------------------------------------------------------------------------------------------------------

    def _store(self, shared: SharePartition, window: Window) -> None:
        """Store the next window of a share-partition. Raises: RequestRejected, if it cannot be stored on this broker."""
        key = shared.key
        if key not in self._outgoing and self._states.is_here(key):
            try:
                self._here.store(key, shared.state_epoch, shared.leader_epoch, window, stored_runs(window))
            except RequestRejected as error:
                if error.code in FENCED:
                    self.drop(key)
                    raise _lost(key) from error
                if error.code not in NOT_YET or not self._states.has_others:
                    raise
            else:
                return
        self._send(shared)

    def _send(self, shared: SharePartition) -> None:
        outgoing = self._outgoing.get(shared.key)
        if outgoing is None:
            outgoing = self._outgoing[shared.key] = _Outgoing(shared)
        outgoing.version += 1
        if not outgoing.is_sent:
            self._unsent[shared.key] = outgoing
            self._wake.set()

    async def _when_stored_here(self, shared: SharePartition, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except FirnError:
            if shared.is_over:
                raise
            self._send(shared)  # The next coordinator may have an older state (H6).
            if not self._states.has_others:
                raise
        else:
            return
        await self._when_sent(self._outgoing[shared.key])

    async def _when_sent(self, outgoing: _Outgoing) -> None:
        if self._is_shut(outgoing.shared.key):
            raise _shut(outgoing.shared.key)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outgoing.waiting.append((outgoing.version, future))
        try:
            async with asyncio.timeout(STORED_WITHIN_S):
                await future
        except TimeoutError as error:
            raise RequestRejected(
                ErrorCode.REQUEST_TIMED_OUT,
                f"The share coordinator of {outgoing.shared.key.name} has not stored it yet. It may do so later.",
            ) from error

    async def run(self) -> None:
        """Send outgoing changes, and serve time limits, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._wake.clear()
                    for place, batch in (await self._batches()).items():
                        self._busy.add(place)
                        tasks.create_task(self.send_to(place, batch))
                    await self._wake.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def _batches(self) -> dict[BrokerId | None, list[_Outgoing]]:
        """The unsent changes, by coordinator, except for those that are being written to. They are not unsent any more.

        Looks at them in portions (INV-15): clients decide how many share-partitions change together.
        """
        batches: dict[BrokerId | None, list[_Outgoing]] = {}
        portion = Portion()
        for key, outgoing in list(self._unsent.items()):
            place = self._states.place_of(key)
            if place not in self._busy and self._unsent.get(key) is outgoing:
                del self._unsent[key]
                outgoing.is_sent = True
                batches.setdefault(place, []).append(outgoing)
            if portion.spent_by():
                await portion.rest()
        return batches

    async def send_to(self, place: BrokerId | None, batch: Sequence[_Outgoing]) -> None:
        """Send writes to the share coordinator at ``place``, and tell the callers that wait for them.

        Goes in portions (INV-15): a share-partition may have thousands of runs. Each is read, and told of, in one step. Changes
        that come meanwhile wait for the next write, because ``is_sent`` is set.
        """
        sent = []
        portion = Portion()
        for outgoing in batch:
            await portion.rest_if_spent()
            shared = outgoing.shared
            if self._outgoing.get(shared.key) is not outgoing:
                continue  # it was dropped during a rest
            runs, window = stored_runs(shared.window), shared.window
            acked = outgoing.acked
            changed = runs if acked is None else tuple([run for run in runs if run not in acked])
            done = sum(run.end - run.first for run in runs if run.state in DONE)
            write = Write(shared.key, shared.state_epoch, shared.leader_epoch, window.start, changed, done)
            outgoing.is_sent = True
            sent.append((outgoing, outgoing.version, runs, write))
        answers = await self._states.ask_once([write for _, _, _, write in sent])
        again = False
        for (outgoing, version, runs, _), answer in zip(sent, answers, strict=True):
            await portion.rest_if_spent()
            outgoing.is_sent = False
            if self._outgoing.get(outgoing.shared.key) is outgoing:
                again |= self._is_answered(outgoing, version, runs, answer)
        if again:
            await asyncio.sleep(SEND_AGAIN_S)
        self._busy.discard(place)
        self._wake.set()

    def _is_answered(self, outgoing: _Outgoing, version: int, runs: tuple[Run, ...], answer: StateAnswer) -> bool:
        """A write of a share-partition was answered. Returns: whether it must be sent again."""
        shared = outgoing.shared
        key = shared.key
        if answer.error is ErrorCode.NONE:
            outgoing.stored, outgoing.acked = version, frozenset(runs)
            outgoing.tell()
            self._faults.over("storing progress of", key.name)
            if outgoing.version > version:
                self._unsent[key] = outgoing
            elif self._states.is_here(key):
                del self._outgoing[key]
            self._drop_if_unread(key)
            return False
        if answer.error not in NOT_YET and not answer.is_lost:
            self.drop(key, _lost(key))
            return False
        outgoing.acked = None
        if answer.is_lost:
            # The write may still arrive. Under the next state epoch, it comes too late (H5).
            shared.state_epoch += 1
            if shared.state_epoch % RESET_EPOCHS == 0:
                self.drop(key, _lost(key))
                return False
        self._faults.met("storing progress of", key.name, f"{key.name}: {answer.sentence}")
        self._unsent[key] = outgoing
        return True

    # --- time: Moment -------------------------------------------------------------------------------------------------

    @property
    def steady_ms(self) -> int:
        return loop_time_ms()

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        assert isinstance(key, ShareKey)
        self._timers.set(key, self.steady_ms + delay_ms)
        self._arm()

    def cancel_timer(self, key: Hashable) -> None:
        assert isinstance(key, ShareKey)
        self._timers.cancel(key)

    def _arm(self) -> None:
        next_ms = self._timers.next_ms()
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        self._timer = asyncio.get_running_loop().call_at(next_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        """Serve due timers, some at a time."""
        self._timer = None
        # Loops count time in floating seconds and may be early by a hair. The time limit that it was set for is due all the same:
        # else the timer would be set again.
        now_ms = max(self.steady_ms, self._timer_ms)
        try:
            for _ in range(DUE_AT_ONCE):
                key = self._timers.pop_due(now_ms)
                if key is None:
                    break
                self.core.due(self, key)
                self._drop_if_unread(key)
        finally:
            self._arm()


def _shut(key: ShareKey) -> RequestRejected:
    return RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key.name} is not served: this broker is isolated.")


def _lost(key: ShareKey) -> RequestRejected:
    return RequestRejected(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, f"What this broker knew of {key.name} is over. Fetch again from its leader."
    )
