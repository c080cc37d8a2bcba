"""Fetch over a raw socket: limits, waiting, errors, sessions, both tiers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected, StorageUnavailable
from app.handlers.clients.client import RequestFields
from app.handlers.fetch.parked import ParkedConsumer
from app.hot.reads import PageMiss
from app.transport.replays import ReplayTurns
from app.wire.fetch import FetchPartition, FetchRequest
from tests.handlers.conversation import batch
from tests.handlers.fetching import FETCH, VERSIONS, ask, fill, offsets, only, ref, request, send
from tests.support.waiting import until


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_gives_the_bytes_that_were_appended(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(3), batch(2))
    found = only(await ask(client, version, request(FetchPartition(0), topic=ref(bench, version))))
    assert found.error_code == 0
    assert bytes(found.records) == bytes(log.file.data)
    assert found.high_watermark == 5
    assert log.handle.users == 0
    found = only(await ask(client, version, request(FetchPartition(0, fetch_offset=3), topic=ref(bench, version))))
    assert offsets(found.records) == [3]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_says_what_is_wrong_with_a_partition(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(3))
    for partition, code in (
        (FetchPartition(0, fetch_offset=4), ErrorCode.OFFSET_OUT_OF_RANGE),
        (FetchPartition(0, fetch_offset=-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (FetchPartition(9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        found = only(await ask(client, version, request(partition, topic=ref(bench, version), wait_ms=60_000)))
        assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (code, -1, b"")
    if version >= 9:
        log.leader_epoch = 5
        for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            asked = FetchPartition(0, current_leader_epoch=epoch)
            found = only(await ask(client, version, request(asked, topic=ref(bench, version))))
            assert found.error_code == code


@pytest.mark.parametrize("version", VERSIONS)
async def test_nobody_reads_past_the_high_watermark_by_claiming_to_be_a_replica(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(3), batch(2))
    log.high_watermark = log.last_stable_offset = 3
    topic = ref(bench, version)
    for replica_id in (0, bench.context.config.node_id, 1 << 30):
        for _ in range(2):  # the second looks like the first
            found = only(await ask(client, version, request(FetchPartition(0), topic=topic, replica_id=replica_id)))
            assert (found.error_code, found.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        if version >= 9:
            asked = FetchPartition(0, current_leader_epoch=0)
            found = only(await ask(client, version, request(asked, topic=topic, replica_id=replica_id)))
            assert (found.error_code, found.records or b"") == (ErrorCode.UNKNOWN_LEADER_EPOCH, b"")
    for consumer in (-1, -2, -3, -(1 << 31)):
        found = only(await ask(client, version, request(FetchPartition(0), topic=topic, replica_id=consumer)))
        assert (found.error_code, offsets(found.records)) == (0, [0])


async def test_a_session_whose_owner_claims_to_be_a_replica_pushes_nobody_out_and_reads_nothing(start, connect):
    bench = await start(max_incremental_fetch_session_cache_slots=1)
    log = bench.logs.add("t")
    client, stranger = await connect(bench), await connect(bench)
    await fill(client, "t", batch(3))
    log.high_watermark = log.last_stable_offset = 0
    mine = await ask(client, 12, request(FetchPartition(0), session_epoch=0))
    assert mine.session_id
    theirs = await ask(stranger, 12, request(FetchPartition(0), session_epoch=0, replica_id=3))
    assert (theirs.session_id, only(theirs).error_code) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log.high_watermark = log.last_stable_offset = 3
    again = await ask(client, 12, request(session_id=mine.session_id, session_epoch=1))
    assert (again.error_code, offsets(only(again).records)) == (0, [0])
    log.high_watermark = log.last_stable_offset = 0
    hijacked = await ask(stranger, 12, request(session_id=mine.session_id, session_epoch=2, replica_id=3))
    assert only(hijacked).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_unknown_topic_id_is_named_so(start, connect):
    import uuid

    bench = await start()
    client = await connect(bench)
    answer = await ask(client, 13, request(FetchPartition(0), topic=uuid.uuid4(), wait_ms=60_000))
    assert only(answer).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_topic_led_elsewhere_is_refused_with_its_leader_unknown_here(start, connect):
    bench = await start()
    bench.controller.image.topics["u"] = SimpleNamespace(
        name="u", topic_id=None, partitions=[SimpleNamespace(leader=7, leader_epoch=3, isr=(7,))]
    )
    client = await connect(bench)
    found = only(await ask(client, 12, request(FetchPartition(0), topic="u")))
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_first_batch_comes_whole_even_if_it_is_over_every_limit(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(value=b"x" * 5000), batch(value=b"y" * 5000))
    tiny = FetchPartition(0, partition_max_bytes=10)
    found = only(await ask(client, 11, request(tiny, max_bytes=1)))
    assert offsets(found.records) == [0]


async def test_the_byte_limit_is_shared_by_the_partitions_in_order(start, connect):
    bench = await start()
    for n in range(3):
        bench.logs.add("t", n)
    client = await connect(bench)
    one = batch(value=b"x" * 1000)
    for n in range(3):
        await fill(client, "t", one, one, partition=n)
    asked = [FetchPartition(n, partition_max_bytes=5000) for n in range(3)]
    answer = await ask(client, 11, request(*asked, max_bytes=3 * len(one)))
    got = [offsets(p.records or b"") for p in answer.responses[0].partitions]
    assert got == [[0, 1], [0], []]
    assert [p.high_watermark for p in answer.responses[0].partitions] == [2, 2, 2]


async def test_a_fetch_at_the_end_waits_for_an_append(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client, producer = await connect(bench), await connect(bench)
    send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    await until(lambda: log.waiters, pause_s=0)
    await fill(producer, "t", batch(2))
    found = only((await client.answer(FETCH, 12))[1])
    assert offsets(found.records) == [0]
    assert not log.waiters


async def test_a_fetch_waits_until_there_are_as_many_bytes_as_it_wants(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client, producer = await connect(bench), await connect(bench)
    one = batch(2)
    send(client, 12, request(FetchPartition(0), wait_ms=60_000, min_bytes=2 * len(one)))
    await until(lambda: log.waiters, pause_s=0)
    await fill(producer, "t", one)
    await until(lambda: log.waiters, pause_s=0)
    await fill(producer, "t", one)
    assert offsets(only((await client.answer(FETCH, 12))[1]).records) == [0, 2]


async def test_a_fetch_that_waits_in_vain_is_answered_empty_in_time(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    loop = asyncio.get_running_loop()
    started_ms = round(loop.time() * 1000)
    found = only(await ask(client, 12, request(FetchPartition(0), wait_ms=30)))
    assert round(loop.time() * 1000) - started_ms >= 30, "by the clock that its timer goes by"
    assert (found.error_code, bytes(found.records or b"")) == (0, b"")
    assert not log.waiters


async def test_a_client_that_leaves_takes_its_waiting_fetch_along(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    await until(lambda: log.waiters, pause_s=0)
    await client.close()
    await until(lambda: not log.waiters, pause_s=0)


async def test_a_fetch_whose_client_left_while_the_disk_was_asked_waits_for_nothing_more(start, connect, monkeypatch):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2))
    asked, answered = asyncio.Event(), asyncio.Event()
    whole = log.plan_read

    async def fetch(miss: PageMiss, pool: Any) -> None:
        log.plan_read = whole
        asked.set()
        await answered.wait()

    def not_in_memory(*_: Any, **__: Any) -> Any:
        raise PageMiss(SimpleNamespace(deleted=False), lambda: None, lambda _: None)

    monkeypatch.setattr(PageMiss, "fetch", fetch)
    log.plan_read = not_in_memory
    send(client, 12, request(FetchPartition(0), wait_ms=60_000, min_bytes=10_000))
    await asked.wait()
    await client.close()
    await until(lambda: not bench.server._connections, pause_s=0)
    answered.set()
    await until(lambda: not bench.server._tasks, pause_s=0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not log.waiters


async def test_requests_behind_a_waiting_fetch_wait_too(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client, producer = await connect(bench), await connect(bench)
    first = send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    second = send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    await until(lambda: log.waiters, pause_s=0)
    await fill(producer, "t", batch())
    assert (await client.answer(FETCH, 12))[0] == first
    assert (await client.answer(FETCH, 12))[0] == second


async def test_bytes_that_are_not_in_the_page_cache_are_read_on_the_pool(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    big = batch(value=b"z" * 700_000)
    await fill(client, "t", big, big, big)
    for cached in (0, 1000, 1_400_000):
        log.file.cached_bytes = cached
        asked = FetchPartition(0, partition_max_bytes=1 << 22)
        found = only(await ask(client, 12, request(asked)))
        assert bytes(found.records) == bytes(log.file.data)
        assert log.handle.users == 0


async def test_a_reader_that_stops_reading_costs_no_buffer(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    big = batch(value=b"z" * 900_000)
    for _ in range(30):
        await fill(client, "t", big)
    client.writer.transport.pause_reading()
    out: list[memoryview] = []
    take, give_back = bench.server.buffers.take, bench.server.buffers.give_back
    bench.server.buffers.take = lambda size: out.append(take(size)) or out[-1]
    bench.server.buffers.give_back = lambda buffer: (out.remove(buffer), give_back(buffer))
    asked = FetchPartition(0, partition_max_bytes=1 << 30)
    for _ in range(3):
        send(client, 12, request(asked))
    connection = next(iter(bench.server._connections))
    await until(lambda: connection._sending is not None and connection._sending.full, pause_s=0)
    assert connection._transport.get_write_buffer_size() == 0
    assert log.handle.users == 1
    assert not out
    assert connection.waits_for_peer
    client.writer.transport.resume_reading()
    for _ in range(3):
        assert bytes(only((await client.answer(FETCH, 12))[1]).records) == bytes(log.file.data)
    assert log.handle.users == 0
    assert not out


async def test_read_committed_ends_at_the_last_stable_offset_and_names_aborted_transactions(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2), batch(2), batch(2))
    log.last_stable_offset = 4
    log.aborted = [SimpleNamespace(producer_id=77, first_offset=2)]
    found = only(await ask(client, 11, request(FetchPartition(0), isolation_level=1)))
    assert offsets(found.records) == [0, 2]
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(77, 2)]
    found = only(await ask(client, 11, request(FetchPartition(0))))
    assert offsets(found.records) == [0, 2, 4]
    assert found.aborted_transactions is None


async def test_records_wait_for_the_transaction_index_that_says_which_of_them_to_hide(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2))
    known = [SimpleNamespace(producer_id=77, first_offset=0)]

    def not_in_memory(start: int, end: int) -> list[Any]:
        raise PageMiss(SimpleNamespace(deleted=False), lambda: known, take)

    def take(found: object) -> None:
        log.aborted_transactions = lambda start, end: found

    log.aborted_transactions = not_in_memory
    found = only(await ask(client, 11, request(FetchPartition(0), isolation_level=1)))
    assert offsets(found.records) == [0]
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(77, 0)]


async def test_a_position_from_an_epoch_that_was_cut_off_is_told_where_it_parts(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(5))
    log.leader_epoch = 3
    log.epoch_end_offset = lambda epoch: (1, 2)
    asked = FetchPartition(0, fetch_offset=5, last_fetched_epoch=2)
    found = only(await ask(client, 12, request(asked, wait_ms=60_000)))
    assert (found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 1, 2)


# --- the object store's part ---------------------------------------------------------------------------------------------


def tier(log: Any, offset: int) -> None:
    """The records below ``offset`` are only in the object store."""
    log.local_log_start_offset = offset


async def test_remote_offsets_are_answered_when_they_arrive_with_what_follows_on_the_disk(start, connect):
    bench = await start(remote_fetch_max_wait_ms=60_000)
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2), batch(2))
    tier(log, 2)
    send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    await until(lambda: bench.remote.asked == [0], pause_s=0)
    handle = bench.remote.arrive(0, bytes(log.file.data[: len(log.file.data) // 2]), 2)
    found = only((await client.answer(FETCH, 12))[1])
    assert offsets(found.records) == [0, 2]
    assert handle.users == 0


async def test_who_reads_past_a_late_high_watermark_in_the_tier_is_told_that_it_is_committed(start, connect):
    """A follower may know of segments in the store before it hears how far its leader has committed."""
    bench = await start(remote_fetch_max_wait_ms=60_000)
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2), batch(2), batch(2))
    tier(log, 4)
    log.high_watermark, log.last_stable_offset = 3, 1
    bench.remote.arrive(0, bytes(log.file.data[: len(log.file.data) * 2 // 3]), 4)
    for isolation in (0, 1):
        found = only(await ask(client, 12, request(FetchPartition(0), isolation_level=isolation)))
        assert offsets(found.records) == [0, 2]
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)
    tier(log, 0)
    log.high_watermark = 4
    found = only(await ask(client, 12, request(FetchPartition(0))))
    assert (found.high_watermark, found.last_stable_offset) == (4, 1)


async def test_more_of_the_remote_part_is_waited_for_only_if_what_is_at_hand_is_too_little(start, connect):
    bench = await start(remote_fetch_max_wait_ms=60_000)
    log = bench.logs.add("t")
    client = await connect(bench)
    one = batch(2)
    await fill(client, "t", one, one)
    tier(log, 4)
    handle = bench.remote.arrive(0, bytes(log.file.data[: len(one)]), 2)
    found = only(await ask(client, 12, request(FetchPartition(0), wait_ms=60_000)))
    assert offsets(found.records) == [0]
    assert bench.remote.asked == [0]
    send(client, 12, request(FetchPartition(0), wait_ms=60_000, min_bytes=2 * len(one)))
    await until(lambda: bench.remote.asked == [0, 0, 2], pause_s=0)
    assert handle.users == 0
    bench.remote.arrive(2, bytes(log.file.data[len(one) :]), 4)
    found = only((await client.answer(FETCH, 12))[1])
    assert offsets(found.records) == [0, 2]


async def test_who_waits_long_does_not_wait_so_long_for_the_store(start, connect):
    bench = await start(remote_fetch_max_wait_ms=20)
    cold, _ = bench.logs.add("t", 0), bench.logs.add("t", 1)
    client = await connect(bench)
    await fill(client, "t", batch(2))
    await fill(client, "t", batch(2), partition=1)
    tier(cold, 2)
    asked = request(FetchPartition(0), FetchPartition(1), wait_ms=60_000, min_bytes=1 << 20)
    first, second = (await ask(client, 12, asked)).responses[0].partitions
    assert (first.error_code, first.high_watermark, bytes(first.records or b"")) == (0, 2, b"")
    assert offsets(second.records) == [0], "what there is"
    bench.remote.arrive(0, bytes(cold.file.data), 2)
    asked = request(FetchPartition(0), FetchPartition(1), wait_ms=60_000, min_bytes=2)
    first, second = (await ask(client, 12, asked)).responses[0].partitions
    assert (offsets(first.records), offsets(second.records)) == ([0], [0])


async def test_an_error_behind_what_was_found_does_not_keep_it_back(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    one = batch(2)
    await fill(client, "t", one, one)
    tier(log, 4)
    bench.remote.arrive(0, bytes(log.file.data[: len(one)]), 2)
    bench.remote.answers[2] = StorageUnavailable("away")
    found = only(await ask(client, 12, request(FetchPartition(0), wait_ms=60_000, min_bytes=1 << 20)))
    assert (found.error_code, offsets(found.records)) == (0, [0])
    found = only(await ask(client, 12, request(FetchPartition(0, fetch_offset=2), wait_ms=60_000, min_bytes=1 << 20)))
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_hot_partition_does_not_wait_for_a_remote_one(start, connect):
    bench = await start()
    cold, _ = bench.logs.add("t", 0), bench.logs.add("t", 1)
    client = await connect(bench)
    await fill(client, "t", batch(2))
    await fill(client, "t", batch(2), partition=1)
    tier(cold, 2)
    answer = await ask(client, 12, request(FetchPartition(0), FetchPartition(1), wait_ms=60_000))
    first, second = answer.responses[0].partitions
    assert (first.error_code, bytes(first.records or b"")) == (0, b"")
    assert offsets(second.records) == [0]
    assert bench.remote.asked == [0]


def rest_after_a_busy_time(bench: Any) -> list[float]:
    """Others have kept the loop busy for ten seconds, and a replay has to rest. The list's one item is the time from then on."""
    now_s = [10.0]
    bench.context.replays = ReplayTurns(lambda: now_s[0])
    pace = bench.context.replays.pace
    pace.took(0.0, 0.0)
    pace.others_s += 10.0
    pace.took(10.0, 0.005)
    return now_s


