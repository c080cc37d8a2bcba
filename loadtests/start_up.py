"""How long from exec until every partition answers: Metadata, a first Produce, a first hot Fetch.

One blocking client tries from the moment of exec on. When the address accepts, it asks for the metadata of all topics,
produces one batch to every partition in one request, and fetches those batches from every partition; the figures are the
times from exec until each of the three answers is complete.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.codec import decode_response
from app.wire.fetch import FetchPartition, FetchRequest, decode_fetch_response, encode_fetch_request
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import decode_produce_response, encode_produce_request
from loadtests.firn_peer import serve_command
from loadtests.measuring import ROOT, Report, children, cpu_seconds, memory_mb
from loadtests.raw_wire import Wire
from loadtests.system import free_port

METADATA_VERSION, PRODUCE_VERSION, FETCH_VERSION = 9, 9, 12
GIVE_UP_S = 60.0
SETTLE_S = 3.0


def first_answers(
    directory: Path,
    topics: Sequence[tuple[str, int]],
    *,
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Report:
    """Start a broker on ``directory``, take the three times, let it settle, and end it with ``stop``.

    ``topics`` are names and partition counts; those that are not there are made by asking for them.
    """
    port = free_port()
    command = serve_command(directory, port, store=store)
    batch = build_batch([(int(time.time() * 1000), None, b"first", ())])
    metadata = request_frame(
        ApiKey.METADATA,
        METADATA_VERSION,
        1,
        "start",
        MetadataRequest([MetadataRequestTopic(name=n) for n, _ in topics]),
    )
    produce = b"".join(
        encode_produce_request(
            PRODUCE_VERSION, 2, "start", [(n, [(p, batch) for p in range(count)]) for n, count in topics], acks=-1,
            timeout_ms=30_000,
        )
    )  # fmt: skip
    settings = dict(os.environ) | dict(environment or {})
    # An installed package has its bytecode beside it: compiling all of it again is not what a start costs.
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    with (directory / "firn.out").open("ab") as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=settings)
        try:
            wire = _connect(process, port, started + GIVE_UP_S)
            connected = time.perf_counter()
            while True:
                wire.socket.sendall(metadata)
                answer = wire.read_frame()
                start = parse_response_header(answer, ApiKey.METADATA, METADATA_VERSION).body_start
                found = decode_response(ApiKey.METADATA, METADATA_VERSION, answer[start:])
                if all(not topic.error_code for topic in found.topics):
                    break
            told = time.perf_counter()
            wire.socket.sendall(produce)
            answer = wire.read_frame()
            produced = time.perf_counter()
            offsets = _offsets(answer)
            wire.socket.sendall(_fetch(offsets))
            answer = wire.read_frame()
            fetched = time.perf_counter()
            _check(answer, offsets)
            cpu_s = cpu_seconds(process.pid)
            time.sleep(SETTLE_S)
            report: Report = {
                "connected_s": connected - started,
                "metadata_s": told - started,
                "produce_s": produced - started,
                "fetch_s": fetched - started,
                "broker_cpu_s": cpu_s,
                "broker_mb": memory_mb(process.pid),
                "store_process_mb": sum(memory_mb(child) for child in children(process.pid)),
            }
            wire.socket.close()
        finally:
            process.send_signal(stop)
            process.wait(60)
    return report


def _connect(process: subprocess.Popen[bytes], port: int, deadline: float) -> Wire:
    """The first connection that is accepted."""
    while True:
        try:
            return Wire("127.0.0.1", port)
        except ConnectionRefusedError:
            if process.poll() is not None or time.perf_counter() > deadline:
                raise SystemExit("the broker does not start, see firn.out in its directory") from None
            time.sleep(0.002)


def _offsets(answer: memoryview) -> dict[str, dict[int, int]]:
    start = parse_response_header(answer, ApiKey.PRODUCE, PRODUCE_VERSION).body_start
    offsets: dict[str, dict[int, int]] = {}
    for topic in decode_produce_response(PRODUCE_VERSION, answer[start:]).responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise SystemExit(f"Produce to {topic.name}-{partition.index} answers error {partition.error_code}")
            offsets.setdefault(topic.name, {})[partition.index] = partition.base_offset
    return offsets


def _fetch(offsets: dict[str, dict[int, int]]) -> bytes:
    topics = [
        (name, [FetchPartition(partition, fetch_offset=offset) for partition, offset in found.items()])
        for name, found in offsets.items()
    ]
    return encode_fetch_request(FETCH_VERSION, 3, "start", FetchRequest(topics=topics))  # type: ignore[arg-type]


def _check(answer: memoryview, offsets: dict[str, dict[int, int]]) -> None:
    """Every partition has answered with its records."""
    start = parse_response_header(answer, ApiKey.FETCH, FETCH_VERSION).body_start
    got = 0
    for topic in decode_fetch_response(FETCH_VERSION, answer[start:]).responses:
        for partition in topic.partitions:
            if partition.error_code or not partition.records:
                raise SystemExit(f"Fetch of {topic.topic}-{partition.partition_index}: error {partition.error_code}")
            got += 1
    assert got == sum(map(len, offsets.values())), got


@contextmanager
def slow_s3(bucket: Path, delay_ms: float, *, discard: str = "") -> Iterator[str]:
    """The endpoint of an S3 server over ``bucket`` that waits ``delay_ms`` before every answer. Of objects whose keys have
    ``discard`` it keeps the ends only."""
    command = [sys.executable, "-m", "loadtests.slow_s3", str(bucket), "--delay-ms", str(delay_ms)]
    command += ["--discard", discard] if discard else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def s3_url(endpoint: str) -> str:
    return f"s3://bench/?endpoint={endpoint}&region=us-east-1&path_style=true"
