"""A classic group against everything that goes wrong: requests lost and repeated, silence, restarts, a log that cannot be written.

Members are played as clients play them. What must always hold:

- in one generation no partition is given to two members, and nobody is told of an assignment that a restart would forget;
- a committed offset is what the last allowed commit said, whatever a fenced or forgotten member tries, before and after restarts;
- what a transaction commits counts as a whole and only when it is committed;
- nobody waits for ever: whatever happened, once members are heard of no more, all that wait are answered and the group is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.coordinator.shell import Reply
from app.core.errors import ErrorCode, RequestRejected
from app.groups.classic.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup, ClassicState
from app.groups.classic.classic_member import Protocols
from app.wire.apis.join_group import JoinGroupResponse
from app.wire.apis.sync_group import SyncGroupResponse
from tests.groups.shards import GROUP, RANGE, REBALANCE_MS, SESSION_MS, ShardBench

PARTITIONS = 6
CLIENTS = 4
PROTOCOLS = (RANGE, RANGE * 2, (("roundrobin", b""), *RANGE, ("roundrobin", b"again")))
"""What clients support: all of them one protocol, some name it, or another, twice."""
clients = st.integers(0, CLIENTS - 1)


@dataclass
class Client:
    """A member as its client library plays it; the last ones are static."""

    number: int
    member_id: str = ""
    generation: int = -1
    life: int = 0
    """Of the group, when it heard of its generation."""
    joining: Reply[JoinGroupResponse] | None = None
    syncing: Reply[SyncGroupResponse] | None = None

    @property
    def instance_id(self) -> str | None:
        return f"instance-{self.number}" if self.number >= CLIENTS // 2 else None

    def forget(self) -> None:
        self.member_id = ""
        self.generation = -1


class ClassicGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = ShardBench()
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.waiting: list[Reply[Any]] = []
        self.life = 0
        """Rises when the group is forgotten, as a group is that nobody uses for long: its generations begin anew."""
        self.owners: dict[tuple[int, int, int], int] = {}
        """Which client was told of a partition, by the group's life, generation and partition."""
        self.offsets: dict[int, int] = {}
        self.pending: dict[int, dict[int, int]] = {}
        self.next_offset = 0

    # --- clients ------------------------------------------------------------------------------------------------------

    @rule(number=clients, lost=st.booleans(), fresh=st.booleans(), protocols=st.sampled_from(PROTOCOLS))
    def join(self, number: int, lost: bool, fresh: bool, protocols: Protocols = RANGE) -> None:
        """Join, or join again; ``lost``: the answer will never be read; ``fresh``: the process was started anew."""
        client = self.clients[number]
        if fresh:
            client.forget()
        try:
            reply = self.bench.join(
                client.member_id,
                instance_id=client.instance_id,
                requires_member_id=client.instance_id is None,
                protocols=protocols,
            )
        except RequestRejected as error:
            self._hear(client, error.code)
            return
        self.waiting.append(reply)
        client.joining = None if lost else reply
        client.syncing = None

    @rule(number=clients, lost=st.booleans())
    def sync(self, number: int, lost: bool) -> None:
        """Read the answer to JoinGroup and ask for the assignment, which the leader brings."""
        client = self.clients[number]
        if client.joining is None or client.joining.answer is None:
            return
        answer, client.joining = client.joining.answer, None
        if answer.member_id:
            client.member_id = answer.member_id
        if answer.error_code:
            self._hear(client, ErrorCode(answer.error_code))
            return
        client.generation, client.life = answer.generation_id, self.life
        names = sorted(member.member_id for member in answer.members)
        assignments = [
            (name, bytes(index for index in range(PARTITIONS) if index % len(names) == place))
            for place, name in enumerate(names)
        ]
        if answer.skip_assignment:
            assignments = []
        try:
            reply = self.bench.sync(client.member_id, client.generation, assignments, instance_id=client.instance_id)
        except RequestRejected as error:
            self._hear(client, error.code)
            return
        self.waiting.append(reply)
        client.syncing = None if lost else reply

    @rule(number=clients)
    def read_assignment(self, number: int) -> None:
        client = self.clients[number]
        if client.syncing is None or client.syncing.answer is None:
            return
        answer, client.syncing = client.syncing.answer, None
        if answer.error_code:
            self._hear(client, ErrorCode(answer.error_code))
            return
        for partition in answer.assignment:
            assert self.owners.setdefault((client.life, client.generation, partition), number) == number

    @rule(number=clients)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        if client.member_id:
            self._hear(client, self.bench.heartbeat(client.member_id, client.generation, client.instance_id))

    @rule(number=clients)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.member_id and GROUP in self.bench.shard.groups:
            self.bench.leave((client.member_id, client.instance_id))
            client.forget()

    @rule(mask=st.integers(1, (1 << CLIENTS) - 1), syncing=st.integers(0, (1 << CLIENTS) - 1))
    def join_together(self, mask: int, syncing: int) -> None:
        """Some clients do what they should until they have joined, and some of them go on until they have an assignment."""
        chosen = [number for number in range(CLIENTS) if mask >> number & 1]
        for number in chosen:
            self.join(number, lost=False, fresh=False)
            if self.clients[number].instance_id is None:
                self.sync(number, lost=False)  # a new member was given its id, and joins with it
                if self.clients[number].joining is None and self.clients[number].syncing is None:
                    self.join(number, lost=False, fresh=False)
        self.bench.advance(3000)
        self.bench.advance(6000)
        for number in chosen:
            if syncing >> number & 1:
                self.sync(number, lost=False)
        for number in chosen:
            self.read_assignment(number)

    def _hear(self, client: Client, code: ErrorCode) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.forget()

    # --- offsets ------------------------------------------------------------------------------------------------------

    @rule(number=clients, partition=st.integers(0, PARTITIONS - 1), stale=st.integers(0, 2))
    def commit(self, number: int, partition: int, stale: int) -> None:
        """A member, or one that no longer is, or of an older generation, commits."""
        client = self.clients[number]
        generation = client.generation - stale
        allowed = self._may_commit(client.member_id, generation, client.instance_id)
        self.next_offset += 1
        code = self.bench.commit(
            "t",
            partition,
            self.next_offset,
            member_id=client.member_id,
            generation=generation,
            instance_id=client.instance_id if client.member_id else None,
        )
        assert (code is ErrorCode.NONE) == (allowed and self.bench.turn.refuse_with is None), code
        if code is ErrorCode.NONE:
            self.offsets[partition] = self.next_offset

    def _may_commit(self, member_id: str, generation: int, instance_id: str | None) -> bool:
        """Written plainly, as the oracle of ``check_offset_commit``."""
        group = self.bench.shard.groups.get(GROUP)
        if group is None or group.is_empty:
            return generation < 0
        assert isinstance(group, ClassicGroup)
        member = group.members.get(member_id)
        return (
            member is not None
            and member.instance_id == instance_id
            and generation == group.generation
            and group.state is not ClassicState.COMPLETING_REBALANCE
        )

    @rule(producer=st.integers(1, 2), partition=st.integers(0, PARTITIONS - 1))
    def commit_in_transaction(self, producer: int, partition: int) -> None:
        self.next_offset += 1
        code = self.bench.commit("t", partition, self.next_offset, producer_id=producer)
        assert code in (ErrorCode.NONE, self.bench.turn.refuse_with)
        if code is ErrorCode.NONE:
            self.pending.setdefault(producer, {})[partition] = self.next_offset

    @rule(producer=st.integers(1, 2), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        self.bench.end_transaction(producer, commit=commit)
        for partition, offset in self.pending.pop(producer, {}).items():
            if commit:
                # Offsets of this test rise with every commit: the greater one was written later.
                self.offsets[partition] = max(self.offsets.get(partition, 0), offset)

    # --- what happens to the coordinator ------------------------------------------------------------------------------

    @rule(delay_ms=st.sampled_from([1, 1000, 3000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def wait(self, delay_ms: int) -> None:
        self.bench.advance(delay_ms)

    @rule()
    def restart(self) -> None:
        before = dict(self.bench.committed())
        self.bench.restart()
        assert self.bench.committed() == before

    @precondition(lambda self: self.bench.turn.refuse_with is None)
    @rule()
    def break_log(self) -> None:
        self.bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE

    @precondition(lambda self: self.bench.turn.refuse_with is not None)
    @rule()
    def mend_log(self) -> None:
        self.bench.turn.refuse_with = None

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        assert self.bench.committed() == {("t", partition): offset for partition, offset in self.offsets.items()}
        for partition in range(PARTITIONS):
            assert self.bench.shard.offsets.is_pending(GROUP, "t", partition) == any(
                partition in pending for pending in self.pending.values()
            )

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.bench.shard.groups.get(GROUP)
        if group is None:
            self.life += 1
            return
        assert isinstance(group, ClassicGroup)
        assert (not group.members) == group.is_empty or group.state is ClassicState.PREPARING_REBALANCE
        assert group.leader is None or group.leader in group.members
        assert group.pending_syncs <= set(group.members)
        assert not group.pending_joins & set(group.members)
        sent = sum(member.sent_bytes for member in group.members.values()) + sum(map(len, group.pending_joins))
        assert group.sent_bytes == sent
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            assert group.leader is not None
            assert all(member.join is None for member in group.members.values())
        if group.state is not ClassicState.COMPLETING_REBALANCE:
            assert all(member.sync is None for member in group.members.values())
        if group.state is ClassicState.STABLE:
            owned = [partition for member in group.members.values() for partition in member.assignment]
            assert len(owned) == len(set(owned))

    def teardown(self) -> None:
        """Everybody falls silent. Whatever waited is answered, and nobody is left."""
        self.bench.turn.refuse_with = None
        for _ in range(3):
            self.bench.advance(NEW_MEMBER_JOIN_TIMEOUT_MS + REBALANCE_MS + SESSION_MS)
        assert all(reply.answer is not None for reply in self.waiting)
        group = self.bench.shard.groups.get(GROUP)
        assert group is None or group.is_empty
        self.offsets_are_what_was_committed()


class TestClassicGroup(ClassicGroupModel.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestClassicGroupLong(ClassicGroupModel.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=1500, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
    )
