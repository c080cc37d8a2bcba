"""The page of the object store: uploads, cold reads, write-ahead logs, and requests with their cost.

The metrics of brokers have the numbers. Requests and their cost are of the last hour, as the bill counts them. All other
numbers are since the start of a broker's process.

Tests: ``tests/http/console/test_store.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.connection import KafkaConnection
from app.core.turns import Steps, Stepwise, run
from app.core.units import BrokerId
from app.cost.measured import MEASURED_NAMES, MeasuredBill, Spent, measured_bill, spent_of
from app.cost.prices import AS_OF, REGION, SECONDS_PER_MONTH, Prices, store_prices
from app.cost.requests import READS, billed
from app.http import gateway as gateways
from app.http.console.asking import Told, side_by_side, soon
from app.http.console.pages.overview import PARTITIONS_SUMMED_MAX
from app.http.console.rendering import ConsoleRoute, page
from app.http.console.texts.formats import many
from app.http.gateway import Gateway
from app.http.serving import gateway_of
from app.security.acls import Operation
from app.wire.private import MetricSample

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

TOPICS_SHOWN: Final = 10
SAMPLES_A_STEP: Final = 500

_WAITING: Final = ("firn_tier_lag_bytes", "firn_tier_lag_seconds")
"""Of each partition. In clusters with more than ``PARTITIONS_SUMMED_MAX`` the page does without them."""
_OF_BROKER: Final = (
    "firn_store_responds",
    "firn_tier_copied_segments_total",
    "firn_tier_copied_bytes_total",
    "firn_tier_failures_total",
    "firn_tier_stalled_uploads_total",
    "firn_tier_corrupt_segments_total",
    "firn_wal_objects_total",
    "firn_wal_bytes_total",
    "firn_wal_held_bytes",
    "firn_wal_kept_bytes",
    "firn_wal_take_overs_total",
    "firn_wal_take_over_bytes_total",
    "firn_wal_take_over_failures_total",
    "firn_wal_take_over_seconds_sum",
    "firn_chunk_cache_hits_total",
    "firn_chunk_cache_misses_total",
    "firn_chunk_cache_failures_total",
    "firn_chunk_cache_read_bytes_total",
    "firn_chunk_cache_used_bytes",
    "firn_remote_served_bytes_total",
    "firn_remote_stalls_total",
    "firn_remote_missing_objects_total",
    "firn_remote_corruptions_total",
    "firn_store_retries_total",
)
_REQUESTS: Final = "firn_store_requests_total"
_TIMES: Final = {"firn_store_request_seconds_sum": 0, "firn_store_request_seconds_count": 1}
_FAILED: Final = frozenset({"unavailable", "full", "error"})
"""Outcomes that mean that the store did not do its work. The others are answers, or the caller has left."""
_NAMES: Final = frozenset({*_OF_BROKER, *MEASURED_NAMES, _REQUESTS, *_TIMES})
_LOOKS: Final = frozenset({*READS, "list_objects"})
_KINDS: Final[Mapping[str, str]] = {
    "wal": "write-ahead logs",
    "data": "segments",
    "manifests": "manifests",
    "cluster": "log of the cluster",
    "other": "others",
}


class Fault(NamedTuple):
    """Failures since the start of a broker's process."""

    text: str
    runbook: str
    """The name of its page in ``docs/runbooks``."""


_FAULTS: Final = (
    ("firn_tier_failures_total", "{} of tiering failed, to be tried again", "round", "tiering-fails"),
    ("firn_tier_stalled_uploads_total", "{} without progress given up", "upload", "uploads-stall"),
    ("firn_tier_corrupt_segments_total", "{} found corrupt at the upload", "local segment", "local-corruption"),
    ("firn_wal_take_over_failures_total", "{} failed to continue a partition", "attempt", "partitions-offline"),
    ("firn_remote_missing_objects_total", "{} of an object that is missing", "read", "remote-missing"),
    ("firn_remote_corruptions_total", "{} of other bytes than were written", "read", "remote-corruption"),
)


class RequestRow(NamedTuple):
    """Requests of an operation on a kind of objects in the last hour."""

    kind: str
    operation: str
    requests: float
    dollars: float
    """A month, at this rate."""


@dataclass(slots=True)
class OfBroker:
    """The numbers of a broker."""

    sums: dict[str, float] = field(default_factory=dict)
    waiting_bytes: float = 0.0
    oldest_s: float = 0.0
    failed: float = 0.0
    """Requests that the store did not serve."""

    def get(self, name: str) -> float:
        return self.sums.get(f"firn_{name}", 0.0)


