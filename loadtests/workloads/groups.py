"""Committed offsets: how many OffsetCommits a broker takes on a core, and how long it takes to load what was committed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial

from loadtests import micro_groups
from loadtests.lab import NOT_TIERED, Lab, WarmUp
from loadtests.measuring import LOAD_CORE, LoadFailed, Report, alternate, make_topic
from loadtests.results import Case
from loadtests.system import ROOT, System

GROUPS = 100
TOPIC = "committed"
OFFSETS_PER_COMMIT = (1, 10)
LOADED = 1_000_000
WARM_UP = WarmUp(0, 2, 60.0)
"""A slice is a run."""


def commits(lab: Lab) -> list[Case]:
    """Requests of 1 and of 10 offsets by 100 groups over one connection, pipelined; a case for each."""
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, TOPIC, partitions=max(OFFSETS_PER_COMMIT), **NOT_TIERED.get(system, {}))
        for offsets in OFFSETS_PER_COMMIT[:1] if lab.quick else OFFSETS_PER_COMMIT:
            runs = {system: partial(_commit, lab, peer, offsets) for system, peer in systems.items()}
            for system, peer in systems.items():
                lab.warm(peer, partial(_rate, runs[system]), WARM_UP)
            found = alternate(runs, lab.effort.variant_rounds, servers=systems)
            name = f"OffsetCommit of {offsets}"
            _show(name, found)
            cases.append(Case(name, found, {"offsets": offsets, "groups": GROUPS}))
    return cases


def loading(lab: Lab) -> list[Case]:
    """What the coordinator's own code takes to read a million offsets from its log, on one core, without a network."""
    offsets = LOADED // 20 if lab.quick else LOADED
    found = asyncio.run(micro_groups.measure(str(lab.base), offsets))
    return [
        Case(f"loading {offsets:,} offsets, {per_batch} in a batch", {"Firn": report}, {"per_batch": per_batch})
        for per_batch, report in found.items()
    ]


def _rate(run: Callable[[], Report]) -> float:
    return float(run()["commits_per_s"])


def _show(name: str, found: Mapping[str, Report]) -> None:
    for system, report in found.items():
        print(
            f"{name:<44} {system:<14} {report['commits_per_s']:>9,.0f} commits/s "
            f"{report['server_cpu_us_per_commit']:>9.1f} µs CPU each  p50 {report['p50_ms']:.2f}  p99 {report['p99_ms']:.2f} ms",
            flush=True,
        )


def _commit(lab: Lab, peer: System, offsets: int) -> Report:
    arguments = ("--host", peer.host, "--port", str(peer.port), "--topic", TOPIC, "--server-pid", str(peer.pid))
    options = ("--groups", str(GROUPS), "--partitions", str(offsets), "--seconds", str(lab.effort.seconds))
    command = [sys.executable, str(ROOT / "loadtests" / "raw_commit.py"), *arguments, *options]
    done = subprocess.run([*command, "--cpu", str(LOAD_CORE)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"OffsetCommit at {peer.name}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
