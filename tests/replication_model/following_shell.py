"""What a follower does with the steps of ``following.step``: it fetches, truncates, appends, syncs, starts at the tiered end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.errors import ErrorCode
from app.core.units import LeaderEpoch, Offset
from app.replication.following import (
    Append,
    Damaged,
    FollowedPartition,
    Ignore,
    LogAtFetch,
    Pause,
    StartAt,
    StartAtTier,
    Truncate,
)

if TYPE_CHECKING:
    from tests.replication_model.disk import Record
    from tests.replication_model.replicas import Replica

RETRY_MS: Final = 150.0
TIMEOUT_MS: Final = 1500.0


class FetchAsked(NamedTuple):
    """A follower's fetch of one partition."""

    index: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    """Epoch of its last record, -1 if it has none."""
    stored_end: int


class Fetched(NamedTuple):
    """The response to a follower."""

    error: ErrorCode = ErrorCode.NONE
    records: tuple[Record, ...] = ()
    high_watermark: int = -1
    diverging: tuple[int, int] | None = None


class FollowerShell:
    """Of one partition, under one leader epoch."""

    def __init__(self, replica: Replica, leader: int, epoch: int) -> None:
        self._replica = replica
        self._process = replica.process
        self._leader = leader
        self._epoch = epoch
        if self._process.rules.cuts_to_high_watermark:
            replica.truncate_to(max(replica.high_watermark, replica.log.start))
        self._process.after(0.0, self._fetch)

    @property
    def _lives(self) -> bool:
        return self._replica.follower is self and self._process.alive

    def _now(self) -> LogAtFetch:
        log = self._replica.log
        return LogAtFetch(self._replica.epoch, log.end, log.truncations)

    def _fetch(self) -> None:
        if not self._lives:
            return
        replica, process = self._replica, self._process
        log = replica.log
        asked = FetchAsked(
            replica.index,
            process.node_id,
            process.broker_epoch,
            self._epoch,
            log.end,
            log.last_epoch,
            replica.stored_end,
        )
        state, answers = self._now(), [0]

        def answered(response: Any) -> None:
            answers[0] += 1
            # The first answer, or its lack, lets the loop go on. Later ones are copies, or late.
            self._answered(state, response, goes_on=answers[0] == 1)

        process.world.network.call(process, self._leader, "fetch", asked, answered, timeout_ms=TIMEOUT_MS)

    def _answered(self, asked: LogAtFetch, response: Any, *, goes_on: bool) -> None:
        replica, process = self._replica, self._process
        if replica.offline or replica.leader is not None or not process.alive or replica.process.replicas.gone(replica):
            return
        goes_on = goes_on and self._lives
        if not isinstance(response, Fetched):
            if goes_on:
                process.after(RETRY_MS, self._fetch)
            return
        log = replica.log
        answered = FollowedPartition(
            response.error, response.high_watermark, 0, response.diverging, bool(response.records)
        )
        match process.rules.step(
            asked,
            self._now(),
            answered,
            high_watermark=replica.high_watermark,
            epoch_end=self._epoch_end,
            last_epoch=log.last_epoch,
            unclean_epoch=replica.unclean_epoch,
        ):
            case Append(high_watermark):
                if response.records:
                    replica.append(list(response.records))
                replica.raise_high_watermark(min(high_watermark, log.end))
                if process.world.plan.disk and log.synced_end < log.end:
                    replica.sync(self._fetch if goes_on else lambda: None)
                elif goes_on:
                    self._fetch()
            case Truncate(offset):
                replica.truncate_to(offset)
                if goes_on:
                    self._fetch()
            case StartAtTier():
                replica.manifest.poll(lambda ok: self._tier_read(ok, goes_on))
            case Damaged(why):
                replica.offline = why
                process.trace(f"p{replica.index} is offline: {why}")
                replica.resign(why)
            case StartAt():
                raise AssertionError("nothing is deleted in this model")
            case Ignore():
                if goes_on:
                    self._fetch()
            case Pause():
                if goes_on:
                    process.after(RETRY_MS, self._fetch)

    def _epoch_end(self, epoch: int) -> tuple[int, int]:
        found, end = self._replica.log.epochs.end_offset_of(LeaderEpoch(epoch), Offset(self._replica.log.end))
        return int(found), int(end)

    def _tier_read(self, ok: bool, goes_on: bool) -> None:
        if not self._lives:
            return
        replica = self._replica
        offset = self._process.rules.start_in_tier(replica)
        if ok and offset > replica.log.end:
            replica.restart_at(offset, replica.tier_epochs())
        if goes_on:
            self._process.after(RETRY_MS, self._fetch)
