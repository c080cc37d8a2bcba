"""A broker with object durability is killed, and another one goes on with its partitions from the write-ahead log.

    python -m loadtests.take_over [--partitions 1000] [--megabytes 500] [--delay-ms 30]

Two brokers without disks lead about ``--partitions`` each. The second one's partitions get the megabytes, nothing of which is
tiered when it is killed. The store is an S3 stand-in that waits before every answer. The figures are seconds from the kill until
the killed broker leads nothing any more, and until the first one leads all of these partitions, has taken a record of some and of
each, and has given back the last acknowledged record of each to a reader that asks meanwhile.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.core.errors import ErrorCode
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import decode_produce_response, encode_produce_request
from loadtests.measuring import Report, cpu_seconds, memory_mb
from loadtests.start_up import s3_url, slow_s3
from loadtests.zero_and_back import AGAIN_S, METADATA_VERSION, PRODUCE_VERSION, TOPIC, Broker, ended

BATCH_BYTES = 16_000
BATCHES_A_REQUEST = 48
IN_FLIGHT = 8
BALANCE_S = 120.0


def leaders_of(broker: Broker) -> dict[int, int]:
    """By partition."""
    asked = request_frame(
        ApiKey.METADATA, METADATA_VERSION, 1, "take", MetadataRequest([MetadataRequestTopic(name=TOPIC)])
    )
    answer = broker.ask(asked)
    start = parse_response_header(answer, ApiKey.METADATA, METADATA_VERSION).body_start
    found = decode_response(ApiKey.METADATA, METADATA_VERSION, answer[start:]).topics[0]
    return {one.partition_index: one.leader_id for one in found.partitions}


def wait_for_share(first: Broker, partitions: int) -> tuple[int, list[int]]:
    """The second broker's id, and the partitions that it leads, once it has its share."""
    began = time.perf_counter()
    while time.perf_counter() - began < BALANCE_S:
        by_leader: dict[int, list[int]] = {}
        for index, leader in leaders_of(first).items():
            by_leader.setdefault(leader, []).append(index)
        if -1 not in by_leader and len(by_leader) == 2:
            newer = max(by_leader)
            if abs(len(by_leader[newer]) - partitions) <= partitions // 10:
                return newer, by_leader[newer]
        time.sleep(AGAIN_S)
    raise SystemExit("the second broker got no share of the leaders")


def fill(broker: Broker, partitions: Sequence[int], total_bytes: int) -> dict[int, int]:
    """Batches to the partitions in turn, several requests in flight. Returns: the end of each."""
    batch = build_batch([(int(time.time() * 1000), None, os.urandom(BATCH_BYTES), ())])
    ends = dict.fromkeys(partitions, 0)
    turns = -(-total_bytes // (len(batch) * len(partitions)))
    groups = [
        partitions[start : start + BATCHES_A_REQUEST] for start in range(0, len(partitions), BATCHES_A_REQUEST)
    ] * turns
    assert broker.wire is not None
    sent = answered = 0
    while answered < len(groups):
        while sent < len(groups) and sent - answered < IN_FLIGHT:
            wanted = [(TOPIC, [(index, batch) for index in groups[sent]])]
            broker.wire.socket.sendall(
                b"".join(encode_produce_request(PRODUCE_VERSION, sent, "take", wanted, acks=-1, timeout_ms=30_000))
            )
            sent += 1
        answer = broker.wire.read_frame()
        start = parse_response_header(answer, ApiKey.PRODUCE, PRODUCE_VERSION).body_start
        for one in decode_produce_response(PRODUCE_VERSION, answer[start:]).responses[0].partition_responses:
            if one.error_code:
                raise SystemExit(f"Produce to {one.index} answers {ErrorCode(one.error_code).name}")
            ends[one.index] = one.base_offset + 1
        answered += 1
    return ends


def take_over(base: Path, *, partitions: int, megabytes: int, delay_ms: float) -> Report:
    """The figures of one round, in ``base``. Raises: SystemExit, with what did not work."""
    (base / "bucket").mkdir(parents=True)
    with slow_s3(base / "bucket", delay_ms) as endpoint, ended(Broker(base / "first", s3_url(endpoint))) as first:
        first.create(2 * partitions)
        first.wait_for_leaders(2 * partitions)
        with ended(Broker(base / "second", s3_url(endpoint))) as second:
            node, led = wait_for_share(first, partitions)
            second.produce(led)  # until it leads them itself
            ends = fill(second, led, megabytes * 1_000_000)
            second.end(signal.SIGKILL)
        killed = time.perf_counter()
        report: Report = {"led": len(led), "mb": sum(ends.values()) * BATCH_BYTES / 1e6}
        cpu_s = cpu_seconds(first.process.pid)
        while node in leaders_of(first).values():
            time.sleep(AGAIN_S)
        report["session_s"] = time.perf_counter() - killed
        while any(leader < 0 for leader in leaders_of(first).values()):
            time.sleep(AGAIN_S)
        report["leaders_s"] = time.perf_counter() - killed
        reads = threading.Thread(
            target=_first_reads, args=(first, {index: end - 1 for index, end in ends.items()}, report, killed)
        )
        reads.start()
        last = _first_writes(first, led, report, killed)
        reads.join()
        if "reads_s" not in report:
            raise SystemExit("the reader got no record of some partitions")  # its thread has said why
        assert all(last[index] == end for index, end in ends.items()), "offsets go on"
        report["broker_cpu_s"] = cpu_seconds(first.process.pid) - cpu_s
        report["broker_mb"] = memory_mb(first.process.pid)
    return report


def _first_writes(broker: Broker, partitions: Sequence[int], report: Report, killed: float) -> Mapping[int, int]:
    """Produce to all; notes when the first and when the last of them took a record."""
    first = broker.produce_any(partitions)
    report["first_write_s"] = time.perf_counter() - killed
    rest = broker.produce([index for index in partitions if index not in first])
    report["writes_s"] = time.perf_counter() - killed
    return {**first, **rest}


def _first_reads(broker: Broker, offsets: Mapping[int, int], report: Report, killed: float) -> None:
    """Read the last acknowledged record of each, on a connection of its own; notes when all have given theirs."""
    reader = copy.copy(broker)
    reader.wire = None
    reader.fetch(offsets)
    report["reads_s"] = time.perf_counter() - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--delay-ms", type=float, default=30.0)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp())
    try:
        print(
            take_over(base, partitions=arguments.partitions, megabytes=arguments.megabytes, delay_ms=arguments.delay_ms)
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
