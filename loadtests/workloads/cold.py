"""Replay of what is in the tier alone: one partition and many, from a directory beside Kafka's, and from S3 with latency."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial

from loadtests.bare_limits import FILE_BYTES, PIECE_BYTES, bare
from loadtests.lab import Lab
from loadtests.measuring import generate, make_topic
from loadtests.results import Case
from loadtests.system import System

SEGMENT_BYTES = 32 << 20
TIMEOUT_S = 60
PARTITIONS = (1, 8, 64)


def segment_bytes_of(lab: Lab, partitions: int) -> int:
    """With many partitions each has less, so that the same bytes are read; no fewer than a few segments each."""
    if lab.quick:
        return (4 if partitions <= 8 else 1) << 20
    return SEGMENT_BYTES if partitions <= 8 else 4 << 20


def local_bytes(peer: System, topic: str) -> int:
    total = 0
    for path in peer.logs.glob(f"{topic}-*/*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def fill_tier(
    lab: Lab,
    peer: System,
    topic: str,
    partitions: int,
    segment_bytes: int = SEGMENT_BYTES,
    *,
    megabytes: int | None = None,
    **config: str,
) -> None:
    """A topic whose segments, but the active ones, are in the tier and nowhere else; the effort says how many megabytes."""
    make_topic(
        peer,
        topic,
        partitions,
        segment_bytes=str(segment_bytes),
        remote_storage_enable="true",
        local_retention_ms="1000",
        retention_ms="-1",
        **config,
    )
    megabytes = megabytes or lab.effort.cold_megabytes
    generate(peer, "produce", topic, batch_bytes=100_000, records=100, pipeline=3, megabytes=megabytes, warm_up=0)
    deadline = time.monotonic() + TIMEOUT_S
    while local_bytes(peer, topic) >= partitions * segment_bytes:
        if time.monotonic() > deadline:
            lab.note(f"{peer.name}, {topic}: some segments were still local after {TIMEOUT_S} s.")
            return
        time.sleep(0.5)
    time.sleep(1)


def replay(lab: Lab) -> list[Case]:
    """Read over and over from the log start to where the local log begins, all partitions in each request; beside a bare loop of
    pread and write over one file in the page cache. Segments are of 32 MiB, of 4 MiB with 64 partitions, in both systems, and
    leave the local disk a second after they rolled (`local.retention.ms=1000`)."""
    cases = []
    path = lab.base / "bare-send"
    path.write_bytes(os.urandom(PIECE_BYTES) * (FILE_BYTES // PIECE_BYTES))
    with lab.systems(tiered=True) as systems, bare("send", str(path)) as server:
        for partitions in PARTITIONS[1:2] if lab.quick else PARTITIONS:
            topic = f"cold-{partitions}"
            for peer in systems.values():
                fill_tier(lab, peer, topic, partitions, segment_bytes_of(lab, partitions))
            name = f"cold fetch, {partitions} partition{'s' * (partitions > 1)}"
            parameters = {"partitions": partitions, "store": "directory"}
            cases.append(
                lab.compare(
                    name,
                    systems,
                    "fetch",
                    topic,
                    parameters=parameters,
                    bare={"bare": partial(server.fetched, lab.effort.seconds)},
                    variant=partitions > PARTITIONS[0],
                    rounds=lab.effort.variant_rounds,
                    end="earliest-local",
                    seconds=lab.effort.seconds,
                )
            )
    return cases
