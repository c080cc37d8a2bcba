"""Options of the simulation: ``--seed N`` runs one seed and prints its trace, ``--seeds N`` sets how many the suites run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when this directory (or a file of it) is named on the command line."""
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, default=None, help="run this one seed of the simulation and print its trace")
    group.addoption("--seeds", type=int, default=None, help="how many seeds the simulation's suite runs")


@pytest.fixture
def chosen_seed(request: pytest.FixtureRequest) -> int | None:
    """What ``--seed`` says."""
    found = request.config.getoption("seed", default=None)
    return found if isinstance(found, int) else None
