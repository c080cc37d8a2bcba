"""Three brokers of a kind: what replicated records cost, how soon partitions are led again, and what an idle cluster costs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer

from loadtests.cluster_peer import NODES, Cluster, clusters, firn_cluster
from loadtests.lab import BRIEF_WARM_UP, MAIN_WARM_UP, NOT_TIERED, Lab, WarmUp, show, stands_still, told
from loadtests.measuring import Report, alternate, finish, start_generator
from loadtests.raw_failover import first_writes
from loadtests.raw_load import percentiles
from loadtests.results import Case
from loadtests.workloads.produce import CONNECTED_IN_FLIGHT, SIZES
from loadtests.workloads.requests import counted

SMALL, MIDDLE, LARGE = SIZES
ONE, MANY = 1, 50
NAMES: Final = tuple((size, count) for count in (ONE, MANY) for size in SIZES)
QUICK: Final = ((MIDDLE, ONE),)
ANYWHERE: Final = -1
"""The load and all brokers share the machine's cores."""
ALONE: Final = "one-replica"
"""Topic without followers."""
DELETE_DELAY_MS: Final = "1000"
"""After which the disk has the room of a dropped topic again; the default of both systems is a minute."""
HALF: Final = 0.5
PACED_IN_FLIGHT: Final = 1_000
PACED_REQUESTS_MIN: Final = 200

FAILOVER_PARTITIONS, FAILOVER_PARTITIONS_QUICK, FAILOVER_PARTITIONS_KAFKA = 1_000, 30, 60
"""Kafka has fewer: it took eleven seconds for those."""
LED_BY_THE_DEAD: Final = 5_000
RESTART_RATE: Final = 200
"""Records a second while brokers are restarted."""
RESTART_PARTITIONS: Final = 60
IDLE_SECONDS, IDLE_SECONDS_QUICK = 60.0, 2.0
IDLE_SETTLES_S: Final = 10.0
IDLE_PARTITIONS, IDLE_PARTITIONS_QUICK = (100, 10_000), (30,)
COUNTED_SECONDS, COUNTED_SECONDS_QUICK = 120.0, 2.0
COUNTED_PARTITIONS, COUNTED_PARTITIONS_QUICK = 100, 3
HOUR_S: Final = 3_600.0


def replicated(size: str, connections: int) -> str:
    """The name of a case."""
    label = size.removeprefix("produce ")
    return f"replicated {label}, {connections} connection{'s' * (connections > 1)}"


def at_half(size: str) -> str:
    """The name of a case of latency."""
    return f"replicated {size.removeprefix('produce ')}, at half of Kafka's rate"


def _options(cluster: Cluster, size: str, connections: int) -> tuple[str, dict[str, Any]]:
    batch_bytes, records, in_flight = SIZES[size]
    options: dict[str, Any] = {"batch_bytes": batch_bytes, "records": records, "idempotent": True}
    options["server_pid"] = ",".join(str(pid) for pid in cluster.pids)
    if connections == ONE:
        return "produce", options | {"pipeline": in_flight}
    return "produce-many", options | {
        "pipeline": 1 if size == LARGE else CONNECTED_IN_FLIGHT,
        "connections": connections,
    }


def _make(cluster: Cluster, topic: str) -> None:
    config = {**NOT_TIERED.get(cluster.name, {}), "file_delete_delay_ms": DELETE_DELAY_MS}
    if topic == ALONE:
        cluster.make_topic_on(topic, [NODES[:1]], **config)
    else:
        cluster.make_topic(topic, **config)


def _generate(cluster: Cluster, topic: str, size: str, connections: int, **more: Any) -> Report:
    """One run of the load. What requests of 1 MB wrote to one broker alone is gone again afterwards: it is so fast that a few runs
    fill a disk."""
    work, options = _options(cluster, size, connections)
    try:
        return finish(start_generator(cluster.leader(topic), work, topic, core=ANYWHERE, **options | more))
    finally:
        if size == LARGE and topic == ALONE:
            cluster.drop_topic(topic)
            _make(cluster, topic)


