"""Two brokers that want the same place: one is refused in a sentence, or the other one stops by itself."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from app.metadata.peers.liveness import BEAT_INTERVAL_MS
from tests.faults.faulty_proxy import Fault, faulty_proxy
from tests.faults.producing import EARLIEST, LATEST, link, plain_batch, read_log
from tests.faults.s3 import BUCKET, CREDENTIALS, tiered_to
from tests.faults.served import firn, refusal_of, serving
from tests.support.waiting import block_until

NOTICED_S_MAX = BEAT_INTERVAL_MS / 1000 + 60
"""A broker looks for a replacement with every sign of life; the rest is for a busy machine and for stopping."""
FENCED = 1
OFFLINE = ("--http", "off", "--listen", "127.0.0.1:0")
TIERED = {"segment.bytes": "1048576", "retention.ms": "-1"}


@pytest.mark.ci
async def test_one_directory_one_node_id_one_broker_and_a_take_over_stops_the_old_one(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    old_dir, new_dir = tmp_path / "data", tmp_path / "other"
    with (
        serving(tmp_path, name="old") as old,
        serving(tmp_path, "--take-over", name="new", data_dir=new_dir, start=False) as new,
    ):
        async with link(old.port) as connection:
            await connection.create_topic("t", 1, TIERED)
            for n in range(4):
                assert (await connection.produce("t", 0, plain_batch(1, b"%d" % n + bytes(400_000)))).error_code == 0
            await tiered_to(connection, "t", 1)
        tiered = len(list((tmp_path / "store" / "data").rglob("*.seg")))
        assert tiered == 1

        same_directory = await asyncio.to_thread(
            lambda: refusal_of("serve", *OFFLINE, "--data-dir", str(old_dir), "--store", store, code=1)
        )
        assert "is in use by a broker, process " in same_directory
        same_node = await asyncio.to_thread(
            lambda: refusal_of("serve", *OFFLINE, "--data-dir", str(new_dir), "--store", store, code=2)
        )
        assert "Node id 1 is in use" in same_node
        assert "or start with --take-over" in same_node
        async with link(old.port) as connection:
            assert await connection.offset("t", 0, LATEST) == 4

        # The old one hangs while it is replaced, as a paused virtual machine does, and wakes up with a client at its door.
        old.signal(signal.SIGSTOP)
        await asyncio.to_thread(new.start)
        assert any("t-0 continues at its tiered end 2" in line for line in new.lines)
        async with link(new.port) as connection:
            assert (await connection.produce("t", 0, plain_batch(1, b"new"))).base_offset == 2
        async with asyncio.TaskGroup() as group:
            late = group.create_task(late_produce(old.port))
            old.signal(signal.SIGCONT)
        code = await asyncio.to_thread(old.wait, NOTICED_S_MAX)
        assert code == FENCED, old.text
        (sentence,) = [line for line in old.lines if line.startswith("firn: ")]
        assert "Node id 1 has been taken over by data directory" in sentence
        assert any("this broker stood still for" in line for line in old.lines)
        assert await late == 0, "nothing is acknowledged after standing still before the cluster log was read"
        assert any(
            "did not answer at 127.0.0.1:" in line and "these records would be lost" in line for line in new.lines
        )
        # What was on its disk alone is not in the log; it says so. The late record may have been appended.
        (told,) = [line for line in old.lines if "the new broker may have given their offsets to other records" in line]
        assert "t-0 [2, 4)" in told or "t-0 [2, 5)" in told
        assert str(old_dir) in told

        # It does not come back by itself.
        again = await asyncio.to_thread(
            lambda: refusal_of("serve", *OFFLINE, "--data-dir", str(old_dir), "--store", store, code=2)
        )
        assert "or start with --take-over" in again
        records = await read_log(new.port, "t", 0)
        assert [record.value[:3].rstrip(b"\0") for record in records] == [b"0", b"1", b"new"]
        await asyncio.to_thread(new.stop)
    verified = firn("verify", "--store", store, "--json")
    assert json.loads(verified.stdout)["sound"], verified.stdout


async def late_produce(port: int) -> int:
    """One batch to a broker that does not know yet that it is replaced. Returns: how many records it acknowledged."""
    try:
        async with link(port) as connection:
            return int((await connection.produce("t", 0, plain_batch(1, b"late"))).error_code == 0)
    except (OSError, asyncio.IncompleteReadError):
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("announced", [False, True], ids=["begin", "finish"])
async def test_an_old_brokers_last_manifest_entry_meets_the_seal(tmp_path: Path, s3_port: int, announced: bool) -> None:
    """The begin or the finish of a copy is on its way while another broker takes over, and arrives when that one serves."""
    async with faulty_proxy(s3_port, random.Random(1)) as proxy:

        def store(port: int) -> str:
            return f"s3://{BUCKET}/here?endpoint=http://127.0.0.1:{port}&region=us-east-1&path_style=true"

        through, direct = store(proxy.port), store(s3_port)
        options: dict[str, Any] = {"environment": CREDENTIALS, "start": False}
        with (
            serving(tmp_path, name="old", store=through, **options) as old,
            serving(tmp_path, "--take-over", name="new", data_dir=tmp_path / "other", store=direct, **options) as new,
        ):
            await asyncio.to_thread(old.start)
            async with link(old.port) as connection:
                await connection.create_topic("t", 1, TIERED)
                for n in range(5):
                    await connection.produce("t", 0, plain_batch(1, b"%d" % n + bytes(400_000)))
                await tiered_to(connection, "t", 3)
                proxy.fault = Fault.HELD_MANIFESTS
                proxy.uploaded = not announced
                proxy.done.clear()
                for n in range(5, 8):
                    await connection.produce("t", 0, plain_batch(1, b"%d" % n + bytes(400_000)))
            await asyncio.to_thread(block_until, lambda: proxy.done[Fault.HELD_MANIFESTS], "an entry is on its way")
            await asyncio.to_thread(new.start)
            async with link(new.port) as connection:
                # A copy that was announced and is whole is the new one's now; one that was not announced never was.
                began = await connection.offset("t", 0, LATEST)
                assert began == (6 if announced else 4)
                assert (await connection.produce("t", 0, plain_batch(1, b"new 0"))).base_offset == began
                proxy.release.set()
                assert await asyncio.to_thread(old.wait, NOTICED_S_MAX) == FENCED
                for n in range(1, 6):
                    answer = await connection.produce("t", 0, plain_batch(1, b"new %d" % n + bytes(400_000)))
                    assert answer.base_offset == began + n
                assert await connection.offset("t", 0, EARLIEST) == 0
                await tiered_to(connection, "t", began + 2)
            values = [record.value.rstrip(b"\0") for record in await read_log(new.port, "t", 0)]
            assert values == [b"%d" % n for n in range(began)] + [b"new %d" % n for n in range(6)]
            await asyncio.to_thread(new.stop)
        verified = firn("verify", "--store", direct, "--json", **CREDENTIALS)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert json.loads(verified.stdout)["sound"]


@pytest.mark.slow
async def test_a_broker_cut_off_from_the_store_is_replaced_by_force_alone_and_acknowledges_nothing_after(
    tmp_path: Path, s3_port: int
) -> None:
    async with faulty_proxy(s3_port, random.Random(1)) as proxy:

        def store(port: int) -> str:
            return f"s3://{BUCKET}/cut?endpoint=http://127.0.0.1:{port}&region=us-east-1&path_style=true"

        options: dict[str, Any] = {"environment": CREDENTIALS, "start": False}
        with (
            serving(tmp_path, name="old", store=store(proxy.port), **options) as old,
            serving(
                tmp_path, "--take-over", name="new", data_dir=tmp_path / "other", store=store(s3_port), **options
            ) as new,
        ):
            await asyncio.to_thread(old.start)
            async with link(old.port) as connection:
                await connection.create_topic("t", 1, TIERED)
            acknowledged = 0

            async def produce() -> None:
                nonlocal acknowledged
                async with link(old.port) as connection:
                    while (await connection.produce("t", 0, plain_batch())).error_code == 0:
                        acknowledged += 1
                        await asyncio.sleep(0.01)

            producing = asyncio.create_task(produce())
            proxy.fault = Fault.DOWN

            def told_that_it_answers() -> bool:
                refused = firn(
                    "serve", *OFFLINE, "--data-dir", str(tmp_path / "third"), "--store", store(s3_port), **CREDENTIALS
                )
                assert refused.returncode == 2, refused
                return f"answers at 127.0.0.1:{old.port} though it gives no sign of life" in refused.stderr

            await asyncio.to_thread(block_until, told_that_it_answers, "nothing was heard of it for 30 s")
            before = acknowledged
            async with asyncio.timeout(30):
                while acknowledged <= before:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(new.start)
            assert any("was told at 127.0.0.1:" in line for line in new.lines)
            at_most, next_ = acknowledged, 0
            async with link(new.port) as connection:
                for _ in range(100):
                    next_ = (await connection.produce("t", 0, plain_batch())).base_offset
            assert next_ == 99, "nothing was in the store"
            assert acknowledged == at_most
            assert not producing.done(), "it waits for its answer"
            proxy.fault = Fault.NONE
            assert await asyncio.to_thread(old.wait, NOTICED_S_MAX) == FENCED
            assert acknowledged == at_most
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await producing
            await asyncio.to_thread(new.stop)