@dataclass(slots=True)
class StoreNumbers:
    """The numbers of all brokers."""

    brokers: dict[int, OfBroker] = field(default_factory=dict)
    topics: dict[str, list[float]] = field(default_factory=dict)
    """Of a topic: bytes that wait for their upload, and the age of the oldest in seconds."""
    times: dict[str, list[float]] = field(default_factory=dict)
    """Of an operation: seconds, and requests."""
    spent: list[Spent] = field(default_factory=list)

    def sum_of(self, name: str) -> float:
        return sum(one.get(name) for one in self.brokers.values())

    @property
    def waiting_bytes(self) -> float:
        return sum(one.waiting_bytes for one in self.brokers.values())

    @property
    def oldest_s(self) -> float:
        return max((one.oldest_s for one in self.brokers.values()), default=0.0)

    @property
    def failed(self) -> float:
        return sum(one.failed for one in self.brokers.values())

    def waiting_topics(self) -> list[tuple[str, float, float]]:
        """The topics with the most bytes that wait for an upload: name, bytes, seconds."""
        found = [(name, values[0], values[1]) for name, values in self.topics.items() if values[0]]
        return sorted(found, key=lambda one: -one[1])[:TOPICS_SHOWN]

    def latency_ms(self, operation: str) -> float | None:
        """The mean of an operation; None without a request."""
        seconds, count = self.times.get(operation, (0.0, 0.0))
        return 1000 * seconds / count if count else None

    def faults(self) -> list[Fault]:
        """All failures that were counted."""
        found = []
        for name, text, noun, runbook in _FAULTS:
            if count := self.sum_of(name.removeprefix("firn_")):
                found.append(Fault(text.format(many(int(count), noun)), runbook))
        if self.failed:
            found.append(Fault(f"{many(int(self.failed), 'request')} failed", "store-errors"))
        return found

    def requests(self) -> list[RequestRow]:
        """The requests of the last hour, the dearest first."""
        rows: dict[tuple[str, str], list[float]] = {}
        prices = Prices()
        for spent in self.spent:
            for (operation, kind), count in spent.requests.items():
                row = rows.setdefault((kind, operation), [0.0, 0.0])
                puts, gets = billed({operation: count})
                of = store_prices(prices, spent.wal_store) if kind == "wal" else store_prices(prices)
                row[0] += count
                row[1] += of.of(puts, gets, 0.0, 0.0) * SECONDS_PER_MONTH / spent.seconds
        found = [RequestRow(_KINDS.get(kind, kind), operation, *row) for (kind, operation), row in rows.items()]
        return sorted(found, key=lambda row: (-row.dollars, -row.requests, row.kind, row.operation))

    def wal_reads(self) -> float:
        """Reads and listings of write-ahead logs in the last hour."""
        return sum(
            count
            for one in self.spent
            for (operation, kind), count in one.requests.items()
            if kind == "wal" and operation in _LOOKS
        )

    def bill(self) -> MeasuredBill | None:
        """None if no broker has counted for long enough."""
        return measured_bill(self.spent, Prices()) if self.spent else None


@Stepwise
def store_numbers(told: Mapping[BrokerId, Iterable[MetricSample]]) -> Steps[StoreNumbers]:
    """The sums of the metrics of brokers."""
    found = StoreNumbers()
    for node_id, samples in told.items():
        own = found.brokers[node_id] = OfBroker()
        measured = []
        for index, one in enumerate(samples, 1):
            labels = dict(one.labels)
            if one.name in _WAITING:
                topic = found.topics.setdefault(labels["topic"], [0.0, 0.0])
                if one.name == _WAITING[0]:
                    own.waiting_bytes += one.value
                    topic[0] += one.value
                else:
                    own.oldest_s = max(own.oldest_s, one.value)
                    topic[1] = max(topic[1], one.value)
            elif one.name == _REQUESTS:
                own.failed += one.value if labels["outcome"] in _FAILED else 0.0
            elif one.name in _TIMES:
                found.times.setdefault(labels["operation"], [0.0, 0.0])[_TIMES[one.name]] += one.value
            elif one.name in MEASURED_NAMES:
                measured.append((one.name, labels, one.value))
            if one.name in _OF_BROKER:
                own.sums[one.name] = own.sums.get(one.name, 0.0) + one.value
            if not index % SAMPLES_A_STEP:
                yield
        if (counted := spent_of(measured)) is not None:
            found.spent.append(counted)
        yield
    return found


async def _told(gateway: Gateway, brokers: Iterable[BrokerId], names: frozenset[str]) -> Told[list[MetricSample]]:
    async def ask(_: BrokerId, connection: KafkaConnection) -> list[MetricSample]:
        return (await gateway.admin.metrics(connection, names)).samples

    return await side_by_side(gateway, sorted(brokers), ask)


@router.get("/console/store")
async def show_store(request: Request) -> Response:
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    await gateway.admin.check_may(Operation.DESCRIBE)
    standing = await gateway.admin.cluster_standing(controller_s=gateways.PATIENCE_S)
    summed = standing.partitions <= PARTITIONS_SUMMED_MAX
    told = await _told(gateway, view.brokers, _NAMES | {*_WAITING} if summed else _NAMES)
    numbers = await run(store_numbers.steps(told.answers))
    return await page(
        request,
        "store",
        section="store",
        standing=standing,
        numbers=numbers,
        summed=summed,
        summed_max=PARTITIONS_SUMMED_MAX,
        silent=told.silent,
        bill=numbers.bill(),
        prices=f"{REGION}, {AS_OF}",
        faults=numbers.faults(),
        requests=numbers.requests(),
        wal_reads=numbers.wal_reads(),
        topics=numbers.waiting_topics(),
    )
