"""Produce: three sizes of request beside the bare receive and write loop, and the middle one with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from loadtests.bare_limits import bare
from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import drop_topic, make_topic
from loadtests.results import Case

SIZES = {
    "produce 1 KB": (1_000, 8, 20),
    "produce 16 KB": (16_384, 140, 10),
    "produce 1 MB": (1_000_000, 950, 3),
}
"""Name to bytes of a batch, records in it, requests in flight."""
REQUEST_OVERHEAD_BYTES = 60
CODECS = ("gzip", "snappy", "lz4", "zstd")
FLUSH_EVERY_MESSAGE = {"Firn": {"firn_durability": "disk"}, "Kafka": {"flush_messages": "1"}}


def options_of(size: str) -> dict[str, Any]:
    """Flags of the generator for one of ``SIZES``: idempotent, acks=all."""
    batch_bytes, records, pipeline = SIZES[size]
    return {"batch_bytes": batch_bytes, "records": records, "pipeline": pipeline, "idempotent": True}


def sizes(lab: Lab) -> list[Case]:
    """Idempotent Produce of three sizes, acks=all, one connection and one partition, durability ``memory``."""
    cases = []
    with lab.systems() as systems:
        for name, (batch_bytes, _, pipeline) in SIZES.items():
            topic = name.replace(" ", "-")
            for system, peer in systems.items():
                make_topic(peer, topic, **NOT_TIERED.get(system, {}))
            request_bytes = batch_bytes + REQUEST_OVERHEAD_BYTES
            with bare("receive", str(lab.base / "received"), str(request_bytes)) as server:
                limit = partial(server.produced, lab.effort.seconds, request_bytes, pipeline)
                parameters = {"request_bytes": batch_bytes}
                cases.append(
                    lab.compare(
                        name, systems, "produce", topic, parameters=parameters, bare={"bare": limit}, **options_of(name)
                    )
                )
            for peer in systems.values():
                drop_topic(peer, topic)
    return cases


def variants(lab: Lab) -> list[Case]:
    """16 KB requests, idempotent, acks=all, one partition, one connection, no codec, ``memory``; then one thing different."""
    cases = []
    base = options_of("produce 16 KB")
    plain = {key: value for key, value in base.items() if key != "idempotent"}
    with lab.systems() as systems:

        def case(
            name: str, work: str = "produce", partitions: int = 1, settings: Mapping[str, Mapping[str, Any]] | None = None,
            **changed: Any,
        ) -> None:  # fmt: skip
            topic = name.replace(" ", "-").replace(",", "").replace("=", "-")
            for system, peer in systems.items():
                own = (settings or {}).get(system, {})
                make_topic(peer, topic, partitions, **{**NOT_TIERED.get(system, {}), **own})
            options = (plain if "acks" in changed else base) | changed
            parameters = {"changed": name}
            cases.append(lab.compare(name, systems, work, topic, parameters=parameters, variant=True, **options))
            for peer in systems.values():
                drop_topic(peer, topic)

        case("16 KB, as it is")
        case("16 KB, 100 partitions", partitions=100)
        case("16 KB, 50 connections", work="produce-many", connections=50, pipeline=2)
        case("1 KB, 50 connections", work="produce-many", connections=50, pipeline=4, batch_bytes=1_000, records=8)
        case("16 KB, acks=1", acks=1)
        case("16 KB, synced to disk", settings=FLUSH_EVERY_MESSAGE)
        for codec in CODECS:
            case(f"16 KB, {codec}", codec=codec)
    return cases
