"""What transactions cost a producer: idempotent, and transactional with a commit every 100 ms, in turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial

from loadtests.lab import BRIEF_WARM_UP, NOT_TIERED, Lab, python_on, show
from loadtests.measuring import LOAD_CORE, LoadFailed, Report, alternate, drop_topic, generate, make_topic
from loadtests.results import Case
from loadtests.system import ROOT, System
from loadtests.workloads.produce import MIDDLE, SIZES, options_of

COMMIT_MS = 100
SIZES_QUICK = (MIDDLE,)
KINDS = {"idempotent": 0, "transactional": COMMIT_MS}


def commits(lab: Lab) -> list[Case]:
    """Requests of three sizes to one partition from the raw generator, then librdkafka; a case per system.

    A commit waits for what is in flight. librdkafka fills a queue of 100 MB meanwhile, which a commit has to wait for: with it the
    client is what is measured.
    """
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "warm", **NOT_TIERED.get(system, {}))
            lab.warm_up(peer, "produce", "warm", options_of(MIDDLE))
            sizes = tuple(SIZES_QUICK if lab.quick else SIZES)
            for size in sizes:
                topic = size.replace(" ", "-")
                for kind in KINDS:
                    make_topic(peer, f"{topic}-{kind}", **NOT_TIERED.get(system, {}))
                # A cold Kafka commits nothing in less.
                seconds = 1.0 if lab.quick else max(2.0, lab.effort.variant_seconds)
                options = options_of(size) | {"seconds": seconds, "warm_up": 0.5}
                runs = {
                    kind: partial(generate, peer, "produce", f"{topic}-{kind}", commit_ms=commit_ms, **options)
                    for kind, commit_ms in KINDS.items()
                }
                if size == sizes[0]:  # Java has compiled what the other cases need, too
                    for run in runs.values():
                        lab.warm(peer, partial(_rate, run), BRIEF_WARM_UP)
                cases.append(_case(lab, f"{size}, a commit every {COMMIT_MS} ms, {system}", peer, runs))
                # The quicker the machine, the more of its disk they have filled.
                for kind in KINDS:
                    drop_topic(peer, f"{topic}-{kind}")
            if lab.quick:
                continue
            for kind in KINDS:
                make_topic(peer, kind, **NOT_TIERED.get(system, {}))
            clients = {kind: partial(_rdkafka, lab, peer, kind) for kind in KINDS}
            cases.append(_case(lab, f"librdkafka, a commit every {COMMIT_MS} ms, {system}", peer, clients))
            for kind in KINDS:
                drop_topic(peer, kind)
    return cases


def _case(lab: Lab, name: str, peer: System, runs: dict[str, partial[Report]]) -> Case:
    found = alternate(runs, lab.effort.variant_rounds, servers=dict.fromkeys(runs, peer))
    show(name, found)
    return Case(name, found, {"commit_ms": COMMIT_MS})


def _rate(run: Callable[[], Report]) -> float:
    return float(run()["mb_per_s"])


def _rdkafka(lab: Lab, peer: System, kind: str) -> Report:
    arguments = ("--bootstrap", peer.bootstrap, "--topic", kind, "--server-pid", str(peer.pid))
    options = ("--seconds", str(lab.effort.variant_seconds), "--commit-ms", str(KINDS[kind]))
    command = python_on(LOAD_CORE, "-m", "loadtests.client_load", "produce", *arguments, *options)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"librdkafka, {kind} at {peer.name}: {done.stderr.strip()[-300:]}")
    report: Report = json.loads(done.stdout)
    return report
