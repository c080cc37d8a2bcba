"""The laboratory that a workload is given: a folder, how much effort to make, and systems started side by side."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.bare_limits import touch_pages
from loadtests.firn_peer import firn_running
from loadtests.kafka_peer import PeerMissing, kafka_running
from loadtests.measuring import SERVER_CORE, Report, alternate, generate, generators
from loadtests.processes import family_cpu_seconds
from loadtests.results import Case
from loadtests.system import System

TIER_AT_ONCE = {"remote.log.manager.task.interval.ms": "1000"}
BRIEF_WARM_UP_S = 4.0
"""Of CPU time, where Kafka is warm for other work of the kind."""
WARM_UP_SLICES_MAX = 9
WARM_UP_RISE = 1.1
"""A slice that is not faster than all before it by so much ends the warm-up."""
NOT_TIERED: Mapping[str, Mapping[str, Any]] = {"Firn": {"remote_storage_enable": "false"}}
"""Topic settings by system where tiering is not what is measured: Kafka's topics are not tiered unless they say so."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often."""

    name: str
    rounds: int
    seconds: float
    """Of one measured run."""
    java_warm_up_s: float
    """Kafka takes a third of its rate before Java has compiled what the workload needs."""
    variant_rounds: int
    variant_seconds: float
    """Of the many cases that differ from a main one in a single thing; Kafka is warm by then."""
    cold_megabytes: int
    partitions: int
    segments: int
    """In each partition, for the start-up."""
    starts: int
    backlog_megabytes: int
    many_partitions: int
    many_connections: int


FULL = Effort("full", 5, 3.0, 15.0, 3, 2.0, 1500, 1000, 10, 3, 3000, 10_000, 5_000)
QUICK = Effort("quick", 1, 0.5, 1.0, 1, 0.5, 80, 100, 5, 1, 300, 100, 1_000)


