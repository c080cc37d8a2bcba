"""A broker gives up leaderships of partitions in its write-ahead log (ADR 0037, J18, J49): because it stops, or for others to lead.

The partitions take no more records, their records reach the bucket, and one request names the last number of each. From then on
each waits for an image with a higher partition epoch, which names the leader.

All looks at the led partitions go in portions (INV-15). A partition is decided in one step, by the newest image.

Tests: ``tests/broker/test_write_ahead_released.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from app.core.errors import (
    BrokerUnavailable,
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
    clause,
)
from app.core.log_events import Event
from app.core.turns import Portion, ordered, run
from app.core.units import BrokerId, TopicIdPartition
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.peers.control import ANYBODY, InSyncAnswer, ReleaseAsked
from app.metadata.replicas.log_balance import busiest_first, may_move, reassigned, spread, to_give

if TYPE_CHECKING:
    from app.broker.write_ahead.write_ahead import WriteAhead

Ask = Callable[[Sequence[ReleaseAsked]], Awaitable[Sequence[InSyncAnswer]]]
"""``ClusterMember.release``."""

RELEASED_AT_ONCE: Final = 10_000
"""Partitions of one request."""
LOOK_S: Final = 0.02
"""Between two looks for an image that is on its way."""
LOOKS_MAX: Final = 50
SETTLED_S: Final = 1.0
"""After a broker has come: others that come with it are counted, too."""
GIVEN_AT_ONCE: Final = 128
"""Leaderships that move together. Each is without a leader for a moment, which grows with their number."""
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 2.0


class Releases:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        wal: WriteAhead,
        *,
        image: Callable[[], ClusterImage],
        broker_id: BrokerId,
        ask: Ask,
        log_line: Callable[[str], None],
    ) -> None:
        self._wal = wal
        self._image = image
        self._broker_id = broker_id
        self._ask = ask
        self._log_line = log_line

    async def give_up(
        self, keys: Collection[TopicIdPartition], *, to: Mapping[TopicIdPartition, int] | int = ANYBODY
    ) -> None:
        """Give partitions up that this broker leads, by one change for all of them. ``to``: the preferred next leaders.

        Returns when the image has decided each: another broker leads, or none, or this broker again because no other can. Cancel it
        only if the process ends: from the request on the partitions take no records until then, for every answer (J18).
        """
        by = object()
        self._wal.stop_taking(keys, by)
        await self._wal.flushed(keys)
        asked: dict[TopicIdPartition, int] = {}
        """The partition epoch of the newest request."""
        left = dict.fromkeys(keys)
        pause_s = AGAIN_S
        portion = Portion()
        while left:
            releases: list[ReleaseAsked] = []
            for key in tuple(left):
                partition = self._led(key)
                number = None if partition is None else self._wal.last_number(key)
                if partition is None or number is None:
                    del left[key]  # others lead, or will, or this broker leads anew: the stopped leadership has ended
                elif asked.get(key, partition.partition_epoch) < partition.partition_epoch:
                    self._wal.take_again(key, by)
                    del left[key]
                else:
                    named = to if isinstance(to, int) else to.get(key, ANYBODY)
                    place = (key.topic_id, int(key.partition), int(partition.leader_epoch), partition.partition_epoch)
                    releases.append(ReleaseAsked(*place, number, named))
                if portion.spent_by():
                    await portion.rest()  # the controller refuses a release whose partition epoch has become old
            if not releases:
                return
            for one in releases:
                asked[TopicIdPartition(*one[:2])] = one.partition_epoch  # type: ignore[arg-type]
            if await self._request(releases):
                await self._followed(asked, left)
                pause_s = AGAIN_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)

    async def ours(self) -> list[TopicIdPartition]:
        """The partitions that this broker leads by the newest image, with records in its write-ahead log."""
        found: list[TopicIdPartition] = []
        portion = Portion()
        for key in self._wal.led_partitions:
            if self._led(key) is not None:
                found.append(key)
            if portion.spent_by():
                await portion.rest()
        return found

    def _led(self, key: TopicIdPartition) -> PartitionImage | None:
        """The partition, if this broker leads it in its present write-ahead log, by the newest image."""
        found = self._image().partition(key.topic_id, key.partition)
        if found is None or found.leader != self._broker_id or not found.wal_ranges:
            return None
        newest = found.wal_ranges[-1]
        return found if newest.is_open and newest.wal == self._wal.id else None

    async def _request(self, releases: Sequence[ReleaseAsked]) -> bool:
        """Returns: whether the controller has decided each. Its image is to be waited for."""
        for first in range(0, len(releases), RELEASED_AT_ONCE):
            try:
                answers = await self._ask(releases[first : first + RELEASED_AT_ONCE])
            except (BrokerUnavailable, ProtocolError, StorageUnavailable, RequestRejected):
                return False
            decided = (ErrorCode.NONE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
            if any(one.error not in decided for one in answers):
                return False  # of an older image: ask again with the newer one
        return True

    async def _followed(self, asked: Mapping[TopicIdPartition, int], left: Collection[TopicIdPartition]) -> None:
        """Wait up to a second for an image that is newer than the request."""
        waiting = list(left)
        portion = Portion()
        for _ in range(LOOKS_MAX):
            while waiting:
                key = waiting[-1]
                found = self._led(key)
                if found is not None and found.partition_epoch <= asked.get(key, -1):
                    break
                waiting.pop()
                if portion.spent_by():
                    await portion.rest()
            if not waiting:
                return
            await asyncio.sleep(LOOK_S)


async def leave(releases: Releases, *, to: int, within_s: float, log_line: Callable[[str], None]) -> None:
    """Before a stop in order: give up all leaderships. The controller ends those that cannot be given up in time."""
    try:
        async with asyncio.timeout(within_s):
            while keys := await releases.ours():
                await releases.give_up(keys, to=to)
                await asyncio.sleep(LOOK_S)
    except (TimeoutError, FirnError) as error:
        why = clause(error) or "not in time"
        left = len(await releases.ours())
        log_line(
            Event.WAL_NOT_RELEASED.line(
                f"{left} partitions were not given up: the controller ends their write-ahead log ({why})",
                partitions=left,
            )
        )


class Balance:
    """Gives leaderships to brokers that lead fewer, soon after they have come (J50), and to those that reassignments name (J18).
    Keep ``run`` running."""

    def __init__(
        self,
        releases: Releases,
        wal: WriteAhead,
        *,
        image: Callable[[], ClusterImage],
        broker_id: BrokerId,
        interval_s: Callable[[], float | None],
        log_line: Callable[[str], None],
    ) -> None:
        """``interval_s``: between two looks while nothing happens; None if leaderships are to stay where they are."""
        self._releases = releases
        self._wal = wal
        self._image = image
        self._broker_id = broker_id
        self._interval_s = interval_s
        self._log_line = log_line
        self._look = asyncio.Event()

    def changed(self) -> None:
        """Look soon: a broker may have come, or a partition that this broker leads was reassigned."""
        self._look.set()

    async def run(self) -> None:
        """Until cancelled, which is only for a process that ends."""
        while True:
            self._look.clear()
            interval_s = self._interval_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._look.wait()
            await asyncio.sleep(SETTLED_S)
            await self._move_reassigned()
            if interval_s is not None:
                await self._even_out()

    async def _move_reassigned(self) -> None:
        image = self._image()
        to = await run(reassigned.steps(image, self._broker_id, image.topics_by_id.values()))
        keys = [key for key in self._wal.led_partitions if key in to]
        for first in range(0, len(keys), GIVEN_AT_ONCE):
            await self._releases.give_up(keys[first : first + GIVEN_AT_ONCE], to=to)

    async def _even_out(self) -> None:
        given = 0
        portion = Portion()
        while takers := (await run(to_give.steps(self._image(), self._broker_id), portion))[:GIVEN_AT_ONCE]:
            image = self._image()
            loads: dict[TopicIdPartition, float] = {}
            for key, load in self._wal.loads().items():
                found = image.partition(key.topic_id, key.partition)
                if found is not None and may_move(found):
                    loads[key] = load
                if portion.spent_by():
                    await portion.rest()
            to = dict(
                zip(spread(await ordered(loads, portion, busiest_first(loads)), len(takers)), takers, strict=False)
            )
            if not to:
                break
            await self._releases.give_up(list(to), to=to)
            given += len(to)
        if given:
            self._log_line(
                Event.LEADERSHIP_GIVEN.line(
                    f"{given} partitions were given to brokers that lead fewer", partitions=given
                )
            )
