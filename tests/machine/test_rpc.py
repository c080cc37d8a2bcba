"""Calls over a real socket pair: errors, cancellation, ends of the stream, backpressure, and bytes that make no sense."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import errors
from app.core.errors import ErrorCode, FirnError, LimitExceeded, ProtocolError, RequestRejected, StorageUnavailable
from app.machine import rpc
from app.machine.rpc import Handler, RpcClient, RpcServer
from app.objectstore import health, proxy
from app.objectstore.api import ObjectMissing
from app.objectstore.memory import MemoryStore
from app.objectstore.proxy import StoreProxy, store_handlers
from tests.support.cycles import kept_in_cycles


@contextlib.asynccontextmanager
async def connected(handlers: Mapping[str, Handler]) -> AsyncIterator[tuple[RpcClient, RpcServer, asyncio.Task[None]]]:
    ours, theirs = socket.socketpair()
    server, client = RpcServer(handlers), RpcClient()
    task = asyncio.create_task(server.serve(theirs))
    await client.connect(ours)
    try:
        yield client, server, task
    finally:
        await client.close()
        if not task.done():
            await server.closed.wait()
        await asyncio.gather(task, return_exceptions=True)


LIST_OF_ONE = msgspec.msgpack.encode(["a/", "", 1])


async def echo(payload: bytes) -> bytes:
    return payload


async def hang(payload: bytes) -> bytes:
    return await asyncio.get_running_loop().create_future()


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run on asyncio's own loop and on uvloop, whose transports behave differently at the edges."""

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def run(loop: str) -> None:
        factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(test(), 30))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@on_both_loops
async def test_answers_belong_to_their_calls_in_whatever_order_they_come() -> None:
    gates = {number: asyncio.Event() for number in range(20)}

    async def gated(payload: bytes) -> bytes:
        await gates[payload[0]].wait()
        return payload * 3

    async with connected({"gated": gated}) as (client, _, _):
        calls = [asyncio.create_task(client.call("gated", bytes([number]))) for number in range(20)]
        for number in reversed(range(20)):
            gates[number].set()
            assert await calls[number] == bytes([number]) * 3


@on_both_loops
async def test_payloads_of_any_size_arrive_whole() -> None:
    async with connected({"echo": echo}) as (client, _, _):
        sizes = [0, 1, 1000, 262_000, 262_144, 300_000, 5_000_000, 20_000_000]
        payloads = [bytes([size % 251]) * size for size in sizes]
        answers = await asyncio.gather(*(client.call("echo", payload, 25) for payload in payloads * 2))
        assert answers == payloads * 2


@on_both_loops
async def test_a_lost_server_fails_every_call_and_a_new_socket_resumes_service() -> None:
    async with connected({"hang": hang}) as (client, _, task):
        calls = [asyncio.create_task(client.call("hang")) for _ in range(10)]
        await asyncio.sleep(0)
        task.cancel()
        for call in calls:
            with pytest.raises(StorageUnavailable, match="undecided"):
                await call
        while client.connected:
            await asyncio.sleep(0)
        with pytest.raises(StorageUnavailable):
            await client.call("hang")

        ours, theirs = socket.socketpair()
        server = RpcServer({"echo": echo})
        again = asyncio.create_task(server.serve(theirs))
        await client.connect(ours)
        assert client.connected
        assert await client.call("echo", b"back") == b"back"
        await client.close()
        await again
        assert server.closed.is_set()


@on_both_loops
async def test_a_lost_client_cancels_what_the_server_does_and_ends_it() -> None:
    cancelled = []

    async def noted(payload: bytes) -> bytes:
        try:
            return await hang(payload)
        except asyncio.CancelledError:
            cancelled.append(payload)
            raise

    async with connected({"noted": noted, "echo": echo}) as (client, server, task):
        call = asyncio.create_task(client.call("noted", b"1"))
        await client.call("echo")
        await client.close()
        with pytest.raises(StorageUnavailable):
            await call
        await task
        assert server.closed.is_set()
        assert cancelled == [b"1"]


@on_both_loops
async def test_a_call_that_times_out_is_undecided_and_stops_on_the_other_side() -> None:
    stopped = asyncio.Event()

    async def noted(payload: bytes) -> bytes:
        try:
            return await hang(payload)
        finally:
            stopped.set()

    async with connected({"noted": noted, "echo": echo}) as (client, _, _):
        with pytest.raises(StorageUnavailable, match="no answer"):
            await client.call("noted", b"", 0.01)
        await stopped.wait()
        assert await client.call("echo", b"still there") == b"still there"


