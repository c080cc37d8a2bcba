"""What every image has, whatever happens to brokers and to partitions in write-ahead logs (ADR 0037, J14 to J23, J40 to J42).

Logs are numbers here: each broker epoch has the number that its log has begun last, and the end that a seal gave it.
"""

from __future__ import annotations

from random import Random

import pytest

from app.configs import BrokerConfig
from app.core.errors import RequestRejected
from app.core.units import LogSequence, TimestampMs
from app.metadata.changes.broker_changes import (
    ProposedSet,
    RegistrationAsked,
    alter_in_sync,
    begin_stop,
    fence_brokers,
    register_broker,
    unfence_brokers,
    unregister_broker,
)
from app.metadata.changes.leader_changes import elect_leaders, preferred_leaders_back
from app.metadata.changes.reassignments import ReassignmentAsked, alter_reassignments
from app.metadata.changes.topic_changes import PlanInputs, Planned, create_partitions, replace_configs
from app.metadata.changes.wal_changes import drop_ranges, plan_wal_sealed, release_partitions, switch_partitions
from app.metadata.image.image import PartitionImage
from app.metadata.image.records import NOT_SEALED, partition_change
from app.metadata.image.wal_ranges import PartitionDurability, WalId
from app.metadata.peers.control import DropAsked, ReleaseAsked, SwitchAsked
from app.metadata.replicas.elections import NOBODY
from app.metadata.replicas.log_leaders import orphaned_logs
from app.metadata.replicas.replica_changes import ProposedReplica
from tests.metadata.several import TOPIC_ID, ids, several
from tests.metadata.support import uuid_of

BROKERS = (1, 2, 3, 4)
STEPS = 120


