"""A share group: members that read the same partitions together, record by record (KIP-932). A pure state machine.

As in a consumer group (``consumer.py``), changed subscriptions raise the group epoch and lead to a new target assignment, at
most once in ``group.share.assignment.interval.ms``. But several members may share a partition, so no member has to give up
partitions first: a member gets its target with its next heartbeat. A new member of a small group gets it at once. The
share-partitions decide which member gets which record (``share_state.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import SHARE_MEMBER_ID_CHARS_MAX
from app.groups.consumer.assignors import NO_PARTITIONS, Assignment, MemberSpec, Topics
from app.groups.consumer.consumer import JOINING, LEAVING, ClientInfo
from app.groups.consumer.subscriptions import NO_HASH, metadata_hash, topic_ids, topic_specs
from app.groups.group import GroupType
from app.groups.share.core.share_records import (
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
    from app.metadata.image.image import ClusterImage, TopicImage

SIMPLE: Final = "simple"
"""The only assignor."""
SHARE_READS_MAX: Final = 6_000
"""Topics to which the members of a share group subscribe, each counted for each member. Every member reads each of its topics, so
an assignment costs 3 µs for each of them (INV-15)."""
SHARE_NAMES_MAX: Final = 2_000
"""Topics to which one member subscribes."""
ASSIGNED_AT_ONCE_MAX: Final = 8
"""Up to this group size, a new member does not wait for ``group.share.assignment.interval.ms`` and then for its next heartbeat, 5 s
later. Until then the earlier members would read alone."""


class ShareTimer(NamedTuple):
    """Key of the timer of a member's session."""

    kind: str
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member, as in the log."""

    member_id: str
    subscription: ShareSubscription = field(default_factory=ShareSubscription)
    current: ShareAssignment = field(default_factory=ShareAssignment)


class ShareGroup:
    """One group. ``turn`` takes its records and timers."""

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.config = config
        """The present settings for this group. The caller keeps them up to date."""
        self.epoch = 0
        self.metadata_hash = NO_HASH
        self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.topics: SharedTopics = NO_TOPICS
        """Topics to which present and former members have subscribed, or whose offsets were set, until they are forgotten."""
        self.topics_with_states: SharedTopics | None = None
        """The topics when this coordinator last made the states of their share-partitions. They are made again after a load, since
        it is unknown whether all were made before."""
        self._topics_seen: Mapping[str, TopicImage] | None = None
        self._assigned_ms: int | None = None
        """Time of the last target, in monotonic time; None before the first target on this broker."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(
        self, turn: Turn, request: ShareGroupHeartbeatRequest, client: ClientInfo, image: ClusterImage
    ) -> ShareGroupHeartbeatResponse:
        """A member joins, stays or leaves. ``request`` has passed ``check_share_heartbeat``.

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
        """The records that update group and member, and the member's assignment afterwards. Changes nothing yet."""
        records: list[ShareGroupRecord] = []
        member_id, before = member.member_id, member.subscription
        if wanted != before or member_id not in self.members:
            records.append(ShareMemberSubscription(member_id, wanted))
        epoch, target_epoch = self.epoch, self.target_epoch
        target = self.targets.get(member_id, NO_PARTITIONS)
        bump = epoch == 0 or wanted.topic_names != before.topic_names
        looks_again = bump or image.topics_by_name is not self._topics_seen
        if looks_again or epoch > target_epoch:  # else no other member need be looked at
            subscriptions = {other.member_id: other.subscription for other in self.members.values()} | {
                member_id: wanted
            }
            if bump:
                _check_size(subscriptions.values())
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
        """The remembered topics that still exist, and the subscribed topics."""
        topics = {topic_id: topic for topic_id, topic in self.topics.items() if topic_id in image.topics_by_id}
        for name in names:
            topic = image.topic(name)
            if topic is not None:
                topics[topic.topic_id] = SharedTopic(name, frozenset(range(len(topic.partitions))))
        return topics

    def _may_assign(self, steady_ms: int) -> bool:
        """Whether enough time has passed since the last target to compute a new one."""
        interval_ms = self.config.group_share_assignment_interval_ms
        return self._assigned_ms is None or steady_ms - self._assigned_ms >= interval_ms

    def _need_not_wait(self, member_id: str, members: int) -> bool:
        """Whether a member is alone, or is new in a small group, where assignments are cheap."""
        return members == 1 or (member_id not in self.targets and members <= ASSIGNED_AT_ONCE_MAX)

    def begin(self, turn: Turn) -> None:
        """Write a new group without members. Raises: the errors of an append; then nothing has changed."""
        self._write(turn, [ShareEpoch(1, NO_HASH), ShareTargetEpoch(1)])

    # --- topics that it has progress of ------------------------------------------------------------------------------

    def remember(self, turn: Turn, asked: SharedTopics) -> None:
        """Note that offsets of these topics are set. Raises: the errors of an append; then nothing has changed."""
        topics = dict(self.topics)
        for topic_id, topic in asked.items():
            known = topics.get(topic_id)
            topics[topic_id] = (
                topic if known is None else topic._replace(partitions=known.partitions | topic.partitions)
            )
        if topics != self.topics:
            self._write(turn, [ShareTopics(topics)])

    def forget(self, turn: Turn, topic_id: UUID) -> None:
        """Forget topics without progress, except topics with a new subscriber.

        Raises: the errors of an append; then nothing has changed.
        """
        self.topics_with_states = None
        topic = self.topics.get(topic_id)
        if topic is not None and not self.subscribes_to(topic.name):
            self._write(turn, [ShareTopics({other: self.topics[other] for other in self.topics if other != topic_id})])

    # --- ends of membership ------------------------------------------------------------------------------------------

    def remove(self, turn: Turn, member: ShareMember, image: ClusterImage) -> None:
        """Remove a member. Raises: the errors of an append; then nothing has changed."""
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

    # --- Group -------------------------------------------------------------------------------------------------------

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
        """Kafka's name of the state."""
        return "Stable" if self.members else "Empty"

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in member.subscription.topic_names for member in self.members.values())

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, *, transactional: bool, api_version: int
    ) -> None:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND, because a share group has no offsets to commit."""
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND."""
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def loaded(self, turn: Turn) -> None:
        """After a load, give members a whole session time-out for their next heartbeat."""
        for member_id in self.members:
            turn.set_timer(self._timer(member_id), self.config.group_share_session_timeout_ms)

    # --- records ------------------------------------------------------------------------------------------------------

    def _write(self, turn: Turn, records: Sequence[ShareGroupRecord]) -> None:
        """Append records, then apply them. Raises: RequestRejected, with nothing changed."""
        if not records:
            return
        try:
            turn.append([to_bytes(self.group_id, record) for record in records])
        except RequestRejected:
            self._topics_seen = None  # the records about these topics were not written
            raise
        for record in records:
            self.replay(record)

    def replay(self, record: ShareGroupRecord) -> None:
        """Apply a record that was appended now, or before this broker led the partition."""
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
        """The tombstones of the whole group."""
        records: list[ShareGroupRecord] = []
        for member_id in self.members:
            records += [ShareCurrent(member_id, None), ShareMemberSubscription(member_id, None)]
        records += [ShareTarget(member_id, None) for member_id in self.targets]
        if self.topics:
            records.append(ShareTopics(NO_TOPICS))
        records += [ShareTargetEpoch(None), ShareEpoch(None)]
        return [to_bytes(self.group_id, record) for record in records]


