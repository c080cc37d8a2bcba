"""A broker without a disk, as a process: killed again and again, its directory removed each time, and nothing is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.interop.serving import Served

ROUNDS = 3
EACH = 300


@pytest.mark.ci
def test_records_outlive_brokers_that_are_killed_and_lose_their_directories(tmp_path: Path) -> None:
    acknowledged: set[bytes] = set()
    for run in range(ROUNDS):
        served = serve(tmp_path, run)
        try:
            producer = Producer({"bootstrap.servers": f"127.0.0.1:{served.port}", "enable.idempotence": True})

            def note(error: object, message: object, kept: set[bytes] = acknowledged) -> None:
                if error is None:
                    kept.add(message.value())  # type: ignore[attr-defined]

            for number in range(EACH):
                producer.produce("kept", f"{run}-{number}".encode(), on_delivery=note)
            assert producer.flush(60) == 0
        finally:
            served.process.send_signal(signal.SIGKILL)
            served.end()
        shutil.rmtree(tmp_path / f"data-{run}")
    assert len(acknowledged) == ROUNDS * EACH
    served = serve(tmp_path, ROUNDS)
    try:
        assert consumed(served.port, len(acknowledged)) == sorted(acknowledged)
        assert served.stop() == 0, "\n".join(served.lines)
    finally:
        served.end()


def serve(path: Path, run: int) -> Served:
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0", "--http", "off"]
    command += ["--data-dir", str(path / f"data-{run}"), "--store", f"file://{path / 'store'}"]
    command += ["--ephemeral", "--create-store", "--node-id", "auto", "--set", "firn.log.dir.free.bytes.min=0"]
    served = Served(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True), path)
    served.wait_until_ready()
    return served


def consumed(port: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(500, 30):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return sorted(found)
