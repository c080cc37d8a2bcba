"""Which committed offsets go by themselves: of topics that were deleted, and those that nobody has used for long. Pure.

Both look through all groups, of which there may be many, with many offsets; so they look at some of them, let the event loop
turn, and go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from app.configs import BrokerConfig
from app.coordinator.shell import Turn
from app.errors import RequestRejected
from app.groups.classic import CONSUMER_PROTOCOL, ClassicGroup, ClassicState
from app.groups.group import Group, GroupType
from app.groups.offsets import CommittedOffset, OffsetStore
from app.units import NO_TIMESTAMP, Offset

MINUTE_MS: Final = 60_000

OFFSETS_AT_ONCE: Final = 1_000
"""Offsets that are looked at before the event loop turns, and no more than one group beyond them."""

RETRY_MS: Final = 5_000
"""After an append that failed, until what is due is tried again."""


class Chore(Enum):
    """What is due beside groups, whose timers have keys of their own."""

    EXPIRY = "expiry"
    DELETED_TOPICS = "deleted topics"


class OffsetCleanup:
    """Looks after the offsets of one shard."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetStore,
        config: Callable[[], BrokerConfig],
        forget_offsets: Callable[[Turn, str, Sequence[tuple[str, int]]], None],
        forget_group: Callable[[Turn, Group], None],
    ) -> None:
        """``forget_offsets`` and ``forget_group`` write tombstones and then forget; they raise what an append raises."""
        self._groups = groups
        self._offsets = offsets
        self._config = config
        self._forget_offsets = forget_offsets
        self._forget_group = forget_group
        self._expiring: deque[str] = deque()
        """Groups that the present search for unused offsets has still to look at."""
        self._deleted: dict[str, Offset] = {}
        """Deleted topics, and where the newest offset of each can be in the log: what is committed later is of a successor."""
        self._cleaning: Iterator[str] = iter(())
        """Groups that have still to be looked at for offsets of deleted topics."""

    def start(self, turn: Turn) -> None:
        """All offsets are known now."""
        turn.set_timer(Chore.EXPIRY, self._config().offsets_retention_check_interval_ms)

    def due(self, turn: Turn, chore: Chore) -> None:
        match chore:
            case Chore.EXPIRY:
                self._expire_some(turn)
            case Chore.DELETED_TOPICS:
                self._clean_some(turn)

    # --- deleted topics -------------------------------------------------------------------------------------------------

    def topics_deleted(self, turn: Turn, names: Collection[str]) -> None:
        """Topics are gone: nobody can go on where he was in them."""
        self._deleted.update(dict.fromkeys(names, self._offsets.newest_log_end))
        self._cleaning = iter(self._offsets.group_ids())
        turn.set_timer(Chore.DELETED_TOPICS, 0)

    def _clean_some(self, turn: Turn) -> None:
        looked_at = 0
        for group_id in self._cleaning:
            looked_at += self._offsets.count(group_id)
            gone = {
                (topic, partition)
                for topic, partition, log_end in self._offsets.places_of(group_id, self._deleted)
                if log_end <= self._deleted[topic]
            }
            try:
                self._forget_offsets(turn, group_id, sorted(gone))
            except RequestRejected:
                self._cleaning = iter(self._offsets.group_ids())
                turn.set_timer(Chore.DELETED_TOPICS, RETRY_MS)
                return
            if looked_at >= OFFSETS_AT_ONCE:
                turn.set_timer(Chore.DELETED_TOPICS, 0)
                return
        self._deleted = {}

    # --- expiry ---------------------------------------------------------------------------------------------------------

    def _expire_some(self, turn: Turn) -> None:
        """Look for offsets that nobody has used for ``offsets.retention.minutes``, and for groups with nothing left.

        A group whose records cannot be written is looked at again in the next round.
        """
        if not self._expiring:
            self._expiring.extend(self._groups)
        looked_at = 0
        while self._expiring:
            group_id = self._expiring.popleft()
            group = self._groups.get(group_id)
            if group is None or group.group_type is GroupType.SHARE:
                continue  # a share group is where its records are, and has no offsets here
            looked_at += 1 + self._offsets.count(group_id)
            if not self._offsets.decode_some(group_id, OFFSETS_AT_ONCE):
                self._expiring.appendleft(group_id)
                turn.set_timer(Chore.EXPIRY, 0)
                return
            try:
                self._expire(turn, group)
            except RequestRejected:
                continue
            if looked_at >= OFFSETS_AT_ONCE and self._expiring:
                turn.set_timer(Chore.EXPIRY, 0)
                return
        turn.set_timer(Chore.EXPIRY, self._config().offsets_retention_check_interval_ms)

    def _expire(self, turn: Turn, group: Group) -> None:
        retention_ms = self._config().offsets_retention_minutes * MINUTE_MS
        group_id = group.group_id
        gone: list[tuple[str, int]] = []
        left = False
        for topic, partitions in self._offsets.topics(group_id).items():
            used = group.subscribes_to(topic)
            for partition, committed in partitions.items():
                since_ms = None if used else _unused_since_ms(group, committed)
                if since_ms is None or self._offsets.is_pending(group_id, topic, partition):
                    left = True
                elif (
                    turn.now_ms >= committed.expires_ms
                    if committed.expires_ms != NO_TIMESTAMP
                    else turn.now_ms - since_ms >= retention_ms
                ):
                    gone.append((topic, partition))
                else:
                    left = True
        self._forget_offsets(turn, group_id, gone)
        if not left and group.is_empty and not self._offsets.has_pending(group_id) and not _is_expected(group):
            self._forget_group(turn, group)


def _unused_since_ms(group: Group, committed: CommittedOffset) -> int | None:
    """Since when nobody has used an offset of a topic that no member reads; None while it may be used."""
    if not isinstance(group, ClassicGroup) or not group.protocol_type:
        return committed.committed_ms
    if group.state is ClassicState.EMPTY:
        return group.since_ms if group.since_ms >= 0 else committed.committed_ms
    if (
        group.state is ClassicState.STABLE
        and group.protocol_type == CONSUMER_PROTOCOL
        and group.subscribed_topics is not None
    ):
        return committed.committed_ms
    return None


def _is_expected(group: Group) -> bool:
    """Whether somebody was given a member id of the group and is about to join, or its progress, which is not offsets, waits."""
    if isinstance(group, ClassicGroup):
        return bool(group.pending_joins)
    return group.group_type is GroupType.SHARE