def _check_size(subscriptions: Iterable[ShareSubscription]) -> None:
    """Raises: RequestRejected GROUP_MAX_SIZE_REACHED."""
    lists = [len(each.topic_names) for each in subscriptions]
    if sum(lists) > SHARE_READS_MAX:
        raise RequestRejected(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The members of the share group would subscribe to {sum(lists)} topics in sum, and {SHARE_READS_MAX} are allowed. Use "
            "several groups.",
        )


def check_share_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Check a request by itself. Raises: RequestRejected INVALID_REQUEST."""
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
    names = request.subscribed_topic_names
    if names is not None and len(names) > SHARE_NAMES_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"SubscribedTopicNames has {len(names)} names, and {SHARE_NAMES_MAX} are allowed. Use several groups.",
        )


def assign_shared(members: Mapping[str, MemberSpec], topics: Topics) -> dict[str, Assignment]:
    """Assign every partition to at least one subscriber, and at least one partition to every subscriber, evenly. Within that,
    members keep their partitions. A member with unchanged partitions gets the same object."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    counts = dict.fromkeys(members, 0)
    for topic_id in sorted(topics):
        count = topics[topic_id].partition_count
        # The member with the fewest partitions of the earlier topics gets most of this one.
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
    """Divide ``count`` partitions among at most as many readers. Earlier readers get the larger shares."""
    share, longer = divmod(count, len(owned))
    order = sorted(owned, key=lambda member_id: len(owned[member_id]) <= share)  # a member with a longer share keeps it
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
    """One of ``count`` partitions for each reader, if there are more readers than partitions."""
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
