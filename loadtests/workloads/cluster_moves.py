"""What it costs to move partitions between brokers, for the network and for producers beside it."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Collection
from typing import Final

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from loadtests.cluster_peer import NODES, Cluster, firn_cluster
from loadtests.lab import NOT_TIERED, TIER_AT_ONCE, Lab, told
from loadtests.measuring import Report, finish, start_generator
from loadtests.raw_wire import Wire
from loadtests.results import Case
from loadtests.system import System, SystemFailed
from loadtests.workloads.cluster import ANYWHERE
from loadtests.workloads.cold import local_bytes
from loadtests.workloads.requests import metrics_of

FROM, TO, OTHER = NODES
ONE_PARTITION, MANY_PARTITIONS, MANY_PARTITIONS_QUICK = 1, 100, 4
SEGMENT_BYTES: Final = 100 << 20
TAIL_MB: Final = 50
HISTORY_MB, HISTORY_MB_QUICK = 10_000, 240
"""Of the one partition."""
BATCH: Final = {"batch_bytes": 100_000, "records": 100, "pipeline": 3, "warm_up": 0}
BESIDE: Final = {"batch_bytes": 1_000, "records": 8, "pipeline": 20, "idempotent": True}
SENT = re.compile(r"^firn_replication_bytes_out_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
TIMEOUT_S: Final = 600.0
HISTORY, HUNDRED = "a partition moved: long history, tail of 50 MB", "100 partitions moved, producers beside them"


def moves(lab: Lab) -> list[Case]:
    """A tiered partition of factor 1 with 10 GB, of which the last 50 MB are not in the object store yet, moves to another broker:
    bytes of record batches that brokers sent each other. Then 100 partitions with one tiered segment of 100 MiB and such a tail
    each move from one broker to the other two at once; an idempotent producer of 1 KB requests (one connection, 20 in flight,
    factor 3, acks=all) is led by the broker that they leave, and its rate is measured before and while they move."""
    with firn_cluster(lab.base / "moves", settings=TIER_AT_ONCE, metrics=True) as cluster:
        cases = [_history(lab, cluster)]
        lab.kept.append(cases[0])
        cases.append(_many(lab, cluster))
        lab.kept.append(cases[1])
    return cases


def _history(lab: Lab, cluster: Cluster) -> Case:
    megabytes = HISTORY_MB_QUICK if lab.quick else HISTORY_MB
    _fill(cluster, "history", ONE_PARTITION, megabytes)
    before, began_s = _sent_mb(cluster), time.monotonic()
    _move(cluster, "history", {0: TO})
    _wait_moved(cluster, "history", {0: TO})
    report = {"moved_mb": round(_sent_mb(cluster) - before, 1), "seconds": round(time.monotonic() - began_s, 2)}
    cluster.drop_topic("history")
    return Case(HISTORY, {"Firn": told(HISTORY, "Firn", report)}, {"history_mb": megabytes})


def _many(lab: Lab, cluster: Cluster) -> Case:
    count = MANY_PARTITIONS_QUICK if lab.quick else MANY_PARTITIONS
    _fill(cluster, "many", count, count * (SEGMENT_BYTES // 1_000_000 + TAIL_MB))
    cluster.make_topic_on("beside", [NODES], min_insync_replicas="2", **NOT_TIERED["Firn"])
    _generate(cluster, lab.effort.seconds)
    alone = [_generate(cluster, lab.effort.seconds) for _ in range(lab.effort.rounds)]
    before, began_s = _sent_mb(cluster), time.monotonic()
    targets = {partition: (TO, OTHER)[partition % 2] for partition in range(count)}
    _move(cluster, "many", targets)
    beside = []
    while not _moved(cluster, "many", targets):
        beside.append(_generate(cluster, lab.effort.seconds))
        if time.monotonic() - began_s > TIMEOUT_S:
            raise SystemFailed(f"the moves are not done within {TIMEOUT_S:.0f} s")
    if len(beside) > 1:
        beside.pop()  # the moves may have ended in it
    rates = [statistics.median(float(report["requests_per_s"]) for report in reports) for reports in (alone, beside)]
    report = {
        "requests_per_s": rates[1],
        "of_alone": round(rates[1] / rates[0], 3),
        "p99_ms": max(float(one["p99_ms"]) for one in beside),
        "moved_mb": round(_sent_mb(cluster) - before, 1),
        "seconds": round(time.monotonic() - began_s, 2),
    }
    reports = {"Firn": report, "Firn, alone": {"requests_per_s": rates[0]}}
    return Case(HUNDRED, {system: told(HUNDRED, system, one) for system, one in reports.items()}, {"partitions": count})


def _fill(cluster: Cluster, topic: str, partitions: int, megabytes: int) -> None:
    """A topic on the first broker, tiered but for a tail of 50 MB of each partition. Raises: SystemFailed."""
    cluster.make_topic_on(
        topic,
        [(FROM,)] * partitions,
        segment_bytes=str(SEGMENT_BYTES),
        remote_storage_enable="true",
        local_retention_ms="1000",
        retention_ms="-1",
    )
    peer = cluster.leader(topic)
    finish(start_generator(peer, "produce", topic, core=ANYWHERE, megabytes=megabytes, **BATCH))
    _wait_tiered(peer, topic, partitions)
    missing = TAIL_MB * partitions - local_bytes(peer, topic) // 1_000_000
    if missing > partitions:
        finish(start_generator(peer, "produce", topic, core=ANYWHERE, megabytes=missing, **BATCH))
        _wait_tiered(peer, topic, partitions)


def _wait_tiered(peer: System, topic: str, partitions: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    while local_bytes(peer, topic) >= partitions * SEGMENT_BYTES:
        if time.monotonic() > end:
            raise SystemFailed(f"{topic} is not in the tier within {TIMEOUT_S:.0f} s")
        time.sleep(0.5)
    time.sleep(2)


def _generate(cluster: Cluster, seconds: float) -> Report:
    peer = cluster.leader("beside")
    return finish(start_generator(peer, "produce", "beside", core=ANYWHERE, seconds=seconds, **BESIDE))


def _sent_mb(cluster: Cluster) -> float:
    """Record batches that all brokers have sent to followers."""
    found = [SENT.findall(metrics_of(broker.http_port)) for broker in cluster.brokers.values()]
    return sum(float(value) for of_one in found for value in of_one) / 1e6


def _move(cluster: Cluster, topic: str, targets: dict[int, int]) -> None:
    """Raises: SystemFailed if a move is refused."""
    wire = Wire("127.0.0.1", cluster.brokers[FROM].port)
    wanted = [ReassignablePartition(partition, [target]) for partition, target in targets.items()]
    request = AlterPartitionReassignmentsRequest(timeout_ms=60_000, topics=[ReassignableTopic(topic, wanted)])
    answer = wire.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
    wire.socket.close()
    codes: Collection[int] = {one.error_code for found in answer.responses for one in found.partitions}
    if answer.error_code or codes != {ErrorCode.NONE}:
        raise SystemFailed(f"moves are refused: {answer.error_code} {answer.error_message} {codes}")


def _moved(cluster: Cluster, topic: str, targets: dict[int, int]) -> bool:
    return cluster.leaders(topic) == targets


def _wait_moved(cluster: Cluster, topic: str, targets: dict[int, int]) -> None:
    cluster.wait(lambda: _moved(cluster, topic, targets), f"{topic} has moved")
