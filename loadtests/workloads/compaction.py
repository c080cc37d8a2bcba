"""What compaction costs, and what producers beside it notice."""

from __future__ import annotations

import asyncio

from loadtests.compaction import (
    BESIDE_MEGABYTES,
    BESIDE_RATE,
    BESIDE_ROUNDS,
    BESIDE_S,
    SHAPES,
    produce_beside,
    rates,
)
from loadtests.lab import Lab
from loadtests.results import Case

BESIDE = "producers beside compaction"


def compact(lab: Lab) -> list[Case]:
    """Logs of each shape, compacted by a cleaner process; then a steady producer, alone and beside one."""
    part = 10 if lab.quick else 1
    shapes = tuple(shape._replace(log_bytes=shape.log_bytes // part, keys=shape.keys // part) for shape in SHAPES)
    found = asyncio.run(rates(lab.base / "rates", shapes))
    cases = [Case(f"compaction, {title}", {"Firn": report}) for title, report in found.items()]
    lab.kept += cases
    beside = produce_beside(
        lab.base / "producers", BESIDE_MEGABYTES // part, BESIDE_RATE, BESIDE_S, 1 if lab.quick else BESIDE_ROUNDS
    )
    return [*cases, Case(BESIDE, beside, {"megabytes": BESIDE_MEGABYTES // part})]
