"""A load generator that is not the bottleneck: prebuilt Produce and Fetch requests over raw sockets, pipelined.

    python loadtests/raw_load.py produce --port 9092 --topic t --batch-bytes 1000 --records 8 --pipeline 20 --seconds 5
    python loadtests/raw_load.py fetch --port 9092 --topic t --max-bytes 1048576 --seconds 5 --server-pid 1234

One thread, one blocking socket, no client library. Requests are built once; what differs between two requests (the sequence
of an idempotent producer, the offset of a fetch) is patched in. Responses are counted by their size prefix and looked into
only for errors. Prints one JSON object: rates, latency percentiles, and with ``--server-pid`` the CPU that the server spent
per request and per GB. ``load_share`` is the share of the time in which this process was at work: near 1 it is this process that
is measured. Speaks to any Kafka broker, also over TLS 1.3 with a SCRAM login.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from select import select
from struct import Struct
from typing import Any

from crc32c import crc32c

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.records.batch import HEADER, HEADER_BYTES
from app.records.builder import build_batch
from app.records.compression import CODEC_NAMES, Codec
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import decode_produce_response, encode_produce_request
from loadtests.processes import families_cpu_seconds, process_ids
from loadtests.raw_tls import add_options, secured_of
from loadtests.raw_transactions import COMES_AGAIN, RawTransactions
from loadtests.raw_transactions import PRODUCE_VERSION as TRANSACTIONAL_VERSION
from loadtests.raw_wire import INT32, Wire

PRODUCER_POSITION = 43
SEQUENCE_POSITION = 53
CRC_POSITION = 17
CRC_START = 21
PARTITION_ANSWER = Struct(">ihqqqi")
EARLIEST_LOCAL = -4
NOT_READY = (3, 6)
"""UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER, which a partition answers that was made just now."""
READY_TIMEOUT_S = 120.0
"""Kafka answers that it has made 10,000 partitions long before it leads the last of them."""
FIRST_ANSWERS_MAX = 1_000
PRODUCE_VERSION = 9
LARGE_REQUEST_BYTES = 64 << 10
"""From here on each is sent as soon as it is built, not some together."""


def percentiles(latencies: list[float]) -> dict[str, float]:
    """In milliseconds. Raises: SystemExit, if there is none to tell of."""
    if not latencies:
        raise SystemExit("no request was answered while it was measured: give it more --seconds")
    latencies.sort()
    last = len(latencies) - 1
    return {
        name: round(latencies[min(last, int(len(latencies) * share))] * 1000, 3)
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    } | {"max_ms": round(latencies[-1] * 1000, 3)}


def make_batch(
    record_count: int,
    batch_bytes: int,
    producer_id: int,
    rng: random.Random,
    codec: Codec = Codec.NONE,
    *,
    transactional: bool = False,
) -> bytearray:
    """One batch of about ``batch_bytes``: of incompressible values, or with a codec of JSON that long before it."""
    value_bytes = max(1, (batch_bytes - HEADER_BYTES) // record_count - 10)
    now_ms = int(time.time() * 1000)

    def value() -> bytes:
        if codec is Codec.NONE:
            return rng.randbytes(value_bytes)
        text = ""
        while len(text) < value_bytes:
            text += (
                f'{{"flight":{rng.randrange(9000)},"carrier":"{rng.choice(("UA", "AA", "B6", "DL", "EV"))}",'
                f'"origin":"{rng.choice(("EWR", "JFK", "LGA"))}","delay":{rng.randrange(-20, 90)}}}'
            )
        return text[:value_bytes].encode()

    records = [(now_ms, None, value(), ()) for _ in range(record_count)]
    fields: dict[str, Any] = (
        {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    )
    return bytearray(build_batch(records, codec=codec, transactional=transactional, **fields))


def ensure_topic(wire: Wire, topic: str) -> int:
    """Make the topic by asking for its metadata; its count of partitions."""
    for _ in range(100):
        answer = wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        found = answer.topics[0]
        if found.error_code == 0 and all(part.leader_id >= 0 for part in found.partitions):
            return len(found.partitions)
        time.sleep(0.1)
    raise SystemExit(f"topic {topic} does not come to be")


def special_offsets(wire: Wire, topic: str, partitions: int, special: int) -> list[int]:
    """What ListOffsets answers for one of its negative timestamps, for every partition."""
    asked = [
        ListOffsetsPartition(partition_index=p, current_leader_epoch=-1, timestamp=special) for p in range(partitions)
    ]
    message = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    answer = wire.ask(ApiKey.LIST_OFFSETS, 9, message)
    found = {one.partition_index: one for one in answer.topics[0].partitions}
    if any(one.error_code for one in found.values()):
        raise SystemExit(f"ListOffsets of {topic} answers errors")
    return [found[p].offset for p in range(partitions)]


def first_answer(wire: Wire, version: int, request: bytearray) -> int:
    """Produce once, again and again while a new partition's leader is not ready; how many bytes the answer has."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        wire.socket.sendall(request)
        answer = wire.read_frame()
        body = answer[parse_response_header(answer, ApiKey.PRODUCE, version).body_start :]
        found = decode_produce_response(version, body).responses[0].partition_responses[0]
        if not found.error_code:
            return 4 + len(answer)
        if found.error_code not in NOT_READY or time.monotonic() > deadline:
            raise SystemExit(f"Produce answers error {found.error_code}: {found.error_message}")
        time.sleep(0.05)


