"""The next step of a partition, by its stage and the image: a golden table, its rules, and the records of work that is left."""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import pytest

from app.broker.partitions.next_step import CHECKED_LATE, ROLES, UNSETTLED, LocalState, Stage, Step, next_step
from app.broker.partitions.unsettled import Unsettled, UnsettledPartitions
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.metadata.image.image import PartitionImage
from app.metadata.image.wal_ranges import PartitionDurability, WalRange
from app.replication.partition import Partition
from app.replication.roles import Role, Wanted, wanted_by

ME, OTHER, THIRD, NOBODY = BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(-1)
LOG_EPOCH: Final = 4
"""The leader epoch of the log. An image has this one, unless its name says that it is raised."""
OBJECT: Final = PartitionDurability.OBJECT
STAGES: Final = tuple(Stage)


class Situation(NamedTuple):
    """An image, and the facts of this broker that count beside the stage."""

    image: PartitionImage | None
    in_sync: bool = False
    start_is_assumed: bool = False
    started: bool = True
    several: bool = True


def image(
    leader: BrokerId = ME, epoch: int = LOG_EPOCH, replicas: tuple[BrokerId, ...] = (ME, OTHER), **more: Any
) -> PartitionImage:
    return PartitionImage(PartitionIndex(0), leader, LeaderEpoch(epoch), 0, replicas, replicas, **more)


def in_log(ranges: int, epoch: int = LOG_EPOCH) -> PartitionImage:
    return image(
        epoch=epoch,
        durability=OBJECT,
        wal_ranges=tuple(WalRange(ME, number, number, number, number) for number in range(ranges)),
    )


SITUATIONS: Final = {
    "gone": Situation(None),
    "another leads": Situation(image(OTHER)),
    "no broker leads": Situation(image(NOBODY)),
    "no replica": Situation(image(OTHER, replicas=(OTHER, THIRD))),
    "I lead": Situation(image()),
    "I lead, raised": Situation(image(epoch=5)),
    "I lead, recovering": Situation(image(epoch=5, recovering=True), in_sync=True),
    "in sync": Situation(image(epoch=5), in_sync=True),
    "in sync, start assumed": Situation(image(epoch=5), in_sync=True, start_is_assumed=True),
    "in sync, in a log": Situation(in_log(2, epoch=5), in_sync=True),
    "in a log": Situation(in_log(2)),
    "in a log, raised": Situation(in_log(2, epoch=5)),
    "new": Situation(image(epoch=0)),
    "new, in a log": Situation(in_log(1, epoch=0)),
    "new, in two logs": Situation(in_log(2, epoch=0)),
    "new, recovering": Situation(image(epoch=0, recovering=True)),
    "alone": Situation(image(epoch=5), several=False),
    "start: I lead": Situation(image(epoch=5), started=False),
    "start: in sync": Situation(image(epoch=5), in_sync=True, started=False),
    "start: new": Situation(image(epoch=0), started=False),
    "start: another leads": Situation(image(OTHER), started=False),
}

GOLDEN: Final = """
                        no log         following     named       offline  contradicted  unchecked  unread  believed  leading
gone                    stay           drop          drop        drop     drop          drop       drop    drop      drop
another leads           follow         stay          unname      resign   resign        resign     resign  resign    resign
no broker leads         follow         stay          unname      resign   resign        resign     resign  resign    resign
no replica              stay           drop          drop        drop     drop          drop       drop    drop      drop
I lead                  make_and_open  open          look_again  stay     open          stay       stay    stay      stay
I lead, raised          make_and_open  open          look_again  stay     open          raise      raise   raise     raise
I lead, recovering      make_and_open  open          look_again  stay     open          raise      raise   raise     raise
in sync                 make_and_open  lead          look_again  stay     open_in_sync  raise      raise   raise     raise
in sync, start assumed  make_and_open  open_in_sync  look_again  stay     open_in_sync  raise      raise   raise     raise
in sync, in a log       make_and_open  open_in_sync  look_again  stay     open_in_sync  reopen     reopen  reopen    reopen
in a log                make_and_open  open          look_again  stay     open          stay       stay    stay      stay
in a log, raised        make_and_open  open          look_again  stay     open          reopen     reopen  reopen    reopen
new                     make_and_lead  open          look_again  stay     open          stay       stay    stay      stay
new, in a log           make_and_lead  open          look_again  stay     open          stay       stay    stay      stay
new, in two logs        make_and_open  open          look_again  stay     open          stay       stay    stay      stay
new, recovering         make_and_open  open          look_again  stay     open          stay       stay    stay      stay
alone                   make_and_lead  open          look_again  stay     open          raise      raise   raise     raise
start: I lead           follow         stay          look_again  stay     stay          raise      raise   raise     raise
start: in sync          follow         stay          look_again  stay     stay          raise      raise   raise     raise
start: new              make           stay          look_again  stay     stay          stay       stay    stay      stay
start: another leads    follow         stay          unname      resign   resign        resign     resign  resign    resign
"""


