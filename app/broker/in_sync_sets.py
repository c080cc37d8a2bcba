"""Proposes in-sync sets to the controller, for all partitions that this broker leads (ADR 0024, R3 to R8).

``InSync`` decides what to propose. Partitions that want a look are gathered, and the proposals of a round are one AlterPartition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from app.errors import FirnError
from app.faults import Faults
from app.metadata.cluster import ClusterImage
from app.metadata.control import InSyncAnswer, InSyncAsked, MemberEpoch
from app.replication.partition import Partition, PartitionTable

ROUND_S: Final = 0.05
AGAIN_S: Final = 0.5
"""After this time a proposal without a decision is sent again."""
ASKED_MAX: Final = 5_000
"""Proposals of one request."""


class Proposes(Protocol):
    """The way to the controller."""

    async def alter_in_sync(self, asked: Sequence[InSyncAsked]) -> Sequence[InSyncAnswer]:
        """Raises: FirnError."""
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

    async def run(self) -> None:
        """Propose until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            asked = self._gather()
            if not asked:
                continue
            try:
                await self._proposes.alter_in_sync(asked)
            except FirnError as error:
                # What was proposed stays pending, and counts (R4); it is sent again after a pause.
                self._faults.met("proposing", "in-sync sets", f"the controller has not decided in-sync sets: {error}")
                await asyncio.sleep(AGAIN_S)

    def _gather(self) -> list[InSyncAsked]:
        image = self._image()
        now_ms = self._table.now_ms()

        def may_join(broker_id: int) -> bool:
            broker = image.brokers.get(broker_id)
            return broker is not None and broker.active

        epochs = {broker_id: broker.broker_epoch for broker_id, broker in image.brokers.items()}
        asked: list[InSyncAsked] = []
        for partition in self._table.to_look_at(now_ms):
            one = self._proposal(partition, now_ms, may_join, epochs)
            if one is not None:
                asked.append(one)
                if len(asked) == ASKED_MAX:
                    break
        return asked

    def _proposal(
        self, partition: Partition, now_ms: int, may_join: Callable[[int], bool], epochs: Mapping[int, int]
    ) -> InSyncAsked | None:
        counting = partition.counting
        if counting is None:
            return None
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
