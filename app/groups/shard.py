"""All groups and committed offsets of one partition of ``__consumer_offsets``. Input: events. Output: records and responses. Pure.

``app/coordinator/shell.py`` calls the methods. ``classic.py`` and ``consumer.py`` handle the members of a group. This module
handles groups of all types: their existence, offsets, listing, deletion, expiry, and the replacement of one type by another.

Tests: ``tests/groups/test_consumer_offsets_model.py``, ``tests/groups/test_compacted.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from itertools import chain, islice
from typing import Any, Final
from uuid import UUID

from app.configs import BrokerConfig
from app.configs.numbers import LONG_MAX
from app.coordinator.partition import ProducerIdAndEpoch, RawRecord, ReplayedBatch
from app.coordinator.records import GROUP_RECORDS
from app.coordinator.schemas.classic_group import GroupMetadataKey
from app.coordinator.shell import Reply, Turn
from app.core.errors import ErrorCode, RequestRejected
from app.core.metrics import Registry
from app.core.turns import Steps, whole
from app.core.units import NO_PRODUCER_ID, NO_TIMESTAMP, Offset, PartitionIndex, TimestampMs
from app.groups.classic.classic import ClassicGroup
from app.groups.classic.classic_member import (
    CONSUMER_PROTOCOL,
    ClassicTimer,
    Join,
    Protocols,
    Sync,
    metadata_bytes,
    protocol_bytes,
)
from app.groups.consumer.consumer import (
    JOINING,
    LEAVING,
    AssignmentDue,
    ClientInfo,
    ConsumerGroup,
    MemberTimer,
)
from app.groups.consumer.consumer_records import KEY_TYPES, GroupEpoch, from_bytes, to_bytes
from app.groups.consumer.members import Member
from app.groups.consumer.subscriptions import ResolvedRegex, TopicPattern
from app.groups.consumer.targets import Computed
from app.groups.counters import GroupCounters
from app.groups.group import Group, GroupType
from app.groups.memory import MEMBER_BYTES, PER_RECORD, GroupMemory
from app.groups.migration import classic_in_consumer
from app.groups.migration.migration import can_downgrade, can_upgrade, downgraded, upgraded
from app.groups.offsets.cleanup import Chore, OffsetCleanup
from app.groups.offsets.deletion import Deletion, DeletionDue, Deletions, sweeps_at_once, tombstones_at_once
from app.groups.offsets.offsets import (
    CommittedOffset,
    OffsetStore,
    group_prefix,
    offset_key,
    offset_keys,
    offset_place,
    offset_value,
)
from app.groups.offsets.sweeps import cut, sweep_records
from app.groups.share.core import share_records
from app.groups.share.core.share import ShareGroup, ShareTimer
from app.groups.share.core.share_records import SHARE_KEY_TYPES, SharedTopics, ShareEpoch
from app.groups.table import GroupTable
from app.metadata.changes.group_configs import config_of_group
from app.metadata.changes.internal_topics import CONSUMER_OFFSETS
from app.metadata.image.image import ClusterImage
from app.records.control import ControlType
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from app.wire.apis.join_group import JoinGroupResponse
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from app.wire.apis.sync_group import SyncGroupResponse

RETRY_MS: Final = 5_000
"""Pause after a failed append before due work is retried."""

GENERATIONLESS: Final = -1
"""Generation of a commit by a client that is not a member."""

EPOCHS_FROM: Final = 9
"""First version of OffsetCommit whose generation may be a member epoch, and whose response can say that the group does not
exist."""

CommittedPartition = tuple[int, int, int, str | None]
"""The fields of a commit: partition, offset, leader epoch, metadata."""


class GroupShard:
    """Groups by id, and their offsets."""

    def __init__(
        self,
        partition: PartitionIndex,
        config: Callable[[], BrokerConfig],
        rng: random.Random,
        image: Callable[[], ClusterImage] = ClusterImage,
        counters: GroupCounters | None = None,
        memory: GroupMemory | None = None,
        assign_later: Callable[[PartitionIndex, str], None] | None = None,
    ) -> None:
        """``config``, ``image``: functions that return the broker's present settings and cluster image. ``counters`` and
        ``memory``, which all shards of a broker share, are optional. ``assign_later``: has the target of a large group computed
        (``computed``, ``take``); without it, it is computed in one turn."""
        self.partition = partition
        self.config = config
        self.image = image
        self.rng = rng
        self._counters = GroupCounters(Registry()) if counters is None else counters
        self._memory = GroupMemory() if memory is None else memory
        self._assign_later = assign_later
        self.groups = GroupTable()
        self.offsets = OffsetStore()
        self._nameless: dict[str, ClassicGroup] = {}
        """Groups with offsets but without a loaded group record."""
        self._dropped: set[str] = set()
        """Groups with a tombstone in the loaded log. Later offsets may have been committed to them."""
        self._deletions = Deletions()
        self._cleanup = OffsetCleanup(
            self.groups,
            self.offsets,
            config,
            self._forget_offsets,
            self._forget_group,
            lambda name: self.image().topic(name) is not None,
        )

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch) -> None:
        if batch.marker is not None:
            self.offsets.end_transaction(batch.producer_id, commit=batch.marker.control_type is ControlType.COMMIT)
            return
        for key, value in self.offsets.load(batch.records, batch.producer_id, batch.end_offset):
            self._load_group(key, value)
        # Made on the way, a few at a time: at the end there could be many.
        for group_id in self.offsets.take_new():
            if group_id not in self.groups:
                self.groups[group_id] = self._nameless[group_id] = self._new_classic(group_id, NO_TIMESTAMP)

    def _load_group(self, raw_key: bytes, value: bytes | None) -> None:
        key = GROUP_RECORDS.decode_key(raw_key)
        if key is None:
            return  # of a kind that a newer version writes: this version cannot act on it
        if isinstance(key, GroupMetadataKey):
            if value is None:
                if isinstance(self.groups.get(key.group), ClassicGroup):
                    self._drop_loaded(key.group)
            else:
                found = GROUP_RECORDS.decode_value(key, value)
                self.groups[key.group] = ClassicGroup.from_record(key.group, found, self.config(), self.rng)
            return
        if isinstance(key, KEY_TYPES):
            self._load_consumer_group(key, value)
        elif isinstance(key, SHARE_KEY_TYPES):
            self._load_share_group(key, value)

    def _drop_loaded(self, group_id: str) -> None:
        del self.groups[group_id]
        self._dropped.add(group_id)

    def _load_consumer_group(self, key: Any, value: bytes | None) -> None:
        found = self.groups.get(key.group_id)
        if isinstance(found, ConsumerGroup):
            group = found
        elif value is None:
            return
        else:
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id, self._config_of(key.group_id))
        record = from_bytes(key, value)
        group.replay(record)
        if isinstance(record, GroupEpoch) and record.epoch is None:
            self._drop_loaded(key.group_id)

    def _load_share_group(self, key: Any, value: bytes | None) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ShareGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ShareGroup(key.group_id, self._config_of(key.group_id))
        record = share_records.from_bytes(key, value)
        group.replay(record)
        if isinstance(record, ShareEpoch) and record.epoch is None:
            self._drop_loaded(key.group_id)

    def loaded(self, turn: Turn) -> None:
        self.offsets.finish_loading()
        for group_id, nameless in self._nameless.items():
            if self.groups.get(group_id) is nameless and group_id not in self.offsets:
                del self.groups[group_id]
        for group_id in self._dropped:
            if group_id not in self.groups and group_id in self.offsets:
                self.groups[group_id] = self._new_classic(group_id, NO_TIMESTAMP)
        self._nameless, self._dropped = {}, set()
        for group_id, places, sweeps in self.offsets.take_unfinished():
            self._go_on_deleting(turn, group_id, places, sweeps)
        for group in self.groups.values():
            group.loaded(turn)
        self._cleanup.start(turn)

    def unloaded(self, turn: Turn) -> None:
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                group.unloaded(turn)

    def due(self, turn: Turn, key: Any) -> None:
        if isinstance(key, ClassicTimer):
            group = self.groups.get(key.group_id)
            if isinstance(group, ClassicGroup):
                count = len(group.members)
                group.due(turn, key)
                self._counters.members_expired[GroupType.CLASSIC].value += count - len(group.members)
        elif isinstance(key, MemberTimer):
            self._consumer_member_due(turn, key)
        elif isinstance(key, AssignmentDue):
            self._assignment_due(turn, key)
        elif isinstance(key, ShareTimer):
            self._share_member_due(turn, key)
        elif isinstance(key, Chore):
            self._cleanup.due(turn, key)
        elif isinstance(key, DeletionDue):
            self._deletions.due(turn, key)

    # --- which groups there are ---------------------------------------------------------------------------------------

    def _config_of(self, group_id: str) -> BrokerConfig:
        """The broker's settings with the group's overrides."""
        return config_of_group(self.config(), self.image().group_configs.get(group_id))

    def _new_classic(self, group_id: str, now_ms: int) -> ClassicGroup:
        return ClassicGroup(group_id, self.config(), self.rng, now_ms)

    def group(self, group_id: str) -> Group:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def classic_group(self, group_id: str) -> ClassicGroup:
        """Raises: RequestRejected UNKNOWN_MEMBER_ID if there is no group of that id and type, because then it has no members."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")
        return group

    def classic_group_to_join(self, turn: Turn, group_id: str, member_id: str) -> ClassicGroup:
        """The group for a join by the classic protocol. It may be new, or replace an empty group of another type.

        Raises: RequestRejected UNKNOWN_MEMBER_ID (no group, and not a new member), INCONSISTENT_GROUP_PROTOCOL; the errors of
        an append.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if group is not None and (not group.is_empty or isinstance(group, ShareGroup)):
            raise RequestRejected(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Group {group_id} has members of another protocol."
            )
        if member_id:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")
        new = self._new_classic(group_id, turn.now_ms)
        records = self.tombstones(group) if group is not None else []
        turn.append([*records, new.empty_record(turn.now_ms)])
        self.groups[group_id] = new
        return new

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND if there is none of that id and type."""
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def consumer_heartbeat(
        self,
        turn: Turn,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        resolved: ResolvedRegex | None = None,
    ) -> ConsumerGroupHeartbeatResponse | TopicPattern:
        """A heartbeat of the consumer protocol. The first one creates the group, or replaces an empty group of another type.

        If matching an expression would delay the event loop, the expression is returned. Match it elsewhere, and call again
        with the result as ``resolved``.

        Raises: RequestRejected GROUP_ID_NOT_FOUND; as ``ConsumerGroup.heartbeat``; nothing is changed then.
        """
        image = self.image()
        group = self._consumer_group_to_join(request)
        group.config = self._config_of(request.group_id)
        if request.member_epoch == LEAVING:
            self._take_out(turn, group, group.leaver(request))
            return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        if resolved is None:
            regex = group.unresolved_regex(request, turn.now_ms)
            if regex is not None:
                pattern = TopicPattern(regex)
                if not pattern.is_quick(image.topics_by_name):
                    return pattern
                resolved = pattern.resolve(image, turn.now_ms).seen_by(client.sees)
        target_epoch = group.target_epoch
        response = group.heartbeat(turn, request, client, image, resolved)
        self._counters.assignments[GroupType.CONSUMER].value += group.target_epoch > target_epoch
        before = self.groups.get(group.group_id)
        if before is not group:
            self.groups[group.group_id] = group
            if isinstance(before, ClassicGroup):
                before.replaced(turn)
            group.watch(turn)
        return response

    def _consumer_group_to_join(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        """The group of a heartbeat. A new group is not registered yet. Raises: RequestRejected GROUP_ID_NOT_FOUND."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if request.member_epoch == JOINING and isinstance(group, ClassicGroup) and not group.is_empty:
            if can_upgrade(group, self.config()):
                return upgraded(group, self.config(), self.image())
        elif request.member_epoch == JOINING and (group is None or isinstance(group, ClassicGroup)):
            return self._new_consumer_group(request.group_id, group)
        raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")

    def _new_consumer_group(self, group_id: str, group: Group | None) -> ConsumerGroup:
        """An empty group, which may replace an empty group of another type."""
        new = ConsumerGroup(group_id, self._config_of(group_id))
        if group is not None:
            new.replaces = self.tombstones(group)
        return new

    def _assignment_due(self, turn: Turn, key: AssignmentDue) -> None:
        """A target is due that takes long to compute."""
        if self._assign_later is not None:
            self._assign_later(self.partition, key.group_id)
        elif (steps := self.computed(key.group_id, turn.steady_ms)) is not None:
            self.take(turn, key.group_id, whole(steps))

    def computed(self, group_id: str, steady_ms: int) -> Steps[Computed] | None:
        """As ``ConsumerGroup.computed``; None if there is no such group."""
        group = self.groups.get(group_id)
        return group.computed(self.image(), steady_ms) if isinstance(group, ConsumerGroup) else None

    def take(self, turn: Turn, group_id: str, computed: Computed) -> None:
        """As ``ConsumerGroup.take``; the group may be gone."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.take(turn, computed, self.image()):
            self._counters.assignments[GroupType.CONSUMER].value += 1

    def was_not_written(self, group_id: str, error: RequestRejected, steady_ms: int) -> None:
        """As ``ConsumerGroup.was_not_written``; the group may be gone."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.was_not_written(error, steady_ms)

    def _consumer_member_due(self, turn: Turn, key: MemberTimer) -> None:
        """A member of the consumer protocol has missed a time limit."""
        group = self.groups.get(key.group_id)
        member = group.due(key) if isinstance(group, ConsumerGroup) else None
        if member is None:
            return
        assert isinstance(group, ConsumerGroup)
        try:
            self._take_out(turn, group, member)
        except RequestRejected:
            group.limit(turn, key.due, key.member_id, RETRY_MS)
        else:
            self._counters.members_expired[GroupType.CONSUMER].value += 1

    def _take_out(self, turn: Turn, group: ConsumerGroup, member: Member) -> None:
        """Remove a member of a consumer group. If only members of the classic protocol are left, the group becomes classic.

        Raises: the errors of an append; then nothing has changed.
        """
        if can_downgrade(group, member.member_id, self.config()):
            self._downgrade(turn, group, member.member_id)
        else:
            group.remove(turn, [member], self.image())

    def _downgrade(self, turn: Turn, group: ConsumerGroup, leaving_id: str | None) -> None:
        """Replace a consumer group by a classic group. Raises: the errors of an append."""
        classic = downgraded(group, leaving_id, self.config(), self.rng, self.image(), turn.now_ms)
        turn.append([*self.tombstones(group), classic.record_before_rebalance(turn.now_ms)])
        for member_id in group.members:
            group.cancel_timers(turn, member_id)
        self.groups[group.group_id] = classic
        classic.begin_anew(turn)

    # --- share groups -------------------------------------------------------------------------------------------------

    def share_group(self, group_id: str) -> ShareGroup:
        """Raises: RequestRejected GROUP_ID_NOT_FOUND if there is none of that id and type."""
        group = self.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return group

    def make_share_group(self, turn: Turn, group_id: str) -> None:
        """Create a share group without members, if there is no group of that id. Raises: the errors of an append."""
        if group_id not in self.groups:
            group = ShareGroup(group_id, self._config_of(group_id))
            group.begin(turn)
            self.groups[group_id] = group

    def is_shared(self, group_id: str, topic: str) -> bool:
        """Whether members of a share group of that id subscribe to the topic."""
        group = self.groups.get(group_id)
        return isinstance(group, ShareGroup) and group.subscribes_to(topic)

    def shared_topics(self, group_id: str) -> SharedTopics:
        """The topics in which a share group of that id has progress, or is about to begin."""
        group = self.groups.get(group_id)
        return group.topics if isinstance(group, ShareGroup) else share_records.NO_TOPICS

    def topics_without_states(self, group_id: str) -> SharedTopics | None:
        """The topics of a group with members, if states of their share-partitions may be missing; None if there are all."""
        group = self.groups.get(group_id)
        if not isinstance(group, ShareGroup) or group.is_empty or group.topics is group.topics_with_states:
            return None
        return group.topics

    def note_states(self, group_id: str, topics: SharedTopics) -> None:
        """The states of these topics, which ``topics_without_states`` returned, were made."""
        group = self.groups.get(group_id)
        if isinstance(group, ShareGroup) and group.topics is topics:
            group.topics_with_states = topics

    def share_heartbeat(
        self, turn: Turn, request: ShareGroupHeartbeatRequest, client: ClientInfo
    ) -> ShareGroupHeartbeatResponse:
        """A heartbeat of a member of a share group. The first one creates the group.

        Raises: RequestRejected GROUP_ID_NOT_FOUND; as ``ShareGroup.heartbeat``; then nothing has changed.
        """
        group = self.groups.get(request.group_id)
        if group is None and request.member_epoch == JOINING:
            group = ShareGroup(request.group_id, self._config_of(request.group_id))
        if not isinstance(group, ShareGroup):
            raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a share group.")
        group.config = self._config_of(request.group_id)
        target_epoch = group.target_epoch
        response = group.heartbeat(turn, request, client, self.image())
        self._counters.assignments[GroupType.SHARE].value += group.target_epoch > target_epoch
        self.groups[group.group_id] = group
        return response

    def _share_member_due(self, turn: Turn, key: ShareTimer) -> None:
        """A member of a share group sent no heartbeat in time."""
        group = self.groups.get(key.group_id)
        member = group.members.get(key.member_id) if isinstance(group, ShareGroup) else None
        if member is None:
            return
        assert isinstance(group, ShareGroup)
        try:
            group.remove(turn, member, self.image())
        except RequestRejected:
            turn.set_timer(key, RETRY_MS)
        else:
            self._counters.members_expired[GroupType.SHARE].value += 1

    # --- the classic protocol -----------------------------------------------------------------------------------------

    def join(self, turn: Turn, group_id: str, asked: Join, reply: Reply[JoinGroupResponse]) -> None:
        """A JoinGroup, to a group of either type. Raises: RequestRejected."""
        group = self.groups.get(group_id)
        self._check_memory(group, asked)
        if not isinstance(group, ConsumerGroup) or group.is_empty:
            self.classic_group_to_join(turn, group_id, asked.member_id).join(turn, asked, reply)
            return
        target_epoch = group.target_epoch
        answer = classic_in_consumer.join(group, turn, asked, self.image(), self.rng)
        self._counters.assignments[GroupType.CONSUMER].value += group.target_epoch > target_epoch
        if can_downgrade(group, None, self.config()):
            # The last static member of the consumer protocol has come back with the classic one.
            self._downgrade(turn, group, None)
        turn.answer(reply, answer)

    def _check_memory(self, group: Group | None, asked: Join) -> None:
        """Raises: RequestRejected MESSAGE_TOO_LARGE if the member's metadata could not go into the group's record,
        GROUP_MAX_SIZE_REACHED if the group keeps too much, COORDINATOR_NOT_AVAILABLE if all groups together do."""
        metadata = metadata_bytes(asked.protocols)
        most = self._record_bytes_max()
        if metadata > most:
            raise RequestRejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A member brings {metadata} bytes of metadata, and a record of {CONSUMER_OFFSETS.name} has {most} at most.",
            )
        brought = protocol_bytes(asked.protocols)
        known = _known_protocols(group, asked)
        if known is not None:
            sent = kept = brought - protocol_bytes(known)
        else:
            sent = brought + len(asked.client_id) + max(len(asked.client_id), len(asked.instance_id or ""))
            kept = MEMBER_BYTES + sent
        if isinstance(group, ClassicGroup) and sent > 0 and group.sent_bytes + sent > PER_RECORD * most:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The members of the group keep {group.sent_bytes} bytes of metadata, and {PER_RECORD * most} is the most.",
            )
        if not self._memory.admits(kept):
            raise RequestRejected(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The members of all groups keep as much metadata as they may."
            )

    def _record_bytes_max(self) -> int:
        """Of a record of a group."""
        topic = self.image().topic(CONSUMER_OFFSETS.name)
        own = None if topic is None else topic.configs.get("max.message.bytes")
        return self.config().topic_defaults.max_message_bytes if own is None else int(own)

    def sync(self, turn: Turn, group_id: str, asked: Sync, reply: Reply[SyncGroupResponse]) -> None:
        """A SyncGroup, to a group of either type. Raises: RequestRejected."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            turn.answer(reply, classic_in_consumer.sync(group, turn, asked, self.image()))
        else:
            self.classic_group(group_id).sync(turn, asked, reply)

    def heartbeat(self, turn: Turn, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """A Heartbeat, to a group of either type. Raises: RequestRejected."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            classic_in_consumer.heartbeat(group, turn, member_id, instance_id, generation)
        else:
            self.classic_group(group_id).heartbeat(turn, member_id, instance_id, generation)

    def leave(self, turn: Turn, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """A LeaveGroup, to a group of either type. Returns a code for each member. Raises: RequestRejected."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return classic_in_consumer.leave(group, turn, leaving, self.image())
        return self.classic_group(group_id).leave(turn, leaving)

    def topics_changed(self, added: Set[str], removed: Set[str], now_ms: int) -> Iterator[None]:
        """Topics were created or deleted: groups match their expressions with these names. Yields after each expression."""
        image = self.image()
        asks = bool(self.config().authorizer_class_name)
        for group_id in tuple(self.groups):
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup) and group.regexes:
                yield from group.topics_changed(added, removed, image, now_ms, asks=asks)

    def tombstones(self, group: Group) -> list[RawRecord]:
        """The tombstones of a group, without those of its offsets."""
        if isinstance(group, ClassicGroup):
            return [group.tombstone()]
        if isinstance(group, ShareGroup):
            return group.tombstones()
        assert isinstance(group, ConsumerGroup)
        return [to_bytes(group.group_id, record) for record in group.tombstones()]

    def empty_group(self, group_id: str) -> Group:
        """An empty group, which can be deleted. Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.group(group_id)
        if not group.is_empty:
            raise RequestRejected(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
        return group

    def delete_group(self, turn: Turn, group_id: str) -> None:
        """Delete an empty group and its offsets. They are gone at once, also after a crash. If there are too many tombstones
        for one turn, later turns write the rest.

        Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; the errors of an append. Then nothing has changed.
        """
        group = self.empty_group(group_id)
        prefix, at_once = group_prefix(group_id), tombstones_at_once(group_id)
        first = list(islice(self.offsets.places(group_id), at_once))
        gone: list[RawRecord] = [(prefix + place, None) for place in first]
        number = self.offsets.next_sweep
        sweeps = sweep_records(group_id, number, None, turn.now_ms) if len(first) == at_once else []
        turn.append([*self.tombstones(group), *gone, *sweeps])
        del self.groups[group_id]
        self._counters.offsets_deleted.value += len(first)
        rest = islice(self.offsets.detach(group_id), len(first), None)
        self._go_on_deleting(turn, group_id, rest, range(number, number + len(sweeps)))

    def _go_on_deleting(self, turn: Turn, group_id: str, places: Iterable[bytes], sweeps: Sequence[int]) -> None:
        """Write tombstones in later turns for the offsets that sweeps name, if there are sweeps."""
        if sweeps:
            self.offsets.next_sweep = max(self.offsets.next_sweep, *(number + 1 for number in sweeps))
            deletion = Deletion(group_id, places, sweeps, self.offsets, self._counters.offsets_deleted)
            self._deletions.begin(turn, deletion)

    # --- committing -----------------------------------------------------------------------------------------------------

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        member_epoch: int,
        *,
        transactional: bool,
        api_version: int,
        places: Callable[[], Iterable[tuple[str, int]]] = tuple,
    ) -> Group | None:
        """Check that offsets of ``places`` may be committed to a group, and return it; None for a group that the commit creates.

        Raises: RequestRejected ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND; as ``Group.check_offset_commit``.
        """
        group = self.groups.get(group_id)
        if group is None:
            if member_epoch < 0:
                return None
            if transactional or api_version < EPOCHS_FROM:
                raise RequestRejected(ErrorCode.ILLEGAL_GENERATION, f"Group {group_id} not found.")
            raise RequestRejected(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        try:
            if isinstance(group, ConsumerGroup):
                group.check_offset_commit(
                    member_id,
                    instance_id,
                    member_epoch,
                    transactional=transactional,
                    api_version=api_version,
                    partitions=lambda: ((self._topic_id(topic), partition) for topic, partition in places()),
                )
            else:
                group.check_offset_commit(
                    member_id, instance_id, member_epoch, transactional=transactional, api_version=api_version
                )
        except RequestRejected as error:
            if transactional and error.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise RequestRejected(ErrorCode.ILLEGAL_GENERATION, str(error)) from error
            raise
        return group

    def _topic_id(self, name: str) -> UUID | None:
        topic = self.image().topic(name)
        return None if topic is None else topic.topic_id

    def commit(
        self,
        turn: Turn,
        group_id: str,
        group: Group | None,
        member_id: str,
        commits: Iterable[tuple[str, Iterable[CommittedPartition]]],
        *,
        retention_ms: int = -1,
        producer: ProducerIdAndEpoch | None = None,
    ) -> None:
        """Commit offsets by topic, which ``check_commit`` allowed to ``group``.

        Raises: the errors of an append; then nothing is committed.
        """
        now_ms = turn.now_ms
        # A retention time from the client may mean for ever.
        expires_ms = NO_TIMESTAMP if retention_ms == -1 else min(now_ms + retention_ms, LONG_MAX)
        records: list[RawRecord] = []
        taken: list[tuple[str, list[CommittedPartition]]] = []
        for topic, partitions in commits:
            some = list(partitions)
            if not some:
                continue
            key = offset_keys(group_id, topic)
            for partition, offset, leader_epoch, metadata in some:
                records.append((key(partition), offset_value(offset, leader_epoch, metadata or "", now_ms, expires_ms)))
            taken.append((topic, some))
        if isinstance(group, ClassicGroup):
            group.committed(turn, member_id)
        if not records:
            return
        log_end = turn.append(records, producer=producer)
        if group is None:
            self.groups[group_id] = self._new_classic(group_id, now_ms)
        counters = self._counters
        (counters.offsets_committed if producer is None else counters.offsets_pending).value += len(records)
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        committed_ms, until_ms = TimestampMs(now_ms), TimestampMs(expires_ms)
        for topic, some in taken:
            self.offsets.put_all(
                group_id,
                topic,
                [
                    (partition, CommittedOffset(Offset(offset), epoch, metadata or "", committed_ms, until_ms, log_end))
                    for partition, offset, epoch, metadata in some
                ],
                producer_id,
            )

    def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The marker of a producer's transaction was appended to this partition."""
        self.offsets.end_transaction(producer_id, commit=commit)

    def delete_offsets(
        self, turn: Turn, group_id: str, asked: Iterable[tuple[str, Collection[int]]]
    ) -> list[tuple[str, ErrorCode]]:
        """Delete committed offsets of topics that no member reads. Returns a code for each topic. The offsets are gone at once,
        also after a crash. If there are too many tombstones for one turn, later turns write the rest. If naming the offsets
        takes more than one batch (more than 7,000 topics with names of 25 characters), a crash may leave some offsets.

        Raises: RequestRejected GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (a group whose members may read anything); the errors of an
        append. Then only offsets that earlier batches named are deleted.
        """
        group = self.group(group_id)
        if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            raise RequestRejected(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
        codes: list[tuple[str, ErrorCode]] = []
        named: set[tuple[str, int]] = set()
        for topic, partitions in asked:
            if group.subscribes_to(topic):
                codes.append((topic, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC))
                continue
            codes.append((topic, ErrorCode.NONE))
            named.update((topic, partition) for partition in self.offsets.those_there(group_id, topic, partitions))
        gone, at_once = sorted(named), tombstones_at_once(group_id)
        first, parts = gone[:at_once], tuple(cut(gone[at_once:]))
        self._delete_offsets(turn, group_id, first, parts[: sweeps_at_once(group_id)])
        for start in range(sweeps_at_once(group_id), len(parts), sweeps_at_once(group_id)):
            self._delete_offsets(turn, group_id, (), parts[start : start + sweeps_at_once(group_id)])
        return codes

    def _delete_offsets(
        self,
        turn: Turn,
        group_id: str,
        first: Sequence[tuple[str, int]],
        parts: Sequence[Sequence[tuple[str, int]]],
    ) -> None:
        """Delete offsets with one batch: ``first`` by tombstones, ``parts`` by sweeps. Raises: the errors of an append; then
        nothing is deleted."""
        if not first and not parts:
            return
        number = self.offsets.next_sweep
        sweeps = sweep_records(group_id, number, parts, turn.now_ms)
        turn.append([*((offset_key(group_id, *each), None) for each in first), *sweeps])
        for topic, partition in chain(first, *parts):
            self.offsets.delete(group_id, topic, partition)
        self._counters.offsets_deleted.value += len(first)
        places = (offset_place(*each) for each in chain.from_iterable(parts))
        self._go_on_deleting(turn, group_id, places, range(number, number + len(sweeps)))

    def _forget_offsets(self, turn: Turn, group_id: str, gone: Sequence[tuple[str, int]]) -> None:
        """Delete some offsets. Raises: the errors of an append; the offsets of the failed batch are not deleted."""
        at_once = tombstones_at_once(group_id)
        for start in range(0, len(gone), at_once):
            self._delete_offsets(turn, group_id, gone[start : start + at_once], ())

    def _forget_group(self, turn: Turn, group: Group) -> None:
        """Delete an empty group, but not its offsets. Raises: the errors of an append."""
        turn.append(self.tombstones(group))
        del self.groups[group.group_id]

    def topics_deleted(self, turn: Turn, names: Collection[str]) -> None:
        """Topics were deleted: their committed offsets are useless."""
        self._cleanup.topics_deleted(turn, names)


def _known_protocols(group: Group | None, asked: Join) -> Protocols | None:
    """The protocols that a joining member has sent before; None if it is new."""
    if isinstance(group, ClassicGroup):
        known = group.member_that_joins(asked.member_id, asked.instance_id)
        return None if known is None else known.protocols
    if isinstance(group, ConsumerGroup):
        member = group.members.get(asked.member_id)
        if not asked.member_id and asked.instance_id is not None:
            member = group.member_of_instance(asked.instance_id)
        if member is not None:
            classic = member.subscription.classic
            return () if classic is None else classic.protocols
    return None
