"""To zero and back: the only broker of a cluster stops, its disk is lost, and another one on an empty disk goes on.

    python -m loadtests.zero_and_back [--partitions 1000] [--delay-ms 50] [--kill]

All records are in the write-ahead log of the first broker (``firn.durability=object``). The store is an S3 stand-in that waits
before every answer. The figures: how long the first broker takes to stop in order, and for the next one the times from exec until
all partitions have a leader, have given back their first records, and have taken another one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.core.errors import ErrorCode
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.codec import decode_response
from app.wire.fetch import FetchPartition, FetchRequest, decode_fetch_response, encode_fetch_request
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from app.wire.produce import decode_produce_response, encode_produce_request
from loadtests.firn_peer import serve_command
from loadtests.measuring import ROOT, Report, cpu_seconds, memory_mb
from loadtests.raw_wire import Wire
from loadtests.start_up import S3_ENVIRONMENT, s3_url, slow_s3
from loadtests.system import free_port

TOPIC = "zero"
CREATE_VERSION, METADATA_VERSION, PRODUCE_VERSION, FETCH_VERSION = 5, 9, 9, 12
GIVE_UP_S = 240.0
AGAIN_S = 0.1
AGAIN_S_MAX = 1.0
"""As the Java client's producers and consumers wait by default, doubled with each try."""
RETRIED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
"""What a partition answers that is not led yet. Clients try all of these again."""


class Broker:
    """A broker process without a disk, and one blocking connection to it."""

    def __init__(self, directory: Path, store: str) -> None:
        port = self.port = free_port()
        command = [*serve_command(directory, port, store=store), "--ephemeral", "--create-store", "--node-id", "auto"]
        self.log = directory.with_suffix(".out")
        settings = os.environ | S3_ENVIRONMENT
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.started = time.perf_counter()
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=settings)
        self.wire: Wire | None = None

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def ask(self, frame: bytes) -> memoryview:
        """The answer to a request, sent again until there is one: a broker that is not registered yet closes connections."""
        while True:
            try:
                if self.wire is None:
                    self.wire = Wire("127.0.0.1", self.port)
                self.wire.socket.sendall(frame)
                return self.wire.read_frame()
            except (OSError, SystemExit):
                self.wire = None
            if self.process.poll() is not None or self.elapsed_s > GIVE_UP_S:
                raise SystemExit(f"the broker does not answer, see {self.log}")
            time.sleep(AGAIN_S)

    def create(self, partitions: int) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=-1)
        while True:
            answer = self.ask(
                request_frame(
                    ApiKey.CREATE_TOPICS, CREATE_VERSION, 1, "zero", CreateTopicsRequest([topic], timeout_ms=30_000)
                )
            )
            start = parse_response_header(answer, ApiKey.CREATE_TOPICS, CREATE_VERSION).body_start
            made = decode_response(ApiKey.CREATE_TOPICS, CREATE_VERSION, answer[start:]).topics[0]
            if made.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            if self.elapsed_s > GIVE_UP_S:
                raise SystemExit(f"CreateTopics answers {made.error_code} {made.error_message}")
            time.sleep(AGAIN_S)

    def wait_for_leaders(self, partitions: int) -> None:
        asked = request_frame(
            ApiKey.METADATA, METADATA_VERSION, 1, "zero", MetadataRequest([MetadataRequestTopic(name=TOPIC)])
        )
        while True:
            answer = self.ask(asked)
            start = parse_response_header(answer, ApiKey.METADATA, METADATA_VERSION).body_start
            found = decode_response(ApiKey.METADATA, METADATA_VERSION, answer[start:]).topics[0]
            if sum(one.leader_id >= 0 for one in found.partitions) == partitions:
                return
            if self.elapsed_s > GIVE_UP_S:
                raise SystemExit("partitions have no leader")
            time.sleep(AGAIN_S)

    def produce(self, partitions: Collection[int]) -> dict[int, int]:
        """Produce a record to each, until each has taken it. Returns: the offsets."""
        offsets: dict[int, int] = {}
        while len(offsets) < len(partitions):
            offsets |= self.produce_any([one for one in partitions if one not in offsets])
        return offsets

    def produce_any(self, partitions: Collection[int]) -> dict[int, int]:
        """Produce a record to each, again until one or several have taken theirs. Returns: the offsets of these."""
        batch = build_batch([(int(time.time() * 1000), None, b"first", ())])
        again_s = AGAIN_S
        while True:
            frame = b"".join(
                encode_produce_request(
                    PRODUCE_VERSION,
                    2,
                    "zero",
                    [(TOPIC, [(one, batch) for one in partitions])],
                    acks=-1,
                    timeout_ms=30_000,
                )
            )
            answer = self.ask(frame)
            start = parse_response_header(answer, ApiKey.PRODUCE, PRODUCE_VERSION).body_start
            offsets: dict[int, int] = {}
            for one in decode_produce_response(PRODUCE_VERSION, answer[start:]).responses[0].partition_responses:
                if not one.error_code:
                    offsets[one.index] = one.base_offset
                elif one.error_code not in RETRIED:
                    raise SystemExit(f"Produce to {one.index} answers {ErrorCode(one.error_code).name}")
            if offsets:
                return offsets
            if self.elapsed_s > GIVE_UP_S:
                raise SystemExit(f"{len(partitions)} partitions take no records")
            time.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)

    def fetch(self, offsets: Mapping[int, int]) -> None:
        left = dict(offsets)
        again_s = AGAIN_S
        while left:
            wanted = [FetchPartition(one, fetch_offset=offset) for one, offset in left.items()]
            answer = self.ask(encode_fetch_request(FETCH_VERSION, 3, "zero", FetchRequest(topics=[(TOPIC, wanted)])))
            start = parse_response_header(answer, ApiKey.FETCH, FETCH_VERSION).body_start
            for one in decode_fetch_response(FETCH_VERSION, answer[start:]).responses[0].partitions:
                if one.error_code and one.error_code not in RETRIED:
                    raise SystemExit(f"Fetch of {one.partition_index} answers {one.error_code}")
                if not one.error_code and one.records:
                    left.pop(one.partition_index, None)
            if left and self.elapsed_s > GIVE_UP_S:
                raise SystemExit(f"{len(left)} partitions give no records")
            if left:
                time.sleep(again_s)
                again_s = min(2 * again_s, AGAIN_S_MAX)

    def end(self, how: signal.Signals) -> float:
        """Returns: seconds until the process has ended."""
        began = time.perf_counter()
        self.process.send_signal(how)
        self.process.wait(GIVE_UP_S)
        self.wire = None
        return time.perf_counter() - began


