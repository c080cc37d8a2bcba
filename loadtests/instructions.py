"""Instructions that a broker executes for a request, in this tree and in another commit. A busy machine does not change them.

    python -m loadtests.instructions 6f15e7d1 [--requests 2000] [--only "produce 1 KB, 1 connection"]

Each broker runs under Valgrind's callgrind, which counts the instructions of all its threads (about fifty times slower than
without). For each shape the count begins after a warm-up and ends after ``--requests`` requests, a few times over. It prints the
median of a request, and by how much the two trees differ. What timers cost meanwhile is taken off, and the kernel's
work is not counted. It needs Debian's valgrind.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.framing import request_frame
from app.wire.produce import encode_produce_request
from loadtests.firn_peer import serve_command
from loadtests.raw_load import PRODUCE_VERSION, ensure_topic, first_answer, make_batch
from loadtests.raw_wire import Wire
from loadtests.system import free_port
from loadtests.turns import HERE, worktree

START_TIMEOUT_S: Final = 600.0
REST_S: Final = 10.0
PIPELINE: Final = 5
TOPIC: Final = "t"
TOTALS: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
Work = Callable[[int], None]
"""Sends so many requests, and waits for the responses."""


class CountedBroker:
    """A broker of ``tree`` under callgrind."""

    def __init__(self, tree: Path, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._output = (directory / "broker.out").open("wb")
        self._dumps = 0
        self._at_rest = 0.0
        """Instructions of a second without requests."""
        self._process = subprocess.Popen(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/counts"),
                *serve_command(directory, self.port),
            ],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> None:
        """Until it listens. Raises: SystemExit, if it ends or takes too long."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"the broker does not start: {self._text()[-2000:]}") from None
                time.sleep(0.5)

    def _text(self) -> str:
        return (self._directory / "broker.out").read_text(errors="replace")

    def _control(self, *options: str) -> None:
        subprocess.run(
            ["callgrind_control", *options, str(self._process.pid)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=600,
        )

    def rest(self) -> None:
        """Count the cost of a second at rest. Under Valgrind a request takes fifty times as long, and timers run meanwhile: their
        part is subtracted from later counts."""
        self._at_rest = 0.0
        self._at_rest = self._counted(lambda: time.sleep(REST_S)) / REST_S

    def count(self, work: Work, requests: int) -> float:
        """Instructions of one of ``requests`` requests."""
        return self._counted(lambda: work(requests)) / requests

    def _counted(self, work: Callable[[], object]) -> float:
        self._control("--zero")
        began_s = time.monotonic()
        work()
        took_s = time.monotonic() - began_s
        self._dumps += 1
        self._control("--dump")
        dump = self._directory / f"counts.{self._dumps}"
        found = TOTALS.findall(dump.read_text(errors="replace"))
        dump.unlink()
        return int(found[-1]) - self._at_rest * took_s

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def exchange(wires: list[Wire], requests: int, frame: bytes) -> None:
    """Send ``requests`` frames over all connections, ``PIPELINE`` at once on each, and read the responses."""
    left = requests
    while left > 0:
        sent: list[int] = []
        for wire in wires:
            many = min(PIPELINE, left)
            left -= many
            sent.append(many)
            if many:
                wire.socket.sendall(frame * many)
        for wire, many in zip(wires, sent, strict=True):
            for _ in range(many):
                wire.read_frame()


def produce_work(port: int, batch_bytes: int, connections: int) -> Work:
    """Requests of one batch each, acks=1."""
    wires = [Wire("127.0.0.1", port) for _ in range(connections)]
    ensure_topic(wires[0], TOPIC)
    batch = make_batch(max(1, batch_bytes // 500), batch_bytes, -1, Random(7))
    pieces = encode_produce_request(
        PRODUCE_VERSION, 1, "count", [(TOPIC, [(0, memoryview(batch))])], acks=1, timeout_ms=30_000
    )
    frame = b"".join(pieces)
    first_answer(wires[0], PRODUCE_VERSION, bytearray(frame))
    return lambda requests: exchange(wires, requests, frame)


def fetch_work(port: int, max_bytes: int) -> Work:
    """Fetch requests of the topic's first records, which a Produce has written just before."""
    wire = Wire("127.0.0.1", port)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    message = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    frame = request_frame(ApiKey.FETCH, 11, 1, "count", message)
    return lambda requests: exchange([wire], requests, frame)


SHAPES: Final[dict[str, Callable[[int], Work]]] = {
    "produce 1 KB, 1 connection": lambda port: produce_work(port, 1_000, 1),
    "produce 1 KB, 50 connections": lambda port: produce_work(port, 1_000, 50),
    "produce 16 KB, 1 connection": lambda port: produce_work(port, 16_000, 1),
    "produce 16 KB, 50 connections": lambda port: produce_work(port, 16_000, 50),
    "hot fetch, 64 KiB": lambda port: fetch_work(port, 64 << 10),
}


@contextmanager
def counted_broker(tree: Path) -> Iterator[CountedBroker]:
    with tempfile.TemporaryDirectory(prefix="firn-instructions-") as directory:
        broker = CountedBroker(tree, Path(directory))
        try:
            broker.wait()
            yield broker
        finally:
            broker.stop()


def measure(tree: Path, shapes: list[str], requests: int, times: int) -> dict[str, list[float]]:
    """By shape: instructions of a request, one figure for each time."""
    found: dict[str, list[float]] = {}
    with counted_broker(tree) as broker:
        time.sleep(REST_S)  # what a start leaves for later
        broker.rest()
        for shape in shapes:
            work = SHAPES[shape](broker.port)
            work(requests)
            found[shape] = [broker.count(work, requests) for _ in range(times)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", action="append", choices=list(SHAPES))
    options = parser.parse_args()
    shapes = options.only or list(SHAPES)
    with worktree(options.commit) as tree:
        before = measure(tree, shapes, options.requests, options.times)
    now = measure(HERE, shapes, options.requests, options.times)
    print(f"instructions of a request, median of {options.times} counts of {options.requests} requests (least to most)")
    for shape in shapes:
        was, is_now = statistics.median(before[shape]), statistics.median(now[shape])
        spans = [f"({min(one):,.0f} to {max(one):,.0f})" for one in (before[shape], now[shape])]
        print(
            f"{shape:30} {was:10,.0f} {spans[0]:24} now {is_now:10,.0f} {spans[1]:24} {is_now / was:.3f} x", flush=True
        )


if __name__ == "__main__":
    main()
