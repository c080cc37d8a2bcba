"""Topics with ``firn.durability=object``: to zero and back."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

from loadtests.lab import Lab
from loadtests.measuring import median
from loadtests.results import Case
from loadtests.zero_and_back import zero_and_back

S3_DELAY_MS = 50


def run(lab: Lab) -> list[Case]:
    """The only broker ends, its disk is lost, and another one goes on."""
    cases = []
    partitions = lab.effort.partitions
    for name, stop in (("stopped in order", signal.SIGTERM), ("after kill -9", signal.SIGKILL)):
        reports = []
        for _ in range(lab.effort.starts):
            with tempfile.TemporaryDirectory(dir=lab.base) as base:
                reports.append(zero_and_back(Path(base), partitions=partitions, delay_ms=S3_DELAY_MS, stop=stop))
        found = median(reports)
        parameters = {"partitions": partitions, "delay_ms": S3_DELAY_MS}
        cases.append(Case(f"to zero and back, {partitions:,} partitions, {name}", {"Firn": found}, parameters))
        print(
            f"to zero and back           {name:<18} stopped in {found['stop_s']:.2f} s; then leaders {found['leaders_s']:.2f} s,"
            f" Fetch {found['fetch_s']:.2f} s, Produce {found['produce_s']:.2f} s, broker {found['broker_cpu_s']:.2f} s CPU",
            flush=True,
        )
    return cases
