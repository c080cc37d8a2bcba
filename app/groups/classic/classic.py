"""A group of the classic protocol: members join, and one of them assigns the partitions to all (KIP-62 and its successors).

The states and their transitions::

    Empty ──first join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──leader's SyncGroup──► Stable
      ▲                        │   ▲                                                │                                    │
      └────no member is left───┘   └──────── a member joins anew, leaves, changes its mind, or is silent ────────────────┘

Joining is a barrier. Every JoinGroup waits until all members have joined, or until the rebalance time-out has passed. Then the
generation rises, and the leader gets all subscriptions. The leader's SyncGroup has all assignments. They are written to the log
before any member gets its own. Two details save rebalances. An empty group waits a little for more members before its first
rebalance (KIP-134). A **static member** (with ``group.instance.id``, KIP-345) that returns within its session time-out keeps
its assignment, and only its member id changes; a static leader is told to skip the assignment (KIP-814).

The log has only the result of a rebalance, as Kafka's GroupMetadata record: generation, protocol, leader, members with their
assignments. A group that is loaded with members is Stable, and each member must send a request within its session time-out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.configs import BrokerConfig
from app.coordinator.records import GROUP_RECORDS, CoordinatorRecord
from app.coordinator.schemas.classic_group import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import GROUP_PENDING_MEMBERS_MAX
from app.groups.classic.classic_member import (
    CONSUMER_PROTOCOL,
    NO_MEMBER,
    ClassicDue,
    ClassicMember,
    ClassicTimer,
    Join,
    Protocols,
    Sync,
    protocol_bytes,
    topics_of_all,
)
from app.groups.group import GroupType
from app.groups.memory import MEMBER_BYTES, PENDING_BYTES, Account
from app.wire.apis.join_group import JoinGroupResponse, JoinGroupResponseMember
from app.wire.apis.sync_group import SyncGroupResponse
from app.wire.primitives import STRING_BYTES_MAX

if TYPE_CHECKING:
    from app.coordinator.shell import Reply, Turn

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Session time-out during the first JoinGroup of a member, because its client sends no heartbeats then (KAFKA-7610)."""

AWAY_WAIT_MS_MIN: Final = 1_000
"""Minimum wait if all static members are away, also with shorter time-outs: more frequent checks bring no member back."""

GROUP_MEMBERS_MAX: Final = 5_000
"""Members of a classic group, also if ``group.max.size`` is larger. Generation, members and record change together, so the end of a
rebalance, of a SyncGroup, and of all sessions at once is one turn of the loop: 2 to 4 µs for each member (INV-15). So many members
with 140 bytes of subscription and assignment do not fit into the group's record, at the default of ``max.message.bytes``."""

GROUP_METADATA_VERSION: Final = 3
"""Version of group records. Kafka 4 writes the same."""


def members_max(config: BrokerConfig) -> int:
    """How many members a classic group may have."""
    return min(config.group_max_size, GROUP_MEMBERS_MAX)


