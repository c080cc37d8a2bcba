"""Proposes in-sync sets to the controller, for all partitions that this broker leads (ADR 0024, R3 to R8).

``InSync`` decides about proposals, and the ``PartitionTable`` knows which partitions want a look. Those of a short while are
gathered, and the proposals of a round are one AlterPartition. A broker at rest looks at nothing.

Tests: ``tests/broker/test_replication.py``, ``tests/broker/test_readers.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from app.core.errors import FirnError
from app.core.faults import Faults
from app.core.seams import shared_wait_s
from app.metadata.image.image import ClusterImage
from app.metadata.peers.control import DropAsked, InSyncAnswer, InSyncAsked, MemberEpoch, ReleaseAsked, SwitchAsked
from app.replication.partition import Partition, PartitionTable

ROUND_S: Final = 0.05
"""From the first wish for a look until the round begins."""
LATE_S: Final = 0.5
"""So much later than its time a follower may be found to be late, so that one wake-up finds many. Kafka looks twice in
``replica.lag.time.max.ms``."""
LOOKED_AT_ONCE: Final = 500
"""Partitions that are looked at before the loop serves other work. Each takes up to 10 µs."""
AGAIN_S: Final = 0.5
"""After this time a proposal without a decision is sent again."""
ASKED_MAX: Final = 5_000
"""Proposals of one request."""


class Proposes(Protocol):
    """The way to the controller."""

    async def alter_in_sync(self, asked: Sequence[InSyncAsked]) -> Sequence[InSyncAnswer]:
        """Raises: FirnError."""
        ...


class ChangesLogs(Protocol):
    """The way to the controller for partitions that this broker leads in its write-ahead log (ADR 0037). See ``ClusterMember``."""

    async def release(self, asked: Sequence[ReleaseAsked]) -> Sequence[InSyncAnswer]:
        """Give partitions up (J18). Raises: FirnError."""
        ...

    async def drop_ranges(self, asked: Sequence[DropAsked]) -> Sequence[InSyncAnswer]:
        """Have ranges taken out that are done (J35). Raises: FirnError."""
        ...

    async def switch(self, asked: Sequence[SwitchAsked]) -> Sequence[InSyncAnswer]:
        """Have changes of durability completed (J40, J41). Raises: FirnError."""
        ...


class InSyncSets:
    """Belongs to one event loop. Keep ``run`` running."""

    def __init__(
        self, table: PartitionTable, image: Callable[[], ClusterImage], proposes: Proposes, *, faults: Faults
    ) -> None:
        self._table = table
        self._image = image
        self._proposes = proposes
        self._faults = faults
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Propose until cancelled."""
        table = self._table
        table.on_look = self._wanted.set
        try:
            while True:
                await self._wait()
                asked = await self._gather()
                if not asked:
                    continue
                try:
                    await self._proposes.alter_in_sync(asked)
                except FirnError as error:
                    # The proposals stay pending, and count (R4). They are sent again after a pause.
                    self._faults.met(
                        "proposing", "in-sync sets", f"the controller has not decided in-sync sets: {error}"
                    )
                    await asyncio.sleep(AGAIN_S)
        finally:
            table.on_look = None

    async def _wait(self) -> None:
        """Until a partition wants a look, or the time of one has come."""
        table = self._table
        self._wanted.clear()
        if not table.wants_look:
            next_ms = table.next_look_ms()
            wait_s = None
            if next_ms is not None:
                now_s = table.now_ms() / 1000
                wait_s = shared_wait_s(now_s, max(next_ms / 1000 - now_s, 0.0) + LATE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
        if table.wants_look:
            await asyncio.sleep(ROUND_S)

    async def _gather(self) -> list[InSyncAsked]:
        asked: list[InSyncAsked] = []
        image: ClusterImage | None = None
        epochs: dict[int, int] = {}
        while len(asked) <= ASKED_MAX - LOOKED_AT_ONCE:
            if image is not (image := self._image()):
                epochs = {broker_id: broker.broker_epoch for broker_id, broker in image.brokers.items()}
            now_ms = self._table.now_ms()
            looked_at = self._table.take_looks(now_ms, LOOKED_AT_ONCE)
            for partition in looked_at:
                one = self._proposal(partition, now_ms, image, epochs)
                if one is not None:
                    asked.append(one)
                self._table.looked_at(partition)
            if len(looked_at) < LOOKED_AT_ONCE:
                break
            await asyncio.sleep(0)
        return asked

    def _proposal(
        self, partition: Partition, now_ms: int, image: ClusterImage, epochs: Mapping[int, int]
    ) -> InSyncAsked | None:
        counting = partition.counting
        if counting is None:
            return None

        def may_join(broker_id: int) -> bool:
            broker = image.brokers.get(broker_id)
            return broker is not None and broker.active

        proposal = counting.proposal(now_ms, may_join=may_join, broker_epochs=epochs)
        if proposal is None:
            return None
        return InSyncAsked(
            partition.topic_id,
            partition.index,
            proposal.leader_epoch,
            proposal.partition_epoch,
            tuple(MemberEpoch(*member) for member in proposal.members),
        )