def produce(arguments: argparse.Namespace) -> dict[str, object]:
    rng = random.Random(7)
    wire = Wire(arguments.host, arguments.port, secured_of(arguments))
    partitions = ensure_topic(wire, arguments.topic)
    producer_id = -1
    transactions: RawTransactions | None = None
    version = PRODUCE_VERSION
    if arguments.commit_ms:
        if partitions > 1:
            raise SystemExit("transactions go to one partition: what is refused of several is not told apart")
        transactions = RawTransactions(wire, arguments.topic, arguments.commit_ms)
        version, producer_id = TRANSACTIONAL_VERSION, transactions.producer_id
    elif arguments.idempotent:
        producer_id = wire.ask(
            ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        ).producer_id
    codec = CODEC_NAMES[arguments.codec]
    batch = make_batch(
        arguments.records, arguments.batch_bytes, producer_id, rng, codec, transactional=transactions is not None
    )
    requests: list[bytearray] = []
    for partition in range(partitions):
        pieces = encode_produce_request(
            version,
            1,
            "raw-load",
            [(arguments.topic, [(partition, memoryview(batch))])],
            acks=arguments.acks,
            timeout_ms=30_000,
            transactional_id=None if transactions is None else transactions.transactional_id,
        )
        requests.append(bytearray(b"".join(pieces)))
    start = bytes(requests[0]).index(bytes(batch))
    sequences = [0] * partitions
    batch_end = start + len(batch)
    pack_sequence = Struct(">i").pack_into
    pack_crc = Struct(">I").pack_into
    pack_producer = Struct(">qh").pack_into
    unpack_size = INT32.unpack_from
    unpack_error = Struct(">h").unpack_from

    def next_request(place: int) -> bytearray:
        request = requests[place % partitions]
        if producer_id >= 0:
            partition = place % partitions
            pack_sequence(request, start + SEQUENCE_POSITION, sequences[partition])
            if transactions is not None:
                pack_producer(request, start + PRODUCER_POSITION, transactions.producer_id, transactions.epoch)
            sequences[partition] = (sequences[partition] + arguments.records) & 0x7FFFFFFF
            pack_crc(request, start + CRC_POSITION, crc32c(memoryview(request)[start + CRC_START : batch_end]))
        return request

    # The first answers say that the partitions take requests; of very many, which Kafka comes to lead in their order, some do.
    for place in {*range(0, partitions, max(1, partitions // FIRST_ANSWERS_MAX)), partitions - 1}:
        first_answer(wire, version, next_request(place))

    def run(seconds: float, requests_max: int = 0) -> tuple[int, float, list[float]]:
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        pending = bytearray()
        count = received = committed = again = 0
        clock = time.perf_counter
        plain = producer_id < 0 and partitions == 1
        # Before the clock runs: of a thousand in flight it is half a gigabyte.
        joined = {n: b"".join(requests[0] for _ in range(n)) for n in range(1, arguments.pipeline + 1)} if plain else {}
        started = clock()
        deadline = started + seconds
        if transactions is not None:
            transactions.begin()
        rate = arguments.rate
        while True:
            now = clock()
            room = arguments.pipeline - (count - received)
            if rate:
                # Held to a rate, a request is due whether or not earlier ones are answered, and waits from then on.
                room = min(room, int((now - started) * rate) + 1 - count)
            if requests_max and count + room >= requests_max:
                room = requests_max - count
                if not room:
                    deadline = now
            if transactions is not None and (now >= transactions.due_s or now >= deadline):
                room = 0  # what is in flight has to be answered first
                if count == received:
                    if count > committed:
                        transactions.commit()
                        sequences[:] = [0] * partitions
                        committed = count
                    else:
                        transactions.begin()
                    if now >= deadline:
                        break
                    continue
            if again:
                room = 0  # what follows a refused request is refused, too
            if now < deadline and room > 0:
                if plain:
                    wire.socket.sendall(joined[room])
                elif len(requests[0]) < LARGE_REQUEST_BYTES:
                    wire.socket.sendall(b"".join(bytes(next_request(count + i)) for i in range(room)))
                else:
                    for i in range(room):  # while the server is at work on the first
                        wire.socket.sendall(next_request(count + i))
                if rate:
                    sent_at.extend(started + (count + i) / rate for i in range(room))
                else:
                    sent_at.extend([now] * room)
                count += room
            elif count == received and now >= deadline:
                break
            if rate and now < deadline and count - received < arguments.pipeline:
                # Until the next one is due or an answer is there.
                wait_s = max(0.0, started + count / rate - now)
                if not select([wire.socket], (), (), wait_s)[0]:
                    continue
            if count == received:
                continue
            got = wire.socket.recv_into(wire.view[len(pending) :])
            if not got:
                raise SystemExit("the server closed the connection")
            size = len(pending) + got
            wire.view[: len(pending)] = pending
            now = clock()
            position = 0
            while position + 4 <= size:
                end = position + 4 + unpack_size(wire.buffer, position)[0]
                if end > size:
                    break
                (code,) = unpack_error(wire.buffer, position + error_position)
                position = end
                asked = sent_at.popleft()
                if code == 0 and not again:
                    latencies.append(now - asked)
                elif transactions is not None and code in COMES_AGAIN:
                    again += 1
                else:
                    raise SystemExit(f"error {code} among the answers")
                received += 1
            pending = bytearray(wire.view[position:size])
            if again and count == received:
                # The transaction before was still being ended: nothing was written, and all that was refused comes again.
                count, received = count - again, received - again
                sequences[0] = (sequences[0] - again * arguments.records) & 0x7FFFFFFF
                again = 0
        return count, clock() - started, latencies

    name = len(arguments.topic)
    error_position = 4 + 5 + 1 + 1 + name + 1 + 4
    run(arguments.warm_up)
    before, own = families_cpu_seconds(arguments.server_pid) if arguments.server_pid else 0.0, time.process_time()
    limit = arguments.megabytes * 1_000_000 // len(batch)
    count, seconds, latencies = run(arguments.seconds if not limit else float("inf"), limit)
    report: dict[str, object] = {
        "requests": count,
        "request_bytes": len(requests[0]),
        "requests_per_s": round(count / seconds),
        "mb_per_s": round(count * len(batch) / seconds / 1e6, 1),
        **percentiles(latencies),
        "load_share": round((time.process_time() - own) / seconds, 3),
    }
    if arguments.server_pid:
        spent = families_cpu_seconds(arguments.server_pid) - before
        report["server_cpu_us_per_request"] = round(spent / count * 1e6, 2)
        report["server_cpu_s_per_gb"] = round(spent / (count * len(batch)) * 1e9, 3)
        report["server_cpu_share"] = round(spent / seconds, 3)
    return report


def fetch(arguments: argparse.Namespace) -> dict[str, object]:
    wire = Wire(arguments.host, arguments.port, secured_of(arguments))
    partitions = arguments.partitions or ensure_topic(wire, arguments.topic)
    starts = [arguments.offset] * partitions
    if arguments.offset < 0:
        starts = special_offsets(wire, arguments.topic, partitions, arguments.offset)
    # A reader of cold data starts over where the local log begins.
    ends = [1 << 62] * partitions
    if arguments.end == "earliest-local":
        ends = special_offsets(wire, arguments.topic, partitions, EARLIEST_LOCAL)
        if ends == starts:
            raise SystemExit(f"nothing of {arguments.topic} is in the tier alone")
    offsets = list(starts)

    def build() -> bytearray:
        message = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=0x7FFFFFFF,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=arguments.topic,
                    partitions=[
                        FetchPartition(partition=p, fetch_offset=offsets[p], partition_max_bytes=arguments.max_bytes)
                        for p in range(partitions)
                    ],
                )
            ],
        )
        return bytearray(request_frame(ApiKey.FETCH, 11, 1, "raw-load", message))

    def run(seconds: float) -> tuple[int, int, float, list[float]]:
        """Fetch from the start to the end over and over; answers requests, bytes, seconds, latencies."""
        clock = time.perf_counter
        started = clock()
        count = total = 0
        latencies: list[float] = []
        while clock() - started < seconds:
            asked = clock()
            wire.socket.sendall(build())
            answer = wire.read_frame()
            latencies.append(clock() - asked)
            count += 1
            got = advance(answer)
            total += got
            if arguments.once and all(offset >= end for offset, end in zip(offsets, ends, strict=True)):
                break
        return count, total, clock() - started, latencies

    def advance(answer: memoryview) -> int:
        """Move the offsets behind what a v11 answer carries, without decoding it; the bytes of its whole batches.

        The beginning of a batch that did not fit, which some brokers send, is fetched again.
        """
        position = 4 + 4 + 2 + 4
        (topics,) = INT32.unpack_from(answer, position)
        position += 4
        total = 0
        for _ in range(topics):
            (name_bytes,) = Struct(">h").unpack_from(answer, position)
            position += 2 + name_bytes
            (count,) = INT32.unpack_from(answer, position)
            position += 4
            for _ in range(count):
                partition, error, high_watermark, _, _, aborted = PARTITION_ANSWER.unpack_from(answer, position)
                if error:
                    raise SystemExit(f"Fetch answers error {error} for partition {partition}")
                position += 34 + 16 * max(aborted, 0) + 4
                (size,) = INT32.unpack_from(answer, position)
                position += 4
                begin, end = position, position + size
                last = offsets[partition]
                while position + HEADER_BYTES <= end:
                    header = HEADER.unpack_from(answer, position)
                    if position + 12 + header[1] > end:
                        break
                    last = header[0] + header[6] + 1
                    position += 12 + header[1]
                total += position - begin
                if not arguments.once and last >= min(high_watermark, ends[partition]):
                    last = starts[partition]
                elif arguments.once and last >= high_watermark:
                    ends[partition] = last
                offsets[partition] = last
                position = end
        return total

    if arguments.warm_up:
        run(arguments.warm_up)
        offsets[:] = starts if arguments.once else offsets
    before, own = families_cpu_seconds(arguments.server_pid) if arguments.server_pid else 0.0, time.process_time()
    count, total, seconds, latencies = run(arguments.seconds)
    report: dict[str, object] = {
        "requests": count,
        "requests_per_s": round(count / seconds),
        "mb_per_s": round(total / seconds / 1e6, 1),
        "bytes_per_request": round(total / count),
        **percentiles(latencies),
        "load_share": round((time.process_time() - own) / seconds, 3),
    }
    if arguments.server_pid:
        spent = families_cpu_seconds(arguments.server_pid) - before
        report["server_cpu_us_per_request"] = round(spent / count * 1e6, 2)
        report["server_cpu_s_per_gb"] = round(spent / max(total, 1) * 1e9, 3)
        report["server_cpu_share"] = round(spent / seconds, 3)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("produce", "fetch"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--topic", default="raw-load")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before anything is counted")
    parser.add_argument("--cpu", type=int, default=-1, help="pin this process to one core")
    parser.add_argument(
        "--server-pid", type=process_ids, default=(), help="of the server, or of all of them, with commas"
    )
    group = parser.add_argument_group("produce")
    group.add_argument("--batch-bytes", type=int, default=1000)
    group.add_argument("--records", type=int, default=8, help="records in a batch")
    group.add_argument("--pipeline", type=int, default=20, help="requests in flight")
    group.add_argument("--acks", type=int, default=-1, choices=(1, -1))
    group.add_argument("--megabytes", type=int, default=0, help="stop after so much instead of after --seconds")
    group.add_argument("--codec", choices=tuple(CODEC_NAMES), default="none")
    group.add_argument("--idempotent", action="store_true", help="with a producer id and sequences")
    group.add_argument("--commit-ms", type=float, default=0, help="transactional, with a commit so often")
    group.add_argument("--rate", type=float, default=0, help="requests per second at most; 0 is as fast as it goes")
    group = parser.add_argument_group("fetch")
    group.add_argument("--max-bytes", type=int, default=1 << 20, help="for each partition")
    group.add_argument("--partitions", type=int, default=0, help="the first so many; 0 is all")
    group.add_argument("--offset", type=int, default=0, help="where to start; -2 is the log start, -4 the local start")
    group.add_argument("--end", choices=("high-watermark", "earliest-local"), default="high-watermark")
    group.add_argument("--priority", type=int, default=0, help="niceness of this process")
    group.add_argument("--once", action="store_true", help="stop at the end of the log instead of starting over")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    os.nice(arguments.priority)
    work = produce if arguments.work == "produce" else fetch
    print(json.dumps({"work": arguments.work, "topic": arguments.topic, **work(arguments)}))


if __name__ == "__main__":
    main()
