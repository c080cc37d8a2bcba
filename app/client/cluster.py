"""A cluster as a client sees it: which brokers there are, which of them leads a partition, and a connection to each.

The view is an immutable value. Every Metadata answer replaces it. An answer may contradict it (not the leader, unknown topic, no
connection). Then the caller asks for a newer view and tries again, as long as ``retrying`` allows.

A long poll delays every answer behind it on its connection. So connections have lanes: a consumer has a lane of its own, and all
other callers share "main".

Tests: ``tests/client/test_views.py``, ``tests/client/test_late_brokers.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID

from app import __version__
from app.client.connection import REQUEST_TIMEOUT_MS, Dialer, KafkaConnection, dial_tcp, open_connection
from app.client.retry import retrying
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, copy_of
from app.core.turns import Portion
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)

MAIN_LANE: Final = "main"
HEALTH_LANE: Final = "health"
"""For requests that no other may hold up."""
RETRY_BUDGET_MS: Final = 30_000
METADATA_MAX_AGE_S: Final = 300.0
LISTS_TAKE: Final = 5
"""The list of all topics takes more time than other answers, by this factor."""
ASKINGS_MAX: Final = 2
"""Requests for the same metadata at the same time."""
TRIED_AGAIN: Final = 25
"""An address at which a connection was not opened in time counts as silent for the client's patience, times this."""

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6


class BrokerAddress(NamedTuple):
    node_id: BrokerId
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionView:
    index: PartitionIndex
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    topic_id: TopicId
    internal: bool
    partitions: tuple[PartitionView, ...]
    """By index."""


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """The content of the newest Metadata answers."""

    cluster_id: str | None = None
    controller: BrokerId | None = None
    brokers: Mapping[BrokerId, BrokerAddress] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)

    def topic_name(self, topic_id: UUID) -> str | None:
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic.name
        return None

    def leader_of(self, partition: TopicPartition) -> BrokerId | None:
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[partition.partition].leader


class _Asking:
    """A request for metadata that is under way."""

    __slots__ = ("began_s", "connection", "task")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        """Loop time."""
        self.connection: KafkaConnection | None = None
        """None before there is one."""
        self.task: asyncio.Task[None]


class ListedOffset(NamedTuple):
    """An answer of ListOffsets; -1 if no record is as young as asked."""

    offset: int
    timestamp: int
    leader_epoch: int


