"""File ranges on their way out: from the page cache into the socket by reference, or by copy where that must not or cannot be."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

import pytest

from app.machine import files
from app.tiering.read.chunk_reads import RemoteRange
from app.tiering.read.reader import RemoteRead
from app.transport import outlet, sending
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.fetch import FetchPartition
from tests.handlers.fakes import Bench
from tests.handlers.fetching import FETCH, ask, on_disk, only, request, send
from tests.support.waiting import until

ASKED = FetchPartition(0, partition_max_bytes=1 << 30)
HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture(autouse=True)
def _in_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are there. A busy machine drops them at any time, and then they are rightly not sent by reference."""
    monkeypatch.setattr(files.PosixFile, "is_cached", lambda *_: True)


def connection_of(bench: Bench) -> Any:
    (connection,) = bench.server._connections
    return connection


async def until_full(bench: Bench) -> Any:
    connection = connection_of(bench)
    await until(lambda: connection._sending is not None and connection._sending.full, pause_s=0)
    return connection


@pytest.mark.parametrize("version", [4, 11, 12, 17])
async def test_a_cached_range_leaves_by_sendfile_and_arrives_as_it_is(start, connect, tmp_path, sent, version):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 7)
    topic = log.topic_id if version >= 13 else "t"
    found = only(await ask(client, version, request(ASKED, topic=topic)))
    assert bytes(found.records) == bytes(log.file.data)
    assert sum(sent) > len(log.file.data) - sending.SENDFILE_BYTES_MIN
    assert log.handle.users == 0


async def test_a_short_range_is_copied_with_its_header(start, connect, tmp_path, sent):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 1000)
    assert bytes(only(await ask(client, 12, request(ASKED))).records) == bytes(log.file.data)
    assert not sent


async def test_a_reader_that_stops_reading_is_sent_the_rest_in_order_when_it_reads_on(start, connect, tmp_path, sent):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 12)
    client.writer.transport.pause_reading()
    for _ in range(3):
        send(client, 12, request(ASKED))
        client.send(ApiKey.API_VERSIONS, 3, HELLO)
    connection = await until_full(bench)
    assert connection.waits_for_peer
    assert connection._transport.get_write_buffer_size() == 0
    client.writer.transport.resume_reading()
    for _ in range(3):
        assert bytes(only((await client.answer(FETCH, 12))[1]).records) == bytes(log.file.data)
        assert (await client.answer(ApiKey.API_VERSIONS, 3))[1].error_code == 0
    assert sent
    assert log.handle.users == 0


async def test_many_slow_readers_of_one_file_get_all_of_it(start, connect, tmp_path, sent):
    bench = await start()
    first = await connect(bench)
    log = await on_disk(first, bench, tmp_path / "log", *[900_000] * 6)
    clients = [first] + [await connect(bench) for _ in range(24)]
    for client in clients:
        client.writer.transport.pause_reading()
        send(client, 12, request(ASKED))
    await until(
        lambda: sum(one._sending is not None and one._sending.full for one in bench.server._connections) == 25,
        pause_s=0,
    )
    for client in clients:
        client.writer.transport.resume_reading()
    for client in clients:
        assert bytes(only((await client.answer(FETCH, 12))[1]).records) == bytes(log.file.data)
    assert log.handle.users == 0


async def test_other_connections_get_their_turn_while_one_is_sent_much(start, connect, tmp_path, sent, monkeypatch):
    at_once: list[int] = []
    send_burst = sending.Sending.send_burst

    def counted(self: sending.Sending) -> None:
        before = sum(sent)
        send_burst(self)
        at_once.append(sum(sent) - before)

    monkeypatch.setattr(sending.Sending, "send_burst", counted)
    monkeypatch.setattr(sending, "SEND_BURST_BYTES", 1 << 20)
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 12)
    assert bytes(only(await ask(client, 12, request(ASKED))).records) == bytes(log.file.data)
    assert max(at_once) <= (1 << 20) + sending.SEND_BYTES


async def test_what_is_not_cached_is_not_sent_by_reference(start, connect, tmp_path, sent, monkeypatch):
    monkeypatch.setattr(files.PosixFile, "is_cached", lambda *_: False)
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 900_000)
    assert bytes(only(await ask(client, 12, request(ASKED))).records) == bytes(log.file.data)
    assert not sent


async def test_what_may_be_written_over_is_copied(start, connect, tmp_path, sent):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 900_000)
    size, end = len(log.file.data), log.log_end_offset
    in_cache = RemoteRange(log.handle, 0, size, 0, end)
    assert not in_cache.lasting
    bench.remote.answers[0] = RemoteRead([in_cache], size, end, [])
    log.local_log_start_offset = end
    assert bytes(only(await ask(client, 12, request(ASKED))).records) == bytes(log.file.data)
    assert not sent


async def test_a_file_system_without_sendfile_is_copied_from(start, connect, tmp_path, monkeypatch):
    tried = []

    def refused(*arguments: int) -> int:
        tried.append(arguments)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(outlet.os, "sendfile", refused)
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 900_000)
    for _ in range(2):
        assert bytes(only(await ask(client, 12, request(ASKED))).records) == bytes(log.file.data)
    assert len(tried) == 1


