"""The workloads, one module per kind. A workload takes a ``Lab``, prints what it finds and answers cases.

``GROUPS`` names them in the order in which they run; what a figure is held against is in ``loadtests.targets``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loadtests.lab import Lab
from loadtests.results import Case
from loadtests.workloads import (
    beside,
    bounds,
    catch_up,
    clients,
    cluster,
    cluster_moves,
    cold,
    compaction,
    fetch,
    groups,
    growth,
    http,
    latency,
    memory,
    object_durability,
    produce,
    rebalance,
    requests,
    s3,
    secured,
    spark,
    start,
    transactions,
)


class Workload(NamedTuple):
    run: Callable[[Lab], list[Case]]
    title: str
    quick: bool
    """Whether a quick run has it."""
    minutes: float
    """Of a full run, on a quiet machine with two cores."""
    apart: bool = False
    """Whether it runs only if it is named (``--only``): three brokers of each kind need the machine for half an hour, and brokers
    with security are none that other groups share."""


GROUPS = {
    "bounds": Workload(bounds.run, "Bare limits of the machine", True, 0.2),
    "memory": Workload(memory.idle, "Memory at rest", True, 0.8),
    "produce": Workload(produce.small, "Produce of small and middling requests", True, 4.6),
    "produce-large": Workload(produce.large, "Produce of 1 MB requests", True, 2.7),
    "connections": Workload(produce.connections, "Produce over many connections", True, 6.7),
    "variants": Workload(produce.variants, "Produce with one thing different at a time", True, 4),
    "variants-sizes": Workload(produce.other_sizes, "Produce of 1 KB and 1 MB with one thing different", False, 3.3),
    "latency": Workload(latency.shares, "Latency against load", True, 5.4),
    "clients": Workload(clients.real, "Real clients", True, 5),
    "transactions": Workload(transactions.commits, "What transactions cost a producer", True, 4.2),
    "rebalance": Workload(rebalance.consumer_protocol, "A rebalance of 1,000 members", False, 1.1),
    "commits": Workload(groups.commits, "Committed offsets", True, 1.9),
    "loading": Workload(groups.loading, "Committed offsets, loaded at start", True, 0.5),
    "compaction": Workload(compaction.compact, "Compaction, and producers beside it", False, 2.1),
    "http": Workload(http.produce, "Produce over HTTP", True, 0.5),
    "fetch": Workload(fetch.hot, "Fetch of what the page cache has", True, 2.2),
    "catch-up": Workload(catch_up.tail_and_catch_up, "A tail while another catches up", True, 2.1),
    "cold": Workload(cold.replay, "Replay from the tier", True, 4.3),
    "s3": Workload(s3.one, "Replay from S3 with latency", True, 2.4),
    "s3-many": Workload(s3.many, "Replay of many partitions from S3 with latency", False, 1.7),
    "s3-servers": Workload(s3.others, "Replay from S3 servers of others", False, 1.7),
    "requests": Workload(requests.issued, "Requests to the object store", True, 0.3),
    "together": Workload(beside.cold_replay, "Producers beside a cold replay", False, 5.2),
    "upload": Workload(beside.upload, "Upload while producing", True, 0.3),
    "start": Workload(start.run, "From start to first answers", False, 1.7),
    "object": Workload(object_durability.run, "Topics with object durability", False, 1.5, apart=True),
    "partitions": Workload(growth.partitions, "Cost against the number of partitions", True, 5),
    "history": Workload(growth.history, "Cost against the length of history", False, 2.3),
    "cluster": Workload(cluster.produce, "Replicated Produce, three brokers", True, 11, apart=True),
    "cluster-failover": Workload(cluster.failover, "Brokers of a cluster that end", False, 7, apart=True),
    "cluster-moves": Workload(cluster_moves.moves, "Partitions that move", False, 6, apart=True),
    "cluster-idle": Workload(cluster.idle, "A cluster at rest", False, 6, apart=True),
    "secured": Workload(secured.run, "What security costs", True, 7.5, apart=True),
    "spark": Workload(spark.replay, "Spark replay", False, 7.2),
}
