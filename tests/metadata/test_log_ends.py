"""The controller seals the logs of brokers that lead no more, one attempt after the other (ADR 0037, J16, J17, J21)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from app.core.errors import CorruptionError, FirnError, StorageUnavailable
from app.core.turns import whole
from app.core.units import LogSequence
from app.metadata.changes import wal_changes
from app.metadata.changes.broker_changes import fence_brokers
from app.metadata.controller import log_ends
from app.metadata.controller.log_ends import AGAIN_FIRST_S, AGAIN_MAX_S, AT_ONCE_MAX, LogEnds, OrphanedLogs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import partition_change, topic_change
from app.metadata.image.wal_ranges import WalId, WalRange
from tests.metadata.leaders import telling
from tests.metadata.several import NOW, TOPIC_ID, around, change, in_logs, partition
from tests.support.virtual_loop import VirtualLoop, run_virtual

WAL = WalId(1, 11)
"""Of broker 1."""


class World:
    """A cluster log with one controller, and the bucket with write-ahead logs."""

    def __init__(self, draft: ImageDraft) -> None:
        self.draft = draft
        self.image = draft.freeze(LogSequence(NOW))
        self.active = True
        self.refusal: FirnError | None = None
        """Why no log can be sealed."""
        self.deposed = False
        """Whether the controller learns at its next look that it is none."""
        self.seal_s = 0.0
        self.tried_s: list[float] = []
        self.sealing = self.sealing_most = 0
        self.lines: list[str] = []
        self._on_change: list[Callable[[ClusterImage, ImageDelta], None]] = []
        self._on_office: list[Callable[[], None]] = []
        self.orphans = OrphanedLogs(self)  # type: ignore[arg-type]
        self.ends = LogEnds(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.seal,
            self.orphans,
            rng=random.Random(1),
            log_line=self.lines.append,
        )

    # --- the view -----------------------------------------------------------------------------------------------------

    def on_change(self, listener: Callable[[ClusterImage, ImageDelta], None]) -> None:
        self._on_change.append(listener)

    def publish(self) -> None:
        before, self.image = self.image, self.draft.freeze(LogSequence(NOW))
        self.draft = ImageDraft(self.image)
        for listener in self._on_change:
            listener(self.image, ImageDelta.between(before, self.image))

    def fence(self, *brokers: int) -> None:
        self.draft.apply(fence_brokers(self.draft, around(), [(each, 10 + each) for each in brokers]).records)
        self.publish()

    # --- the controller -----------------------------------------------------------------------------------------------

    def on_office(self, listener: Callable[[], None]) -> None:
        self._on_office.append(listener)

    def take_office(self, *, active: bool) -> None:
        self.active = active
        for listener in self._on_office:
            listener()

    async def confirm(self) -> None:
        if self.deposed:
            self.active = False

    async def submit(self, plan: Callable[..., Any]) -> Any:
        planned = whole(plan(self.draft, telling()))
        self.draft.apply(planned.records)
        self.publish()
        return planned.answer

    # --- the bucket ---------------------------------------------------------------------------------------------------

    async def seal(self, _wal: WalId) -> int:
        self.tried_s.append(asyncio.get_running_loop().time())
        self.sealing += 1
        self.sealing_most = max(self.sealing_most, self.sealing)
        await asyncio.sleep(self.seal_s)
        self.sealing -= 1
        if self.refusal is not None:
            raise self.refusal
        return 5

    # --- what is seen -------------------------------------------------------------------------------------------------

    def leaders(self) -> list[int]:
        topic = self.image.topics_by_name["t"]
        return [int(one.leader) for one in topic.partitions]


def running(draft: ImageDraft, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run a test beside the sealing, on a virtual clock."""

    async def main(_loop: VirtualLoop) -> None:
        world = World(draft)
        task = asyncio.create_task(world.ends.run())
        await asyncio.sleep(0.01)
        await test(world)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run_virtual(main, seconds_max=1_000)


# --- the logs that partitions wait for ----------------------------------------------------------------------------------


def test_logs_are_counted_by_the_partitions_that_wait_for_them() -> None:
    told: list[dict[WalId, int]] = []
    world = World(in_logs(1, 2, 1))
    world.orphans.on_change(lambda: told.append(dict(world.orphans.waiting)))
    assert world.orphans.waiting == {}
    world.fence(1)
    assert world.orphans.waiting == {WAL: 2}
    world.fence(2)
    assert world.orphans.waiting == {WAL: 2, WalId(2, 12): 1}
    world.publish()
    world.draft.apply([topic_change(TOPIC_ID, None), *(partition_change(TOPIC_ID, index, None) for index in range(3))])
    world.publish()
    assert world.orphans.waiting == {}
    assert told == [{WAL: 2}, {WAL: 2, WalId(2, 12): 1}, {}], "only changes are told"


def test_logs_that_wait_at_the_start_are_counted() -> None:
    draft = in_logs(1, 2, 1)
    draft.apply(fence_brokers(draft, around(), [(1, 11)]).records)
    assert World(draft).orphans.waiting == {WAL: 2}


