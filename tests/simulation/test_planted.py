"""The simulation proves itself: faults planted into the real code are found within a stated number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.world import run_seed

RARE = frozenset(
    {
        "batches with a bad CRC recovered",
        "assignments forgotten with a restart",
        "decided transactions left open after a loss",
        "records deleted before the log start is durable",
        "the epoch kept after a loss",
        "acknowledged records not written down",
    }
)
"""Found too late for the default suite; run with the slow seeds."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow if one in RARE else ()) for one in PLANTED])
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[name]
    planted.plant(monkeypatch)
    for seed in range(planted.seeds):
        violation = run_seed(seed, faults=planted.faults).violation
        if violation is not None:
            assert violation.invariant in planted.found_by, violation
            return
    pytest.fail(f"not found in {planted.seeds} seeds")
