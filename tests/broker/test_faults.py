"""Of what goes wrong an operator reads: once when it begins, and not once for each request."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.broker.start.late_tls import UVLOOP_TLS_FAILED
from app.broker.start.process import Broker
from app.configs import BrokerConfig
from app.core.errors import CorruptionError, ErrorCode, StorageFull, StorageUnavailable
from app.core.faults import LIMITED_LINES_MAX
from app.hot.log import PartitionLog
from app.machine.files import PosixFile, PosixFileSystem
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.transport.connection import BROKEN_TOLD
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, produce_one, talk
from tests.support import cluster_process
from tests.support.broker import RunningBroker, running_broker

FETCH = 1
LIST_OFFSETS = 2
INCREMENTAL_ALTER_CONFIGS = 44


async def told(broker: RunningBroker, what: str) -> list[str]:
    """The lines that speak of ``what``, once there is one."""
    async with asyncio.timeout(60):
        while not (found := [line for line in broker.lines if what in line]):
            await asyncio.sleep(0.002)
    return found


async def fetch(client: Talk) -> ErrorCode:
    client.correlation_id += 1
    request = FetchRequest(max_wait_ms=0, topics=[("t", [FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)])])
    client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request))
    _, answer = await client.answer(FETCH, 12)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


async def test_a_full_disk_is_told_once_for_all_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        assert await produce_one(client) is ErrorCode.NONE
        monkeypatch.setattr(PartitionLog, "append_as_leader", full)
        for _ in range(50):
            assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await told(broker, "t-0") == ["writing t-0 fails: cannot write /data/t-0/0.log: No space left on device"]


def full(*_: object, **__: object) -> None:
    raise StorageFull("cannot write /data/t-0/0.log: No space left on device")


def damaged(*_: object, **__: object) -> None:
    raise CorruptionError("/data/t-0/0.log has no record batch at position 7")


async def test_a_damaged_segment_is_told_once_for_all_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        assert await produce_one(client) is ErrorCode.NONE
        monkeypatch.setattr(PartitionLog, "plan_read", damaged)
        monkeypatch.setattr(PartitionLog, "offset_for_timestamp", damaged)
        for _ in range(50):
            assert await fetch(client) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await told(broker, "reading t-0") == [
            "reading t-0 fails: /data/t-0/0.log has no record batch at position 7"
        ]
        asked = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=5)])]
        )
        for _ in range(5):
            await client.ask(LIST_OFFSETS, 5, asked)
        assert len(await told(broker, "searching by time in t-0")) == 1


async def test_a_disk_that_cannot_sync_is_told_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1", firn_durability="disk")
        assert await produce_one(client) is ErrorCode.NONE
        monkeypatch.setattr(PosixFile, "fdatasync", failing(5))
        for _ in range(20):
            assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
        (line,) = await told(broker, "is offline")
        assert line.startswith(f"the log directory {tmp_path}/data is offline: cannot sync ")
        assert line.endswith("repair the disk and start the broker again")
        monkeypatch.undo()


async def test_a_broker_tells_unasked_that_a_fault_is_over_and_that_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.faults.LOOK_S", 0.001)
    monkeypatch.setattr("app.core.faults.QUIET_S", 0.01)
    monkeypatch.setattr("app.core.faults.REPEAT_FIRST_S", 0.01)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1", firn_durability="disk")
        with monkeypatch.context() as broken:
            broken.setattr(PartitionLog, "append_as_leader", full)
            assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await told(broker, "over after") == ["over after 0 s: writing t-0 failed once"]
        assert await produce_one(client) is ErrorCode.NONE
        monkeypatch.setattr(PosixFile, "fdatasync", failing(5))
        assert await produce_one(client) is ErrorCode.KAFKA_STORAGE_ERROR
        again = (await told(broker, "it goes on"))[0]
        assert again.startswith(f"the log directory {tmp_path}/data is offline: cannot sync ")
        assert re.search(r" \(once in \d+ s; it goes on\)$", again)
        monkeypatch.undo()


@pytest.mark.ci
async def test_a_store_that_takes_no_segment_is_told_once_for_each_partition(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1", segment_bytes="1048576", remote_storage_enable="true")
        store.faults.append(Fault(FaultKind.UNAVAILABLE, key_prefix="data/"))
        store.faults.append(Fault(FaultKind.UNAVAILABLE, key_prefix="manifests/"))
        assert await produce_one(client) is ErrorCode.NONE
        broker.log("t").roll()
        broker.node.remote_log_manager.kick()
        (line,) = await told(broker, "cannot be tiered")
        assert line.startswith("t-0 cannot be tiered, will try again: ")
        failures = broker.node.registry

        def failed() -> float:
            return sum(one.value for one in failures.samples() if one.name == "firn_tier_failures_total")

        async with asyncio.timeout(60):
            while failed() < 3:
                broker.node.remote_log_manager.kick()
                await asyncio.sleep(0.002)
        assert await told(broker, "cannot be tiered") == [line]
        store.faults.clear()


async def test_frames_that_nobody_understands_are_told_a_few_times_for_each_host(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        before = len(broker.lines)
        for _ in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"\x7f\xff\xff\xff" + bytes(20))
            writer.close()
            await writer.wait_closed()
        broken = broker.node.server.connection_metrics.broken
        async with asyncio.timeout(60):
            while broken.value < 60:
                await asyncio.sleep(0.002)
        assert len([line for line in broker.lines[before:] if "closing the connection" in line]) == BROKEN_TOLD


async def test_a_disk_that_does_not_say_what_room_it_has_is_told_once_and_the_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def fail(*_: object) -> int:
        asked.append(1)
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("app.broker.watching.room.ROOM_CHECK_S", 0.001)
    async with running_broker(tmp_path, firn_log_dir_free_bytes_min=1) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        monkeypatch.setattr(PosixFileSystem, "free_bytes", fail)
        async with asyncio.timeout(60):
            while len(asked) < 5:
                await asyncio.sleep(0.001)
        assert await produce_one(client) is ErrorCode.NONE
        (line,) = await told(broker, "reading the free space of")
        assert line.endswith(f"Cannot read the free space of {tmp_path}/data: {os.strerror(5)}.")
        monkeypatch.undo()


async def test_settings_that_mean_nothing_are_told_a_few_times_however_often_clients_send_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        entry = AlterableConfig("sasl.kerberos.min.time.before.relogin", 0, "60000")
        asked = IncrementalAlterConfigsRequest([AlterConfigsResource(4, "1", [entry])])
        for _ in range(LIMITED_LINES_MAX + 10):
            answer = await client.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked)
            assert answer.responses[0].error_code == 0
        assert len([line for line in broker.lines if "mean nothing here" in line]) == LIMITED_LINES_MAX


async def test_a_broker_that_cannot_accept_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptors(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with running_broker(tmp_path, max_connections=16) as broker:
        clients = []
        for _ in range(16):
            clients.append(await asyncio.open_connection("127.0.0.1", broker.port))
        full = broker.node.server.connection_metrics.accepting_stopped
        async with asyncio.timeout(60):
            while not full.value:
                await asyncio.sleep(0.001)
        with monkeypatch.context() as broken:
            broken.setattr("app.transport.listener.RETRY_S", 0.01)
            broken.setattr(socket.socket, "dup", no_descriptors)
            for _, writer in clients:
                writer.close()
            (line,) = await told(broker, "no connections are accepted")
        assert line == f"no connections are accepted for now, will try again: {os.strerror(errno.EMFILE)}"
        async with asyncio.timeout(60), talk(broker.port) as client:
            await broker.create_topic("t", retention_ms="-1")
            assert await produce_one(client) is ErrorCode.NONE


def left_over(message: str, *, ended: bool) -> dict[str, Any]:
    """As uvloop 0.23 says it when another broker is killed in the middle of an answer, or of the end of a connection."""

    class Ended(asyncio.Transport):
        def is_closing(self) -> bool:
            return ended

    closed = RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
    return {"message": message, "exception": closed, "transport": Ended()}


@pytest.mark.parametrize("message", sorted(UVLOOP_TLS_FAILED))
@pytest.mark.parametrize("ended", [False, True])
async def test_bytes_of_tls_that_are_left_for_a_connection_that_has_ended_are_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ended: bool, message: str
) -> None:
    lines: list[str] = []
    broker = Broker(BrokerConfig(data_dir=str(tmp_path)), log_line=lines.append)
    broker.tell_bug(asyncio.get_running_loop(), left_over(message, ended=ended))
    assert bool(lines) is not ended
    assert bool(caplog.records) is not ended


async def raised_of_closed() -> RuntimeError:
    """What uvloop raises where it writes to a closed connection, without frames of those who had it write."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    server.close()
    transport.abort()
    error = None
    while error is None:
        await asyncio.sleep(0)
        try:
            transport.write(b"x")
        except RuntimeError as found:
            error = found
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


