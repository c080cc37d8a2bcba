"""Pages of brokers: the address, version and state of each, the progress of moves of partitions; and the settings of one.

Tests: ``tests/http/console/test_brokers.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, RequestRejected
from app.core.turns import Portion
from app.core.units import BrokerId
from app.http import gateway as gateways
from app.http.console.asking import of_broker, side_by_side, soon
from app.http.console.pages.overview import may_describe
from app.http.console.rendering import ConsoleRoute, page
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.serving import gateway_of
from app.wire.config_resources import ConfigResourceType
from app.wire.private import ClusterMove, MetricSample, TierStatusResponse

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

DEFAULT: Final = "DEFAULT_CONFIG"
"""The source of a setting that nothing changes."""
MOVES_SHOWN: Final = 50
MOVED_PARTITIONS_MAX: Final = 2_000
"""Partitions of the topics with moves that are shown. Beyond them the page does without the progress of moves."""
NO_TOPIC: Final = "-"
"""No topic has this name. A question about it alone gets the state of the broker, and no partition."""
_BUILD: Final = "firn_build_info"
_NAMES: Final = frozenset(
    {
        _BUILD,
        "firn_draining",
        "firn_broker_isolated",
        "firn_ready",
        "firn_loop_stalls_total",
        "firn_replica_lag_max_records",
        "firn_log_dir_free_bytes",
        "firn_log_dir_size_bytes",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)
_LEAST: Final = frozenset({"process_start_time_seconds"})
"""Metrics of processes of which the least counts. The others are added up."""


@dataclass(slots=True)
class BrokerNumbers:
    """The numbers of a broker, by its own metrics."""

    version: str = ""
    values: dict[str, float] = field(default_factory=dict)
    drain: str = ""
    """How far its drain is, in a sentence; empty if it does not drain."""

    def get(self, name: str) -> float | None:
        return self.values.get(name)


@dataclass(slots=True)
class MoveProgress:
    """A reassignment under way."""

    move: ClusterMove
    caught_up: int = 0
    """New replicas that are in sync."""
    left: int | None = None
    """Records that the new replica furthest behind lacks; None if no broker says it."""
    part: float | None = None
    """How much of the partition that replica has, from 0 to 1."""


async def numbers_of(answers: Mapping[BrokerId, Iterable[MetricSample]]) -> dict[int, BrokerNumbers]:
    """The numbers of brokers, of the processes of each together."""
    found: dict[int, BrokerNumbers] = {}
    portion = Portion()
    for node_id, samples in answers.items():
        own = found[node_id] = BrokerNumbers()
        for one in samples:
            labels = dict(one.labels)
            if one.name == _BUILD:
                own.version = labels.get("version", "")
            elif one.name in _LEAST:
                own.values[one.name] = min(own.values.get(one.name, one.value), one.value)
            else:
                own.values[one.name] = own.values.get(one.name, 0.0) + one.value
            if portion.spent_by():
                await portion.rest()
    return found


def progress_of(
    moves: Sequence[ClusterMove],
    in_sync: Mapping[tuple[str, int], Sequence[int]],
    status: Mapping[BrokerId, TierStatusResponse],
) -> list[MoveProgress]:
    """The progress of moves. ``status``: of brokers, with the partitions that they lead and follow."""
    wanted = {(move.topic, move.partition) for move in moves}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    reached: dict[tuple[str, int, int], int] = {}
    for node_id, told in status.items():
        for one in told.partitions:
            if (one.topic, one.partition) not in wanted:
                continue
            if one.role == "leader":
                ends[one.topic, one.partition] = one.log_start_offset, one.high_watermark
            reached[one.topic, one.partition, node_id] = one.log_end_offset
    found = []
    for move in moves:
        place = move.topic, move.partition
        made = MoveProgress(move, sum(node_id in in_sync.get(place, ()) for node_id in move.adding))
        offsets = [reached.get((*place, node_id)) for node_id in move.adding]
        known = [one for one in offsets if one is not None]
        if place in ends and known and len(known) == len(offsets):
            start, end = ends[place]
            least = min(known)
            made.left = max(0, end - least)
            made.part = min(1.0, max(0.0, (least - start) / (end - start))) if end > start else 1.0
        found.append(made)
    return found


async def move_progress(
    gateway: Gateway, moves: Sequence[ClusterMove], answering: Collection[BrokerId]
) -> list[MoveProgress]:
    """The progress of moves, from the responses that the brokers have sent before."""
    topics = sorted({move.topic for move in moves})
    if not topics:
        return []
    try:
        view = await gateway.cluster.refresh(topics)
    except (BrokerUnavailable, RequestRejected):
        return progress_of(moves, {}, {})  # a topic has just been deleted, or the caller does not see it
    in_sync = {}
    for move in moves:  # their partitions only: a topic may have any number
        topic = view.topics.get(move.topic)
        if topic is not None and move.partition < len(topic.partitions):
            in_sync[move.topic, move.partition] = topic.partitions[move.partition].in_sync_replicas
    if sum(len(view.topics[name].partitions) for name in topics if name in view.topics) > MOVED_PARTITIONS_MAX:
        return progress_of(moves, in_sync, {})
    asked = {BrokerId(one) for move in moves for one in (*move.replicas, *move.adding)} & {*answering}

    async def ask(_: BrokerId, connection: KafkaConnection) -> TierStatusResponse:
        return await gateway.admin.tier_status_by(connection, topics, replicas=True)

    return progress_of(moves, in_sync, (await side_by_side(gateway, asked, ask)).answers)


async def _drains(gateway: Gateway, brokers: Sequence[BrokerId]) -> dict[BrokerId, str]:
    """The progress of the drains of some brokers, in sentences."""

    async def ask(_: BrokerId, connection: KafkaConnection) -> str:
        return (await gateway.admin.tier_status_by(connection, [NO_TOPIC])).drain

    return (await side_by_side(gateway, brokers, ask)).answers


@router.get("/console/brokers")
async def list_brokers(request: Request) -> Response:
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    if not await may_describe(gateway):
        return await page(request, "brokers_without", section="brokers", brokers=sorted(view.brokers.values()))
    standing = await gateway.admin.cluster_standing(controller_s=gateways.PATIENCE_S)

    async def ask(_: BrokerId, connection: KafkaConnection) -> list[MetricSample]:
        return (await gateway.admin.metrics(connection, _NAMES)).samples

    told = await side_by_side(gateway, sorted(view.brokers), ask)
    numbers = await numbers_of(told.answers)
    for node_id, sentence in (
        await _drains(gateway, [node_id for node_id in told.answers if numbers[node_id].get("firn_draining")])
    ).items():
        numbers[node_id].drain = sentence
    moves = standing.moves[:MOVES_SHOWN]
    versions = {one.version for one in numbers.values() if one.version}
    return await page(
        request,
        "brokers",
        section="brokers",
        standing=standing,
        alive=view.brokers,
        numbers=numbers,
        silent=told.silent,
        versions=sorted(versions),
        moves=await move_progress(gateway, moves, told.answers),
        moves_left=standing.moves_count - len(moves),
    )


@router.get("/console/brokers/{broker_id}")
async def show_settings(broker_id: str, request: Request) -> Response:
    """The settings of a broker: those that differ from the defaults first."""
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    short = broker_id.isascii() and broker_id.isdecimal() and len(broker_id) < 11
    node_id = BrokerId(int(broker_id) if short else -1)
    if node_id not in view.brokers:
        raise RestError(404, f"Broker {broker_id[:20]} is fenced or does not exist. Look with `firn cluster brokers`.")
    entries = await of_broker(
        gateway,
        node_id,
        lambda _: gateway.admin.describe_configs(ConfigResourceType.BROKER, str(node_id), documentation=True),
    )
    return await page(
        request,
        "broker",
        section="brokers",
        broker=view.brokers[node_id],
        changed=[one for one in entries if one.source != DEFAULT],
        others=[one for one in entries if one.source == DEFAULT],
    )
