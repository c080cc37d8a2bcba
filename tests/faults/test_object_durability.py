"""Real brokers that lose their disks at every restart, under producers of topics with ``firn.durability=object`` (ADR 0037)."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from app.errors import ErrorCode
from app.limits import MIB
from app.wire.apikeys import ApiKey
from app.wire.produce import encode_produce_request
from tests.faults.object_load import (
    OBJECT,
    SETTINGS,
    TIERED,
    TOPIC,
    Careless,
    Following,
    check,
    create,
    create_all,
    wait_until_led,
)
from tests.faults.producing import PRODUCE_VERSION, link, plain_batch
from tests.faults.served import BUG
from tests.support.cluster import WAIT_S, Brokers, Writing, brokers_running
from tests.support.cluster_faults import wait_for_more

pytestmark = pytest.mark.faults
MANY = 100
FLOODS = 8


def end_and_wipe(brokers: Brokers, nodes: Sequence[int]) -> None:
    """All at once, and what they had on their disks is gone."""
    for node_id in nodes:
        brokers.processes[node_id].send_signal(signal.SIGKILL)
    for node_id in nodes:
        brokers.end(node_id, signal.SIGKILL)
        if (brokers.path / f"broker-{node_id}" / "data").exists():
            brokers.lose_disk(node_id)


def check_no_bug(brokers: Brokers) -> None:
    for node_id in brokers.nodes:
        found = [line for line in brokers.lines(node_id).splitlines() if BUG.search(line)]
        assert not found, (node_id, found)


def kill(path: Path, nodes: Sequence[int], kills: int, seed: int, configs: Mapping[str, str]) -> None:
    """Kill one broker, or all, at random moments, and wipe their disks, while clients go on."""
    rng = random.Random(seed)
    with brokers_running(path, nodes, settings=SETTINGS) as brokers:
        create_all(brokers, configs)
        writing, following, careless = Writing(brokers.bootstrap, pace_s=0.005), Following(brokers.bootstrap), Careless(brokers.bootstrap)
        try:
            wait_for_more([writing, following, careless])
            for number in range(kills):
                victims = brokers.nodes if rng.random() < 0.2 else (rng.choice(brokers.nodes),)
                at_work = rng.random() < 0.8
                print(f"{time.time():.2f} kill {number + 1}: {victims}{'' if at_work else ', at whatever they are'}")
                if at_work:
                    wait_for_more([writing])
                time.sleep(rng.uniform(0, 1.0))
                end_and_wipe(brokers, victims)
                if len(victims) < len(brokers.nodes) and rng.random() < 0.5:
                    wait_for_more([writing])  # without it
                for node_id in victims:
                    brokers.start(node_id)
            wait_until_led(brokers.admin, TOPIC)
            wait_for_more([writing, following])
        finally:
            careless.stop()
            following.stop()
            writing.finish()
        records = check(brokers.bootstrap, writing, following)
        print(f"seed {seed}: {records} records, {kills} kills")
        check_no_bug(brokers)


@pytest.mark.ci
@pytest.mark.parametrize("configs", [OBJECT, TIERED], ids=["kept", "tiered"])
def test_one_broker_that_loses_its_disk_has_lost_doubled_and_reordered_nothing(
    tmp_path: Path, configs: Mapping[str, str]
) -> None:
    kill(tmp_path, [1], 3, 1, configs)


@pytest.mark.ci
def test_brokers_that_lose_their_disks_have_lost_doubled_and_reordered_nothing(tmp_path: Path) -> None:
    kill(tmp_path, [1, 2, 3], 4, 2, TIERED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_hundred_kills_of_one_broker(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1], MANY, seed, TIERED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_a_hundred_kills_of_three_brokers(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1, 2, 3], MANY, seed, TIERED)


# --- the store is away ------------------------------------------------------------------------------------------------------


async def flood(port: int, index: int, answers: Counter[ErrorCode], stopping: asyncio.Event) -> None:
    """Write large batches to a partition, each with a time-out of half a second, and count the answers."""
    value = bytes(60_000)
    async with link(port) as connection:
        while not stopping.is_set():
            frame = b"".join(
                bytes(piece)
                for piece in encode_produce_request(
                    PRODUCE_VERSION, 1, "flood", [("flood", [(index, plain_batch(1, value))])], timeout_ms=500
                )
            )
            connection.write(frame)
            answer = (await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0].partition_responses[0]
            answers[ErrorCode(answer.error_code)] += 1
            if answer.error_code:
                await asyncio.sleep(0.02)


async def more_of(answers: Counter[ErrorCode], *codes: ErrorCode) -> None:
    """Until there are more answers with each of these codes."""
    before = Counter(answers)
    async with asyncio.timeout(WAIT_S):
        while any(answers[code] <= before[code] for code in codes):
            await asyncio.sleep(0.02)


async def lose_the_store(path: Path, away_s: float) -> None:
    refusals = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)
    with brokers_running(path, [1], settings=SETTINGS) as brokers:
        create_all(brokers)
        create(brokers, OBJECT, "flood", partitions=FLOODS)
        writing, following, careless = (
            Writing(brokers.bootstrap, pace_s=0.005),
            Following(brokers.bootstrap),
            Careless(brokers.bootstrap),
        )
        port = brokers.ports[1]
        answers: Counter[ErrorCode] = Counter()
        stopping = asyncio.Event()
        try:
            await asyncio.to_thread(wait_for_more, [writing, following, careless])
            async with asyncio.TaskGroup() as group, link(port) as connection:
                for index in range(FLOODS):
                    group.create_task(flood(port, index, answers, stopping))
                await more_of(answers, ErrorCode.NONE)
                process = psutil.Process(brokers.processes[1].pid)
                resident_bytes = process.memory_info().rss
                brokers.cut_bucket(1)
                # Answers come while the store is away: first of those that wait, then of those for which there is no room.
                await more_of(answers, *refusals)
                acknowledged = answers[ErrorCode.NONE]
                end_s = time.monotonic() + away_s
                held: list[float] = []
                while not held or time.monotonic() < end_s:
                    await asyncio.to_thread(wait_for_more, [careless])
                    await more_of(answers, ErrorCode.NOT_ENOUGH_REPLICAS)
                    held.append(await connection.metric("firn_wal_held_bytes"))
                assert answers[ErrorCode.NONE] == acknowledged, "nothing is acknowledged that is not in the store"
                assert max(held) > SETTINGS["wal_buffer_bytes"] // 2
                assert max(held) <= SETTINGS["wal_buffer_bytes"]
                grown_bytes = process.memory_info().rss - resident_bytes
                print(f"away for {away_s:.0f} s: {dict(answers)}, held {max(held):.0f}, grown by {grown_bytes} bytes")
                assert grown_bytes < 64 * MIB
                brokers.heal_bucket(1)
                await more_of(answers, ErrorCode.NONE)
                await asyncio.to_thread(wait_for_more, [writing, following, careless])
                stopping.set()
            assert set(answers) <= {ErrorCode.NONE, *refusals}
            end_and_wipe(brokers, [1])
            brokers.start(1)
            await asyncio.to_thread(wait_for_more, [writing, following])
        finally:
            brokers.heal_bucket(1)
            careless.stop()
            following.stop()
            writing.finish()
        assert check(brokers.bootstrap, writing, following)
        check_no_bug(brokers)


@pytest.mark.ci
async def test_while_the_store_is_away_producers_are_told_and_other_topics_go_on(tmp_path: Path) -> None:
    await lose_the_store(tmp_path, 2)


@pytest.mark.slow
async def test_a_minute_without_the_store(tmp_path: Path) -> None:
    await lose_the_store(tmp_path, 60)
