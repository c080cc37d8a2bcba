"""A real controller over a store in memory, and every request and answer through the codec."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

from app.configs import BrokerConfig, TopicConfig
from app.core.errors import FirnError, RequestRejected, StorageUnavailable, kafka_code
from app.core.faults import Faults, Limited
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, TimestampMs
from app.handlers.base.context import Context
from app.handlers.base.request import Request
from app.handlers.policy.callers import KnownRights
from app.handlers.serving.dispatch import Apis
from app.handlers.state.fetch_sessions import FetchSessions
from app.handlers.state.metadata_cache import MetadataCache
from app.handlers.state.metrics import ApiMetrics
from app.handlers.state.producer_id_block import ProducerIds
from app.metadata.image.records import Endpoint
from app.metadata.membership.membership import Membership
from app.metadata.peers.liveness import ObjectLiveness
from app.metadata.view.view import ClusterView
from app.objectstore.memory import MemoryStore
from app.replication.partition import PartitionTable
from app.wire.apikeys import ApiKey
from app.wire.codec import decode_request, decode_response, encode_request, encode_response
from app.wire.versions import SERVED
from tests.metadata.support import running
from tests.records.strategies import NOW_MS
from tests.support.callers import SOMEBODY

NODE_ID = 7


class FixedClock:
    def now_ms(self) -> TimestampMs:
        return TimestampMs(NOW_MS)


class AdminLog:
    """What DeleteRecords and DescribeLogDirs look at in a log."""

    def __init__(self, topic: str, partition: int, *, high_watermark: int, cleanup_policy: str = "delete") -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, topic)
        self.config = TopicConfig(cleanup_policy=frozenset(cleanup_policy.split(",")))
        self.log_start_offset = 0
        self.high_watermark = high_watermark
        self.size_bytes = high_watermark * 100
        self.leader_epoch = LeaderEpoch(0)

    def become_leader(self, epoch: LeaderEpoch) -> None:
        self.leader_epoch = epoch

    def commit_alone(self, alone: bool) -> None: ...


class AdminLogs:
    data_dir = "/var/firn"

    def __init__(self, cluster: ClusterView) -> None:
        self.table = PartitionTable(BrokerId(NODE_ID), lambda: cluster.image)
        self.by_key: dict[tuple[str, int], AdminLog] = {}
        self.offline_reason: str | None = None
        self.free: int | StorageUnavailable = 1 << 40

    def add(self, topic: str, partition: int, **fields: Any) -> AdminLog:
        log = self.by_key[topic, partition] = AdminLog(topic, partition, **fields)
        self.table.lead(self.table.hold(log), log.leader_epoch)  # type: ignore[arg-type]
        return log

    def get(self, topic: str, partition: int) -> AdminLog | None:
        return self.by_key.get((topic, partition))

    def logs(self) -> list[AdminLog]:
        return list(self.by_key.values())

    def free_bytes(self) -> int:
        if isinstance(self.free, StorageUnavailable):
            raise self.free
        return self.free

    def total_bytes(self) -> int:
        return 1 << 41


class AdminTier:
    """The remote log manager's part in DeleteRecords: ``durable`` is what the manifests say."""

    def __init__(self, logs: AdminLogs) -> None:
        self._logs = logs
        self.durable: dict[tuple[uuid.UUID, int], int] = {}
        self.fails_with: FirnError | None = None

    async def advance_log_start(self, topic_id: uuid.UUID, partition: int, offset: int) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        self.durable[topic_id, partition] = offset
        for log in self._logs.logs():
            if (log.topic_id, log.partition) == (topic_id, partition):
                log.log_start_offset = offset


class AdminBench:
    """A broker as the administering handlers see it."""

    def __init__(self, member: Membership, config: BrokerConfig, store: MemoryStore) -> None:
        self.cluster, self.controller = member.view, member.controller
        self.store = store
        self.logs = AdminLogs(member.view)
        self.tier = AdminTier(self.logs)
        registry = Registry()
        rng = random.Random(1)
        self.lines: list[str] = []
        parts: dict[str, Any] = {
            "config": config,
            "effective": config,
            "selects_by_rack": False,
            "faults": Faults(self.lines.append),
            "rights": KnownRights(),
            "client_line": Limited(self.lines.append),
            "refuses_transactions": False,
            "clock": FixedClock(),
            "rng": rng,
            "pool": None,
            "registry": registry,
            "cluster": member.view,
            "controller": member.controller,
            "logs": self.logs,
            "partitions": self.logs.table,
            "reads": None,
            "remote_log_manager": self.tier,
            "metrics": ApiMetrics(registry),
            "fetch_sessions": FetchSessions(10, rng),
            "metadata_cache": MetadataCache(),
            "producer_ids": ProducerIds(member.controller),
            "advertised_host": "127.0.0.1",
            "advertised_port": 9092,
            "log_line": self.lines.append,
        }
        missing = {field.name for field in fields(Context) if field.init} - parts.keys()
        self.context = Context(**parts, **dict.fromkeys(missing))
        self._apis = Apis()

    async def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """The answer as a client of that version reads it; a refusal as the connection would send it."""
        api = self._apis[key]
        request = Request(int(key), version, 1, "test", SOMEBODY)
        arrived = decode_request(key, version, memoryview(encode_request(key, version, message)))
        try:
            answer = api.handle(self.context, request, arrived)
            if hasattr(answer, "__await__"):
                answer = await answer
        except FirnError as error:
            answer = api.refuse(request, arrived, kafka_code(error), str(error))
        return decode_response(key, version, memoryview(encode_response(key, version, answer)))

    def refuse(self, key: ApiKey, version: int, message: Any, error: RequestRejected) -> Any:
        """The answer that carries ``error`` for the request as a whole."""
        request = Request(int(key), version, 1, "test", SOMEBODY)
        arrived = decode_request(key, version, memoryview(encode_request(key, version, message)))
        answer = self._apis[key].refuse(request, arrived, error.code, str(error))
        return decode_response(key, version, memoryview(encode_response(key, version, answer)))


@asynccontextmanager
async def admin_bench(**settings: Any) -> AsyncIterator[AdminBench]:
    """A bench whose broker, number 7, was started with ``settings``."""
    config = BrokerConfig(node_id=NODE_ID, broker_rack="a", **settings)
    clock = FixedClock()
    rng = random.Random(7)
    store = MemoryStore(clock, rng)
    member = Membership(
        store,
        config=config,
        directory_id=uuid.UUID(int=1),
        endpoints=[Endpoint("PLAINTEXT", "broker.example", 9092, "PLAINTEXT")],
        liveness=ObjectLiveness(store, rng=rng, clock=clock),
        rng=rng,
        clock=clock,
    )
    async with running(member):
        yield AdminBench(member, config, store)


def versions(key: ApiKey) -> list[int]:
    """Every version that is served."""
    first, last = SERVED[key]
    return list(range(first, last + 1))


def answered(items: list[Any], name: Callable[[Any], Any] = lambda item: item.name) -> dict[Any, Any]:
    """Items by name."""
    return {name(item): item for item in items}
