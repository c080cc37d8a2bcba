"""The decision of a follower about the leader's response for one partition (ADR 0024, A1 to A4, T5). Pure.

The owner takes an ``LogAtFetch`` when it sends a fetch, and decides by the log as it is when the response comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from app.core.errors import ErrorCode


class LogAtFetch(NamedTuple):
    """The log as it was when a fetch was sent."""

    leader_epoch: int
    log_end: int
    truncations: int
    """How often the log was cut; it may have grown to the same end since (A1)."""


class FollowedPartition(NamedTuple):
    """The leader's response for the partition."""

    error: ErrorCode
    high_watermark: int
    log_start: int
    diverging: tuple[int, int] | None
    """The leader's greatest epoch that is not above the follower's last one, and where it ended (A2)."""
    has_records: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, if there are any; then everything below ``high_watermark`` and the log end is committed."""

    high_watermark: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log back to ``offset``, and ask again."""

    offset: int
    committed: int = 0
    """How many offsets of committed records are cut away. An unclean election has given them up."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """Begin anew at the leader's log start: earlier records are deleted everywhere."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAtTier:
    """Begin anew at the tiered end: the leader has earlier records in the store only (T5)."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """Acknowledged records would have to be cut away (A3)."""

    why: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """The answer is about a log that is not this one any more (A1)."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The leader cannot answer now, or is none: the image will say more."""

    error: ErrorCode


Step: TypeAlias = Append | Truncate | StartAt | StartAtTier | Damaged | Ignore | Pause


def step(
    asked: LogAtFetch,
    now: LogAtFetch,
    answered: FollowedPartition,
    *,
    high_watermark: int,
    epoch_end: Callable[[int], tuple[int, int]],
    last_epoch: int,
    unclean_epoch: int,
) -> Step:
    """Decide the next step. ``now``: the log as it is. ``high_watermark``: of this replica. ``epoch_end``: greatest own epoch
    that is not above the given one, -1 for none, and where it ends. ``last_epoch``: of the last own record, -1 for none.
    ``unclean_epoch``: the leader epoch of the last unclean election that is known, -1 for none."""
    if asked != now:
        return Ignore()
    match answered.error:
        case ErrorCode.NONE:
            pass
        case ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return StartAtTier()
        case ErrorCode.OFFSET_OUT_OF_RANGE if answered.log_start > now.log_end:
            return StartAt(answered.log_start)
        case error:
            return Pause(error)
    if answered.diverging is None:
        return Append(answered.high_watermark, answered.log_start)
    epoch, end = answered.diverging
    own_epoch, own_end = epoch_end(epoch)
    # An epoch that the leader does not have is cut away whole; the next answer compares the one before it.
    offset = min(own_end if own_epoch >= 0 else 0, now.log_end)
    if own_epoch == epoch:
        offset = min(offset, end)
    if offset < high_watermark:
        if last_epoch < unclean_epoch <= asked.leader_epoch:
            return Truncate(offset, committed=high_watermark - offset)
        return Damaged(
            f"the leader's history differs from offset {offset} on, and records below {high_watermark} were committed"
        )
    return Truncate(offset)
