"""The audit log as records of the topic ``__firn_audit`` (ADR 0033).

A broker writes to a partition that it leads, or else to the leader of one.

Tests: ``tests/broker/test_audit.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.limits import KIB
from app.core.units import BrokerId, TimestampMs
from app.records.builder import build_batch
from app.security.noting import AUDIT_TOPIC

if TYPE_CHECKING:
    from app.core.seams import BlockingPool, Clock
    from app.metadata.controller.controller import Controller
    from app.metadata.image.image import BrokerImage, TopicImage
    from app.metadata.view.view import ClusterView
    from app.replication.partition import PartitionTable

BATCH_BYTES_MAX: Final = 256 * KIB
WITHIN_S: Final = 30.0
"""Time for one batch: a new leader is elected within it."""
AGAIN_S: Final = 0.5
RETENTION_MS: Final = 7 * 86_400_000
CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
"""Settings of the topic when it is created. The operator may change them later."""


@runtime_checkable
class ProduceLink(Protocol):
    """The way to partitions that other brokers lead."""

    async def produce(self, to: BrokerImage, topic: str, index: int, batch: bytes) -> None:
        """Have the leader append a batch. Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        ...


class TopicPlace:
    """The topic. Belongs to one loop."""

    name = f"the topic {AUDIT_TOPIC}"

    def __init__(
        self,
        broker_id: int,
        *,
        cluster: ClusterView,
        controller: Controller,
        partitions: PartitionTable,
        link: ProduceLink | None,
        clock: Clock,
        pool: BlockingPool,
        now_s: Callable[[], float],
    ) -> None:
        """``link``: None on a broker that is alone. ``now_s``: loop time."""
        self._broker_id = broker_id
        self._cluster = cluster
        self._controller = controller
        self._partitions = partitions
        self._link = link
        self._clock = clock
        self._pool = pool
        self._now_s = now_s
        self.patient = True
        """Whether to try again for a while. Not when the broker stops."""

    async def write(self, lines: Sequence[bytes]) -> tuple[int, str]:
        written = 0
        while written < len(lines):
            size, end = 0, written
            for line in lines[written:]:
                if size and size + len(line) > BATCH_BYTES_MAX:
                    break
                size += len(line)
                end += 1
            why = await self._store(lines[written:end])
            if why:
                return written, why
            written = end
        return written, ""

    async def _store(self, lines: Sequence[bytes]) -> str:
        """Store one batch. Returns: why it could not be stored, empty if it is."""
        now_ms = TimestampMs(self._clock.now_ms())
        batch = build_batch([(now_ms, None, line.rstrip(b"\n"), ()) for line in lines])
        until_s = self._now_s() + WITHIN_S
        while True:
            try:
                await self._append(await self._topic(), batch, now_ms)
            except FirnError as error:
                if not self.patient or self._now_s() >= until_s:
                    return str(error)
                await asyncio.sleep(AGAIN_S)
            else:
                return ""

    async def _topic(self) -> TopicImage:
        """The topic, which is made if it is missing. Raises: FirnError."""
        topic = self._cluster.image.topic(AUDIT_TOPIC)
        if topic is not None:
            return topic
        image, config = self._cluster.image, self._cluster.effective_broker_config()
        try:
            return await self._controller.create_topic(
                AUDIT_TOPIC,
                max(1, sum(one.active for one in image.brokers.values())),
                CONFIGS,
                config.offsets_topic_replication_factor,
                fewer_replicas=True,
            )
        except RequestRejected as error:
            found = self._cluster.image.topic(AUDIT_TOPIC)
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and found is not None:
                return found
            raise

    async def _append(self, topic: TopicImage, batch: bytes, now_ms: int) -> None:
        """Raises: FirnError."""
        count = len(topic.partitions)
        order = [(self._broker_id + step) % count for step in range(count)]
        for index in order:
            partition = self._partitions.led(AUDIT_TOPIC, index)
            if partition is None:
                continue
            if not partition.commits_alone:
                partition.check_in_sync()
            log, records, prepared = partition.log, memoryview(bytearray(batch)), False
            if log.needs_preparation(records):
                records, prepared = memoryview(await self._pool.run(partial(log.prepare_append, records))), True
            result = log.append_as_leader(records, now_ms=now_ms, prepared=prepared)
            partition.request_stored(result.last_offset_end)
            return
        for index in order:
            leader = self._cluster.image.brokers.get(BrokerId(topic.partitions[index].leader))
            if leader is not None and leader.broker_id != self._broker_id and self._link is not None:
                await self._link.produce(leader, AUDIT_TOPIC, index, batch)
                return
        raise RequestRejected(ErrorCode.LEADER_NOT_AVAILABLE, f"No partition of {AUDIT_TOPIC} has a leader.")
