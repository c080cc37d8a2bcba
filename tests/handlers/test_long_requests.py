"""What a request of more than ``LONG_FRAME_BYTES`` costs: its client's share of time, and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.handlers.base.api import Api
from app.handlers.base.context import Context
from app.handlers.base.portions import LONG_FRAME_BYTES
from app.handlers.base.request import Request
from app.handlers.fetch import fetch
from app.handlers.fetch.attempts import Attempt
from app.handlers.policy.callers import ANONYMOUS, Caller, Rights
from app.handlers.policy.client_quotas import ClientQuotas
from app.handlers.produce import produce
from app.handlers.produce.produce import MANY_PARTITIONS
from app.metadata.image.records import LEVEL_MAX, QuotaEntity
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from app.wire.bounds import BYTES_MAX
from app.wire.framing import request_frame
from tests.handlers.conversation import batch

LONG = DeleteGroupsRequest(["x" * 100 for _ in range(100)])


class Handler:
    """Answers after one wait, and takes 0.5 s before it and 0.25 s after it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waits = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def handle(self, context: Context, request: Request, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
        assert len(message.groups_names) == len(LONG.groups_names)
        self.now_s += 0.5
        self.waits.set()
        await self.goes_on.wait()
        self.now_s += 0.25
        return DeleteGroupsResponse()


def answered_by(handler: Handler, bench: Any) -> Handler:
    bench.server.apis = {**bench.server.apis, ApiKey.DELETE_GROUPS: Api(handler.handle, pytest.fail)}
    return handler


async def test_each_step_of_a_long_request_is_of_its_clients_share_of_time(
    start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]]
) -> None:
    bench = await start()
    handler = answered_by(Handler(), bench)
    quotas = ClientQuotas(bench.context.config, lambda: handler.now_s)
    quotas.follow({QuotaEntity("ANONYMOUS", None, None): {"request_percentage": 10.0}})
    bench.context.quotas = quotas
    time = quotas.shares_of(Caller(Rights(ANONYMOUS)), "test").time
    client = await connect(bench)
    client.send(ApiKey.DELETE_GROUPS, 2, LONG)
    await handler.waits.wait()
    assert time.balance(handler.now_s) == pytest.approx(0.1 - 0.5)
    handler.now_s += 1  # others are served
    handler.goes_on.set()
    await client.answer(ApiKey.DELETE_GROUPS, 2)
    assert time.balance(handler.now_s) == pytest.approx(0.1 - 0.5 + 0.125 - 0.25)


def timed(bench: Any) -> tuple[Handler, Any]:
    """A clock, and the bucket of the clients' time by it: a tenth of a second is in it."""
    clock = Handler()
    quotas = ClientQuotas(bench.context.config, lambda: clock.now_s)
    quotas.follow({QuotaEntity("ANONYMOUS", None, None): {"request_percentage": 10.0}})
    bench.context.quotas = quotas
    return clock, quotas.shares_of(Caller(Rights(ANONYMOUS)), "test").time


async def test_all_portions_of_a_long_produce_are_of_its_clients_share_of_time(
    start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start()
    count = 2 * MANY_PARTITIONS
    for index in range(count):
        bench.logs.add("many", index)
    clock, time = timed(bench)
    check_produced = produce.check_produced

    def check(*arguments: Any) -> Any:
        clock.now_s += 0.0625
        return check_produced(*arguments)

    monkeypatch.setattr(produce, "check_produced", check)
    client = await connect(bench)
    answer = await client.produce(9, [("many", [(index, batch(1)) for index in range(count)])])
    assert not any(one.error_code for one in answer.responses[0].partition_responses)
    spent_s = 0.0625 * count
    assert time.balance(clock.now_s) == pytest.approx(0.1 - 0.95 * spent_s, abs=0.05 * spent_s + 0.001)


@pytest.mark.parametrize("is_follower", [False, True])
async def test_a_long_fetch_is_of_its_clients_share_of_time_and_a_followers_is_not(
    start: Callable[..., Awaitable[Any]],
    connect: Callable[..., Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
    is_follower: bool,
) -> None:
    bench = await start()
    replica_id = -1
    if is_follower:
        replica_id, image = 2, bench.context.image
        image.level, image.brokers = LEVEL_MAX, {replica_id: SimpleNamespace(broker_epoch=-1)}
    clock, time = timed(bench)
    decode_fetch, look_at = fetch.decode_fetch, Attempt.look_at

    def decode(*arguments: Any) -> Any:
        clock.now_s += 1
        return decode_fetch(*arguments)

    def look_longer(*arguments: Any) -> None:
        clock.now_s += 1
        look_at(*arguments)

    monkeypatch.setattr(fetch, "decode_fetch", decode)
    monkeypatch.setattr(Attempt, "look_at", look_longer)
    client = await connect(bench)
    wanted = [FetchPartition(index, -1, 0, -1, -1, 1 << 20) for index in range(fetch.LONG_FRAME_BYTES // 16)]
    asked = FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="t", partitions=wanted)]
    )
    began_s = clock.now_s
    await client.ask(ApiKey.FETCH, 11, asked)
    spent_s = clock.now_s - began_s
    assert spent_s >= 2
    left_s = 0.1 if is_follower else 0.1 - spent_s
    assert time.balance(clock.now_s) == pytest.approx(left_s, abs=0.1 * spent_s + 0.001)


async def test_the_bytes_of_a_long_request_are_counted_until_it_is_answered(
    start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]]
) -> None:
    bench = await start()
    handler = answered_by(Handler(), bench)
    client = await connect(bench)
    client.send(ApiKey.DELETE_GROUPS, 2, LONG)
    await handler.waits.wait()
    size_bytes = len(request_frame(ApiKey.DELETE_GROUPS, 2, 1, "test", LONG)) - 4
    assert bench.server.frames.bytes == size_bytes
    handler.goes_on.set()
    await client.answer(ApiKey.DELETE_GROUPS, 2)
    assert bench.server.frames.bytes == 0


async def test_assignments_that_are_too_long_for_a_request_are_refused_and_the_connection_goes_on(
    start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]]
) -> None:
    bench = await start()
    client = await connect(bench)
    assignments = [SyncGroupRequestAssignment("m", b"x" * BYTES_MAX)]
    refused = await client.ask(ApiKey.SYNC_GROUP, 5, SyncGroupRequest("g", 1, "m", assignments=assignments))
    assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    told = [line for line in bench.lines if "API key 14" in line]
    assert len(told) == 1, bench.lines
    client.send(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("test", "1"))
    _, answer = await client.answer(ApiKey.API_VERSIONS, 3)
    assert answer.error_code == ErrorCode.NONE


async def test_the_bytes_of_a_long_request_are_given_back_when_its_task_never_begins(
    start: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]]
) -> None:
    bench = await start()
    handler = answered_by(Handler(), bench)
    spawn, frames = bench.server.spawn, bench.server.frames
    spawned: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def spawn_and_stop(*how: Any) -> None:
        before = asyncio.all_tasks()
        spawn(*how)
        (task,) = asyncio.all_tasks() - before
        task.cancel()
        spawned.set_result(frames.bytes)

    bench.server.spawn = spawn_and_stop
    client = await connect(bench)
    client.send(ApiKey.DELETE_GROUPS, 2, LONG)
    assert await spawned > LONG_FRAME_BYTES
    await bench.server.close()
    assert frames.bytes == 0
    assert not handler.waits.is_set()
