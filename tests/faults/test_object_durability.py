"""Real brokers that lose their disks at every restart, under producers of topics with ``firn.durability=object`` (ADR 0037)."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from app.configs.broker import NODE_ID_AUTO
from tests.faults.object_brokers import ALONE, FLOODS, Clients, begin, check_no_bug, end_and_wipe, outage
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
from tests.faults.s3 import BUCKET, CREDENTIALS
from tests.faults.served import serving
from tests.support.cluster import ROOT, Writing, brokers_running
from tests.support.cluster_faults import wait_for_more

pytestmark = pytest.mark.faults
MANY = 100
IN_FLIGHT = {
    "max.in.flight.requests.per.connection": 5,
    "batch.num.messages": 4,
    "socket.timeout.ms": 10_000,
    "queue.buffering.max.messages": 600,
}
"""Of a producer: many small batches, of which each answers late on a busy machine. It writes faster than batches of four can leave,
so its queue is bounded: what waits there at the end has to be sent, too."""


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of an S3 server with an empty bucket."""
    command = (sys.executable, "-m", "loadtests.slow_s3", str(tmp_path / "bucket"), "--delay-ms", "5")
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.kill()


def kill_all_at_once(path: Path, faults: Iterable[int], seed: int) -> None:
    """Kill three brokers under librdkafka's idempotent producer with five requests in flight, and wipe their disks.

    The brokers that follow know of the producer what the sealed write-ahead logs have, and it sends again what was not answered.
    What is stored of that is not appended again.
    """
    rng = random.Random(seed)
    settings = SETTINGS | {"broker_session_timeout_ms": 9_000}  # three that start at once starve each other
    with brokers_running(path, [1, 2, 3], settings=settings) as brokers:
        create(brokers.admin, 3, OBJECT, TOPIC)
        writing = Writing(brokers.bootstrap, pace_s=0.005, client=IN_FLIGHT)
        try:
            for done in faults:
                writing.wait_for_more()
                time.sleep(rng.uniform(0, 1.0))
                end_and_wipe(brokers, brokers.nodes)
                for node_id in brokers.nodes:
                    brokers.start(node_id)
                print(
                    f"{time.time():.2f} {done}: {sum(len(one) for one in writing.acknowledged)} acknowledged",
                    flush=True,
                )
            writing.wait_for_more()
        finally:
            writing.finish()
        wait_until_led(brokers.admin, TOPIC)
        print(f"seed {seed}: {check(brokers.bootstrap, writing)} records", flush=True)
        check_no_bug(brokers)


def kill(path: Path, nodes: Sequence[int], faults: Iterable[int], seed: int, configs: Mapping[str, str]) -> None:
    """Kill one broker, or all, at random moments, and wipe their disks, while clients go on.

    Now and then one is stopped in order, or stands still until others lead and then goes on.
    """
    rng = random.Random(seed)
    done = 0
    with brokers_running(path, nodes, settings=SETTINGS) as brokers:
        create_all(brokers.admin, len(nodes), configs)
        writing = Writing(brokers.bootstrap, pace_s=0.005)
        following, careless = Following(brokers.bootstrap), Careless(brokers.bootstrap)
        try:
            wait_for_more([writing, following, careless])
            for done in faults:
                victims = brokers.nodes if rng.random() < 0.2 else (rng.choice(brokers.nodes),)
                how = rng.choices(("kill", "stop", "pause"), (70, 15, 15 if len(victims) < len(nodes) else 0))[0]
                at_work = rng.random() < 0.8
                print(f"{time.time():.2f} {done}: {how} {victims}{'' if at_work else ', whatever they are at'}")
                if at_work:
                    wait_for_more([writing])
                time.sleep(rng.uniform(0, 1.0))
                if how == "pause":
                    brokers.pause(victims[0])
                    wait_for_more([writing])
                    brokers.go_on(victims[0])
                    continue
                end_and_wipe(brokers, victims, signal.SIGKILL if how == "kill" else signal.SIGTERM)
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
        print(f"seed {seed}: {records} records, {done} faults")
        check_no_bug(brokers)


@pytest.mark.ci
@pytest.mark.parametrize("configs", [OBJECT, TIERED], ids=["kept", "tiered"])
def test_one_broker_that_loses_its_disk_has_lost_doubled_and_reordered_nothing(
    tmp_path: Path, configs: Mapping[str, str]
) -> None:
    kill(tmp_path, [1], range(1, 4), 1, configs)