def _warm(lab: Lab, cluster: Cluster, topic: str, size: str, connections: int, warming: WarmUp) -> None:
    """As ``Lab.warm``: until Kafka's rate stands still."""

    def rate() -> float:
        return float(_generate(cluster, topic, size, connections, seconds=warming.slice_s)["mb_per_s"])

    if lab.quick:
        return
    rates = [rate()]
    end = time.monotonic() + warming.seconds_max
    while cluster.name == "Kafka" and not stands_still(rates, warming.window) and time.monotonic() < end:
        rates.append(rate())


def produce(lab: Lab) -> list[Case]:
    """Idempotent Produce of 1 KB, 16 KB and 1 MB to one partition of factor 3, acks=all, `min.insync.replicas` 2, durability
    `memory`, over one connection and over 50. Three brokers of each system, in turns; nothing is pinned, the load and all six
    brokers share the cores. CPU is that of all three brokers of a system. Over 50 connections also to a partition of factor 1: what
    Firn could have if its followers cost nothing. Then 1 KB and 16 KB at half of the rate that Kafka had over one connection; a
    latency counts from when a request was due."""
    cases: list[Case] = []
    with clusters(lab.base / "clusters", lab.note) as found:
        for size, connections in QUICK if lab.quick else NAMES:
            name = replicated(size, connections)
            topic = name.replace(" ", "-").replace(",", "")
            for cluster in found.values():
                _make(cluster, topic)
                _warm(lab, cluster, topic, size, connections, BRIEF_WARM_UP if cases else MAIN_WARM_UP)
            seconds = lab.effort.seconds
            if connections == MANY:
                _make(found["Firn"], ALONE)
            cases.append(_compare(lab, name, found, topic, size, connections, seconds=seconds))
            if connections == MANY:
                found["Firn"].drop_topic(ALONE)
            if connections == ONE and size != LARGE and not lab.quick and "Kafka" in found:
                rate = HALF * float(cases[-1].systems["Kafka"]["requests_per_s"])
                if rate * seconds < PACED_REQUESTS_MIN:
                    lab.note(f"{at_half(size)} is left out: {rate:.0f} requests a second are too few for a p99.")
                else:
                    paced = {"seconds": seconds, "rate": rate, "pipeline": PACED_IN_FLIGHT}
                    cases.append(_compare(lab, at_half(size), found, topic, size, connections, **paced))
            for cluster in found.values():
                cluster.drop_topic(topic)
    return cases


def _compare(
    lab: Lab, name: str, found: Mapping[str, Cluster], topic: str, size: str, connections: int, **options: Any
) -> Case:
    runs = {
        system: partial(_generate, cluster, topic, size, connections, **options) for system, cluster in found.items()
    }
    if connections == MANY:
        runs["Firn, one replica"] = partial(_generate, found["Firn"], ALONE, size, connections, **options)
    reports = alternate(runs, lab.effort.rounds)
    show(name, reports)
    case = Case(name, reports, {"connections": connections, "request_bytes": SIZES[size][0]})
    lab.kept.append(case)
    return case


# --- failover -----------------------------------------------------------------------------------------------------------

KILLED, STOPPED, BOTH = "leader killed", "leader stopped", "controller and leader killed"
DEAD_OF_MANY = f"leader of {LED_BY_THE_DEAD:,} partitions killed"
RESTARTED = "each broker restarted in order"