class ClusterClient:
    """Connections to a cluster's brokers and the view of it. ``async with`` closes the connections."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        rng: random.Random,
        client_id: str = "firn",
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_budget_ms: int = RETRY_BUDGET_MS,
        patience_s: float | None = None,
        dial: Dialer = dial_tcp,
        kind: type[KafkaConnection] = KafkaConnection,
    ) -> None:
        """``patience_s``: a broker that has not responded for so long is the last one that a request to any broker goes to.
        ``kind``: of its connections."""
        assert bootstrap, "at least one address is needed"
        self.view = KnownCluster()
        self.rng = rng
        self.request_timeout_ms = request_timeout_ms
        self.retry_budget_ms = retry_budget_ms
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._patience_s = patience_s
        self._dial = dial
        self._kind = kind
        self._tried_s: dict[tuple[str, int], float] = {}
        """Loop time at which a connection began to be opened, of addresses that have neither taken nor refused one yet."""
        self._connections: dict[tuple[str, int, str], KafkaConnection] = {}
        self._opening: dict[tuple[str, int, str], asyncio.Lock] = {}
        self._view_time: dict[str, float] = {}
        self._order = 0
        """Counts answers with metadata, and topics that were forgotten."""
        self._applying = 0
        """Answers that are being put into the view, in portions."""
        self._changed: dict[str, int] = {}
        """While there are any: the number of the answer that described a topic last."""
        self._brokers_order = 0
        """The number of the answer that named the brokers last."""
        self._refreshing: dict[frozenset[str] | None, list[_Asking]] = {}
        """Requests for metadata, the oldest first."""
        self.coordinators: dict[str, BrokerId] = {}
        """The last known coordinators of transactional ids. ``app/client/transactions.py`` keeps them."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Requests in flight fail with BrokerUnavailable."""
        self._closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()

    # --- brokers --------------------------------------------------------------------------------------------------

    async def bootstrap_broker(self, address: tuple[str, int]) -> KafkaConnection:
        """A connection to exactly this address. Raises: BrokerUnavailable, RequestRejected."""
        return await self._connect(*address, MAIN_LANE)

    async def check_responds(self, address: tuple[str, int]) -> None:
        """Ask exactly this address for its versions, apart from all other requests.

        Raises: BrokerUnavailable, RequestRejected, ProtocolError.
        """
        await (await self._connect(*address, HEALTH_LANE)).learn_features()

    async def any_broker(self) -> KafkaConnection:
        """A connection to any broker. Open connections and known brokers are tried first, silent ones last. Raises:
        BrokerUnavailable."""
        ready = self._ready_connection()
        if ready is not None:
            return ready
        return await self._first_of(lambda host, port: self._connect(host, port, MAIN_LANE))

    def _ready_connection(self) -> KafkaConnection | None:
        for connection in self._connections.values():
            if connection.usable and not self._is_late(connection.waits_since_s):
                return connection
        return None

    def _has_other(self, connection: KafkaConnection | None) -> bool:
        """Whether ``any_broker`` returns a connection to a broker that is not silent, and not this one."""
        ready = self._ready_connection()
        if ready is not None:
            return ready is not connection
        return not all(map(self._is_silent, self._addresses()))

    def _addresses(self) -> dict[tuple[str, int], None]:
        """Of all known brokers, and those that were given, each once."""
        return dict.fromkeys([*((one.host, one.port) for one in self.view.brokers.values()), *self._bootstrap])

    async def log_in_again(self) -> None:
        """Log in to any broker, on a connection that is closed afterwards: whether the credential still counts.

        Raises: BrokerUnavailable, RequestRejected SASL_AUTHENTICATION_FAILED and others.
        """
        connection = await self._first_of(self._open)
        await connection.close()

    async def _first_of(self, connect: Callable[[str, int], Awaitable[KafkaConnection]]) -> KafkaConnection:
        failures: list[str] = []
        for host, port in sorted(self._addresses(), key=self._is_silent):
            try:
                return await connect(host, port)
            except BrokerUnavailable as error:
                failures.append(str(error))
        raise BrokerUnavailable(" ".join(failures))

    def _is_late(self, since_s: float | None, *, times: float = 1) -> bool:
        """Whether a request that began at a loop time takes more ``times`` than this client waits before it asks another broker."""
        if self._patience_s is None or since_s is None:
            return False
        return asyncio.get_running_loop().time() - since_s >= self._patience_s * times

    def is_silent(self, node_id: BrokerId) -> bool:
        """Whether a broker has not responded for longer than this client waits before it asks another one."""
        address = self.view.brokers.get(node_id)
        return address is not None and self._is_silent((address.host, address.port))

    def _is_silent(self, address: tuple[str, int]) -> bool:
        connection = self._connections.get((*address, MAIN_LANE))
        if connection is not None and connection.usable:
            return self._is_late(connection.waits_since_s)
        tried_s = self._tried_s.get(address)
        return self._is_late(tried_s) and not self._is_late(tried_s, times=TRIED_AGAIN)

    async def _open(self, host: str, port: int) -> KafkaConnection:
        return await open_connection(
            host, port, client_id=self._client_id, software_version=__version__, dial=self._dial, new=self._kind
        )

    async def broker(self, node_id: BrokerId, lane: str = MAIN_LANE) -> KafkaConnection:
        """A connection to one broker. Raises: BrokerUnavailable (also if no such broker is known), RequestRejected."""
        address = self.view.brokers.get(node_id)
        if address is None:
            raise BrokerUnavailable(f"Broker {node_id} is not in the cluster's metadata.")
        return await self._connect(address.host, address.port, lane)

    async def leader(self, partition: TopicPartition, lane: str = MAIN_LANE) -> KafkaConnection:
        """A connection to the leader of a partition.

        Raises: RequestRejected LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION; BrokerUnavailable.
        """
        return await self.broker(await self.leader_id(partition), lane)

    async def leader_id(self, partition: TopicPartition) -> BrokerId:
        """The node id of a partition's leader. Raises: as ``leader``."""
        topic = await self.topic(partition.topic)
        if not 0 <= partition.partition < len(topic.partitions):
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {partition.topic} has {len(topic.partitions)} partitions and no partition {partition.partition}.",
            )
        leader = topic.partitions[partition.partition].leader
        if leader is None:
            raise RequestRejected(ErrorCode.LEADER_NOT_AVAILABLE, f"Partition {partition} has no leader now.")
        return leader

    async def _connect(self, host: str, port: int, lane: str) -> KafkaConnection:
        key = (host, port, lane)
        existing = self._connections.get(key)
        if existing is not None and existing.usable:
            return existing
        async with self._opening.setdefault(key, asyncio.Lock()):
            existing = self._connections.get(key)
            if existing is not None and existing.usable:
                return existing
            self._check_open()
            began_s = asyncio.get_running_loop().time()
            if self._is_late(self._tried_s.get((host, port)), times=TRIED_AGAIN):
                del self._tried_s[host, port]
            self._tried_s.setdefault((host, port), began_s)
            try:
                connection = await self._open(host, port)
            except FirnError:
                if not self._is_late(began_s):
                    self._tried_s.pop((host, port), None)  # an address that refuses at once is not silent
                raise
            self._tried_s.pop((host, port), None)
            self._connections[key] = connection
            if self._closed:
                await connection.close()
            self._check_open()
            return connection

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable("The client was closed.")

    # --- metadata -------------------------------------------------------------------------------------------------

    async def topic(self, name: str, *, create: bool = False) -> TopicView:
        """One topic, from the view if it is young enough.

        ``create`` lets the broker create it, if its settings allow that.
        Raises: RequestRejected (UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION…), BrokerUnavailable.
        """
        known = self.known_topic(name)
        if known is not None:
            return known
        await self.refresh([name], create=create)
        found = self.view.topics.get(name)
        if found is None:  # a newer answer than that of this request says so
            raise refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, f"There is no topic {name}.")
        return found

    def known_topic(self, name: str) -> TopicView | None:
        """One topic, if the view has it and is young enough."""
        known = self.view.topics.get(name)
        if known is None:
            return None
        age_s = asyncio.get_running_loop().time() - self._view_time.get(name, -METADATA_MAX_AGE_S)
        return known if age_s < METADATA_MAX_AGE_S else None

    def forget(self, topic: str) -> None:
        """Make the next user of a topic ask for newer metadata, because an answer contradicted the known metadata."""
        self._view_time.pop(topic, None)
        self._order += 1
        self._note_changed(topic, self._order)

    def _note_changed(self, topic: str, order: int) -> None:
        """Answers that came before this one, and are put into the view later, say nothing of the topic any more."""
        if self._applying:
            self._changed[topic] = order

    async def refresh(self, topics: Collection[str] | None = None, *, create: bool = False) -> KnownCluster:
        """Ask for metadata of ``topics`` (None: of all) and return the view that includes the answer.

        Callers that ask for the same at the same time share one request. If it is late, a second one goes to another broker.
        Raises: RequestRejected with the code of the first topic that cannot be described, BrokerUnavailable.
        """
        if create:
            await self._refresh(topics, create=True)
            return self.view
        key = None if topics is None else frozenset(topics)
        under_way = self._refreshing.setdefault(key, [])
        if not under_way or (
            len(under_way) < ASKINGS_MAX
            and self._is_late(under_way[-1].began_s, times=1 if topics is not None else LISTS_TAKE)
            and self._has_other(under_way[-1].connection)
        ):
            asking = _Asking(asyncio.get_running_loop().time())
            asking.task = asyncio.create_task(self._refresh(topics, create=False, asking=asking))
            asking.task.add_done_callback(lambda _: self._refreshed(key, asking))
            under_way.append(asking)
        task = under_way[-1].task
        try:
            await asyncio.shield(task)
        finally:
            del task  # A refusal holds this frame, and the task holds the refusal.
        return self.view

    def _refreshed(self, key: frozenset[str] | None, asking: _Asking) -> None:
        under_way = self._refreshing[key]
        under_way.remove(asking)
        if not under_way:
            del self._refreshing[key]
        task = asking.task
        del asking.task  # A refusal holds frames that hold ``asking``, and the task holds the refusal.
        if not task.cancelled():
            task.exception()  # those who asked may have gone to another broker

    async def _refresh(self, topics: Collection[str] | None, *, create: bool, asking: _Asking | None = None) -> None:
        connection = await self.any_broker()
        if asking is not None:
            asking.connection = connection
        version = connection.version_of(ApiKey.METADATA)
        wanted: list[MetadataRequestTopic] | None = None if version else []
        if topics is not None:
            wanted = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        answer: MetadataResponse = await connection.request(
            ApiKey.METADATA, request, version=version, timeout_ms=self.request_timeout_ms
        )
        if answer.error_code:
            raise RequestRejected(ErrorCode(answer.error_code))
        await self._apply(answer, complete=topics is None)

    async def _apply(self, answer: MetadataResponse, *, complete: bool) -> None:
        """Put an answer into the view. Topics that a newer answer has described meanwhile stay as they are."""
        now = asyncio.get_running_loop().time()
        self._order += 1
        order = self._order
        self._applying += 1
        try:
            described = await _described(answer)
        finally:
            self._applying -= 1
            if not self._applying:
                changed, self._changed = self._changed, {}
            else:
                changed = self._changed
        known = self.view.topics
        newer = {name for name, number in changed.items() if number > order}
        topics: dict[str, TopicView] = {} if complete else dict(known)
        refused: RequestRejected | None = None
        for topic in answer.topics:
            name = topic.name or ""
            if name in newer:
                continue
            self._note_changed(name, order)
            if topic.error_code:
                topics.pop(name, None)
                self._view_time.pop(name, None)
                unknown = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                refused = refused or refusal(topic.error_code, name, f"There is no topic {name}." if unknown else None)
                continue
            topics[name] = described[name]
            self._view_time[name] = now
        if complete:
            for name in known.keys() - topics.keys() - newer:
                self._note_changed(name, order)
            topics |= {name: known[name] for name in newer if name in known}
            times = {name: self._view_time[name] for name in newer if name in self._view_time}
            self._view_time = dict.fromkeys(topics.keys() - newer, now) | times
        brokers, controller = self.view.brokers, self.view.controller
        if order > self._brokers_order:
            self._brokers_order = order
            controller = BrokerId(answer.controller_id) if answer.controller_id >= 0 else None
            brokers = {
                BrokerId(broker.node_id): BrokerAddress(BrokerId(broker.node_id), broker.host, broker.port, broker.rack)
                for broker in answer.brokers
            }
        self.view = KnownCluster(answer.cluster_id, controller, brokers, topics)
        if refused is not None:
            raise copy_of(refused)

    # --- offsets --------------------------------------------------------------------------------------------------

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """For each partition the first offset with a record as young as a timestamp, or a special offset (``EARLIEST``…).

        Raises: RequestRejected with the code of the first partition that fails for good, BrokerUnavailable.
        """
        found: dict[TopicPartition, ListedOffset] = {}

        async def ask() -> None:
            by_leader: dict[BrokerId, dict[TopicPartition, int]] = {}
            for partition, timestamp in wanted.items():
                if partition not in found:
                    by_leader.setdefault(await self.leader_id(partition), {})[partition] = timestamp
            for node_id, part in by_leader.items():
                await self._list_offsets_of(node_id, part, read_committed, found)

        async def refresh(error: FirnError) -> None:
            await self.refresh({partition.topic for partition in wanted})

        await retrying(ask, rng=self.rng, budget_ms=self.retry_budget_ms, before_retry=refresh)
        return found

    async def _list_offsets_of(
        self,
        node_id: BrokerId,
        wanted: Mapping[TopicPartition, int],
        read_committed: bool,
        found: dict[TopicPartition, ListedOffset],
    ) -> None:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition, timestamp in wanted.items():
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
            topic.partitions.append(ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp))
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=list(topics.values()),
            timeout_ms=self.request_timeout_ms,
        )
        connection = await self.broker(node_id)
        answer = await connection.request(ApiKey.LIST_OFFSETS, request, timeout_ms=self.request_timeout_ms)
        refused: RequestRejected | None = None
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                partition = TopicPartition(topic_answer.name, PartitionIndex(part.partition_index))
                if part.error_code:
                    refused = refused or refusal(part.error_code, str(partition))
                else:
                    found[partition] = ListedOffset(part.offset, part.timestamp, part.leader_epoch)
        if refused is not None:
            raise copy_of(refused)


