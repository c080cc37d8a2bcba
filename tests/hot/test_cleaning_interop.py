"""Compaction beside Kafka's: the same log cleaned by Kafka's own cleaner, and our result opened by Kafka's dump tool."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from app.configs import TopicConfig
from app.core.units import LeaderEpoch, ProducerEpoch, ProducerId
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.machine.files import PosixFileSystem
from app.records.batch import iter_headers
from app.records.control import ControlType
from app.records.record import iter_records
from tests.hot.cleaning import COMPACT, cleaner_over, keyed
from tests.hot.helpers import ManualClock, manager_over, new_log, running

LIBRARIES = os.environ.get("FIRN_KAFKA_LIBS", "")
CLEAN = Path(__file__).parent.parent / "interop" / "java" / "Clean.java"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not LIBRARIES, reason="FIRN_KAFKA_LIBS does not name the directory of Kafka's jars"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java"),
]

SETTINGS = {**COMPACT, "segment_bytes": 1 << 20, "delete_retention_ms": 10_000}
KAFKA_SETTINGS = ["cleanup.policy=compact", f"segment.bytes={1 << 20}", "delete.retention.ms=10000"]


async def java(*arguments: str) -> str:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{LIBRARIES}/*", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, errors = (part.decode() for part in await asyncio.wait_for(process.communicate(), 120))
    assert process.returncode == 0, errors
    assert "Exception" not in answer + errors, answer + errors
    return answer


async def fill(log: PartitionLog, seed: int, now: int) -> None:
    """Segments of batches with and without producers, of all codecs, with tombstones, and transactions that end both ways."""
    rng = random.Random(seed)
    sequences = {1: 0, 2: 0, 3: 0}
    log.become_leader(LeaderEpoch(1))
    for number in range(300):
        if number % 60 == 59:
            log.roll()
            await log.flush()
        if number == 150:
            log.become_leader(LeaderEpoch(4))
        rows = [
            (b"key-%d" % rng.randrange(40), rng.choice([None, b"", b"value-%d" % number, b"x" * 100]))
            for _ in range(rng.randrange(1, 5))
        ]
        codec = rng.choice([0, 0, 0, 1, 2, 3, 4])
        producer_id = rng.choice([-1, -1, 1, 2, 3])
        fields: dict[str, object] = {"codec": codec, "timestamp": now - 50_000 + rng.randrange(100)}
        if producer_id < 0:
            log.append_as_leader(keyed(*rows, **fields), now_ms=now)  # type: ignore[arg-type]
            continue
        transactional = producer_id != 3
        fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences[producer_id]}
        log.append_as_leader(keyed(*rows, transactional=transactional, **fields), now_ms=now)  # type: ignore[arg-type]
        sequences[producer_id] += len(rows)
        if transactional and rng.random() < 0.6:
            end_transaction(log, producer_id, rng.choice(list(ControlType)), now)
    for producer_id in list(log.producers.open_transactions):
        end_transaction(log, producer_id, ControlType.COMMIT, now)
    # After this nothing of the part that is cleaned is any producer's last batch but number 3's.
    for producer_id in (1, 2):
        log.append_as_leader(
            keyed(
                (b"end", b"x"),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequences[producer_id],
                transactional=True,
                timestamp=now,
            ),
            now_ms=now,
        )
        end_transaction(log, producer_id, ControlType.COMMIT, now)
    log.roll()
    await log.flush()


def end_transaction(log: PartitionLog, producer_id: int, kind: ControlType, now: int) -> None:
    log.append_control(
        kind, producer_id=ProducerId(producer_id), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=now
    )


def content(directory: str) -> list[tuple[object, ...]]:
    """Batches of all segments: everything but the checksum, the length and how records are compressed."""
    found = []
    for name in sorted(os.listdir(directory)):
        if name.endswith(".log"):
            data = Path(directory, name).read_bytes()
            for position, header in iter_headers(data):
                batch = memoryview(data)[position : position + header.size_bytes]
                exact = bytes(batch) if not header.codec else b""
                found.append((header._replace(crc=0, batch_length=0), exact, tuple(iter_records(batch))))
    return found


def aborted(directory: str) -> bytes:
    return b"".join(
        Path(directory, name).read_bytes() for name in sorted(os.listdir(directory)) if name.endswith(".txnindex")
    )


async def opened(data_dir: str, clock: ManualClock) -> tuple[LogManager, PartitionLog]:
    manager = manager_over(PosixFileSystem(), data_dir=data_dir, clock=clock)
    await manager.load_all()
    log = manager.get("t", 0)
    if log is None:
        return manager, new_log(manager, **SETTINGS)
    log.update_config(TopicConfig(**SETTINGS))  # type: ignore[arg-type]
    return manager, log


@pytest.mark.ci
@pytest.mark.parametrize("seed", [1, 2])
async def test_kafkas_own_cleaner_makes_the_same_of_the_same_log(tmp_path: Path, seed: int) -> None:
    now = time.time_ns() // 1_000_000
    clock = ManualClock(now)
    ours, theirs = tmp_path / "data", tmp_path / "kafka"
    manager, log = await opened(str(ours), clock)
    async with running(manager):
        await fill(log, seed, now)
    dirty_end = log.segments()[-1].base_offset
    await manager.close()
    shutil.copytree(ours / "t-0", theirs / "t-0")
    left = []
    # A second round finds nothing of aborted transactions, a third one is past the delete horizon.
    for later_ms in (0, 1, 20_000):
        clock.now = now + later_ms
        kafka = asyncio.create_task(
            java(str(CLEAN), f"{theirs}/t-0", "0", str(dirty_end), str(clock.now), *KAFKA_SETTINGS)
        )
        manager, log = await opened(str(ours), clock)
        log.cleaned_end_offset = None
        async with running(manager):
            assert await cleaner_over(manager, PosixFileSystem(), clock=clock).clean_next()
            await manager.take_out_trash(clock.now)
        await manager.close()
        assert (await kafka).strip() == str(dirty_end)
        assert content(f"{ours}/t-0") == content(f"{theirs}/t-0")
        assert aborted(f"{ours}/t-0") == aborted(f"{theirs}/t-0")
        left.append(sum(len(records) for _, _, records in content(f"{ours}/t-0")))
    assert left[0] > left[2], "nothing went after its delete horizon"


async def test_kafkas_dump_tool_finds_what_was_compacted_in_order(tmp_path: Path) -> None:
    now = time.time_ns() // 1_000_000
    clock = ManualClock(now)
    manager, log = await opened(str(tmp_path), clock)
    async with running(manager):
        await fill(log, 3, now)
        assert await cleaner_over(manager, PosixFileSystem(), clock=clock).clean_next()
        await log.flush()
        await manager.take_out_trash(clock.now)
    await manager.close()
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(f"{log.path}/{name}" for name in os.listdir(log.path) if name.endswith(suffixes))
    output = await java(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--verify-index-only", "--files", ",".join(files)
    )
    for complaint in ("Mismatches", "isvalid: false", "Found timestamp mismatch", "out of order", "corrupt"):
        assert complaint not in output, output[-2000:]
    assert output.count("Dumping") == len(files)
    assert "deleteHorizonMs: OptionalLong[" in output
