"""Ends the write-ahead logs of brokers that lead no more (ADR 0037, J16, J17).

An entry that ends leaderships leaves ranges open, and their partitions without a leader. The present controller then seals each log
that such ranges name, and writes the closing change, which also elects. If a seal cannot be put, it is tried again and again. Other
logs do not wait for it. The seal is put by the callable ``seal`` (``app/wal/taker.py``): a log that has a seal keeps it, so
two controllers find the same end, and the cluster log decides whose change counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from app.core.errors import CorruptionError, FirnError
from app.core.faults import Faults
from app.core.log_events import Event
from app.metadata.changes.wal_changes import WalSealed, plan_wal_sealed
from app.metadata.controller.controller import Controller
from app.metadata.image.image import ClusterImage, ImageDelta, TopicImage
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.image.wal_ranges import WalId
from app.metadata.replicas.log_leaders import orphaned
from app.metadata.view.view import ClusterView

SealLog = Callable[[WalId], Awaitable[int]]
"""Ends a log for good. Returns: its end. Raises: StorageUnavailable (nothing is known), CorruptionError."""

AT_ONCE_MAX: Final = 8
"""Logs that are sealed at the same time."""
AGAIN_FIRST_S: Final = 0.2
AGAIN_MAX_S: Final = 5.0
"""Pauses before a log is tried again."""

_logger = logging.getLogger(__name__)


class OrphanedLogs:
    """The logs that partitions wait for, each with how many do, by the newest image. Below level 3 it looks at nothing."""

    def __init__(self, view: ClusterView) -> None:
        self._of_topics: dict[UUID, Counter[WalId]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.waiting: Counter[WalId] = Counter()
        self._follow(view.image, ImageDelta.between(ClusterImage(), view.image))
        view.on_change(self._follow)

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever ``waiting`` has changed. It must not wait, nor raise."""
        self._listeners.append(tell)

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        # When the level is raised no topic has ranges yet, so it is enough to look at those that change.
        if image.level < OBJECT_LEVEL or not delta.topics:
            return
        changed = False
        for topic_id in delta.topics:
            topic = image.topic_by_id(topic_id)
            found = Counter() if topic is None else _logs_of(topic)
            before = self._of_topics.pop(topic_id, Counter())
            if found:
                self._of_topics[topic_id] = found
            changed |= found != before
        if changed:
            self.waiting = sum(self._of_topics.values(), Counter())
            for tell in self._listeners:
                tell()


def _logs_of(topic: TopicImage) -> Counter[WalId]:
    return Counter([found.wal for one in topic.partitions if (found := orphaned(one)) is not None])


class LogEnds:
    """Belongs to one event loop. Keep ``run`` running."""

    def __init__(
        self,
        view: ClusterView,
        controller: Controller,
        seal: SealLog,
        orphans: OrphanedLogs,
        *,
        rng: random.Random,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        self._view = view
        self._controller = controller
        self._seal = seal
        self._rng = rng
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._orphans = orphans
        self._look = asyncio.Event()
        self._look.set()
        self._ending: dict[WalId, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._damaged: dict[WalId, int] = {}
        """Logs that have ended, with how many damaged partitions wait for them for good (J21)."""
        orphans.on_change(self._look.set)
        controller.on_office(self._look.set)

    async def run(self) -> None:
        """End logs while this broker is the controller, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._look.wait()
                self._look.clear()
                if not self._controller.active:
                    self._damaged.clear()
                    continue
                for wal, waiting in self._orphans.waiting.items():
                    if wal not in self._ending and self._damaged.get(wal) != waiting:
                        task = self._ending[wal] = group.create_task(self._end(wal))
                        task.add_done_callback(lambda _, wal=wal: self._ending.pop(wal, None))  # type: ignore[misc]

    def _wanted(self, wal: WalId) -> bool:
        return self._controller.active and wal in self._orphans.waiting

    async def _end(self, wal: WalId) -> None:
        """End one log. Returns when nothing waits for it any more, or another broker is the controller."""
        pause_s = AGAIN_FIRST_S
        while self._wanted(wal):
            try:
                async with self._places:
                    if await self._try(wal):
                        return
            except FirnError as error:
                what = "is damaged" if isinstance(error, CorruptionError) else "cannot be sealed now"
                self._faults.met(
                    "sealing", f"write-ahead log {wal}", f"write-ahead log {wal} {what}; its partitions wait: {error}"
                )
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

    async def _try(self, wal: WalId) -> bool:
        """Returns: whether nothing is left to do. Raises: FirnError."""
        # A courtesy: a deposed controller would cost a living broker its registration.
        await self._controller.confirm()
        if not self._wanted(wal):
            return True
        end = await self._seal(wal)
        made = await self._controller.submit(lambda draft, around: plan_wal_sealed.steps(draft, around, wal, end))
        while made.more:
            self._tell(wal, end, made)
            made = await self._controller.submit(lambda draft, around: plan_wal_sealed.steps(draft, around, wal, end))
        self._tell(wal, end, made)
        if made.damaged:
            self._damaged[wal] = len(made.damaged)
        return True

    def _tell(self, wal: WalId, end: int, made: WalSealed) -> None:
        self._faults.over("sealing", f"write-ahead log {wal}")
        if made.closed:
            wait = f", {made.without_leader} of which wait for a broker" if made.without_leader else ""
            self._log_line(
                Event.WAL_ENDED.line(
                    f"write-ahead log {wal} has ended at {end}: others lead its {made.closed} partitions{wait}",
                    partitions=made.closed,
                )
            )
        for key, why in made.damaged:
            topic = self._view.image.topic_by_id(key.topic_id)
            name = topic.name if topic is not None else key.topic_id
            self._log_line(
                Event.PARTITION_LEADERLESS.line(
                    f"{name}-{key.partition} stays without a leader: {why}",
                    topic=str(name),
                    partition=int(key.partition),
                )
            )
