"""Fetch of what the page cache has, by one reader and by many of the same partition."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from loadtests.bare_limits import FILE_BYTES, PIECE_BYTES, bare
from loadtests.lab import NOT_TIERED, Lab
from loadtests.measuring import generate, make_topic
from loadtests.results import Case

HOT_MEGABYTES_FULL, HOT_MEGABYTES_QUICK = 300, 100
CONSUMERS = (10, 100)


def hot(lab: Lab) -> list[Case]:
    """1 MiB at a time from one partition: one consumer beside bare loops of pread and write and of sendfile, then 10 and 100 beside
    a bare loop of sendfile."""
    cases = []
    with lab.systems() as systems:
        for system, peer in systems.items():
            make_topic(peer, "hot", **NOT_TIERED.get(system, {}))
            megabytes = HOT_MEGABYTES_QUICK if lab.quick else HOT_MEGABYTES_FULL
            generate(
                peer, "produce", "hot", batch_bytes=100_000, records=100, pipeline=3, megabytes=megabytes, warm_up=0
            )
        path = lab.base / "bare-send"
        path.write_bytes(os.urandom(PIECE_BYTES) * (FILE_BYTES // PIECE_BYTES))
        with bare("send", str(path)) as server, bare("sendfile", str(path)) as referring:
            server.fetched(min(1.0, lab.effort.seconds))
            limit = {
                "bare": partial(server.fetched, lab.effort.seconds),
                "bare sendfile": partial(referring.fetched, lab.effort.seconds),
            }
            parameters = {"consumers": 1}
            cases.append(
                lab.compare(
                    "hot fetch",
                    systems,
                    "fetch",
                    "hot",
                    parameters=parameters,
                    bare=limit,
                    rounds=lab.effort.variant_rounds,
                    max_bytes=1 << 20,
                )
            )
        for consumers in CONSUMERS[1:] if lab.quick else CONSUMERS:
            name = f"hot fetch, {consumers} consumers"
            options: dict[str, Any] = {"max_bytes": 1 << 20, "connections": consumers}
            parameters = {"consumers": consumers}
            with bare("sendfile-many", str(path), str(consumers), connections=consumers) as referring:
                limit = {"bare sendfile": partial(referring.fetched_by_many, lab.effort.variant_seconds)}
                cases.append(
                    lab.compare(
                        name, systems, "fetch-many", "hot", parameters=parameters, bare=limit, variant=True, **options
                    )
                )
        path.unlink()
    return cases
