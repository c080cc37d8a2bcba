"""A consumer that comes back: it reads what it missed while the producer goes on and another consumer stays at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from loadtests.lab import Lab
from loadtests.measuring import Report, alternate, finish, generate, make_topic, start_generator
from loadtests.results import Case
from loadtests.system import System
from loadtests.workloads.produce import options_of

MISSED_MEGABYTES_FULL, MISSED_MEGABYTES_QUICK = 1_000, 50
WARM_UP_SLICE_S = 3.0
RATE = 1_000
"""Requests of 16 KB a second: a sixth of what the slower system takes on the machine that this was written on."""


def tail_and_catch_up(lab: Lab) -> list[Case]:
    """1,000 requests of 16 KB a second and a consumer at the end; alone, and while a second consumer reads the backlog of
    1 GB from the page cache to the end. Server on one core; producer and both consumers on the other."""
    cases = []
    megabytes = MISSED_MEGABYTES_QUICK if lab.quick else MISSED_MEGABYTES_FULL
    with lab.systems() as systems:
        for peer in systems.values():
            make_topic(peer, "missed", remote_storage_enable="false")
            options = {"batch_bytes": 100_000, "records": 100, "pipeline": 3, "warm_up": 0}
            generate(peer, "produce", "missed", megabytes=megabytes, **options)
            if not lab.quick:
                # At a fixed rate it is the CPU of a request that falls until Java is warm.
                lab.warm(peer, partial(_cost, peer))
        for how, run in list(HOW.items())[1:] if lab.quick else HOW.items():
            runs = {name: partial(run, lab, peer) for name, peer in systems.items()}
            found = alternate(runs, lab.effort.variant_rounds, servers=systems)
            for name, report in found.items():
                print(
                    f"{how:<32} {name:<6} end to end p50 {report['e2e_p50_ms']:.2f}  p99 {report['e2e_p99_ms']:.2f} ms"
                    + (f", caught up in {report['catch_up_s']:.2f} s" if "catch_up_s" in report else ""),
                    flush=True,
                )
            cases.append(Case(how, found))
    return cases


def _cost(peer: System) -> float:
    return float(_tail(peer, WARM_UP_SLICE_S)["server_cpu_us_per_request"])


def _tail(peer: System, seconds: float) -> Report:
    options = {key: value for key, value in options_of("produce 16 KB").items() if key != "pipeline"}
    return generate(peer, "end-to-end", "missed", seconds=seconds, rate=RATE, **options)


def _alone(lab: Lab, peer: System) -> Report:
    return _tail(peer, lab.effort.seconds)


def _beside(lab: Lab, peer: System) -> Report:
    options = {key: value for key, value in options_of("produce 16 KB").items() if key != "pipeline"}
    tail = start_generator(
        peer, "end-to-end", "missed", seconds=lab.effort.seconds + 2, rate=RATE, warm_up=0.5, **options
    )
    time.sleep(1.0)  # the tail's own start
    started = time.perf_counter()
    read = generate(peer, "fetch", "missed", once=True, seconds=60, warm_up=0)
    caught_up_s = time.perf_counter() - started
    report = finish(tail)
    report["catch_up_s"] = caught_up_s
    report["catch_up_mb_per_s"] = read["mb_per_s"]
    return report


HOW: Mapping[str, Callable[[Lab, System], Report]] = {
    "tail alone": _alone,
    "tail while another catches up": _beside,
}
