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
from typing import Final, NamedTuple, assert_never

from app.tiering.upload.led_partition import LedPartition

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


class TierGuards(NamedTuple):
    """The facts outside of a partition's record that decide about its round."""

    draining: bool
    copyable: Callable[[], bool]
    """Whether a segment may be copied now. It is called only where that decides, because it visits the segments."""


def is_due(partition: LedPartition, guards: TierGuards, now_s: float) -> bool:
    """Whether a round should begin. ``SWAP``, ``RECOPY``, ``DROP_LOCAL`` and abandoned entries wait for a round of other steps."""
    due = partition.due
    if partition.detached or now_s < due.retry_at_s:
        return False
    return (
        not partition.settled
        or now_s >= due.expire_at_s
        or now_s >= due.reconcile_at_s
        or (now_s >= due.sweep_at_s and not guards.draining)
        or partition.copies.finishing is not None
        or partition.copies.announced is not None
        or guards.copyable()
    )


def next_step(
    partition: LedPartition, guards: TierGuards, now_s: float, after: TierStep | None = None
) -> TierStep | None:
    """The next step of a round that has begun; None if the round is over.

    ``after``: the step that was carried out last, or ``LAST_COPYING`` after a copying step failed; None at the start.
    """
    if partition.detached:
        gives_up = after in (TierStep.FINISH, TierStep.COPY) and _gives_up(partition)
        return TierStep.GIVE_UP if gives_up else None
    for step in TierStep:
        is_left = after is None or step > after or step is after is TierStep.COPY
        if is_left and _applies(step, partition, guards, now_s):
            return step
    return None


def _applies(step: TierStep, partition: LedPartition, guards: TierGuards, now_s: float) -> bool:
    copies, due = partition.copies, partition.due
    match step:
        case TierStep.SETTLE:
            return not partition.settled
        case TierStep.SWAP:
            return copies.swapping is not None
        case TierStep.FINISH:
            return copies.finishing is not None
        case TierStep.COPY:
            return guards.copyable()
        case TierStep.GIVE_UP:
            return _gives_up(partition)
        case TierStep.RECOPY:
            return partition.log.config.compacted
        case TierStep.EXPIRE | TierStep.DELETE:
            return now_s >= due.expire_at_s
        case TierStep.DROP_LOCAL:
            return True
        case TierStep.RECONCILE:
            return now_s >= due.reconcile_at_s
        case TierStep.SWEEP:
            return now_s >= due.sweep_at_s and not guards.draining
        case _:
            assert_never(step)


def _gives_up(partition: LedPartition) -> bool:
    """Whether this broker has announced copies that will not be made."""
    return partition.copies.announced is not None or bool(partition.copies.abandoned)


def retry_pause_s(failures: int, *, corrupt: bool, draining: bool) -> float:
    """Seconds until the next round after so many failures in a row, without jitter. ``corrupt``: whether the data is damaged."""
    if corrupt:
        return CORRUPTION_BACKOFF_S  # in a drain, too: it is read and uploaded up to the damage each time
    return min(BACKOFF_DRAINING_S if draining else BACKOFF_MAX_S, BACKOFF_BASE_S * 2.0 ** min(failures, _DOUBLINGS_MAX))
