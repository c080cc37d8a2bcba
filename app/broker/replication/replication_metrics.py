"""Metrics of replication and of the cluster, with Kafka's meanings. Computed only when the metrics are read.

Tests: ``tests/broker/test_readers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from app.core.metrics import Labels, Registry
from app.metadata.image.image import ClusterImage
from app.replication.partition import PartitionTable

_OF_LED: Final = (
    "firn_partitions",
    "firn_leaders",
    "firn_under_replicated_partitions",
    "firn_under_min_isr_partitions",
    "firn_at_min_isr_partitions",
    "firn_isr_shrinks_total",
    "firn_isr_expands_total",
    "firn_replica_lag_max_records",
    "firn_given_up_offsets_total",
)
AT_ONCE: Final = 500
"""Partitions that are counted before other work may run."""

Shown = tuple[str, Labels, float] | None


class Office(Protocol):
    """The counts of the controller."""

    @property
    def unclean_elections(self) -> int: ...


class ReplicationMetrics:
    """Belongs to one event loop."""

    def __init__(
        self,
        registry: Registry,
        table: PartitionTable,
        *,
        image: Callable[[], ClusterImage],
        is_controller: Callable[[], bool],
        office: Office | None,
        lag_max: Callable[[], int],
    ) -> None:
        """``office``: of one of several brokers. ``lag_max``: records that the replica that is furthest behind lacks here."""
        self._table = table
        self._image = image
        self._is_controller = is_controller
        self._office = office
        self._lag_max = lag_max
        registry.describe("firn_partitions", "gauge", "Replicas on this broker")
        registry.describe("firn_leaders", "gauge", "Partitions that this broker leads")
        registry.describe(
            "firn_under_replicated_partitions", "gauge", "Partitions led here with a replica that is not in sync"
        )
        registry.describe(
            "firn_under_min_isr_partitions",
            "gauge",
            "Partitions led here with fewer replicas in sync than min.insync.replicas",
        )
        registry.describe(
            "firn_at_min_isr_partitions",
            "gauge",
            "Partitions led here with as many replicas in sync as min.insync.replicas",
        )
        registry.describe("firn_isr_shrinks_total", "counter", "Times that a partition led here lost a replica in sync")
        registry.describe(
            "firn_isr_expands_total", "counter", "Times that a partition led here gained a replica in sync"
        )
        registry.describe(
            "firn_replica_lag_max_records",
            "gauge",
            "Committed records that the replica furthest behind lacks on this broker",
        )
        registry.describe("firn_active_controller", "gauge", "1 on the controller, 0 on the other brokers")
        registry.describe("firn_active_brokers", "gauge", "Brokers that are not fenced; 0 except on the controller")
        registry.describe(
            "firn_fenced_brokers", "gauge", "Registered brokers that are fenced; 0 except on the controller"
        )
        registry.describe(
            "firn_leaderless_partitions", "gauge", "Partitions that no broker leads; 0 except on the controller"
        )
        registry.describe(
            "firn_unclean_leader_elections_total",
            "counter",
            "Elections of leaders that may lack acknowledged records, by this controller",
        )
        registry.describe(
            "firn_given_up_offsets_total",
            "counter",
            "Offsets of committed records that were cut away here, because a leader that was elected uncleanly lacks them",
        )
        registry.source(self._led, _OF_LED)
        registry.source(self._cluster)

    def _led(self) -> Iterator[Shown]:
        table = self._table
        partitions = leaders = under_replicated = under = at = 0
        for partition in table:
            partitions += 1
            if partition.leads:
                leaders += 1
                replicas, in_sync = len(partition.replicas), len(partition.in_sync)
                wanted = min(partition.log.config.min_insync_replicas, replicas)
                under_replicated += in_sync < replicas
                under += in_sync < wanted
                at += in_sync == wanted
            if not partitions % AT_ONCE:
                yield None
        yield "firn_partitions", (), partitions
        yield "firn_leaders", (), leaders
        yield "firn_under_replicated_partitions", (), under_replicated
        yield "firn_under_min_isr_partitions", (), under
        yield "firn_at_min_isr_partitions", (), at
        yield "firn_isr_shrinks_total", (), table.shrinks
        yield "firn_isr_expands_total", (), table.expands
        yield "firn_replica_lag_max_records", (), self._lag_max()
        yield "firn_given_up_offsets_total", (), table.given_up

    def _cluster(self) -> Iterator[Shown]:
        controls, image = self._is_controller(), self._image()
        fenced = sum(broker.fenced for broker in image.brokers.values())
        leaderless = seen = 0
        if controls:
            for topic in image.topics_by_name.values():
                for partition in topic.partitions:
                    leaderless += partition.leader < 0
                    seen += 1
                    if not seen % (AT_ONCE * 10):
                        yield None
        yield "firn_active_controller", (), int(controls)
        yield "firn_active_brokers", (), len(image.brokers) - fenced if controls else 0
        yield "firn_fenced_brokers", (), fenced if controls else 0
        yield "firn_leaderless_partitions", (), leaderless
        yield "firn_unclean_leader_elections_total", (), self._office.unclean_elections if self._office else 0