@on_both_loops
async def test_calls_beyond_the_limit_wait_in_order() -> None:
    gate = asyncio.Event()
    started: list[int] = []

    async def gated(payload: bytes) -> bytes:
        started.append(int.from_bytes(payload[:2], "big"))
        await gate.wait()
        return b""

    big = 20 * 1024 * 1024  # three fit
    async with connected({"gated": gated, "echo": echo}) as (client, _, _):
        calls = [asyncio.create_task(client.call("gated", n.to_bytes(2, "big") + bytes(big))) for n in range(6)]
        while len(started) < 3:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert started == [0, 1, 2]
        calls[3].cancel()
        gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert started == [0, 1, 2, 4, 5]
        assert [type(result) for result in results] == [bytes, bytes, bytes, asyncio.CancelledError, bytes, bytes]


@on_both_loops
async def test_the_number_of_calls_under_way_is_bounded() -> None:
    gate = asyncio.Event()
    running = 0
    running_max = 0

    async def gated(payload: bytes) -> bytes:
        nonlocal running, running_max
        running += 1
        running_max = max(running_max, running)
        await gate.wait()
        running -= 1
        return b""

    async with connected({"gated": gated}) as (client, _, _):
        calls = [asyncio.create_task(client.call("gated")) for _ in range(3 * rpc.CALLS_IN_FLIGHT_MAX)]
        while running < rpc.CALLS_IN_FLIGHT_MAX:
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*calls)
    assert running_max == rpc.CALLS_IN_FLIGHT_MAX


class OddError(FirnError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


async def test_errors_arrive_as_the_class_that_was_raised() -> None:
    told: list[FirnError] = [
        StorageUnavailable("away"),
        errors.StorageFull("full"),
        ObjectMissing("gone"),
        RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE, "no such offset"),
        ProtocolError("bad", ErrorCode.CORRUPT_MESSAGE),
        errors.CorruptionError("rotten"),
        OddError(1, 2),
    ]

    async def fail(payload: bytes) -> bytes:
        raise told[payload[0]]

    async with connected({"fail": fail}) as (client, _, _):
        for number, error in enumerate(told):
            with pytest.raises(FirnError) as raised:
                await client.call("fail", bytes([number]))
            assert type(raised.value) is type(error)
            assert str(raised.value) == str(error)
            assert getattr(raised.value, "code", None) == getattr(error, "code", None)


async def test_an_operating_system_error_arrives_as_storage_unavailable() -> None:
    async def fail(payload: bytes) -> bytes:
        raise OSError(5, "Input/output error")

    async with connected({"fail": fail}) as (client, _, _):
        with pytest.raises(StorageUnavailable, match="Input/output error"):
            await client.call("fail")


async def test_an_unknown_class_arrives_as_storage_unavailable_that_names_it() -> None:
    payload = rpc.encode_error(ObjectMissing("m")).replace(b"ObjectMissing", b"ObjectMissinG")
    error = rpc.decode_error(payload)
    assert type(error) is StorageUnavailable
    assert str(error) == "ObjectMissinG: m."


async def test_an_unknown_method_is_told() -> None:
    async with connected({}) as (client, _, _):
        with pytest.raises(StorageUnavailable, match="There is no method tier\\.new"):
            await client.call("tier.new")


async def test_a_bug_in_a_handler_ends_the_server_and_fails_its_calls() -> None:
    async def buggy(payload: bytes) -> bytes:
        raise AssertionError("our own bug")

    async with connected({"buggy": buggy, "hang": hang}) as (client, server, task):
        other = asyncio.create_task(client.call("hang"))
        with pytest.raises(StorageUnavailable):
            await client.call("buggy")
        with pytest.raises(StorageUnavailable):
            await other
        with pytest.raises(ExceptionGroup) as raised:
            await task
        assert raised.group_contains(AssertionError)
        assert server.closed.is_set()


async def test_what_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "FRAME_BYTES_MAX", 1000)

    async def large(payload: bytes) -> bytes:
        return bytes(2000)

    async with connected({"large": large, "echo": echo}) as (client, _, _):
        with pytest.raises(LimitExceeded):
            await client.call("echo", bytes(2000))
        with pytest.raises(LimitExceeded):
            await client.call("large")
        assert await client.call("echo", b"x") == b"x"


async def test_a_call_before_the_first_connection_is_told() -> None:
    with pytest.raises(StorageUnavailable, match="store process is not running"):
        await RpcClient().call("echo")


@pytest.mark.parametrize(
    "junk",
    [b"\0\0\0\0", b"\0\0\0\x08" + bytes(8), b"\xff\xff\xff\xff", b"\0\0\0\x09" + bytes(8) + b"\x09"],
    ids=["empty frame", "shorter than a header", "larger than any", "of no kind"],
)
async def test_bytes_that_are_no_frame_end_the_connection(junk: bytes) -> None:
    ours, theirs = socket.socketpair()
    task = asyncio.create_task(RpcServer({}).serve(theirs))
    ours.sendall(junk)
    with pytest.raises(ProtocolError):
        await task
    ours.close()

    ours, theirs = socket.socketpair()
    client = RpcClient()
    await client.connect(ours)
    call = asyncio.create_task(client.call("anything"))
    await asyncio.sleep(0)
    theirs.sendall(junk)
    with pytest.raises(StorageUnavailable):
        await call
    theirs.close()
    await client.close()


