"""Holds copies of a topic's segments, on all leaders, for changes that are safe only while the object store has nothing of it.

A topic becomes compacted only while nothing of it is tiered (ADR 0009). Only the leader of a partition knows that, and only the
leader can keep it so. So the controller asks every leader to hold copies of the topic, and to say how many segments it has in
the store. The change is made only if there are none, and only under the leader epochs that have said so.

A hold ends when the outcome of the change is known, and on no clock (INV-2):

- the controller says which entry of the cluster log has the outcome, and the leader has applied it; the controller repeats this
  until it is answered; or
- the leader has applied the record of a later controller: its seal lies between the hold and everything that follows, so the
  change is in the image by now, or is never made; or
- the leader leads no more: a later leader has applied all that came before its own epoch.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from app.core.errors import (
    BrokerUnavailable,
    ErrorCode,
    FencedError,
    FirnError,
    LimitExceeded,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
    clause,
    kafka_code,
)
from app.core.faults import Faults
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.core.wake import Wake
from app.metadata.changes.topic_changes import LeaderEpochs, LeadersHaveChanged
from app.metadata.image.image import BrokerImage, ClusterImage, TopicImage
from app.metadata.peers.control import HoldId, HoldRequest, HoldResponse
from app.tiering.upload.remote_log_manager import RemoteLogManager

ENDED_EARLY_MAX: Final = 1000
"""Ends of holds that did not come yet, which are remembered."""
HELD_MAX: Final = 1000
"""Holds at a time, on one leader."""
HOLD_WAIT_S: Final = 15.0
"""Maximum time that a leader waits for its image, and until no segment of the topic is being copied, together. The controller waits
5 s longer for the answer. A broker that passes the change on must be answered within 30 s."""
REPEAT_S: Final = 0.5
UNREGISTERED: Final = -1
"""The broker epoch of a broker that is not registered."""
HOLDING: Final = "holding copies for"
"""Name of this work in log lines about faults."""


class HoldLink(Protocol):
    """The way to other leaders."""

    async def hold_copies(self, to: BrokerImage, asked: HoldRequest) -> HoldResponse:
        """Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        ...


class HeldCopies(NamedTuple):
    """The answers of a topic's leaders."""

    segments: int
    """In the object store, of all partitions together."""
    leader_epochs: LeaderEpochs
    """Under which the leaders hold copies."""


# --- a leader -------------------------------------------------------------------------------------------------------


class CopyHolds:
    """The holds on this broker. Belongs to its loop; nothing here waits but ``begin``."""

    def __init__(
        self,
        tier: RemoteLogManager,
        *,
        image: Callable[[], ClusterImage],
        epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None],
        has_followed: Callable[[TopicId], bool] = lambda _: True,
    ) -> None:
        """``epoch_of``: the leader epoch in which this broker leads a partition; None if it does not. ``has_followed``: whether
        the logs of a topic have the settings of the image."""
        self._tier, self._image, self._epoch_of, self._has_followed = tier, image, epoch_of, has_followed
        self._holds: dict[HoldId, int | None] = {}
        """With the entry that ends it, once that is known."""
        self._ended_early: OrderedDict[HoldId, None] = OrderedDict()
        self._followed = Wake()
        """Wakes whenever the image has changed."""

    async def begin(self, hold: HoldId, sequence: int, partitions: Mapping[PartitionIndex, LeaderEpoch]) -> int:
        """Hold copies of the topic until ``end``, and count the segments that the store has of ``partitions``.

        ``sequence``: the entry of the cluster log that is waited for first. If this raises, nothing is held.
        Raises: LeadersHaveChanged; RequestRejected NOT_CONTROLLER; LimitExceeded; StorageUnavailable.
        """
        until_s = asyncio.get_running_loop().time() + HOLD_WAIT_S  # for both waits: the controller waits little longer
        await self._applied(sequence, until_s)
        keys = {TopicIdPartition(hold.topic_id, index): epoch for index, epoch in partitions.items()}
        self._check_epochs(keys)
        if self._image().controller.epoch != hold.controller_epoch or hold in self._ended_early:
            raise RequestRejected(
                ErrorCode.NOT_CONTROLLER, "The request is of an earlier controller, or came too late."
            )
        if hold in self._holds:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "Copies are held for this request already.")
        if len(self._holds) >= HELD_MAX:
            raise LimitExceeded(f"Copies are held for {HELD_MAX} changes of topics. Try again when they are made.")
        self._holds[hold] = None
        self._tier.hold_copies(hold.topic_id)
        try:
            segments = await self._tier.count_held(list(keys), until_s)
            self._check_epochs(keys)
        except BaseException:
            self._over(hold)
            raise
        return segments

    def end(self, hold: HoldId, sequence: int) -> None:
        """The outcome is in the cluster log up to entry ``sequence``: the hold ends when the image has it."""
        if hold in self._holds:
            self._holds[hold] = sequence
            self.follow()
        else:
            # It may still be on its way, over a connection that has ended.
            self._ended_early[hold] = None
            if len(self._ended_early) > ENDED_EARLY_MAX:
                self._ended_early.popitem(last=False)

    def follow(self) -> None:
        """The image has changed, and the logs have followed it."""
        image = self._image()
        self._followed.wake()
        for hold, end in list(self._holds.items()):
            known = (end is not None and image.sequence >= end) or image.controller.epoch > hold.controller_epoch
            if known and self._has_followed(hold.topic_id):
                self._over(hold)

    def _over(self, hold: HoldId) -> None:
        if hold in self._holds:
            del self._holds[hold]
            self._tier.release_copies(hold.topic_id)

    def _check_epochs(self, keys: Mapping[TopicIdPartition, LeaderEpoch]) -> None:
        for key, epoch in keys.items():
            if self._epoch_of(key) != epoch:
                raise LeadersHaveChanged(
                    f"Partition {key.partition} is not led here in leader epoch {epoch}. Try again."
                )

    async def _applied(self, sequence: int, until_s: float) -> None:
        """Raises: StorageUnavailable."""
        try:
            async with asyncio.timeout_at(until_s):
                while self._image().sequence < sequence:
                    await self._followed.wait()
        except TimeoutError:
            raise StorageUnavailable(
                f"This broker has not applied entry {sequence} of the cluster log. Try again."
            ) from None


