"""The laboratory that a workload is given: a folder, how much effort to make, and systems started side by side."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.bare_limits import touch_pages
from loadtests.firn_peer import firn_running
from loadtests.kafka_peer import PeerMissing, kafka_running
from loadtests.measuring import SERVER_CORE, Report, alternate, generate, generators
from loadtests.results import Case
from loadtests.system import System

TIER_AT_ONCE = {"remote.log.manager.task.interval.ms": "1000"}
NOT_TIERED: Mapping[str, Mapping[str, Any]] = {"Firn": {"remote_storage_enable": "false"}}
"""Topic settings by system where tiering is not what is measured: Kafka's topics are not tiered unless they say so."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How Kafka is warmed up: slices of load, until the medians of two successive windows of them differ by little.

    Java compiles a method the better the more often it runs, so that a rate rises in steps, with plateaus between: a window has
    to be longer than those.
    """

    slice_s: float
    window: int
    """Slices whose median is compared."""
    seconds_max: float
    """By the clock. What is not still by then is measured as it is."""


MAIN_WARM_UP = WarmUp(3.0, 3, 75.0)
BRIEF_WARM_UP = WarmUp(1.0, 2, 15.0)
"""Where Kafka is warm for other work of the kind."""
STANDS_STILL = 0.05


def stands_still(rates: Sequence[float], window: int) -> bool:
    """Whether the medians of the last two windows of so many rates differ by less than 5 %."""
    if len(rates) < 2 * window:
        return False
    before, last = statistics.median(rates[-2 * window : -window]), statistics.median(rates[-window:])
    return abs(last - before) < STANDS_STILL * before


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often."""

    name: str
    rounds: int
    seconds: float
    """Of one measured run."""
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


FULL = Effort("full", 5, 3.0, 3, 1.5, 1000, 1000, 10, 2, 3000, 10_000, 5_000)
QUICK = Effort("quick", 1, 0.5, 1, 0.5, 80, 100, 5, 1, 300, 100, 1_000)


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
    """Systems that groups use one after the other, started by the first that asks.

    To start Kafka and to warm it up takes longer than many a group. A group that asks for other systems than the one before, or
    for new ones, ends them. Closed by whoever made it.
    """

    base: Path
    every: bool = False
    """Whether all groups have to do with the same systems, whatever they ask for: in a quick run."""
    stack: ExitStack = field(default_factory=ExitStack)
    notes: list[str] = field(default_factory=list)
    found: dict[str, System] = field(default_factory=dict)
    kind: object = None
    groups: int = 0
    """That have used the systems."""

    def systems(
        self, note: Callable[[str], None], *, fresh: bool = False, tiered: bool = False, pinned: bool = True
    ) -> dict[str, System]:
        if self.every:
            fresh, tiered, pinned = False, True, True
        kind = (tiered, pinned)
        if fresh or kind != self.kind:
            self.end()
        if not self.found:
            self.notes = []
            running = both_running(self.base / "shared", self.notes.append, tiered=tiered, pinned=pinned)
            self.found, self.kind = self.stack.enter_context(running), kind
        self.groups += 1
        for line in self.notes:
            note(line)
        return dict(self.found)

    def end(self) -> None:
        """End the systems; whoever asks next gets new ones."""
        self.found, self.kind, self.groups = {}, None, 0
        self.stack.close()
        self.stack = ExitStack()


@dataclass(slots=True)
class Lab:
    """One group's surroundings."""

    base: Path
    effort: Effort
    shared: Shared | None = None
    """Systems that other groups have used before, or will use."""
    notes: list[str] = field(default_factory=list)
    kept: list[Case] = field(default_factory=list)
    """Cases that were compared so far: what is left of a group that does not come to its end."""

    def note(self, line: str) -> None:
        """Say what was left out, here and in the results."""
        if line not in self.notes:
            self.notes.append(line)
            print(line, flush=True)

    @contextmanager
    def systems(self, *, fresh: bool = False, tiered: bool = False, pinned: bool = True) -> Iterator[dict[str, System]]:
        """What ``both_running`` starts, or what the group before has left running. ``fresh`` ones have done nothing yet and are
        ended afterwards; a quick run has one pair for all."""
        if self.shared is None:
            with both_running(self.base / "systems", self.note, tiered=tiered, pinned=pinned) as found:
                yield found
            return
        yield self.shared.systems(self.note, fresh=fresh, tiered=tiered, pinned=pinned)
        if fresh and not self.shared.every:
            self.shared.end()

    @property
    def used(self) -> bool:
        """Whether the systems of this group were warmed up by a group before."""
        return self.shared is not None and self.shared.groups > 1

    @property
    def quick(self) -> bool:
        """Whether it is enough to see that it works."""
        return self.effort is QUICK

    def touching(self, total_bytes: int) -> Callable[[], None] | None:
        """What fills and frees so much page cache before a run (``touch_pages``); nothing in a quick one."""
        return partial(touch_pages, self.base, total_bytes) if total_bytes and not self.quick else None

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
        rounds: int = 0,
        touched_bytes: int = 0,
        **options: Any,
    ) -> Case:
        """The same generator against each system in turns, with bare limits among them; shown as it is found.

        ``variant``: of a case before it, for which Kafka is warm: a shorter warm-up, shorter runs and fewer ``rounds``, unless
        they are named. ``touched_bytes``: of page cache, filled and freed before each run of each of them (``touch_pages``).
        """
        seconds = self.effort.variant_seconds if variant else self.effort.seconds
        rounds = rounds or (self.effort.variant_rounds if variant else self.effort.rounds)
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
        """Run the load until Kafka is warm (``warm``), ``brief``ly where it was warm for other work of the kind."""
        warming = BRIEF_WARM_UP if brief else MAIN_WARM_UP
        slice_options = {name: value for name, value in options.items() if name != "megabytes"}
        slice_options |= {"seconds": warming.slice_s, "warm_up": 0}
        self.warm(peer, lambda: float(generate(peer, work, topic, **slice_options)["mb_per_s"]), warming)

    def warm(self, peer: System, run: Callable[[], float], warming: WarmUp = MAIN_WARM_UP) -> None:
        """Call ``run``, which returns a rate, until Kafka's rate stands still. Others need one call; a quick run none."""
        if self.quick:
            return
        rates = [run()]
        if peer.name != "Kafka":
            return
        deadline = time.monotonic() + warming.seconds_max
        while not stands_still(rates, warming.window):
            if time.monotonic() > deadline:
                self.note(
                    f"{peer.name}'s rate did not stand still within {warming.seconds_max:.0f} s of warm-up, at least once: "
                    "Java may have been compiling while it was measured."
                )
                return
            rates.append(run())


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
        if "load_share" in report:
            line += f"  generator {report['load_share']:.0%}"
        if report is not first and report["mb_per_s"]:
            line += f"   {first_system} is {first['mb_per_s'] / report['mb_per_s']:.2f} x"
        print(line, flush=True)


def told(name: str, system: str, report: Report) -> Report:
    """The report, after a line that shows all that is in it."""
    print(f"{name:<48} {system:<12} " + "  ".join(f"{key} {value}" for key, value in report.items()), flush=True)
    return report


def allow_descriptors(count: int) -> None:
    """Let this process, and those that it starts from now on, have so many open descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count), hard))


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