@settings(max_examples=40, deadline=None)
@given(frames=st.lists(st.binary(max_size=400), max_size=8), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_frames_are_the_same_however_the_stream_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    async def main() -> None:
        seen: list[tuple[int, int, bytes]] = []

        class Recorder(rpc._FrameProtocol):
            def frame_received(self, call_id: int, kind: int, payload: bytes) -> None:
                seen.append((call_id, kind, payload))

        protocol = Recorder()
        stream = b"".join(rpc._HEADER.pack(9 + len(data), number, 1) + data for number, data in enumerate(frames))
        position = turn = 0
        while position < len(stream):
            piece = stream[position : position + cuts[turn % len(cuts)]]
            buffer = protocol.get_buffer(-1)
            piece = piece[: len(buffer)]
            buffer[: len(piece)] = piece
            protocol.buffer_updated(len(piece))
            position += len(piece)
            turn += 1
        assert seen == [(number, 1, data) for number, data in enumerate(frames)]

    receive_bytes = rpc._RECEIVE_BYTES
    rpc._RECEIVE_BYTES = 64  # so that many frames are larger than the buffer
    try:
        asyncio.run(main())
    finally:
        rpc._RECEIVE_BYTES = receive_bytes


def test_a_child_process_ends_with_its_parents_socket() -> None:
    script = (
        "import asyncio, socket, sys\n"
        "from app.objectstore.memory import MemoryStore\n"
        "from app.objectstore.proxy import store_handlers\n"
        "from app.machine.rpc import RpcServer\n"
        "sock = socket.socket(fileno=int(sys.argv[1]))\n"
        "asyncio.run(RpcServer(store_handlers(MemoryStore())).serve(sock))\n"
    )
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).parents[2],
    )
    theirs.close()

    async def main() -> None:
        client = RpcClient()
        await client.connect(ours)
        store = StoreProxy(client)
        await store.put("k", b"over there")
        assert await store.get("k") == b"over there"
        await client.close()

    asyncio.run(main())
    assert child.wait(timeout=30) == 0


@pytest.mark.parametrize("asks", ["get", "list_objects"])
async def test_a_store_that_is_slow_with_one_request_is_asked_for_something_small(
    monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    for module in (proxy, health):
        monkeypatch.setattr(module, "PROBE_S", 0.0)
    probed = asyncio.Event()
    probes: list[bytes] = []

    async def small(payload: bytes) -> bytes:
        probes.append(bytes(payload))
        probed.set()
        return b"\x90"

    async def big_list(payload: bytes) -> bytes:
        return await (small(payload) if payload == LIST_OF_ONE else hang(payload))

    handlers = {"store.get": hang, "store.head": small, "store.list_objects": big_list}
    async with connected(handlers) as (client, _, _):
        store = StoreProxy(client)
        slow = asyncio.ensure_future(store.get("a/k") if asks == "get" else store.list_objects("a/"))
        await probed.wait()
        await store.close()
        slow.cancel()
        await asyncio.wait([slow])
    assert probes[0] == (b"a/k" if asks == "get" else LIST_OF_ONE)
    assert store.health.trouble() == ""


async def test_an_upload_of_a_restarted_store_process_is_gone() -> None:
    store = MemoryStore()
    async with connected(store_handlers(store)) as (client, _, _):
        upload = await StoreProxy(client).begin_upload("k")
        await upload.put_part(1, b"x")
        done = await StoreProxy(client).begin_upload("done")
        await done.put_part(1, b"x")
        await done.complete()

        ours, theirs = socket.socketpair()
        again = asyncio.create_task(RpcServer(store_handlers(store)).serve(theirs))
        await client.connect(ours)
        with pytest.raises(ObjectMissing):
            await upload.put_part(2, b"y")
        with pytest.raises(ObjectMissing):
            await upload.complete()
        with pytest.raises(errors.FirnError, match="exists"):
            await done.complete()
        await upload.abort()
        assert await StoreProxy(client).list_uploads("") == []
        await client.close()
        await again


@pytest.mark.ci
async def test_a_call_that_fails_keeps_nothing_of_what_it_carried_until_a_garbage_collection() -> None:
    async def refuse(payload: bytes) -> bytes:
        raise StorageUnavailable("the store is away")

    async with connected({"refuse": refuse}) as (client, _, _):

        async def call() -> None:
            try:
                await client.call("refuse", bytes(1000))
            except StorageUnavailable:
                return
            raise AssertionError("refused")

        assert await kept_in_cycles(call) == []