# --- the controller -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    """One hold, and the leaders that may have it."""

    topic: str
    hold: HoldId
    leaders: dict[BrokerId, int]
    """With their broker epochs: a leader that registers again holds nothing more."""


class HoldsOfLeaders:
    """Has all leaders of a topic hold copies, this broker included. Keep ``run`` running."""

    def __init__(
        self,
        own: CopyHolds,
        link: HoldLink | None,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        newest: Callable[[], int],
        settle: Callable[[], Awaitable[object]],
        in_office: Callable[[], bool],
        faults: Faults,
    ) -> None:
        """``newest``: the number of the newest entry of the cluster log. ``settle``: wait until the image has the outcome of all
        earlier changes. ``in_office``: whether this broker is the controller, as far as it knows. ``link`` is None on a broker that
        is alone."""
        self._own, self._link, self._broker_id, self._image = own, link, broker_id, image
        self._newest, self._settle, self._in_office, self._faults = newest, settle, in_office, faults
        self._numbers: Counter[int] = Counter()
        """How many holds were begun, by controller epoch."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._undone: list[tuple[_Asked, bool]] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """End holds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._undone:
                    asked, undecided = self._undone.pop()
                    tasks.create_task(self._end(asked, undecided=undecided))

    @asynccontextmanager
    async def held(self, topic: TopicImage) -> AsyncIterator[HeldCopies]:
        """Inside the block no leader begins a copy of the topic.

        A change that depends on it must be made inside the block, and only if the partitions still have these leader epochs. If
        the block ends with another error than RequestRejected, or is cancelled, it is unknown whether the change is made: copies
        stay held until that is known.

        Raises: LeadersHaveChanged; RequestRejected LEADER_NOT_AVAILABLE, or with a leader's refusal; BrokerUnavailable;
        LimitExceeded; StorageUnavailable.
        """
        image = self._image()
        by_leader: dict[BrokerId, dict[PartitionIndex, LeaderEpoch]] = {}
        for one in topic.partitions:
            by_leader.setdefault(one.leader, {})[one.partition_index] = one.leader_epoch
        without = by_leader.get(BrokerId(-1))
        if without is not None:
            raise RequestRejected(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"Partition {topic.name}-{min(without)} has no leader that could say what of it is in the object store. Try again "
                "when one of its brokers is back.",
            )
        epoch = image.controller.epoch
        self._numbers[epoch] += 1
        hold = HoldId(topic.topic_id, epoch, self._numbers[epoch])
        brokers = image.brokers
        leaders = {one: brokers[one].broker_epoch if one in brokers else UNREGISTERED for one in by_leader}
        asked = _Asked(topic.name, hold, leaders)
        undecided = False
        try:
            counts = await asyncio.gather(
                *(self._begin(image, hold, leader, partitions) for leader, partitions in by_leader.items()),
                return_exceptions=True,
            )
            segments = 0
            for count in counts:
                if isinstance(count, BaseException):
                    raise count
                segments += count
            undecided = True
            try:
                yield HeldCopies(segments, {index: epoch for led in by_leader.values() for index, epoch in led.items()})
            except RequestRejected:
                undecided = False
                raise
            undecided = False
        finally:
            self._undone.append((asked, undecided))
            self._wake.set()

    async def _begin(
        self, image: ClusterImage, hold: HoldId, leader: BrokerId, partitions: Mapping[PartitionIndex, LeaderEpoch]
    ) -> int:
        if leader == self._broker_id or self._link is None:
            return await self._own.begin(hold, image.sequence, partitions)
        broker = image.brokers.get(leader)
        if broker is None:
            raise LeadersHaveChanged(f"Broker {leader} was unregistered. Try again.")
        request = HoldRequest(str(image.cluster_id), hold, image.sequence, tuple(sorted(partitions.items())))
        try:
            answer = await self._link.hold_copies(broker, request)
        except (BrokerUnavailable, ProtocolError) as error:
            raise RequestRejected(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Broker {leader}, which leads partition {min(partitions)}, does not say what of it is in the object store: "
                f"{clause(error)} Try again. A broker of an earlier version never answers: upgrade it first.",
            ) from error
        if answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise LeadersHaveChanged(answer.message)
        if answer.error:
            raise RequestRejected(ErrorCode(answer.error), f"Broker {leader}: {clause(answer.message)}.")
        return answer.segments

    async def _end(self, asked: _Asked, *, undecided: bool) -> None:
        """Say to every leader that the hold is over, until it answers or cannot have it any more."""
        while undecided:
            try:
                await self._settle()
            except FencedError:
                return  # this broker stops
            except FirnError as error:
                if not self._in_office() or self._outdated(asked.hold):
                    # Another broker is the controller, or this one is it again: that record ends the hold everywhere.
                    self._faults.over(HOLDING, asked.topic)
                    return
                sentence = (
                    f"no segments of {asked.topic} are copied until it is known whether its configuration has changed; will "
                    f"try again: {error}"
                )
                self._faults.met(HOLDING, asked.topic, sentence, lasting=True)
                await asyncio.sleep(REPEAT_S)
            else:
                undecided = False
        sequence = self._newest()
        unreached: set[BrokerId] = set()
        await asyncio.gather(*(self._tell(asked, leader, sequence, unreached) for leader in asked.leaders))
        self._faults.over(HOLDING, asked.topic)

    async def _tell(self, asked: _Asked, leader: BrokerId, sequence: int, unreached: set[BrokerId]) -> None:
        """Say to one leader that the hold is over, until it answers or cannot have it any more."""
        while not self._outdated(asked.hold):
            if await self._ends(asked.hold, leader, asked.leaders[leader], sequence):
                break
            unreached.add(leader)
            sentence = f"brokers {sorted(unreached)} copy no segments of {asked.topic} until they can be reached; will try again"
            self._faults.met(HOLDING, asked.topic, sentence, lasting=True)
            await asyncio.sleep(REPEAT_S)
        unreached.discard(leader)

    def _outdated(self, hold: HoldId) -> bool:
        """Whether there is the record of a later controller, which ends the hold on every leader."""
        return self._image().controller.epoch > hold.controller_epoch

    async def _ends(self, hold: HoldId, leader: BrokerId, broker_epoch: int, sequence: int) -> bool:
        """Whether the leader holds no copies for this any more, or will not once it has followed the cluster log."""
        if leader == self._broker_id or self._link is None:
            self._own.end(hold, sequence)
            return True
        broker = self._image().brokers.get(leader)
        if broker is None or broker.broker_epoch != broker_epoch:
            return True
        try:
            await self._link.hold_copies(broker, HoldRequest(str(self._image().cluster_id), hold, sequence))
        except (BrokerUnavailable, ProtocolError, RequestRejected):
            return False
        return True


def answer_of(error: FirnError) -> HoldResponse:
    """How a leader refuses to hold copies."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, LeadersHaveChanged) else kafka_code(error)
    if isinstance(error, StorageUnavailable | LimitExceeded):
        code = ErrorCode.REQUEST_TIMED_OUT
    return HoldResponse(int(code), str(error))