@pytest.mark.parametrize("cut_to", [0, 1_000_000])
async def test_a_file_cut_while_it_is_sent_closes_the_connection(start, connect, tmp_path, sent, cut_to):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 30)
    client.writer.transport.pause_reading()
    send(client, 12, request(ASKED))
    await until_full(bench)
    os.truncate(tmp_path / "log", cut_to)
    client.writer.transport.resume_reading()
    with pytest.raises(asyncio.IncompleteReadError):
        await client.frame()
    assert log.handle.users == 0
    (line,) = bench.lines
    assert "shorter" in line


async def test_a_file_that_cannot_be_read_closes_the_connection_with_one_line(start, connect, tmp_path, monkeypatch):
    def broken(*_: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(outlet.os, "sendfile", broken)
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 900_000)
    send(client, 12, request(ASKED))
    assert await client.closed()
    assert log.handle.users == 0
    (line,) = bench.lines
    assert "Input/output error" in line


async def test_a_client_that_resets_while_it_is_sent_to_leaves_nothing_behind(start, connect, tmp_path, sent):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 30)
    client.writer.transport.pause_reading()
    send(client, 12, request(ASKED))
    await until_full(bench)
    plain = client.writer.transport.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.writer.transport.abort()
    await until(lambda: not bench.server._connections, pause_s=0)
    assert log.handle.users == 0
    assert not bench.server.room_watch._callbacks
    assert not bench.lines


async def test_a_server_that_closes_gives_back_what_it_was_sending(start, connect, tmp_path, sent):
    bench = await start()
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", *[900_000] * 30)
    client.writer.transport.pause_reading()
    send(client, 12, request(ASKED))
    await until_full(bench)
    await bench.server.close()
    assert log.handle.users == 0


@pytest.mark.parametrize("believed_s", [60.0, -1.0])
async def test_a_range_is_looked_for_in_the_page_cache_once_while_its_reader_takes_it(
    start, connect, tmp_path, sent, monkeypatch, believed_s
):
    monkeypatch.setattr(sending, "CACHED_FOR_S", believed_s)
    looks: list[int] = []
    is_cached = files.PosixFile.is_cached

    def noted(self: files.PosixFile, position: int, length: int) -> bool:
        looks.append(position)
        return is_cached(self, position, length)

    monkeypatch.setattr(files.PosixFile, "is_cached", noted)
    bench = await start(socket_send_buffer_bytes=16_384)  # so that the socket never takes all at once
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 900_000)
    found = only(await ask(client, 12, request(ASKED)))
    assert bytes(found.records) == bytes(log.file.data)
    assert len(sent) > 1
    assert (len(looks) == 1) == (believed_s > 0)


@pytest.mark.parametrize("wanted", [50_000, -1])
async def test_the_send_buffer_is_as_large_as_is_set_from_the_first_file_range_on(start, connect, tmp_path, wanted):
    bench = await start(socket_send_buffer_bytes=wanted)
    client = await connect(bench)
    log = await on_disk(client, bench, tmp_path / "log", 1000, 900_000)
    first = len(only(await ask(client, 12, request(FetchPartition(0, partition_max_bytes=2000)))).records)
    way = connection_of(bench)._sending._outlet
    untouched = way._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert untouched != 2 * wanted
    assert way.piece_bytes == outlet.PIECE_BYTES
    found = only(await ask(client, 12, request(ASKED)))
    assert first < len(found.records) == len(log.file.data)
    size = way._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    if wanted < 0:
        assert size >= untouched
        assert way.piece_bytes == outlet.PIECE_BYTES
    else:
        assert size == 2 * outlet.FEW_READERS * wanted == way.piece_bytes
    # Copied from here on, in pieces that there is room for.
    way.takes_files = False
    assert only(await ask(client, 12, request(ASKED))).records == found.records


async def test_many_readers_have_smaller_send_buffers_than_a_few(start, connect, tmp_path):
    wanted = 50_000
    bench = await start(socket_send_buffer_bytes=wanted)
    clients = [await connect(bench) for _ in range(outlet.FEW_READERS + 1)]
    await on_disk(clients[0], bench, tmp_path / "log", 900_000)

    async def sizes(readers: int) -> set[int]:
        """Of the connections of so many clients, after each was sent a range."""
        for client in clients[:readers]:
            only(await ask(client, 12, request(ASKED)))
        ways = [one._sending._outlet for one in bench.server._connections if one._sending is not None]
        sockets = [way._socket for way in ways if way._buffer_bytes != outlet.KERNELS_CHOICE]
        return {one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2 for one in sockets}

    assert await sizes(1) == {4 * wanted}
    await sizes(2)
    assert await sizes(2) == {2 * wanted}
    await sizes(5)
    assert await sizes(5) == {wanted}
    for client in clients[1:]:
        client.writer.transport.abort()
    await until(lambda: len(bench.server._connections) == 1, pause_s=0)
    assert await sizes(1) == {4 * wanted}
