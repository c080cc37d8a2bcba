"""Offsets that members of a consumer group commit (KIP-848), against everything that goes wrong.

Members come, go, fall silent and miss answers, commit with the epoch that they have, had or will have, and within transactions;
strangers and nobody commit too; the group or its offsets are deleted, over several turns; appends fail, and the coordinator starts
again. What must always hold:

- a commit is taken exactly from whom Kafka takes it, with Kafka's code for who is refused, and a refused one changes nothing;
- what is committed is what the last commit said that was taken, and what a transaction commits counts when that is committed;
- a coordinator that starts from the log as it was after any record knows what was known then: no more, and no less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex
from app.groups.consumer.consumer import ClientInfo, check_heartbeat
from app.groups.consumer.subscriptions import TopicPattern
from app.groups.group import GroupType
from app.groups.offsets import deletion
from app.groups.shard import GroupShard
from tests.groups.bench import image_of, topic_id
from tests.groups.consumers import Consumer
from tests.groups.shards import CONFIG, GROUP, ShardBench

TOPIC = "t"
MEMBERS = ("a", "b")
PRODUCERS = (7,)
FENCING = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
SILENCE_MS = 50_000
"""Longer than a session."""

TOPIC_ID = topic_id(TOPIC)
members = st.sampled_from(MEMBERS)
partitions = st.integers(0, 1)
producers = st.sampled_from((None, None, *PRODUCERS))


class OffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.few_at_once = patch.object(deletion, "TOMBSTONES_AT_ONCE", 1)
        self.few_at_once.start()
        self.bench = ShardBench(replace(CONFIG, group_consumer_assignment_interval_ms=0))
        self.bench.image = image_of({TOPIC: 2})
        self.clients = {name: Consumer(name, {TOPIC}) for name in MEMBERS}
        self.epochs: dict[str, int] = {}
        """Of members, as the coordinator has told them last, heard or not."""
        self.given: dict[str, dict[int, int]] = {}
        """By member: partitions that it has or is about to give up, and the epoch at which it was given each."""
        self.gives_up: dict[str, frozenset[int]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        """By producer: offsets, and the number of the commit."""
        self.commits: dict[tuple[str, int], int] = {}
        """The number of the commit that each offset is from."""
        self.next_offset = 0
        self.past: list[tuple[int, dict[tuple[str, int], int], set[int]]] = []
        """Batches in the log, with what was committed and which producers had something pending then."""

    # --- members ------------------------------------------------------------------------------------------------------

    @rule(name=members, lost=st.booleans(), changes=st.booleans())
    def beat(self, name: str, lost: bool, changes: bool) -> None:
        """A heartbeat, the first one too; ``lost``: the answer is; ``changes``: everybody is to be assigned anew."""
        client = self.clients[name]
        if changes:
            client.topics = {TOPIC} if client.topics == {TOPIC, "u"} else {TOPIC, "u"}
            client.changed = True
        request = replace(client.request(), group_id=GROUP)
        check_heartbeat(request, 1, CONFIG.group_consumer_assignors)
        given = self.given.get(name, {}) if name in self.joined else {}
        try:
            answer = self.bench.do(lambda shard, turn: shard.consumer_heartbeat(turn, request, ClientInfo("c", "/h")))
        except RequestRejected as error:
            if error.code not in FENCING:
                raise
            client.fenced()
            return
        assert not isinstance(answer, TopicPattern)
        self.epochs[name] = answer.member_epoch
        group = self.bench.shard.consumer_group(GROUP)
        current, nothing = group.members[name].current, frozenset[int]()
        has, gives_up = (each.get(TOPIC_ID, nothing) for each in (current.assigned, current.pending_revocation))
        kept = {each: epoch for each, epoch in given.items() if each not in self.gives_up.get(name, ())}
        self.given[name] = {each: given[each] for each in gives_up}
        self.given[name] |= {each: kept.get(each, answer.member_epoch) for each in has}
        self.gives_up[name] = gives_up
        if lost:
            client.changed = True
        else:
            client.hear(answer)

    @rule(name=members)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        if client.epoch:
            request = replace(client.request(), group_id=GROUP, member_epoch=-1)
            self.bench.code(lambda shard, turn: shard.consumer_heartbeat(turn, request, ClientInfo("c", "/h")))
            client.fenced()

    @rule()
    def nobody_is_heard_of(self) -> None:
        self.bench.advance(SILENCE_MS)
        assert not self.joined

    # --- commits ------------------------------------------------------------------------------------------------------

    @property
    def joined(self) -> set[str]:
        group = self.bench.shard.groups.get(GROUP)
        return set() if group is None or group.group_type is GroupType.CLASSIC else set(group.members)  # type: ignore[attr-defined]

    def expected(self, partition: int, member_id: str, epoch: int, producer: int | None, version: int) -> ErrorCode:
        """Kafka's code for a commit."""
        transactional = producer is not None
        stale = ErrorCode.ILLEGAL_GENERATION if transactional else ErrorCode.STALE_MEMBER_EPOCH
        if GROUP not in self.bench.shard.groups:
            missing = (
                ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 and not transactional else ErrorCode.ILLEGAL_GENERATION
            )
            return ErrorCode.NONE if epoch < 0 else missing
        if (epoch < 0 and not self.joined) or (transactional and epoch == -1 and not member_id):
            return ErrorCode.NONE
        if member_id not in self.joined:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < 9 and not transactional:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == self.epochs[member_id]:
            return ErrorCode.NONE
        since = self.given[member_id].get(partition)
        return ErrorCode.NONE if since is not None and since <= epoch < self.epochs[member_id] else stale

    def commit(self, partition: int, member_id: str, epoch: int, producer: int | None, version: int) -> None:
        self.next_offset += 1
        expected = self.expected(partition, member_id, epoch, producer, version)
        appended = len(self.bench.turn.batches)
        code = self.bench.commit(
            TOPIC,
            partition,
            self.next_offset,
            member_id=member_id,
            generation=epoch,
            producer_id=producer,
            api_version=version,
        )
        assert code is expected
        if code is not ErrorCode.NONE:
            assert len(self.bench.turn.batches) == appended
            return
        place = (TOPIC, partition)
        if producer is None:
            self.offsets[place], self.commits[place] = self.next_offset, self.next_offset
        else:
            self.pending.setdefault(producer, {})[place] = (self.next_offset, self.next_offset)

    @rule(
        name=members,
        partition=partitions,
        shift=st.sampled_from((0, 0, 0, -1, 1)),
        producer=producers,
        version=st.sampled_from((8, 9, 10, 10)),
    )
    def member_commits(self, name: str, partition: int, shift: int, producer: int | None, version: int) -> None:
        """With the epoch that it knows, or one beside it."""
        self.commit(partition, name, self.clients[name].epoch + shift, producer, version)

    @rule(partition=partitions, epoch=st.sampled_from((-1, 1)), producer=producers, version=st.sampled_from((8, 10)))
    def a_stranger_commits(self, partition: int, epoch: int, producer: int | None, version: int) -> None:
        self.commit(partition, "stranger", epoch, producer, version)

    @rule(partition=partitions, producer=producers, version=st.sampled_from((8, 10)))
    def nobody_commits(self, partition: int, producer: int | None, version: int) -> None:
        self.commit(partition, "", -1, producer, version)

    @rule(producer=st.sampled_from(PRODUCERS), committed=st.booleans())
    def a_transaction_ends(self, producer: int, committed: bool) -> None:
        self.bench.end_transaction(producer, commit=committed)
        for place, (offset, number) in self.pending.pop(producer, {}).items():
            if committed and self.commits.get(place, 0) < number:
                self.offsets[place], self.commits[place] = offset, number

    @rule(name=members)
    def a_commit_cannot_be_written(self, name: str) -> None:
        epoch = self.clients[name].epoch
        if self.expected(0, name, epoch, None, 10) is ErrorCode.NONE:
            self.bench.turn.refuse_with = ErrorCode.NOT_COORDINATOR
            code = self.bench.commit(TOPIC, 0, 1 << 40, member_id=name, generation=epoch, api_version=10)
            self.bench.turn.refuse_with = None
            assert code is ErrorCode.NOT_COORDINATOR

    # --- deletion -----------------------------------------------------------------------------------------------------

    @rule()
    def the_group_is_deleted(self) -> None:
        expected = ErrorCode.NONE
        if GROUP not in self.bench.shard.groups:
            expected = ErrorCode.GROUP_ID_NOT_FOUND
        elif self.joined:
            expected = ErrorCode.NON_EMPTY_GROUP
        assert self.bench.code(lambda shard, turn: shard.delete_group(turn, GROUP)) is expected
        if expected is ErrorCode.NONE:
            self.offsets, self.commits, self.pending = {}, {}, {}

    @rule(gone=st.frozensets(partitions, min_size=1))
    def offsets_are_deleted(self, gone: frozenset[int]) -> None:
        group = self.bench.shard.groups.get(GROUP)
        if group is None:
            code = self.bench.code(lambda shard, turn: shard.delete_offsets(turn, GROUP, [(TOPIC, gone)]))
            assert code is ErrorCode.GROUP_ID_NOT_FOUND
            return
        ((_, code),) = self.bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [(TOPIC, gone)]))
        assert code is (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if self.joined else ErrorCode.NONE)
        if code is ErrorCode.NONE:
            for known in (self.offsets, self.commits, *self.pending.values()):
                for partition in gone:
                    known.pop((TOPIC, partition), None)
            self.pending = {producer: offsets for producer, offsets in self.pending.items() if offsets}

    @rule()
    def a_deletion_goes_on(self) -> None:
        self.bench.advance(0)

    # --- restarts -----------------------------------------------------------------------------------------------------

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.bench.restart()

    @rule(which=st.integers(0))
    def a_coordinator_starts_from_an_earlier_log(self, which: int) -> None:
        if not self.past:
            return
        count, offsets, open_producers = self.past[which % len(self.past)]
        shard = GroupShard(PartitionIndex(0), lambda: self.bench.config, self.bench._rng, lambda: self.bench.image)
        for each in self.bench.turn.batches[:count]:
            shard.load(each)
        shard.loaded(type(self.bench.turn)())
        assert committed(shard) == offsets
        assert shard.offsets.has_pending(GROUP) is bool(open_producers)

    @invariant()
    def what_is_committed_is_what_was_said(self) -> None:
        assert self.bench.committed() == self.offsets
        assert self.bench.shard.offsets.has_pending(GROUP) is bool(self.pending)
        self.past.append((len(self.bench.turn.batches), dict(self.offsets), set(self.pending)))

    @invariant()
    def members_are_in_the_epoch_that_they_were_told(self) -> None:
        group: Any = self.bench.shard.groups.get(GROUP)
        assert {name: group.members[name].epoch for name in self.joined} == {
            name: self.epochs[name] for name in self.joined
        }

    def teardown(self) -> None:
        self.few_at_once.stop()


def committed(shard: GroupShard) -> dict[tuple[str, int], int]:
    return {
        (topic, partition): found.offset
        for topic, found_in in shard.offsets.topics(GROUP).items()
        for partition, found in found_in.items()
    }


OffsetsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_offsets_are_committed_by_members_in_their_epoch_and_by_nobody_else = OffsetsMachine.TestCase
