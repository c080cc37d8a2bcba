"""What a cluster refuses, or warns of: one sentence with the mend, and nothing is changed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.places import KafkaPlaces
from app.core.errors import RequestRejected
from app.core.units import TimestampMs
from app.machine.runtime import SystemClock
from app.metadata.changes.reassignments import ReassignmentAsked
from app.metadata.image.records import Endpoint
from app.metadata.membership import joining
from app.metadata.peers.place import Holder, Stranger
from app.metadata.view.registration import StartRefused
from tests.support.broker import RunningBroker
from tests.support.ports import free_port
from tests.support.several import broker_on, cluster_on, unfenced
from tests.support.waiting import until


async def refused(broker: RunningBroker, *targets: int) -> str:
    """Why partition 0 of ``t`` cannot have these replicas."""
    (answer,) = await broker.node.membership.controller.alter_reassignments([ReassignmentAsked("t", 0, targets)])
    return answer.why


async def test_factors_and_assignments_that_cannot_be(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as (first, second):
        async with broker_on(tmp_path, "b3"):
            await until(lambda: unfenced(first) == [1, 2, 3])
        await until(lambda: unfenced(first) == [1, 2])
        controller = first.node.membership.controller
        with pytest.raises(RequestRejected, match="factor 4 is greater than the number of"):
            await controller.create_topic("t", 1, {}, 4)
        with pytest.raises(RequestRejected, match="9"):
            await controller.create_topic("t", assignments={0: [1, 9]})
        assert first.node.cluster.image.topic("t") is None
        await controller.create_topic("t", assignments={0: [1]})
        before = first.node.cluster.image.sequence
        assert await refused(first, 9) == "Broker 9 is not registered."
        assert await refused(first, 1, 3) == "Broker 3 is fenced: start it first, so that it can get a replica."
        assert await refused(first, 1, 1) == "The list of replicas names a broker twice."
        assert first.node.cluster.image.sequence == before
        assert second.node.cluster.image.cluster_id == first.node.cluster.image.cluster_id


async def test_a_node_id_that_a_living_broker_has(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as (first, second):
        before = first.node.cluster.image.brokers[2]
        with pytest.raises(StartRefused, match=r"Node id 2 is in use .* --node-id auto takes one that nobody had"):
            async with broker_on(tmp_path, "other", node_id=2):
                pass
        assert first.node.cluster.image.brokers[2] == before
        assert not second.ended.is_set()


async def test_an_address_that_the_controller_cannot_reach(tmp_path: Path) -> None:
    port = free_port()
    async with cluster_on(tmp_path, 1) as (first,):
        what = (
            rf"The controller, broker 1, cannot reach the new broker at 127\.0\.0\.1:{port} \(PLAINTEXT\): advertise an address"
            r" that the other brokers can reach \(--advertise HOST:PORT, or advertised\.listeners\), and start it again"
        )
        with pytest.raises(StartRefused, match=what):
            async with broker_on(tmp_path, "b2", advertised_host="127.0.0.1", advertised_port=port):
                pass
        mine = f"127.0.0.1:{first.port}"
        with pytest.raises(StartRefused, match=rf"cannot reach the new broker at {mine}"):  # somebody else is there
            async with broker_on(tmp_path, "b2", advertised_host="127.0.0.1", advertised_port=first.port):
                pass
        assert first.node.cluster.image.brokers.keys() == {1}


class HardOfHearing(KafkaPlaces):
    """Misses answers."""

    def __init__(self, misses: int = 0) -> None:
        super().__init__()
        self.misses = misses

    async def ask(self, endpoint: Endpoint, **more: Any) -> Holder | Stranger | None:
        if self.misses:
            self.misses -= 1
            return None
        return await super().ask(endpoint, **more)


@pytest.mark.parametrize("directory", ["b2", "new"])
async def test_a_broker_that_comes_back_asks_again_until_the_controller_hears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    """With the disk that it had, or without."""
    monkeypatch.setattr(joining, "TELL_S", 0.0)
    port, places, lines = free_port(), HardOfHearing(), list[str]()
    async with broker_on(tmp_path, "b1", places=places) as first:
        async with broker_on(tmp_path, "b2", node_id=2, listen_port=port):
            await until(lambda: unfenced(first) == [1, 2])
        await until(lambda: unfenced(first) == [1])
        places.misses = 3
        async with broker_on(tmp_path, directory, node_id=2, listen_port=port, log_line=lines.append):
            await until(lambda: unfenced(first) == [1, 2])
    assert places.misses == 0
    assert any(f"got no answer at 127.0.0.1:{port} (PLAINTEXT) yet" in line for line in lines)


async def test_a_controller_that_a_new_broker_cannot_reach_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "TELL_S", 0.3)
    port = free_port()
    lines: list[str] = []
    async with broker_on(tmp_path, "b1", node_id=1, new_level=1, advertised_port=port) as first:
        await until(lambda: unfenced(first) == [1])

        async def second() -> None:
            async with broker_on(tmp_path, "b2", node_id=2, log_line=lines.append):
                pass

        starting = asyncio.create_task(second())
        what = f"waits to be registered: the controller, broker 1, does not answer at 127.0.0.1:{port}"
        await until(lambda: any(what in line for line in lines))
        starting.cancel()
        await asyncio.wait([starting])
        assert first.node.cluster.image.brokers.keys() == {1}


class Ahead(SystemClock):
    """A clock that is an hour ahead."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + 3_600_000)


@pytest.mark.ci
async def test_clocks_an_hour_apart_are_told_with_the_figure_and_nothing_rests_on_them(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 2) as (first, second), broker_on(tmp_path, "b3", clock=Ahead()) as third:
        await until(lambda: unfenced(first) == [1, 2, 3])

        def told() -> list[str]:
            return [line for line in first.lines if "the clock of broker 3" in line]

        await until(told)
        found = re.search(r" (3,\d{3}) s ahead of the clock of the controller, broker 1: set both by NTP", told()[0])
        assert found is not None, told()[0]
        # What a heartbeat takes on its way counts against the clock that it tells.
        assert 3_000 < int(found[1].replace(",", "")) <= 3_600
        assert not [line for line in first.lines if "the clock of broker 2" in line]
        await first.node.membership.controller.create_topic("t", 3, {}, 3)
        await until(lambda: all(one.node.cluster.image.topic("t") for one in (first, second, third)))
        assert unfenced(second) == [1, 2, 3]