@pytest.mark.ci
def test_brokers_that_lose_their_disks_have_lost_doubled_and_reordered_nothing(tmp_path: Path) -> None:
    kill(tmp_path, [1, 2, 3], range(1, 6), 2, TIERED)


@pytest.mark.ci
def test_what_five_requests_in_flight_brought_is_there_once_after_all_brokers_lost_their_disks(tmp_path: Path) -> None:
    kill_all_at_once(tmp_path, range(1, 4), 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [8, 9, 10])
def test_ten_kills_of_all_brokers_at_once(tmp_path: Path, seed: int) -> None:
    kill_all_at_once(tmp_path, range(1, 11), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_hundred_kills_of_one_broker(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1], range(1, MANY + 1), seed, TIERED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_a_hundred_kills_of_three_brokers(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, [1, 2, 3], range(1, MANY + 1), seed, TIERED)


@pytest.mark.ci
def test_a_killed_broker_without_a_disk_is_followed_by_one_with_another_node_id(tmp_path: Path) -> None:
    """All that is known of the first one is in the bucket."""
    settings = {name: value for name, value in SETTINGS.items() if name != "take_over"} | {"firn_ephemeral": True}
    with brokers_running(tmp_path, [1], settings=settings) as brokers:
        create(brokers.admin, 1, TIERED, TOPIC)
        writing, following = Writing(brokers.bootstrap, pace_s=0.005), Following(brokers.bootstrap)
        try:
            wait_for_more([writing, following])
            end_and_wipe(brokers, [1])
            brokers.ports[NODE_ID_AUTO] = brokers.ports[1]
            brokers.start(NODE_ID_AUTO)
            wait_for_more([writing, following])
            end_and_wipe(brokers, [NODE_ID_AUTO])
            brokers.start(NODE_ID_AUTO)
        finally:
            following.stop()
            writing.finish()
        assert check(brokers.bootstrap, writing, following)
        assert "this broker has node id 3 from now on" in brokers.lines(NODE_ID_AUTO)


# --- the store is away ------------------------------------------------------------------------------------------------------


async def lose_the_directory(path: Path, away_s: float) -> None:
    with brokers_running(path, [1], settings=SETTINGS) as brokers:
        create_all(brokers.admin, 1)
        create(brokers.admin, 1, OBJECT, "flood", partitions=FLOODS)
        clients = Clients(brokers.bootstrap, brokers.ports[1])
        try:
            process = psutil.Process(brokers.processes[1].pid)
            await outage(clients, process, lambda: brokers.cut_bucket(1), lambda: brokers.heal_bucket(1), away_s)
            end_and_wipe(brokers, [1])
            brokers.start(1)
            await asyncio.to_thread(wait_for_more, [clients.writing, clients.following])
        finally:
            brokers.heal_bucket(1)
            clients.stop()
        assert check(brokers.bootstrap, clients.writing, clients.following)
        check_no_bug(brokers)


async def lose_the_server(path: Path, port: int, pid: int, away_s: float) -> None:
    """``firn serve``, and a store that answers nothing for a while."""
    store = f"s3://{BUCKET}/here?endpoint=http://127.0.0.1:{port}&region=us-east-1&path_style=true"
    with serving(path, "--take-over", store=store, environment=CREDENTIALS, settings=ALONE) as broker:
        clients, process = begin(broker)
        server = psutil.Process(pid)
        try:
            await outage(clients, process, server.suspend, server.resume, away_s)
        finally:
            server.resume()
            clients.stop()
        assert check(broker.bootstrap, clients.writing, clients.following)
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start()
        wait_until_led(AdminClient({"bootstrap.servers": broker.bootstrap}), TOPIC)
        assert check(broker.bootstrap, clients.writing, clients.following)


@pytest.mark.ci
async def test_while_the_store_is_away_producers_are_told_and_other_topics_go_on(tmp_path: Path) -> None:
    await lose_the_directory(tmp_path, 2)


@pytest.mark.slow
async def test_a_minute_without_the_store(tmp_path: Path) -> None:
    await lose_the_directory(tmp_path, 60)


@pytest.mark.ci
async def test_while_an_s3_server_stands_still_producers_are_told_and_other_topics_go_on(
    tmp_path: Path, s3_server: tuple[int, int]
) -> None:
    await lose_the_server(tmp_path, *s3_server, 2)


@pytest.mark.slow
async def test_a_minute_of_an_s3_server_that_stands_still(tmp_path: Path, s3_server: tuple[int, int]) -> None:
    await lose_the_server(tmp_path, *s3_server, 60)