async def test_a_replay_rests_while_others_keep_the_loop_busy_and_they_do_not_wait_for_it(start, connect):
    bench = await start(remote_fetch_max_wait_ms=1)
    log = bench.logs.add("t")
    client, producer = await connect(bench), await connect(bench)
    await fill(client, "t", batch(2))
    tier(log, 2)
    bench.remote.arrive(0, bytes(log.file.data), 2)
    now_s = rest_after_a_busy_time(bench)
    send(client, 12, request(FetchPartition(0), wait_ms=60_000))
    await fill(producer, "t", batch(2))
    await ask(producer, 12, request(FetchPartition(0, fetch_offset=4), wait_ms=20))
    assert bench.remote.asked == [], "it waits for its turn, not for the store"
    now_s[0] += 1.0
    found = only((await client.answer(FETCH, 12))[1])
    assert offsets(found.records)[0] == 0


async def test_who_does_not_want_to_wait_is_answered_from_the_tier_at_once(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2))
    tier(log, 2)
    bench.remote.arrive(0, bytes(log.file.data), 2)
    rest_after_a_busy_time(bench)
    found = only(await ask(client, 12, request(FetchPartition(0), wait_ms=0)))
    assert offsets(found.records) == [0]


async def test_a_replay_whose_turn_does_not_come_is_answered_when_it_waits_no_longer(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", batch(2))
    tier(log, 2)
    bench.remote.arrive(0, bytes(log.file.data), 2)
    rest_after_a_busy_time(bench)
    found = only(await ask(client, 12, request(FetchPartition(0), wait_ms=20)))
    assert offsets(found.records) == [0]


async def test_a_remote_error_is_answered_for_its_partition_only(start, connect):
    bench = await start()
    cold, _ = bench.logs.add("t", 0), bench.logs.add("t", 1)
    client = await connect(bench)
    await fill(client, "t", batch(2))
    await fill(client, "t", batch(2), partition=1)
    tier(cold, 2)
    for error, code in (
        (StorageUnavailable("away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE), ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        bench.remote.answers[0] = error
        answer = await ask(client, 12, request(FetchPartition(0), FetchPartition(1), wait_ms=60_000))
        first, second = answer.responses[0].partitions
        assert first.error_code == code
        assert offsets(second.records) == [0]


# --- sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_a_session_tells_only_what_is_new(start, connect, version):
    bench = await start()
    for n in range(3):
        bench.logs.add("t", n)
    client = await connect(bench)
    await fill(client, "t", batch(2), partition=1)
    topic = ref(bench, version)
    if version >= 13:
        for n in range(3):
            bench.logs.get("t", n).topic_id = topic
    full = await ask(client, version, request(*[FetchPartition(n) for n in range(3)], topic=topic, session_epoch=0))
    assert full.error_code == 0
    assert full.session_id > 0
    assert sorted(p.partition_index for p in full.responses[0].partitions) == [0, 1, 2]

    def again(epoch: int, *partitions: FetchPartition, **fields: Any) -> FetchRequest:
        return request(*partitions, topic=topic, session_id=full.session_id, session_epoch=epoch, **fields)

    moved = await ask(client, version, again(1, FetchPartition(1, fetch_offset=2)))
    assert moved.responses == []
    assert moved.session_id == full.session_id
    await fill(client, "t", batch(3), partition=2)
    new = await ask(client, version, again(2))
    assert [(p.partition_index, offsets(p.records)) for p in new.responses[0].partitions] == [(2, [0])]
    gone = await ask(client, version, again(3, forgotten=[(topic, [2])]))
    assert gone.responses == []
    await fill(client, "t", batch(3), partition=0)
    new = await ask(client, version, again(4))
    assert [p.partition_index for p in new.responses[0].partitions] == [0]
    wrong = await ask(client, version, again(4))
    assert (wrong.error_code, wrong.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    closed = await ask(client, version, again(-1))
    assert (closed.error_code, closed.session_id) == (0, 0)
    lost = await ask(client, version, again(5))
    assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_names_and_ids_do_not_mix_in_a_session(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    full = await ask(client, 12, request(FetchPartition(0), session_epoch=0))
    mixed = await ask(
        client, 13, request(FetchPartition(0), topic=log.topic_id, session_id=full.session_id, session_epoch=1)
    )
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_a_waiting_fetch_may_be_hurried_again_when_its_time_is_up(start):
    """uvloop's handle of a wait that rounds to 0 ms does not say when it is due."""
    bench = await start()
    ended = asyncio.Event()
    attempt: Any = SimpleNamespace(
        request=request(wait_ms=60_000),
        max_bytes=1,
        misses=[],
        logs=[],
        remote_waits=[],
        awaits_store=False,
        release=lambda: None,
    )
    connection: Any = SimpleNamespace(
        server=bench.server,
        context=bench.context,
        on_close=set(),
        caller=SimpleNamespace(rights=SimpleNamespace(on_end=set())),
    )
    plan: Any = SimpleNamespace(followed=None)
    slot: Any = SimpleNamespace(done=False)

    class Parked(ParkedConsumer):
        def _look(self, *, out_of_time: bool = False) -> Any:
            return attempt

        def _finish(self, attempt: Any) -> None:
            ended.set()

        def hurry(self, wait_ms: int) -> None:
            self._hurry(wait_ms)

    parked = Parked(connection, slot, RequestFields(17, 1), None, plan, [], attempt)
    for wait_ms in (0, 0, 500):
        parked.hurry(wait_ms)
    async with asyncio.timeout(30):
        await ended.wait()
