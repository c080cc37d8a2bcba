"""How long a drain takes beside its bytes over the upload rate: `python -m loadtests.drain [--delay-ms 30]`.

Starts a broker of its own beside an S3 server with latency (``slow_s3.py``), or a directory store without ``--delay-ms``. First it
measures the upload rate: as many bytes in one topic, rolled and copied as always. Then it fills another topic, leaves all of it in
active segments, drains, and prints the drain's time, and what is over bytes ÷ rate. That is to be below 5 s (ADR 0019).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from app.broker.start.process import Broker
from app.client.connection import open_connection
from app.configs import BrokerConfig, TopicConfig
from app.core.errors import FirnError
from app.core.limits import MIB
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.private import DrainRequest, DrainResponse, pack, unpack
from loadtests.start_up import S3_ENVIRONMENT, s3_url, slow_s3

LOOK_S = 0.05
ASK_S = 0.2
"""As `firn drain` asks."""
ALLOWED_S = 5.0
BATCH_BYTES = 100_000


class Case(NamedTuple):
    name: str
    partitions: int
    bytes_each: int


CASES = (
    Case("one tail of 128 MiB", 1, 128 * MIB),
    Case("16 tails of 8 MiB", 16, 8 * MIB),
    Case("100 tails of 1 kB", 100, 1000),
    Case("1,000 tails of 1 kB", 1000, 1000),
)


def fill(broker: Broker, topic: str, case: Case) -> int:
    """Append to every partition, in one segment each. Returns how many bytes."""
    now_ms = broker.node.context.clock.now_ms()
    written = 0
    for index in range(case.partitions):
        log = broker.node.logs.get(topic, index)
        assert log is not None
        left = case.bytes_each
        while left > 0:
            size = min(left, BATCH_BYTES)
            data = build_batch([(now_ms, b"key", os.urandom(max(1, size - 100)), ())])
            log.append_as_leader(memoryview(bytearray(data)), now_ms=now_ms)
            left -= size
        written += log.size_bytes
    return written


async def until(condition: Callable[[], bool]) -> float:
    """Seconds until ``condition`` holds."""
    began_s = time.monotonic()
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - began_s


async def make(broker: Broker, topic: str, partitions: int) -> None:
    await broker.node.membership.controller.create_topic(topic, partitions, {})
    manager = broker.node.remote_log_manager
    await until(lambda: len([one for one in manager.status() if one.topic == topic]) == partitions)


class Measured(NamedTuple):
    reference_s: float
    drain_s: float
    filled_bytes: int
    broker_cpu_s: float
    """Of the drain."""
    store_cpu_s: float


def cpu_s(process_id: int) -> float:
    times = psutil.Process(process_id).cpu_times()
    return float(times.user + times.system)


async def measure(case: Case, directory: str, store_url: str) -> Measured:
    defaults = TopicConfig(segment_bytes=1 << 30, firn_tier_max_lag_ms=3_600_000)
    config = BrokerConfig(
        data_dir=f"{directory}/data",
        store_url=store_url,
        listen_port=0,
        http_address="off",
        topic_defaults=defaults,
        firn_log_dir_free_bytes_min=0,
    )
    broker = Broker(config, log_line=lambda line: None)
    try:
        await broker.start()
        for topic in ("reference", "drained"):
            await make(broker, topic, case.partitions)
        reference_bytes = fill(broker, "reference", case)
        logs = [broker.node.logs.get("reference", index) for index in range(case.partitions)]
        for log in logs:
            assert log is not None
            log.roll()
        broker.node.remote_log_manager.look()
        manager = broker.node.remote_log_manager
        reference_s = await until(
            lambda: all(
                log is not None and manager.tiered_end(log.topic_id, log.partition) == log.log_end_offset
                for log in logs
            )
        )
        filled = fill(broker, "drained", case)
        assert abs(filled - reference_bytes) <= filled // 100
        connection = await open_connection("127.0.0.1", broker.node.port)
        before = cpu_s(os.getpid()), cpu_s(broker.store_process_id)
        began_s = time.monotonic()
        answer = None
        while answer is None or answer.state != "drained":
            told = await connection.request(ApiKey.FIRN_DRAIN, pack(DrainRequest("begin")))
            answer = unpack(DrainResponse, told)
            await asyncio.sleep(ASK_S)
        await connection.request(ApiKey.FIRN_DRAIN, pack(DrainRequest("stop")))
        drain_s = time.monotonic() - began_s
        after = cpu_s(os.getpid()), cpu_s(broker.store_process_id)
        await connection.close()
        await broker.wait()
        return Measured(reference_s, drain_s, filled, after[0] - before[0], after[1] - before[1])
    finally:
        await broker.stop()


@contextlib.contextmanager
def store(directory: Path, delay_ms: float | None) -> Iterator[str]:
    if delay_ms is None:
        yield f"file://{directory}/store"
        return
    (directory / "bucket").mkdir()
    with slow_s3(directory / "bucket", delay_ms) as endpoint:
        os.environ.update(S3_ENVIRONMENT)
        yield s3_url(endpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--delay-ms", type=float, help="latency of each S3 request; without it the store is a directory"
    )
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="only this one")
    arguments = parser.parse_args()
    late = False
    for case in CASES if arguments.case is None else [CASES[arguments.case]]:
        with tempfile.TemporaryDirectory() as directory, store(Path(directory), arguments.delay_ms) as url:
            try:
                found = asyncio.run(measure(case, directory, url))
            except FirnError as error:
                sys.exit(str(error))
        over_s = found.drain_s - found.reference_s
        late = late or over_s > ALLOWED_S
        rate = found.filled_bytes / found.reference_s / 1e6
        broker_ms, store_ms = (one / case.partitions * 1e3 for one in (found.broker_cpu_s, found.store_cpu_s))
        print(
            f"{case.name}: uploaded as always in {found.reference_s:.2f} s ({rate:.1f} MB/s), drained in {found.drain_s:.2f} s:"
            f" {over_s:+.2f} s beside bytes ÷ rate; CPU a partition: broker {broker_ms:.1f} ms, store {store_ms:.1f} ms"
        )
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
