"""Consumer groups under everything that goes wrong between a coordinator and its members (KIP-848).

Members come and go, requests and answers are lost, answers come late, appends fail, topics grow, time passes, and the coordinator
starts again with what its log holds. After every step: no partition is held by two members, members believe nothing that the
coordinator does not know of, and the log says what memory says. In the end, when nothing fails any more, everything settles.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected
from app.groups.consumer.consumer import ConsumerGroup
from app.groups.consumer.members import MemberIndex
from app.groups.consumer.targets import ASSIGNED_AT_ONCE_MAX
from tests.groups.bench import image_of, topic_id
from tests.groups.consumers import Consumer, Coordinator, loaded, settle

FENCING = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
SUBSCRIPTIONS = st.one_of(
    st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1).map(lambda names: (set(names), None)),
    st.sampled_from(["a|b", "[a-c]", "c.*"]).map(lambda regex: (None, regex)),
)


class GroupMachine(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"a": 3, "b": 2}
        self.lives: dict[str, int] = {}
        self.coordinator = Coordinator(image_of(self.topics))
        self.consumers: list[Consumer] = []
        self.made = 0
        self.sequence = 1

    @initialize(interval_ms=st.sampled_from([0, 1000, 15_000]), at_once=st.sampled_from([0, 3, ASSIGNED_AT_ONCE_MAX]))
    def assignments_are_computed_so_often(self, interval_ms: int, at_once: int) -> None:
        config = BrokerConfig(group_consumer_assignment_interval_ms=interval_ms)
        self.coordinator = Coordinator(image_of(self.topics), config, at_once)

    def deliver(self, consumer: Consumer) -> Any:
        """A heartbeat arrives; the answer, or None if the consumer has to begin anew or the coordinator was not there."""
        try:
            return self.coordinator.heartbeat(consumer.request())
        except RequestRejected as error:
            if error.code in FENCING:
                consumer.fenced()
            elif error.code is not ErrorCode.NOT_COORDINATOR:
                raise
            return None

    @rule(
        target=members,
        subscription=SUBSCRIPTIONS,
        instance=st.sampled_from([None, None, "i1", "i2"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def join(self, subscription: Any, instance: str | None, assignor: str | None) -> Consumer:
        self.made += 1
        topics, regex = subscription
        consumer = Consumer(f"m{self.made}", topics, regex=regex, instance_id=instance, assignor=assignor)
        self.consumers.append(consumer)
        self.beat(consumer)
        return consumer

    @rule(consumer=members)
    def beat(self, consumer: Consumer) -> None:
        answer = self.deliver(consumer)
        if answer is not None:
            consumer.hear(answer)

    @rule(consumer=members)
    def beat_but_go_on_reading(self, consumer: Consumer) -> None:
        answer = self.deliver(consumer)
        if answer is not None:
            consumer.hear(answer, slow=True)

    @rule(consumer=members)
    def everybody_beats(self, consumer: Consumer) -> None:
        for other in list(self.consumers):
            self.beat(other)

    @rule(consumer=members)
    def answer_is_lost(self, consumer: Consumer) -> None:
        self.deliver(consumer)
        # A client that hears nothing says everything the next time.
        consumer.changed = True

    @rule(consumer=members)
    def a_request_arrives_twice(self, consumer: Consumer) -> None:
        request = consumer.request()
        self.beat(consumer)
        try:
            self.coordinator.heartbeat(request)
        except RequestRejected as error:
            if error.code not in FENCING:
                raise
        consumer.changed = True  # it has sent again because it heard nothing, and says everything then

    @rule(consumer=members, subscription=SUBSCRIPTIONS)
    def subscribe_anew(self, consumer: Consumer, subscription: Any) -> None:
        consumer.topics, regex = subscription
        consumer.regex = regex if regex is not None else ""
        consumer.topics = consumer.topics or set()
        consumer.changed = True
        self.beat(consumer)

    @rule(consumer=consumes(members), for_a_while=st.booleans(), arrives=st.booleans())
    def leave(self, consumer: Consumer, for_a_while: bool, arrives: bool) -> None:
        self.consumers.remove(consumer)
        request = consumer.request()
        request.member_epoch = -2 if for_a_while and consumer.instance_id is not None else -1
        if arrives:
            try:
                self.coordinator.heartbeat(request)
            except RequestRejected as error:
                if error.code not in FENCING:
                    raise

    @rule(duration_ms=st.sampled_from([1000, 10_000, 44_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.coordinator.pass_time(duration_ms)

    @rule()
    def a_target_is_computed(self) -> None:
        self.coordinator.pass_time(0)

    @rule(fails=st.booleans())
    def computed_targets_are_taken(self, fails: bool) -> None:
        group = self.coordinator.group
        before = (dict(group.targets), group.target_epoch)
        if fails:
            self.coordinator.turn.refuse_with = ErrorCode.NOT_COORDINATOR
        with suppress(RequestRejected):
            self.coordinator.take()
        self.coordinator.turn.refuse_with = None
        assert not fails or (dict(group.targets), group.target_epoch) == before

    @rule(name=st.sampled_from(["a", "b", "c", "c2"]), count=st.integers(0, 5))
    def topics_change(self, name: str, count: int) -> None:
        if count == 0:
            if self.topics.pop(name, None) is not None:
                self.lives[name] = self.lives.get(name, 0) + 1
        else:
            self.topics[name] = max(count, self.topics.get(name, 0))
        self.sequence += 1
        before, after = self.coordinator.image, image_of(self.topics, sequence=self.sequence, lives=self.lives)
        added = after.topics_by_name.keys() - before.topics_by_name.keys()
        removed = before.topics_by_name.keys() - after.topics_by_name.keys()
        list(self.coordinator.group.topics_changed(added, removed, after, self.coordinator.turn.now_ms))
        self.coordinator.image = after

    @rule(consumer=members)
    def an_append_fails(self, consumer: Consumer) -> None:
        group = self.coordinator.group
        before = (dict(group.members), dict(group.targets), group.epoch, group.target_epoch)
        self.coordinator.turn.refuse_with = ErrorCode.NOT_COORDINATOR
        appended = len(self.coordinator.turn.log)
        answer = self.deliver(consumer)
        self.coordinator.turn.refuse_with = None
        assert len(self.coordinator.turn.log) == appended
        assert (dict(group.members), dict(group.targets), group.epoch, group.target_epoch) == before
        if answer is not None:
            consumer.hear(answer)

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.coordinator.restart()

    @invariant()
    def no_partition_is_held_by_two(self) -> None:
        held = set()
        for member in self.coordinator.group.members.values():
            for assignment in (member.current.assigned, member.current.pending_revocation):
                for topic, partitions in assignment.items():
                    for partition in partitions:
                        assert (topic, partition) not in held
                        held.add((topic, partition))

    @invariant()
    def members_have_only_what_the_coordinator_knows_of(self) -> None:
        for consumer in self.consumers:
            member = self.coordinator.group.members.get(consumer.member_id)
            if member is None or consumer.epoch == 0:
                continue
            for topic, partitions in consumer.owned.items():
                known = member.current.assigned.get(topic, frozenset()) | member.current.pending_revocation.get(
                    topic, frozenset()
                )
                assert partitions <= known, (consumer.member_id, partitions, member)

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        reads = set()
        for consumer in self.consumers:
            if consumer.member_id in self.coordinator.group.members:
                for topic, partitions in consumer.owned.items():
                    for partition in partitions:
                        assert (topic, partition) not in reads
                        reads.add((topic, partition))

    @invariant()
    def the_index_is_that_of_the_members(self) -> None:
        group, anew = self.coordinator.group, MemberIndex()
        for member in group.members.values():
            anew.add(member)
        assert counts(group.index) == counts(anew)

    @invariant()
    def the_log_says_what_memory_says(self) -> None:
        assert remembered(loaded(self.coordinator.turn.log)) == remembered(self.coordinator.group)

    def teardown(self) -> None:
        """Nothing fails any more: who is silent is taken out, who speaks gets its part, everything is owned."""
        living: dict[str | None, Consumer] = {}
        for consumer in self.consumers:
            if consumer.instance_id is None:
                living[consumer.member_id] = consumer
            else:
                living[consumer.instance_id] = consumer  # the newest process of an instance
        consumers = list(living.values())
        for _ in range(8):
            for consumer in consumers:
                self.beat(consumer)
            self.coordinator.pass_time(10_000)
            self.coordinator.take()
        if not consumers:
            assert self.coordinator.group.state == "Empty"
            return
        settle(self.coordinator, consumers)
        group = self.coordinator.group
        assert set(group.members) == {consumer.member_id for consumer in consumers}
        owned = {
            (topic, partition): consumer
            for consumer in consumers
            for topic, partitions in consumer.owned.items()
            for partition in partitions
        }
        assert len(owned) == sum(consumer.count for consumer in consumers)
        names = {name for name in self.topics if group.subscribes_to(name)}
        ids = {name: topic_id(name, self.lives.get(name, 0)) for name in self.topics}
        assert set(owned) == {(ids[name], index) for name in names for index in range(self.topics[name])}
        for consumer in consumers:
            for name, found in ids.items():
                if found in consumer.owned:
                    resolved = group.regexes.get(consumer.regex or "")
                    assert name in (consumer.topics or ()) or (resolved is not None and name in resolved.topics)


def remembered(group: ConsumerGroup) -> Any:
    """What a group must know again after a restart."""
    return group.members, group.targets, group.epoch, group.target_epoch, group.regexes, counts(group.index)


def counts(index: MemberIndex) -> Any:
    """What an index says of its members."""
    return index.names, index.regexes, index.assignors, index.list_topics, index.member_topics, index.holders()


GroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_groups_settle_and_never_own_a_partition_twice = GroupMachine.TestCase
