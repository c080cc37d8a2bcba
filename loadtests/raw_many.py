"""Many connections at once from one thread: pipelined Produce requests, or consumers that all read the same partition.

    python loadtests/raw_many.py produce-many --port 9092 --topic t --connections 50 --batch-bytes 16384 --records 140
    python loadtests/raw_many.py fetch-many --port 9092 --topic t --connections 100 --max-bytes 1048576

As ``raw_load``: requests are built once and patched, answers are counted by their size. Every connection of a producer has a
producer id of its own; partitions are dealt out over the connections. Prints one JSON object. Its ``load_share`` is the share of
the time in which this process was at work: near 1 it is this process that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from crc32c import crc32c

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.records.batch import HEADER, HEADER_BYTES
from app.records.compression import CODEC_NAMES
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.framing import request_frame
from app.wire.produce import encode_produce_request
from loadtests.processes import families_cpu_seconds, process_ids
from loadtests.raw_load import (
    CRC_POSITION,
    CRC_START,
    PARTITION_ANSWER,
    PRODUCE_VERSION,
    SEQUENCE_POSITION,
    ensure_topic,
    first_answer,
    make_batch,
    percentiles,
)
from loadtests.raw_tls import add_options, secured_of
from loadtests.raw_wire import INT32, Wire

INT64 = Struct(">q")
UINT32 = Struct(">I")
PLACEHOLDER = 0x0123456789ABCDEF


class Producing:
    """One connection with a producer of its own."""

    def __init__(self, arguments: argparse.Namespace, place: int) -> None:
        self.wire = Wire(arguments.host, arguments.port, secured_of(arguments))
        partitions = ensure_topic(self.wire, arguments.topic)
        self.producer_id = -1
        if arguments.idempotent:
            asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            self.producer_id = self.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, asked).producer_id
        batch = make_batch(
            arguments.records,
            arguments.batch_bytes,
            self.producer_id,
            random.Random(place),
            CODEC_NAMES[arguments.codec],
        )
        pieces = encode_produce_request(
            PRODUCE_VERSION,
            1,
            "raw-many",
            [(arguments.topic, [(place % partitions, memoryview(batch))])],
            acks=arguments.acks,
            timeout_ms=30_000,
        )
        self.request = bytearray(b"".join(pieces))
        self.batch_bytes = len(batch)
        self.start = bytes(self.request).index(bytes(batch))
        self.records, self.sequence = arguments.records, 0
        self.sent_at: deque[float] = deque()
        self.over = 0
        self.answer_bytes = first_answer(self.wire, PRODUCE_VERSION, self.next_request())
        self.error_position = 4 + 5 + 1 + 1 + len(arguments.topic) + 1 + 4

    def next_request(self) -> bytearray:
        if self.producer_id >= 0:
            INT32.pack_into(self.request, self.start + SEQUENCE_POSITION, self.sequence)
            self.sequence = (self.sequence + self.records) & 0x7FFFFFFF
            covered = memoryview(self.request)[self.start + CRC_START : self.start + self.batch_bytes]
            UINT32.pack_into(self.request, self.start + CRC_POSITION, crc32c(covered))
        return self.request

    def send(self, count: int, due: Sequence[float] = ()) -> None:
        """The next ``count`` requests, which were due at ``due`` or now."""
        requests = b"".join(bytes(self.next_request()) for _ in range(count))
        self.sent_at.extend(due or [time.perf_counter()] * count)
        self.wire.socket.sendall(requests)

    def receive(self, latencies: list[float]) -> int:
        """Take what is there; how many requests were answered. Errors are looked for where an answer begins the read."""
        got = self.wire.socket.recv_into(self.wire.view)
        if not got:
            raise SystemExit("the server closed the connection")
        if not self.over and got >= self.answer_bytes:
            at = self.error_position
            if self.wire.buffer[at] or self.wire.buffer[at + 1]:
                raise SystemExit("an error among the answers")
        whole, self.over = divmod(self.over + got, self.answer_bytes)
        now = time.perf_counter()
        for _ in range(whole):
            latencies.append(now - self.sent_at.popleft())
        return whole


class Fetching:
    """One consumer of partition 0, from the log start to the high watermark over and over."""

    def __init__(self, arguments: argparse.Namespace, place: int) -> None:
        del place
        self.wire = Wire(arguments.host, arguments.port, secured_of(arguments))
        asked = FetchPartition(partition=0, fetch_offset=PLACEHOLDER, partition_max_bytes=arguments.max_bytes)
        message = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=0x7FFFFFFF,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=arguments.topic, partitions=[asked])],
        )
        self.request = bytearray(request_frame(ApiKey.FETCH, 11, 1, "raw-many", message))
        self.place = bytes(self.request).index(INT64.pack(PLACEHOLDER))
        self.prefix = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(arguments.topic) + 4
        self.buffer = memoryview(bytearray(arguments.max_bytes + (1 << 18)))
        self.filled = self.offset = 0
        self.sent = 0.0

    def send(self) -> None:
        INT64.pack_into(self.request, self.place, self.offset)
        self.sent = time.perf_counter()
        self.wire.socket.sendall(self.request)

    def receive(self) -> int:
        """Take what is there; the bytes of the whole batches of an answer that is complete, else -1."""
        got = self.wire.socket.recv_into(self.buffer[self.filled :])
        if not got:
            raise SystemExit("the server closed the connection")
        self.filled += got
        if self.filled < 4 or self.filled < 4 + INT32.unpack_from(self.buffer)[0]:
            return -1
        self.filled = 0
        _, error, high_watermark, _, _, aborted = PARTITION_ANSWER.unpack_from(self.buffer, self.prefix)
        if error:
            raise SystemExit(f"Fetch answers error {error}")
        position: int = self.prefix + 34 + 16 * max(aborted, 0) + 4
        size: int = INT32.unpack_from(self.buffer, position)[0]
        position += 4
        begin, end = position, position + size
        while position + HEADER_BYTES <= end:
            header = HEADER.unpack_from(self.buffer, position)
            if position + 12 + header[1] > end:
                break
            self.offset = header[0] + header[6] + 1
            position += 12 + header[1]
        self.over(high_watermark)
        return position - begin

    def over(self, high_watermark: int) -> None:
        """Begin again where the log ends."""
        if self.offset >= high_watermark:
            self.offset = 0


def produce(arguments: argparse.Namespace) -> tuple[int, int, float, float, float, list[float]]:
    """Requests, bytes, seconds, CPU seconds of the server and of this process, latencies."""
    producers = {
        (one := Producing(arguments, place)).wire.socket.fileno(): one for place in range(arguments.connections)
    }
    poll = select.epoll()
    for descriptor in producers:
        poll.register(descriptor, select.EPOLLIN)

    def run(seconds: float) -> tuple[int, int, float, list[float]]:
        latencies: list[float] = []
        started = time.perf_counter()
        deadline = started + seconds
        for one in producers.values():
            one.send(arguments.pipeline)
        pending = arguments.pipeline * len(producers)
        count = total = 0
        while pending:
            sending = time.perf_counter() < deadline
            for descriptor, _ in poll.poll():
                one = producers[descriptor]
                whole = one.receive(latencies)
                count += whole
                total += whole * one.batch_bytes
                pending -= whole
                if whole and sending:
                    one.send(whole)
                    pending += whole
        return count, total, time.perf_counter() - started, latencies

    run(arguments.warm_up)
    before, own = families_cpu_seconds(arguments.server_pid), time.process_time()
    count, total, seconds, latencies = run(arguments.seconds)
    spent, own = families_cpu_seconds(arguments.server_pid) - before, time.process_time() - own
    return count, total, seconds, spent, own, latencies


def fetch(arguments: argparse.Namespace) -> tuple[int, int, float, float, float, list[float]]:
    """Requests, bytes, seconds, CPU seconds of the server and of this process, latencies."""
    consumers = {
        (one := Fetching(arguments, place)).wire.socket.fileno(): one for place in range(arguments.connections)
    }
    poll = select.epoll()
    for descriptor in consumers:
        poll.register(descriptor, select.EPOLLIN)

    def run(seconds: float) -> tuple[int, int, float, list[float]]:
        latencies: list[float] = []
        started = time.perf_counter()
        deadline = started + seconds
        for one in consumers.values():
            one.send()
        pending = len(consumers)
        count = total = 0
        while pending:
            for descriptor, _ in poll.poll():
                one = consumers[descriptor]
                size = one.receive()
                if size < 0:
                    continue
                now = time.perf_counter()
                latencies.append(now - one.sent)
                count += 1
                total += size
                if now < deadline:
                    one.send()
                else:
                    pending -= 1
        return count, total, time.perf_counter() - started, latencies

    run(arguments.warm_up)
    before, own = families_cpu_seconds(arguments.server_pid), time.process_time()
    count, total, seconds, latencies = run(arguments.seconds)
    spent, own = families_cpu_seconds(arguments.server_pid) - before, time.process_time() - own
    return count, total, seconds, spent, own, latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("produce-many", "fetch-many"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--topic", default="raw-load")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before anything is counted")
    parser.add_argument("--cpu", type=int, default=-1, help="pin this process to one core")
    parser.add_argument("--server-pid", type=process_ids, required=True)
    group = parser.add_argument_group("produce-many")
    group.add_argument("--batch-bytes", type=int, default=16_384)
    group.add_argument("--records", type=int, default=140, help="records in a batch")
    group.add_argument("--pipeline", type=int, default=2, help="requests in flight on each connection")
    group.add_argument("--acks", type=int, default=-1, choices=(1, -1))
    group.add_argument("--codec", choices=tuple(CODEC_NAMES), default="none")
    group.add_argument("--idempotent", action="store_true", help="with producer ids and sequences")
    parser.add_argument("--max-bytes", type=int, default=1 << 20, help="of one answer of fetch-many")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    work = produce if arguments.work == "produce-many" else fetch
    count, total, seconds, spent, own, latencies = work(arguments)
    report = {
        "requests": count,
        "requests_per_s": round(count / seconds),
        "mb_per_s": round(total / seconds / 1e6, 1),
        **percentiles(latencies),
        "server_cpu_us_per_request": round(spent / count * 1e6, 2),
        "server_cpu_s_per_gb": round(spent / max(total, 1) * 1e9, 3),
        "server_cpu_share": round(spent / seconds, 3),
        "load_share": round(own / seconds, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
