"""What a rebalance of a large group costs its coordinator: 1,000 members of the consumer protocol, a tenth of them replaced."""

from __future__ import annotations

import json
import subprocess
from functools import partial

from loadtests.lab import NOT_TIERED, Lab, python_on
from loadtests.measuring import LOAD_CORE, LoadFailed, Report, alternate, make_topic
from loadtests.results import Case
from loadtests.system import ROOT, System

MEMBERS = 1000
PARTITIONS = 2000
NAME = "1,000 members, a tenth replaced"


def consumer_protocol(lab: Lab) -> list[Case]:
    """The systems one after the other: most of a run is waiting for heartbeats."""
    members = 100 if lab.quick else MEMBERS
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "shared", partitions=PARTITIONS, **NOT_TIERED.get(system, {}))
        runs = {system: partial(_measure, peer, members) for system, peer in systems.items()}
        found = alternate(runs, 1, servers=systems)
        for system, report in found.items():
            print(
                f"{NAME:<44} {system:<14} joined in {report['join_s']:.1f} s with {report['join_cpu_s']:.2f} s of CPU; "
                f"rebalanced in {report['rebalance_intervals']:.2f} intervals with {report['rebalance_cpu_s']:.2f} s of CPU",
                flush=True,
            )
    return [Case(NAME, found, {"members": members})]


def _measure(peer: System, members: int) -> Report:
    host, _, port = peer.bootstrap.rpartition(":")
    arguments = ("--host", host, "--port", port, "--topic", "shared", "--partitions", str(PARTITIONS))
    options = ("--members", str(members), "--churn", str(members // 10), "--server-pid", str(peer.pid))
    command = python_on(LOAD_CORE, "loadtests/raw_group.py", *arguments, *options)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"{members} members at {peer.name}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
