"""How late acknowledged writes and delivered records are, at shares of what the slower system can take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from loadtests.lab import NOT_TIERED, Lab, show
from loadtests.measuring import alternate, generate, generators, make_topic
from loadtests.results import Case
from loadtests.system import System
from loadtests.workloads.produce import TOUCHED_BYTES, options_of

SIZE = "produce 16 KB"
FLAT_OUT = "flat out, to a consumer at the end"
HALF = 0.5
SHARES = (0.1, HALF, 0.8)
SHARES_QUICK = (HALF,)
REQUESTS_MAIN = 20_000
"""In each round at half load and above: twenty of them are later than its p99.9, and no single pause of the machine is its p99."""
SECONDS_MAIN_MAX = 20.0
SECONDS_ELSEWHERE = 4.0
"""Of a round of anything else."""
WARM_UP_S = 0.5
KAFKA_WARM_UP_S, WARM_UP_SLICE_S = 40.0, 5.0
"""Of CPU time: where each request also wakes a consumer, what one costs Kafka falls by half after the 15 s of other groups."""
TOUCHED_PER_REQUEST = 20_000
"""Bytes of page cache: a request, its indexes, and the moment that it is warmed up before."""


def shares(lab: Lab) -> list[Case]:
    """16 KB requests, acks=all, one partition, with a consumer at the end of the log: flat out, at 10, 50 and 80 % of what the
    slower system sustained of that, and the faster one at 80 % of its own. A latency counts from when a request was due. At half
    load and at 80 % a round has 20,000 requests (20 s at most), elsewhere it takes 4 s, and p99.9 rests on a few requests; there
    are five rounds of each at half load, three of the others. Before each run the page cache it needs is touched, and what runs
    before it have written is on the disk. The generator's share is that of the time in which it had something to do: near 100 %
    the load is what is measured."""
    options = options_of(SIZE)
    paced = {key: value for key, value in options.items() if key != "pipeline"} | {"spin": True}
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "late", **NOT_TIERED.get(system, {}))
            lab.warm(peer, partial(_sustained, peer, options), KAFKA_WARM_UP_S)
        flat_out = _run(lab, FLAT_OUT, systems, SECONDS_ELSEWHERE, 0, options)
        capacity = {system: float(report["requests_per_s"]) for system, report in flat_out.systems.items()}
        slower = min(capacity.values())
        cases = [flat_out]
        for share in SHARES_QUICK if lab.quick else SHARES:
            rate = slower * share
            seconds = min(REQUESTS_MAIN / rate, SECONDS_MAIN_MAX) if share >= HALF else SECONDS_ELSEWHERE
            found = _run(lab, f"acknowledged at {share * 100:.0f} %", systems, seconds, rate, paced, main=share == HALF)
            found.parameters |= {"share_of_capacity": share, "capacity_requests_per_s": slower}
            cases.append(found)
        for system, own in capacity.items():
            if own > slower:
                rate = own * SHARES[-1]
                name = "acknowledged at 80 % of its own"
                cases.append(_run(lab, name, {system: systems[system]}, SECONDS_ELSEWHERE, rate, paced))
    return cases


def _sustained(peer: System, options: Mapping[str, Any]) -> float:
    """MB/s, flat out."""
    return float(generate(peer, "end-to-end", "late", seconds=WARM_UP_SLICE_S, warm_up=0, **options)["mb_per_s"])


def _run(
    lab: Lab,
    name: str,
    systems: Mapping[str, System],
    seconds: float,
    rate: float,
    options: Mapping[str, Any],
    *,
    main: bool = False,
) -> Case:
    """One case at ``rate`` requests a second, or flat out: ``seconds`` in each round, of which a ``main`` one has more. A quick
    run takes its own time."""
    seconds = lab.effort.seconds if lab.quick else seconds
    timing = {"seconds": seconds, "warm_up": min(WARM_UP_S, seconds / 2)}
    touch = lab.touching(int(min(rate * seconds * TOUCHED_PER_REQUEST, TOUCHED_BYTES)) if rate else TOUCHED_BYTES)

    def before() -> None:
        if touch is not None:
            # What the system before this one has left to the kernel would be written in the turn of this one.
            os.sync()
            touch()

    runs = generators(systems, "end-to-end", "late", rate=rate, **timing, **options)
    found = alternate(runs, lab.effort.rounds if main else lab.effort.variant_rounds, before, servers=systems)
    show(name, found)
    case = Case(name, found)
    lab.kept.append(case)
    return case
