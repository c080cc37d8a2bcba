"""Members of a share group under everything that goes wrong between a coordinator and them (KIP-932).

They come and go, requests and answers are lost or come twice, appends fail, topics grow and go, time passes, and the coordinator
starts again with what its log holds. After every step the log says what memory says, and nobody who is silent stays past its
session. In the end, when nothing fails any more, every partition has a reader, every reader has a partition, and knows it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from app.configs import BrokerConfig
from app.coordinator.records import GROUP_RECORDS
from app.core.errors import ErrorCode, RequestRejected
from app.groups.consumer.consumer import ClientInfo
from app.groups.consumer.subscriptions import metadata_hash, topic_ids
from app.groups.share.core import share_records
from app.groups.share.core.share import ShareGroup, ShareTimer, check_share_heartbeat
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.groups.bench import FakeTurn, image_of, topic_id

GROUP = "workers"
SESSION_MS = BrokerConfig().group_share_session_timeout_ms
SUBSCRIPTIONS = st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1)


class Reader:
    """A member as a client plays it. Whoever hears nothing says everything the next time."""

    def __init__(self, member_id: str, topics: frozenset[str]) -> None:
        self.member_id = member_id
        self.topics = topics
        self.epoch = 0
        self.reads: dict[UUID, frozenset[int]] = {}
        self.says_everything = True

    def request(self) -> ShareGroupHeartbeatRequest:
        topics = sorted(self.topics) if self.says_everything else None
        return ShareGroupHeartbeatRequest(GROUP, self.member_id, self.epoch, None, topics)

    def fenced(self) -> None:
        self.epoch, self.reads, self.says_everything = 0, {}, True


class ShareGroupMachine(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"a": 3, "b": 2}
        self.lives: dict[str, int] = {}
        self.sequence = 1
        self.image = image_of(self.topics)
        self.turn = FakeTurn()
        self.config = BrokerConfig()
        self.group = ShareGroup(GROUP, self.config)
        self.readers: list[Reader] = []
        self.heard_ms: dict[str, int] = {}
        """When the coordinator last heard of whom, or began again."""
        self.made = 0
        self.subscribed: set[UUID] = set()
        """Topics that somebody who was heard has subscribed to, and that there were then."""

    @initialize(interval_ms=st.sampled_from([0, 1000, 15_000]), size_max=st.sampled_from([2, 200]))
    def the_group_is_configured(self, interval_ms: int, size_max: int) -> None:
        self.config = BrokerConfig(group_share_assignment_interval_ms=interval_ms, group_share_max_size=size_max)
        self.group = ShareGroup(GROUP, self.config)

    def deliver(self, request: ShareGroupHeartbeatRequest) -> tuple[ErrorCode, ShareGroupHeartbeatResponse | None]:
        """A heartbeat arrives; its code, and its answer if there is one."""
        check_share_heartbeat(request)
        before = remembered(self.group)
        try:
            answer = self.group.heartbeat(self.turn, request, ClientInfo("c", "/h"), self.image)
        except RequestRejected as error:
            refused = error.code
        else:
            self.heard_ms[request.member_id] = self.turn.now_ms
            if request.member_epoch != -1:  # who leaves says nothing of topics that have come
                self.subscribed |= topic_ids(self.names(), self.image)
            return ErrorCode.NONE, answer
        assert remembered(self.group) == before
        return refused, None

    def names(self) -> frozenset[str]:
        """Topics that members subscribe to."""
        return frozenset[str]().union(*(each.subscription.topic_names for each in self.group.members.values()))

    @rule(target=members, topics=SUBSCRIPTIONS)
    def join(self, topics: frozenset[str]) -> Reader:
        self.made += 1
        reader = Reader(f"m{self.made}", topics)
        self.readers.append(reader)
        self.beat(reader)
        return reader

    @rule(reader=members)
    def beat(self, reader: Reader) -> None:
        code, answer = self.deliver(reader.request())
        if answer is None:
            if code is ErrorCode.GROUP_MAX_SIZE_REACHED:
                assert len(self.group.members) >= self.config.group_share_max_size
            else:
                assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
                assert reader.epoch > 0, "who joins is taken in"
            reader.fenced()
            return
        assert answer.member_epoch >= reader.epoch
        reader.epoch, reader.says_everything = answer.member_epoch, False
        if answer.assignment is not None:
            reader.reads = {each.topic_id: frozenset(each.partitions) for each in answer.assignment.topic_partitions}
        assert reader.reads == self.group.members[reader.member_id].current.assigned
        names = self.names()
        assert self.group.metadata_hash == metadata_hash(names, self.image), "it has seen how the topics are now"
        assert self.group.topics.keys() == self.subscribed & self.image.topics_by_id.keys(), "it forgets no topic"
        for each in topic_ids(names, self.image):
            count = len(self.image.topics_by_id[each].partitions)
            assert self.group.topics[each].partitions == set(range(count)), "nor partitions that have come"

    @rule(reader=members, times=st.integers(1, 2))
    def answers_are_lost(self, reader: Reader, times: int) -> None:
        for _ in range(times):
            self.deliver(reader.request())
        reader.says_everything = True

    @rule(reader=members, grows=st.booleans())
    def an_append_fails(self, reader: Reader, grows: bool) -> None:
        if grows:
            self.topics_change("a", min(5, self.topics.get("a", 0) + 1))
        self.turn.refuse_with = ErrorCode.NOT_COORDINATOR
        appended = len(self.turn.log)
        self.deliver(reader.request())
        assert len(self.turn.log) == appended
        self.turn.refuse_with = None
        reader.says_everything = True

    @rule(reader=members, topics=SUBSCRIPTIONS)
    def subscribe_anew(self, reader: Reader, topics: frozenset[str]) -> None:
        reader.topics, reader.says_everything = topics, True
        self.beat(reader)

    @rule(reader=consumes(members), arrives=st.booleans())
    def leave(self, reader: Reader, arrives: bool) -> None:
        self.readers.remove(reader)
        if arrives:
            known = reader.member_id in self.group.members
            request = reader.request()
            request.member_epoch = -1
            code, _ = self.deliver(request)
            assert code is (ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID)
            assert reader.member_id not in self.group.members

    @rule(duration_ms=st.sampled_from([1000, 20_000, SESSION_MS - 1]))
    def time_passes(self, duration_ms: int) -> None:
        end_ms = self.turn.now_ms + duration_ms
        while (next_ms := self.turn.timers.next_ms()) is not None and next_ms <= end_ms:
            self.turn.now_ms = max(self.turn.now_ms, next_ms)
            key = self.turn.timers.pop_due(self.turn.now_ms)
            if key is not None:
                assert isinstance(key, ShareTimer)
                self.group.remove(self.turn, self.group.members[key.member_id], self.image)
        self.turn.now_ms = end_ms

    @rule(name=st.sampled_from(["a", "b", "c"]), count=st.integers(0, 5))
    def topics_change(self, name: str, count: int) -> None:
        if count == 0:
            if self.topics.pop(name, None) is not None:
                self.lives[name] = self.lives.get(name, 0) + 1
        else:
            self.topics[name] = max(count, self.topics.get(name, 0))
        self.sequence += 1
        self.image = image_of(self.topics, sequence=self.sequence, lives=self.lives)

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.group = self.loaded()
        self.turn.timers = type(self.turn.timers)()
        self.group.loaded(self.turn)
        self.heard_ms = dict.fromkeys(self.group.members, self.turn.now_ms)

    def loaded(self) -> ShareGroup:
        group = ShareGroup(GROUP, self.config)
        for batch in self.turn.log:
            for key, value in batch:
                group.replay(share_records.from_bytes(GROUP_RECORDS.decode_key(key), value))
        return group

    @invariant()
    def the_log_says_what_memory_says(self) -> None:
        assert remembered(self.loaded()) == remembered(self.group)

    @invariant()
    def who_is_silent_for_a_session_is_out(self) -> None:
        for member_id in self.group.members:
            assert self.heard_ms[member_id] + SESSION_MS > self.turn.now_ms

    @invariant()
    def epochs_of_members_and_targets_are_not_ahead_of_the_group(self) -> None:
        assert self.group.target_epoch <= self.group.epoch
        assert all(member.current.member_epoch <= self.group.target_epoch for member in self.group.members.values())

    def teardown(self) -> None:
        readers = self.readers[: self.config.group_share_max_size]
        for _ in range(12):
            for reader in readers:
                self.beat(reader)
            self.time_passes(10_000)
        assert set(self.group.members) == {reader.member_id for reader in readers}
        if not readers:
            assert self.group.state == "Empty"
            return
        assert self.group.target_epoch == self.group.epoch
        ids = {topic_id(name, self.lives.get(name, 0)): name for name in self.topics}
        read = {(each, index) for reader in readers for each, indexes in reader.reads.items() for index in indexes}
        wanted = {name for reader in readers for name in reader.topics}
        assert read == {
            (each, index) for each, name in ids.items() if name in wanted for index in range(self.topics[name])
        }
        for reader in readers:
            assert reader.reads == self.group.targets[reader.member_id]
            assert {ids[each] for each in reader.reads} <= reader.topics
            if reader.topics & self.topics.keys():
                assert any(reader.reads.values()), "somebody has nothing to read"


def remembered(group: ShareGroup) -> Any:
    """What a group must know again after a restart."""
    return dict(group.members), dict(group.targets), group.epoch, group.target_epoch, group.metadata_hash, group.topics


ShareGroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_members_settle_and_every_partition_is_read = ShareGroupMachine.TestCase


def test_a_topic_is_remembered_that_somebody_subscribed_to_whose_answers_were_lost() -> None:
    machine = ShareGroupMachine()
    machine.the_group_is_configured(interval_ms=0, size_max=200)
    lost = Reader("lost", frozenset({"b"}))
    machine.readers.append(lost)
    machine.answers_are_lost(reader=lost, times=1)
    machine.leave(reader=lost, arrives=False)
    machine.time_passes(SESSION_MS - 1)
    machine.time_passes(1000)
    machine.join(topics=frozenset({"a"}))
    machine.teardown()


def test_a_topic_that_came_is_remembered_by_heartbeats_of_its_subscribers_and_not_by_who_leaves() -> None:
    machine = ShareGroupMachine()
    machine.the_group_is_configured(interval_ms=0, size_max=2)
    leaves, stays = machine.join(topics=frozenset({"a"})), machine.join(topics=frozenset({"a", "b", "c"}))
    machine.topics_change(name="c", count=1)
    machine.leave(reader=leaves, arrives=True)
    machine.subscribe_anew(reader=stays, topics=frozenset({"a"}))
    machine.teardown()
