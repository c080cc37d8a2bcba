"""What all workloads share: running the generators, topics, medians and turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from loadtests.processes import children, cpu_seconds, family_memory_mb, forget_peak, memory_mb
from loadtests.system import ROOT, System

__all__ = ["ROOT", "Report", "children", "cpu_seconds", "memory_mb"]

SERVER_CORE = 0
LOAD_CORE = 1
GENERATORS = {
    "produce": "raw_load",
    "fetch": "raw_load",
    "produce-many": "raw_many",
    "fetch-many": "raw_many",
    "connect": "raw_connect",
}
"""Work to the module that does it."""

Report = dict[str, Any]
TOPIC_TIMEOUT_S = 120


class LoadFailed(Exception):
    """The generator ended with an error."""


def start_generator(
    system: System, work: str, topic: str, *, core: int = LOAD_CORE, **options: Any
) -> subprocess.Popen[str]:
    """Start a raw load generator against ``system``; ``core`` -1 leaves it unpinned. ``finish`` gives its report."""
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    flags = [flag for flag in flags if flag != "True"]
    module = ROOT / "loadtests" / f"{GENERATORS.get(work, 'raw_end_to_end')}.py"
    command = [sys.executable, str(module), work, "--host", system.host, "--port", str(system.port), "--topic", topic]
    return subprocess.Popen(
        [*command, "--cpu", str(core), "--server-pid", str(system.pid), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(generator: subprocess.Popen[str]) -> Report:
    """Wait for a generator. Raises: LoadFailed."""
    out, trouble = generator.communicate()
    if generator.returncode != 0:
        raise LoadFailed(f"{' '.join(generator.args[2:])}: {trouble.strip()[-400:]}")  # type: ignore[index, arg-type]
    report: Report = json.loads(out)
    return report


def generate(system: System, work: str, topic: str, **options: Any) -> Report:
    """One run of a raw load generator against ``system``, on the load's core. Raises: LoadFailed."""
    return finish(start_generator(system, work, topic, **options))


def admin_of(system: System) -> AdminClient:
    """It must live until its answers are there. What librdkafka has to say about its end is not of interest."""
    return AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 5})


def make_topic(system: System, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; ``config`` has ``_`` for ``.``."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin = admin_of(system)
    admin.create_topics([wanted], request_timeout=TOPIC_TIMEOUT_S)[topic].result(TOPIC_TIMEOUT_S)


def add_partitions(system: System, topic: str, count: int) -> None:
    """Let a topic have ``count`` partitions in all."""
    admin, wanted = admin_of(system), NewPartitions(topic, count)
    admin.create_partitions([wanted], request_timeout=TOPIC_TIMEOUT_S)[topic].result(TOPIC_TIMEOUT_S)


def drop_topic(system: System, topic: str) -> None:
    """Delete a topic, so that its pages and its disk are there for the next; one that is gone already is fine."""
    admin = admin_of(system)
    with suppress(KafkaException):
        admin.delete_topics([topic])[topic].result(TOPIC_TIMEOUT_S)


def generators(systems: Mapping[str, System], work: str, topic: str, **options: Any) -> dict[str, Callable[[], Report]]:
    """The same run of the generator for each system, to be taken in turns."""
    return {name: partial(generate, system, work, topic, **options) for name, system in systems.items()}


def median(rounds: list[Report]) -> Report:
    """Medians of the numbers of several rounds; ``spread`` has the lowest and the highest of each."""
    out: Report = {}
    spread: dict[str, list[float]] = {}
    for key, value in rounds[0].items():
        if isinstance(value, (int, float)):
            values = [report[key] for report in rounds]
            out[key] = statistics.median(values)
            spread[key] = [min(values), max(values)]
    if len(rounds) > 1:
        out["spread"] = spread
    return out


def alternate(
    runs: Mapping[str, Callable[[], Report]],
    rounds: int,
    before: Callable[[], None] | None = None,
    *,
    servers: Mapping[str, System] | None = None,
) -> dict[str, Report]:
    """Run each system in turn, ``rounds`` times, with ``before`` ahead of each run.

    ``servers`` has the broker behind a run, by the run's name: its highest memory during the run, all its processes added up, is
    in the report then.
    """
    found: dict[str, list[Report]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if before is not None:
                before()
            server = (servers or {}).get(name)
            if server is not None:
                forget_peak(server.pid)
            report = run()
            if server is not None:
                report["peak_memory_mb"] = family_memory_mb(server.pid, "VmHWM")
            found[name].append(report)
    return {name: median(reports) for name, reports in found.items()}
