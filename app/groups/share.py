"""A share group: members that read the same partitions together, record by record (KIP-932). A pure state machine.

As in a consumer group (``consumer.py``) what members subscribe to raises the group epoch and makes a new target assignment, at most
once in ``group.share.assignment.interval.ms``; but several members may have one partition, so that nobody has to give anything up
first: a member has its target with its next heartbeat. Who comes to a small group has it at once. Who gets which record is not
decided here, but by the share-partitions (``share_state.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from app.errors import ErrorCode, RequestRejected
from app.groups.assignors import NO_PARTITIONS, Assignment, MemberSpec, Topics
from app.groups.consumer import JOINING, LEAVING, Client
from app.groups.group import GroupType
from app.groups.share_records import (
    NO_TOPICS,
    ShareAssignment,
    ShareCurrent,
    SharedTopic,
    SharedTopics,
    ShareEpoch,
    ShareGroupRecord,
    ShareMemberSubscription,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    ShareTopics,
    to_bytes,
)
from app.groups.subscriptions import NO_HASH, metadata_hash, topic_ids, topic_specs
from app.limits import SHARE_MEMBER_ID_CHARS_MAX
from app.wire.apis.share_group_heartbeat import (
    Assignment as HeartbeatAssignment,
)
from app.wire.apis.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from uuid import UUID

    from app.configs import BrokerConfig
    from app.coordinator.partition import RawRecord
    from app.coordinator.shell import Turn
    from app.metadata.cluster import ClusterImage, TopicImage

SIMPLE: Final = "simple"
"""The one assignor that there is."""
ASSIGNED_AT_ONCE_MAX: Final = 8
"""Members of a group up to which a new one does not wait for ``group.share.assignment.interval.ms``, and then for its next
heartbeat, 5 s later: until then the members before it would read alone."""


class ShareTimer(NamedTuple):
    """Key of the timer of a member's session."""

    kind: str
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member as the log says."""

    member_id: str
    subscription: ShareSubscription = field(default_factory=ShareSubscription)
    current: ShareAssignment = field(default_factory=ShareAssignment)


class ShareGroup:
    """One group. ``turn`` is where its records and timers go."""

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.config = config
        """As it is for this group now; whoever calls keeps it so."""
        self.epoch = 0
        self.metadata_hash = NO_HASH
        self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.topics: SharedTopics = NO_TOPICS
        """What members have subscribed to, also those that have left, and what offsets were set of; until it is forgotten."""
        self._topics_seen: Mapping[str, TopicImage] | None = None
        self._assigned_ms: int | None = None
        """When the target was computed, in steady time; None before the first one here."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(
        self, turn: Turn, request: ShareGroupHeartbeatRequest, client: Client, image: ClusterImage
    ) -> ShareGroupHeartbeatResponse:
        """A member joins, goes on or leaves. ``request`` has passed ``check_share_heartbeat``.

        Raises: RequestRejected UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_MAX_SIZE_REACHED, with nothing changed.
        """
        if request.member_epoch == LEAVING:
            self.remove(turn, self._member(request.member_id), image)
            return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVING)
        member = self._member_that_beats(request)
        known = member.subscription
        wanted = ShareSubscription(
            client.client_id,
            client.host,
            known.rack_id if request.rack_id is None else request.rack_id,
            known.topic_names if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
        )
        target_epoch = self.target_epoch
        records, current = self._advance(member, wanted, image, turn.steady_ms)
        self._write(turn, records)
        if self.target_epoch > target_epoch:
            self._assigned_ms = turn.steady_ms
        turn.set_timer(self._timer(member.member_id), self.config.group_share_session_timeout_ms)
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self.config.group_share_heartbeat_interval_ms,
        )
        says_everything = request.member_epoch == JOINING or request.subscribed_topic_names is not None
        if says_everything or current.assigned != member.current.assigned:
            response.assignment = HeartbeatAssignment(
                [TopicPartitions(topic_id, sorted(parts)) for topic_id, parts in current.assigned.items()]
            )
        return response

    def _member(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise RequestRejected(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _member_that_beats(self, request: ShareGroupHeartbeatRequest) -> ShareMember:
        size_max = self.config.group_share_max_size
        if request.member_id not in self.members:
            if request.member_epoch == JOINING and len(self.members) >= size_max:
                raise RequestRejected(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The share group has reached its maximum capacity of {size_max} members.",
                )
            if request.member_epoch == JOINING:
                return ShareMember(request.member_id)
        member = self._member(request.member_id)
        current = member.current
        if request.member_epoch not in (JOINING, current.member_epoch, current.previous_member_epoch):
            relation = "greater" if request.member_epoch > current.member_epoch else "smaller"
            raise RequestRejected(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The share group member has a {relation} member epoch ({request.member_epoch}) than the one known by the "
                f"group coordinator ({current.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        return member

    def _advance(
        self, member: ShareMember, wanted: ShareSubscription, image: ClusterImage, steady_ms: int
    ) -> tuple[list[ShareGroupRecord], ShareAssignment]:
        """The records that bring group and member up to date, and where the member is then. Nothing is changed yet."""
        records: list[ShareGroupRecord] = []
        member_id, before = member.member_id, member.subscription
        if wanted != before or member_id not in self.members:
            records.append(ShareMemberSubscription(member_id, wanted))
        epoch, target_epoch = self.epoch, self.target_epoch
        target = self.targets.get(member_id, NO_PARTITIONS)
        bump = epoch == 0 or wanted.topic_names != before.topic_names
        looks_again = bump or image.topics_by_name is not self._topics_seen
        if looks_again or epoch > target_epoch:  # else nobody else need be looked at
            subscriptions = {other.member_id: other.subscription for other in self.members.values()} | {
                member_id: wanted
            }
            names = frozenset[str]().union(*(each.topic_names for each in subscriptions.values()))
            if looks_again:
                hashed = metadata_hash(names, image)
                self._topics_seen = image.topics_by_name
                if bump or hashed != self.metadata_hash:
                    epoch += 1
                    records.append(ShareEpoch(epoch, hashed))
                topics = self._topics_with(names, image)
                if topics != self.topics:
                    records.append(ShareTopics(topics))
            if epoch > target_epoch and (
                self._may_assign(steady_ms) or self._need_not_wait(member_id, len(subscriptions))
            ):
                specs = {
                    other: MemberSpec(topic_ids(each.topic_names, image), self.targets.get(other, NO_PARTITIONS))
                    for other, each in subscriptions.items()
                }
                assigned = assign_shared(specs, topic_specs(names, image))
                records += [
                    ShareTarget(other, parts) for other, parts in assigned.items() if parts != self.targets.get(other)
                ]
                records.append(ShareTargetEpoch(epoch))
                target, target_epoch = assigned[member_id], epoch
        current = member.current
        if current.member_epoch != target_epoch or current.assigned != target:
            current = ShareAssignment(target_epoch, current.member_epoch, target)
            records.append(ShareCurrent(member_id, current))
        return records, current

    def _topics_with(self, names: Iterable[str], image: ClusterImage) -> SharedTopics:
        """What is remembered and still exists, and what is subscribed to now."""
        topics = {topic_id: topic for topic_id, topic in self.topics.items() if topic_id in image.topics_by_id}
        for name in names:
            topic = image.topic(name)
            if topic is not None:
                topics[topic.topic_id] = SharedTopic(name, frozenset(range(len(topic.partitions))))
        return topics

    def _may_assign(self, steady_ms: int) -> bool:
        """Whether a new target may be computed, as far as the time since the last one goes."""
        interval_ms = self.config.group_share_assignment_interval_ms
        return self._assigned_ms is None or steady_ms - self._assigned_ms >= interval_ms

    def _need_not_wait(self, member_id: str, members: int) -> bool:
        """Whether a member is alone, or was never assigned anything and is one of few, whose assignments cost little."""
        return members == 1 or (member_id not in self.targets and members <= ASSIGNED_AT_ONCE_MAX)

    def begin(self, turn: Turn) -> None:
        """Write a new group down that has no members yet. Raises: what an append raises; nothing is changed then."""
        self._write(turn, [ShareEpoch(1, NO_HASH), ShareTargetEpoch(1)])

    # --- topics that it has progress of ------------------------------------------------------------------------------

    def remember(self, turn: Turn, asked: SharedTopics) -> None:
        """Somebody sets offsets of these. Raises: what an append raises; nothing is changed then."""
        topics = dict(self.topics)
        for topic_id, topic in asked.items():
            known = topics.get(topic_id)
            topics[topic_id] = (
                topic if known is None else topic._replace(partitions=known.partitions | topic.partitions)
            )
        if topics != self.topics:
            self._write(turn, [ShareTopics(topics)])

    def forget(self, turn: Turn, topic_id: UUID) -> None:
        """The group has no progress of a topic any more; not of one to which somebody has come to subscribe.

        Raises: what an append raises; nothing is changed then.
        """
        topic = self.topics.get(topic_id)
        if topic is not None and not self.subscribes_to(topic.name):
            self._write(turn, [ShareTopics({other: self.topics[other] for other in self.topics if other != topic_id})])

    # --- ends of membership ------------------------------------------------------------------------------------------

    def remove(self, turn: Turn, member: ShareMember, image: ClusterImage) -> None:
        """Take a member out. Raises: what an append raises; nothing is changed then."""
        names = frozenset[str]().union(
            *(other.subscription.topic_names for other in self.members.values() if other is not member)
        )
        self._write(
            turn,
            [
                ShareCurrent(member.member_id, None),
                ShareTarget(member.member_id, None),
                ShareMemberSubscription(member.member_id, None),
                ShareEpoch(self.epoch + 1, metadata_hash(names, image)),
            ],
        )
        turn.cancel_timer(self._timer(member.member_id))

    def _timer(self, member_id: str) -> ShareTimer:
        return ShareTimer("share session", self.group_id, member_id)

    # --- what it is to others: Group ---------------------------------------------------------------------------------

    @property
    def group_type(self) -> GroupType:
        return GroupType.SHARE

    @property
    def protocol_type(self) -> str:
        return "share"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        """Kafka's name of it."""
        return "Stable" if self.members else "Empty"

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in member.subscription.topic_names for member in self.members.values())

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, *, transactional: bool, api_version: int
    ) -> None:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND: its progress is not offsets that somebody commits."""
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND."""
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def loaded(self, turn: Turn) -> None:
        """Members have a whole session time-out to be heard of again."""
        for member_id in self.members:
            turn.set_timer(self._timer(member_id), self.config.group_share_session_timeout_ms)

    # --- records ------------------------------------------------------------------------------------------------------

    def _write(self, turn: Turn, records: Sequence[ShareGroupRecord]) -> None:
        """Append records, then take them in. Raises: RequestRejected, with nothing changed."""
        if not records:
            return
        try:
            turn.append([to_bytes(self.group_id, record) for record in records])
        except RequestRejected:
            self._topics_seen = None  # what was seen of the topics did not come to be written down
            raise
        for record in records:
            self.replay(record)

    def replay(self, record: ShareGroupRecord) -> None:
        """Take in a record that was appended, now or before this broker led the partition."""
        match record:
            case ShareEpoch(epoch, hashed):
                self.epoch, self.metadata_hash = (0, NO_HASH) if epoch is None else (epoch, hashed)
            case ShareTargetEpoch(epoch):
                self.target_epoch = 0 if epoch is None else epoch
            case ShareMemberSubscription(member_id, subscription):
                if subscription is None:
                    self.members.pop(member_id, None)
                else:
                    known = self.members.get(member_id) or ShareMember(member_id)
                    self.members[member_id] = replace(known, subscription=subscription)
            case ShareTarget(member_id, partitions):
                if partitions is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = partitions
            case ShareCurrent(member_id, current):
                if current is not None:
                    known = self.members.get(member_id) or ShareMember(member_id)
                    self.members[member_id] = replace(known, current=current)
            case ShareTopics(topics):
                self.topics = topics

    def tombstones(self) -> list[RawRecord]:
        """The records that take the whole group out of the log."""
        records: list[ShareGroupRecord] = []
        for member_id in self.members:
            records += [ShareCurrent(member_id, None), ShareMemberSubscription(member_id, None)]
        records += [ShareTarget(member_id, None) for member_id in self.targets]
        if self.topics:
            records.append(ShareTopics(NO_TOPICS))
        records += [ShareTargetEpoch(None), ShareEpoch(None)]
        return [to_bytes(self.group_id, record) for record in records]


def check_share_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Whether a request makes sense by itself. Raises: RequestRejected INVALID_REQUEST."""
    if not request.member_id.strip():
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if len(request.member_id) > SHARE_MEMBER_ID_CHARS_MAX:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "MemberId is too long.")
    if not request.group_id.strip():
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVING:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def assign_shared(members: Mapping[str, MemberSpec], topics: Topics) -> dict[str, Assignment]:
    """Every partition to at least one subscriber, every subscriber to at least one partition, evenly; within that, everybody keeps
    what it has. A member whose partitions stay the same gets the very object that it had."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    counts = dict.fromkeys(members, 0)
    for topic_id in sorted(topics):
        count = topics[topic_id].partition_count
        # Who has fewest of the topics before gets most of this one.
        readers = sorted(
            (member_id for member_id, member in members.items() if topic_id in member.topic_ids),
            key=lambda member_id: (counts[member_id], member_id),
        )
        if not readers or not count:
            continue
        owned = {member_id: members[member_id].owned.get(topic_id, frozenset()) for member_id in readers}
        deal = _deal_partitions if count >= len(readers) else _deal_readers
        for member_id, parts in deal(count, owned).items():
            assigned[member_id][topic_id] = frozenset(parts)
            counts[member_id] += len(parts)
    return {
        member_id: members[member_id].owned if parts == members[member_id].owned else parts or NO_PARTITIONS
        for member_id, parts in assigned.items()
    }


def _deal_partitions(count: int, owned: Mapping[str, frozenset[int]]) -> dict[str, set[int]]:
    """``count`` partitions, each to one of no more readers, in whose order longer shares are given."""
    share, longer = divmod(count, len(owned))
    order = sorted(owned, key=lambda member_id: len(owned[member_id]) <= share)  # who has a longer share keeps it
    quotas = {member_id: share + (place < longer) for place, member_id in enumerate(order)}
    free = dict.fromkeys(range(count))
    dealt: dict[str, set[int]] = {}
    for member_id, quota in quotas.items():
        kept = [partition for partition in sorted(owned[member_id]) if partition in free][:quota]
        dealt[member_id] = set(kept)
        for partition in kept:
            del free[partition]
    hungry = deque(member_id for member_id, quota in quotas.items() if len(dealt[member_id]) < quota)
    for partition in free:
        member_id = hungry.popleft()
        dealt[member_id].add(partition)
        if len(dealt[member_id]) < quotas[member_id]:
            hungry.append(member_id)
    return dealt


def _deal_readers(count: int, owned: Mapping[str, frozenset[int]]) -> dict[str, set[int]]:
    """One of ``count`` partitions for each of more readers."""
    share, longer = divmod(len(owned), count)
    loads = [0] * count
    dealt: dict[str, set[int]] = {}
    for member_id, before in owned.items():
        for partition in sorted(before):
            if partition < count and loads[partition] < share + (longer > 0):
                longer -= loads[partition] == share
                loads[partition] += 1
                dealt[member_id] = {partition}
                break
    for member_id in owned:
        if member_id not in dealt:
            partition = min(range(count), key=loads.__getitem__)
            loads[partition] += 1
            dealt[member_id] = {partition}
    return dealt
