"""Starting and stopping as an operator meets it: every end is clean, every refusal is one sentence with the right exit code."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.records.builder import build_batch
from tests.faults.producing import LATEST, LATEST_TIERED, Producer, check_all_kept, link, plain_batch, read_log
from tests.faults.served import HTTP_PROCESS, SMALL_SEGMENTS, STORE_PROCESS, Served, firn, refusal_of, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

QUIET = ("--http", "off", "--listen", "127.0.0.1:0")


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
async def test_a_signal_stops_it_in_order_while_producers_run(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("t", 1, SMALL_SEGMENTS)
        producer = Producer(lambda: broker.port, "t", 0, random.Random(3), value_bytes=8_000)
        async with asyncio.TaskGroup() as group:
            group.create_task(producer.run())
            for _ in range(2):
                acknowledged = producer.records
                async with asyncio.timeout(30):
                    while producer.records < acknowledged + 100:
                        await asyncio.sleep(0.005)
                broker.signal(number)
                assert await asyncio.to_thread(broker.wait) in (0, 130)
                assert (broker.data_dir / ".kafka_cleanshutdown").exists()
                await asyncio.to_thread(broker.start)
                assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
            producer.stopping = True
        await check_all_kept(broker.port, producer)
        assert not producer.refusals


@pytest.mark.slow
async def test_signals_at_any_moment_of_starting_end_it_cleanly(tmp_path: Path) -> None:
    chance = random.Random(4)
    with serving(tmp_path) as broker:
        async with link(broker.port) as connection:
            await connection.create_topic("t", 1, SMALL_SEGMENTS)
            await connection.produce("t", 0, plain_batch(3))
        await asyncio.to_thread(broker.stop)
        for _ in range(4):
            broker.spawn()
            # Not before the handlers are there: Python itself dies of a signal until then, and has done nothing.
            await asyncio.sleep(chance.uniform(0.1, 1.2))
            broker.signal(signal.SIGTERM)
            assert await asyncio.to_thread(broker.wait) in (0, 130, -signal.SIGTERM), broker.text
        await asyncio.to_thread(broker.start)
        assert len(await read_log(broker.port, "t", 0)) == 3


@pytest.mark.ci
async def test_killed_children_are_started_again(tmp_path: Path) -> None:
    http_port = free_port()
    with serving(tmp_path, http=f"127.0.0.1:{http_port}") as broker:

        def http_answers() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", http_port), 1) as connection:
                    connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                    return connection.recv(100).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
            except OSError:
                return False

        await asyncio.to_thread(block_until, http_answers, "HTTP is served")
        async with link(broker.port) as connection:
            await connection.create_topic("t")
            for module in (HTTP_PROCESS, STORE_PROCESS):
                victim = await asyncio.to_thread(broker.kill_child, module)
                assert (await connection.produce("t", 0, plain_batch())).error_code == 0

                def another(module: str = module, victim: int = victim) -> bool:
                    try:
                        return broker.child(module).pid != victim
                    except LookupError:
                        return False

                await asyncio.to_thread(block_until, another, f"{module} runs again")
            # The store process serves what needs it: a topic is an entry of the cluster log.
            await connection.create_topic("u")
        await asyncio.to_thread(block_until, http_answers, "HTTP is served again")
        for name in ("http", "store"):
            assert f"the {name} process ended (killed by signal 9); starting it again" in broker.text


# --- refusals -------------------------------------------------------------------------------------------------------


BAD_FLAGS = (
    ("--listen", "nowhere:99999", "port 99999 is above 65535"),
    ("--listen", "192.0.2.1:0", "Cannot listen on 192.0.2.1:0"),
    ("--store", "gopher://x", "it must be file:///path or s3://bucket/prefix"),
    ("--store", "s3://B/x", "'B' is not a bucket name"),
    ("--node-id", "minus", "--node-id 'minus'"),
    ("--set", "num.partitions=0", "num.partitions"),
    ("--set", "log.segment.bytes=lots", "log.segment.bytes"),
    ("--set", "nothing", "is not of the form name=value"),
    ("--http", "off:off", "--http 'off:off'"),
    ("--redis", "http://x", "--redis (firn.redis.url)"),
)


@pytest.mark.ci
def test_bad_flags_are_refused_in_one_sentence_with_exit_code_2(tmp_path: Path) -> None:
    def refused(flag: tuple[str, str, str]) -> tuple[str, str]:
        name, value, words = flag
        given = {"--http": "off", "--listen": "127.0.0.1:0", "--data-dir": str(tmp_path / "d"), name: value}
        return refusal_of("serve", *(part for pair in given.items() for part in pair), code=2), words

    with ThreadPoolExecutor(2) as threads:
        for sentence, words in threads.map(refused, BAD_FLAGS):
            assert words in sentence


@pytest.mark.ci
def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        directory = ("--data-dir", str(tmp_path / "d"))
        kafka = refusal_of("serve", "--http", "off", "--listen", address, *directory, code=2)
        http = refusal_of("serve", "--http", address, "--listen", "127.0.0.1:0", *directory, code=2)
    assert f"Cannot listen on {address}: Address already in use; free the address or give another --listen" in kafka
    holder = f"by process {os.getpid()} ({Path(sys.orig_argv[0]).name})"
    assert (
        f"Cannot listen on {address} for HTTP: Address already in use {holder}; free the address, give another --http"
        in http
    )
    assert not (tmp_path / "d" / "meta.properties").exists()


@pytest.mark.ci
def test_bad_topics_and_configs_are_refused_with_exit_code_2(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        for arguments, words in (
            (("create", "white space"), "characters other than ASCII letters and digits"),
            (("create", "x" * 250), "249"),
            (("create", ".."), ".."),
            (("create", "t", "--set", "segment.bytes=1"), "segment.bytes"),
            (("create", "t", "--set", "segment.byte=1048576"), "segment.byte"),
            (("create", "t", "--partitions", "0"), "partitions"),
        ):
            assert words in refusal_of("topic", *arguments, "-b", broker.bootstrap, code=2)


@pytest.mark.ci
def test_a_path_that_cannot_be_a_data_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for directory in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        sentence = refusal_of(
            "serve", *QUIET, "--data-dir", str(directory), "--store", (tmp_path / "s").as_uri(), code=1
        )
        assert str(directory) in sentence


# --- damage ---------------------------------------------------------------------------------------------------------


def stopped_broker(path: Path, records: int = 20) -> Served:
    """A broker that has stopped in order, with records of 1 KB in ``t``."""
    with serving(path) as broker:

        async def fill() -> None:
            async with link(broker.port) as connection:
                await connection.create_topic("t", 1, SMALL_SEGMENTS)
                for n in range(records):
                    assert (await connection.produce("t", 0, plain_batch(1, b"%d " % n + bytes(1000)))).error_code == 0

        asyncio.run(fill())
        broker.stop()
        return broker


def serve_refused(broker: Served, code: int) -> str:
    return refusal_of("serve", *QUIET, "--data-dir", str(broker.data_dir), "--store", broker.store, code=code)


@pytest.mark.ci
def test_a_damaged_meta_properties_is_told_in_one_sentence(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path, 1)
    for damage in (b"", b"\0\xff\xfe", b"version=1\nnode.id=one\n", b"version=1\n"):
        (broker.data_dir / "meta.properties").write_bytes(damage)
        assert "meta.properties" in serve_refused(broker, 1)


@pytest.mark.ci
def test_a_damaged_entry_of_the_cluster_log_is_told_in_one_sentence(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path, 1)
    entries = sorted((tmp_path / "store" / "cluster" / "log").iterdir())
    sound = entries[1].read_bytes()
    for place in (0.0, 0.3, 0.9):
        damaged = bytearray(sound)
        damaged[int(len(damaged) * place)] ^= 16
        entries[1].write_bytes(damaged)
        assert f"cluster/log/{entries[1].name}" in serve_refused(broker, 1)
    entries[1].write_bytes(sound[: len(sound) // 2])
    assert f"cluster/log/{entries[1].name}" in serve_refused(broker, 1)


CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    ".firn_log_state",
    ".kafka_cleanshutdown",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    "t-0/00000000000000000000.index",
    "t-0/00000000000000000000.timeindex",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hurt",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(os.urandom(64)), id="random"),
        pytest.param(lambda path: path.unlink(), id="missing"),
    ],
)
async def test_damaged_checkpoints_and_indexes_cost_no_record(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    broker = await asyncio.to_thread(stopped_broker, tmp_path)
    sound = tmp_path / "sound"
    shutil.copytree(broker.data_dir, sound)
    for name in CHECKPOINTS:
        shutil.rmtree(broker.data_dir)
        shutil.copytree(sound, broker.data_dir)
        path = broker.data_dir / name
        if not path.exists():
            continue
        hurt(path)
        with serving(tmp_path, name=f"after {name.replace('/', ' ')}", start=False) as again:
            await asyncio.to_thread(again.start)
            records = await read_log(again.port, "t", 0)
            assert [record.value.split(b" ")[0] for record in records] == [b"%d" % n for n in range(20)], name
            async with link(again.port) as connection:
                assert (await connection.produce("t", 0, plain_batch())).base_offset == 20
            # The next one begins where this began: the bucket's cluster log has gone on, and that is all.
            await asyncio.to_thread(again.stop)


SET_BACK_S = 25 * 365 * 86_400
CLOCK_SET_BACK = """
import sys, time
real_ns, back_ns = time.time_ns, int(sys.argv.pop(1)) * 10**9
time.time_ns = lambda: real_ns() - back_ns
time.time = lambda: time.time_ns() / 1e9
gmtime = time.gmtime
time.gmtime = lambda seconds=None: gmtime(time.time() if seconds is None else seconds)
from app.cli import main
sys.exit(main())
"""
"""The broker's own clock says that it is a quarter of a century ago; its store's, and that of its files, do not."""


@pytest.mark.slow
async def test_a_clock_set_far_back_changes_no_offset_and_loses_nothing(tmp_path: Path) -> None:
    broker = await asyncio.to_thread(stopped_broker, tmp_path)
    program = (sys.executable, "-c", CLOCK_SET_BACK, str(SET_BACK_S))
    with serving(tmp_path, name="back", program=program, start=False) as back:
        await asyncio.to_thread(back.start)
        assert any(line.startswith(str(time.gmtime(time.time() - SET_BACK_S).tm_year)) for line in back.lines)
        async with link(back.port) as connection:
            assert await connection.offset("t", 0, LATEST) == 20
            for n in range(20, 24):
                batch = build_batch([(int((time.time() - SET_BACK_S) * 1000), None, bytes(400_000), ())])
                answer = await connection.produce("t", 0, batch)
                assert (answer.error_code, answer.base_offset) == (0, n)
            # To this clock, what others call the present is too far ahead (message.timestamp.after.max.ms).
            refused = await connection.produce("t", 0, plain_batch())
            assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
            await connection.create_topic("u")
            async with asyncio.timeout(30):
                while await connection.offset("t", 0, LATEST_TIERED) < 21:
                    await asyncio.sleep(0.02)
        await asyncio.to_thread(back.stop)
    with serving(tmp_path, name="forward", start=False) as forward:
        await asyncio.to_thread(forward.start)
        assert len(await read_log(forward.port, "t", 0)) == 24
        await asyncio.to_thread(forward.stop)
    assert firn("verify", "--store", broker.store).returncode == 0
