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
    cold,
    compaction,
    fetch,
    groups,
    growth,
    http,
    latency,
    memory,
    produce,
    rebalance,
    requests,
    s3,
    spark,
    start,
    transactions,
)


class Workload(NamedTuple):
    run: Callable[[Lab], list[Case]]
    title: str
    quick: bool
    """Whether a quick run has it."""


GROUPS = {
    "bounds": Workload(bounds.run, "Bare limits of the machine", True),
    "memory": Workload(memory.idle, "Memory at rest", True),
    "produce": Workload(produce.small, "Produce of small and middling requests", True),
    "produce-large": Workload(produce.large, "Produce of 1 MB requests", True),
    "variants": Workload(produce.variants, "Produce with one thing different at a time", True),
    "variants-sizes": Workload(produce.other_sizes, "Produce of 1 KB and 1 MB with one thing different", False),
    "latency": Workload(latency.shares, "Latency against load", True),
    "clients": Workload(clients.real, "Real clients", True),
    "transactions": Workload(transactions.commits, "What transactions cost a producer", True),
    "rebalance": Workload(rebalance.consumer_protocol, "A rebalance of 1,000 members", False),
    "commits": Workload(groups.commits, "Committed offsets", True),
    "loading": Workload(groups.loading, "Committed offsets, loaded at start", True),
    "compaction": Workload(compaction.compact, "Compaction, and producers beside it", False),
    "http": Workload(http.produce, "Produce over HTTP", True),
    "fetch": Workload(fetch.hot, "Fetch of what the page cache has", True),
    "catch-up": Workload(catch_up.tail_and_catch_up, "A tail while another catches up", True),
    "cold": Workload(cold.replay, "Replay from the tier", True),
    "s3": Workload(s3.one, "Replay from S3 with latency", True),
    "s3-many": Workload(s3.many, "Replay of many partitions from S3 with latency", False),
    "s3-servers": Workload(s3.others, "Replay from S3 servers of others", False),
    "requests": Workload(requests.issued, "Requests to the object store", True),
    "together": Workload(beside.cold_replay, "Producers beside a cold replay", False),
    "upload": Workload(beside.upload, "Upload while producing", True),
    "start": Workload(start.run, "From start to first answers", False),
    "partitions": Workload(growth.partitions, "Cost against the number of partitions", True),
    "history": Workload(growth.history, "Cost against the length of history", False),
    "spark": Workload(spark.replay, "Spark replay", False),
}