class Cluster:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.draft = several(*([1 + index % 4] for index in range(4)), brokers=BROKERS, level=3, level_max=3)
        self.sequence = 100
        self.begun: dict[WalId, int] = {}
        self.ends: dict[WalId, int] = {}
        self.led = 0
        if self.rng.random() < 0.8:
            for index, one in enumerate(self.partitions()):
                begun = one._replace(durability=PartitionDurability.TO_OBJECT)
                self.draft.apply([partition_change(TOPIC_ID, index, begun.record())])
                asked = SwitchAsked(TOPIC_ID, index, 0, 0, 0, -1)
                self.apply(switch_partitions(self.draft, self.around(), one.leader, 10 + one.leader, [asked]))

    def around(self) -> PlanInputs:
        # A heartbeat may have told any number up to the next one.
        return PlanInputs(
            BrokerConfig(),
            ids(*self.draft.brokers),
            TimestampMs(5),
            self.rng.randrange(8),
            LogSequence(self.sequence),
            lambda wal: self.rng.randint(0, self.begun.get(wal, -1) + 1),
        )

    def partitions(self) -> tuple[PartitionImage, ...]:
        topic = self.draft.topic("t")
        assert topic is not None
        return topic.partitions

    def apply(self, planned: Planned[object]) -> object:
        before = self.partitions()
        unnoted = {one.broker_id for one in self.draft.brokers.values() if one.wal_end == NOT_SEALED}
        self.draft.apply(planned.records)
        for was, now in zip(before, self.partitions(), strict=False):
            self.check_step(was, now, unnoted)
        for now in self.partitions():
            self.check(now)
        return planned.answer

    # --- what holds -----------------------------------------------------------------------------------------------

    def check(self, one: PartitionImage) -> None:
        assert not any(each.is_open for each in one.wal_ranges[:-1]), one
        of_log: dict[WalId, int] = {}
        for each in one.wal_ranges:
            assert each.first > of_log.get(each.wal, -1), ("J20", one)
            of_log[each.wal] = each.last
            end = self.ends.get(each.wal)
            assert end is None or each.is_open or each.last < end, ("J21", one)
        if not one.durability.by_log:
            assert not (one.wal_ranges and one.wal_ranges[-1].is_open), one
            return
        if one.leader == NOBODY:
            assert one.isr == (), one
            return
        broker = self.draft.brokers[one.leader]
        newest = one.wal_ranges[-1]
        assert not broker.fenced, ("M6", one)
        assert (newest.is_open, newest.wal, newest.leader_epoch) == (True, broker.wal, one.leader_epoch), ("J16", one)
        assert one.leader in one.isr, one
        assert one.replicas[0] == one.leader, one
        if one.durability is PartitionDurability.OBJECT:
            assert one.replicas == one.isr == (one.leader,), one
            self.led += 1

    def check_step(self, was: PartitionImage, now: PartitionImage, unnoted: set[int]) -> None:
        if now == was:
            return
        assert now.partition_epoch == was.partition_epoch + 1, (was, now)
        assert now.leader_epoch - was.leader_epoch == int(
            now.leader != was.leader or now.leader_epoch > was.leader_epoch
        ), ("E2", was, now)
        if now.durability.by_log and now.leader_epoch > was.leader_epoch and now.leader != NOBODY:
            broker = self.draft.brokers[now.leader]
            assert now.leader in unnoted, ("J14", was, now)
            assert broker.active, ("J23", was, now)
            if was.durability.by_log and was.wal_ranges and was.wal_ranges[-1].is_open:
                wal = was.wal_ranges[-1].wal
                released = was.leader == wal.broker_id and wal not in self.ends
                assert released or wal in self.ends, ("J16", was, now)

    # --- what happens ---------------------------------------------------------------------------------------------

    def write(self) -> None:
        """A leader puts an object, unless somebody has ended its log."""
        for one in self.partitions():
            if one.leader != NOBODY and one.durability != PartitionDurability.REPLICAS:
                wal = self.draft.brokers[one.leader].wal
                if wal not in self.ends:
                    self.begun[wal] = self.begun.get(wal, -1) + self.rng.randrange(3)

    def step(self) -> None:
        self.sequence += 1
        rng, draft = self.rng, self.draft
        broker_id = rng.choice(BROKERS)
        broker = draft.brokers.get(broker_id)
        index = rng.randrange(len(self.partitions()))
        image = self.partitions()[index]
        leader = draft.brokers.get(image.leader)
        epochs = (image.leader_epoch, image.partition_epoch)
        self.write()
        match rng.randrange(14):
            case 0 if broker is not None and rng.random() < 0.6:
                self.apply(fence_brokers(draft, self.around(), [(broker_id, broker.broker_epoch)]))
            case 1 | 2:
                back = [(one.broker_id, one.broker_epoch, self.sequence) for one in draft.brokers.values()]
                self.apply(unfence_brokers(draft, self.around(), rng.sample(back, len(back))))
            case 3 if broker is None or rng.random() < 0.6:
                epoch = -1 if broker is None else broker.broker_epoch
                mine = uuid_of(self.sequence) if broker is None or rng.random() < 0.5 else broker.incarnation
                directory = uuid_of(100 + broker_id)
                asked = RegistrationAsked(broker_id, directory, mine, "", (), 1, 3, epoch, anew=epoch, force=True)
                self.apply(register_broker(draft, self.around(), asked))
            case 4 if broker is not None and rng.random() < 0.2:
                self.apply(unregister_broker(draft, self.around(), broker_id))
            case 5 if broker is not None and rng.random() < 0.2:
                self.apply(begin_stop(draft, self.around(), broker_id, broker.broker_epoch))
            case 6 | 7:
                for wal in sorted(orphaned_logs(draft.topics)):
                    end = self.ends.setdefault(wal, self.begun.get(wal, -1) + 1)
                    self.apply(plan_wal_sealed(draft, self.around(), wal, end, at_most=rng.choice((1, 99))))
            case 8 if leader is not None:
                # A deposed controller seals a living log, and its owner finds that before it asks for anything.
                last = self.begun.get(leader.wal, -1) if leader.wal not in self.ends else -1
                asked_release = ReleaseAsked(TOPIC_ID, index, *epochs, last, rng.choice((-1, *BROKERS)))
                if leader.wal not in self.ends:
                    self.apply(
                        release_partitions(
                            draft, self.around(), leader.broker_id, leader.broker_epoch, [asked_release] * 2
                        )
                    )
            case 9 if leader is not None:
                some = tuple(one for one in image.wal_ranges if rng.random() < 0.5)
                asked_drop = DropAsked(TOPIC_ID, index, *epochs, some)
                self.apply(drop_ranges(draft, leader.broker_id, leader.broker_epoch, [asked_drop]))
            case 10:
                configs = {"firn.durability": rng.choice(("object", "disk"))}
                try:
                    planned = replace_configs(draft, self.around(), resource_type=2, resource_name="t", configs=configs)
                except RequestRejected:
                    return  # a partition is on its way back
                self.apply(planned)
            case 11 | 12 if leader is not None and leader.wal not in self.ends:
                if image.durability is PartitionDurability.FROM_OBJECT:
                    live = [one for one in image.replicas if one in draft.brokers and draft.brokers[one].active]
                    members = [ProposedReplica(one, draft.brokers[one].broker_epoch) for one in {*live, image.leader}]
                    proposed = ProposedSet(TOPIC_ID, index, *epochs, members)
                    self.apply(alter_in_sync(draft, self.around(), leader.broker_id, leader.broker_epoch, [proposed]))
                    epochs = (image.leader_epoch, self.partitions()[index].partition_epoch)
                last = self.begun.get(leader.wal, -1)
                asked_switch = SwitchAsked(TOPIC_ID, index, *epochs, self.rng.randint(0, last + 1), last)
                self.apply(
                    switch_partitions(draft, self.around(), leader.broker_id, leader.broker_epoch, [asked_switch])
                )
            case 13:
                match rng.randrange(4):
                    case 0:
                        self.apply(elect_leaders(draft, self.around(), None, unclean=rng.random() < 0.5))
                    case 1:
                        self.apply(preferred_leaders_back(draft, self.around(), draft.brokers.keys(), 9))
                    case 2:
                        targets = rng.choice((None, tuple(rng.sample(BROKERS, 2))))
                        self.apply(alter_reassignments(draft, self.around(), [ReassignmentAsked("t", index, targets)]))
                    case _ if len(self.partitions()) < 8:
                        try:
                            planned_more = create_partitions(
                                draft, self.around(), name="t", count=len(self.partitions()) + 1, assignments=None
                            )
                        except RequestRejected:
                            return  # nobody is active
                        self.apply(planned_more)
            case _:
                pass


@pytest.mark.parametrize("seed", range(40))
def test_what_every_image_has_whatever_happens(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        cluster.step()


def test_the_runs_meet_what_they_are_for() -> None:
    led = ended = switched = 0
    for seed in range(20):
        cluster = Cluster(seed)
        for _ in range(STEPS):
            cluster.step()
        led += cluster.led
        ended += len(cluster.ends)
        switched += any(
            one.durability is PartitionDurability.REPLICAS and one.wal_ranges for one in cluster.partitions()
        )
    assert led > 1_000
    assert ended > 40
    assert switched
