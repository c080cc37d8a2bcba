"""A consumer group whose assignment the broker makes (KIP-848): members, epochs, target assignment. A pure state machine.

Three numbers drive it. The **group epoch** rises when subscriptions or the subscribed topics change. The **target assignment**
is computed again when its epoch is behind the group epoch, but not twice within ``group.consumer.assignment.interval.ms``
(KIP-1263). So a thousand members that join together cost only a few assignments, and need not follow each of them. Until then
all members continue towards the last target. The target of a large group is computed in portions, between requests (INV-15). The
**member epoch** is the epoch of the target that a member has reached. Each
member moves by itself, heartbeat by heartbeat (``reconciliation.py``). There is no barrier: a slow member delays only those
that wait for its partitions.

Every change is a list of records (``consumer_records.py``) that is appended first. Memory changes only in ``replay``, which
also loads the group. So memory always equals the log.

Wrong requests get one of these codes, and change nothing: UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH (give up all partitions and
rejoin), UNRELEASED_INSTANCE_ID and FENCED_INSTANCE_ID (another client is this static member).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import SUBSCRIBED_NAMES_MAX, SUBSCRIBED_TOPICS_MAX
from app.core.turns import Steps, whole
from app.core.units import TimestampMs
from app.groups.consumer.assignors import ASSIGNORS, NO_PARTITIONS, Assignment
from app.groups.consumer.consumer_records import (
    NOBODY,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentOfMember,
    GroupEpoch,
    MemberState,
    MemberSubscription,
    PartitionMetadata,
    RegexTopics,
    Subscription,
    TargetEpoch,
    TargetOfMember,
    to_bytes,
)
from app.groups.consumer.members import Member, MemberIndex
from app.groups.consumer.reconciliation import is_reconciled, reconcile
from app.groups.consumer.subscriptions import (
    NO_HASH,
    ResolvedRegex,
    matches,
    metadata_hash,
    topic_ids,
    topics_of_regex,
)
from app.groups.consumer.targets import ASSIGNED_AT_ONCE_MAX, Computed, target_steps, work_of
from app.groups.group import GroupType
from app.wire.apis.consumer_group_heartbeat import (
    Assignment as HeartbeatAssignment,
)
from app.wire.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from app.wire.apis.consumer_group_heartbeat import (
    TopicPartitions as HeartbeatTopicPartitions,
)

if TYPE_CHECKING:
    from uuid import UUID

    from app.configs import BrokerConfig
    from app.coordinator.partition import RawRecord
    from app.coordinator.shell import Turn
    from app.metadata.image.image import ClusterImage, TopicImage

JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2
"""The epoch of a static member that will return. Its partitions wait for it until its session ends."""

CLIENT_MAKES_MEMBER_ID: Final = 1
"""First version of ConsumerGroupHeartbeat in which a member chooses its own id (KIP-1082)."""


class ClientInfo(NamedTuple):
    """The client that sends a request."""

    client_id: str
    host: str
    """In Kafka's form: ``/127.0.0.1``."""
    sees: Callable[[str], bool] | None = None
    """Whether it may describe a topic; None if everybody may describe every topic."""


class MemberDue(Enum):
    """The time limits of a member. When one passes, the member is removed."""

    SESSION = "session"
    """For the next heartbeat."""
    REVOCATION = "revocation"
    """For giving up revoked partitions."""
    JOIN = "join"
    """For rejoining after it was told to (classic protocol)."""
    SYNC = "sync"
    """For requesting its partitions after it has joined (classic protocol)."""


class MemberTimer(NamedTuple):
    """Key of a timer."""

    due: MemberDue
    group_id: str
    member_id: str


class AssignmentDue(NamedTuple):
    """Key of a timer: a target that takes long to compute is due (``ConsumerGroup.computed``)."""

    group_id: str


