"""The simulation with Produce requests that are gathered over a virtual while, not for one turn of the loop alone.

So they meet whatever can happen between their arrival and their append: other requests of their clients, deaths, full disks,
changed settings, and leaders that are none any more. Clients of the simulation send one after the other, so that without this none
would be gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from app.handlers.clients.client import Client
from app.handlers.produce import gathering
from app.handlers.produce.gathering import Gathering
from app.handlers.serving import server as service
from app.hot import appending
from app.machine.files import File
from app.transport.server import Server
from tests.cluster_simulation.planted_objects import PLANTED
from tests.cluster_simulation.world import run_seed as run_cluster
from tests.simulation.world import run_seed

WHILE_S = 0.1
SEEDS = range(200, 220)
CLUSTER_SEEDS = range(200, 204)
OBJECT_SEEDS = (50_000, 50_004)
FINDING_SEEDS = 10


class Late(Gathering):
    """Requests wait until the turn of the loop has ended for a while."""

    seen: Counter[str]

    @property
    def several(self) -> bool:  # type: ignore[override]
        return True

    @several.setter
    def several(self, value: bool) -> None: ...

    def _turn_ends(self) -> None:
        self._server.loop.call_later(WHILE_S, super()._turn_ends)

    def _append(self, requests: list, now_ms: int) -> list:  # type: ignore[type-arg]
        results = super()._append(requests, now_ms)
        self.seen["requests"] += len(requests)
        self.seen["by several clients"] += len({request.client for request in requests}) > 1
        self.seen["by themselves"] += results.count(None)
        self.seen["for followers"] += sum(request.shape.partition is not None for request in requests)
        self.seen["in the bucket"] += sum(request.shape.log.journaled for request in requests)
        return results


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    Late.seen = Counter()
    monkeypatch.setattr(service, "Gathering", Late)
    return Late.seen


@pytest.mark.ci
def test_no_invariant_breaks_where_requests_wait_for_others(seen: Counter[str]) -> None:
    for seed in SEEDS:
        outcome = run_seed(seed)
        assert outcome.violation is None, (seed, outcome.violation)
    assert seen["requests"] > 300, seen
    assert seen["by several clients"] > 60, seen


@pytest.mark.ci
def test_no_invariant_of_a_cluster_breaks_where_requests_wait_for_others(seen: Counter[str]) -> None:
    for seed in CLUSTER_SEEDS:
        outcome = run_cluster(seed)
        assert outcome.violation is None, (seed, outcome.violation)
    assert seen["for followers"] > 30, seen


def test_no_invariant_of_topics_in_the_bucket_breaks_where_requests_wait_for_others(seen: Counter[str]) -> None:
    for seed in OBJECT_SEEDS:
        outcome = run_cluster(seed)
        assert outcome.violation is None, (seed, outcome.violation)
    assert seen["in the bucket"] > 10, seen


def _answered_now(
    client: Client, shape: object, correlation_id: int, end: int, answer: bytes, throttle: int = 0
) -> None:
    del shape, correlation_id, end, throttle
    client.answer(answer)


def test_gathered_requests_that_are_answered_before_the_bucket_has_them_are_found(
    seen: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "wait_for_commit", _answered_now)
    fault = PLANTED["J5 answered before the object is durable"]
    found = [
        run_cluster(seed, faults=fault.faults, shape=fault.shape).violation
        for seed in range(fault.first, fault.first + fault.seeds)
    ]
    assert fault.found_by in [violation.invariant for violation in found if violation is not None]


def _first_alone(file: File, buffers: Sequence[memoryview], position: int) -> None:
    file.pwrite(buffers[0], position)


def _swapped(file: File, buffers: Sequence[memoryview], position: int) -> None:
    file.pwritev([*buffers[1:], buffers[0]], position)


def _kept_in_place(server: Server) -> bool:
    del server
    return True


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (appending, "write_all", _first_alone),
        (appending, "write_all", _swapped),
        (Server, "set_scratch_aside", _kept_in_place),
    ],
)
def test_planted_faults_of_gathering_are_found(
    seen: Counter[str], monkeypatch: pytest.MonkeyPatch, where: object, name: str, planted: Callable[..., object]
) -> None:
    """Of a run only the first batch is written; they are written in another order; or the next client's bytes overwrite them."""
    monkeypatch.setattr(where, name, planted)
    assert any(run_seed(seed).violation is not None for seed in range(200, 200 + FINDING_SEEDS))