@contextmanager
def both_running(
    directory: Path,
    note: Callable[[str], None],
    *,
    tiered: bool = False,
    pinned: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Iterator[dict[str, System]]:
    """Firn, and Kafka if it is there, each in a new folder, each on the server's core. ``settings`` are Firn's."""
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        firn = firn_running(
            directory / "firn",
            cores=str(SERVER_CORE) if pinned else None,
            settings=dict(TIER_AT_ONCE if tiered else {}) | dict(settings or {}),
        )
        found = {"Firn": stack.enter_context(firn)}
        try:
            kafka = kafka_running(directory / "kafka", core=SERVER_CORE if pinned else None, tiered=tiered)
            found["Kafka"] = stack.enter_context(kafka)
        except PeerMissing as missing:
            note(f"Apache Kafka is left out: {missing}.")
        yield found


@dataclass(slots=True)
class Shared:
    """Systems that groups use one after the other, started by the first that asks: to start them takes longer than a group of a
    quick run does. Closed by whoever made it."""

    base: Path
    stack: ExitStack = field(default_factory=ExitStack)
    notes: list[str] = field(default_factory=list)
    found: dict[str, System] = field(default_factory=dict)

    def systems(self, note: Callable[[str], None]) -> dict[str, System]:
        if not self.found:
            self.found = self.stack.enter_context(both_running(self.base / "shared", self.notes.append, tiered=True))
        for line in self.notes:
            note(line)
        return dict(self.found)


@dataclass(slots=True)
class Lab:
    """One group's surroundings."""

    base: Path
    effort: Effort
    shared: Shared | None = None
    """Where a quick run has its systems."""
    notes: list[str] = field(default_factory=list)
    kept: list[Case] = field(default_factory=list)
    """Cases that were compared so far: what is left of a group that does not come to its end."""

    def note(self, line: str) -> None:
        """Say what was left out, here and in the results."""
        if line not in self.notes:
            self.notes.append(line)
            print(line, flush=True)

    @contextmanager
    def systems(
        self,
        *,
        tiered: bool = False,
        pinned: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> Iterator[dict[str, System]]:
        """What ``both_running`` starts for this group alone; in a quick run what other groups have used already."""
        if self.shared is not None:
            yield self.shared.systems(self.note)
            return
        with both_running(self.base / "systems", self.note, tiered=tiered, pinned=pinned, settings=settings) as found:
            yield found

    @property
    def quick(self) -> bool:
        """Whether it is enough to see that it works."""
        return self.effort is QUICK

    def touching(self, total_bytes: int) -> Callable[[], None] | None:
        """What fills and frees so much page cache before a run (``touch_pages``); nothing in a quick one."""
        return partial(touch_pages, self.base, total_bytes) if total_bytes and not self.quick else None

    def warm_up_s(self, system: str) -> float:
        return self.effort.java_warm_up_s if system == "Kafka" else min(2.0, self.effort.java_warm_up_s)

    def compare(
        self,
        name: str,
        systems: Mapping[str, System],
        work: str,
        topic: str,
        *,
        parameters: Mapping[str, object] | None = None,
        bare: Mapping[str, Callable[[], Report]] | None = None,
        variant: bool = False,
        warm: bool = True,
        touched_bytes: int = 0,
        **options: Any,
    ) -> Case:
        """The same generator against each system in turns, with bare limits among them; shown as it is found.

        ``touched_bytes``: of page cache, filled and freed before each run of each of them (``touch_pages``).
        """
        rounds, seconds = self.effort.rounds, self.effort.seconds
        if variant:
            rounds, seconds = self.effort.variant_rounds, self.effort.variant_seconds
        for peer in systems.values() if warm else ():
            self.warm_up(peer, work, topic, options, brief=variant)
        timing = {"seconds": seconds, "warm_up": min(0.5, seconds / 2)}
        runs = generators(systems, work, topic, **timing | options)
        found = alternate(runs | dict(bare or {}), rounds, self.touching(touched_bytes), servers=systems)
        show(name, found)
        case = Case(name, found, dict(parameters or {}))
        self.kept.append(case)
        return case

    def warm_up(self, peer: System, work: str, topic: str, options: dict[str, Any], *, brief: bool = False) -> None:
        """Run the load until it is warm (``warm``), ``brief``ly where it was warm for other work of the kind."""
        seconds = min(BRIEF_WARM_UP_S, self.warm_up_s(peer.name)) if brief else self.warm_up_s(peer.name)
        slice_options = options | {"seconds": max(1.0, seconds / 3), "warm_up": 0}
        self.warm(peer, lambda: float(generate(peer, work, topic, **slice_options)["mb_per_s"]), seconds)

    def warm(self, peer: System, run: Callable[[], float], seconds: float | None = None) -> None:
        """Call ``run``, which answers a rate, until Kafka has spent its warm-up in CPU time, which is what Java's compiler needs,
        and the rate rises no more; on a busy machine that takes longer by the clock. Others need one call; a quick run none."""
        if self.quick:
            return
        seconds = seconds or self.warm_up_s(peer.name)
        began, best = family_cpu_seconds(peer.pid), 0.0
        for _ in range(WARM_UP_SLICES_MAX):
            rate = run()
            if peer.name != "Kafka":
                break
            if family_cpu_seconds(peer.pid) - began >= seconds and rate < best * WARM_UP_RISE:
                break
            best = max(best, rate)


def show(name: str, reports: Mapping[str, Report]) -> None:
    """A line per system, and the ratio of the first to each other."""
    first_system, first = next(iter(reports.items()))
    for system, report in reports.items():
        line = f"{name:<44} {system:<14} {report['mb_per_s']:>8.1f} MB/s"
        if "requests_per_s" in report:
            line += f" {report['requests_per_s']:>9,.0f} requests/s"
        if "server_cpu_us_per_request" in report:
            line += f" {report['server_cpu_us_per_request']:>9.1f} µs CPU each"
        if "server_cpu_s_per_gb" in report:
            line += f" {report['server_cpu_s_per_gb']:>6.2f} s CPU/GB"
        if "p99_ms" in report:
            line += f"  p50 {report['p50_ms']:.2f}  p99 {report['p99_ms']:.2f}  p99.9 {report['p999_ms']:.2f} ms"
        if report is not first and report["mb_per_s"]:
            line += f"   {first_system} is {first['mb_per_s'] / report['mb_per_s']:.2f} x"
        print(line, flush=True)


@contextmanager
def pinned_here(core: int) -> Iterator[None]:
    """This process on one core while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def python_on(core: int, *arguments: str) -> list[str]:
    """The command line of a Python process pinned to ``core``."""
    return ["taskset", "-c", str(core), sys.executable, *arguments]
