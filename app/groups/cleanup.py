"""Which committed offsets go by themselves: of topics that were deleted, and those that nobody has used for long. Pure.

Both look through all groups, of which there may be many, with many offsets; so they look at some of them, let the event loop
turn, and go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from app.configs import BrokerConfig
from app.coordinator.shell import Turn
from app.errors import CorruptionError, RequestRejected
from app.groups.classic import ClassicGroup, ClassicState
from app.groups.classic_member import CONSUMER_PROTOCOL
from app.groups.group import Group, GroupType
from app.groups.offsets import CommittedOffset, OffsetStore
from app.units import NO_OFFSET, NO_TIMESTAMP, Offset

MINUTE_MS: Final = 60_000

OFFSETS_AT_ONCE: Final = 1_000
"""Offsets and groups that are looked at before the event loop turns."""

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
        """Groups that the present search for unused offsets has still to look at, or is looking at."""
        self._unexpired: Iterator[tuple[str, int]] | None = None
        """Of the first of them, the offsets that it has still to look at; None before it has begun."""
        self._deleted: dict[str, Offset] = {}
        """Deleted topics, and where the newest offset of each can be in the log: what is committed later is of a successor."""
        self._cleaning: Iterator[str] = iter(())
        """Groups that have still to be looked at for offsets of deleted topics."""
        self._cleaned: tuple[str, Iterator[tuple[str, int, Offset]]] | None = None
        """The one that is being looked at, and its offsets that have still to be."""

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
        """Look for offsets that nobody has used for ``offsets.retention.minutes``, and for groups with nothing left.

        A group whose records cannot be written is looked at again in the next round.
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
                    # They stay, for as long as they cannot be read; whoever asks for them is told.
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
        """Forget those of a group's offsets that are due. Raises: what an append raises."""
        retention_ms = self._config().offsets_retention_minutes * MINUTE_MS
        group_id = group.group_id
        used: dict[str, bool] = {}
        gone: list[tuple[str, int]] = []
        for topic, partition in places:
            committed = self._offsets.get(group_id, topic, partition)
            if topic not in used:
                used[topic] = group.subscribes_to(topic)
            if committed is None or used[topic] or self._offsets.is_pending(group_id, topic, partition):
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
