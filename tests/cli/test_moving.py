"""``firn topic move``, ``firn cluster drain`` and ``firn cluster rebalance`` against real brokers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.metadata.peers.control import NotSent
from tests.support.broker import RunningBroker
from tests.support.several import broker_on, cluster_on, unfenced
from tests.support.waiting import until

Capture = pytest.CaptureFixture[str]


async def firn(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def told(capfd: Capture, broker: RunningBroker, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    capfd.readouterr()
    assert await firn(*arguments, "--bootstrap", broker.bootstrap, "--json") == code
    return json.loads(capfd.readouterr().out)


async def complaint(capfd: Capture, broker: RunningBroker, *arguments: str) -> str:
    capfd.readouterr()
    assert await firn(*arguments, "--bootstrap", broker.bootstrap) not in (0, 4)
    return capfd.readouterr().err


def replicas(broker: RunningBroker, topic: str = "t") -> list[tuple[int, ...]]:
    found = broker.node.cluster.image.topic(topic)
    return [] if found is None else [tuple(map(int, one.replicas)) for one in found.partitions]


async def produce(broker: RunningBroker, path: Path, count: int) -> None:
    source = path / "records.txt"
    source.write_text("".join(f"v{one}\n" for one in range(count)))
    assert await firn("produce", "t", "--bootstrap", broker.bootstrap, str(source)) == 0


async def consumed(broker: RunningBroker, capfd: Capture, count: int) -> int:
    capfd.readouterr()
    assert await firn("consume", "t", "--bootstrap", broker.bootstrap, "--from", "start", "--count", str(count)) == 0
    return len(capfd.readouterr().out.splitlines())


@pytest.mark.ci
async def test_a_topic_moves_and_its_records_with_it(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path) as brokers:
        first, second, _ = brokers
        await first.node.membership.controller.create_topic("t", assignments={0: [1], 1: [1]})
        await until(lambda: len(replicas(second)) == 2)
        await produce(first, tmp_path, 100)
        plan = await told(capfd, second, "topic", "move", "t", "--to", "2,3", "--dry-run")
        assert [one["after"] for one in plan["moves"]] == [[2], [3]]
        assert plan["copied_bytes"] > 0
        assert replicas(first) == [(1,), (1,)]
        assert "add --yes to confirm" in await complaint(capfd, second, "topic", "move", "t", "--to", "2,3")
        assert replicas(first) == [(1,), (1,)]
        done = await told(capfd, second, "topic", "move", "t", "--to", "2,3", "--yes")
        assert done["done"]
        await until(lambda: all(replicas(one) == [(2,), (3,)] for one in brokers))
        assert await consumed(second, capfd, 100) == 100
        grown = await told(capfd, second, "topic", "move", "t", "--replication-factor", "2", "--yes")
        assert grown["done"]
        await until(lambda: all(len(one) == 2 for one in replicas(first)))


async def test_a_move_that_is_under_way_is_shown_and_cancelled(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path) as (first, second, third):
        await first.node.membership.controller.create_topic("t", assignments={0: [1, 2]})
        await until(lambda: replicas(second))

        async def cut(*_: Any) -> Any:
            raise NotSent("cut")

        third.node._link.fetch = cut  # type: ignore[method-assign]
        begun = await told(capfd, first, "topic", "move", "t", "--to", "1,3", "--yes", "--no-wait")
        assert (begun["begun"], begun["done"]) == (1, False)
        status = await told(capfd, second, "cluster", "status")
        assert [(one["adding"], one["removing"]) for one in status["reassignments"]] == [([3], [2])]
        assert "move already" in await complaint(capfd, first, "cluster", "rebalance", "--yes")
        assert (await told(capfd, first, "topic", "move", "t", "--cancel"))["cancelled"] == ["t-0"]
        assert sorted(replicas(first)[0]) == [1, 2]
        assert (await told(capfd, first, "topic", "move", "t", "--cancel"))["cancelled"] == []


@pytest.mark.ci
async def test_a_move_goes_on_when_its_command_is_interrupted_and_it_says_how_to_cancel_it(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_on(tmp_path) as (first, second, third):
        await first.node.membership.controller.create_topic("t", assignments={0: [1, 2]})
        await until(lambda: replicas(second))

        async def cut(*_: Any) -> Any:
            raise NotSent("cut")

        monkeypatch.setattr(third.node._link, "fetch", cut)
        moved = [sys.executable, "-m", "app.cli", "topic", "move", "t", "--to", "1,3", "--yes"]
        command = await asyncio.create_subprocess_exec(
            *moved, "--bootstrap", first.bootstrap, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        await until(lambda: len(replicas(second)[0]) == 3)
        command.send_signal(signal.SIGINT)
        said = (await command.communicate())[1]
        assert command.returncode == 130
        assert (
            b"Moves that have begun go on. `firn cluster status` shows them, `firn topic move t --cancel` cancels them."
            in said
        )
        assert b"Traceback" not in said
        status = await told(capfd, second, "cluster", "status")
        assert [(one["adding"], one["removing"]) for one in status["reassignments"]] == [([3], [2])]
        monkeypatch.undo()
        await until(lambda: sorted(replicas(second)[0]) == [1, 3])


async def test_wrong_moves_are_refused_in_a_sentence_and_change_nothing(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path, 2) as (first, second):
        async with broker_on(tmp_path, "b3"):
            await until(lambda: unfenced(first) == [1, 2, 3])
        await until(lambda: unfenced(first) == [1, 2])
        controller = first.node.membership.controller
        await controller.create_topic("t", assignments={0: [1]})
        await until(lambda: replicas(second))

        async def refused(*arguments: str) -> str:
            capfd.readouterr()
            assert await firn(*arguments, "--bootstrap", second.bootstrap) != 0
            return capfd.readouterr().err

        move = ("topic", "move", "t", "--yes")
        assert "Broker 9 is not registered" in await refused(*move, "--to", "9")
        assert "Broker 3 is fenced: start it first" in await refused(*move, "--to", "3")
        assert "gets 3 replicas, and only 2 brokers can have them" in await refused(*move, "--replication-factor", "3")
        assert "--to x does not name brokers" in await refused(*move, "--to", "x")
        assert "Say where the partitions go" in await refused(*move)
        assert "There is no topic nosuch" in await refused("topic", "move", "nosuch", "--to", "2", "--yes")
        assert "Broker 9 is not registered" in await refused("cluster", "drain", "9", "--yes")
        factor = ("topic", "create", "u", "--replication-factor", "4")
        assert "The replication factor 4 is greater than the number of" in await refused(*factor)
        assert replicas(first) == [(1,)]
        assert first.node.cluster.image.topic("u") is None


@pytest.mark.ci
async def test_a_drained_broker_has_nothing_left_and_a_new_one_gets_its_share(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path) as brokers:
        first = brokers[0]
        await first.node.membership.controller.create_topic("t", 6, {}, 2)
        await until(lambda: all(len(replicas(one)) == 6 for one in brokers))
        await produce(first, tmp_path, 60)
        assert (await told(capfd, first, "cluster", "drain", "3", "--yes"))["done"]
        listed = {one["node_id"]: one for one in await told(capfd, first, "cluster", "brokers")}
        assert (listed[3]["replicas"], listed[3]["leaders"]) == (0, 0)
        again = await told(capfd, first, "cluster", "drain", "3", "--yes")
        assert again["moves"] == []
        plan = await told(capfd, first, "cluster", "rebalance", "--dry-run")
        assert sum(3 in one["after"] for one in plan["moves"]) == 4
        assert (await told(capfd, first, "cluster", "rebalance", "--yes"))["done"]
        listed = {one["node_id"]: one for one in await told(capfd, first, "cluster", "brokers")}
        assert {one["replicas"] for one in listed.values()} == {4}
        assert await consumed(first, capfd, 60) == 60
        stuck = await told(capfd, first, "topic", "move", "t", "--replication-factor", "3", "--yes")
        assert stuck["done"]
        assert len((await told(capfd, first, "cluster", "drain", "3", "--yes", code=4))["stuck"]) == 6
