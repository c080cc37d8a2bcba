"""Cost against size: the number of partitions of a broker, and the length of its history."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException

from loadtests import many_segments
from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import LoadFailed, Report, add_partitions, drop_topic, make_topic, median
from loadtests.processes import cpu_seconds, memory_mb
from loadtests.results import Case
from loadtests.start_up import first_answers
from loadtests.system import System
from loadtests.workloads.produce import options_of

PARTITION_STEPS = (1, 100, 1_000)
WARMED_BELOW = 5_000
MADE_AT_ONCE_MAX = 5_000
"""The rest is added: Kafka's controller takes no more than 10,000 records at once, and a topic of 10,000 has one more."""
STARTS = ((10, 10), (10, 1_000), (1_000, 10))
"""Partitions, and segments of each: more segments first, then more partitions."""
HISTORY_ROUNDS = 2
WATCH_S = 3.0
"""Of a broker that does nothing."""


def partitions(lab: Lab) -> list[Case]:
    """1 KB requests dealt out over all partitions of one topic, one connection; a topic is deleted before the next, with more
    partitions, is made. How long it took to make, and what share of the core it costs when nothing comes, are in the table too."""
    steps = sorted(
        {*(step for step in PARTITION_STEPS if step <= lab.effort.many_partitions), lab.effort.many_partitions}
    )
    cases = []
    with lab.systems(fresh=True) as systems:
        for count in steps:
            topic = f"wide-{count}"
            made = _made(lab, systems, topic, count)
            present = {system: peer for system, peer in systems.items() if system in made}
            options = options_of("produce 1 KB")
            if count == steps[0]:
                for peer in present.values():
                    lab.warm_up(peer, "produce", topic, options)
            if (case := _dealt_out(lab, present, topic, count, options)) is not None:
                for system, report in case.systems.items():
                    report |= made[system]
                cases.append(case)
            for peer in present.values():
                drop_topic(peer, topic)
    return cases


def _dealt_out(
    lab: Lab, systems: Mapping[str, System], topic: str, count: int, options: Mapping[str, Any]
) -> Case | None:
    """All systems in turns; Firn alone where another does not come to the end of it."""
    name, parameters = f"{count:,} partition{'s' * (count > 1)}", {"partitions": count}
    for present in (systems, {system: peer for system, peer in systems.items() if system == "Firn"}):
        try:
            # A generator begins with a request to every partition, which takes long where there are many: fewer partitions have
            # warmed Kafka up before.
            warm = count < WARMED_BELOW
            return lab.compare(
                name, present, "produce", topic, parameters=parameters, variant=True, warm=warm, **options
            )
        except LoadFailed as failure:
            lab.note(f"{name}: {failure}")
    return None


def _made(lab: Lab, systems: Mapping[str, System], topic: str, count: int) -> dict[str, Report]:
    """Make the topic in each of the systems that can: how long that took, and what it costs while nothing comes."""
    watch_s = 0.2 if lab.quick else WATCH_S
    made: dict[str, Report] = {}
    for system, peer in systems.items():
        started = time.perf_counter()
        try:
            make_topic(peer, topic, min(count, MADE_AT_ONCE_MAX), **NOT_TIERED.get(system, {}))
            if count > MADE_AT_ONCE_MAX:
                add_partitions(peer, topic, count)
        except KafkaException as failure:
            lab.note(f"{system} does not make {count:,} partitions: {failure.args[0]}")
            continue
        create_s = time.perf_counter() - started
        time.sleep(watch_s)  # until what making them left to do is done
        before = cpu_seconds(peer.pid)
        time.sleep(watch_s)
        idle_cpu_share = (cpu_seconds(peer.pid) - before) / watch_s
        made[system] = {"create_s": create_s, "idle_cpu_share": idle_cpu_share, "memory_mb": memory_mb(peer.pid)}
    return made


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
        for _ in range(1 if lab.quick else HISTORY_ROUNDS):
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