@pytest.mark.parametrize("ours", [False, True])
async def test_bytes_of_a_handshake_that_was_given_up_when_it_ended_are_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: bool
) -> None:
    """A busy process meets both in one turn of its loop: then uvloop never calls the connection closing."""
    lines: list[str] = []
    broker = Broker(BrokerConfig(data_dir=str(tmp_path)), log_line=lines.append)
    error: RuntimeError = await raised_of_closed()
    if ours:
        with pytest.raises(RuntimeError) as raised:
            raise error
        error = raised.value
    context = left_over("Fatal error on SSL protocol", ended=False) | {"exception": error}
    broker.tell_bug(asyncio.get_running_loop(), context)
    assert bool(lines) is ours
    assert bool(caplog.records) is ours


@pytest.mark.parametrize("ended", [False, True])
async def test_broker_processes_of_tests_print_no_traceback_of_such_bytes_from_their_start_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    async def end(self: DirectoryStore) -> None:
        asyncio.get_running_loop().call_exception_handler(left_over("Fatal error on SSL protocol", ended=ended))
        raise StorageUnavailable("the start ends here")

    monkeypatch.setattr(DirectoryStore, "open", end)
    with pytest.raises(StorageUnavailable):
        await cluster_process.serve(tmp_path, 1, 0, {})
    assert bool(caplog.records) is not ended


@pytest.mark.parametrize("file", ["uvloop/sslproto.pyx", "app/broker/start/process.py"])
async def test_a_handshake_that_fails_after_it_was_given_up_is_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    lines: list[str] = []
    broker = Broker(BrokerConfig(data_dir=str(tmp_path)), log_line=lines.append)
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    future.cancel()
    with pytest.raises(ConnectionResetError) as raised:
        exec(compile("raise ConnectionResetError", file, "exec"))
    context = {"message": "Future exception was never retrieved", "exception": raised.value, "future": future}
    broker.tell_bug(loop, context)
    told = not file.startswith("uvloop")
    assert bool(lines) is told
    assert bool(caplog.records) is told


async def test_a_bug_that_clients_can_meet_has_its_traceback_shown_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    broker = Broker(BrokerConfig(data_dir=str(tmp_path)), log_line=lines.append)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(broker.tell_bug)

    def bug() -> None:
        raise AssertionError("cannot be")

    for _ in range(20):
        loop.call_soon(bug)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (line,) = lines
    assert line.startswith("internal error, please report it: ")
    assert line.endswith("AssertionError('cannot be')")
    assert len(caplog.records) == 1
