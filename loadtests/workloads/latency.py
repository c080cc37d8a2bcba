"""How late acknowledged writes and delivered records are, at shares of what Kafka and Firn can take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from loadtests.lab import NOT_TIERED, Lab, WarmUp, show
from loadtests.measuring import alternate, generate, generators, make_topic
from loadtests.results import Case
from loadtests.system import System
from loadtests.workloads.produce import TOUCHED_BYTES, options_of

SIZE = "produce 16 KB"
FLAT_OUT = "flat out, to a consumer at the end"
PRODUCE_FLAT_OUT = "produce, flat out"
HALF = 0.5
SHARES = (0.1, HALF, 0.8)
SHARES_QUICK = (HALF,)
REQUESTS_MAIN = 10_000
"""In each round at half load and above: ten of them are later than its p99.9, and no single pause of the machine is its p99."""
SECONDS_MAIN_MAX = 5.0
SECONDS_ELSEWHERE = 3.0
"""Of a round of anything else."""
WARM_UP_S = 0.5
WARM_UP = WarmUp(5.0, 2, 90.0)
"""Where each request also wakes a consumer, what one costs Kafka falls for longer than in other groups."""
TOUCHED_PER_REQUEST = 20_000
"""Bytes of page cache: a request, its indexes, and the moment that it is warmed up before."""
IN_FLIGHT_FLAT_OUT = 100
OUT_OF_REACH = 0.9
"""Of what a system takes flat out: at a higher rate it is its queue that would be measured."""


def produce_at_half_of(system: str) -> str:
    """The name of a case."""
    return f"produce at half of {system}'s rate"


def shares(lab: Lab) -> list[Case]:
    """16 KB requests, acks=all, one partition. First with a consumer at the end of the log: flat out, and at 10, 50 and 80 % of
    what Kafka sustained of that. Then produced only: flat out with 100 in flight, and at half of that of Firn and of that of
    Kafka; a system is left out where it cannot sustain the rate. A latency counts from when a request was due. At half load and
    at 80 % a round has 10,000 requests (5 s at most), elsewhere it takes 3 s, and p99.9 rests on a few requests. Before each
    run the page cache it needs is touched, and what runs before it have written is on the disk. The generator's share is that
    of the time in which it had something to do: near 100 % the load is what is measured."""
    options = options_of(SIZE)
    paced = {key: value for key, value in options.items() if key != "pipeline"} | {"spin": True}
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "late", **NOT_TIERED.get(system, {}))
            lab.warm(peer, partial(_sustained, peer, options), WARM_UP)
        flat_out = _run(lab, FLAT_OUT, systems, SECONDS_ELSEWHERE, 0, options)
        capacity = _capacity(flat_out)
        name, of = ("Kafka", capacity["Kafka"]) if "Kafka" in capacity else ("Firn", capacity["Firn"])
        for share in SHARES_QUICK if lab.quick else SHARES:
            rate = of * share
            seconds = _seconds_at(rate) if share >= HALF else SECONDS_ELSEWHERE
            found = _run(lab, f"acknowledged at {share * 100:.0f} %", systems, seconds, rate, paced)
            found.parameters |= {"share_of_capacity": share, "capacity_requests_per_s": of, "capacity_of": name}
        _produce_only(lab, systems, options)
    return lab.kept


def _capacity(flat_out: Case) -> dict[str, float]:
    return {system: float(report["requests_per_s"]) for system, report in flat_out.systems.items()}


def _seconds_at(rate: float) -> float:
    return min(REQUESTS_MAIN / rate, SECONDS_MAIN_MAX)


def _produce_only(lab: Lab, systems: Mapping[str, System], options: Mapping[str, Any]) -> None:
    """Half load as each system has it: half of its own rate, flat out, for all that can sustain it."""
    for peer in systems.values():
        lab.warm_up(peer, "produce", "late", dict(options), brief=True)
    deep = dict(options) | {"pipeline": IN_FLIGHT_FLAT_OUT}
    capacity = _capacity(_run(lab, PRODUCE_FLAT_OUT, systems, SECONDS_ELSEWHERE, 0, deep, work="produce"))
    for system, own in capacity.items():
        rate = own * HALF
        able = {name: peer for name, peer in systems.items() if rate < capacity[name] * OUT_OF_REACH}
        for name in systems.keys() - able.keys():
            lab.note(
                f"{name} takes {capacity[name]:,.0f} requests/s, so that it is left out at half of {system}'s {own:,.0f}."
            )
        _run(lab, produce_at_half_of(system), able, _seconds_at(rate), rate, deep, main=True, work="produce")


def _sustained(peer: System, options: Mapping[str, Any]) -> float:
    """MB/s, flat out."""
    return float(generate(peer, "end-to-end", "late", seconds=WARM_UP.slice_s, warm_up=0, **options)["mb_per_s"])


def _run(
    lab: Lab,
    name: str,
    systems: Mapping[str, System],
    seconds: float,
    rate: float,
    options: Mapping[str, Any],
    *,
    main: bool = False,
    work: str = "end-to-end",
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

    runs = generators(systems, work, "late", rate=rate, **timing, **options)
    found = alternate(runs, lab.effort.rounds if main else lab.effort.variant_rounds, before, servers=systems)
    show(name, found)
    case = Case(name, found)
    lab.kept.append(case)
    return case
