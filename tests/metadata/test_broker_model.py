"""Random sequences of what brokers do, against a model of who has which records (ADR 0023, M; ADR 0024, R and E).

The model gives each replica a log. A leader appends to its own, and commits what the in-sync set has while the set is large enough.
A clean leader must have every committed record. That is what the sets are for, so it checks the rules all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.configs import BrokerConfig
from app.core.errors import ErrorCode
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TimestampMs, TopicId
from app.metadata.changes import broker_changes
from app.metadata.changes.broker_changes import ProposedSet, RegistrationAsked
from app.metadata.changes.topic_changes import PlanInputs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    PartitionRecord,
    TopicRecord,
    feature_change,
    partition_change,
    topic_change,
)
from app.metadata.log.log_format import KeyValue
from app.metadata.replicas.elections import NOBODY, was_unclean
from app.metadata.replicas.replica_changes import ProposedReplica, clear_eligible, effective_min_in_sync
from tests.metadata.support import uuid_of

NIL = uuid_of(0)
BROKERS = (1, 2, 3, 4)
TOPICS = {
    TopicId(uuid_of(10)): ("clean", "1", "false"),
    TopicId(uuid_of(11)): ("safe", "2", "false"),
    TopicId(uuid_of(12)): ("unclean", "2", "true"),
}
REPLICAS = ((1, 2, 3), (2, 3, 4), (4, 1), (3,))

Place = tuple[UUID, int]
"""A topic id and the index of a partition."""

brokers = st.sampled_from(BROKERS)
places = st.sampled_from([(topic, index) for topic in TOPICS for index in range(len(REPLICAS))])


@dataclass
class Machine:
    """A broker's machine as the model sees it."""

    directory_id: UUID
    incarnation: UUID = NIL
    epoch: int = -1
    """The broker epoch of its last registration, which its markers name."""
    sequence: int = -1


@dataclass
class Log:
    """Records of one partition: of each replica, and those that were committed."""

    replicas: dict[int, list[int]] = field(default_factory=dict)
    committed: list[int] = field(default_factory=list)