async def _described(answer: MetadataResponse) -> dict[str, TopicView]:
    """The topics of an answer, without those that it refuses."""
    described: dict[str, TopicView] = {}
    portion = Portion()
    for topic in answer.topics:
        if not topic.error_code:
            name = topic.name or ""
            views = await _views(topic.partitions, portion)
            described[name] = TopicView(name, TopicId(topic.topic_id), topic.is_internal, views)
        if portion.spent_by():
            await portion.rest()
    return described


async def _views(partitions: Sequence[MetadataResponsePartition], portion: Portion) -> tuple[PartitionView, ...]:
    """Partitions as views, by index."""
    found = []
    for partition in sorted(partitions, key=lambda partition: partition.partition_index):
        found.append(
            PartitionView(
                PartitionIndex(partition.partition_index),
                BrokerId(partition.leader_id) if partition.leader_id >= 0 else None,
                LeaderEpoch(partition.leader_epoch),
                tuple(BrokerId(node) for node in partition.replica_nodes),
                tuple(BrokerId(node) for node in partition.isr_nodes),
            )
        )
        if portion.spent_by():
            await portion.rest()
    return tuple(found)


def check_code(code: int, message: str | None, what: str) -> None:
    """Raise RequestRejected unless ``code`` is NONE; ``what`` names the thing that was refused."""
    if code:
        raise refusal(code, what, message)


_PLAIN: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "There is no topic or partition {}.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Topic {} exists already.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "{!r} cannot be a topic's name: use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The offset asked for is not in {}.",
    ErrorCode.LEADER_NOT_AVAILABLE: "{} has no leader now.",
    ErrorCode.MESSAGE_TOO_LARGE: "A record for {} is larger than its max.message.bytes allows.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker of {} cannot use its storage now.",
    ErrorCode.UNSUPPORTED_VERSION: "The broker does not serve what {} needs.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The user has no right to do that with topic {}.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "The user has no right to do that with the cluster.",
}


def refusal(code: int, what: str, message: str | None = None) -> RequestRejected:
    """The error of an answer's code, in words. ``message`` is the broker's own, preferred if there is one."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the broker answered the unknown error {code}.")
    if message:
        return RequestRejected(known, message)
    plain = _PLAIN.get(known)
    return RequestRejected(known, plain.format(what) if plain else f"{what}: {known.name}.")