class ClassicState(StrEnum):
    """Kafka's names of states, as in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroup:
    """One group. Every method that changes it takes the event's turn, for records, timers and responses."""

    __slots__ = (
        "_account",
        "_config",
        "_counted_bytes",
        "_grows",
        "_initial_left_ms",
        "_rng",
        "_since_ms",
        "_static",
        "_supported",
        "_was_empty",
        "generation",
        "group_id",
        "leader",
        "members",
        "pending_joins",
        "pending_syncs",
        "protocol_name",
        "protocol_type",
        "sent_bytes",
        "state",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, config: BrokerConfig, rng: random.Random, now_ms: int) -> None:
        self.group_id = group_id
        self._config = config
        self._rng = rng
        self.state = ClassicState.EMPTY
        self._since_ms = now_ms
        """Time of the last change of state."""
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}
        """Member id by instance id."""
        self._supported: Counter[str] = Counter()
        """Number of members that support each protocol."""
        self.pending_joins: set[str] = set()
        """Member ids that were given to clients that have not joined yet (KIP-394)."""
        self.sent_bytes = 0
        """Bytes of the clients' requests that members and future members keep (``memory.py``)."""
        self._account: Account | None = None
        self._counted_bytes = 0
        """Bytes of this group in the account."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not requested their assignment."""
        self.subscribed_topics: frozenset[str] | None = None
        """Subscribed topics of all members; None if unknown."""
        self._was_empty = False
        """Whether the rebalance in preparation is the first since the group was empty."""
        self._grows = False
        """Whether a member joined since the wait for more members was last extended."""
        self._initial_left_ms = 0

    # --- Group --------------------------------------------------------------------------------------------------------

    @property
    def group_type(self) -> GroupType:
        return GroupType.CLASSIC

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def kept_bytes(self) -> int:
        """Memory that members and future members keep."""
        return self.sent_bytes + MEMBER_BYTES * len(self.members) + PENDING_BYTES * len(self.pending_joins)

    def count_in(self, account: Account | None) -> None:
        """From now on this account, and no other, counts the group's memory; None for no account."""
        if self._account is not None:
            self._account.bytes -= self._counted_bytes
        self._account, self._counted_bytes = account, 0
        self._count()

    def _count(self) -> None:
        """Bring the account up to date. Call it when the group's memory may have changed."""
        if self._account is not None:
            kept_bytes = self.kept_bytes
            self._account.bytes += kept_bytes - self._counted_bytes
            self._counted_bytes = kept_bytes

    @property
    def since_ms(self) -> int:
        """Time of the last change of state; -1 if unknown."""
        return self._since_ms

    def subscribes_to(self, topic: str) -> bool:
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, *, transactional: bool, api_version: int
    ) -> None:
        """Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS."""
        del api_version
        if member_epoch < 0 and self.state is ClassicState.EMPTY:
            return  # no member's group: a consumer that assigns itself partitions may commit freely
        if member_epoch >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if member_epoch != self.generation:
                raise RequestRejected(
                    ErrorCode.ILLEGAL_GENERATION, f"Generation {member_epoch}; the group is in {self.generation}."
                )
        elif not transactional and self.state is not ClassicState.EMPTY:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, "The group has members, and this is none of them.")
        if not transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise RequestRejected(ErrorCode.REBALANCE_IN_PROGRESS, "The group is being assigned its partitions anew.")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Everybody may read the offsets."""

    def loaded(self, turn: Turn) -> None:
        """Give loaded members a session time-out for their next request. If there are too many members, they must rejoin."""
        for member in self.members.values():
            self.keep_alive(turn, member.member_id)
        if len(self.members) > members_max(self._config):
            self._prepare_rebalance(turn)

    # --- members ------------------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Check that this is a member, and the present owner of its instance id.

        Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no static member {instance_id}.")
            if known != member_id:
                raise RequestRejected(
                    ErrorCode.FENCED_INSTANCE_ID, f"Another has joined as static member {instance_id}."
                )
        if member_id not in self.members:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no member {member_id}.")

    def member_that_joins(self, member_id: str, instance_id: str | None) -> ClassicMember | None:
        """The member that a JoinGroup comes from; None if it is to become one. A static member may come without its member id."""
        if not member_id and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        return self.members.get(member_id)

    def keep_alive(self, turn: Turn, member_id: str) -> None:
        """Restart a member's session, because it sent a request. Does nothing for an unknown member."""
        member = self.members.get(member_id)
        if member is not None:
            turn.set_timer(member.timer, member.session_timeout_ms)

    def committed(self, turn: Turn, member_id: str) -> None:
        """A member has committed offsets. This counts like a heartbeat."""
        if self.state is ClassicState.STABLE or self.state is ClassicState.PREPARING_REBALANCE:
            self.keep_alive(turn, member_id)

    def _add(self, member: ClassicMember) -> None:
        if not self.members or self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._supported.update(member.protocol_names)
        self.sent_bytes += member.sent_bytes
        self._forget_pending(member.member_id)
        self._count()

    def _remove(self, turn: Turn, member_id: str) -> None:
        """Remove a member, or a future member, from the group. If it was the leader, another member becomes leader."""
        self._forget_pending(member_id)
        self.pending_syncs.discard(member_id)
        turn.cancel_timer(ClassicTimer(ClassicDue.MEMBER, self.group_id, member_id))
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.sent_bytes -= member.sent_bytes
        self._count()
        if member.join is not None:
            self._answer_join(turn, member, refused_join(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.sync is not None:
            self._answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        self._unsupport(member)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _forget_pending(self, member_id: str) -> None:
        """A member id is not waited for, if it was."""
        if member_id in self.pending_joins:
            self.pending_joins.remove(member_id)
            self.sent_bytes -= len(member_id)
            self._count()

    def _unsupport(self, member: ClassicMember) -> None:
        """A member is gone, or its supported protocols have changed."""
        for name in member.protocol_names:
            self._supported[name] -= 1
            if not self._supported[name]:
                del self._supported[name]  # unused names would pile up

    def _set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._unsupport(member)
        self.sent_bytes += protocol_bytes(protocols) - protocol_bytes(member.protocols)
        self._count()
        member.protocols = protocols
        self._supported.update(member.protocol_names)

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could join, so that all members still share a protocol."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self._supported[name] == count for name, _ in protocols)

    def _select_protocol(self) -> str:
        """The protocol that most members prefer, among those that all members support."""
        count = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self._supported[name] == count)] += 1
        return votes.most_common(1)[0][0]

    @property
    def _all_have_joined(self) -> bool:
        return not self.pending_joins and all(member.join is not None for member in self.members.values())

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _enter(self, turn: Turn, state: ClassicState) -> None:
        self.state = state
        self._since_ms = turn.now_ms

    # --- joining ------------------------------------------------------------------------------------------------------

    def join(self, turn: Turn, join: Join, reply: Reply[JoinGroupResponse]) -> None:
        """A JoinGroup of a new member, of a client that got a member id, or of a rejoining member.

        The response comes when all members of the rebalance have joined, or at once if there is no rebalance.
        """
        member_id = join.member_id
        if not self._has_room(member_id):
            self._remove(turn, member_id)
            turn.answer(reply, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not self._supports(join.protocol_type, join.protocols):
            turn.answer(reply, refused_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_new(turn, join, reply)
        elif member_id in self.pending_joins:
            if join.instance_id is not None:
                turn.answer(reply, refused_join(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            else:
                self._add_and_rebalance(turn, join, member_id, reply)
        else:
            try:
                self.check_member(member_id, join.instance_id)
            except RequestRejected as error:
                turn.answer(reply, refused_join(error.code, member_id))
            else:
                self._join_again(turn, join, self.members[member_id], reply)

    def _has_room(self, member_id: str) -> bool:
        most = members_max(self._config)
        match self.state:
            case ClassicState.EMPTY:
                return True
            case ClassicState.PREPARING_REBALANCE:
                member = self.members.get(member_id)
                if member is not None and member.join is not None:
                    return True
                if len(self.members) < most:
                    return True
                return sum(member.join is not None for member in self.members.values()) < most
            case _:
                return member_id in self.members or len(self.members) < most

    def _join_new(self, turn: Turn, join: Join, reply: Reply[JoinGroupResponse]) -> None:
        member_id = new_member_id(join.client_id if join.instance_id is None else join.instance_id, self._rng)
        if join.instance_id is not None:
            known = self._static.get(join.instance_id)
            if known is None:
                self._add_and_rebalance(turn, join, member_id, reply)
            else:
                self._replace_static(turn, join, self.members[known], member_id, reply)
        elif join.requires_member_id:
            if len(self.pending_joins) >= GROUP_PENDING_MEMBERS_MAX:
                turn.answer(reply, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            self.pending_joins.add(member_id)
            self.sent_bytes += len(member_id)
            self._count()
            turn.set_timer(ClassicTimer(ClassicDue.MEMBER, self.group_id, member_id), join.session_timeout_ms)
            turn.answer(reply, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_and_rebalance(turn, join, member_id, reply)

    def _add_and_rebalance(self, turn: Turn, join: Join, member_id: str, reply: Reply[JoinGroupResponse]) -> None:
        member = ClassicMember(
            self.group_id,
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            join.protocols,
        )
        member.is_new = True
        member.join = reply
        if self.state is ClassicState.PREPARING_REBALANCE and self._was_empty:
            self._grows = True
        if not self.members:
            self.protocol_type = join.protocol_type
        self._add(member)
        # Its client does not send heartbeats before its first JoinGroup is answered.
        turn.set_timer(member.timer, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance(turn)

    def _join_again(self, turn: Turn, join: Join, member: ClassicMember, reply: Reply[JoinGroupResponse]) -> None:
        unchanged = member.protocols == join.protocols
        match self.state:
            case ClassicState.COMPLETING_REBALANCE if unchanged:
                # The answer of this generation was lost on its way.
                turn.answer(reply, self._joined(member))
            case ClassicState.STABLE if unchanged and member.member_id != self.leader:
                turn.answer(reply, self._joined(member))
            case ClassicState.EMPTY:
                turn.answer(reply, refused_join(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
            case _:
                self._update(turn, join, member, reply)
                self._rebalance(turn)

    def _update(self, turn: Turn, join: Join, member: ClassicMember, reply: Reply[JoinGroupResponse] | None) -> None:
        if member.join is not None and reply is not None:
            # A client that asks again has given up the connection that it asked on first.
            self._answer_join(turn, member, refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._set_protocols(member, join.protocols)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        member.join = reply

    def _replace_static(
        self, turn: Turn, join: Join, old: ClassicMember, member_id: str, reply: Reply[JoinGroupResponse]
    ) -> None:
        """A static member has returned with a new member id. Clients that still use the old id are fenced."""
        replaced = ClassicMember(
            self.group_id,
            member_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            join.protocols,
            old.assignment,
        )
        if self.state is ClassicState.STABLE and self._keeps_protocol(old, join.protocols):
            # No rebalance: the assignment goes on under the new id, once the log says so.
            members = [replaced if member is old else member for member in self.members.values()]
            leader = member_id if self.leader == old.member_id else self.leader
            try:
                turn.append([self._record(members, leader, turn.now_ms)])
            except RequestRejected as error:
                turn.answer(reply, refused_join(error.code))
                return
            old_leader = self.leader
            self._swap(turn, old, replaced)
            self.keep_alive(turn, member_id)
            answer = self._joined(replaced)
            if join.can_skip_assignment:
                answer.skip_assignment = self.leader == member_id
            else:
                # An old client that hears that it leads would assign; it is told of the id that it does not have.
                answer.leader = old_leader or ""
                answer.members = []
            turn.answer(reply, answer)
            return
        self._swap(turn, old, replaced)
        self.keep_alive(turn, member_id)
        replaced.join = reply
        if self.state is ClassicState.COMPLETING_REBALANCE:
            self._prepare_rebalance(turn)
        else:
            self._rebalance(turn)

    def _keeps_protocol(self, member: ClassicMember, protocols: Protocols) -> bool:
        """Whether the selected protocol stays the same if a member changes to these protocols."""
        before = member.protocols
        self._set_protocols(member, protocols)
        try:
            count = len(self.members)
            return any(self._supported[name] == count for name, _ in protocols) and (
                self._select_protocol() == self.protocol_name
            )
        finally:
            self._set_protocols(member, before)

    def _swap(self, turn: Turn, old: ClassicMember, new: ClassicMember) -> None:
        """Replace a static member by its new member id. Waiting requests of the old id get FENCED_INSTANCE_ID."""
        if old.join is not None:
            self._answer_join(turn, old, refused_join(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        if old.sync is not None:
            self._answer_sync(turn, old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        turn.cancel_timer(old.timer)
        self._unsupport(old)
        self._supported.update(new.protocol_names)
        self.sent_bytes += new.sent_bytes - old.sent_bytes
        self._count()
        self.members = {
            member.member_id: member
            for member in (new if member is old else member for member in self.members.values())
        }
        assert new.instance_id is not None
        self._static[new.instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.remove(old.member_id)
            self.pending_syncs.add(new.member_id)

    # --- rebalancing --------------------------------------------------------------------------------------------------

    def _rebalance(self, turn: Turn) -> None:
        """After a change: begin a rebalance, or check whether the present one now has all members."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
            self._prepare_rebalance(turn)
        elif not self._was_empty and self._all_have_joined:
            self._complete_join(turn)

    def _prepare_rebalance(self, turn: Turn) -> None:
        """Ask all members to rejoin. They learn this with their next heartbeat."""
        if self.state is ClassicState.COMPLETING_REBALANCE:
            self._forget_assignments(turn, ErrorCode.REBALANCE_IN_PROGRESS)
        self.pending_syncs.clear()
        turn.cancel_timer(ClassicTimer(ClassicDue.SYNC, self.group_id))
        self._was_empty = self.state is ClassicState.EMPTY
        self._enter(turn, ClassicState.PREPARING_REBALANCE)
        if self._was_empty:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._grows = False
            self._initial_left_ms = max(self._rebalance_timeout_ms - delay_ms, 0)
            turn.set_timer(ClassicTimer(ClassicDue.JOIN, self.group_id), delay_ms)
        elif self._all_have_joined:
            self._complete_join(turn)
        else:
            turn.set_timer(ClassicTimer(ClassicDue.JOIN, self.group_id), self._rebalance_timeout_ms)

    def _forget_assignments(self, turn: Turn, code: ErrorCode) -> None:
        for member in self.members.values():
            member.assignment = b""
            if member.sync is not None:
                self._answer_sync(turn, member, SyncGroupResponse(error_code=code))
                self.keep_alive(turn, member.member_id)

    def _complete_join(self, turn: Turn) -> None:
        """All members have joined, or the time-out has passed: the next generation begins.

        Dynamic members that did not join are removed. Static members keep their place until their session ends.
        """
        turn.cancel_timer(ClassicTimer(ClassicDue.JOIN, self.group_id))
        late = [member for member in self.members.values() if member.join is None and member.instance_id is None]
        for member in late:
            self._remove(turn, member.member_id)
        if self.members and not self._elect_joined_leader():
            # Only static members are left, and all are away: wait for them a while longer.
            wait_ms = max(self._rebalance_timeout_ms, AWAY_WAIT_MS_MIN)
            turn.set_timer(ClassicTimer(ClassicDue.JOIN, self.group_id), wait_ms)
            return
        self.generation += 1
        self.pending_syncs.clear()
        self._was_empty = False
        if not self.members:
            self.protocol_name = None
            self.leader = None
            self._enter(turn, ClassicState.EMPTY)
            self.subscribed_topics = frozenset() if self.protocol_type == CONSUMER_PROTOCOL else None
            self._remember_empty(turn)
            return
        self.protocol_name = self._select_protocol()
        self.subscribed_topics = self._subscriptions()
        self._enter(turn, ClassicState.COMPLETING_REBALANCE)
        for member in self.members.values():
            if member.join is not None:
                self._answer_join(turn, member, self._joined(member))
            member.is_new = False
            self.keep_alive(turn, member.member_id)
            self.pending_syncs.add(member.member_id)
        turn.set_timer(ClassicTimer(ClassicDue.SYNC, self.group_id), self._rebalance_timeout_ms)

    def _elect_joined_leader(self) -> bool:
        """Choose a leader that has joined; False if no member has joined."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if leader is not None and leader.join is not None:
            return True
        self.leader = next((member.member_id for member in self.members.values() if member.join is not None), None)
        return self.leader is not None

    def _remember_empty(self, turn: Turn) -> None:
        """Write that the group is empty. If that fails, a later load finds members that soon count as silent."""
        try:
            turn.append([self._record((), None, turn.now_ms)])
        except RequestRejected:
            return

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        return topics_of_all(member.metadata(self.protocol_name) for member in self.members.values())

    def _joined(self, member: ClassicMember) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponseMember(each.member_id, each.instance_id, each.metadata(self.protocol_name))
                for each in self.members.values()
            ]
            if member.member_id == self.leader
            else [],
        )

    def _answer_join(self, turn: Turn, member: ClassicMember, answer: JoinGroupResponse) -> None:
        assert member.join is not None
        turn.answer(member.join, answer)
        member.join = None

    # --- syncing ------------------------------------------------------------------------------------------------------

    def sync(self, turn: Turn, sync: Sync, reply: Reply[SyncGroupResponse]) -> None:
        """A SyncGroup of a member. The leader's has the assignments; the others wait for it.

        Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS.
        """
        self.check_member(sync.member_id, sync.instance_id)
        if sync.generation != self.generation:
            raise RequestRejected(
                ErrorCode.ILLEGAL_GENERATION, f"Generation {sync.generation}; the group is in {self.generation}."
            )
        if (sync.protocol_type is not None and sync.protocol_type != self.protocol_type) or (
            sync.protocol_name is not None and sync.protocol_name != self.protocol_name
        ):
            raise RequestRejected(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "Another protocol than the one that was selected."
            )
        member = self.members[sync.member_id]
        match self.state:
            case ClassicState.EMPTY:
                raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, "The group has no members.")
            case ClassicState.PREPARING_REBALANCE:
                raise RequestRejected(ErrorCode.REBALANCE_IN_PROGRESS, "The group waits for its members to join.")
            case ClassicState.STABLE:
                self._has_synced(turn, member)
                turn.answer(reply, self._synced(member))
            case ClassicState.COMPLETING_REBALANCE:
                self._has_synced(turn, member)
                if member.sync is not None:
                    self._answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync = reply
                if member.member_id == self.leader:
                    self._assign(turn, dict(sync.assignments))

    def _has_synced(self, turn: Turn, member: ClassicMember) -> None:
        self.pending_syncs.discard(member.member_id)
        if not self.pending_syncs:
            turn.cancel_timer(ClassicTimer(ClassicDue.SYNC, self.group_id))

    def _assign(self, turn: Turn, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignments, and then respond to all members. If the write fails, all members must rejoin."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        try:
            turn.append([self._record(self.members.values(), self.leader, turn.now_ms)])
        except RequestRejected as error:
            self._forget_assignments(turn, error.code)
            self._prepare_rebalance(turn)
            return
        self._enter(turn, ClassicState.STABLE)
        for member in self.members.values():
            if member.sync is not None:
                self._answer_sync(turn, member, self._synced(member))
                self.keep_alive(turn, member.member_id)

    def _synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _answer_sync(self, turn: Turn, member: ClassicMember, answer: SyncGroupResponse) -> None:
        assert member.sync is not None
        turn.answer(member.sync, answer)
        member.sync = None

    # --- heartbeats, leaving, time ------------------------------------------------------------------------------------

    def heartbeat(self, turn: Turn, member_id: str, instance_id: str | None, generation: int) -> None:
        """A heartbeat of a member.

        Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS if the member must
        rejoin; its session continues.
        """
        self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise RequestRejected(
                ErrorCode.ILLEGAL_GENERATION, f"Generation {generation}; the group is in {self.generation}."
            )
        self.keep_alive(turn, member_id)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RequestRejected(ErrorCode.REBALANCE_IN_PROGRESS, "The group waits for its members to join.")

    def leave(self, turn: Turn, leaving: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members leave, by member id or (if it is empty) by instance id. Returns a code for each. One rebalance for all."""
        codes: list[ErrorCode] = []
        for member_id, instance_id in leaving:
            if not member_id:
                found = None if instance_id is None else self._static.get(instance_id)
                if found is None:
                    codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
                    continue
                self._remove(turn, found)
            elif member_id in self.pending_joins:
                self._remove(turn, member_id)
            else:
                try:
                    self.check_member(member_id, instance_id)
                except RequestRejected as error:
                    codes.append(error.code)
                    continue
                self._remove(turn, member_id)
            codes.append(ErrorCode.NONE)
        if ErrorCode.NONE in codes and self.state is not ClassicState.EMPTY:
            self._rebalance(turn)
        return codes

    def due(self, turn: Turn, timer: ClassicTimer) -> None:
        """A timer has expired."""
        match timer.due:
            case ClassicDue.MEMBER:
                self._member_is_silent(turn, timer.member_id)
            case ClassicDue.JOIN:
                self._joining_is_over(turn)
            case ClassicDue.SYNC:
                self._syncing_is_over(turn)

    def _member_is_silent(self, turn: Turn, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            if member_id not in self.pending_joins:
                return
            self._remove(turn, member_id)
            if self.state is ClassicState.PREPARING_REBALANCE:
                self._rebalance(turn)
            return
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # it waits for us; its session begins anew with the answer
        self._remove(turn, member_id)
        self._rebalance(turn)

    def _joining_is_over(self, turn: Turn) -> None:
        if self.state is not ClassicState.PREPARING_REBALANCE:
            return
        if self._was_empty and self._grows and self._initial_left_ms > 0:
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, self._initial_left_ms)
            self._grows = False
            self._initial_left_ms -= delay_ms
            turn.set_timer(ClassicTimer(ClassicDue.JOIN, self.group_id), delay_ms)
            return
        self._complete_join(turn)

    def _syncing_is_over(self, turn: Turn) -> None:
        """Remove members that did not request their assignment in time (KAFKA-13435)."""
        if not self.pending_syncs or self.state not in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            return
        for member_id in tuple(self.pending_syncs):
            self._remove(turn, member_id)
        self._prepare_rebalance(turn)

    def replaced(self, turn: Turn) -> None:
        """A group of another protocol has replaced this one, with its members. Waiting clients must join that group."""
        for timer in (ClassicTimer(ClassicDue.JOIN, self.group_id), ClassicTimer(ClassicDue.SYNC, self.group_id)):
            turn.cancel_timer(timer)
        for member_id in self.pending_joins:
            turn.cancel_timer(ClassicTimer(ClassicDue.MEMBER, self.group_id, member_id))
        for member in self.members.values():
            turn.cancel_timer(member.timer)
            if member.join is not None:
                self._answer_join(turn, member, refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            if member.sync is not None:
                self._answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def unloaded(self, turn: Turn) -> None:
        """This broker is no longer the coordinator. Waiting clients must look for the new coordinator."""
        for member in self.members.values():
            if member.join is not None:
                self._answer_join(turn, member, refused_join(ErrorCode.NOT_COORDINATOR, member.member_id))
            if member.sync is not None:
                self._answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))

    # --- records ------------------------------------------------------------------------------------------------------

    def empty_record(self, now_ms: int) -> CoordinatorRecord:
        """The record of a group without members."""
        return self._record((), None, now_ms)

    def tombstone(self) -> CoordinatorRecord:
        """The tombstone of the group."""
        return GROUP_RECORDS.record(GroupMetadataKey(self.group_id), None)

    def _record(
        self, members: Iterable[ClassicMember], leader: str | None, now_ms: int, generation: int | None = None
    ) -> CoordinatorRecord:
        return GROUP_RECORDS.record(
            GroupMetadataKey(self.group_id),
            GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation if generation is None else generation,
                protocol=self.protocol_name,
                leader=leader,
                current_state_timestamp=now_ms,
                members=[
                    MemberMetadata(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        member.rebalance_timeout_ms,
                        member.session_timeout_ms,
                        member.metadata(self.protocol_name),
                        member.assignment,
                    )
                    for member in members
                ],
            ),
            GROUP_METADATA_VERSION,
        )

    def record_before_rebalance(self, now_ms: int) -> CoordinatorRecord:
        """The record of a group before a rebalance, already with the next generation.

        If a load finds this record without the result of the rebalance, it finds members of the previous generation, which must
        rejoin.
        """
        return self._record(self.members.values(), self.leader, now_ms, self.generation + 1)

    @classmethod
    def from_members(
        cls,
        group_id: str,
        protocol_type: str,
        generation: int,
        members: Iterable[ClassicMember],
        config: BrokerConfig,
        rng: random.Random,
        now_ms: int,
    ) -> ClassicGroup:
        """A stable group whose members have their assignments and share one protocol."""
        group = cls(group_id, config, rng, now_ms)
        group.generation = generation
        group.protocol_type = protocol_type
        for member in members:
            group._add(member)
        group.protocol_name = group._select_protocol()
        group.state = ClassicState.STABLE
        group.subscribed_topics = group._subscriptions()
        return group

    def begin_anew(self, turn: Turn) -> None:
        """All members must rejoin. Each has its session time-out for its next request."""
        for member in self.members.values():
            self.keep_alive(turn, member.member_id)
        self._prepare_rebalance(turn)

    @classmethod
    def from_record(
        cls, group_id: str, value: GroupMetadataValue, config: BrokerConfig, rng: random.Random
    ) -> ClassicGroup:
        """Decode a group from its record. It is Stable if it has members."""
        group = cls(group_id, config, rng, value.current_state_timestamp)
        group.generation = value.generation
        group.protocol_type = value.protocol_type
        group.protocol_name = value.protocol
        for row in value.members:
            group._add(
                ClassicMember(
                    group_id,
                    row.member_id,
                    row.group_instance_id,
                    row.client_id,
                    row.client_host,
                    row.session_timeout if row.rebalance_timeout == -1 else row.rebalance_timeout,
                    row.session_timeout,
                    ((value.protocol or "", row.subscription),),
                    row.assignment,
                )
            )
        group.leader = value.leader
        if group.members:
            group.state = ClassicState.STABLE
            group.subscribed_topics = group._subscriptions()
        elif group.protocol_type == CONSUMER_PROTOCOL:
            group.subscribed_topics = frozenset()
        return group


def new_member_id(prefix: str, rng: random.Random) -> str:
    """A new member id in Kafka's form. A very long prefix is shortened to the maximum length."""
    unique = f"-{UUID(bytes=rng.randbytes(16), version=4)}"
    room = STRING_BYTES_MAX - len(unique)
    if len(prefix.encode()) > room:
        prefix = prefix.encode()[:room].decode(errors="ignore")
    return prefix + unique


def refused_join(code: ErrorCode, member_id: str = NO_MEMBER) -> JoinGroupResponse:
    """A JoinGroup response with only a code, and perhaps a member id."""
    return JoinGroupResponse(
        error_code=code, generation_id=-1, protocol_type=None, protocol_name=None, leader="", member_id=member_id
    )
