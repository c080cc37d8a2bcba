"""Produce: three sizes of request beside the bare receive and write loop, and each with one thing changed.

A GB of produce takes a GB of new page cache. Where a host takes idle memory back, touching a page for the first time again costs
several times more than all else that is done for its bytes, whoever touches it. So the larger requests are measured twice: on
pages that were touched just before each run, which is how a machine is that has been up for a while, and, 1 MB alone, on whatever
the machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from loadtests.bare_limits import bare
from loadtests.lab import NOT_TIERED, Lab, allow_descriptors
from loadtests.measuring import Report, drop_topic, make_topic
from loadtests.results import Case
from loadtests.system import System

SIZES = {
    "produce 1 KB": (1_000, 8, 100),
    "produce 16 KB": (16_384, 140, 32),
    "produce 1 MB": (1_000_000, 950, 3),
}
"""Name to bytes of a batch, records in it, requests in flight: so many that the server is the limit, not the way to it and back."""
IN_FLIGHT = (20, 100)
"""On one connection, of 1 KB and of 16 KB: what a producer with a deep queue has, and one with a shallow one."""
CONNECTED = (50, 1_000)
CONNECTED_SIZES = {"1 KB": (1_000, 8), "4 KB": (4_096, 35), "16 KB": (16_384, 140)}
"""Bytes of a batch and records in it."""
CONNECTED_SIZES_QUICK = ("4 KB",)
CONNECTED_IN_FLIGHT = 2
"""On each connection: how a fleet of producers looks."""
DESCRIPTORS_ASIDE = 500
SMALL = "produce 1 KB"
MIDDLE = "produce 16 KB"
LARGE = "produce 1 MB"
REQUEST_OVERHEAD_BYTES = 60
TOUCHED_BYTES = 1400 << 20
"""Before each run: a little more than it writes."""
TOUCHED_BY_SIZE = {SMALL: 256 << 20, MIDDLE: 1000 << 20, LARGE: TOUCHED_BYTES}
TOUCHED_COMPRESSED_BYTES = 400 << 20
"""Before the shorter runs of variants."""
LARGE_MEGABYTES = 600
"""Written in each run of 1 MB requests, so that every system needs as many pages."""
LARGE_MEGABYTES_QUICK = 100
CODECS = ("gzip", "snappy", "lz4", "zstd")
OTHER_CODECS = ("zstd",)
"""Of other sizes than 16 KB."""
VARIANTS_QUICK = ("16 KB, 100 partitions", "1 MB, 50 connections", "16 KB, synced to disk", "16 KB, zstd")
FLUSH_EVERY_MESSAGE = {"Firn": {"firn_durability": "disk"}, "Kafka": {"flush_messages": "1"}}


def options_of(size: str) -> dict[str, Any]:
    """Flags of the generator for one of ``SIZES``: idempotent, acks=all."""
    batch_bytes, records, pipeline = SIZES[size]
    return {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True}


def in_flight(size: str, count: int) -> str:
    """The name of a case of one connection."""
    return f"{size}, {count} in flight"


def small(lab: Lab) -> list[Case]:
    """Idempotent Produce of 1 KB and 16 KB, acks=all, one connection and one partition, durability `memory`, with 20 and with 100
    requests in flight; the pages that 16 KB requests need were touched before each run. Kafka is at work on one request of a
    connection at a time: what both do with many connections is in `connections`."""
    with lab.systems() as systems:
        return [
            _beside_bare(
                lab,
                systems,
                in_flight(size, count),
                size,
                pipeline=count,
                touched_bytes=0 if size == SMALL else TOUCHED_BYTES,
                again=(size, count) != (SMALL, IN_FLIGHT[-1]),
                with_bare=count == IN_FLIGHT[-1],  # the loop is as fast with fewer
            )
            for size in (SMALL, MIDDLE)
            for count in reversed(IN_FLIGHT[-1:] if lab.quick else IN_FLIGHT)
        ]


def connections(lab: Lab) -> list[Case]:
    """Idempotent Produce of 1, 4 and 16 KB over 50 and over 1,000 connections to one partition, two requests in flight on each, and
    a producer id for each. The generator is one process: its share says how much of its core it needed, and near 100 % it is the
    generator that is measured."""
    cases: list[Case] = []
    allow_descriptors(CONNECTED[-1] + DESCRIPTORS_ASIDE)
    with lab.systems() as systems:
        for count in CONNECTED:
            for label in CONNECTED_SIZES_QUICK if lab.quick else CONNECTED_SIZES:
                batch_bytes, records = CONNECTED_SIZES[label]
                name = connected(label, count)
                topic = name.replace(" ", "-").replace(",", "")
                for system, peer in systems.items():
                    make_topic(peer, topic, **NOT_TIERED.get(system, {}))
                case = lab.compare(
                    name,
                    systems,
                    "produce-many",
                    topic,
                    parameters={"connections": count, "request_bytes": batch_bytes},
                    variant=bool(cases) or lab.used,
                    rounds=lab.effort.rounds if count == CONNECTED[0] else 0,
                    touched_bytes=TOUCHED_BY_SIZE[MIDDLE if batch_bytes > SIZES[SMALL][0] else SMALL],
                    batch_bytes=batch_bytes,
                    records=records,
                    pipeline=CONNECTED_IN_FLIGHT,
                    connections=count,
                    idempotent=True,
                )
                cases.append(case)
                for peer in systems.values():
                    drop_topic(peer, topic)
    return cases


def connected(label: str, count: int) -> str:
    """The name of a case of ``connections``."""
    return f"{label}, {count:,} connections"


def large(lab: Lab) -> list[Case]:
    """The same with 1 MB requests: 600 MB on pages that were touched just before, then on those that the machine has."""
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
    pipeline: int = 0,
    megabytes: int = 0,
    touched_bytes: int = 0,
    again: bool = False,
    with_bare: bool = True,
) -> Case:
    """One case, for a time or for so many MB, beside the bare receive and write loop. ``again``: after another of its kind."""
    batch_bytes, _, usual = SIZES[size]
    pipeline = pipeline or usual
    topic = name.replace(" ", "-").replace(",", "")
    for system, peer in systems.items():
        make_topic(peer, topic, **NOT_TIERED.get(system, {}))
    request_bytes = batch_bytes + REQUEST_OVERHEAD_BYTES
    options = options_of(size) | {"pipeline": pipeline} | ({"megabytes": megabytes, "warm_up": 0} if megabytes else {})
    with bare("receive", str(lab.base / "received"), str(request_bytes)) as server:
        limit = partial(server.produced, lab.effort.seconds, request_bytes, pipeline, megabytes * 1_000_000)
        case = lab.compare(
            name,
            systems,
            "produce",
            topic,
            parameters={"request_bytes": batch_bytes, "touched_bytes": touched_bytes, "in_flight": pipeline},
            bare={"bare": limit} if with_bare else {},
            touched_bytes=touched_bytes,
            variant=again,
            rounds=lab.effort.rounds,
            **options,
        )
    for peer in systems.values():
        drop_topic(peer, topic)
    return case


class Variant(NamedTuple):
    """A case, and what is different about it from the plain one of its size."""

    name: str
    size: str
    work: str = "produce"
    partitions: int = 1
    synced: bool = False
    options: Mapping[str, Any] = {}

    @property
    def touched_bytes(self) -> int:
        """Of page cache, before each run: what it writes at most."""
        return TOUCHED_COMPRESSED_BYTES if "codec" in self.options else TOUCHED_BY_SIZE[self.size]

    @property
    def flags(self) -> dict[str, Any]:
        """The generator's. An idempotent producer asks for all acknowledgements."""
        flags = options_of(self.size) | dict(self.options)
        if "acks" in flags:
            del flags["idempotent"]
        return flags


