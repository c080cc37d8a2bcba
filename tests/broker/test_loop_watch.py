"""The line that names what made the event loop stand still."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.broker.watching import loop_watch
from app.broker.watching.loop_watch import QUIET_LOOKS, Clocks, LoopWatch, Stall, Watched, sentence_of
from app.core.turns import slices
from app.handlers.base.api import Api
from app.handlers.clients.serving import in_words, told
from app.machine.cpu_alarm import CpuAlarm
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.handlers.conversation import talk
from tests.support.broker import running_broker

LIMIT_S = 0.05


def at(now_s: float, cpu_s: float, starved_s: float = 0.0) -> Clocks:
    return Clocks(now_s, cpu_s, starved_s)


# --- what is a stall ------------------------------------------------------------------------------------------------


def test_an_idle_loop_is_not_asked_for_a_sign() -> None:
    watched = Watched(LIMIT_S)
    assert not watched.looks(at(1.0, 0.5), idle=True)
    assert watched.looks(at(1.025, 0.525), idle=False)
    assert not watched.looks(at(1.05, 0.55), idle=False)  # a sign is on its way


@pytest.mark.parametrize(
    ("asked", "turned", "stall_ms"),
    [
        (at(1.025, 0.5), at(1.070, 0.545), None),  # 45 ms
        (at(1.025, 0.5), at(1.085, 0.560), 60),
        (at(1.025, 0.52), at(1.065, 0.56), 60),  # 20 ms of CPU before it was asked
        (at(1.025, 0.5), at(1.225, 0.51), 200),  # it waited for a disk
        (at(1.025, 0.5), at(1.225, 0.51, 0.18), None),  # the machine gave it no processor
        (at(1.025, 0.5), at(1.225, 0.6, 0.09), 200),
    ],
)
def test_a_stall_is_longer_than_the_limit_without_time_that_the_machine_took(
    asked: Clocks, turned: Clocks, stall_ms: int | None
) -> None:
    watched = Watched(LIMIT_S)
    watched.looks(at(1.0, 0.5), idle=True)
    watched.looks(asked, idle=False)
    found = watched.turned(turned)
    assert (None if found is None else round(found[0] * 1000)) == stall_ms


def test_many_short_turns_one_after_the_other_are_no_stall() -> None:
    watched, now_s = Watched(LIMIT_S), 1.0
    watched.looks(at(now_s, now_s), idle=True)
    for _ in range(100):
        now_s += 0.025
        assert watched.looks(at(now_s, now_s), idle=False)
        now_s += 0.001
        assert watched.turned(at(now_s, now_s)) is None


def test_what_the_loop_does_is_noted_once_half_the_limit_is_over() -> None:
    watched = Watched(LIMIT_S)
    watched.looks(at(1.0, 0.5), idle=True)
    watched.looks(at(1.025, 0.5), idle=False)
    assert not watched.is_late(1.045)
    assert watched.is_late(1.051)


def test_the_watch_rests_once_the_loop_was_quiet_for_some_looks_and_no_longer_than_that() -> None:
    watched = Watched(LIMIT_S)
    watched.looks(at(1.0, 0.5), idle=True)
    for look in range(1, QUIET_LOOKS + 1):
        assert not watched.rests
        watched.looks(at(1.0 + look * 0.025, 0.5 + look * 0.0001), idle=True)  # it has its timers
    assert watched.rests
    now = at(2.0, 0.52)
    watched.looks(now, idle=True)
    assert not watched.rests
    for look in range(1, QUIET_LOOKS + 1):
        watched.looks(at(now.now_s + look * 0.025, now.cpu_s), idle=True)
    assert watched.rests
    watched.looks(at(3.0, now.cpu_s), idle=False)
    assert not watched.rests


def test_an_alarm_ends_the_wait_for_a_thread_once_it_has_taken_cpu_time() -> None:
    clock, began_s = time.pthread_getcpuclockid(threading.get_ident()), time.thread_time()
    ready, woken = threading.Event(), threading.Event()
    taken: list[float] = []

    def wait() -> None:
        mine = CpuAlarm(clock)
        ready.set()
        if mine.wait(60, 0.05):
            taken.append(time.clock_gettime(clock) - began_s)
        mine.close()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(60)
    while not woken.is_set():
        burn(0.001)
    thread.join(60)
    assert taken
    assert taken[0] >= 0.05


# --- who it was -----------------------------------------------------------------------------------------------------


def burn(cpu_s: float) -> None:
    """Take CPU time of this thread."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