@contextmanager
def ended(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.end(signal.SIGKILL)


def zero_and_back(base: Path, *, partitions: int, delay_ms: float, stop: signal.Signals) -> Report:
    """The figures of one round, in ``base``. Raises: SystemExit, with what did not work."""
    (base / "bucket").mkdir(parents=True)
    with slow_s3(base / "bucket", delay_ms) as endpoint:
        store = s3_url(endpoint)
        with ended(Broker(base / "first", store)) as first:
            first.create(partitions)
            offsets = first.produce(range(partitions))
            stop_s = first.end(stop)
        shutil.rmtree(base / "first")
        with ended(Broker(base / "second", store)) as second:
            second.wait_for_leaders(partitions)
            leaders_s = second.elapsed_s
            second.fetch(offsets)
            fetch_s = second.elapsed_s
            last = second.produce(range(partitions))
            produce_s = second.elapsed_s
            assert all(last[one] == offset + 1 for one, offset in offsets.items()), "offsets go on"
            second.fetch(last)
            report: Report = {
                "stop_s": stop_s,
                "leaders_s": leaders_s,
                "fetch_s": fetch_s,
                "produce_s": produce_s,
                "all_s": second.elapsed_s,
                "broker_cpu_s": cpu_seconds(second.process.pid),
                "broker_mb": memory_mb(second.process.pid),
            }
            report["second_stop_s"] = second.end(signal.SIGTERM)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    stop = signal.SIGKILL if arguments.kill else signal.SIGTERM
    base = arguments.directory or Path(tempfile.mkdtemp())
    print(zero_and_back(base, partitions=arguments.partitions, delay_ms=arguments.delay_ms, stop=stop))
    if arguments.directory is None:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
