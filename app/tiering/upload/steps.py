"""When a led partition gets a round of tiering, and which step of the round is next. Pure.

A round goes through the steps in the order of ``TierStep``, and leaves out those that are not due. ``RemoteLogManager`` carries
them out. The order keeps these rules:

- Copies of earlier leaderships are settled before a new copy begins: a later finish would raise the tiered end (INV-4).
- A swap or a finish whose outcome is unknown is repeated before anything else is copied, because it may have been written.
- A failed copy does not keep old segments from expiring: the round goes on with ``EXPIRE``.
- Local segments go after all copies of the round, and only below the durable tiered end (INV-4).
- A broker that does not lead any more begins no step (T9). It only gives up entries of its own that it announced (INV-2: the write
  is conditional).

Each step is durable before the next one begins. So a round may end after any step, and the next one goes on from the manifest.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

BACKOFF_BASE_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
BACKOFF_DRAINING_S: Final = 1.0
"""Shorter than otherwise, because producers wait for the store while the broker drains."""
CORRUPTION_BACKOFF_S: Final = 300.0
_DOUBLINGS_MAX: Final = 16


class TierStep(enum.IntEnum):
    """The steps of a round, in their order."""

    SETTLE = enum.auto()
    """Finish or give up copies that an earlier leadership left unfinished."""
    SWAP = enum.auto()
    """Repeat the entry that replaces remote segments by cleaned ones."""
    FINISH = enum.auto()
    """Repeat the COPY_FINISHED of an uploaded segment."""
    COPY = enum.auto()
    """Copy the oldest rolled segment that is not in the store. Only this step repeats."""
    GIVE_UP = enum.auto()
    """Give up this broker's announced entries that no copy will finish."""
    RECOPY = enum.auto()
    """Copy cleaned segments in place of all remote ones, if that is worth it."""
    EXPIRE = enum.auto()
    """Raise the log start durably, with DELETE_STARTED for the segments below it."""
    DELETE = enum.auto()
    """Delete the objects whose delay is over."""
    DROP_LOCAL = enum.auto()
    """Delete local segments that the tier has."""
    RECONCILE = enum.auto()
    """Compare the local log with the manifest."""
    SWEEP = enum.auto()
    """Look for orphans."""


LAST_COPYING: Final = TierStep.RECOPY
"""Up to here the steps copy. Their failure does not end the round."""


@dataclass(slots=True, eq=False)
class TierDeadlines:
    """When the regular work of a partition is due next, in seconds of loop time."""

    retry_at_s: float = 0.0
    """No round begins before. Later than the loop time only after a failure."""
    expire_at_s: float = 0.0
    retention_at_s: float = 0.0
    """Time of the next check of ``retention.ms``, which is a part of ``EXPIRE``."""
    reconcile_at_s: float = 0.0
    sweep_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TierFacts:
    """The facts that decide about a round, besides the deadlines."""

    copyable: Callable[[], bool]
    """Whether a segment may be copied now. It is called only where that decides, because it visits the segments."""
    detached: bool = False
    """Whether this broker leads the partition no more."""
    draining: bool = False
    unsettled: bool = False
    """Whether copies of earlier leaderships were not looked for yet."""
    swapping: bool = False
    finishing: bool = False
    announced: bool = False
    """Whether the next copy was announced together with the finish of the previous one."""
    abandoned: bool = False
    """Whether announced entries of this broker will not be finished."""
    compacted: bool = False


def is_due(facts: TierFacts, due: TierDeadlines, now_s: float) -> bool:
    """Whether a round should begin. ``SWAP``, ``RECOPY``, ``DROP_LOCAL`` and abandoned entries wait for a round of other steps."""
    if facts.detached or now_s < due.retry_at_s:
        return False
    return (
        facts.unsettled
        or now_s >= due.expire_at_s
        or now_s >= due.reconcile_at_s
        or (now_s >= due.sweep_at_s and not facts.draining)
        or facts.finishing
        or facts.announced
        or facts.copyable()
    )


def next_step(facts: TierFacts, due: TierDeadlines, now_s: float, after: TierStep | None = None) -> TierStep | None:
    """The next step of a round that has begun; None if the round is over.

    ``after``: the step that was carried out last, or ``LAST_COPYING`` after a copying step failed; None at the start.
    """
    if facts.detached:
        gives_up = after in (TierStep.FINISH, TierStep.COPY) and (facts.announced or facts.abandoned)
        return TierStep.GIVE_UP if gives_up else None
    for step in TierStep:
        is_left = after is None or step > after or step is after is TierStep.COPY
        if is_left and _applies(step, facts, due, now_s):
            return step
    return None


def _applies(step: TierStep, facts: TierFacts, due: TierDeadlines, now_s: float) -> bool:
    match step:
        case TierStep.SETTLE:
            return facts.unsettled
        case TierStep.SWAP:
            return facts.swapping
        case TierStep.FINISH:
            return facts.finishing
        case TierStep.COPY:
            return facts.copyable()
        case TierStep.GIVE_UP:
            return facts.announced or facts.abandoned
        case TierStep.RECOPY:
            return facts.compacted
        case TierStep.EXPIRE | TierStep.DELETE:
            return now_s >= due.expire_at_s
        case TierStep.DROP_LOCAL:
            return True
        case TierStep.RECONCILE:
            return now_s >= due.reconcile_at_s
        case TierStep.SWEEP:
            return now_s >= due.sweep_at_s and not facts.draining
        case _:
            assert_never(step)


def retry_pause_s(failures: int, *, corrupt: bool, draining: bool) -> float:
    """Seconds until the next round after so many failures in a row, without jitter. ``corrupt``: whether the data is damaged."""
    if corrupt:
        return CORRUPTION_BACKOFF_S  # in a drain, too: it is read and uploaded up to the damage each time
    return min(BACKOFF_DRAINING_S if draining else BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** min(failures, _DOUBLINGS_MAX))
