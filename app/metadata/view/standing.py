"""How a cluster stands, by its image: brokers, controller, and partitions that lack something. Pure.

The counts are those of Kafka's tools: a partition is *under-replicated* with fewer replicas in sync than it has (a reassignment's
new replicas do not count), *under min ISR* with fewer than ``min.insync.replicas``, *offline* without a leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from app.configs import BrokerConfig
from app.configs.resolving import resolve_topic_config
from app.core.turns import Steps, Stepwise
from app.metadata.changes.reassignments import Reassignment, in_progress, list_reassignments, original
from app.metadata.image.image import BrokerImage, ClusterImage

NAMED_MAX: Final = 1_000
"""Partitions named of each kind."""
PARTITIONS_A_STEP: Final = 200
"""About 1 ms."""
MIN_ISR: Final = "min.insync.replicas"


class BrokerState(StrEnum):
    """The state of a broker in the cluster log."""

    ALIVE = "alive"
    FENCED = "fenced"
    STOPPING = "stopping"

    @classmethod
    def of(cls, broker: BrokerImage) -> BrokerState:
        if broker.fenced:
            return cls.FENCED
        return cls.STOPPING if broker.stopping else cls.ALIVE


class BrokerStanding(NamedTuple):
    """One registered broker."""

    node_id: int
    host: str
    port: int
    rack: str | None
    broker_epoch: int
    state: BrokerState
    leaders: int
    """Partitions that it leads."""
    replicas: int
    in_sync: int
    """Of its replicas."""
    level_max: int
    """The highest ``firn.version`` that its program understands."""


class Standing(NamedTuple):
    """The cluster at one entry of its log."""

    cluster_id: str
    sequence: int
    level: int
    controller_id: int
    controller_epoch: int
    brokers: list[BrokerStanding]
    topics: int
    partitions: int
    under_replicated: list[tuple[str, int]]
    under_min_isr: list[tuple[str, int]]
    offline: list[tuple[str, int]]
    under_replicated_count: int
    under_min_isr_count: int
    offline_count: int
    reassignments: list[Reassignment]
    reassignment_count: int


@Stepwise
def standing(image: ClusterImage, config: BrokerConfig, leaving: int = -1) -> Steps[Standing]:
    """How the cluster stands. ``config``: the settings of topics without overrides. Lists name ``NAMED_MAX`` partitions at most.

    ``leaving``: a broker that is about to stop. Partitions that lack nothing but its replica are not listed, because its stop
    takes no replica in sync from them (O8).
    """
    least = _least_in_sync(image, config)
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    lacking: list[tuple[str, int]] = []
    too_few: list[tuple[str, int]] = []
    leaderless: list[tuple[str, int]] = []
    moving: list[tuple[str, list[int]]] = []
    partitions = moving_count = 0
    for name, topic in sorted(image.topics_by_name.items()):
        wanted = least(topic.configs.get(MIN_ISR))
        moves: list[int] = []
        for index, one in enumerate(topic.partitions):
            partitions += 1
            leaders[one.leader] += 1
            replicas.update(one.replicas)
            in_sync.update(one.isr)
            moves_now = in_progress(one)
            stays = original(one) if moves_now else one.replicas
            lacks = len(one.isr) < len(stays) or (moves_now and not set(stays) <= set(one.isr))
            if lacks and {*stays} - {*one.isr} != {leaving}:
                lacking.append((name, index))
            if len(one.isr) < min(wanted, len(one.replicas)):
                too_few.append((name, index))
            if one.leader < 0 and stays != (leaving,):
                leaderless.append((name, index))
            if moves_now:
                moving_count += 1
                if moving_count <= NAMED_MAX:
                    moves.append(index)
            if not partitions % PARTITIONS_A_STEP:
                yield
        if moves:
            moving.append((name, moves))
    return Standing(
        image.cluster_id,
        int(image.sequence),
        image.level,
        int(image.controller.broker_id),
        image.controller.epoch,
        [
            BrokerStanding(
                node_id,
                broker.host,
                broker.port,
                broker.rack,
                broker.broker_epoch,
                BrokerState.of(broker),
                leaders[node_id],
                replicas[node_id],
                in_sync[node_id],
                broker.level_max,
            )
            for node_id, broker in sorted(image.brokers.items())
        ],
        len(image.topics_by_name),
        partitions,
        lacking[:NAMED_MAX],
        too_few[:NAMED_MAX],
        leaderless[:NAMED_MAX],
        len(lacking),
        len(too_few),
        len(leaderless),
        list_reassignments(image, moving),
        moving_count,
    )


def _least_in_sync(image: ClusterImage, config: BrokerConfig) -> Callable[[str | None], int]:
    """``min.insync.replicas`` by a topic's own setting. There are few different ones."""
    effective = image.effective_broker_config(config)
    known: dict[str | None, int] = {}

    def least(own: str | None) -> int:
        if own not in known:
            overrides = {} if own is None else {MIN_ISR: own}
            known[own] = resolve_topic_config(effective, overrides).min_insync_replicas
        return known[own]

    return least
