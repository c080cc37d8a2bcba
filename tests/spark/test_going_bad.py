"""Objects that are flipped or deleted under streams and jobs: an error that names the object, and all there once it is mended.

A batch read under Spark is in ``test_kills.py``; what is gone in order, by retention or compaction, in ``test_losses.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.core.errors import CorruptionError
from pyspark_firn.columns import struct_type
from pyspark_firn.jobs.archive import archive_iceberg, archive_parquet
from pyspark_firn.jobs.compact import compact
from pyspark_firn.jobs.iceberg import local_catalog, opened_table
from pyspark_firn.jobs.inspection import inspect
from pyspark_firn.jobs.replay import ReplayRequest, replay
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.streaming import FirnStreamReader
from tests.spark.archives import archived, expected
from tests.spark.conftest import Topic, read, rows_of
from tests.spark.conftest import topic as topic  # Offsets [0, 300) of its first partition in three segments.
from tests.spark.reading_back import produced
from tests.spark.triggers import trigger
from tests.support.broker import running_broker


@dataclass
class Harm:
    """What is wrong with the middle segment: planning does not look at it, so that work has begun when it is met."""

    path: Path
    whole: bytes
    do: Callable[[], None]

    def mend(self) -> None:
        self.path.write_bytes(self.whole)


@pytest.fixture(params=["flipped", "deleted"])
def harm(topic: Topic, request: pytest.FixtureRequest) -> Harm:
    [path] = (topic.path / "data").rglob(f"{100:020d}-*.seg")
    whole = path.read_bytes()

    def flip() -> None:
        path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])

    return Harm(path, whole, flip if request.param == "flipped" else path.unlink)


def test_a_stream_stops_at_it_and_gives_the_same_batch_when_it_is_mended(topic: Topic, harm: Harm) -> None:
    given = {"store": topic.store, "subscribe": "t", "columns": "offset,value", "splitBytes": "1m"}

    def reader() -> FirnStreamReader:
        return FirnStreamReader(given, struct_type(("offset", "value")))

    wanted = [{"offset": row["offset"], "value": row["value"]} for row in topic.reference()]
    first, again = reader(), reader()
    start = first.initialOffset()
    end = trigger(first, start)
    batches = (batch for split in first.partitions(start, end) for batch in first.read(split))
    found = rows_of([next(batches)])  # It is under way.
    harm.do()
    with pytest.raises(CorruptionError, match=harm.path.name):
        found.extend(row for batch in batches for row in rows_of([batch]))
    assert found == wanted[: len(found)]
    harm.mend()
    assert rows_of([one for split in again.partitions(start, end) for one in again.read(split)]) == wanted
    for one in (first, again):
        one.stop()


def test_an_archive_commits_nothing_then_and_each_record_once_when_it_is_mended(
    topic: Topic, harm: Harm, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    harm.do()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=harm.path.name):
            archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1), part_bytes=4000)
        assert not list(lake.glob("t/_firn/*.commit"))
    harm.mend()
    assert archive_parquet(topic.store, "t", lake.as_uri(), ProcessRunner(1)).records == 300
    assert archived(lake / "t") == expected(topic)


def test_an_iceberg_table_shows_nothing_then_and_each_record_once_when_it_is_mended(
    topic: Topic, harm: Harm, tmp_path: Path
) -> None:
    catalog = local_catalog(tmp_path / "house")

    def held() -> list[tuple[int, bytes]]:
        table = opened_table("lake.t", catalog)
        rows = table.scan().to_arrow().select(["offset", "value"]).to_pylist() if table is not None else []
        return sorted((row["offset"], row["value"]) for row in rows)

    harm.do()
    with pytest.raises(CorruptionError, match=harm.path.name):
        archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1), part_bytes=4000)
    assert held() == []
    harm.mend()
    archive_iceberg(topic.store, "t", "lake.t", catalog, ProcessRunner(1))
    assert held() == [(offset, value) for offset, value, _ in expected(topic)]


@pytest.mark.parametrize("by_key", [False, True])
def test_a_compaction_replaces_nothing_by_it(topic: Topic, harm: Harm, by_key: bool) -> None:
    before = read(topic)
    harm.do()
    if harm.path.exists():
        with pytest.raises(CorruptionError, match=harm.path.name):
            compact(topic.store, "t", target_bytes=1 << 20, by_key=by_key)
    else:  # As what retention has taken meanwhile: said, and left to `firn verify`.
        assert compact(topic.store, "t", target_bytes=1 << 20, by_key=by_key).groups_skipped == 1
    harm.mend()
    assert read(topic) == before
    assert inspect(topic.store, ProcessRunner(1)).is_sound
    assert compact(topic.store, "t", target_bytes=1 << 20, by_key=by_key).segments_after == 1


async def test_a_replay_stops_at_it_and_goes_on_with_it_when_it_is_mended(
    topic: Topic, harm: Harm, tmp_path: Path
) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        wanted = ReplayRequest(
            store=topic.store,
            topic="t",
            bootstrap=(("127.0.0.1", broker.port),),
            target="again",
            state_path=tmp_path / "state.json",
        )
        harm.do()
        with pytest.raises(CorruptionError, match=harm.path.name):
            await asyncio.to_thread(replay, wanted)
        harm.mend()
        await asyncio.to_thread(replay, wanted)
        values = [row["value"] for row in await asyncio.to_thread(topic.reference)]
        assert [record.value for record in await produced(broker.port, "again")] == values
