"""Cost against size: the number of partitions of a broker, and the length of its history."""

from __future__ import annotations

import shutil
import signal
import time

from confluent_kafka import KafkaException

from loadtests import many_segments
from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import LoadFailed, make_topic, median
from loadtests.processes import cpu_seconds, memory_mb
from loadtests.results import Case
from loadtests.start_up import first_answers
from loadtests.workloads.produce import options_of

PARTITION_STEPS = (1, 100, 1_000)
STARTS = ((10, 10), (10, 100), (10, 1_000), (100, 10), (1_000, 10))
"""Partitions, and segments of each: more segments first, then more partitions."""
WATCH_S = 5.0
"""Of a broker that does nothing."""


def partitions(lab: Lab) -> list[Case]:
    """1 KB requests dealt out over all partitions of one topic, one connection; a new broker for each count of partitions. How
    long the topic took to make, and what share of the core it costs when nothing comes, are in the table too."""
    cases = []
    watch_s = 1.0 if lab.quick else WATCH_S
    steps = sorted(
        {*(step for step in PARTITION_STEPS if step <= lab.effort.many_partitions), lab.effort.many_partitions}
    )
    for count in steps:
        with lab.systems() as systems:
            topic = f"wide-{count}"
            made: dict[str, float] = {}
            idle: dict[str, float] = {}
            held: dict[str, float] = {}
            for system, peer in list(systems.items()):
                started = time.perf_counter()
                try:
                    make_topic(peer, topic, count, **NOT_TIERED.get(system, {}))
                except KafkaException as failure:
                    lab.note(f"{system} does not make {count:,} partitions: {failure.args[0]}")
                    del systems[system]
                    continue
                made[system] = time.perf_counter() - started
                time.sleep(watch_s)  # until what making them left to do is done
                before = cpu_seconds(peer.pid)
                time.sleep(watch_s)
                idle[system] = (cpu_seconds(peer.pid) - before) / watch_s
                held[system] = memory_mb(peer.pid)
            name = f"{count:,} partition{'s' * (count > 1)}"
            options = options_of("produce 1 KB")
            try:
                case = lab.compare(
                    name, systems, "produce", topic, parameters={"partitions": count}, variant=True, **options
                )
            except LoadFailed as failure:
                lab.note(f"{name}: {failure}")
                continue
            for system, report in case.systems.items():
                report |= {
                    "create_s": made[system],
                    "idle_cpu_share": idle[system],
                    "memory_mb": held[system],
                }
            cases.append(case)
    return cases


def history(lab: Lab) -> list[Case]:
    """Ten partitions with more and more segments in the object store, then more and more partitions with ten segments each: from
    exec to the first Fetch of every partition, after a stop in order and after `kill -9` by turns, and memory then."""
    cases = []
    for partitions, segments in STARTS[:1] if lab.quick else STARTS:
        directory = lab.base / f"history-{partitions}-{segments}"
        many_segments.build(directory, partitions, segments)
        topics = many_segments.topic_names(partitions)
        first_answers(directory, topics)
        stopped, killed = [], []
        for _ in range(lab.effort.starts):
            stopped.append(first_answers(directory, topics, stop=signal.SIGKILL))
            killed.append(first_answers(directory, topics))
        shutil.rmtree(directory)
        found = median(stopped)
        found["fetch_after_kill_s"] = median(killed)["fetch_s"]
        total = segments * partitions
        name = f"{total:,} remote segments of {partitions:,} partitions"
        print(
            f"{name}: Fetch after {found['fetch_s']:.2f} s, after kill -9 {found['fetch_after_kill_s']:.2f} s, "
            f"{found['broker_mb']:.0f} MB",
            flush=True,
        )
        parameters = {}
        if partitions == STARTS[0][0]:
            parameters["segments"] = total
        if segments == STARTS[0][1]:
            parameters["partitions"] = partitions
        cases.append(Case(name, {"Firn": found}, parameters))
    return cases
