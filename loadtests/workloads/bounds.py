"""The loopback copy and the page-cache write: what no broker can pass."""

from __future__ import annotations

from loadtests.bare_limits import bare, page_cache_write
from loadtests.lab import Lab, show
from loadtests.measuring import Report, median
from loadtests.results import Case

WRITE_BYTES = 256 << 20


def run(lab: Lab) -> list[Case]:
    """A loopback copy; appends to a new file and to one whose pages are there."""
    rounds = lab.effort.variant_rounds
    with bare("discard") as server:
        copy = median([server.copied(lab.effort.variant_seconds) for _ in range(rounds)])
    new: list[Report] = []
    warm: list[Report] = []
    for _ in range(rounds):
        first, second = page_cache_write(lab.base, WRITE_BYTES)
        new.append(first)
        warm.append(second)
    cases = [
        Case("loopback copy", {"bare": copy}),
        Case("page-cache write", {"new pages": median(new), "warm pages": median(warm)}),
    ]
    for case in cases:
        show(case.name, case.systems)
    return cases
