"""When holds begin and end on a leader, and what the controller does when it does not know whether a change was made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from app.broker.peers.control_link import HOLD_MS
from app.core.errors import CorruptionError, ErrorCode, FirnError, LimitExceeded, RequestRejected, StorageUnavailable
from app.core.faults import Faults
from app.core.units import BrokerId, LeaderEpoch, LogSequence, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.metadata.changes.topic_changes import LeadersHaveChanged
from app.metadata.image.image import BrokerImage, ClusterImage, ControllerImage, PartitionImage, TopicImage
from app.metadata.peers.control import HoldId, HoldRequest, HoldResponse
from app.tiering.upload.copy_holds import HOLD_WAIT_S, CopyHolds, HoldLink, HoldsOfLeaders

TOPIC = TopicId(UUID(int=5))
ONE = BrokerId(1)
EPOCHS = {PartitionIndex(0): LeaderEpoch(4)}
HOLD = HoldId(TOPIC, 7, 1)


class Tier:
    """Counts holds as the remote log manager does."""

    def __init__(self) -> None:
        self.held: Counter[UUID] = Counter()
        self.segments = 0
        self.until_s = 0.0
        self.rests = asyncio.Event()
        self.rests.set()

    def hold_copies(self, topic_id: TopicId) -> None:
        self.held[topic_id] += 1

    def release_copies(self, topic_id: TopicId) -> None:
        self.held[topic_id] -= 1
        assert self.held[topic_id] >= 0, "released twice"

    async def count_held(self, keys: Sequence[TopicIdPartition], until_s: float) -> int:
        assert self.held[TOPIC]
        self.until_s = until_s
        await self.rests.wait()
        return self.segments


class Leader:
    """One broker that leads partition 0 in leader epoch 4, by entry 10 of controller 7."""

    def __init__(self) -> None:
        self.tier = Tier()
        self.epoch: LeaderEpoch | None = LeaderEpoch(4)
        self.followed = True
        self.image = ClusterImage(
            sequence=LogSequence(10), controller=ControllerImage(7, ONE, UUID(int=1)), cluster_id="c"
        )
        self.holds = CopyHolds(
            self.tier,  # type: ignore[arg-type]
            image=lambda: self.image,
            epoch_of=lambda _: self.epoch,
            has_followed=lambda _: self.followed,
        )

    def applies(self, sequence: int, controller_epoch: int = 7) -> None:
        self.image = replace(
            self.image,
            sequence=LogSequence(sequence),
            controller=ControllerImage(controller_epoch, ONE, UUID(int=1)),
        )
        self.holds.follow()

    @property
    def held(self) -> bool:
        return bool(self.tier.held[TOPIC])


async def test_a_hold_lasts_until_the_entry_with_the_outcome_is_applied_and_the_logs_have_followed() -> None:
    leader = Leader()
    leader.tier.segments = 3
    assert await leader.holds.begin(HOLD, 10, EPOCHS) == 3
    leader.holds.end(HOLD, 12)
    leader.applies(11)
    assert leader.held
    leader.followed = False
    leader.applies(12)
    assert leader.held, "the log may still have the old settings"
    leader.followed = True
    leader.holds.follow()
    assert not leader.held


async def test_a_hold_ends_with_the_record_of_a_later_controller() -> None:
    leader = Leader()
    await leader.holds.begin(HOLD, 10, EPOCHS)
    leader.applies(11)
    assert leader.held
    leader.applies(12, controller_epoch=8)
    assert not leader.held
    with pytest.raises(RequestRejected, match="earlier controller"):
        await leader.holds.begin(HoldId(TOPIC, 7, 2), 10, EPOCHS)
    with pytest.raises(RequestRejected, match="earlier controller"):
        await leader.holds.begin(HoldId(TOPIC, 1 << 40, 1), 10, EPOCHS)  # of a controller that there is not
    assert not leader.held


async def test_a_hold_that_comes_after_its_end_does_not_begin() -> None:
    leader = Leader()
    leader.holds.end(HOLD, 10)
    with pytest.raises(RequestRejected, match="too late"):
        await leader.holds.begin(HOLD, 10, EPOCHS)
    assert not leader.held


async def test_a_hold_waits_for_the_image_that_the_controller_has() -> None:
    leader = Leader()
    beginning = asyncio.create_task(leader.holds.begin(HOLD, 11, EPOCHS))
    await asyncio.sleep(0)
    assert not leader.held
    leader.applies(11)
    assert await beginning == 0
    assert leader.held


async def test_a_leader_waits_for_its_image_and_for_copies_until_one_deadline() -> None:
    leader, loop = Leader(), asyncio.get_running_loop()
    beginning = asyncio.create_task(leader.holds.begin(HOLD, 11, EPOCHS))
    await asyncio.sleep(0)
    asked_s = loop.time()
    while loop.time() <= asked_s:
        await asyncio.sleep(0)
    leader.applies(11)
    await beginning
    assert leader.tier.until_s <= asked_s + HOLD_WAIT_S
    assert HOLD_WAIT_S * 1000 < HOLD_MS, "the controller is still there for the answer"


async def test_who_stops_to_lead_before_its_copies_rest_has_counted_for_nothing() -> None:
    leader = Leader()
    leader.tier.rests.clear()
    beginning = asyncio.create_task(leader.holds.begin(HOLD, 10, EPOCHS))
    while not leader.held:
        await asyncio.sleep(0)
    leader.epoch = LeaderEpoch(6)
    leader.tier.rests.set()
    with pytest.raises(LeadersHaveChanged):
        await beginning
    assert not leader.held


async def test_holds_are_bounded_and_so_are_the_ends_that_came_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tiering.upload.copy_holds.HELD_MAX", 3)
    monkeypatch.setattr("app.tiering.upload.copy_holds.ENDED_EARLY_MAX", 3)
    leader = Leader()
    for number in range(3):
        await leader.holds.begin(HoldId(TOPIC, 7, number), 10, EPOCHS)
    with pytest.raises(LimitExceeded):
        await leader.holds.begin(HoldId(TOPIC, 7, 3), 10, EPOCHS)
    leader.holds.end(HoldId(TOPIC, 7, 0), 10)
    await leader.holds.begin(HoldId(TOPIC, 7, 3), 10, EPOCHS)
    for number in range(1, 4):
        leader.holds.end(HoldId(TOPIC, 7, number), 10)
    for number in range(10, 14):
        leader.holds.end(HoldId(TOPIC, 7, number), 10)
    with pytest.raises(RequestRejected, match="too late"):
        await leader.holds.begin(HoldId(TOPIC, 7, 11), 10, EPOCHS)
    await leader.holds.begin(HoldId(TOPIC, 7, 10), 10, EPOCHS)  # the oldest is not remembered


class Settling:
    """Whether the outcome of earlier changes can be found out."""

    def __init__(self) -> None:
        self.error: FirnError | None = StorageUnavailable("The store is away.")
        self.asked = 0

    async def settle(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


def topic(*leaders: int) -> TopicImage:
    found = [
        PartitionImage(PartitionIndex(index), BrokerId(leader), LeaderEpoch(4), 0, (ONE,), (ONE,))
        for index, leader in enumerate(leaders or (1,))
    ]
    return TopicImage(TOPIC, "t", tuple(found), {}, TimestampMs(0))


def holds_of(
    leader: Leader,
    settling: Settling,
    *,
    link: HoldLink | None = None,
    in_office: Callable[[], bool] = lambda: True,
    lines: list[str] | None = None,
) -> HoldsOfLeaders:
    return HoldsOfLeaders(
        leader.holds,
        link,
        broker_id=ONE,
        image=lambda: leader.image,
        newest=lambda: leader.image.sequence,
        settle=settling.settle,
        in_office=in_office,
        faults=Faults((lines if lines is not None else []).append),
    )


async def make(holds: HoldsOfLeaders, how: BaseException) -> None:
    """A change that ends with an error."""
    async with holds.held(topic()) as held:
        assert held == (0, EPOCHS)
        raise how


@pytest.mark.parametrize("how", [StorageUnavailable("Undecided."), asyncio.CancelledError()])
async def test_copies_stay_held_while_it_is_not_known_whether_the_change_was_made(
    how: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tiering.upload.copy_holds.REPEAT_S", 0)
    leader, settling = Leader(), Settling()
    holds = holds_of(leader, settling)
    running = asyncio.create_task(holds.run())
    with pytest.raises(type(how)):
        await make(holds, how)
    while settling.asked < 5:
        await asyncio.sleep(0)
    assert leader.held
    settling.error = None
    while leader.held:
        await asyncio.sleep(0)
    running.cancel()


@pytest.mark.parametrize(
    "refusal",
    [
        RequestRejected(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "Too many changes wait."),
        CorruptionError("An entry is damaged."),
        StorageUnavailable("The store is away."),
    ],
)
async def test_a_controller_in_office_asks_for_the_outcome_again_whatever_refuses_it(
    refusal: FirnError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tiering.upload.copy_holds.REPEAT_S", 0)
    leader, settling = Leader(), Settling()
    settling.error = refusal
    lines: list[str] = []
    running = asyncio.create_task((holds := holds_of(leader, settling, lines=lines)).run())
    with pytest.raises(StorageUnavailable):
        await make(holds, StorageUnavailable("Undecided."))
    await turns_until(lambda: settling.asked > 3)
    assert leader.held
    assert [str(refusal) in line for line in lines] == [True], "it is told once"
    settling.error = None
    await turns_until(lambda: not leader.held)
    running.cancel()


async def test_a_controller_that_is_out_of_office_leaves_the_end_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.tiering.upload.copy_holds.REPEAT_S", 0)
    leader, settling = Leader(), Settling()
    settling.error = RequestRejected(ErrorCode.NOT_CONTROLLER, "Another broker is the controller.")
    running = asyncio.create_task((holds := holds_of(leader, settling, in_office=lambda: False)).run())
    with pytest.raises(StorageUnavailable):
        await make(holds, StorageUnavailable("Undecided."))
    for _ in range(100):
        await asyncio.sleep(0)
    assert (settling.asked, leader.held) == (1, True)
    leader.applies(11, controller_epoch=8)
    assert not leader.held
    running.cancel()


class Link:
    """Brokers that hold copies; of the end of a hold only some hear."""

    def __init__(self, deaf: BrokerId) -> None:
        self.deaf = deaf
        self.told: set[BrokerId] = set()

    async def hold_copies(self, to: BrokerImage, asked: HoldRequest) -> HoldResponse:
        if not asked.partitions:
            if to.broker_id == self.deaf:
                await asyncio.Event().wait()
            self.told.add(to.broker_id)
        return HoldResponse()


async def test_a_leader_that_does_not_answer_keeps_the_end_from_no_other() -> None:
    leader, link = Leader(), Link(deaf=BrokerId(2))
    brokers = {
        BrokerId(number): BrokerImage(BrokerId(number), UUID(int=number), UUID(int=number), 1, (), None, TimestampMs(0))
        for number in (1, 2, 3)
    }
    leader.image = replace(leader.image, brokers=brokers)
    running = asyncio.create_task((holds := holds_of(leader, Settling(), link=link)).run())
    async with holds.held(topic(2, 3, 1)):
        pass
    await turns_until(lambda: not leader.held)
    assert link.told == {3}
    running.cancel()


async def turns_until(reached: Callable[[], bool]) -> None:
    """Let all tasks take a step, until something is so."""
    for _ in range(100):
        if reached():
            return
        await asyncio.sleep(0)
    pytest.fail("it does not come about")


async def test_copies_go_on_after_a_change_that_was_refused() -> None:
    leader, settling = Leader(), Settling()
    holds = holds_of(leader, settling)
    running = asyncio.create_task(holds.run())
    with pytest.raises(RequestRejected, match="Refused"):
        await make(holds, RequestRejected(ErrorCode.INVALID_CONFIG, "Refused."))
    while leader.held:
        await asyncio.sleep(0)
    assert settling.asked == 0
    running.cancel()


async def test_a_partition_without_a_leader_can_say_nothing() -> None:
    leader, settling = Leader(), Settling()
    with pytest.raises(RequestRejected, match="has no leader"):
        async with holds_of(leader, settling).held(topic(-1)):
            pytest.fail("nobody has said anything")
    assert not leader.held
