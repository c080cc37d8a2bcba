"""Produce over a raw socket: every version, every refusal, and the short way against the long way."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import TopicConfig
from app.core import turns
from app.core.errors import ErrorCode, RequestRejected, StorageFull, StorageUnavailable
from app.handlers.clients.produce_shape import PREFIX_BYTES_MAX, PREFIX_START, ProduceShape, ProduceShapes, learn
from app.handlers.policy.callers import Rights
from app.handlers.produce.produce import FIRST_RECORDS_AT_ONCE, MANY_PARTITIONS, PARTITIONS_AT_ONCE
from app.metadata.image.image import PartitionImage
from app.records.batch import iter_headers, parse_header
from app.records.compression import Codec
from app.wire.produce import decode_produce, encode_produce_request, encode_produce_success
from tests.handlers.conversation import batch
from tests.handlers.fakes import Bench
from tests.handlers.producing import ask_to_produce, only
from tests.support.callers import RIGHTS

PRODUCE = 0
VERSIONS = range(3, 14)


def ref(bench: Bench, version: int, topic: str = "t") -> Any:
    """How that version speaks of a topic."""
    return bench.logs.get(topic, 0).topic_id if version >= 13 else topic  # type: ignore[union-attr]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_is_served_the_long_way_and_the_short_way(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    topic = ref(bench, version)
    for n, count in enumerate((1, 2, 3, 200, 1, 7)):
        expected = log.log_end_offset
        found = await ask_to_produce(client, version, topic, batch(count, value=b"x" * n * 50))
        assert (found.error_code, found.base_offset, found.log_append_time_ms) == (0, expected, -1)
        if version >= 5:
            assert found.log_start_offset == 0
    assert [header.base_offset for _, header in iter_headers(log.file.data)] == [0, 1, 3, 6, 206, 207]
    assert bench.counter("firn_records_in_total") == 214
    assert bench.counter("firn_bytes_in_total") == len(log.file.data)
    assert bench.counter("firn_requests_total", api="produce") == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_a_learnt_shape_answers_byte_for_byte_like_the_codec(version):
    topic = uuid.uuid4() if version >= 13 else "topic.of_some-length"
    records = batch(4)
    pieces = encode_produce_request(version, 9, "client", [(topic, [(3, records)])], acks=-1, timeout_ms=30_000)
    frame = memoryview(b"".join(bytes(piece) for piece in pieces))[4:]
    body = frame[8 + 2 + 6 + (1 if version >= 9 else 0) :]
    ((_, [(_, decoded)]),) = decode_produce(version, body).topics
    log: Any = SimpleNamespace(terms=None)
    shape = learn(RIGHTS, version, "client", frame, decoded, log, topic, 3, False)
    assert shape is not None
    assert bytes(frame[PREFIX_START - 4 :]).startswith(shape.prefix)
    for numbers in ((0, -1, 0), (1 << 40, 1_700_000_000_000, 12345)):
        assert shape.answer(77, *numbers) == encode_produce_success(version, 77, topic, 3, *numbers)
        assert shape.throttled_answer(77, *numbers, 250) == encode_produce_success(version, 77, topic, 3, *numbers, 250)


async def test_partitions_that_take_turns_are_decoded_once_for_all_connections(start, connect, monkeypatch):
    decoded: list[int] = []
    monkeypatch.setattr(
        "app.handlers.produce.produce.decode_produce",
        lambda version, body: decoded.append(1) or decode_produce(version, body),
    )
    bench = await start()
    logs = {(name, n): bench.logs.add(name, n) for name in ("t", "of-another-length") for n in range(150)}
    for turn, client in enumerate([await connect(bench), await connect(bench)]):
        for name, n in logs:
            answer = await client.produce(9, [(name, [(n, batch(1))])])
            assert (only(answer).error_code, only(answer).base_offset) == (0, turn)
    assert [log.log_end_offset for log in logs.values()] == [2] * 300
    assert len(decoded) == 300


def learnt(name: str, log: object | None = None, rights: Rights = RIGHTS) -> ProduceShape:
    log = log or SimpleNamespace(terms=None, offline_error=None)
    return ProduceShape(rights, 9, "client", name.encode(), log, name, 0, False)  # type: ignore[arg-type]


def test_what_is_learnt_is_bounded_and_of_closed_logs_forgotten(monkeypatch):
    monkeypatch.setattr("app.handlers.clients.produce_shape.SHAPES_MAX", 3)
    monkeypatch.setattr("app.handlers.clients.produce_shape.LENGTHS_MAX", 2)
    shapes = ProduceShapes()
    known = [learnt(name) for name in ("a", "bb", "cc", "dd")]
    for shape in known:
        shapes.remember(shape)
    found = [shapes.find(RIGHTS, 9, bytearray(b"--" + shape.prefix + b"rest"), 2) for shape in known]
    assert found == [None, *known[1:]]
    assert shapes.find(RIGHTS, 8, bytearray(b"--bbrest"), 2) is None, "another version"
    shapes.remember(learnt("x" * PREFIX_BYTES_MAX))
    before = len(shapes)
    shapes.remember(learnt("x" * (PREFIX_BYTES_MAX + 1)))
    assert len(shapes) == before, "a long prefix is not kept"
    for name in ("eee", "ffff"):
        shapes.remember(learnt(name))
    assert shapes.find(RIGHTS, 9, bytearray(b"--ddrest"), 2) is None, "a length that was not met for long"
    closed = SimpleNamespace(terms=None, offline_error=None)
    shapes.remember(learnt("ffff", closed))
    before = len(shapes)
    closed.offline_error = StorageUnavailable("closed")
    shapes.forget_closed()
    assert len(shapes) == before - 1
    assert shapes.find(RIGHTS, 9, bytearray(b"--ffffrest"), 2) is None


def test_what_one_caller_taught_is_not_found_for_others_and_forgotten_with_its_rights():
    shapes, others = ProduceShapes(), Rights("User:other")
    shapes.remember(learnt("same", rights=others))
    request = bytearray(b"--samerest")
    assert shapes.find(RIGHTS, 9, request, 2) is None
    assert shapes.find(others, 9, request, 2) is not None
    shapes.remember(learnt("same"))
    others.valid = False
    shapes.forget_closed()
    assert shapes.find(others, 9, request, 2) is None
    assert shapes.find(RIGHTS, 9, request, 2) is not None


async def test_a_change_of_one_topics_settings_forgets_what_was_learnt_of_that_topic_alone(start, connect, monkeypatch):
    decoded: list[int] = []
    monkeypatch.setattr(
        "app.handlers.produce.produce.decode_produce",
        lambda version, body: decoded.append(1) or decode_produce(version, body),
    )
    bench = await start()
    changed = bench.logs.add("changed")
    bench.logs.add("other")
    client = await connect(bench)
    for _ in range(3):
        await ask_to_produce(client, 9, "changed", batch(1))
        await ask_to_produce(client, 9, "other", batch(1))
    assert len(decoded) == 2
    changed.config = replace(changed.config, retention_ms=1000)
    for _ in range(3):
        await ask_to_produce(client, 9, "other", batch(1))
    assert len(decoded) == 2
    for _ in range(3):
        await ask_to_produce(client, 9, "changed", batch(1))
    assert len(decoded) == 3


async def test_a_topic_made_anew_is_found_behind_a_learnt_shape(start, connect):
    bench = await start()
    old = bench.logs.add("t")
    client = await connect(bench)
    for _ in range(3):
        await ask_to_produce(client, 9, "t", batch(1))
    new = bench.logs.add("t")
    old.offline_error = old.refuse_with = RequestRejected(ErrorCode.KAFKA_STORAGE_ERROR, "the log is closed")
    assert (await ask_to_produce(client, 9, "t", batch(1))).base_offset == 0
    assert (old.log_end_offset, new.log_end_offset) == (3, 1)


async def test_refusals_behind_a_learnt_shape_are_told_like_any(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    good = batch(2)
    assert (await ask_to_produce(client, 9, "t", good)).error_code == 0
    assert (await ask_to_produce(client, 9, "t", good)).error_code == 0
    bad_crc = bytearray(good)
    bad_crc[-1] ^= 1
    for records, code in (
        (bytes(bad_crc), ErrorCode.CORRUPT_MESSAGE),
        (good + good, ErrorCode.INVALID_RECORD),
        (good[:-1], ErrorCode.CORRUPT_MESSAGE),
        (good[:40], ErrorCode.CORRUPT_MESSAGE),
        (good[:8] + (20).to_bytes(4, "big") + good[12:], ErrorCode.CORRUPT_MESSAGE),
        (good[:8] + b"\xff\xff\xff\xfb" + good[12:], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        ((55).to_bytes(8, "big") + good[8:], ErrorCode.INVALID_RECORD),  # a base offset, which no checksum covers
        (batch(1, control=True, producer_id=1, producer_epoch=0, base_sequence=0), ErrorCode.INVALID_RECORD),
        (
            batch(1, transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ):
        found = await ask_to_produce(client, 9, "t", records)
        assert (found.error_code, found.base_offset) == (code, -1)
        assert found.error_message
    log.refuse_with = RequestRejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")
    found = await ask_to_produce(client, 9, "t", good)
    assert (found.error_code, found.error_message) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")
    log.refuse_with = None
    bench.context.refuse_for_room(StorageFull("no room"))
    assert (await ask_to_produce(client, 9, "t", good)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    bench.context.refuse_for_room(None)
    assert (await ask_to_produce(client, 9, "t", good)).base_offset == 4
    assert log.log_end_offset == 6


async def test_old_message_formats_are_refused_by_name(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    for magic in (0, 1):
        old = bytearray(batch(1))
        old[16] = magic
        assert (await ask_to_produce(client, 3, "t", bytes(old))).error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


async def test_zstd_needs_a_version_that_knows_it(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    records = batch(20, codec=Codec.ZSTD)
    assert (await ask_to_produce(client, 6, "t", records)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await ask_to_produce(client, 7, "t", records)).error_code == 0
    assert (await ask_to_produce(client, 6, "t", batch(1))).error_code == 0
    assert (await ask_to_produce(client, 6, "t", records)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_unknown_topics_and_partitions_are_told_apart_from_good_ones(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    answer = await client.produce(
        version, [("t", [(0, batch(1)), (7, batch(1))]), ("nope", [(0, batch(1))]), ("t", [(0, batch(1))])]
    )
    codes = [[p.error_code for p in topic.partition_responses] for topic in answer.responses]
    assert codes == [[0, 3], [3], [0]]
    assert log.log_end_offset == 2


async def test_an_unknown_topic_id_is_named_so(start, connect):
    bench = await start()
    client = await connect(bench)
    assert (await ask_to_produce(client, 13, uuid.uuid4(), batch(1))).error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_impossible_acks_are_refused_before_anything_is_written(start, connect, acks):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    assert (await ask_to_produce(client, 9, "t", batch(1), acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert log.log_end_offset == 0


async def test_acks_all_needs_enough_replicas_in_sync(start, connect):
    bench = await start()
    log = bench.logs.add("t", 0, TopicConfig(min_insync_replicas=2))
    partition = bench.logs.table.led("t", 0)
    bench.logs.table.note(partition, PartitionImage(0, 1, 0, 1, (1, 2), (1,)))
    client = await connect(bench)
    assert (await ask_to_produce(client, 9, "t", batch(1))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert log.log_end_offset == 0
    assert (await ask_to_produce(client, 9, "t", batch(1), acks=1)).error_code == 0


async def test_acks_all_waits_for_no_more_replicas_than_a_partition_has(start, connect):
    bench = await start()
    log = bench.logs.add("t", 0, TopicConfig(min_insync_replicas=3))
    client = await connect(bench)
    assert (await ask_to_produce(client, 9, "t", batch(1))).error_code == 0
    assert log.log_end_offset == 1


async def test_a_batch_that_begins_a_transaction_needs_the_word_of_the_coordinator(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    begins = batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    for version in (9, 12):
        found = await ask_to_produce(client, version, "t", begins, transactional_id="tx")
        assert found.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "nobody coordinates here yet: the client tries again"
        assert log.log_end_offset == 0
    assert (await ask_to_produce(client, 9, "t", batch(1), transactional_id="tx")).error_code == 0


async def test_a_coordinators_topic_is_refused_every_time_whatever_its_settings(start, connect):
    bench = await start()
    log = bench.logs.add("__consumer_offsets", config=TopicConfig(cleanup_policy=frozenset({"delete"})))
    client = await connect(bench)
    for _ in range(3):
        found = await ask_to_produce(client, 9, "__consumer_offsets", batch(1))
        assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert log.log_end_offset == 0


async def test_acks_0_gets_no_answer_and_errors_close_the_connection(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    for _ in range(3):
        client.send_produce(9, [("t", [(0, batch(1))])], acks=0)
    assert (await ask_to_produce(client, 9, "t", batch(1))).base_offset == 3
    client.send_produce(9, [("nope", [(0, batch(1))])], acks=0)
    assert await client.closed()
    assert log.log_end_offset == 4
    assert "UNKNOWN_TOPIC_OR_PARTITION" in bench.lines[0]


async def test_acks_0_does_not_wait_for_the_disk(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    log.store_slowly()
    client = await connect(bench)
    client.send_produce(9, [("t", [(0, batch(1))])], acks=0)
    client.send_produce(9, [("t", [(0, batch(1))])], acks=0)
    while log.log_end_offset < 2:
        await asyncio.sleep(0)
    assert log.unstored == []
    assert log.asked_to_store_to == 2, "consumers see nothing before"


async def test_a_disk_that_fails_after_the_append_is_told_to_whoever_waits(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    unstored = log.store_slowly()
    client = await connect(bench)
    client.send_produce(9, [("t", [(0, batch(1))])])
    while not unstored:
        await asyncio.sleep(0)
    unstored[0].set_exception(StorageFull("gone"))
    found = only((await client.answer(PRODUCE, 9))[1])
    assert (found.error_code, found.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def test_records_are_not_called_stored_once_another_broker_leads(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    unstored = log.store_slowly()
    client = await connect(bench)
    client.send_produce(9, [("t", [(0, batch(1))])])
    while not unstored:
        await asyncio.sleep(0)
    partition = bench.logs.table.led("t", 0)
    assert partition is not None
    bench.logs.table.resign(partition)
    unstored[0].set_result(None)
    found = only((await client.answer(PRODUCE, 9))[1])
    assert (found.error_code, found.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_recompression_happens_before_the_append_and_keeps_the_order(start, connect):
    bench = await start()
    log = bench.logs.add("t", 0, TopicConfig(compression_type="gzip"))
    other = bench.logs.add("u")
    client = await connect(bench)
    for n in range(5):
        client.send_produce(9, [("t", [(0, batch(1, value=b"%d" % n * 100))])])
        client.send_produce(9, [("u", [(0, batch(1))])])
    for n in range(5):
        for _ in range(2):
            found = only((await client.answer(PRODUCE, 9))[1])
            assert (found.error_code, found.base_offset) == (0, n)
    assert {header.codec for _, header in iter_headers(log.file.data)} == {Codec.GZIP}
    assert {header.codec for _, header in iter_headers(other.file.data)} == {Codec.NONE}
    bad = bytearray(batch(1))
    bad[-1] ^= 1
    assert (await ask_to_produce(client, 9, "t", bytes(bad))).error_code == ErrorCode.CORRUPT_MESSAGE


async def test_the_log_patches_offset_and_epoch_in_place(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    log.leader_epoch = 9
    client = await connect(bench)
    await ask_to_produce(client, 9, "t", batch(5))
    await ask_to_produce(client, 9, "t", batch(5))
    second = parse_header(log.file.data, len(log.file.data) // 2)
    assert (second.base_offset, second.leader_epoch) == (5, 9)


async def test_a_bug_met_by_one_request_ends_its_connection_alone(start, connect):
    bench = await start()
    bench.logs.add("t")
    bench.logs.add("u", 0, replace(TopicConfig(), compression_type="gzip"))
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    first, second = await connect(bench), await connect(bench)

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    for topic in ("t", "u"):
        log = bench.logs.get(topic, 0)
        assert log is not None
        log.append_as_leader = broken  # type: ignore[method-assign]
        client = await connect(bench)
        client.send_produce(9, [(topic, [(0, batch(1))])])
        assert await client.closed()
    assert len(told) == 2
    bench.logs.add("v")
    assert (await ask_to_produce(first, 9, "v", batch(1))).error_code == 0
    assert (await ask_to_produce(second, 9, "v", batch(1))).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_bytes_behind_a_request_change_neither_it_nor_what_is_learnt_from_it(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    topic = ref(bench, version)
    for rest in (b"\0", b"\0\0\0", b"\xff" * 4, b""):
        pieces = encode_produce_request(version, 5, "test", [(topic, [(0, batch(2))])], acks=-1, timeout_ms=1000)
        frame = b"".join(bytes(piece) for piece in pieces)[4:] + rest
        client.writer.write(len(frame).to_bytes(4, "big") + frame)
        _, answer = await client.answer(PRODUCE, version)
        assert only(answer).error_code == ErrorCode.NONE
        assert only(await client.produce(version, [(topic, [(0, batch(1))])])).error_code == ErrorCode.NONE
    assert [header.base_offset for _, header in iter_headers(log.file.data)] == [0, 2, 3, 5, 6, 8, 9, 11]


@pytest.mark.parametrize("acks", [0, -1])
async def test_others_are_served_between_the_first_records_of_many_partitions(start, connect, acks):
    bench = await start()
    count = 3 * FIRST_RECORDS_AT_ONCE
    logs = [bench.logs.add("many", index) for index in range(count)]
    for log in logs:
        log.has_files = False
    written: list[int] = []

    def look() -> None:
        written.append(sum(log.log_end_offset for log in logs))
        if written[-1] < count:
            bench.server.loop.call_soon(look)

    client = await connect(bench)
    bench.server.loop.call_soon(look)
    client.send_produce(9, [("many", [(index, batch(1)) for index in range(count)])], acks=acks)
    if acks:
        await client.answer(PRODUCE, 9)
    last = await client.produce(9, [("many", [(0, batch(1))])])
    assert only(last).base_offset == 1, "the connection keeps its order"
    assert set(written) >= {FIRST_RECORDS_AT_ONCE, 2 * FIRST_RECORDS_AT_ONCE}
    assert [log.log_end_offset for log in logs] == [2, *[1] * (count - 1)]


@pytest.mark.parametrize("acks", [0, -1])
async def test_others_are_served_between_the_pieces_of_a_request_of_many_partitions(start, connect, monkeypatch, acks):
    monkeypatch.setattr(turns, "PORTION_S", 0.0)  # each piece takes a portion
    bench = await start()
    count = 3 * MANY_PARTITIONS
    logs = [bench.logs.add("many", index) for index in range(count)]
    written: list[int] = []

    def look() -> None:
        written.append(sum(log.log_end_offset for log in logs))
        if written[-1] < count:
            bench.server.loop.call_soon(look)

    client = await connect(bench)
    bench.server.loop.call_soon(look)
    client.send_produce(9, [("many", [(index, batch(1)) for index in range(count)])], acks=acks)
    if acks:
        _, answer = await client.answer(PRODUCE, 9)
        (topic,) = answer.responses
        assert [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses] == [
            (index, 0, 0) for index in range(count)
        ]
    last = await client.produce(9, [("many", [(count - 1, batch(1))])])
    assert only(last).base_offset == 1, "the connection keeps its order"
    steps = [after - before for before, after in itertools.pairwise(written)]
    assert len(set(written)) >= count // PARTITIONS_AT_ONCE
    assert max(steps) <= PARTITIONS_AT_ONCE


async def test_who_may_not_write_any_more_is_refused_the_rest_of_many_partitions(start, connect):
    bench = await start()
    names = [f"t{index:03}" for index in range(MANY_PARTITIONS)]
    logs = [bench.logs.add(name) for name in names]
    allows = SimpleNamespace(allows=lambda *_: not logs[0].log_end_offset)
    bench.server.context.authorizer = allows
    client = await connect(bench)
    answer = await client.produce(9, [(name, [(0, batch(1))]) for name in names])
    codes = [each.partition_responses[0].error_code for each in answer.responses]
    written = [log.log_end_offset for log in logs]
    assert sum(written) == PARTITIONS_AT_ONCE / 2, "a topic and a partition are two"
    assert codes == [ErrorCode.NONE if one else ErrorCode.TOPIC_AUTHORIZATION_FAILED for one in written]


@pytest.mark.parametrize("count", [MANY_PARTITIONS - 1, MANY_PARTITIONS + 1])
async def test_required_acks_that_there_are_not_are_refused_for_any_number_of_partitions(start, connect, count):
    bench = await start()
    logs = [bench.logs.add("many", index) for index in range(count)]
    client = await connect(bench)
    answer = await client.produce(9, [("many", [(index, batch(1)) for index in range(count)])], acks=2)
    (topic,) = answer.responses
    assert [one.error_code for one in topic.partition_responses] == [ErrorCode.INVALID_REQUIRED_ACKS] * count
    assert not any(log.log_end_offset for log in logs)