def test_nothing_is_counted_below_the_level_of_write_ahead_logs() -> None:
    world = World(in_logs(1, level=2))
    world.fence(1)
    assert world.orphans.waiting == {}


# --- sealing ------------------------------------------------------------------------------------------------------------


def test_a_log_is_sealed_once_its_broker_leads_no_more_and_others_lead() -> None:
    async def test(world: World) -> None:
        assert world.tried_s == []
        world.fence(1)
        await asyncio.sleep(0.1)
        assert len(world.tried_s) == 1
        assert set(world.leaders()) == {2, 3}
        [line] = world.lines
        assert f"write-ahead log {WAL} has ended at 5: others lead its 2 partitions" in line
        assert "wait for a broker" not in line

    running(in_logs(1, 2, 1, brokers=(1, 2, 3)), test)


def test_partitions_that_no_broker_can_lead_are_counted_in_the_line() -> None:
    async def test(world: World) -> None:
        world.fence(1, 2)
        await asyncio.sleep(0.1)
        assert "its 2 partitions, 2 of which wait for a broker" in world.lines[0]

    running(in_logs(1, 1, brokers=(1, 2)), test)


def test_a_seal_that_fails_is_put_again_after_growing_pauses() -> None:
    async def test(world: World) -> None:
        world.refusal = StorageUnavailable("The bucket is away.")
        world.fence(1)
        await asyncio.sleep(60)
        pauses = [later - earlier for earlier, later in zip(world.tried_s, world.tried_s[1:], strict=False)]
        for number, pause_s in enumerate(pauses):
            longest = min(AGAIN_FIRST_S * 2**number, AGAIN_MAX_S)
            assert longest / 2 <= pause_s <= longest
        assert len(pauses) >= 10
        [line] = world.lines
        assert "cannot be sealed now; its partitions wait: The bucket is away" in line
        world.refusal = None
        await asyncio.sleep(AGAIN_MAX_S)
        assert world.leaders() == [2]

    running(in_logs(1, brokers=(1, 2)), test)


def test_a_damaged_log_is_named_as_damaged() -> None:
    async def test(world: World) -> None:
        world.refusal = CorruptionError("An object cannot be read.")
        world.fence(1)
        await asyncio.sleep(1)
        assert "is damaged; its partitions wait" in world.lines[0]

    running(in_logs(1, brokers=(1, 2)), test)


def test_only_the_controller_seals_and_begins_when_it_takes_office() -> None:
    async def test(world: World) -> None:
        world.take_office(active=False)
        world.fence(1)
        await asyncio.sleep(10)
        assert world.tried_s == []
        world.take_office(active=True)
        await asyncio.sleep(0.1)
        assert world.leaders() == [2]

    running(in_logs(1, brokers=(1, 2)), test)


def test_a_controller_that_is_none_any_more_seals_nothing() -> None:
    async def test(world: World) -> None:
        world.deposed = True
        world.fence(1)
        await asyncio.sleep(10)
        assert world.tried_s == []

    running(in_logs(1, brokers=(1, 2)), test)


def test_some_logs_are_sealed_at_a_time() -> None:
    brokers = range(1, AT_ONCE_MAX + 4)

    async def test(world: World) -> None:
        world.seal_s = 1.0
        world.fence(*brokers[:-1])
        await asyncio.sleep(1.5)
        assert len(world.tried_s) == len(brokers) - 1
        assert world.sealing_most == AT_ONCE_MAX

    running(in_logs(*brokers[:-1], brokers=brokers), test)


def test_a_log_of_many_partitions_is_closed_by_several_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = wal_changes.plan_wal_sealed.steps

    class Small:
        @staticmethod
        def steps(*arguments: Any) -> Any:
            return plan(*arguments, at_most=2)

    async def test(world: World) -> None:
        world.fence(1)
        await asyncio.sleep(0.1)
        assert world.leaders() == [2] * 5
        assert [line.count("others lead its 2 partitions") for line in world.lines] == [1, 1, 0]
        assert "others lead its 1 partitions" in world.lines[2]
        assert len(world.tried_s) == 1

    monkeypatch.setattr(log_ends, "plan_wal_sealed", Small)
    running(in_logs(1, 1, 1, 1, 1, brokers=(1, 2)), test)


def test_partitions_with_damage_are_named_and_their_log_is_not_sealed_again() -> None:
    draft = in_logs(1, 1, brokers=(1, 2))
    change(draft, wal_ranges=(WalRange(1, 11, 0, 0, 6), *partition(draft).wal_ranges))

    async def test(world: World) -> None:
        world.fence(1)
        await asyncio.sleep(0.1)
        assert world.leaders() == [-1, 2]
        [damaged] = [line for line in world.lines if "stays without a leader" in line]
        assert "t-0 stays" in damaged
        assert "sealed at 5" in damaged
        world.take_office(active=True)
        await asyncio.sleep(10)
        assert len(world.tried_s) == 1
        # Another term of office looks at it again.
        world.take_office(active=False)
        await asyncio.sleep(0.1)
        world.take_office(active=True)
        await asyncio.sleep(0.1)
        assert len(world.tried_s) == 2

    running(draft, test)
