"""Brokers whose topics are in the bucket, and outages of the bucket."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psutil
from confluent_kafka.admin import AdminClient

from app.core.errors import ErrorCode
from app.core.limits import MIB
from app.wire.apikeys import ApiKey
from app.wire.produce import encode_produce_request
from tests.faults.object_load import (
    OBJECT,
    SETTINGS,
    Careless,
    Following,
    create,
    create_all,
)
from tests.faults.producing import PRODUCE_VERSION, link, plain_batch
from tests.faults.served import BUG, Served
from tests.support.cluster import WAIT_S, Brokers, Writing
from tests.support.cluster_faults import wait_for_more

FLOODS = 8
BUFFER_BYTES = int(SETTINGS["wal_buffer_bytes"])
REFUSALS = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)


def end_and_wipe(brokers: Brokers, nodes: Sequence[int], how: signal.Signals = signal.SIGKILL) -> None:
    """All at once, and what they had on their disks is gone."""
    for node_id in nodes:
        brokers.processes[node_id].send_signal(how)
    for node_id in nodes:
        brokers.processes[node_id].wait(WAIT_S)
        if (brokers.path / f"broker-{node_id}" / "data").exists():
            brokers.lose_disk(node_id)


def check_no_bug(brokers: Brokers) -> None:
    for node_id in brokers.nodes:
        found = [line for line in brokers.lines(node_id).splitlines() if BUG.search(line)]
        assert not found, (node_id, found)


async def flood(
    port: int, index: int, answers: Counter[ErrorCode], stopping: asyncio.Event, took_s: list[float]
) -> None:
    """Write large batches to a partition, each with a time-out of half a second, count the answers and note what they took."""
    value = bytes(60_000)
    async with link(port) as connection:
        while not stopping.is_set():
            frame = encode_produce_request(
                PRODUCE_VERSION, 1, "flood", [("flood", [(index, plain_batch(1, value))])], acks=-1, timeout_ms=500
            )
            asked_s = time.monotonic()
            connection.write(b"".join(bytes(piece) for piece in frame))
            answer = (await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0].partition_responses[0]
            took_s.append(time.monotonic() - asked_s)
            answers[ErrorCode(answer.error_code)] += 1
            if answer.error_code:
                await asyncio.sleep(0.02)


async def more_of(answers: Counter[ErrorCode], *codes: ErrorCode) -> None:
    """Until there are more answers with each of these codes."""
    before = Counter(answers)
    async with asyncio.timeout(WAIT_S):
        while any(answers[code] <= before[code] for code in codes):
            await asyncio.sleep(0.02)


class Clients:
    """Of one broker: those that are to notice when its store is away, and those that are not."""

    def __init__(self, bootstrap: str, port: int) -> None:
        self.bootstrap = bootstrap
        self.port = port
        self.writing = Writing(bootstrap, pace_s=0.005)
        self.following, self.careless = Following(bootstrap), Careless(bootstrap)

    async def go_on(self) -> None:
        await asyncio.to_thread(wait_for_more, [self.writing, self.following, self.careless])

    def stop(self) -> None:
        self.careless.stop()
        self.following.stop()
        self.writing.finish()


async def outage(
    clients: Clients, process: psutil.Process, cut: Callable[[], None], heal: Callable[[], None], away_s: float
) -> None:
    """Take the store away from a broker for a while, and give it back."""
    answers: Counter[ErrorCode] = Counter()
    stopping = asyncio.Event()
    took_s: list[float] = []
    await clients.go_on()
    async with asyncio.TaskGroup() as group, link(clients.port) as connection:
        for index in range(FLOODS):
            group.create_task(flood(clients.port, index, answers, stopping, took_s))
        await more_of(answers, ErrorCode.NONE)
        resident_bytes = process.memory_info().rss
        cut()
        # Answers come while the store is away: first of those that wait, then of those for which there is no room.
        await more_of(answers, *REFUSALS)
        acknowledged = answers[ErrorCode.NONE]
        end_s = time.monotonic() + away_s
        held: list[float] = []
        while not held or time.monotonic() < end_s:
            await asyncio.to_thread(wait_for_more, [clients.careless])
            await more_of(answers, ErrorCode.NOT_ENOUGH_REPLICAS)
            held.append(await connection.metric("firn_wal_held_bytes"))
        assert answers[ErrorCode.NONE] == acknowledged, "nothing is acknowledged that is not in the store"
        assert BUFFER_BYTES // 2 < max(held) <= BUFFER_BYTES
        grown_bytes = process.memory_info().rss - resident_bytes
        print(f"away for {away_s:.0f} s: {dict(answers)}, held {max(held):.0f}, grown by {grown_bytes} bytes")
        print(f"from {resident_bytes} bytes; answers took {sum(took_s) / len(took_s):.3f} s, {max(took_s):.3f} at most")
        assert grown_bytes < 64 * MIB
        heal()
        await more_of(answers, ErrorCode.NONE)
        await clients.go_on()
        stopping.set()
    assert set(answers) <= {ErrorCode.NONE, *REFUSALS}


ALONE = {
    "wal.bytes": BUFFER_BYTES // 16,
    "wal.buffer.bytes": BUFFER_BYTES,
    "remote.log.manager.task.interval.ms": 200,
}
"""Settings of a single broker whose store is away for a while."""


def begin(broker: Served) -> tuple[Clients, psutil.Process]:
    """Topics of every durability with their clients, and the broker's process."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_all(admin, 1)
    create(admin, 1, OBJECT, "flood", partitions=FLOODS)
    assert broker.process is not None
    return Clients(broker.bootstrap, broker.port), psutil.Process(broker.process.pid)
