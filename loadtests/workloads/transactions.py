"""What transactions cost a producer: librdkafka idempotent, and transactional with a commit every 100 ms."""

from __future__ import annotations

import json
import subprocess
from functools import partial

from loadtests.lab import NOT_TIERED, Lab, python_on, show
from loadtests.measuring import LOAD_CORE, LoadFailed, Report, alternate, make_topic
from loadtests.results import Case
from loadtests.system import ROOT, System

COMMIT_MS = 100
KINDS = {"idempotent": 0, "transactional": COMMIT_MS}


def commits(lab: Lab) -> list[Case]:
    """Records of 1,000 bytes to one partition, as fast as the client goes, both kinds in turns; a case per system."""
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "plain", **NOT_TIERED.get(system, {}))
            make_topic(peer, "transactions", **NOT_TIERED.get(system, {}))
            runs = {kind: partial(_produce, lab, peer, commit_ms) for kind, commit_ms in KINDS.items()}
            for run in runs.values():
                run()  # warm-up
            found = alternate(runs, lab.effort.variant_rounds)
            name = f"a commit every {COMMIT_MS} ms, {system}"
            show(name, found)
            cases.append(Case(name, found, {"commit_ms": COMMIT_MS}))
    return cases


def _produce(lab: Lab, peer: System, commit_ms: int) -> Report:
    topic = "transactions" if commit_ms else "plain"
    arguments = ("--bootstrap", peer.bootstrap, "--topic", topic, "--server-pid", str(peer.pid))
    options = ("--seconds", str(lab.effort.seconds), "--commit-ms", str(commit_ms))
    command = python_on(LOAD_CORE, "-m", "loadtests.client_load", "produce", *arguments, *options)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"{topic} at {peer.name}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