def _of_each_codec(size: str, codecs: Sequence[str] = CODECS) -> tuple[Variant, ...]:
    label = size.removeprefix("produce ")
    return tuple(Variant(f"{label}, {codec}", size, options={"codec": codec}) for codec in codecs)


VARIANTS = (
    Variant("16 KB, as it is", MIDDLE),
    Variant("16 KB, 100 partitions", MIDDLE, partitions=100),
    Variant("1 MB, 100 partitions", LARGE, partitions=100),
    Variant("1 MB, 50 connections", LARGE, "produce-many", options={"connections": 50, "pipeline": 1}),
    Variant("16 KB, acks=1", MIDDLE, options={"acks": 1}),
    Variant("16 KB, synced to disk", MIDDLE, synced=True),
    *_of_each_codec(MIDDLE),
)
OTHER_SIZES = (
    Variant("1 KB, acks=1", SMALL, options={"acks": 1}),
    Variant("1 KB, synced to disk", SMALL, synced=True),
    *_of_each_codec(SMALL, OTHER_CODECS),
    Variant("1 MB, acks=1", LARGE, options={"acks": 1}),
    Variant("1 MB, synced to disk", LARGE, synced=True),
    *_of_each_codec(LARGE, OTHER_CODECS),
)


def variants(lab: Lab) -> list[Case]:
    """16 KB requests, idempotent, acks=all, one partition, one connection, no codec, ``memory``; then one thing different, and
    1 MB requests over many connections and to many partitions. Beside the plain case there is the bare receive and write loop with
    one connection; the pages that a run needs were touched before it. Requests over many connections are in `connections`."""
    return _varied(lab, [one for one in VARIANTS if not lab.quick or one.name in VARIANTS_QUICK])


