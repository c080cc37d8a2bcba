"""Deletes committed offsets of deleted topics, and offsets that were unused for long. Pure.

Both searches go through all groups. There may be many groups with many offsets, so a search checks some of them, lets the event
loop serve other work, and continues.

Tests: ``tests/groups/test_offsets.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from app.configs import BrokerConfig
from app.coordinator.shell import Turn
from app.core.errors import CorruptionError, RequestRejected
from app.core.units import NO_OFFSET, NO_TIMESTAMP, Offset
from app.groups.classic.classic import ClassicGroup, ClassicState
from app.groups.classic.classic_member import CONSUMER_PROTOCOL
from app.groups.group import Group, GroupType
from app.groups.offsets.offsets import CommittedOffset, OffsetStore

MINUTE_MS: Final = 60_000

OFFSETS_AT_ONCE: Final = 1_000
"""Offsets and groups that are checked before the event loop serves other work."""

RETRY_MS: Final = 5_000
"""Pause after a failed append before due work is retried."""


class Chore(Enum):
    """Timer keys of this module. Groups have their own timer keys."""

    EXPIRY = "expiry"
    DELETED_TOPICS = "deleted topics"


class OffsetCleanup:
    """Cleans up the offsets of one shard."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetStore,
        config: Callable[[], BrokerConfig],
        forget_offsets: Callable[[Turn, str, Sequence[tuple[str, int]]], None],
        forget_group: Callable[[Turn, Group], None],
        topic_exists: Callable[[str], bool],
    ) -> None:
        """``forget_offsets`` and ``forget_group`` write tombstones, and then forget. They raise the errors of an append."""
        self._groups = groups
        self._offsets = offsets
        self._config = config
        self._forget_offsets = forget_offsets
        self._forget_group = forget_group
        self._topic_exists = topic_exists
        self._expiring: deque[str] = deque()
        """Groups that the present search for unused offsets has not finished."""
        self._unexpired: Iterator[tuple[str, int]] | None = None
        """Offsets of the first of these groups that are not checked yet; None before the group has begun."""
        self._deleted: dict[str, Offset] = {}
        """Deleted topics, each with the log end at its deletion: later commits belong to a new topic with the same name."""
        self._cleaning: Iterator[str] = iter(())
        """Groups that are not checked yet for offsets of deleted topics."""
        self._cleaned: tuple[str, Iterator[tuple[str, int, Offset]]] | None = None
        """The present group, and its offsets that are not checked yet."""

    def start(self, turn: Turn) -> None:
        """All offsets are loaded."""
        turn.set_timer(Chore.EXPIRY, self._config().offsets_retention_check_interval_ms)

    def due(self, turn: Turn, chore: Chore) -> None:
        match chore:
            case Chore.EXPIRY:
                self._expire_some(turn)
            case Chore.DELETED_TOPICS:
                self._clean_some(turn)

    # --- deleted topics -------------------------------------------------------------------------------------------------

    def topics_deleted(self, turn: Turn, names: Collection[str]) -> None:
        """Topics were deleted: their committed offsets are useless."""
        self._deleted.update(dict.fromkeys(names, self._offsets.newest_log_end))
        self._look_at_all_for_deleted()
        turn.set_timer(Chore.DELETED_TOPICS, 0)

    def _clean_some(self, turn: Turn) -> None:
        left = OFFSETS_AT_ONCE
        while left > 0:
            if self._cleaned is None:
                group_id = next(self._cleaning, None)
                if group_id is None:
                    self._deleted = {}
                    return
                self._cleaned = group_id, self._offsets.places_of(group_id, self._deleted)
            group_id, places = self._cleaned
            some = list(islice(places, left))
            gone = {
                (topic, partition)
                for topic, partition, log_end in some
                if log_end <= self._deleted.get(topic, NO_OFFSET)
            }
            try:
                self._forget_offsets(turn, group_id, sorted(gone))
            except RequestRejected:
                self._look_at_all_for_deleted()
                turn.set_timer(Chore.DELETED_TOPICS, RETRY_MS)
                return
            if len(some) < left:
                self._cleaned = None
            left -= 1 + len(some)
        turn.set_timer(Chore.DELETED_TOPICS, 0)

    def _look_at_all_for_deleted(self) -> None:
        self._cleaning, self._cleaned = iter(self._offsets.group_ids()), None

    # --- expiry ---------------------------------------------------------------------------------------------------------

    def _expire_some(self, turn: Turn) -> None:
        """Look for offsets that were unused for ``offsets.retention.minutes``, and for groups without any state.

        If the records of a group cannot be written, the next round retries.
        """
        if not self._expiring:
            self._expiring.extend(self._groups)
        left = OFFSETS_AT_ONCE
        while self._expiring:
            group_id = self._expiring[0]
            group = self._groups.get(group_id)
            # A share group is where its records are, and has no offsets here.
            if group is not None and group.group_type is not GroupType.SHARE:
                try:
                    is_ready = left > 0 and self._offsets.decode_some(group_id, OFFSETS_AT_ONCE)
                except CorruptionError:
                    # The offsets stay for as long as they cannot be read. Requests for them get the error.
                    self._expiring.popleft()
                    left -= 1
                    continue
                if not is_ready:
                    turn.set_timer(Chore.EXPIRY, 0)
                    return
                if self._unexpired is None:
                    self._unexpired = self._offsets.committed_places(group_id)
                some = list(islice(self._unexpired, left))
                try:
                    self._expire(turn, group, some)
                    if len(some) == left:
                        turn.set_timer(Chore.EXPIRY, 0)  # there may be more
                        return
                    if group.is_empty and group_id not in self._offsets and not _is_expected(group):
                        self._forget_group(turn, group)
                except RequestRejected:
                    pass  # all of it is looked at again in the next round
                left -= 1 + len(some)
            self._expiring.popleft()
            self._unexpired = None
        turn.set_timer(Chore.EXPIRY, self._config().offsets_retention_check_interval_ms)

    def _expire(self, turn: Turn, group: Group, places: Iterable[tuple[str, int]]) -> None:
        """Delete a group's due offsets. Raises: the errors of an append.

        Offsets of topics that do not exist are due: the topic was deleted while the group had no coordinator (ADR 0025, G10).
        """
        retention_ms = self._config().offsets_retention_minutes * MINUTE_MS
        group_id = group.group_id
        used: dict[str, bool] = {}
        exists: dict[str, bool] = {}
        gone: list[tuple[str, int]] = []
        for topic, partition in places:
            committed = self._offsets.get(group_id, topic, partition)
            if topic not in used:
                used[topic] = group.subscribes_to(topic)
                exists[topic] = self._topic_exists(topic)
            if committed is None or self._offsets.is_pending(group_id, topic, partition):
                continue
            if not exists[topic]:
                gone.append((topic, partition))
                continue
            if used[topic]:
                continue
            since_ms = _unused_since_ms(group, committed)
            if since_ms is not None and (
                turn.now_ms >= committed.expires_ms
                if committed.expires_ms != NO_TIMESTAMP
                else turn.now_ms - since_ms >= retention_ms
            ):
                gone.append((topic, partition))
        self._forget_offsets(turn, group_id, gone)


def _unused_since_ms(group: Group, committed: CommittedOffset) -> int | None:
    """The time since which an offset is unused, for a topic that no member reads; None while it may be used."""
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
    """Whether a client got a member id and may join, or the group has progress other than offsets."""
    if isinstance(group, ClassicGroup):
        return bool(group.pending_joins)
    return group.group_type is GroupType.SHARE
