"""CPU time that a broker of this tree needs for a request, and a broker of another commit, in pairs.

    python -m loadtests.pairs 6f15e7d1 [--starts 7] [--pairs 5] [--only "produce 1 KB, 1 connection"]

Both brokers run at the same time on one core, and the client on another one. A pair is the same requests to one broker, then to the
other one, in changing order. The CPU time is that of all threads of the broker and of its child processes, kernel included.
Two processes of one program differ by several percent in where their memory lies, so brokers are started anew ``--starts`` times.
It prints the median of each side, and the median of the ratios of all starts with an interval (by ranks, so no distribution is
assumed). The ratio of a start is the median of its pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import psutil

from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.framing import request_frame
from app.wire.produce import encode_produce_request
from loadtests.firn_peer import serve_command
from loadtests.raw_load import PRODUCE_VERSION, ensure_topic, first_answer, make_batch
from loadtests.raw_wire import Wire
from loadtests.system import free_port
from loadtests.turns import HERE, worktree

START_TIMEOUT_S: Final = 60
PIPELINE: Final = 5
"""Requests in flight of one connection: librdkafka's and Java's default."""
CONFIDENCE: Final = 0.95
TOPIC: Final = "t"
Work = Callable[[int], None]
"""Sends so many requests, and waits for the responses."""


class Broker:
    """A broker of ``tree`` on core ``core``."""

    def __init__(self, tree: Path, directory: Path, core: int) -> None:
        self.port = free_port()
        self._output = (directory / "broker.out").open("wb")
        self._directory = directory
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), *serve_command(directory, self.port)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
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
                    text = (self._directory / "broker.out").read_text(errors="replace")
                    raise SystemExit(f"The broker does not start: {text[-2000:]}") from None
                time.sleep(0.1)

    def cpu_s(self) -> float:
        """Of all threads of the broker and of its child processes, since they began."""
        broker = psutil.Process(self._process.pid)
        return (
            sum(
                int(task.read_text().split()[0])
                for process in (broker, *broker.children(recursive=True))
                for task in Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            )
            / 1e9
        )

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def exchange(wires: Sequence[Wire], requests: int, frame: bytes) -> None:
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
        PRODUCE_VERSION, 1, "pairs", [(TOPIC, [(0, memoryview(batch))])], acks=1, timeout_ms=30_000
    )
    frame = b"".join(pieces)
    first_answer(wires[0], PRODUCE_VERSION, bytearray(frame))
    return lambda requests: exchange(wires, requests, frame)


def fetch_work(port: int, max_bytes: int) -> Work:
    """Fetch requests of the topic's first records, which Produce requests have written just before."""
    produce_work(port, 16_000, 1)(2 * max_bytes // 16_000)
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
    frame = request_frame(ApiKey.FETCH, 11, 1, "pairs", message)
    return lambda requests: exchange([wire], requests, frame)


class Shape(NamedTuple):
    requests: int
    """Of one side of a pair."""
    work: Callable[[int], Work]
    """By the broker's port."""


SHAPES: Final[dict[str, Shape]] = {
    "produce 1 KB, 1 connection": Shape(20_000, lambda port: produce_work(port, 1_000, 1)),
    "produce 1 KB, 50 connections": Shape(20_000, lambda port: produce_work(port, 1_000, 50)),
    "produce 16 KB, 1 connection": Shape(4_000, lambda port: produce_work(port, 16_000, 1)),
    "produce 16 KB, 50 connections": Shape(4_000, lambda port: produce_work(port, 16_000, 50)),
    "hot fetch, 64 KiB": Shape(8_000, lambda port: fetch_work(port, 64 << 10)),
}


@contextmanager
def brokers(trees: Sequence[Path], core: int) -> Iterator[list[Broker]]:
    with tempfile.TemporaryDirectory(prefix="firn-pairs-") as directory:
        started: list[Broker] = []
        try:
            for index, tree in enumerate(trees):
                folder = Path(directory) / str(index)
                folder.mkdir()
                started.append(Broker(tree, folder, core))
            for broker in started:
                broker.wait()
            yield started
        finally:
            for broker in started:
                broker.stop()


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, with at least ``CONFIDENCE``: the ranks that a binomial distribution of one half gives (the sign test)."""
    ordered, many = sorted(values), len(values)
    rank = 0
    outside = 0.0
    while True:
        outside += 2 * math.comb(many, rank) / 2**many
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    return ordered[max(rank - 1, 0)], ordered[min(many - rank, many - 1)]


def compare(before: Broker, now: Broker, shape: Shape, pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of a request, of both sides, by pair."""
    sides = [(broker, shape.work(broker.port), list[float]()) for broker in (before, now)]
    for pair in range(pairs + 1):
        for broker, work, found in sides if pair % 2 else reversed(sides):
            began_s = broker.cpu_s()
            work(shape.requests)
            if pair:  # The first one warms up.
                found.append((broker.cpu_s() - began_s) / shape.requests)
    return sides[0][2], sides[1][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=5, help="of each start")
    parser.add_argument("--only", action="append", choices=list(SHAPES))
    options = parser.parse_args()
    client_core, broker_core = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {client_core})
    names = options.only or list(SHAPES)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with worktree(options.commit) as tree:
        for start in range(options.starts):
            trees = [tree, HERE]
            with brokers(trees if start % 2 else trees[::-1], broker_core) as started:
                before, now = started if start % 2 else started[::-1]
                for name in names:
                    was, is_now = compare(before, now, SHAPES[name], options.pairs)
                    found[name].append((statistics.median(was), statistics.median(is_now)))
    print(f"CPU us of a request, medians of {options.starts} starts; in brackets the interval of the ratio's median")
    for name in names:
        ratios = [after / earlier for earlier, after in found[name]]
        least, most = interval(ratios)
        was_s, now_s = (statistics.median(side) for side in zip(*found[name], strict=True))
        print(
            f"{name:30} before {was_s * 1e6:6.2f} now {now_s * 1e6:6.2f}"
            f"   {statistics.median(ratios):.3f} x ({least:.3f} to {most:.3f})"
        )


if __name__ == "__main__":
    main()
