"""Produce: three sizes of request beside the bare receive and write loop, and the middle one with one thing changed.

A GB of produce takes a GB of new page cache. Where a host takes idle memory back, touching a page for the first time again costs
several times more than all else that is done for its bytes, whoever touches it. So the larger requests are measured twice: on
pages that were touched just before each run, which is how a machine is that has been up for a while, and, 1 MB alone, on whatever
the machine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from loadtests.bare_limits import bare
from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import drop_topic, make_topic
from loadtests.results import Case
from loadtests.system import System

SIZES = {
    "produce 1 KB": (1_000, 8, 100),
    "produce 16 KB": (16_384, 140, 32),
    "produce 1 MB": (1_000_000, 950, 3),
}
"""Name to bytes of a batch, records in it, requests in flight: so many that the server is the limit, not the way to it and back."""
MIDDLE = "produce 16 KB"
LARGE = "produce 1 MB"
REQUEST_OVERHEAD_BYTES = 60
TOUCHED_BYTES = 1400 << 20
"""Before each run: a little more than it writes."""
LARGE_MEGABYTES = 1000
"""Written in each run of 1 MB requests, so that every system needs as many pages."""
LARGE_MEGABYTES_QUICK = 100
CODECS = ("gzip", "snappy", "lz4", "zstd")
VARIANTS_QUICK = ("16 KB, 100 partitions", "1 MB, 50 connections", "16 KB, synced to disk", "16 KB, zstd")
FLUSH_EVERY_MESSAGE = {"Firn": {"firn_durability": "disk"}, "Kafka": {"flush_messages": "1"}}


def options_of(size: str) -> dict[str, Any]:
    """Flags of the generator for one of ``SIZES``: idempotent, acks=all."""
    batch_bytes, records, pipeline = SIZES[size]
    return {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True}


def small(lab: Lab) -> list[Case]:
    """Idempotent Produce of 1 KB and 16 KB, acks=all, one connection and one partition, durability ``memory``, with 100 and 32
    requests in flight; the pages that 16 KB requests need were touched before each run."""
    with lab.systems() as systems:
        return [
            _beside_bare(lab, systems, name, name, touched_bytes=0 if name == "produce 1 KB" else TOUCHED_BYTES)
            for name in SIZES
            if name != LARGE
        ]


def large(lab: Lab) -> list[Case]:
    """The same with 1 MB requests: a GB on pages that were touched just before, then on those that the machine has."""
    megabytes = LARGE_MEGABYTES_QUICK if lab.quick else LARGE_MEGABYTES
    with lab.systems() as systems:
        run = partial(_beside_bare, lab, systems, megabytes=megabytes)
        return [run(LARGE, LARGE, touched_bytes=TOUCHED_BYTES), run(f"{LARGE}, pages as they come", LARGE, again=True)]


def _beside_bare(
    lab: Lab,
    systems: Mapping[str, System],
    name: str,
    size: str,
    *,
    megabytes: int = 0,
    touched_bytes: int = 0,
    again: bool = False,
) -> Case:
    """One case, for a time or for so many MB, beside the bare receive and write loop. ``again``: after another of its size."""
    batch_bytes, _, pipeline = SIZES[size]
    topic = name.replace(" ", "-").replace(",", "")
    for system, peer in systems.items():
        make_topic(peer, topic, **NOT_TIERED.get(system, {}))
    request_bytes = batch_bytes + REQUEST_OVERHEAD_BYTES
    options = options_of(size) | ({"megabytes": megabytes, "warm_up": 0} if megabytes else {})
    with bare("receive", str(lab.base / "received"), str(request_bytes)) as server:
        limit = partial(server.produced, lab.effort.seconds, request_bytes, pipeline, megabytes * 1_000_000)
        case = lab.compare(
            name,
            systems,
            "produce",
            topic,
            parameters={"request_bytes": batch_bytes, "touched_bytes": touched_bytes},
            bare={"bare": limit},
            touched_bytes=touched_bytes,
            warm=not again,
            variant=again,
            **options,
        )
    for peer in systems.values():
        drop_topic(peer, topic)
    return case


def variants(lab: Lab) -> list[Case]:
    """16 KB requests, idempotent, acks=all, one partition, one connection, no codec, ``memory``, beside the bare receive
    and write loop; then one thing different, and 1 MB requests to many partitions and over many connections."""
    cases = []
    base = options_of(MIDDLE)
    plain = {key: value for key, value in base.items() if key != "idempotent"}
    with lab.systems() as systems:

        def case(
            name: str, work: str = "produce", partitions: int = 1, settings: Mapping[str, Mapping[str, Any]] | None = None,
            **changed: Any,
        ) -> None:  # fmt: skip
            if lab.quick and name not in VARIANTS_QUICK:
                return
            topic = name.replace(" ", "-").replace(",", "").replace("=", "-")
            for system, peer in systems.items():
                own = (settings or {}).get(system, {})
                make_topic(peer, topic, partitions, **{**NOT_TIERED.get(system, {}), **own})
            options = (plain if "acks" in changed else base) | changed
            parameters = {"changed": name}
            cases.append(lab.compare(name, systems, work, topic, parameters=parameters, variant=True, **options))
            for peer in systems.values():
                drop_topic(peer, topic)

        for system, peer in systems.items():
            make_topic(peer, "warm", **NOT_TIERED.get(system, {}))
            lab.warm_up(peer, "produce", "warm", base)
            drop_topic(peer, "warm")
        request_bytes, pipeline = base["batch_bytes"] + REQUEST_OVERHEAD_BYTES, base["pipeline"]
        with bare("receive", str(lab.base / "received"), str(request_bytes)) as server:
            limit = partial(server.produced, lab.effort.variant_seconds, request_bytes, pipeline)
            case("16 KB, as it is", bare={"bare": limit})
        case("16 KB, 100 partitions", partitions=100)
        case("16 KB, 50 connections", work="produce-many", connections=50, pipeline=2)
        case("1 KB, 50 connections", work="produce-many", connections=50, pipeline=4, batch_bytes=1_000, records=8)
        large = options_of(LARGE)
        case("1 MB, 100 partitions", partitions=100, **large)
        case("1 MB, 50 connections", work="produce-many", connections=50, **large | {"pipeline": 1})
        case("16 KB, acks=1", acks=1)
        case("16 KB, synced to disk", settings=FLUSH_EVERY_MESSAGE)
        for codec in CODECS:
            case(f"16 KB, {codec}", codec=codec)
    return cases
