"""Each planted fault names parts of the code that exist. The slow tests plant the faults and run the worlds."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import pytest

import tests.cluster_simulation.planted as in_clusters
import tests.cluster_simulation.planted_coordinators as in_coordinators
import tests.cluster_simulation.planted_isolation as in_isolation
import tests.cluster_simulation.planted_objects as in_objects
import tests.cluster_simulation.planted_slow as in_slow_brokers
import tests.simulation.planted as in_a_broker
import tests.wal_simulation.planted as in_write_ahead_logs

PLANTS: Final = MappingProxyType(
    {
        f"{world.__name__}: {name}": fault.plant
        for world in (in_a_broker, in_clusters, in_coordinators, in_isolation, in_objects, in_slow_brokers)
        for name, fault in world.PLANTED.items()
    }
)


@pytest.mark.parametrize("name", PLANTS)
def test_a_fault_can_be_planted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant: Callable[[pytest.MonkeyPatch], None] = PLANTS[name]
    plant(monkeypatch)


@pytest.mark.parametrize(
    "path", sorted({path for fault in in_write_ahead_logs.PLANTED.values() for path in fault.patches})
)
def test_a_function_that_a_fault_replaces_exists(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, None)
