"""How one connection behaves, whatever is asked: framing, order, backpressure, limits."""

from __future__ import annotations

import asyncio
import itertools
import socket
from dataclasses import replace
from struct import pack

import pytest

from app.transport.replays import ReplayTurns
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.framing import request_frame
from app.wire.produce import encode_produce_request
from tests.handlers.conversation import batch

V = 8
HELLO = ApiVersionsRequest("test", "1.0")


def produced(answer: object) -> tuple[int, int]:
    partition = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
    return partition.error_code, partition.base_offset


async def test_requests_of_one_segment_are_answered_in_order(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    for _ in range(50):
        client.send_produce(V, [("t", [(0, batch(2))])])
        client.send(ApiKey.API_VERSIONS, 3, HELLO)
    for n in range(50):
        correlation_id, answer = await client.answer(ApiKey.PRODUCE, V)
        assert (correlation_id, produced(answer)) == (2 * n + 1, (0, 2 * n))
        correlation_id, answer = await client.answer(ApiKey.API_VERSIONS, 3)
        assert correlation_id == 2 * n + 2
        assert answer.error_code == 0


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_a_request_may_arrive_in_pieces_of_any_size(start, connect, step):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    wanted = batch(3, value=b"x" * 700)
    frames = bytearray()
    for _ in range(2):
        client.correlation_id += 1
        frames += b"".join(
            bytes(piece)
            for piece in encode_produce_request(
                7, client.correlation_id, "test", [("t", [(0, wanted)])], acks=1, timeout_ms=10
            )
        )
    client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for position in range(0, len(frames), step):
        client.writer.write(bytes(frames[position : position + step]))
        await asyncio.sleep(0)
    for n in range(2):
        assert produced((await client.answer(ApiKey.PRODUCE, 7))[1]) == (0, 3 * n)
    assert len(log.file.data) == 2 * len(wanted)


@pytest.mark.parametrize("size", [10_000, 100_000, 300_000, 5_000_000])
async def test_large_frames_arrive_whole_between_small_ones(start, connect, size):
    bench = await start(socket_request_max_bytes=6_000_000)
    log = bench.logs.add("t")
    log.config = replace(log.config, max_message_bytes=6_000_000)
    client = await connect(bench)
    large, small = batch(1, value=bytes(range(256)) * (size // 256)), batch(1)
    for one in (small, large, large, small, large, small):
        client.send_produce(V, [("t", [(0, one)])])
    for n in range(6):
        assert produced((await client.answer(ApiKey.PRODUCE, V))[1]) == (0, n)
    expected = bytearray()
    for n, one in enumerate((small, large, large, small, large, small)):
        patched = bytearray(one)
        patched[:8] = n.to_bytes(8, "big")
        patched[12:16] = b"\0\0\0\0"
        expected += patched
    assert log.file.data == expected


async def test_later_produces_are_appended_while_an_earlier_one_waits_for_the_disk(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    log.store_slowly()
    client = await connect(bench)
    for _ in range(3):
        client.send_produce(V, [("t", [(0, batch())])])
    client.send(ApiKey.API_VERSIONS, 3, HELLO)
    while len(log.unstored) < 3:
        await asyncio.sleep(0)
    log.unstored[2].set_result(None)
    log.unstored[1].set_result(None)
    await asyncio.sleep(0.01)
    assert not client.reader._buffer  # type: ignore[attr-defined]
    log.unstored[0].set_result(None)
    for n in range(3):
        correlation_id, answer = await client.answer(ApiKey.PRODUCE, V)
        assert (correlation_id, produced(answer)) == (n + 1, (0, n))
    assert (await client.answer(ApiKey.API_VERSIONS, 3))[0] == 4


async def test_a_request_behind_a_waiting_produce_sees_what_it_did(start, connect):
    bench = await start()
    unstored = bench.logs.add("t").store_slowly()
    client = await connect(bench)
    client.send_produce(V, [("t", [(0, batch())])])
    client.send(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1))
    while not unstored:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert bench.controller.blocks == 0
    unstored[0].set_result(None)
    assert (await client.answer(ApiKey.PRODUCE, V))[0] == 1
    assert (await client.answer(ApiKey.INIT_PRODUCER_ID, 4))[0] == 2


async def test_a_produce_that_is_not_stored_in_time_is_answered_so(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    log.store_slowly()
    client = await connect(bench)
    answer = await client.produce(V, [("t", [(0, batch())])], timeout_ms=5)
    assert produced(answer)[0] == 7


async def test_a_request_that_waits_holds_back_the_next_one(start, connect):
    bench = await start()
    client = await connect(bench)
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    for _ in range(5):
        client.send(ApiKey.INIT_PRODUCER_ID, 4, ask)
    ids = [(await client.answer(ApiKey.INIT_PRODUCER_ID, 4))[1].producer_id for _ in range(5)]
    assert ids == [1000, 1001, 1002, 2000, 2001]


@pytest.mark.parametrize(
    "bytes_sent",
    [
        pack(">i", -1),
        pack(">i", 0),
        pack(">i", 9) + b"\0" * 9,
        pack(">i", 200_000_000),
        pack(">ihhih", 10, 999, 0, 1, -1),
        pack(">ihhih", 10, 3, 99, 1, -1),
        pack(">ihhih", 10, 0, 2, 1, -1),
        pack(">ihhih", 10, 1, 3, 1, -1),
        pack(">ihhih", 10, 18, 3, 1, 5),
        pack(">ihhih", 11, 3, 1, 1, -1) + b"\xff",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_bytes_that_break_the_protocol_close_the_connection_with_one_line(start, connect, bytes_sent):
    bench = await start()
    client = await connect(bench)
    client.send(ApiKey.API_VERSIONS, 3, HELLO)
    client.writer.write(bytes_sent)
    assert (await client.answer(ApiKey.API_VERSIONS, 3))[0] == 1
    assert await client.closed()
    assert len(bench.lines) == 1
    other = await connect(bench)
    assert (await other.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0


async def test_an_unknown_api_versions_version_is_answered_in_version_0(start, connect):
    bench = await start()
    client = await connect(bench)
    client.writer.write(pack(">ihhih", 10, 18, 77, 42, -1))
    correlation_id, answer = await client.answer(ApiKey.API_VERSIONS, 0)
    assert (correlation_id, answer.error_code) == (42, 35)
    assert [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys] == [(18, 0, 4)]
    assert (await client.ask(ApiKey.API_VERSIONS, 4, HELLO)).error_code == 0


@pytest.mark.ci
async def test_a_client_that_never_reads_is_not_served_without_bound(start, connect):
    bench = await start()
    client = await connect(bench)
    client.writer.transport.pause_reading()
    one = request_frame(ApiKey.API_VERSIONS, 0, 1, "", HELLO)
    requests = bench.context.metrics.meter(ApiKey.API_VERSIONS).requests
    client.writer.write(one * 30_000)  # some 15 MB of answers, more than the kernel's buffers take
    looks = [-1, -2]
    while len(set(looks[-4:])) > 1:
        looks.append(requests.value)
        await asyncio.sleep(0.05)
    assert 0 < looks[-1] < 30_000
    connection = next(iter(bench.server._connections))
    # What one turn answered may be with the transport, and what the next answered may wait for it.
    assert connection.core._out_bytes + connection._transport.get_write_buffer_size() < (2 << 20) + (1 << 16)
    client.writer.transport.resume_reading()
    for _ in range(30_000):
        await client.frame()


async def test_memory_of_arriving_frames_is_bounded_and_passed_on(start, connect):
    bench = await start(queued_max_request_bytes=1_000_000)
    log = bench.logs.add("t")
    large = batch(1, value=b"x" * 700_000)
    first, second = await connect(bench), await connect(bench)
    frames = []
    for client in (first, second):
        client.correlation_id = 1
        frames.append(
            b"".join(
                bytes(piece)
                for piece in encode_produce_request(V, 1, "test", [("t", [(0, large)])], acks=1, timeout_ms=10)
            )
        )
    first.writer.write(frames[0][:400_000])
    while bench.server.frames.bytes == 0:
        await asyncio.sleep(0.001)
    second.writer.write(frames[1])
    while not bench.server.frames.is_waited_for:
        await asyncio.sleep(0.001)
    assert log.log_end_offset == 0
    first.writer.write(frames[0][400_000:])
    assert produced((await first.answer(0, V))[1]) == (0, 0)
    assert produced((await second.answer(0, V))[1]) == (0, 1)
    while bench.server.frames.bytes:
        await asyncio.sleep(0.001)


async def test_what_a_throttled_client_sends_meanwhile_is_counted_and_takes_no_memory_of_arriving_frames(
    start, connect
):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    while not bench.server._connections:
        await asyncio.sleep(0.001)
    core = next(iter(bench.server._connections)).core
    core.stop_parsing()
    client.correlation_id = 1
    pieces = encode_produce_request(V, 1, "test", [("t", [(0, batch(1, value=b"x" * 50_000))])], acks=1, timeout_ms=10)
    client.writer.write(b"".join(bytes(piece) for piece in pieces))
    while not bench.server.frames.held_bytes:
        await asyncio.sleep(0.001)
    (sample,) = [one for one in bench.context.registry.samples() if one.name == "firn_request_memory_bytes"]
    assert (sample.value, bench.server.frames.bytes) == (bench.server.frames.held_bytes, 0)
    core.parse_on()
    assert produced((await client.answer(0, V))[1]) == (0, 0)
    assert bench.server.frames.held_bytes == 0


async def test_idle_and_half_open_connections_are_closed(start, connect):
    bench = await start(connections_max_idle_ms=50)
    silent, halfway = await connect(bench), await connect(bench)
    halfway.writer.write(pack(">ihhi", 5000, 0, 9, 1))
    assert await silent.closed()
    assert await halfway.closed()
    assert bench.counter("firn_connections_idle_closed_total") == 2


async def test_connections_beyond_the_limit_are_served_as_others_leave(start, connect):
    bench = await start(max_connections=2)
    clients = [await connect(bench) for _ in range(7)]
    asked = {asyncio.create_task(client.ask(ApiKey.API_VERSIONS, 3, HELLO)): client for client in clients}
    served = []
    async with asyncio.timeout(60):
        while asked:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                assert task.result().error_code == 0
                served.append(asked.pop(task))
            assert len(served) <= len(bench.server._connections) <= 2
            if len(served) == 2:
                assert (await served[1].ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
                await served.pop(0).close()
                while len(bench.server._connections) == 2 and asked and not any(task.done() for task in asked):
                    await asyncio.sleep(0.001)
    assert bench.counter("firn_connections_accepted_total") == 7


async def test_who_gives_up_waiting_for_a_place_takes_none(start, connect):
    bench = await start(max_connections=1)
    first = await connect(bench)
    assert (await first.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
    for _ in range(3):
        await (await connect(bench)).close()
    patient = await connect(bench)
    asked = asyncio.create_task(patient.ask(ApiKey.API_VERSIONS, 3, HELLO))
    await first.close()
    async with asyncio.timeout(60):
        assert (await asked).error_code == 0


async def test_a_private_or_unserved_key_is_not_advertised(start, connect):
    bench = await start()
    client = await connect(bench)
    answer = await client.ask(ApiKey.API_VERSIONS, 3, HELLO)
    keys = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    assert keys[0] == (0, 13)
    assert keys[1] == (4, 18)
    assert max(keys) < 1000
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert (levels, answer.finalized_features_epoch) == (
        {"group.version": 1, "share.version": 1, "transaction.version": 2},
        0,
    )


async def test_the_time_of_requests_is_noted_while_there_are_replays_and_not_otherwise(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    ticks = itertools.count()
    replays = bench.server.replays = ReplayTurns(lambda: float(next(ticks)))
    for _ in range(3):
        assert produced(await client.produce(V, [("t", [(0, batch(1))])]))[0] == 0
    assert next(ticks) == 0
    assert replays.may_go_on("a replay")
    assert produced(await client.produce(V, [("t", [(0, batch(1))])]))[0] == 0
    assert replays.pace.others_s == 1.0