class ConsumerGroup:
    """One group. ``turn`` takes its records and timers (``app/coordinator/shell.py``)."""

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.config = config
        """The present settings for this group. The caller keeps them up to date."""
        self.epoch = 0
        self.metadata_hash = NO_HASH
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        """Target assignment by member id."""
        self.regexes: dict[str, ResolvedRegex] = {}
        self.index = MemberIndex()
        self._joins_due: set[str] = set()
        """Members that were told to rejoin."""
        self._assigned_ms: int | None = None
        """Time of the last computation of the target on this broker; None if another broker computed it."""
        self._unwritten: RequestRejected | None = None
        """Why a target that was computed between requests was not written. The next member that waits for it is told."""
        self._topics_seen: Mapping[str, TopicImage] | None = None
        """Topics of the image with which the group epoch was last compared."""
        self.replaces: Sequence[RawRecord] = ()
        """Records with which this group replaces another one. They are written together with its own first records."""
        self._regexes_due: dict[str, ResolvedRegex] = {}
        """Matches of expressions after a change of topics. The next heartbeat writes them."""
        self.assigned_at_once_max = ASSIGNED_AT_ONCE_MAX
        """Members and topics of which a request computes the target itself."""
        self._regexes_unchecked: set[str] = set()
        """Expressions that were loaded from the log and not matched against the topics since."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        turn: Turn,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        image: ClusterImage,
        resolved: ResolvedRegex | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat: a member reports its subscription and its partitions, and gets its assignment.

        ``request`` has passed ``check_heartbeat`` and has a member id. ``resolved`` is the match of the request's expression, if
        ``unresolved_regex`` asked for it.

        Raises: RequestRejected, with nothing changed.
        """
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return self._leave(turn, request, image)
        owned = _owned(request)
        member, replaced = self._member_of(request, owned)
        wanted = _merged(member.subscription, request, client)
        records, advanced = self.advance(turn, member, replaced, wanted, owned, image, resolved)
        self.write(turn, records)
        self.restart_session(turn, advanced)
        response = ConsumerGroupHeartbeatResponse(
            member_id=advanced.member_id,
            member_epoch=advanced.epoch,
            heartbeat_interval_ms=self.config.group_consumer_heartbeat_interval_ms,
        )
        if _says_everything(request) or advanced.current.assigned != member.current.assigned:
            response.assignment = HeartbeatAssignment(
                [
                    HeartbeatTopicPartitions(topic_id, sorted(partitions))
                    for topic_id, partitions in advanced.current.assigned.items()
                ]
            )
        return response

    def unresolved_regex(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> str | None:
        """An expression that has to be matched against all topics before ``heartbeat`` can take the request.

        That is an expression that is new in the group, or whose last match is older than the refresh interval.
        """
        regex = request.subscribed_topic_regex
        if regex is None:
            member = self.members.get(request.member_id)
            regex = member.subscription.topic_regex if member is not None else None
        if not regex or request.member_epoch < 0:
            return None
        known = self.regexes.get(regex)
        if (
            known is None
            or regex in self._regexes_unchecked
            or now_ms - known.resolved_ms >= self.config.group_consumer_regex_refresh_interval_ms
        ):
            return regex
        return None

    def _leave(
        self, turn: Turn, request: ConsumerGroupHeartbeatRequest, image: ClusterImage
    ) -> ConsumerGroupHeartbeatResponse:
        member = self.leaver(request)
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            current = member.current.left_with(LEAVING_FOR_A_WHILE)
            self.write(turn, [CurrentOfMember(member.member_id, current)])
        else:
            self.remove(turn, [member], image)
        return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def leaver(self, request: ConsumerGroupHeartbeatRequest) -> Member:
        """The leaving member. Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if request.instance_id is None:
            return self.member(request.member_id)
        return self.static_member(request.instance_id, request.member_id)

    # --- finding the member ------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        """Raises: RequestRejected UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise RequestRejected(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str, member_id: str) -> Member:
        """The member with this instance id and member id. Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        member = self.member_of_instance(instance_id)
        if member is None:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise RequestRejected(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
            )
        return member

    def member_of_instance(self, instance_id: str) -> Member | None:
        """The present member of a static instance."""
        member_id = self.index.of_instance(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def check_not_full(self, member_id: str) -> None:
        """Raises: RequestRejected GROUP_MAX_SIZE_REACHED if the group is full."""
        size_max = self.config.group_consumer_max_size
        if len(self.members) >= size_max and member_id not in self.members:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def _member_of(
        self, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None
    ) -> tuple[Member, Member | None]:
        """The member that sends a heartbeat (a new one if it joins), and the static member that it replaces."""
        self.check_not_full(request.member_id)
        joins = request.member_epoch == JOINING
        if request.instance_id is None:
            known = self.members.get(request.member_id)
            if known is None and joins:
                return Member(request.member_id), None
            member = self.member(request.member_id)
            _check_epoch(member, request.member_epoch, owned)
            return member, None
        if not joins:
            member = self.static_member(request.instance_id, request.member_id)
            _check_epoch(member, request.member_epoch, owned)
            return member, None
        previous = self.member_of_instance(request.instance_id)
        if previous is None or previous.member_id == request.member_id:
            # Itself: the answer to its first try was lost, or it was fenced. (Apache Kafka refuses it until its session is over.)
            return self.members.get(request.member_id) or Member(request.member_id), None
        if not previous.is_classic and previous.epoch != LEAVING_FOR_A_WHILE:
            raise RequestRejected(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because the "
                f"instance id is owned by {previous.member_id} member.",
            )
        return successor_of(previous, request.member_id), previous

    # --- one step of the group and of a member -----------------------------------------------------------------------

    def advance(
        self,
        turn: Turn,
        member: Member,
        replaced: Member | None,
        wanted: Subscription,
        owned: Assignment | None,
        image: ClusterImage,
        resolved: ResolvedRegex | None = None,
    ) -> tuple[list[ConsumerGroupRecord], Member]:
        """The records for the next step of group and member, and the member afterwards. Changes nothing yet.

        ``member`` is a member of the group, a joining one, or the successor of ``replaced``. ``wanted`` is its new subscription.
        ``owned`` are the partitions that it reports.

        Raises: RequestRejected.
        """
        records: list[ConsumerGroupRecord] = []
        member_id = member.member_id
        if replaced is not None:
            target = self.targets.get(replaced.member_id, NO_PARTITIONS)
            records += _removal(replaced.member_id)
            records.append(MemberSubscription(member_id, member.subscription))
            records.append(TargetOfMember(member_id, target))
            records.append(CurrentOfMember(member_id, member.current))
        else:
            target = self.targets.get(member_id, NO_PARTITIONS)
        before = member.subscription
        if wanted != before or (replaced is None and member_id not in self.members):
            records.append(MemberSubscription(member_id, wanted))
        bump = self.epoch == 0 or wanted.topic_names != before.topic_names or wanted.topic_regex != before.topic_regex
        regexes = self._regexes_after(member, wanted, resolved, image, turn.now_ms, records)
        epoch, names = self.epoch, None
        if bump or regexes is not self.regexes or image.topics_by_name is not self._topics_seen:
            names = self._names_after(before, wanted, regexes)
            hashed = metadata_hash(names, image)
            self._topics_seen = image.topics_by_name
            if bump or hashed != self.metadata_hash:
                epoch += 1
                records.append(GroupEpoch(epoch, hashed))
        target_epoch = self.target_epoch
        due = epoch > target_epoch and (self.may_assign(turn.steady_ms) or self._has_only(replaced or member))
        if due and self._takes_long(wanted):
            if self._unwritten is not None:
                error, self._unwritten = self._unwritten, None
                self._topics_seen = None  # the records about these topics are not written
                raise error
            # Until it is there, members go on with the target that they have.
            turn.set_timer(AssignmentDue(self.group_id), 0)
        elif due:
            if names is None:
                names = self._names_after(before, wanted, regexes)
            target = self._new_target(member_id, wanted, target, replaced, epoch, names, regexes, image, records)
            target_epoch = epoch
        current = reconcile(member.current, target_epoch, target, owned, self.index.is_held)
        if current is not member.current or (replaced is None and member_id not in self.members):
            records.append(CurrentOfMember(member_id, current))
        return records, Member(member_id, wanted, current)

    def may_assign(self, steady_ms: int) -> bool:
        """Whether enough time has passed since the last target to compute a new one."""
        interval_ms = self.config.group_consumer_assignment_interval_ms
        return self._assigned_ms is None or steady_ms - self._assigned_ms >= interval_ms

    def _has_only(self, member: Member) -> bool:
        """Whether the group has no other member, so that there is no reason to wait for other joins."""
        return len(self.members) == (member.member_id in self.members)

    def epoch_within_reach(self, steady_ms: int) -> int:
        """The epoch of the target for which a member would be reconciled now."""
        if self.epoch > self.target_epoch and (not self.may_assign(steady_ms) or self._takes_long()):
            return self.target_epoch
        return self.epoch

    def _regexes_after(
        self,
        member: Member,
        wanted: Subscription,
        resolved: ResolvedRegex | None,
        image: ClusterImage,
        now_ms: int,
        records: list[ConsumerGroupRecord],
    ) -> Mapping[str, ResolvedRegex]:
        """The matches of expressions when the member subscribes to ``wanted``. The same mapping if nothing changes."""
        changes: dict[str, ResolvedRegex | None] = dict(self._regexes_due)
        regex, before = wanted.topic_regex, member.subscription.topic_regex
        if resolved is not None and regex:
            known = changes.get(regex) or self.regexes.get(regex)
            if known is None or known != resolved:
                changes[regex] = resolved
        if before and before != regex and self.index.regexes[before] <= 1:
            if before in self.regexes:
                changes[before] = None
            else:
                changes.pop(before, None)
        if not changes:
            return self.regexes
        after = dict(self.regexes)
        for changed, topics in changes.items():
            records.append(RegexTopics(changed, topics))
            if topics is None:
                after.pop(changed, None)
            else:
                after[changed] = topics
        return after

    def _names_after(
        self, before: Subscription, after: Subscription, regexes: Mapping[str, ResolvedRegex]
    ) -> frozenset[str]:
        """Topics to which the group subscribes when a member changes from ``before`` to ``after``."""
        names = set(self.index.names)
        names.difference_update(name for name in before.topic_names if self.index.names[name] <= 1)
        names |= after.topic_names
        if len(names) > max(SUBSCRIBED_TOPICS_MAX, len(self.index.names)) and after.topic_names != before.topic_names:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The members of group {self.group_id} would subscribe to {len(names)} topics by name, and "
                f"{SUBSCRIBED_TOPICS_MAX} are allowed. Subscribe by a regular expression.",
            )
        for regex, found in regexes.items():
            if self.index.regexes[regex] or regex == after.topic_regex:
                names |= found.topics
        return frozenset(names)

    def _new_target(
        self,
        member_id: str,
        wanted: Subscription,
        owned: Assignment,
        replaced: Member | None,
        epoch: int,
        names: Iterable[str],
        regexes: Mapping[str, ResolvedRegex],
        image: ClusterImage,
        records: list[ConsumerGroupRecord],
    ) -> Assignment:
        """Compute the target assignment of a new epoch. Returns: the member's part of it."""
        subscriptions = {other.member_id: other.subscription for other in self.members.values()}
        if replaced is not None:
            del subscriptions[replaced.member_id]
        subscriptions[member_id] = wanted
        targets: Mapping[str, Assignment] = {**self.targets, member_id: owned}
        assign = ASSIGNORS[self.assignor_with(wanted.server_assignor, self.members.get(member_id))]
        assigned = whole(target_steps(assign, subscriptions, targets, names, regexes, image))
        for other_id, partitions in assigned.items():
            had = owned if replaced is not None and other_id == member_id else self.targets.get(other_id)
            if had is None or (partitions is not had and partitions != had):
                records.append(TargetOfMember(other_id, partitions))
        records.append(TargetEpoch(epoch))
        return assigned[member_id]

    def _takes_long(self, wanted: Subscription = NOBODY) -> bool:
        """Whether a new target takes longer to compute than a request may. ``wanted``: a subscription that is not counted yet."""
        index, names = self.index, len(wanted.topic_names)
        matched = [(len(found.topics), index.regexes[regex]) for regex, found in self.regexes.items()]
        work = work_of(
            len(self.members),
            index.list_topics + names + sum(topics for topics, _ in matched),
            index.member_topics + names + sum(topics * users for topics, users in matched),
            self.assignor_with(wanted.server_assignor),
        )
        return work > self.assigned_at_once_max

    def computed(self, image: ClusterImage, steady_ms: int) -> Steps[Computed] | None:
        """A target that takes too long for a request, in steps. Other requests may change the group meanwhile. None if no target is
        due."""
        if self.epoch <= self.target_epoch or not self.members or not self.may_assign(steady_ms):
            return None
        return self._computed(image)

    def _computed(self, image: ClusterImage) -> Steps[Computed]:
        epoch, regexes, targets = self.epoch, self.regexes, dict(self.targets)
        subscriptions = {member.member_id: member.subscription for member in self.members.values()}
        assign = ASSIGNORS[self.assignor_with()]
        names = set(self.index.names)
        for regex, found in regexes.items():
            if self.index.regexes[regex]:
                names |= found.topics
        assigned = yield from target_steps(assign, subscriptions, targets, names, regexes, image)
        return Computed(self, epoch, subscriptions, assigned)

    def was_not_written(self, error: RequestRejected, steady_ms: int) -> None:
        """A computed target could not be written: it is tried again after the assignment interval."""
        self._assigned_ms = steady_ms
        self._unwritten = error

    def take(self, turn: Turn, computed: Computed, image: ClusterImage) -> bool:
        """Write a computed target. The next one follows the changes since: a member that has left has no part of this one, a new
        member has none yet, and a topic to which a member subscribes no more has no reader.

        Returns: whether it was written. It is not if the group has a newer target, or was loaded or made anew.
        Raises: RequestRejected, with nothing changed.
        """
        if computed.group is not self or self.target_epoch >= computed.epoch:
            return False
        records: list[ConsumerGroupRecord] = []
        for member_id, partitions in computed.assigned.items():
            before = computed.subscriptions[member_id]
            member = self.members.get(member_id)
            if member is None and before.instance_id is not None:
                member = self.member_of_instance(before.instance_id)
                if member is not None and member.member_id in computed.assigned:
                    continue
            if member is None:
                continue
            now = member.subscription
            if now.topic_names is not before.topic_names or now.topic_regex != before.topic_regex:
                read = topic_ids(now.topic_names | topics_of_regex(self.regexes, now.topic_regex), image)
                if not read.issuperset(partitions):
                    partitions = {topic_id: each for topic_id, each in partitions.items() if topic_id in read}
            had = self.targets.get(member.member_id)
            if had is None or (partitions is not had and partitions != had):
                records.append(TargetOfMember(member.member_id, partitions))
        records.append(TargetEpoch(computed.epoch))
        self.write(turn, records)
        return True

    def assignor_with(self, preferred: str | None = None, member: Member | None = None) -> str:
        """The assignor that most members request, if one member changes its request to ``preferred``."""
        wishes = Counter(self.index.assignors)
        if member is not None and member.subscription.server_assignor is not None:
            wishes[member.subscription.server_assignor] -= 1
        if preferred is not None:
            wishes[preferred] += 1
        asked = [(-count, name) for name, count in wishes.items() if count > 0 and name in ASSIGNORS]
        return min(asked)[1] if asked else self.config.group_consumer_assignors[0]

    # --- ends of membership ------------------------------------------------------------------------------------------

    def remove(self, turn: Turn, members: Sequence[Member], image: ClusterImage) -> None:
        """Remove members that left or sent no heartbeat. The next heartbeat assigns their partitions.

        Raises: RequestRejected if it cannot be written; then nothing has changed.
        """
        self.write(turn, self.removal_records(members, image))
        for member in members:
            self.cancel_timers(turn, member.member_id)

    def removal_records(self, members: Sequence[Member], image: ClusterImage) -> list[ConsumerGroupRecord]:
        """The records that remove members and raise the group epoch."""
        records: list[ConsumerGroupRecord] = []
        names_left: Counter[str] = Counter(self.index.names)
        regexes_left: Counter[str] = Counter(self.index.regexes)
        for member in members:
            records += _removal(member.member_id)
            names_left.subtract(member.subscription.topic_names)
            if member.subscription.topic_regex:
                regexes_left[member.subscription.topic_regex] -= 1
        records += [RegexTopics(regex, None) for regex in self.regexes if regexes_left[regex] <= 0]
        names = {name for name, users in names_left.items() if users > 0}
        for regex, found in self.regexes.items():
            if regexes_left[regex] > 0:
                names |= found.topics
        records.append(GroupEpoch(self.epoch + 1, metadata_hash(names, image)))
        return records

    def due(self, key: MemberTimer) -> Member | None:
        """The member whose time limit has passed, if any. The caller removes it from the group."""
        self._joins_due.discard(key.member_id)
        member = self.members.get(key.member_id)
        if member is not None and key.due is MemberDue.REVOCATION and not _must_revoke(member):
            return None
        return member

    def limit(self, turn: Turn, due: MemberDue, member_id: str, limit_ms: int) -> None:
        """Start a time limit of a member."""
        turn.set_timer(MemberTimer(due, self.group_id, member_id), limit_ms)
        if due is MemberDue.JOIN:
            self._joins_due.add(member_id)

    def is_told_to_join(self, member_id: str) -> bool:
        """Whether the time limit of a member for rejoining runs."""
        return member_id in self._joins_due

    def cancel(self, turn: Turn, due: MemberDue, member_id: str) -> None:
        """End a time limit: the member has met it, or it no longer applies."""
        turn.cancel_timer(MemberTimer(due, self.group_id, member_id))
        if due is MemberDue.JOIN:
            self._joins_due.discard(member_id)

    def cancel_timers(self, turn: Turn, member_id: str) -> None:
        """End all time limits of a member that is gone."""
        for due in MemberDue:
            self.cancel(turn, due, member_id)

    def restart_session(self, turn: Turn, member: Member) -> None:
        """Restart a member's session after a heartbeat."""
        classic = member.subscription.classic
        timeout_ms = self.config.group_consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.limit(turn, MemberDue.SESSION, member.member_id, timeout_ms)

    def watch(self, turn: Turn) -> None:
        """After a load, give all members their whole time-outs for the next request."""
        for member in self.members.values():
            self.restart_session(turn, member)
            self._watch_revocation(turn, member)

    def _watch_revocation(self, turn: Turn, member: Member) -> None:
        if _must_revoke(member):
            self.limit(turn, MemberDue.REVOCATION, member.member_id, member.subscription.rebalance_timeout_ms)
        else:
            self.cancel(turn, MemberDue.REVOCATION, member.member_id)

    def waits_for_others(self, member: Member) -> bool:
        """Whether other members still hold partitions of the member's target."""
        return any(
            self.index.is_held(topic_id, partition)
            for topic_id, partitions in self.targets.get(member.member_id, NO_PARTITIONS).items()
            for partition in partitions - member.current.assigned.get(topic_id, frozenset())
        )

    # --- Group -------------------------------------------------------------------------------------------------------

    @property
    def group_type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        """Kafka's name of the state."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(is_reconciled(member.current, self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member reads, or would read, the topic."""
        if topic in self.index.names:
            return True
        return any(topic in found.topics for found in self.regexes.values())

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        member_epoch: int,
        *,
        transactional: bool,
        api_version: int,
        partitions: Callable[[], Iterable[tuple[UUID | None, int]]] = tuple,
    ) -> None:
        """Check that a client may commit offsets of the group now, for ``partitions`` by topic id.

        If a member's epoch has risen meanwhile, it may commit partitions that it had at the named epoch and still has (KIP-1251).

        Raises: RequestRejected UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION to a member of the classic protocol),
        UNSUPPORTED_VERSION for a request version without member epoch.
        """
        if member_epoch < 0 and not self.members:
            return
        if transactional and member_epoch == -1 and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and not member.is_classic and api_version < 9:
            raise RequestRejected(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the modern group protocol.",
            )
        if 0 <= member_epoch < member.epoch:
            asked = list(partitions())
            if asked and all(
                topic_id is not None
                and member.current.has(topic_id, partition)
                and member.current.epoch_of(topic_id, partition) <= member_epoch
                for topic_id, partition in asked
            ):
                return
        _check_same_epoch(member, member_epoch)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that a client may read the group's offsets now: a member (KIP-848), or a client without member id (None).

        Raises: as ``check_offset_commit``.
        """
        if member_id is None and member_epoch < 0:
            return
        _check_same_epoch(self.member(member_id or ""), member_epoch)

    # --- records ------------------------------------------------------------------------------------------------------

    def write(self, turn: Turn, records: Sequence[ConsumerGroupRecord]) -> None:
        """Append records, then apply them. Raises: RequestRejected, with nothing changed."""
        if not records:
            return
        try:
            turn.append([*self.replaces, *(to_bytes(self.group_id, record) for record in records)])
        except RequestRejected:
            self._topics_seen = None  # the records about these topics were not written
            raise
        self.replaces = ()
        if any(isinstance(record, TargetEpoch) for record in records):
            self._assigned_ms = turn.steady_ms
        for record in records:
            if isinstance(record, CurrentOfMember) and record.current is not None:
                self.index.assert_free(record.member_id, record.current.assigned)
            self.replay(record)
        for record in records:
            if isinstance(record, CurrentOfMember) and record.member_id in self.members:
                self._watch_revocation(turn, self.members[record.member_id])

    def replay(self, record: ConsumerGroupRecord) -> None:
        """Apply a record that was appended now, or before this broker led the partition."""
        match record:
            case CurrentOfMember(member_id, current):
                if current is not None:
                    self._put(replace(self.members.get(member_id) or Member(member_id), current=current))
                elif member_id in self.members:
                    self._put(replace(self.members[member_id], current=_GONE))
            case MemberSubscription(member_id, subscription):
                if subscription is not None:
                    self._put(replace(self.members.get(member_id) or Member(member_id), subscription=subscription))
                else:
                    self._drop(member_id)
            case TargetOfMember(member_id, partitions):
                if partitions is not None:
                    self.targets[member_id] = partitions
                else:
                    self.targets.pop(member_id, None)
            case TargetEpoch(epoch):
                self.target_epoch = 0 if epoch is None else epoch
            case GroupEpoch(epoch, hashed):
                self.epoch, self.metadata_hash = (0, NO_HASH) if epoch is None else (epoch, hashed)
            case RegexTopics(regex, resolved):
                self._regexes_due.pop(regex, None)
                self._regexes_unchecked.discard(regex)
                if resolved is not None:
                    self.regexes = {**self.regexes, regex: resolved}
                else:
                    self.regexes = {other: found for other, found in self.regexes.items() if other != regex}
            case PartitionMetadata():
                pass

    def loaded(self, turn: Turn) -> None:
        """All records are loaded. Members have a whole session time-out for their next heartbeat."""
        self._regexes_unchecked = set(self.regexes)
        self.watch(turn)

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """The tombstones of the whole group."""
        records: list[ConsumerGroupRecord] = [CurrentOfMember(member_id, None) for member_id in self.members]
        records += [TargetOfMember(member_id, None) for member_id in self.targets]
        records.append(TargetEpoch(None))
        records += [MemberSubscription(member_id, None) for member_id in self.members]
        records += [RegexTopics(regex, None) for regex in self.regexes]
        records.append(GroupEpoch(None))
        return records

    def _put(self, member: Member) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self.index.remove(before)
        self.members[member.member_id] = self.index.add(member)

    def _drop(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self.index.remove(member)

    # --- the cluster's topics ------------------------------------------------------------------------------------------

    def topics_changed(
        self, added: Set[str], removed: Set[str], image: ClusterImage, now_ms: int, *, asks: bool = False
    ) -> Iterator[None]:
        """Topics were created or deleted: update the matches of expressions. The next heartbeat of any member acts on them.

        Yields after each expression, which may take 2 ms: other events of the group may happen then.
        ``asks``: members see only topics that they may describe, so new ones wait for a heartbeat of a member with the expression.
        """
        for regex in tuple(self.regexes):
            found = matches(regex, added)
            yield
            known = self.regexes.get(regex)
            if known is None:
                continue  # its last member has left
            latest = self._regexes_due.get(regex, known)
            if asks and found:
                self._regexes_unchecked.add(regex)
                found = frozenset()
            topics = (latest.topics - removed) | found
            if topics != latest.topics:
                self._regexes_due[regex] = ResolvedRegex(topics, image.sequence, TimestampMs(now_ms))


_GONE: Final = CurrentAssignment(member_epoch=LEAVING, previous_member_epoch=LEAVING)


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]) -> None:
    """Check a request by itself. Raises: RequestRejected INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if not request.member_id.strip() and (api_version >= CLIENT_MAKES_MEMBER_ID or epoch != JOINING):
        raise _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.instance_id is not None and not request.instance_id.strip():
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVING_FOR_A_WHILE:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVING_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    if request.subscribed_topic_names is not None and len(request.subscribed_topic_names) > SUBSCRIBED_NAMES_MAX:
        raise _invalid(
            f"SubscribedTopicNames has {len(request.subscribed_topic_names)} names, and {SUBSCRIBED_NAMES_MAX} are allowed. "
            "Subscribe by a regular expression."
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(sorted(assignors, reverse=True))}.",
        )


