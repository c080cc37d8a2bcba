"""``firn topic describe --store``: a topic as its manifests in the object store describe it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.cli.output import bytes_text
from tests.support.broker import RunningBroker, running_broker
from tests.support.commands import Firn, runner

RECORDS = 5_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def firn(broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firn:
    return runner(capfd, monkeypatch, broker.bootstrap)


async def test_offsets_records_and_bytes_are_those_of_the_stored_segments(
    firn: Firn, broker: RunningBroker, tmp_path: Path
) -> None:
    await broker.create_topic("t", 2, retention_ms="-1")
    (tmp_path / "lines").write_text("k:some text\n" * RECORDS)
    await firn("produce", "t", str(tmp_path / "lines"), "-k", ":", "--timestamp", "2013-07-01")
    for index in range(2):
        broker.log("t", index).roll()
    store = (tmp_path / "store").as_uri()
    broker.node.remote_log_manager.kick()
    while not (found := (await firn("topic", "describe", "t", "--store", store, "--json")).json)["segments"]:
        await asyncio.sleep(0.01)
    (segment,) = (tmp_path / "store" / "data").rglob("*.seg")
    size_bytes = segment.stat().st_size
    assert (found["topic"], found["store"]) == ("t", store)
    assert found["topic_id"] in str(segment)
    assert (found["records"], found["segments"], found["bytes"]) == (RECORDS, 1, size_bytes)
    partitions = sorted(found["partitions"], key=lambda one: one["records"])
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    assert [one["start_offset"] for one in partitions] == [0, 0]
    assert [one["end_offset"] for one in partitions] == [0, RECORDS]
    assert [one["records"] for one in partitions] == [0, RECORDS]
    assert [one["segments"] for one in partitions] == [0, 1]
    assert [one["bytes"] for one in partitions] == [0, size_bytes]
    assert found["raw_bytes"] == partitions[1]["raw_bytes"] > RECORDS * len("some text")
    day_ms = 1_372_636_800_000
    assert [(one["min_timestamp"], one["max_timestamp"]) for one in partitions] == [(-1, -1), (day_ms, day_ms)]
    table = (await firn("topic", "describe", "t", "--store", store)).out
    assert f"5,000 records in 1 segment of {bytes_text(size_bytes)}" in table
    assert "2013-07-01" in table


async def test_a_store_without_the_topic_or_the_cluster_is_a_wrong_argument(firn: Firn, tmp_path: Path) -> None:
    async def refused(topic: str, folder: str) -> str:
        done = await firn("topic", "describe", topic, "--store", (tmp_path / folder).as_uri())
        assert (done.code, done.out) == (2, "")
        return done.err

    assert "There is no topic no-such in" in await refused("no-such", "store")
    (tmp_path / "empty").mkdir()
    assert "There is no Firn cluster in" in await refused("t", "empty")
    assert "nowhere" in await refused("t", "nowhere")
    assert not (tmp_path / "nowhere").exists()