class BrokerMachine(RuleBasedStateMachine):
    """Registrations, fences, stops and proposals in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self.names = iter(range(1000, 10**6))
        self.records = iter(range(10**6))
        self.machines = {each: Machine(uuid_of(each)) for each in BROKERS}
        self.logs: dict[Place, Log] = {}
        self.leaders: dict[tuple[Place, int], int] = {}
        self.doubtful: set[tuple[Place, int]] = set()
        """Replicas that lost records, and were not taken into a set since."""

    # --- what the rules share ---------------------------------------------------------------------------------------

    @initialize()
    def create(self) -> None:
        draft = ImageDraft(self.image)
        draft.apply([feature_change(LEVEL_FEATURE, 1)])
        self.image = draft.freeze(LogSequence(0))
        for each in BROKERS:
            self.start(each, "new", True)
            self.unfence({each}, 0)
        draft = ImageDraft(self.image)
        records: list[KeyValue] = []
        for topic_id, (name, min_in_sync, unclean) in TOPICS.items():
            configs = {"min.insync.replicas": min_in_sync, "unclean.leader.election.enable": unclean}
            records.append(topic_change(topic_id, TopicRecord(1, name, len(REPLICAS), configs, TimestampMs(0))))
            for index, replicas in enumerate(REPLICAS):
                named = tuple(BrokerId(each) for each in replicas)
                record = PartitionRecord(1, named[0], LeaderEpoch(0), 0, named, named)
                records.append(partition_change(topic_id, index, record))
                self.logs[topic_id, index] = Log({each: [] for each in replicas})
        draft.apply(records)
        self.image = draft.freeze(LogSequence(self.image.sequence + 1))

    def around(self) -> PlanInputs:
        return PlanInputs(BrokerConfig(), [], TimestampMs(0), 0, LogSequence(self.image.sequence + 1))

    def partition(self, place: Place) -> PartitionImage:
        return self.image.topics_by_id[place[0]].partitions[place[1]]

    def min_in_sync(self, place: Place) -> int:
        configured = int(self.image.topics_by_id[place[0]].configs["min.insync.replicas"])
        return effective_min_in_sync(configured, len(self.partition(place).replicas))

    def commit(
        self, draft: ImageDraft, records: list[KeyValue], entering: dict[Place, list[int]] | None = None
    ) -> None:
        """Apply an entry, and check each partition's step. ``entering``: who copied the leader's log to enter a set."""
        before = self.image
        draft.apply(records)
        self.image = draft.freeze(LogSequence(before.sequence + 1))
        for place, log in self.logs.items():
            old, new = before.topics_by_id[place[0]].partitions[place[1]], self.partition(place)
            for each in (entering or {}).get(place, []):
                log.replicas[each] = list(log.replicas[old.leader])
                self.doubtful.discard((place, each))
            self.check_step(place, old, new)

    def check_step(self, place: Place, old: PartitionImage, new: PartitionImage) -> None:
        assert new.partition_epoch - old.partition_epoch == (new != old)
        assert new.leader_epoch - old.leader_epoch in (0, 1)
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch, "E2"
        if new.leader == NOBODY:
            return
        assert self.leaders.setdefault((place, new.leader_epoch), new.leader) == new.leader, "E2"
        log = self.logs[place]
        mine = log.replicas[new.leader]
        if was_unclean(old, new) or (new.leader != old.leader and len(new.replicas) == 1):
            log.committed = [each for each in log.committed if each in mine]
            self.doubtful.discard((place, new.leader))
        assert set(log.committed) <= set(mine), "a clean leader has every committed record"

    # --- rules --------------------------------------------------------------------------------------------------------

    @rule(broker=brokers, how=st.sampled_from(["clean", "crashed", "booted", "old disk", "new"]), force=st.booleans())
    def start(self, broker: int, how: str, force: bool) -> None:
        """The broker's process starts again, or for the first time."""
        machine = self.machines[broker]
        bound = self.image.brokers.get(broker)
        force = force or bound is None or bound.fenced
        if how == "new" and not force:
            return
        if how == "new":
            machine.directory_id = uuid_of(next(self.names))
        elif bound is None or machine.epoch != bound.broker_epoch:
            how = "old disk"
        asked = RegistrationAsked(
            broker,
            machine.directory_id,
            uuid_of(next(self.names)),
            "this boot",
            (),
            0,
            1,
            replaces=-1 if bound is None else bound.broker_epoch,
            clean_epoch={"clean": machine.epoch, "old disk": machine.epoch - 1}.get(how, -1),
            run_epoch=-1 if how == "new" else machine.epoch,
            run_boot_id="this boot" if how in ("clean", "crashed") else "earlier",
            force=force,
        )
        draft = ImageDraft(self.image)
        planned = broker_changes.register_broker(draft, self.around(), asked)
        if how not in ("clean", "crashed"):
            for place, log in self.logs.items():
                if broker in log.replicas:
                    log.replicas[broker] = []
                    self.doubtful.add((place, broker))
        self.commit(draft, list(planned.records))
        assert planned.answer.broker_epoch == self.image.sequence, "M1"
        machine.incarnation = asked.incarnation
        machine.epoch, machine.sequence = planned.answer.broker_epoch, planned.answer.sequence

    @rule(broker=brokers)
    def start_with_an_old_request(self, broker: int) -> None:
        """The registration comes a second time (M8)."""
        machine = self.machines[broker]
        bound = self.image.brokers.get(broker)
        if not (bound is not None and bound.incarnation == machine.incarnation):
            return
        asked = RegistrationAsked(broker, machine.directory_id, machine.incarnation, "", (), 0, 1)
        planned = broker_changes.register_broker(ImageDraft(self.image), self.around(), asked)
        assert (planned.records, planned.answer.broker_epoch) == ([], machine.epoch)

    @rule(chosen=st.sets(brokers, min_size=1))
    def fence(self, chosen: set[int]) -> None:
        draft = ImageDraft(self.image)
        named = [(each, self.machines[each].epoch) for each in sorted(chosen)]
        self.commit(draft, list(broker_changes.fence_brokers(draft, self.around(), named).records))

    @rule(chosen=st.sets(brokers, min_size=1), behind=st.integers(0, 2))
    def unfence(self, chosen: set[int], behind: int) -> None:
        draft = ImageDraft(self.image)
        applied = self.image.sequence - behind
        named = [(each, self.machines[each].epoch, applied) for each in sorted(chosen)]
        planned = broker_changes.unfence_brokers(draft, self.around(), named)
        for each in planned.answer.brokers:
            assert applied >= self.image.brokers[each].changed_at, "M7"
        self.commit(draft, list(planned.records))

    @rule(broker=brokers)
    def stop(self, broker: int) -> None:
        if broker not in self.image.brokers:
            return
        led = {place for place in self.logs if self.partition(place).leader == broker}
        draft = ImageDraft(self.image)
        planned = broker_changes.begin_stop(draft, self.around(), broker, self.machines[broker].epoch)
        self.commit(draft, list(planned.records))
        assert all(self.partition(place).leader != NOBODY for place in led), "M13"
        for place in led:
            image = self.partition(place)
            others = {*image.isr, *image.eligible} - {broker}
            if image.leader == broker:
                assert not any(self.image.brokers[each].active for each in others), "M13"

    @rule(broker=brokers)
    def unregister(self, broker: int) -> None:
        if broker not in self.image.brokers:
            return
        draft = ImageDraft(self.image)
        self.commit(draft, list(broker_changes.unregister_broker(draft, self.around(), broker).records))

    @rule(place=places, chosen=st.sets(brokers), old=st.booleans())
    def propose(self, place: Place, chosen: set[int], old: bool) -> None:
        """The leader proposes a set. Who enters has copied the leader's log (R7)."""
        image = self.partition(place)
        if image.leader == NOBODY:
            return
        members = sorted({image.leader, *(chosen & set(image.replicas))})
        epochs = {each: self.machines[each].epoch for each in members}
        proposal = ProposedSet(
            place[0],
            place[1],
            image.leader_epoch,
            image.partition_epoch - old,
            [ProposedReplica(each, epoch) for each, epoch in epochs.items()],
        )
        draft = ImageDraft(self.image)
        leader = image.leader
        planned = broker_changes.alter_in_sync(draft, self.around(), leader, epochs[leader], [proposal])
        [answer] = planned.answer
        entering: dict[Place, list[int]] = {}
        if answer.error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            assert not old, "R5"
            entering[place] = [each for each in members if each not in image.isr]
        else:
            assert planned.records == []
        self.commit(draft, list(planned.records), entering)

    @rule(place=places)
    def produce(self, place: Place) -> None:
        """A record that the leader alone has."""
        image = self.partition(place)
        if image.leader == NOBODY:
            return
        self.logs[place].replicas[image.leader].append(next(self.records))

    @rule(place=places)
    def replicate(self, place: Place) -> None:
        """The set has what the leader has, and it is committed if the set is large enough (R1, R2)."""
        image = self.partition(place)
        if image.leader == NOBODY:
            return
        log = self.logs[place]
        log.replicas[image.leader].append(next(self.records))
        for each in image.isr:
            log.replicas[each] = list(log.replicas[image.leader])
        if len(image.isr) >= self.min_in_sync(place):
            log.committed = list(log.replicas[image.leader])

    @rule(topic_id=st.sampled_from(list(TOPICS)), min_in_sync=st.sampled_from(["1", "2", "3"]))
    def change_min_in_sync(self, topic_id: UUID, min_in_sync: str) -> None:
        topic = self.image.topics_by_id[topic_id]
        if topic.configs["min.insync.replicas"] == min_in_sync:
            return
        draft = ImageDraft(self.image)
        configs = {**topic.configs, "min.insync.replicas": min_in_sync}
        records = [topic_change(topic_id, topic.record(configs=configs)), *clear_eligible([topic])]
        self.commit(draft, records)

    # --- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def sets_are_as_the_rules_say(self) -> None:
        known = self.image.brokers
        for place in self.logs:
            image = self.partition(place)
            isr, eligible = set(image.isr), set(image.eligible)
            assert isr | eligible | set(image.last_known_eligible) <= set(image.replicas)
            assert not isr & eligible
            assert all(each in known and not known[each].fenced for each in isr), "M6"
            if image.leader != NOBODY:
                assert image.leader in isr
            else:
                unclean = self.image.topics_by_id[place[0]].configs["unclean.leader.election.enable"] == "true"
                candidates = set(image.replicas) if unclean else isr | eligible
                assert not any(known[each].active for each in candidates if each in known), "E1, E3"
            if eligible:
                assert len(isr) < self.min_in_sync(place), "R9"
            if image.last_known_eligible:
                assert not isr, "M3"
                assert not eligible, "M3"
            if image.recovering:
                assert len(isr) <= 1, "E3"

    @invariant()
    def who_lost_records_is_in_no_set(self) -> None:
        for place, broker in self.doubtful:
            image = self.partition(place)
            assert broker not in image.isr, "M3"
            assert broker not in image.eligible, "M3"


TestBrokers = BrokerMachine.TestCase
TestBrokers.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
