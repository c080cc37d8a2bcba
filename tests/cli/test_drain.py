"""``firn drain`` against a whole broker: what it prints, its exit codes, and what a start on an empty directory has afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.broker.start.running import note_running
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.records.builder import build_batch
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.commands import Firn, runner
from tests.support.talking import produce


@pytest.fixture
def firn(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firn:
    return runner(capfd, monkeypatch)


async def fill(broker: RunningBroker) -> None:
    """Records in a tiered topic, a compacted one, and one that is not tiered."""
    # On a slow machine nothing is to be tiered before the drain.
    await broker.create_topic("tiered", 2, firn_tier_max_lag_ms="3600000")
    await broker.create_topic("keyed", cleanup_policy="compact")
    await broker.create_topic("local", remote_storage_enable="false")
    keyed = build_batch([(1_700_000_000_000, b"k", b"v", ())])
    async with talk(broker.port) as client:
        for partition in range(2):
            await produce(client, "tiered", *[batch(10)] * 5, partition=partition)
        await produce(client, "keyed", keyed)
        await produce(client, "local", batch(3))


async def test_after_a_drain_an_empty_directory_has_everything_that_is_tiered(firn: Firn, tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill(broker)
        done = await firn("drain", "-b", broker.bootstrap, "--json")
        assert done.code == 0, (done.out, done.err)
        said = done.json
        assert (said["drained"], said["ended"], said["left"], said["left_bytes"]) == (True, True, [], 0)
        assert said["uploaded_bytes"] == 10 * len(batch(10))
        kept = {one["topic"]: (one["why"], one["partitions"]) for one in said["kept"]}
        assert kept == {"keyed": ("compacted", 1), "local": ("remote.storage.enable=false", 1)}
        assert any(line.startswith("the broker has drained") for line in broker.lines)
    async with running_broker(tmp_path, data_dir=tmp_path / "other", take_over=True) as broker:
        assert [broker.log("tiered", partition).log_end_offset for partition in range(2)] == [50, 50]
        assert broker.log("local").log_end_offset == 0
        back = await firn("consume", "tiered", "-b", broker.bootstrap)
        assert len(back.out.splitlines()) == 100


async def test_a_drain_names_what_stays_on_the_disk_alone(firn: Firn, tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill(broker)
        done = await firn("drain", "-b", broker.bootstrap)
        assert done.code == 0
        assert "every acknowledged record of tiered topics is in the object store" in done.err
        assert "keyed (compacted; " in done.err
        assert "local (remote.storage.enable=false; " in done.err


@pytest.mark.ci
async def test_a_drain_that_is_not_whole_in_time_ends_with_3_and_says_what_is_left(firn: Firn, tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker:
        await fill(broker)
        store.faults = [Fault(FaultKind.UNAVAILABLE)]
        done = await firn("drain", "-b", broker.bootstrap, "--timeout", "1", "--json")
        assert done.code == 3
        said = done.json
        assert (said["drained"], said["state"], said["left_partitions"]) == (False, "draining", 2)
        assert said["left_bytes"] == 10 * len(batch(10))
        assert {
            (one["topic"], one["partition"], one["covered_end_offset"], one["log_end_offset"]) for one in said["left"]
        } == {
            ("tiered", 0, 0, 50),
            ("tiered", 1, 0, 50),
        }
        text = await firn("drain", "-b", broker.bootstrap, "--timeout", "0")
        assert text.code == 3
        assert "continues to drain" in text.err
        assert "tiered-1" in text.out
        status = await firn("tier", "status", "-b", broker.bootstrap)
        assert "the broker is draining and refuses writes" in status.err

        taken = await firn("drain", "-b", broker.bootstrap, "--cancel")
        assert taken.code == 0
        async with talk(broker.port) as client:
            await produce(client, "tiered", batch(1))
        store.faults = []
        again = await firn("drain", "-b", broker.bootstrap, "--json")
        assert (again.code, again.json["drained"]) == (0, True)


@pytest.mark.ci
async def test_a_broker_that_stops_while_it_drains_has_not_drained(firn: Firn, tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker:
        await fill(broker)
        store.faults = [Fault(FaultKind.UNAVAILABLE)]
        draining = asyncio.create_task(firn("drain", "-b", broker.bootstrap, "--json"))
        while broker.node.context.drain.state.value != "draining":
            await asyncio.sleep(0.01)
        broker.node.request_stop()
        done = await draining
        assert done.code == 3
        assert "ended before it reported that it had drained" in done.json["why"]
        left = 10 * len(batch(10))
        assert any(f"{left} bytes of 2 partitions of tiered topics are only in" in line for line in broker.lines)
        store.faults = []


async def test_who_is_to_be_drained_must_be_there_and_named_once(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    nobody = await firn("drain", "-d", str(tmp_path / "data"))
    assert (nobody.code, "No broker runs on" in nobody.err) == (1, True)
    twice = await firn("drain", "-d", str(tmp_path / "data"), "-b", "127.0.0.1:1")
    assert (twice.code, "use only one of them" in twice.err) == (2, True)
    missing = await firn("drain", "-d", str(tmp_path / "nowhere"))
    assert (missing.code, "There is no folder" in missing.err) == (2, True)
    away = await firn("drain", "-b", "127.0.0.1:1")
    assert (away.code, "cannot be reached" in away.err) == (1, True)
    note_running(str(tmp_path / "data"))
    starting = await firn("drain", "-d", str(tmp_path / "data"))
    assert (starting.code, "is still starting" in starting.err) == (1, True)
