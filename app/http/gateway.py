"""The objects that every route uses: the cluster's clients and this process's metrics.

Tests: ``tests/http/test_callers.py``, ``tests/http/test_application.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient, TopicView
from app.client.connection import Dialer, KafkaConnection, dial_tcp
from app.client.groups import GroupClient
from app.client.producer import Producer
from app.client.retry import retrying
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError
from app.core.faults import Faults
from app.core.limits import (
    HTTP_BODY_TIMEOUT_MS,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEADER_TIMEOUT_MS,
    HTTP_INSTANCE_TIMEOUT_MS,
    MIB,
)
from app.core.metrics import Registry, Sample
from app.core.seams import Clock
from app.core.turns import drained, each
from app.core.units import TimestampMs
from app.http.errors import RestError, answer_of
from app.http.metrics import labelled
from app.http.read_budget import ReadBudget
from app.security.acls import Operation

if TYPE_CHECKING:
    from app.client.conditional_appends import ConditionalWriter
    from app.http.keyed.producing import KeyedProducer
    from app.http.processes.worker import Worker
    from app.machine.certificates import TlsSettings
    from app.wire.private import DrainResponse

RECORD_BYTES_MAX: Final = 14 * MIB
"""Largest JSON object of one record: a record of 10 MB fits in it as base64. The decoder reads one at once, in up to 50 ms."""
ADMIN_BODY_BYTES_MAX: Final = 1 * MIB
BUFFER_BYTES_MAX: Final = 64 * MIB
RETRY_BUDGET_MS: Final = 10_000
DELIVERY_TIMEOUT_MS: Final = 30_000
"""From the arrival of a record to its receipt. Few clients wait longer."""
FLUSH_TIMEOUT_MS: Final = 2_000
READERS_MAX: Final = 64
"""Requests that read records at a time. Each has a connection to a broker."""
CALLER_READERS_MAX: Final = 16
"""The same, of one caller who logs in."""
METRICS_TIMEOUT_S: Final = 5.0
RESPONSE_TIMEOUT_S: Final = 3.0
"""After that time, for a broker without metrics. Prometheus waits ten seconds for both."""
READY_TIMEOUT_S: Final = 2.0
CLIENT_ID: Final = "firn-http"
PATIENCE_S: Final = 0.4
"""A broker that has not responded for so long is the last one that requests to any broker go to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How the HTTP process behaves."""

    bootstrap: tuple[tuple[str, int], ...]
    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may ask for, besides the loopback names and the address that they came in at (``Access``)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may use this server, besides its own."""
    connections_max: int = HTTP_CONNECTIONS_MAX
    header_timeout_ms: int = HTTP_HEADER_TIMEOUT_MS
    body_idle_timeout_ms: int = HTTP_BODY_TIMEOUT_MS
    """A sender that stops for so long in the middle of a body is answered 408 (``Pace``)."""
    instance_timeout_ms: int = HTTP_INSTANCE_TIMEOUT_MS
    """A consumer instance without a request for so long ends."""
    worker: Worker | None = None
    """Which process this is, if several share the port."""
    receipts_ahead_max: int = 1_000
    """Records of one request that are accepted and not answered yet."""
    record_bytes_max: int = RECORD_BYTES_MAX
    linger_ms: float = 2
    retry_budget_ms: int = RETRY_BUDGET_MS
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of a client, by which it reaches brokers; empty for a plain connection. If brokers ask for a login there, each
    request must bring its own (``app/http/callers.py``)."""
    anonymous: bool = False
    """Whether requests without a credential have the rights of the user of ``client``."""
    plain_credentials: bool = False
    """Whether credentials may come without TLS to an address that is not loopback: a proxy in front encrypts."""
    console_read_only: bool = False
    """Whether the console refuses each change."""
    console_masks: tuple[tuple[str, str], ...] = ()
    """Fields of messages that the console hides, each with its topics."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose ``forwarded_header`` is believed. It names the client of a request."""
    forwarded_header: str = "x-forwarded-for"
    names_callers: bool = False
    """Whether brokers are told the addresses of callers who log in. The brokers must trust this process (ADR 0034, HF)."""
    tls: TlsSettings | None = None
    """None for plain HTTP."""
    tracing_endpoint: str = ""
    """The collector of spans; empty if nothing is traced."""
    tracing_sample_ratio: float = 0.0
    """The share of requests without a ``traceparent`` that are traced."""
    tracing_instance: str = ""
    """The node id of the broker beside this process, in spans."""

    @property
    def process(self) -> str:
        """The name of this process in metrics."""
        return "http" if self.worker is None else self.worker.name


def connection_kind(settings: HttpSettings) -> type[KafkaConnection]:
    """The class of connections to brokers."""
    if not settings.tracing_endpoint:
        return KafkaConnection
    from app.client.traced import TracedConnection

    return TracedConnection


def producer_kind(settings: HttpSettings) -> type[Producer]:
    """The class of producers."""
    if not settings.tracing_endpoint:
        return Producer
    from app.client.traced import TracedProducer

    return TracedProducer