def step(stage: Stage, of: Situation) -> Step:
    local = LocalState(stage, LOG_EPOCH, of.in_sync, of.start_is_assumed)
    return next_step(local, of.image, ME, started=of.started, several=of.several)


def table() -> str:
    rows = [["", *(stage.value for stage in STAGES)]]
    rows += [[name, *(step(stage, of).value.replace(" ", "_") for stage in STAGES)] for name, of in SITUATIONS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n" + "\n".join(lines) + "\n"


def test_each_stage_has_its_step_for_each_image() -> None:
    assert table() == GOLDEN


LEADS: Final = [stage for stage in STAGES if ROLES[stage] is Role.LEADER]

EVERY: Final = [
    (stage, Situation(of, *facts))
    for stage in STAGES
    for facts in itertools.product((False, True), repeat=4)
    for of in (
        None,
        *(
            image(leader, epoch, replicas, recovering=recovering, durability=durability)
            for leader in (ME, OTHER, NOBODY)
            for epoch in (0, LOG_EPOCH, 5)
            for replicas in ((ME, OTHER), (OTHER, THIRD))
            for recovering in (False, True)
            for durability in (PartitionDurability.REPLICAS, OBJECT)
        ),
    )
]
"""Each stage with each image and all facts."""


def test_a_broker_resigns_as_soon_as_another_leads() -> None:
    for stage, of in EVERY:
        if stage in LEADS and wanted_by(of.image, ME) is Wanted.FOLLOWER:
            assert step(stage, of) is Step.RESIGN


def test_a_log_that_its_leader_contradicted_is_opened_with_its_manifest_when_this_broker_is_named() -> None:
    for of in [of for stage, of in EVERY if stage is Stage.CONTRADICTED and wanted_by(of.image, ME) is Wanted.LEADER]:
        assert of.image is not None
        in_sync = of.in_sync and not of.image.recovering
        opened = Step.OPEN_IN_SYNC if in_sync else Step.OPEN
        assert step(Stage.CONTRADICTED, of) is (opened if of.started else Step.STAY)


def test_a_log_is_led_without_its_manifest_only_out_of_the_in_sync_set() -> None:
    at_once = [(stage, of) for stage, of in EVERY if step(stage, of) is Step.LEAD]
    assert at_once
    for stage, of in at_once:
        assert stage is Stage.FOLLOWING
        assert of.image is not None
        assert (of.in_sync, of.started, of.start_is_assumed) == (True, True, False)
        assert not of.image.recovering
        assert not of.image.is_journaled


def test_a_log_in_a_write_ahead_log_is_never_led_on_over_a_change_of_the_epoch() -> None:
    raised = [of.image for stage, of in EVERY if step(stage, of) is Step.RAISE]
    assert raised
    assert not any(one is None or one.is_journaled for one in raised)


def test_a_log_is_made_only_where_there_is_none_and_deleted_only_where_no_replica_is_wanted() -> None:
    for stage, of in EVERY:
        found, wanted = step(stage, of), wanted_by(of.image, ME) in (Wanted.LEADER, Wanted.FOLLOWER)
        made = found in (Step.FOLLOW, Step.MAKE, Step.MAKE_AND_LEAD, Step.MAKE_AND_OPEN)
        assert made == (stage is Stage.NO_LOG and wanted)
        assert (found is Step.DROP) == (stage is not Stage.NO_LOG and not wanted)


def test_the_start_opens_partitions_itself() -> None:
    later = {Step.OPEN, Step.OPEN_IN_SYNC, Step.LEAD, Step.MAKE_AND_LEAD, Step.MAKE_AND_OPEN}
    assert not {step(stage, of) for stage, of in EVERY if not of.started} & later
    assert {step(stage, of) for stage, of in EVERY} == set(Step)


# --- the records -----------------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """The parts of a log that a partition needs."""

    topic: str
    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch = LeaderEpoch(0)


def partition(index: int, role: Role = Role.FOLLOWER) -> Partition:
    found = Partition(cast(Any, Log("t", TopicId(UUID(int=7)), PartitionIndex(index))))
    found.role = role
    return found


def key(index: int) -> TopicIdPartition:
    return TopicIdPartition(TopicId(UUID(int=7)), PartitionIndex(index))


@pytest.mark.parametrize(
    ("role", "stage"),
    [(Role.LEADER, Stage.LEADING), (Role.FOLLOWER, Stage.FOLLOWING), (Role.OFFLINE, Stage.CONTRADICTED)],
)
def test_a_partition_without_a_record_has_the_stage_of_its_role(role: Role, stage: Stage) -> None:
    assert UnsettledPartitions().stage_of(partition(0, role)) is stage


@pytest.mark.parametrize("stage", UNSETTLED)
def test_a_record_is_found_by_its_key_until_the_partition_is_settled(stage: Stage) -> None:
    records, held = UnsettledPartitions(), partition(3)
    one = Unsettled(held, stage)
    records.begin(one)
    assert records.get(key(3)) is one
    assert records.stage_of(held) is stage
    assert records.of(*UNSETTLED) == records.of(stage) == {key(3): one}
    assert [records.count(other) for other in UNSETTLED] == [int(other is stage) for other in UNSETTLED]
    assert records.holds(one)
    records.settle(key(3))
    records.settle(key(3))
    assert records.get(key(3)) is None
    assert not records.holds(one)
    assert records.of(*UNSETTLED) == {}


def test_a_partition_that_went_offline_while_it_was_named_follows_when_another_broker_is_named() -> None:
    """Not: the record says NAMED, so nothing is left but to forget it."""
    records, held = UnsettledPartitions(), partition(0, Role.OFFLINE)
    records.begin(Unsettled(held, Stage.NAMED))
    assert step(records.stage_of(held), SITUATIONS["another leads"]) is Step.RESIGN


@pytest.mark.parametrize("stage", UNSETTLED)
def test_a_partition_has_one_record_at_most(stage: Stage) -> None:
    for other in UNSETTLED:
        records = UnsettledPartitions()
        records.begin(Unsettled(partition(0), other))
        with pytest.raises(AssertionError):
            records.begin(Unsettled(partition(0), stage))


def test_a_record_of_an_earlier_naming_does_not_hold() -> None:
    records = UnsettledPartitions()
    earlier, later = Unsettled(partition(0), Stage.NAMED), Unsettled(partition(0), Stage.NAMED)
    records.begin(earlier)
    records.settle(key(0))
    records.begin(later)
    assert (records.holds(earlier), records.holds(later)) == (False, True)


@pytest.mark.parametrize("stage", UNSETTLED)
def test_a_partition_goes_offline_with_its_record_if_damage_is_found(stage: Stage) -> None:
    records = UnsettledPartitions()
    one = Unsettled(partition(0), stage, since_s=2.5, named=4)
    records.begin(one)
    if stage not in CHECKED_LATE:
        with pytest.raises(AssertionError):
            records.put_offline(one)
        return
    records.put_offline(one)
    assert one.stage is Stage.OFFLINE
    assert records.get(key(0)) is one
    assert records.holds(one)
    assert (records.count(stage), records.count(Stage.OFFLINE)) == (0, 1)
    assert (one.since_s, one.named) == (2.5, 4)