def successor_of(previous: Member, member_id: str) -> Member:
    """A static member that returned with another member id, with all its former state."""
    current = replace(previous.current, member_epoch=0, previous_member_epoch=0)
    return Member(member_id, previous.subscription, current)


def _invalid(sentence: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_REQUEST, sentence)


def _removal(member_id: str) -> list[ConsumerGroupRecord]:
    return [CurrentOfMember(member_id, None), TargetOfMember(member_id, None), MemberSubscription(member_id, None)]


def _must_revoke(member: Member) -> bool:
    """Whether the member must still give up partitions. Members of the classic protocol have other deadlines."""
    return member.current.state is MemberState.UNREVOKED_PARTITIONS and member.epoch >= 0 and not member.is_classic


def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.topic_partitions if topic.partitions}


def _says_everything(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has every field. A member sends this when it joins or resynchronizes, and gets the full state in
    return."""
    return request.member_epoch == JOINING or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _merged(known: Subscription, request: ConsumerGroupHeartbeatRequest, client: ClientInfo) -> Subscription:
    """The member after a request that contains only changes."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    merged = Subscription(
        client_id=client.client_id,
        client_host=client.host,
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        topic_names=known.topic_names if names is None else frozenset(names),
        topic_regex=known.topic_regex if regex is None else (regex or None),
        rebalance_timeout_ms=(
            known.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=known.server_assignor if request.server_assignor is None else request.server_assignor,
    )
    return known if merged == known else merged


def _check_epoch(member: Member, epoch: int, owned: Assignment | None) -> None:
    """Raises: RequestRejected FENCED_MEMBER_EPOCH."""
    current = member.current
    if epoch in (JOINING, current.member_epoch):
        return
    if epoch > current.member_epoch:
        relation = "greater"
    elif epoch == current.previous_member_epoch and _is_part(owned, current.assigned):
        # The answer that raised the epoch was lost.
        return
    else:
        relation = "smaller"
    raise RequestRejected(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group coordinator "
        f"({current.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_part(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items())


def _check_same_epoch(member: Member, epoch: int) -> None:
    """Raises: RequestRejected STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION in the classic protocol's words."""
    if epoch == member.epoch:
        return
    if member.is_classic:
        raise RequestRejected(
            ErrorCode.ILLEGAL_GENERATION,
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}.",
        )
    raise RequestRejected(
        ErrorCode.STALE_MEMBER_EPOCH,
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
    )
