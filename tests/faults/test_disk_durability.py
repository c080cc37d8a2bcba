"""``firn.durability=disk``: no acknowledgement leaves before the disk has what it speaks of. The kernel's own record says so."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.wire.apis.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from app.wire.framing import response_frame
from tests.faults.producing import PRODUCE_VERSION, Link, plain_batch, produce_frame
from tests.faults.served import serving
from tests.faults.syscalls import TRACED, Verdict, acknowledged_too_early
from tests.support.waiting import block_until

IN_FLIGHT = 4
BATCHES = 60


@contextmanager
def traced(process_id: int, trace: Path) -> Iterator[None]:
    """Record the system calls of a running process and its threads. Skips where that is not possible."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    command = [strace, "-f", "-yy", "-xx", "-s", "4096", "-e", f"trace={TRACED}", "-o", str(trace)]
    with (trace.parent / "strace.txt").open("w+") as said:
        process = subprocess.Popen([*command, "-p", str(process_id)], stdin=subprocess.DEVNULL, stderr=said)
        try:

            def text() -> str:
                return (trace.parent / "strace.txt").read_text()

            block_until(lambda: "attached" in text() or process.poll() is not None, "strace is attached")
            if process.poll() is not None:
                pytest.skip(f"strace cannot attach: {text()}")
            yield
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


async def acknowledgements(path: Path, durability: str) -> Verdict:
    """Produce with several requests under way, over several segments, under the eyes of strace."""
    trace = path / "trace"
    with serving(path) as broker:
        assert broker.process is not None
        with traced(broker.process.pid, trace):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            connection = Link(reader, writer)
            client_port = writer.get_extra_info("sockname")[1]
            admin = Link(*await asyncio.open_connection("127.0.0.1", broker.port))
            await admin.create_topic("t", 1, {"firn.durability": durability, "segment.bytes": "1048576"})

            async def produce() -> None:
                under_way = 0
                for number in range(BATCHES + IN_FLIGHT):
                    if number < BATCHES:
                        connection.write(produce_frame("t", 0, plain_batch(2, b"%03d" % number + bytes(30_000))))
                        under_way += 1
                    if under_way == IN_FLIGHT or number >= BATCHES:
                        answer = await connection.answer(0, PRODUCE_VERSION)
                        assert answer.responses[0].partition_responses[0].error_code == 0
                        under_way -= 1
                        if not under_way:
                            return

            await produce()
            await connection.close()
            await admin.close()
        data_dir = str(broker.data_dir.resolve())
    with trace.open() as lines:
        return acknowledged_too_early(lines, data_dir, f"{data_dir}/t-0", client_port)


@pytest.mark.ci
async def test_nothing_is_acknowledged_before_its_bytes_and_names_are_synced(tmp_path: Path) -> None:
    verdict = await acknowledgements(tmp_path, "disk")
    assert verdict.acknowledged == BATCHES
    assert not verdict.too_early, verdict.too_early[:5]


@pytest.mark.ci
async def test_the_check_finds_acknowledgements_that_are_too_early(tmp_path: Path) -> None:
    """With ``memory`` they are: if the check said nothing then, it would not look."""
    verdict = await acknowledgements(tmp_path, "memory")
    assert verdict.acknowledged == BATCHES
    assert len(verdict.too_early) > BATCHES / 2


def test_each_way_of_being_too_early_is_told_apart() -> None:
    """A trace by hand: the bytes are synced, but not the names."""
    header = "\\x00" * 8 + "\\x00" * 53
    result = PartitionProduceResponse(0, base_offset=0)
    answer = ProduceResponse([TopicProduceResponse("t", partition_responses=[result])])
    shown = "".join(f"\\x{byte:02x}" for byte in response_frame(0, PRODUCE_VERSION, 1, answer))
    made = "".join(f"\\x{byte:02x}" for byte in b"/d/t-0")
    lines = [
        f'7 mkdir("{made}", 0777) = 0',
        '7 openat(AT_FDCWD</>, "\\x2f", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 9</d/t-0/0.log>',
        f'7 pwrite64(9</d/t-0/0.log>, "{header}", 61, 0) = 61',
        "8 fdatasync(9</d/t-0/0.log> <unfinished ...>",
        "7 fsync(11</d/t-0>) = 0",
        "8 <... fdatasync resumed>) = 0",
        "7 fsync(12</d>) = 0",
        f'7 write(10<TCP:[127.0.0.1:9092->127.0.0.1:5]>, "{shown}", 53) = 53',
    ]

    def verdict(*left_out: int, order: list[int] | None = None) -> Verdict:
        numbers = order or [number for number in range(len(lines)) if number not in left_out]
        return acknowledged_too_early([lines[number] for number in numbers], "/d", "/d/t-0", 5)

    assert verdict() == (1, [])
    cut = lines[-1].replace(") = 53", " <detached ...>")
    assert acknowledged_too_early([*lines[:-1], cut], "/d", "/d/t-0", 5) == (1, []), "strace ended in the last call"
    assert "name of /d/t-0/0.log is not synced" in verdict(4).too_early[0]
    assert "name of /d/t-0 is not synced" in verdict(6).too_early[0]
    assert "not synced" in verdict(3, 5).too_early[0]
    assert "not synced" in verdict(order=[0, 1, 3, 2, 4, 5, 6, 7]).too_early[0], "the sync began before the write"
    assert "not synced" in verdict(order=[0, 1, 2, 3, 4, 7, 5, 6]).too_early[0], "the sync has not returned"