def other_sizes(lab: Lab) -> list[Case]:
    """The same for what is different about requests of 1 KB and of 1 MB: their plain cases are those of `produce` and
    `produce-large`, where the bare loop is too."""
    return _varied(lab, OTHER_SIZES)


def _varied(lab: Lab, chosen: Sequence[Variant]) -> list[Case]:
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "warm", **NOT_TIERED.get(system, {}))
            lab.warm_up(peer, "produce", "warm", options_of(MIDDLE), brief=lab.used)
            drop_topic(peer, "warm")
        for variant in chosen:
            with ExitStack() as stack:
                limit = (
                    {}
                    if lab.quick or variant != VARIANTS[0]
                    else {"bare": stack.enter_context(_bare_limit(lab, variant))}
                )
                cases.append(_variant(lab, systems, variant, limit))
    return cases


def _variant(lab: Lab, systems: Mapping[str, System], variant: Variant, limit: dict[str, Callable[[], Report]]) -> Case:
    topic = variant.name.replace(" ", "-").replace(",", "").replace("=", "-")
    for system, peer in systems.items():
        own = FLUSH_EVERY_MESSAGE[system] if variant.synced else {}
        make_topic(peer, topic, variant.partitions, **NOT_TIERED.get(system, {}), **own)
    case = lab.compare(
        variant.name,
        systems,
        variant.work,
        topic,
        parameters={"changed": variant.name},
        variant=True,
        bare=limit,
        touched_bytes=variant.touched_bytes,
        **variant.flags,
    )
    for peer in systems.values():
        drop_topic(peer, topic)
    return case


@contextmanager
def _bare_limit(lab: Lab, variant: Variant) -> Iterator[Callable[[], Report]]:
    """One connection's requests of the variant's size, received and written."""
    request_bytes, _, pipeline = SIZES[variant.size]
    request_bytes += REQUEST_OVERHEAD_BYTES
    with bare("receive", str(lab.base / "received"), str(request_bytes)) as server:
        yield partial(server.produced, lab.effort.variant_seconds, request_bytes, pipeline)
