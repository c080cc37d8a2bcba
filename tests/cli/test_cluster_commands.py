"""``firn cluster status|brokers|features|unregister`` against real brokers, and against the store alone."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import main
from app.metadata.image.records import LEVEL_MAX
from app.metadata.membership import member
from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import certificates, listener, security
from tests.support.several import broker_on, cluster_on, unfenced
from tests.support.waiting import until

Capture = pytest.CaptureFixture[str]


async def firn(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def told(capfd: Capture, broker: RunningBroker, *arguments: str) -> Any:
    """The JSON that a command prints."""
    assert await firn(*arguments, "--bootstrap", broker.bootstrap, "--json") == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.ci
async def test_status_and_brokers_are_the_same_by_any_broker_and_by_the_store(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path, broker_rack="r1") as brokers:
        await brokers[0].node.membership.controller.create_topic("t", 6, {}, 3)
        await until(lambda: all(one.node.cluster.image.topic("t") for one in brokers))
        url = (tmp_path / "store").as_uri()
        seen = [await told(capfd, one, "cluster", "status") for one in brokers]
        assert await firn("cluster", "status", "--store", url, "--json") == 0
        stored = json.loads(capfd.readouterr().out)
        for one in (*seen, stored):
            assert (one["level"], one["controller"], one["partitions"]) == (LEVEL_MAX, 1, 6)
            assert one["brokers"] == {"alive": 3, "fenced": 0, "stopping": 0}
            assert (one["offline_count"], one["reassignments"]) == (0, [])
        listed = await told(capfd, brokers[2], "cluster", "brokers")
        assert [one["node_id"] for one in listed] == [1, 2, 3]
        assert {one["state"] for one in listed} == {"alive"}
        assert sum(one["leaders"] for one in listed) == 6
        assert {one["replicas"] for one in listed} == {6}
        assert {one["level_max"] for one in listed} == {LEVEL_MAX}
        assert None not in {one["lag_entries"] for one in listed}, "the controller is asked"
        assert await firn("cluster", "brokers", "--store", url) == 0
        assert "1*" in capfd.readouterr().out
        assert await firn("cluster", "status", "--bootstrap", brokers[1].bootstrap) == 0
        assert "3 alive" in capfd.readouterr().out


async def test_a_dead_broker_is_told_and_unregistered_only_when_nothing_needs_it(
    tmp_path: Path, capfd: Capture
) -> None:
    async with cluster_on(tmp_path, 2) as (first, second):
        async with broker_on(tmp_path, "b3") as third:
            await until(lambda: unfenced(first) == [1, 2, 3])
            await first.node.membership.controller.create_topic("t", assignments={0: [3, 1]})
            await until(lambda: third.node.cluster.image.topic("t"))
            assert await firn("cluster", "unregister", "3", "--yes", "--bootstrap", second.bootstrap) != 0
            assert "Broker 3 is alive: stop it first" in capfd.readouterr().err
        await until(lambda: unfenced(first) == [1, 2])
        found = await told(capfd, second, "cluster", "status")
        assert found["brokers"] == {"alive": 2, "fenced": 1, "stopping": 0}
        assert (found["under_replicated"], found["offline"]) == (["t-0"], [])
        assert await firn("cluster", "unregister", "3", "--yes", "--bootstrap", second.bootstrap) != 0
        assert "still has replicas of 1 partition" in capfd.readouterr().err
        assert await firn("cluster", "unregister", "3", "--bootstrap", second.bootstrap, "--force") != 0
        assert "add --yes to confirm" in capfd.readouterr().err
        assert 3 in first.node.cluster.image.brokers
        assert (await told(capfd, second, "cluster", "unregister", "3", "--yes", "--force"))["unregistered"]
        assert 3 not in first.node.cluster.image.brokers
        assert await firn("cluster", "unregister", "3", "--yes", "--bootstrap", second.bootstrap) != 0
        assert "Broker 3 is not registered" in capfd.readouterr().err


async def test_the_level_is_shown_and_raised_after_a_question(tmp_path: Path, capfd: Capture) -> None:
    async with running_broker(tmp_path) as broker:
        at = ("--bootstrap", broker.bootstrap)
        shown = {one["feature"]: one for one in await told(capfd, broker, "cluster", "features")}
        assert (shown["firn.version"]["level"], shown["firn.version"]["level_max"]) == (0, LEVEL_MAX)
        assert shown["transaction.version"]["level"] == 2
        assert (await told(capfd, broker, "cluster", "status"))["level"] == 0
        up = ("cluster", "features", "--upgrade")
        assert await firn(*up, "firn.version=9", "--yes", *at) != 0
        assert f"understands {LEVEL_MAX} at most" in capfd.readouterr().err
        assert await firn(*up, "firn.version=one", "--yes", *at) != 0
        assert "the level is a whole number" in capfd.readouterr().err
        assert await firn(*up, "firn.version=1", *at) != 0
        assert "add --yes to confirm" in capfd.readouterr().err
        assert await firn(*up, "firn.version=1", "--dry-run", *at) == 0
        assert broker.node.cluster.image.level == 0
        capfd.readouterr()
        assert await firn(*up, "firn.version=1", "--yes", *at) == 0
        assert "Restart broker 1 now" in capfd.readouterr().err
        assert broker.node.cluster.image.level == 1


async def test_a_store_without_a_cluster_is_said_to_be_one(tmp_path: Path, capfd: Capture) -> None:
    assert await firn("cluster", "status", "--store", tmp_path.as_uri()) != 0
    assert "There is no cluster in" in capfd.readouterr().err


async def test_a_topic_says_its_durability_and_has_one_replica(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "STOP_S", 0.1)
    async with broker_on(tmp_path, "b1") as broker:
        await until(lambda: unfenced(broker) == [1])
        at = ("--bootstrap", broker.bootstrap)
        create = ("topic", "create", "t", "--partitions", "2", "--replication-factor", "3")
        assert await firn(*create, "--config", "firn.durability=object", *at) == 0
        shown = await told(capfd, broker, "topic", "describe", "t")
        assert shown["configs"]["firn.durability"]["value"] == "object"
        assert [(one["replicas"], one["in_sync_replicas"]) for one in shown["partitions"]] == [([1], [1])] * 2
        assert await firn("topic", "describe", "t", *at) == 0
        assert "object" in capfd.readouterr().out


async def test_wait_ends_when_all_replicas_are_in_sync_and_not_before(tmp_path: Path, capfd: Capture) -> None:
    async with cluster_on(tmp_path, 2) as (first, second):
        async with broker_on(tmp_path, "b3") as third:
            await until(lambda: unfenced(first) == [1, 2, 3])
            await first.node.membership.controller.create_topic("t", assignments={0: [3, 1]})
            await until(lambda: third.node.cluster.image.topic("t"))
            assert await told(capfd, second, "cluster", "wait") == {
                "in_sync": True,
                "message": "Every partition has a leader and all of its replicas in sync.",
            }
            steady = ("cluster", "wait", "--steady", "3600", "--timeout", "0")
            assert await firn(*steady, "--bootstrap", second.bootstrap) == 3
            assert "All replicas have been in sync for less than 3600 s." in capfd.readouterr().err
        await until(lambda: unfenced(first) == [1, 2])
        at = ("--timeout", "0", "--bootstrap", second.bootstrap)
        assert await firn("cluster", "wait", *at) == 3
        assert "under-replicated: 1 partition: t-0" in capfd.readouterr().err
        assert await firn("cluster", "wait", "--leaving", "1", *at) == 3
        assert await firn("cluster", "wait", "--leaving", "3", *at) == 0
        assert "in sync, but perhaps those of broker 3." in capfd.readouterr().err
        waiting = asyncio.create_task(firn("cluster", "wait", "--bootstrap", second.bootstrap))
        async with broker_on(tmp_path, "b3"):
            assert await waiting == 0


async def test_wait_takes_a_cluster_that_does_not_answer_for_one_with_missing_replicas(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.session.RETRY_BUDGET_MS", 200)
    assert await firn("cluster", "wait", "--timeout", "0", "--bootstrap", "127.0.0.1:1") == 3
    assert "The cluster does not answer" in capfd.readouterr().err


async def test_wait_ends_in_time_though_a_look_does_not(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(bootstrap: str, leaving: int) -> str:
        del bootstrap, leaving
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr("app.cli.cluster.what_is_missing", missing)
    monkeypatch.setattr("app.cli.cluster.LOOK_S_MIN", 0.05)
    async with asyncio.timeout(60):
        assert await firn("cluster", "wait", "--timeout", "0.1") == 3
    assert "The cluster does not answer in time." in capfd.readouterr().err


async def test_wait_ends_for_a_broker_that_speaks_tls(tmp_path: Path, capfd: Capture) -> None:
    folder = certificates(tmp_path / "tls")
    async with running_broker(tmp_path, **security(listener("SSL", folder))) as broker:
        port = broker.node.ports["SSL"]
        async with asyncio.timeout(60):
            assert await firn("cluster", "wait", "--bootstrap", f"127.0.0.1:{port}") == 1
    assert "speaks TLS, and this command does not" in capfd.readouterr().err


async def test_wait_begins_its_steady_time_anew_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(["", "", "under-replicated: 1 partition: t-0", "", "", "", "", ""])
    seen: list[str] = []

    async def missing(bootstrap: str, leaving: int) -> str:
        del bootstrap, leaving
        seen.append(next(looks))
        return seen[-1]

    monkeypatch.setattr("app.cli.cluster.what_is_missing", missing)
    monkeypatch.setattr("app.cli.cluster.LOOK_S", 0)
    monkeypatch.setattr("app.cli.cluster.time", SimpleNamespace(monotonic=itertools.count().__next__))
    assert await firn("cluster", "wait", "--steady", "3") == 0
    assert len(seen) == 7, "three seconds from the fourth look on"
