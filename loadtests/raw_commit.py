"""A load generator of committed offsets that is not the bottleneck: prebuilt OffsetCommit requests over one socket, pipelined.

    python loadtests/raw_commit.py --port 9092 --topic t --groups 100 --partitions 1 --seconds 5 --server-pid 1234

Some groups commit in turns, as many consumers would; the topic has as many partitions as a request has offsets. Prints one JSON
object. Speaks to any Kafka broker.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from loadtests.processes import family_cpu_seconds
from loadtests.raw_load import percentiles
from loadtests.raw_wire import Wire

VERSION = 8
READY_TIMEOUT_S = 60.0
TRANSIENT = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the topic of offsets was made just now."""


def frame(group: str, topic: str, partitions: range) -> bytes:
    asked = [OffsetCommitRequestPartition(partition, 123_456_789, 0, "") for partition in partitions]
    message = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=asked)])
    return request_frame(ApiKey.OFFSET_COMMIT, VERSION, 1, "raw-commit", message)


def errors_of(answer: memoryview) -> set[int]:
    body = answer[parse_response_header(answer, ApiKey.OFFSET_COMMIT, VERSION).body_start :]
    found = decode_response(ApiKey.OFFSET_COMMIT, VERSION, body)
    return {part.error_code for topic in found.topics for part in topic.partitions}


def prepare(wire: Wire, groups: list[str], topic: str) -> None:
    """Wait until every group's coordinator takes commits."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    for group in groups:
        wire.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group))
        while True:
            wire.socket.sendall(frame(group, topic, range(1)))
            errors = errors_of(wire.read_frame())
            if errors == {0}:
                break
            if not errors <= set(TRANSIENT) or time.monotonic() > deadline:
                raise SystemExit(f"OffsetCommit answers errors {sorted(errors)}")
            time.sleep(0.05)


def run(wire: Wire, frames: list[bytes], pipeline: int, seconds: float) -> tuple[int, float, list[float]]:
    """Send the frames in turns; answers how many were answered, in what time, and how long each took."""
    clock = time.perf_counter
    sent_at: deque[float] = deque()
    latencies: list[float] = []
    sent = received = 0
    started = clock()
    while True:
        now = clock()
        room = pipeline - (sent - received) if now - started < seconds else 0
        if room > 0:
            wire.socket.sendall(b"".join(frames[(sent + place) % len(frames)] for place in range(room)))
            sent_at.extend([now] * room)
            sent += room
        if received == sent:
            return received, clock() - started, latencies
        # Every answer is looked at: a commit that is refused must not count.
        if errors_of(wire.read_frame()) != {0}:
            raise SystemExit("an error among the answers")
        latencies.append(clock() - sent_at.popleft())
        received += 1


def commit(arguments: argparse.Namespace) -> dict[str, object]:
    wire = Wire(arguments.host, arguments.port)
    groups = [f"group-{number}" for number in range(arguments.groups)]
    prepare(wire, groups, arguments.topic)
    frames = [frame(group, arguments.topic, range(arguments.partitions)) for group in groups]
    run(wire, frames, arguments.pipeline, arguments.warm_up)
    before = family_cpu_seconds(arguments.server_pid) if arguments.server_pid else 0.0
    count, seconds, latencies = run(wire, frames, arguments.pipeline, arguments.seconds)
    report: dict[str, object] = {
        "commits": count,
        "commits_per_s": round(count / seconds),
        "offsets_per_s": round(count * arguments.partitions / seconds),
        **percentiles(latencies),
    }
    if arguments.server_pid:
        spent = family_cpu_seconds(arguments.server_pid) - before
        report["server_cpu_us_per_commit"] = round(spent / count * 1e6, 1)
        report["server_cpu_share"] = round(spent / seconds, 3)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1, help="offsets of a group that are committed")
    parser.add_argument("--pipeline", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--cpu", type=int, default=-1, help="core to run on; -1 is any")
    parser.add_argument("--server-pid", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    print(json.dumps(commit(arguments)))


if __name__ == "__main__":
    main()
