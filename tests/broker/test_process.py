"""The broker as a process with its children: signals, kills, restarts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.broker.start.process import LOCK_ASK_S, claim_when_free
from app.broker.start.running import note_running
from app.core.errors import ConflictError
from app.machine.files import PosixFileSystem, claim_directory
from app.metadata.log.log_format import decode_entry, encode_entry
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.private import MetricsRequest, MetricsResponse, pack, unpack
from tests.broker.processes import broker, make_topic, start
from tests.handlers.conversation import batch, talk
from tests.support.talking import fetch_all, produce

pytestmark = pytest.mark.faults
TOPIC_ALREADY_EXISTS = 36


async def gone(process: psutil.Process) -> None:
    async with asyncio.timeout(60):
        with suppress(psutil.NoSuchProcess):  # it has gone between the two questions
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.02)


@pytest.mark.ci
async def test_sigterm_stops_in_order_and_takes_the_children_along(tmp_path: Path):
    async with broker(tmp_path) as running:
        async with talk(running.port) as client:
            await make_topic(client, "t", retention_ms="-1")
            await produce(client, "t", batch(3))
        store = running.store_process()
        assert store is not None
        running.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await running.process.wait() == 0
        await gone(store)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    async with broker(tmp_path) as running, talk(running.port) as client:
        assert len(await fetch_all(client, "t", end=3)) > 0


@pytest.mark.ci
async def test_after_kill_9_nothing_acknowledged_is_gone_and_no_child_is_left(tmp_path: Path):
    async with broker(tmp_path) as running:
        store = running.store_process()
        assert store is not None
        async with talk(running.port) as client:
            await make_topic(client, "t", retention_ms="-1")
            await produce(client, "t", *[batch(2, value=b"%d" % n) for n in range(50)])
            sent = await fetch_all(client, "t", end=100)
            store.suspend()  # it reads no end-of-file then, as a child would not that computes
            os.kill(running.pid, signal.SIGKILL)
            await running.process.wait()
            await gone(store)
    async with broker(tmp_path) as running, talk(running.port) as client:
        assert await fetch_all(client, "t", end=100) == sent
        assert await produce(client, "t", batch(1)) == [100]


async def test_a_start_waits_for_a_data_directory_that_is_still_held(tmp_path: Path):
    fs = PosixFileSystem()
    held = claim_directory(fs, str(tmp_path))
    waiting = asyncio.create_task(claim_when_free(fs, str(tmp_path), wait_s=60))
    await asyncio.wait([waiting], timeout=3 * LOCK_ASK_S)
    assert not waiting.done()
    held.close()
    (await waiting).close()


async def test_a_start_refuses_in_a_sentence_a_data_directory_that_stays_held(tmp_path: Path):
    held = claim_directory(PosixFileSystem(), str(tmp_path))
    with pytest.raises(ConflictError, match=r"in use by another process; stop that one first. The start waited 0.1 s"):
        await claim_when_free(PosixFileSystem(), str(tmp_path), wait_s=0.1)
    note_running(str(tmp_path))
    with pytest.raises(
        ConflictError, match=rf"is in use by a broker, process {os.getpid()}; `firn stop` ends it\. The"
    ):
        await claim_when_free(PosixFileSystem(), str(tmp_path), wait_s=0.1)
    held.close()


def test_a_child_that_begins_after_its_parent_has_gone_ends_at_once():
    ours, theirs = socket.socketpair()
    ours.sendall(b"a call that came before")
    ours.close()
    program = (
        f"from app.machine.terminating import end_with_parent; end_with_parent({theirs.fileno()}); print('goes on')"
    )
    with theirs:
        done = subprocess.run(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], capture_output=True, check=False
        )
    assert (done.returncode, done.stdout) == (1, b""), done


@pytest.mark.ci
async def test_a_killed_store_process_is_replaced_and_nobody_notices(tmp_path: Path):
    async with broker(tmp_path) as running, talk(running.port) as client:
        await make_topic(client, "t", retention_ms="-1")
        first = running.store_process()
        assert first is not None
        for n in range(3):
            victim = running.store_process()
            if victim is not None:
                victim.kill()
            assert await produce(client, "t", batch(1)) == [n]
            await make_topic(client, f"after-{n}")
        second = running.store_process()
        assert second is not None
        assert second.pid != first.pid
        processes: set[str] = set()
        async with asyncio.timeout(60):
            while processes != {"broker", "store"}:  # the store process is not waited for if it is slow to answer
                answer = unpack(MetricsResponse, await client.ask(ApiKey.FIRN_METRICS, 0, pack(MetricsRequest())))
                processes = {value for sample in answer.samples for name, value in sample.labels if name == "process"}
                assert processes <= {"broker", "store"}


@pytest.mark.ci
async def test_a_store_that_cannot_be_opened_is_told_in_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    running = await start(tmp_path, store_url=f"file://{tmp_path}/file/store")
    assert "could not open" in running.told["error"]
    _, errors = await running.process.communicate()
    assert running.process.returncode == 3
    assert "Traceback" not in errors.decode()


@pytest.mark.ci
async def test_a_broker_whose_place_is_taken_exits_with_one_sentence(tmp_path: Path):
    async with broker(tmp_path) as old, broker(tmp_path, data_dir=str(tmp_path / "other"), take_over=True):
        assert old.process.stdout is not None
        async with asyncio.timeout(60):
            told = json.loads(await old.process.stdout.readline())
            assert await old.process.wait() == 3
    assert "taken over" in told["error"]


@pytest.mark.ci
async def test_a_broker_whose_cluster_log_was_forged_exits_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key = tmp_path / "key"
    key.write_text(base64.b64encode(b"k" * 32).decode())
    key.chmod(0o600)
    monkeypatch.setenv("FIRN_CLUSTER_LOG_KEY", "unread here")
    async with broker(tmp_path, firn_cluster_log_key_location=str(key)) as running:
        store = running.store_process()
        assert store is not None
        assert "FIRN_CLUSTER_LOG_KEY" not in store.environ()
        async with talk(running.port) as client:
            await make_topic(client, "t", retention_ms="-1")
        entries = sorted((tmp_path / "store" / "cluster" / "log").glob("[0-9]*"))
        forged = entries[-1].with_name(f"{int(entries[-1].name) + 1:020d}")
        before = decode_entry("", int(entries[-1].name), entries[-1].read_bytes())
        fields = {**before._asdict(), "sequence": int(forged.name), "previous": before.nonce, "nonce": bytes(16)}
        forged.write_bytes(encode_entry(**fields))
        assert running.process.stdout is not None
        async with asyncio.timeout(60):
            told = json.loads(await running.process.stdout.readline())
            assert await running.process.wait() == 3
    assert f"{forged.name} has no proof" in told["error"]
    again = await start(tmp_path, firn_cluster_log_key_location=str(key))
    assert f"{forged.name} has no proof" in again.told["error"]
    _, errors = await again.process.communicate()
    assert "Traceback" not in errors.decode()


@pytest.mark.parametrize(
    ("settings", "gives_way"),
    [({}, 5), ({"firn_ephemeral": True, "store_create": True}, 0)],
)
async def test_the_store_process_gives_way_unless_producers_wait_for_it(
    tmp_path: Path, settings: dict[str, Any], gives_way: int
) -> None:
    async with broker(tmp_path, **settings) as running:
        store = running.store_process()
        assert store is not None
        assert store.nice() == min(psutil.Process(running.pid).nice() + gives_way, 19)


async def refusal(path: Path, **settings: Any) -> str:
    """The lines of a start that was refused."""
    refused = await start(path, **settings)
    assert "could not open" in refused.told["error"]
    _, errors = await refused.process.communicate()
    assert refused.process.returncode == 3
    assert "Traceback" not in errors.decode()
    return errors.decode()


@pytest.mark.parametrize("left", ["an empty directory", "nothing"])
async def test_a_start_before_the_store_is_mounted_makes_no_new_store(tmp_path: Path, left: str) -> None:
    async with broker(tmp_path) as running, talk(running.port) as client:
        await make_topic(client, "t")
    (tmp_path / "store").rename(tmp_path / "away")
    if left == "an empty directory":
        (tmp_path / "store").mkdir()
    assert "missing or empty. Its file system may not be mounted" in await refusal(tmp_path)
    assert not (tmp_path / "store").exists() or not os.listdir(tmp_path / "store")
    (tmp_path / "store").exists() and (tmp_path / "store").rmdir()
    (tmp_path / "away").rename(tmp_path / "store")
    async with broker(tmp_path) as running, talk(running.port) as client:
        await produce(client, "t", batch(3))


async def test_a_broker_without_a_disk_makes_a_store_of_a_directory_only_if_it_is_told(tmp_path: Path) -> None:
    settings = {"firn_ephemeral": True}
    assert "firn store init" in await refusal(tmp_path, **settings)
    assert not (tmp_path / "store").exists()
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "store", "init", f"file://{tmp_path}/store"), stderr=subprocess.PIPE
    )
    assert done.stderr is not None
    assert b"is a new store" in await done.stderr.read()
    assert await done.wait() == 0
    async with broker(tmp_path, **settings) as running:
        assert running.port > 0


async def test_a_store_that_goes_away_under_a_broker_takes_nothing_until_it_is_back(tmp_path: Path) -> None:
    """Acknowledged records that were tiered before and after are there; the place of the store stays empty meanwhile."""
    async with broker(tmp_path) as running, talk(running.port) as client:
        await make_topic(client, "before")
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").mkdir()
        refused = await client.ask(
            ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("during", 1, 1)], 3_000)
        )
        assert refused.topics[0].error_code != 0
        assert os.listdir(tmp_path / "store") == []
        (tmp_path / "store").rmdir()
        (tmp_path / "away").rename(tmp_path / "store")
        async with asyncio.timeout(60):
            while True:
                made = await client.ask(
                    ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("after", 1, 1)], 20_000)
                )
                if made.topics[0].error_code in (0, TOPIC_ALREADY_EXISTS):
                    break