class Lanes:
    """The connections that readers of records have to themselves, because a long poll holds up all other requests of a connection.

    They stay open for the next reader. A quarter of them are kept for reads that end by themselves.
    """

    def __init__(self, lanes_max: int) -> None:
        self._lanes_max = lanes_max
        self._endless_max = lanes_max - lanes_max // 4
        self._endless = 0
        self._free: list[str] = []
        self._made = 0

    @contextmanager
    def taken(self, *, endless: bool) -> Iterator[str]:
        """The name of a lane, for the time of the block. ``endless``: the reader stays for as long as its client wants.

        Raises: RestError 429 if all are taken, or if endless readers have their share.
        """
        if endless and self._endless >= self._endless_max:
            raise RestError(
                429,
                f"{self._endless_max} requests follow records. Read in pages, or try again later.",
                error_code=42901,
            )
        if self._free:
            lane = self._free.pop()
        elif self._made < self._lanes_max:
            self._made += 1
            lane = f"read-{self._made}"
        else:
            raise RestError(429, f"{self._lanes_max} requests are reading records. Try again later.", error_code=42901)
        self._endless += endless
        try:
            yield lane
        finally:
            self._endless -= endless
            self._free.append(lane)


class Gateway:
    """The clients of one HTTP process; where callers log in, those of one caller."""

    def __init__(
        self,
        settings: HttpSettings,
        cluster: ClusterClient,
        clock: Clock,
        registry: Registry,
        faults: Faults,
        *,
        of_caller: bool = False,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        read_budget: ReadBudget | None = None,
    ) -> None:
        """``of_caller``: brokers know whose requests these are. ``buffer_bytes_max``: of records that are not stored yet.
        ``read_budget``: of the process; this one's own if there is none."""
        self.settings = settings
        self._clock = clock
        self._faults = faults
        self._of_caller = of_caller
        self._buffer_bytes_max = buffer_bytes_max
        self._producer: Producer | None = None
        self._keyed: KeyedProducer | None = None
        self._conditional: ConditionalWriter | None = None
        self.cluster = cluster
        self.admin = AdminClient(cluster)
        self.groups = GroupClient(cluster)
        self.lanes = Lanes(CALLER_READERS_MAX if of_caller else READERS_MAX)
        budget = ReadBudget() if read_budget is None else read_budget
        self.read_budget = budget.part_of_caller() if of_caller else budget
        self.registry = registry
        self._node_ids: dict[str, str] = {}
        """The node id that each address named last: a broker that is down keeps its label."""

    @property
    def producer(self) -> Producer:
        """Started when it is first asked for."""
        if self._producer is None:
            self._producer = producer_kind(self.settings)(
                self.cluster,
                self._clock,
                linger_ms=self.settings.linger_ms,
                eager=True,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                buffer_bytes_max=self._buffer_bytes_max,
                create_topics=False,
            )
            self._producer.start()
        return self._producer

    @property
    def keyed(self) -> KeyedProducer:
        """Writes requests that have a key. Made when it is first asked for."""
        if self._keyed is None:
            from app.http.keyed.producing import KeyedProducer  # a process without keyed requests goes without it

            self._keyed = KeyedProducer(self.cluster, self._clock)
        return self._keyed

    @property
    def conditional(self) -> ConditionalWriter:
        """Writes requests that have an If-Match and no key. Made when it is first asked for."""
        if self._conditional is None:
            from app.client.conditional_appends import ConditionalWriter  # as keyed requests

            self._conditional = ConditionalWriter(self.cluster)
        return self._conditional

    def now_ms(self) -> TimestampMs:
        """The time for records without one."""
        return TimestampMs(self._clock.now_ms())

    async def close(self) -> None:
        """Send the records that were accepted, and close the connections."""
        try:
            if self._keyed is not None:
                await self._keyed.close(FLUSH_TIMEOUT_MS / 1000)
            if self._producer is not None:
                await self._producer.close(flush_timeout_ms=FLUSH_TIMEOUT_MS)
        finally:
            await self.cluster.close()

    def tell(self, route: str, error: FirnError) -> None:
        """Log the error that answers a request to ``route``, unless the request itself was at fault."""
        if isinstance(error, BrokerUnavailable):
            self._faults.met("reaching", "a broker", f"no broker can be reached, so HTTP requests fail: {error}")
        elif answer_of(error).status >= 500:
            self._faults.met("HTTP requests to", route, f"HTTP requests to {route} fail: {error}")

    async def cluster_id(self) -> str:
        """Raises: BrokerUnavailable."""
        if self.cluster.view.cluster_id is None:
            await self.admin.describe_cluster()
        return self.cluster.view.cluster_id or ""

    async def check_cluster(self, cluster_id: str) -> None:
        """Raises: RestError 404 for another cluster's id, BrokerUnavailable."""
        ours = await self.cluster_id()
        if cluster_id != ours:
            raise RestError(404, f"Cluster {cluster_id} cannot be found; this is cluster {ours}.")

    async def topic(self, name: str) -> TopicView:
        """A topic as far as it is known. Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION, BrokerUnavailable."""
        known = self.cluster.known_topic(name)
        if known is not None:
            return known
        return await retrying(
            lambda: self.cluster.topic(name),
            rng=self.cluster.rng,
            budget_ms=self.settings.retry_budget_ms,
            also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        )

    async def samples(self) -> list[Sample]:
        """Every sample of this process, and of the brokers that it was started with.

        A broker that sends no metrics in time, but responds, is up: ``firn_broker_metrics_missing`` is 1. One that does not respond
        either has ``firn_broker_up 0``.

        Raises: RequestRejected CLUSTER_AUTHORIZATION_FAILED for a caller who may not describe the cluster, BrokerUnavailable if no
        broker can say so.
        """
        if self._of_caller:
            await self.admin.check_may(Operation.DESCRIBE)
        samples = [*labelled(self.registry.samples(), process=self.settings.process)]
        of_brokers: list[Sample] = []
        up_text = "Whether the broker responds to the HTTP process."
        missing_text = "Whether the broker responds, but its metrics did not come in time."
        for told in await asyncio.gather(*(self._broker_samples(address) for address in self.settings.bootstrap)):
            labels = (("address", told.address), *((("node_id", told.node_id),) if told.node_id else ()))
            up, missing = float(told.responds), float(told.responds and told.samples is None)
            of_brokers.append(Sample("firn_broker_up", "gauge", up_text, "firn_broker_up", labels, up))
            name = "firn_broker_metrics_missing"
            of_brokers.append(Sample("firn_broker_metrics_missing", "gauge", missing_text, name, labels[:1], missing))
            await each(samples.append, told.samples or ())
        samples += of_brokers
        return samples

    async def _broker_samples(self, address: tuple[str, int]) -> _Told:
        shown = f"{address[0]}:{address[1]}"
        try:
            async with asyncio.timeout(METRICS_TIMEOUT_S):
                answer = await self.admin.metrics(await self.cluster.bootstrap_broker(address))
        except (FirnError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            responds = await self._responds(address)
            more = ", which responds to other requests" if responds else ""
            self._faults.met(
                "metrics of", f"the broker at {shown}", f"no metrics of the broker at {shown}{more}: {why}"
            )
            return _Told(shown, responds, self._node_ids.get(shown, ""), None)
        node_id = self._node_ids[shown] = str(answer.node_id)
        samples = (
            Sample(s.family, _kind(s.kind), s.help, s.name, tuple((name, value) for name, value in s.labels), s.value)
            for s in drained(answer.samples)
        )
        return _Told(shown, True, node_id, labelled(samples, node_id=node_id))

    async def _responds(self, address: tuple[str, int]) -> bool:
        """Whether a broker without metrics answers a request that costs it nothing. Its caller tells that there are no metrics."""
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                await self.cluster.check_responds(address)
        except (FirnError, TimeoutError):
            return False
        return True

    async def begin_drain(self) -> DrainResponse:
        """Drain the broker that this process was started with.

        Raises: RequestRejected CLUSTER_AUTHORIZATION_FAILED for a caller who may not alter the cluster, BrokerUnavailable.
        """
        try:
            return await self.admin.drain(await self.cluster.bootstrap_broker(self.settings.bootstrap[0]), "begin")
        except BrokerUnavailable:
            await self.admin.check_may(Operation.ALTER)  # a broker closes the connection of those who may not
            raise

    async def check_ready(self) -> None:
        """Raises: FirnError or TimeoutError if no broker answers soon."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            await self.cluster.refresh([])


class _Told(NamedTuple):
    """The metrics of one broker."""

    address: str
    responds: bool
    node_id: str
    """Empty until the broker has sent metrics once."""
    samples: Iterable[Sample] | None
    """None if they did not come."""


def _kind(kind: str) -> Literal["counter", "gauge", "histogram"]:
    match kind:
        case "counter" | "gauge" | "histogram":
            return kind
        case _:
            return "gauge"


@asynccontextmanager
async def open_gateway(
    settings: HttpSettings,
    *,
    clock: Clock,
    rng: random.Random,
    registry: Registry,
    faults: Faults,
    read_budget: ReadBudget | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway whose connections and producer end with the block; records that were accepted are sent first."""
    dial: Dialer = dial_tcp
    if settings.client:
        from app.client.security import SecureDialer, client_security

        dial = SecureDialer(client_security(settings.client))
    cluster = ClusterClient(
        settings.bootstrap,
        rng=rng,
        client_id=CLIENT_ID,
        retry_budget_ms=settings.retry_budget_ms,
        patience_s=PATIENCE_S,
        dial=dial,
        kind=connection_kind(settings),
    )
    gateway = Gateway(settings, cluster, clock, registry, faults, of_caller=settings.anonymous, read_budget=read_budget)
    try:
        yield gateway
    finally:
        await gateway.close()