async def line_with(lines: list[str], part: str) -> str:
    async with asyncio.timeout(60):
        while True:
            for line in lines:
                if part in line:
                    return line
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("waits", [False, True], ids=["within the callback", "in a later step"])
async def test_the_log_names_api_principal_client_id_and_address_of_the_request_that_held_the_loop(
    tmp_path: Path, waits: bool
) -> None:
    def handle(context: Any, request: Any, message: Any) -> Any:
        burn(0.3)
        return DescribeClusterResponse()

    async def handle_later(context: Any, request: Any, message: Any) -> Any:
        await asyncio.sleep(0)
        return handle(context, request, message)

    async with running_broker(tmp_path) as broker:
        watch = broker.node.watch_loop()
        assert watch is not None
        key = int(ApiKey.DESCRIBE_CLUSTER)
        found: Api = broker.node.server.apis[key]
        broker.node.server.apis = {key: found._replace(handle=handle_later if waits else handle)}
        async with talk(broker.port) as client:
            client.client_id = "night-job"
            await client.ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
            port = client.writer.get_extra_info("sockname")[1]
            line = await line_with(broker.lines, "DESCRIBE_CLUSTER")
        watch.stop()
        assert "The event loop stood still for" in line
        assert f"DESCRIBE_CLUSTER of User:ANONYMOUS, client id 'night-job', from 127.0.0.1:{port}" in line
        assert "ms of CPU" in line
        samples = {one[0]: one[-1] for one in broker.node.registry.samples() if "stall" in one[0]}
        assert samples["firn_loop_stalls_total"] >= 1
        assert samples["firn_loop_stalled_seconds_total"] >= 0.2


async def test_a_timer_that_holds_the_loop_is_named_by_its_function() -> None:
    told: list[Stall] = []
    watch = LoopWatch(LIMIT_S, serving=lambda: None, codes=frozenset(), tell=told.append)
    watch.start()

    class Slow(list[int]):
        def __len__(self) -> int:
            burn(0.3)
            return 0

    asyncio.get_running_loop().call_later(0.01, lambda: list(slices(Slow(), 1)))
    async with asyncio.timeout(60):
        while not told:
            await asyncio.sleep(0.01)
    watch.stop()
    assert told[0].served == ""
    assert "slices (app.core.turns" in told[0].place
    assert "slices (app.core.turns" in sentence_of(told[0])


async def test_work_before_the_start_is_no_stall_of_the_turn_that_the_first_look_finds() -> None:
    burn(1.0)
    told: list[Stall] = []
    watch = LoopWatch(0.6, serving=lambda: None, codes=frozenset(), tell=told.append)
    watch.start()
    burn(0.45)  # the first look comes after 0.3 s
    for _ in range(3):
        await asyncio.sleep(0)
    watch.stop()
    assert told == []


async def rest(rouses: list[Any]) -> None:
    """Wait until the watch rests."""
    async with asyncio.timeout(60):
        while not (rouses and rouses[-1] is not None):
            await asyncio.sleep(0.05)


async def test_a_timer_that_holds_an_idle_loop_is_told_while_the_watch_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "REST_S", 3600.0)
    told: list[Stall] = []
    rouses: list[Any] = []
    watch = LoopWatch(LIMIT_S, serving=lambda: None, codes=frozenset(), tell=told.append, rests=rouses.append)
    watch.start()
    await rest(rouses)

    class Slow(list[int]):
        def __len__(self) -> int:
            burn(0.3)
            return 0

    asyncio.get_running_loop().call_later(0.01, lambda: list(slices(Slow(), 1)))
    async with asyncio.timeout(60):
        while not told:
            await asyncio.sleep(0.05)
    watch.stop()
    assert "slices (app.core.turns" in told[0].place


async def test_a_request_that_waits_without_cpu_time_is_told_though_the_watch_rested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "REST_S", 3600.0)
    async with running_broker(tmp_path) as broker:
        server = broker.node.server
        key = int(ApiKey.DESCRIBE_CLUSTER)
        found: Api = server.apis[key]
        watch = broker.node.watch_loop()
        assert watch is not None

        def handle(context: Any, request: Any, message: Any) -> Any:
            disk = threading.Event()
            for _ in range(100):  # it blocks the loop until it was seen
                if watch.seen is not None:
                    break
                disk.wait(0.1)
            return DescribeClusterResponse()

        async with talk(broker.port) as client:
            server.apis = {key: found._replace(handle=handle)}
            async with asyncio.timeout(60):
                while server.rouse is None:
                    await asyncio.sleep(0.05)
            await client.ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
            line = await line_with(broker.lines, "DESCRIBE_CLUSTER")
        watch.stop()
        assert "The event loop stood still for" in line


async def test_the_steps_of_a_request_are_noted_and_errors_and_cancellation_go_through() -> None:
    class Service:
        serving: Any = None
        context = SimpleNamespace(quotas=None)

    service: Any = Service()
    request: Any = object()
    seen: list[Any] = []

    async def work() -> str:
        seen.append(service.serving)
        service.serving = None
        try:
            await asyncio.sleep(0)
            seen.append(service.serving)
            service.serving = None
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(service.serving)
            raise
        return ""

    task = asyncio.ensure_future(told(service, request, work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [request] * 3

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await told(service, request, fails())


def test_a_service_that_has_served_nothing_names_nobody() -> None:
    assert in_words(None) is None