def failover(lab: Lab) -> list[Case]:
    """The time until the first acknowledged write (acks=all) to each partition that a broker led, from the moment at which it is
    ended by `kill -9` or stopped by SIGSTOP: a broker that leads only, and one that is the controller too. Factor 3; 1,000
    partitions, 60 for Kafka, whose Metadata does not tell its controller. Then each broker is restarted in order under 200 records
    a second by librdkafka (acks=all, linger 0): the latency of each."""
    cases = []
    with clusters(lab.base / "failover", lab.note) as found:
        reports: dict[str, dict[str, Report]] = {name: {} for name in (KILLED, STOPPED, BOTH, RESTARTED)}
        for system, cluster in found.items():
            count = FAILOVER_PARTITIONS if system == "Firn" else FAILOVER_PARTITIONS_KAFKA
            if lab.quick:
                count = FAILOVER_PARTITIONS_QUICK
            cluster.make_topic("failing", count, **NOT_TIERED.get(system, {}))
            ports = {node_id: broker.port for node_id, broker in cluster.brokers.items()}
            first_writes(ports, (), "failing", range(count), time.monotonic())
            for name in (KILLED,) if lab.quick else (KILLED, STOPPED, BOTH):
                reports[name][system] = told(name, system, _fail(cluster, "failing", name))
            if not lab.quick:
                cluster.make_topic("restarting", RESTART_PARTITIONS, **NOT_TIERED.get(system, {}))
                reports[RESTARTED][system] = told(RESTARTED, system, _restart_each(cluster, "restarting"))
        cases = [Case(name, of_name) for name, of_name in reports.items() if of_name]
        lab.kept.extend(cases)
    if not lab.quick:
        with firn_cluster(lab.base / "many") as cluster:
            _make_led(cluster, "failing", LED_BY_THE_DEAD)
            cases.append(Case(DEAD_OF_MANY, {"Firn": told(DEAD_OF_MANY, "Firn", _fail(cluster, "failing", KILLED))}))
            lab.kept.append(cases[-1])
    return cases


def _make_led(cluster: Cluster, topic: str, count: int) -> None:
    """A topic with twice as many partitions, of which a broker that is not the controller leads ``count``."""
    controller = cluster.controller()
    leader = min(node_id for node_id in cluster.brokers if node_id != controller)
    others = [node_id for node_id in cluster.brokers if node_id != leader]
    turned = [[leader, *others]] * 2 + [[others[0], leader, others[1]], [others[1], leader, others[0]]]
    replicas = [turned[place % len(turned)] for place in range(2 * count)]
    cluster.make_topic_on(topic, replicas, **NOT_TIERED["Firn"])
    ports = {node_id: broker.port for node_id, broker in cluster.brokers.items()}
    led = [place for place, of_one in enumerate(replicas) if of_one[0] == leader]
    first_writes(ports, (), topic, led, time.monotonic())  # a partition has no files before that
    cluster.wait_in_sync(topic)


