"""The first page: the state of the cluster, problems that need attention, and the brokers.

Tests: ``tests/http/console/test_pages.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import Portion
from app.core.units import BrokerId
from app.cost.measured import MEASURED_NAMES, MeasuredBill, Spent, measured_bill, spent_of
from app.cost.prices import Prices
from app.http import gateway as gateways
from app.http.bodies import json_response
from app.http.console.asking import BROKER_S, side_by_side, soon
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of, page
from app.http.console.texts.formats import duration, many, size
from app.http.gateway import Gateway
from app.http.serving import gateway_of
from app.security.acls import Operation
from app.wire.private import ClusterResponse, MetricSample

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

PARTITIONS_SUMMED_MAX: Final = 5_000
"""Metrics tell of each partition. In larger clusters the page does without sums of them."""
NAMED_MAX: Final = 3
TOPICS_SHOWN: Final = 6
DISK_FREE_PART_MIN: Final = 0.1
OPEN_TOO_LONG_S: Final = 900.0

_RATES: Final = {
    "firn_bytes_in_total": "bytes_in",
    "firn_bytes_out_total": "bytes_out",
    "firn_records_in_total": "records_in",
    "firn_records_out_total": "records_out",
}
_OF_BROKER: Final = (
    "firn_log_dir_free_bytes",
    "firn_log_dir_size_bytes",
    "firn_log_dir_free_bytes_min",
    "firn_log_offline",
    "firn_offline_partitions",
    "firn_broker_isolated",
    "firn_draining",
    "firn_loop_stalls_total",
    "firn_tier_coverage_faults_total",
    "firn_transaction_oldest_seconds",
)
_OF_TOPICS: Final = {"firn_tier_remote_bytes": "remote", "firn_log_local_bytes": "local", "firn_tier_lag_bytes": "lag"}
_NAMES: Final = frozenset((*_RATES, *_OF_BROKER, *_OF_TOPICS, *MEASURED_NAMES))


class Attention(NamedTuple):
    """A problem that needs attention."""

    hurts: bool
    """Whether it hurts now, or will."""
    text: str
    command: str
    runbook: str
    """The name of its page in ``docs/runbooks``."""
    partitions: Sequence[tuple[str, int]] = ()


@dataclass(slots=True)
class Numbers:
    """Sums of the metrics of brokers."""

    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_RATES.values(), 0.0))
    brokers: dict[int, dict[str, float]] = field(default_factory=dict)
    topics: dict[str, dict[str, float]] = field(default_factory=dict)
    bill: MeasuredBill | None = None
    spent: list[Spent] = field(default_factory=list)
    """The counts of brokers in the last hour."""
    silent: list[int] = field(default_factory=list)
    """Brokers that did not respond in time."""

    def sum_of(self, what: str) -> float:
        return sum(one.get(what, 0.0) for one in self.topics.values())

    def largest(self) -> list[tuple[str, Mapping[str, float]]]:
        """The topics with the most bytes."""
        found = sorted(self.topics.items(), key=lambda one: (-one[1].get("remote", 0) - one[1].get("local", 0), one[0]))
        return [*found[:TOPICS_SHOWN]]


class Live(NamedTuple):
    """The counters of all brokers at a moment."""

    counters: Mapping[str, float] | None
    """None if the cluster has too many partitions."""
    at_s: float
    """When they were read, in seconds since any moment."""
    silent: Sequence[int] = ()
    summed: Sequence[int] = ()
    """The brokers whose counters these are. Between sums of different brokers there is no rate."""


async def numbers_of(gateway: Gateway, brokers: Sequence[BrokerId], names: Collection[str] = _NAMES) -> Numbers:
    """The metrics of all brokers, those with ``names`` alone."""
    found = Numbers()

    async def ask(_: BrokerId, connection: KafkaConnection) -> list[MetricSample]:
        return (await gateway.admin.metrics(connection, names)).samples

    told = await side_by_side(gateway, brokers, ask)
    found.silent = [*told.silent]
    portion = Portion()
    for node_id, samples in told.answers.items():
        own = found.brokers[node_id] = {}
        measured = []
        for one in samples:
            if one.name in _RATES:
                found.counters[_RATES[one.name]] += one.value
            elif one.name in _OF_TOPICS:
                topic = found.topics.setdefault(dict(one.labels)["topic"], {})
                what = _OF_TOPICS[one.name]
                topic[what] = topic.get(what, 0.0) + one.value
            elif one.name in MEASURED_NAMES:
                measured.append((one.name, dict(one.labels), one.value))
            else:
                own[one.name] = own.get(one.name, 0.0) + one.value
            if portion.spent_by():
                await portion.rest()
        if (counted := spent_of(measured)) is not None:
            found.spent.append(counted)
    if found.spent:
        found.bill = measured_bill(found.spent, Prices())
    return found


async def may_describe(gateway: Gateway) -> bool:
    """Whether the caller may see how the cluster stands. Raises: BrokerUnavailable."""
    try:
        await gateway.admin.check_may(Operation.DESCRIBE)
    except RequestRejected as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return False
    return True


def matters(standing: ClusterResponse, numbers: Numbers | None) -> list[Attention]:
    """All problems that need attention, the worst first."""
    found: list[Attention] = []

    def partitions(hurts: bool, count: int, which: Sequence[tuple[str, int]], text: str, runbook: str) -> None:
        if count:
            sentence = f"{many(count, 'partition')} {text}"
            found.append(Attention(hurts, sentence, "firn cluster status", runbook, which[:NAMED_MAX]))

    offline, few, under = standing.offline_count, standing.under_min_isr_count, standing.under_replicated_count
    partitions(True, offline, standing.offline, "without a leader.", "partitions-without-leader")
    if (few, [*standing.under_min_isr]) != (offline, [*standing.offline]):  # else the sentence before says all
        partitions(
            True, few, standing.under_min_isr, "with too few replicas in sync: writes are refused.", "under-min-isr"
        )
    partitions(False, under, standing.under_replicated, "with a replica that is not in sync.", "under-replicated")
    if standing.store:
        found.append(Attention(True, standing.store, "firn cluster status", "store-unreachable"))
    for broker in standing.brokers:
        if broker.state != "alive":
            hurts = broker.state == "fenced"
            text = f"Broker {broker.node_id} is {broker.state}."
            found.append(Attention(hurts, text, "firn cluster brokers", "brokers-fenced" if hurts else "broker-down"))
    if numbers is not None:
        for node_id in numbers.silent:
            text = f"Broker {node_id} did not respond within {BROKER_S:g} s. Its numbers are missing here."
            found.append(Attention(False, text, "firn cluster brokers", "broker-down"))
        for node_id, own in numbers.brokers.items():
            found += _of_broker(node_id, own)
    return sorted(found, key=lambda one: not one.hurts)


def _of_broker(node_id: int, own: Mapping[str, float]) -> list[Attention]:
    found: list[Attention] = []

    def value(name: str) -> float:
        return own.get(f"firn_{name}", 0.0)

    status = "firn tier status"
    if value("log_offline"):
        text = f"The log directory of broker {node_id} is offline."
        found.append(Attention(True, text, status, "log-directory-offline"))
    if count := value("offline_partitions"):
        text = f"Broker {node_id} cannot open {many(int(count), 'partition')} that it should lead."
        found.append(Attention(True, text, status, "partitions-offline"))
    if value("broker_isolated"):
        text = f"Broker {node_id} is isolated: it hears neither other brokers nor the store."
        found.append(Attention(True, text, "firn cluster status", "broker-isolated"))
    if value("tier_coverage_faults_total"):
        text = f"Broker {node_id} found a gap or an overlap between its disk and the bucket."
        found.append(Attention(True, text, "firn verify", "coverage-fault"))
    whole, free = value("log_dir_size_bytes"), value("log_dir_free_bytes")
    if whole and free < max(DISK_FREE_PART_MIN * whole, value("log_dir_free_bytes_min")):
        text = f"The disk of broker {node_id} has {size(free)} of {size(whole)} left."
        found.append(Attention(free <= value("log_dir_free_bytes_min"), text, status, "disk-nearly-full"))
    if value("draining"):
        found.append(Attention(False, f"Broker {node_id} drains: it refuses writes.", "firn drain", "broker-down"))
    if (oldest_s := value("transaction_oldest_seconds")) > OPEN_TOO_LONG_S:
        text = f"A transaction of broker {node_id} has been open for {duration(oldest_s * 1000)}."
        found.append(Attention(False, text, "firn cluster status", "transaction-open-too-long"))
    return found


def headline(standing: ClusterResponse, worst: Sequence[Attention]) -> str:
    """The state of the cluster in a sentence."""
    hurting = sum(one.hurts for one in worst)
    if hurting:
        return f"{many(hurting, 'matter needs', 'matters need')} you now."
    if worst:
        return "All records can be read and written. Look at the list below."
    if not standing.partitions:
        return "The cluster is well, and has no topic yet."
    if standing.topics == 1:
        return "The one topic is whole."
    return f"All {standing.topics:,} topics are whole."


async def overview(request: Request) -> Response:
    """The page at ``/`` for browsers."""
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    cluster_id = view.cluster_id or ""
    if not await may_describe(gateway):
        brokers = sorted(view.brokers.values())
        return await page(request, "overview_without", section="overview", cluster_id=cluster_id, brokers=brokers)
    standing = await gateway.admin.cluster_standing(controller_s=gateways.PATIENCE_S)
    numbers = None
    if standing.partitions <= PARTITIONS_SUMMED_MAX:
        numbers = await numbers_of(gateway, sorted(view.brokers))
    worst = matters(standing, numbers)
    values: dict[str, Any] = {
        "cluster_id": cluster_id,
        "standing": standing,
        "alive": view.brokers,
        "numbers": numbers,
        "partial": {topic for topic, _ in standing.offline},
        "matters": worst,
        "headline": headline(standing, worst),
        "hurts": any(one.hurts for one in worst),
        "summed_max": PARTITIONS_SUMMED_MAX,
    }
    return await page(request, "overview", section="overview", **values)


@router.get("/console")
async def root(request: Request) -> Response:
    return RedirectResponse("/", 303, headers=dict(GUARDED))


@router.get("/console/live")
async def live(request: Request) -> Response:
    """The counters of the cluster, for the script of the first page. It computes rates from two of these responses.

    Callers with the right to describe the cluster share them for ``LIVE_S``, and each is asked for that right. There are none for
    a cluster of more than ``PARTITIONS_SUMMED_MAX`` partitions.
    """
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    await gateway.admin.check_may(Operation.DESCRIBE)

    async def ask() -> Live:
        standing = await gateway.admin.cluster_standing(controller_s=gateways.PATIENCE_S)
        if standing.partitions > PARTITIONS_SUMMED_MAX:
            return Live(None, 0.0)
        numbers = await numbers_of(gateway, sorted(view.brokers))
        return Live(numbers.counters, asyncio.get_running_loop().time(), numbers.silent, sorted(numbers.brokers))

    found: Live = await console_of(request).live.answer(ask)
    body = {"counters": found.counters, "at_s": found.at_s, "silent": found.silent, "summed": found.summed}
    response = json_response(body)
    response.headers.update(GUARDED)
    return response
