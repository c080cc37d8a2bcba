"""What many consumers are answered alike: found out twice, then no more, and the same as if it were found out each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, StorageUnavailable
from app.handlers.state import fetch_fan_out
from app.handlers.state.fetch_fan_out import ANSWERS_MAX, FanOut, FetchKind
from tests.handlers.fakes import Bench, FakeLog
from tests.handlers.fetching import BATCH_BYTES, VERSIONS, ask, asked, fill, on_disk, only, ref, request
from tests.support.callers import RIGHTS


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that reads were planned from."""
    offsets: list[int] = []
    plan_read = FakeLog.plan_read

    def noted(self: FakeLog, offset: int, *arguments: Any, **options: Any) -> Any:
        offsets.append(offset)
        return plan_read(self, offset, *arguments, **options)

    monkeypatch.setattr(FakeLog, "plan_read", noted)
    return offsets


async def shared(bench: Bench, connect: Any, path: Path, version: int = 12, **fields: Any) -> tuple[FakeLog, Any, Any]:
    """A log of nine batches, a consumer whose next request for offset 3 is answered from what was kept, and that answer."""
    client = await connect(bench)
    log = await on_disk(client, bench, path, *[BATCH_BYTES] * 9)
    topic = ref(bench, version)
    for offset in (5, 3, 3):
        found = only(await ask(client, version, request(asked(offset), topic=topic, **fields)))
    return log, client, found


async def test_one_plan_is_enough_where_no_further_batch_fits(start, connect, tmp_path, planned):
    bench = await start()
    client = await connect(bench)
    await on_disk(client, bench, tmp_path / "log", *[BATCH_BYTES] * 9)
    for offset in (5, 3, 0):
        only(await ask(client, 12, request(asked(offset))))
    assert planned == [5, 3, 0]


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_asked_for_again_is_planned_twice_and_answered_alike(
    start, connect, tmp_path, planned, version, isolation_level
):
    bench = await start()
    log, client, first = await shared(bench, connect, tmp_path / "log", version, isolation_level=isolation_level)
    other = await connect(bench)
    topic = ref(bench, version)
    await ask(other, version, request(asked(5), topic=topic, isolation_level=isolation_level))
    planned.clear()
    size = len(log.file.data) // 9
    for consumer in (client, other, client):
        again = only(await ask(consumer, version, request(asked(3), topic=topic, isolation_level=isolation_level)))
        assert again == first
        assert bytes(again.records) == log.file.data[3 * size : 5 * size]
    assert planned == []
    assert log.handle.users == 0


async def test_the_numbers_of_an_answer_are_those_of_now(start, connect, tmp_path, planned):
    bench = await start()
    log, client, first = await shared(bench, connect, tmp_path / "log")
    log.high_watermark, log.last_stable_offset, log.log_start_offset = 1009, 1008, 2
    planned.clear()
    again = only(await ask(client, 12, request(asked(3))))
    assert (again.high_watermark, again.last_stable_offset, again.log_start_offset) == (1009, 1008, 2)
    assert again.records == first.records
    assert planned == []


