"""A leader sends the progress of its share-partitions to other brokers in portions (INV-15): clients decide how many change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from app.configs import BrokerConfig
from app.core.errors import BrokerUnavailable
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TimestampMs, TopicId
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_state import NOT_BEGUN, ShareKey, ShareSettings, ShareState
from app.groups.share.core.share_state_wire import Asked, Read, StateAnswer, Write
from app.groups.share.core.share_window import RecordState, Run
from app.groups.share.share_leader import ShareLeader
from app.groups.share.share_states import REQUEST_RUNS_MAX, REQUEST_STATES_MAX, ShareStates
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from tests.support.counted_loop import count_turns
from tests.support.virtual_loop import VirtualLoop, run_virtual

TOPIC, STATE_TOPIC = TopicId(UUID(int=5)), TopicId(UUID(int=6))
HERE, THERE = BrokerId(1), BrokerId(2)
MANY = 400
TURNS_MIN = MANY // 20
"""A portion is twenty looks at the clock of the virtual loop."""
KEYS = [ShareKey("group", TOPIC, index) for index in range(MANY)]


def topic(topic_id: TopicId, name: str, leader: BrokerId, partitions: int) -> TopicImage:
    made = [
        PartitionImage(PartitionIndex(index), leader, LeaderEpoch(0), 0, (leader,), (leader,))
        for index in range(partitions)
    ]
    return TopicImage(topic_id, name, tuple(made), {}, TimestampMs(0))


def image() -> ClusterImage:
    """The topic is led here, and the state of its sharing is kept by another broker."""
    topics = (topic(TOPIC, "t", HERE, MANY), topic(STATE_TOPIC, "__share_group_state", THERE, 1))
    other = BrokerImage(THERE, UUID(int=2), UUID(int=2), 1, (), None, TimestampMs(0), fenced=False)
    return ClusterImage(
        topics_by_id={one.topic_id: one for one in topics},
        topics_by_name={one.name: one for one in topics},
        brokers={THERE: other},
    )


class FakeStates:
    """The share coordinator of another broker, which answers when it is told to."""

    has_others = True

    def __init__(self) -> None:
        self.written: list[list[Write]] = []
        """The writes that were asked for together."""
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    def place_of(self, _key: ShareKey) -> BrokerId:
        return THERE

    def is_here(self, _key: ShareKey) -> bool:
        return False

    async def ask_once(self, asked: Sequence[Any]) -> list[StateAnswer]:
        if not asked or isinstance(asked[0], Read):
            return [StateAnswer(state=ShareState(0, 0, NOT_BEGUN, ())) for _ in asked]
        self.written.append(list(asked))
        self.asked.set()
        await self.may_answer.wait()
        return [StateAnswer() for _ in asked]


class NobodyHere:
    """No share coordinator is on this broker."""

    def store(self, *_asked: object) -> None:
        raise AssertionError("the state is kept elsewhere")

    def stored(self, _key: ShareKey) -> Awaitable[None] | None:
        return None


async def changed(states: FakeStates) -> ShareLeader:
    """A leader all of whose share-partitions have changed."""
    leader = ShareLeader(
        config=lambda: BrokerConfig(data_dir="/nowhere"),
        broker_id=HERE,
        settings=lambda _group: ShareSettings(lock_ms=1000, deliveries_max=2, window_max=100),
        states=states,  # type: ignore[arg-type]
        here=NobodyHere(),
        counters=ShareCounters(Registry()),
        log_line=lambda _line: None,
        faults=Faults(lambda _line: None),
    )
    leader.follow(image())
    assert await leader.open([(key, 0) for key in KEYS]) == {}
    for key in KEYS:
        leader.begin(key, 0)
    return leader


def run(main: Callable[[VirtualLoop], Any]) -> None:
    run_virtual(main, seconds_max=60)


async def end(running: asyncio.Future[None]) -> None:
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_writes_of_many_share_partitions_are_made_and_told_of_in_portions() -> None:
    async def main(_loop: VirtualLoop) -> None:
        states = FakeStates()
        leader = await changed(states)
        running = asyncio.ensure_future(leader.run())
        assert await count_turns(states.asked.wait()) >= TURNS_MIN
        assert [[one.key for one in some] for some in states.written] == [KEYS]
        assert await leader_waits(leader, KEYS[-1])
        states.may_answer.set()
        waiting = leader.stored(KEYS[-1])
        assert waiting is not None
        assert await count_turns(asyncio.wait_for(waiting, 10)) >= TURNS_MIN
        await end(running)

    run(main)


async def leader_waits(leader: ShareLeader, key: ShareKey) -> bool:
    """Whether a change of a share-partition is not stored yet."""
    waiting = leader.stored(key)
    if waiting is None:
        return False
    asyncio.ensure_future(waiting).cancel()
    return True


def test_a_share_partition_that_is_dropped_while_writes_are_made_is_not_written() -> None:
    async def main(_loop: VirtualLoop) -> None:
        states = FakeStates()
        leader = await changed(states)
        running = asyncio.ensure_future(leader.run())
        for _ in range(TURNS_MIN // 2):
            await asyncio.sleep(0)
        assert not states.written
        leader.drop(KEYS[-1])
        await states.asked.wait()
        assert [one.key for one in states.written[0]] == KEYS[:-1]
        await end(running)

    run(main)


def test_a_change_that_comes_while_writes_are_made_leaves_once() -> None:
    async def main(_loop: VirtualLoop) -> None:
        states = FakeStates()
        leader = await changed(states)
        running = asyncio.ensure_future(leader.run())
        for _ in range(TURNS_MIN // 2):
            await asyncio.sleep(0)
        assert not states.written
        leader.acquire(KEYS[-1], "member", [(0, 10)], [(0, 5)], 0, 100, whole_batches=False)
        states.may_answer.set()
        waiting = leader.stored(KEYS[-1])
        assert waiting is not None
        await waiting
        await asyncio.sleep(0.5)  # the lock of what was acquired ends after a second
        assert [one.start for some in states.written for one in some if one.key == KEYS[-1]] == [5]
        await end(running)

    run(main)


class Link:
    """Connections that note requests."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        """States and runs of each request."""

    async def share_states(self, _to: BrokerImage, _key: object, message: Any) -> Any:
        partitions = [one for topic in message.topics for one in topic.partitions]
        self.sizes.append((len(partitions), sum(len(one.state_batches) for one in partitions)))
        raise BrokerUnavailable("It is away.")


def sizes_of(asked: Sequence[Asked]) -> list[tuple[int, int]]:
    """The requests to another broker that are made of these."""
    link = Link()

    async def main(_loop: VirtualLoop) -> None:
        view: Any = type("View", (), {"image": image()})()
        states = ShareStates(view, HERE, lambda _one: StateAnswer(), link)
        assert all(one.is_lost for one in await states.ask_once(asked))

    run(main)
    return link.sizes


def write(index: int, runs: int) -> Write:
    each = [Run(2 * place, 2 * place + 1, RecordState.ACKNOWLEDGED, 1) for place in range(runs)]
    return Write(ShareKey("group", TOPIC, index), 0, 0, 0, tuple(each), runs)


def test_a_request_has_only_so_many_states_and_runs() -> None:
    states = REQUEST_STATES_MAX
    assert sizes_of([write(index, 1) for index in range(states + 1)]) == [(states, states), (1, 1)]
    runs = REQUEST_RUNS_MAX // 2
    assert sizes_of([write(index, runs) for index in range(3)]) == [(2, REQUEST_RUNS_MAX), (1, runs)]
    assert sizes_of([write(0, 2 * REQUEST_RUNS_MAX)]) == [(1, 2 * REQUEST_RUNS_MAX)]