def _fail(cluster: Cluster, topic: str, how: str) -> Report:
    """End or stop a broker, and wait until all partitions that it led take writes, and until all are in sync again."""
    leaders = cluster.leaders(topic)
    controller = cluster.controller()
    with_leaderships = sorted({leader for leader in leaders.values() if leader >= 0})
    others = [node_id for node_id in with_leaderships if node_id != controller]
    victim = (
        controller
        if how == BOTH and controller in with_leaderships
        else max(others, key=lambda node_id: sum(leader == node_id for leader in leaders.values()))
    )
    led = [partition for partition, leader in leaders.items() if leader == victim]
    broker = cluster.brokers[victim]
    began_s = time.monotonic()
    broker.send(signal.SIGSTOP if how == STOPPED else signal.SIGKILL)
    ports = {node_id: one.port for node_id, one in cluster.brokers.items()}
    took = sorted(first_writes(ports, (victim,), topic, led, began_s).values())
    if how == STOPPED:
        broker.send(signal.SIGCONT)
    else:
        broker.kill()
        broker.start()
    cluster.wait_in_sync(topic)
    return {
        "partitions": len(led),
        "first_s": round(took[0], 3),
        "median_s": round(took[len(took) // 2], 3),
        "longest_s": round(took[-1], 3),
    }


def _restart_each(cluster: Cluster, topic: str) -> Report:
    """Stop and start one broker after the other in order while records are produced. Those of the first seconds do not count: the
    producer connects, and the partitions get their files."""
    latencies: list[float] = []
    counts = threading.Event()
    stop = threading.Event()
    refused: list[str] = []

    def produce() -> None:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        number, next_s = 0, time.monotonic()
        while not stop.is_set():
            due_s = next_s

            def done(error: Any, message: Any, due_s: float = due_s, count: bool = counts.is_set()) -> None:
                del message
                if not count:
                    return
                if error is None:
                    latencies.append(time.monotonic() - due_s)
                else:
                    refused.append(str(error))

            producer.produce(topic, os.urandom(100), partition=number % RESTART_PARTITIONS, on_delivery=done)
            number += 1
            next_s += 1 / RESTART_RATE
            while (left_s := next_s - time.monotonic()) > 0:
                producer.poll(left_s)  # comes back early with each answer
            producer.poll(0)
        producer.flush(60)

    writing = threading.Thread(target=produce)
    writing.start()
    try:
        time.sleep(5)
        counts.set()
        for broker in cluster.brokers.values():
            broker.stop()
            broker.start()
            cluster.wait_in_sync(topic)
            time.sleep(3)
    finally:
        stop.set()
        writing.join()
    return percentiles(latencies) | {"requests": len(latencies), "refused": len(refused)}


# --- at rest ------------------------------------------------------------------------------------------------------------


def idle_with(count: int) -> str:
    """The name of a case."""
    return f"idle cluster, {count:,} partitions"


def idle(lab: Lab) -> list[Case]:
    """CPU of a cluster of three Firn brokers with partitions of factor 3 that nobody uses: the share of one core that each broker
    takes. Then the requests to the object store of a cluster with 100 tiered partitions at rest, counted over two minutes and
    told for an hour; what comes a few times a day is not in it (sweeps)."""
    cases = []
    seconds = IDLE_SECONDS_QUICK if lab.quick else IDLE_SECONDS
    for count in IDLE_PARTITIONS_QUICK if lab.quick else IDLE_PARTITIONS:
        with firn_cluster(lab.base / f"idle-{count}") as cluster:
            cluster.make_topic("idle", count, **NOT_TIERED["Firn"])
            if not lab.quick:
                time.sleep(IDLE_SETTLES_S)
            before, began_s = cluster.cpu_seconds(), time.monotonic()
            time.sleep(seconds)
            share = (cluster.cpu_seconds() - before) / (time.monotonic() - began_s) / len(cluster.brokers)
        case = Case(idle_with(count), {"Firn": {"idle_cpu_percent": round(100 * share, 3)}}, {"partitions": count})
        print(f"{case.name:<44} Firn     {100 * share:.2f} % of a core for each broker", flush=True)
        cases.append(case)
        lab.kept.append(case)
    counted_cases = _requests_at_rest(lab)
    lab.kept.extend(counted_cases)
    return cases + counted_cases


def _requests_at_rest(lab: Lab) -> list[Case]:
    seconds = COUNTED_SECONDS_QUICK if lab.quick else COUNTED_SECONDS
    with firn_cluster(lab.base / "counted", metrics=True) as cluster:
        cluster.make_topic("idle", COUNTED_PARTITIONS_QUICK if lab.quick else COUNTED_PARTITIONS)
        time.sleep(IDLE_SETTLES_S)
        before, began_s = _counted(cluster), time.monotonic()
        time.sleep(seconds)
        found, took_s = _counted(cluster) - before, time.monotonic() - began_s
    cases = []
    for operation, count in sorted(found.items()):
        report = {"store_requests": round(count * HOUR_S / took_s)}
        cases.append(Case(f"idle cluster, an hour of {operation}", {"Firn": report}))
        print(f"{cases[-1].name:<44} Firn     {report['store_requests']:,}", flush=True)
    return cases


def _counted(cluster: Cluster) -> Counter[str]:
    return sum((counted(broker.http_port) for broker in cluster.brokers.values()), Counter())