async def test_whoever_asks_for_something_else_gets_that(start, connect, tmp_path, planned):
    bench = await start()
    log, _, first = await shared(bench, connect, tmp_path / "log")
    size = len(log.file.data) // 9
    for count, different in ((1, {"max_bytes": size}), (2, {"isolation_level": 1}), (2, {"min_bytes": 7})):
        other = await connect(bench)
        for offset in (5, 3, 3, 3):
            found = only(await ask(other, 12, request(asked(offset), **different)))
        assert len(found.records) == count * size
        assert (found.aborted_transactions is None) == ("isolation_level" not in different)
    planned.clear()
    stranger = await connect(bench)
    for _ in range(3):
        refused = only(await ask(stranger, 12, request(asked(3), replica_id=3)))
        assert (refused.error_code, refused.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
    assert planned == []
    assert first.records


def deleted(log: FakeLog) -> None:
    log.handle.deleted = True
    log.handle = type(log.handle)(log.handle.cache, log.handle.path)


def led_anew(log: FakeLog) -> None:
    log.leader_epoch += 1


@pytest.mark.parametrize("change", [deleted, led_anew])
async def test_an_answer_is_found_out_again_when_the_log_has_changed(start, connect, tmp_path, planned, change):
    bench = await start()
    log, client, first = await shared(bench, connect, tmp_path / "log")
    change(log)
    planned.clear()
    for _ in range(3):
        assert only(await ask(client, 12, request(asked(3)))).records == first.records
    assert planned.count(3) == 2


async def test_errors_are_told_to_those_who_were_answered_before(start, connect, tmp_path):
    bench = await start()
    log, client, first = await shared(bench, connect, tmp_path / "log")

    async def error() -> int:
        return int(only(await ask(client, 12, request(asked(3)))).error_code)

    log.log_start_offset = 4
    assert await error() == ErrorCode.OFFSET_OUT_OF_RANGE
    log.log_start_offset = 0
    assert [await error() for _ in range(3)] == [0, 0, 0]
    log.offline_error = StorageUnavailable("the disk failed")

    def refuse(*_: Any, **__: Any) -> Any:
        raise StorageUnavailable("the disk failed")

    log.plan_read = refuse  # type: ignore[method-assign]
    assert await error() == ErrorCode.KAFKA_STORAGE_ERROR
    log.offline_error = None
    del log.plan_read
    assert [await error() for _ in range(3)] == [0, 0, 0]
    bench.logs.remove("t")
    bench.controller.image.topics.clear()
    assert await error() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert first.error_code == 0


async def test_a_leader_epoch_that_is_over_is_refused(start, connect, tmp_path):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[BATCH_BYTES] * 9)
    for offset in (5, 3, 3, 3):
        found = only(await ask(client, 12, request(asked(offset, current_leader_epoch=0))))
    assert found.records
    log.leader_epoch = 1
    found = only(await ask(client, 12, request(asked(3, current_leader_epoch=0))))
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_the_end_of_the_log_is_looked_at_each_time(start, connect, tmp_path):
    bench = await start()
    log, client, _ = await shared(bench, connect, tmp_path / "log")
    size = len(log.file.data) // 9
    for _ in range(3):
        assert len(only(await ask(client, 12, request(asked(8)))).records) == size
    await fill(client, "t", bytes(log.file.data[:size]))
    (tmp_path / "log").write_bytes(log.file.data)
    assert len(only(await ask(client, 12, request(asked(8)))).records) == 2 * size


async def test_a_range_that_has_left_the_page_cache_is_found_out_again(
    start, connect, tmp_path, planned, sent, monkeypatch
):
    bench = await start()
    monkeypatch.setattr(fetch_fan_out, "CACHED_FOR_S", 60.0)
    log, client, first = await shared(bench, connect, tmp_path / "log")
    planned.clear()
    assert only(await ask(client, 12, request(asked(3)))).records == first.records
    monkeypatch.setattr(type(log.handle.file), "is_cached", lambda *_: False)
    assert only(await ask(client, 12, request(asked(3)))).records == first.records
    assert planned == []
    assert sum(sent) == 5 * len(first.records)  # nothing was copied; one answer may take several calls
    monkeypatch.setattr(fetch_fan_out, "CACHED_FOR_S", -1.0)
    assert only(await ask(client, 12, request(asked(3)))).records == first.records
    assert planned != []


def test_the_oldest_gives_way():
    fan_out = FanOut()
    kind = FetchKind(RIGHTS, 12, "t", 0, 1, 1, 0, -1, "")
    assert not any(fan_out.asked(kind, offset) for offset in range(ANSWERS_MAX + 1))
    assert fan_out.asked(kind, 1)
    assert not fan_out.asked(kind, 0)


async def test_a_file_that_was_closed_is_not_opened_for_an_answer_that_is_kept(start, connect, tmp_path, monkeypatch):
    bench = await start()
    monkeypatch.setattr(fetch_fan_out, "CACHED_FOR_S", 60.0)
    log, client, first = await shared(bench, connect, tmp_path / "log")
    assert only(await ask(client, 12, request(asked(3)))).records == first.records
    log.handle.file = None

    def refuse(*_: Any) -> Any:
        raise StorageUnavailable("no descriptor is left")

    monkeypatch.setattr(type(log.handle.cache), "open", refuse)
    assert only(await ask(client, 12, request(asked(3)))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
