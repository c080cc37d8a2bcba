"""A consume-transform-produce pipeline whose application and whose broker are killed: its output is the transform of its input."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.pipeline import INPUT, OUTPUT, PROTOCOLS, QUIET, transformed
from tests.faults.served import ROOT, Served, clean_environment, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

PARTITIONS = 2
INPUT_PER_S = 400
DRAIN_S = 90.0
SETTINGS = {
    "group.consumer.min.session.timeout.ms": 3000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}
"""How long a partition waits for whom a killed member of the consumer protocol leaves it to."""


class Application:
    """The pipeline, as a process that is started again whenever it has ended."""

    def __init__(self, broker: Served, protocol: str, errors: Path) -> None:
        """``protocol``: one of ``PROTOCOLS``; ``errors``: a file for what it writes to standard error."""
        self._broker = broker
        self._protocol = protocol
        self._errors = errors
        self.process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.pipeline", self._broker.bootstrap, self._protocol],
                env=clean_environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Source(threading.Thread):
    """Writes numbered records to the input, and knows what it wrote."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True} | QUIET)
        self.failed: list[KafkaError] = []

    def run(self) -> None:
        number = 0
        while not self.stopping.wait(0.05):
            for _ in range(INPUT_PER_S // 20):
                partition = number % PARTITIONS
                value = b"record %d" % number
                self._producer.produce(INPUT, value, partition=partition, on_delivery=self._delivered)
                self.written[partition].append(value)
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failed.append(error)


@contextmanager
def feeding(bootstrap: str) -> Iterator[Source]:
    source = Source(bootstrap)
    source.start()
    try:
        yield source
    finally:
        source.stopping.set()
        source.join()


class Reader:
    """A consumer of the output at read_committed, from its beginning on."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
            | QUIET
        )
        self._consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])

    @property
    def count(self) -> int:
        return sum(map(len, self.values))

    def read(self) -> None:
        for message in self._consumer.consume(1000, 0.1):
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                self.values[partition].append(message.value() or b"")

    def close(self) -> None:
        self._consumer.close()


def run_pipeline(path: Path, protocol: str, *, kills: int, broker_kills: int, seed: int) -> None:
    rng = random.Random(seed)
    events = ["application"] * kills + ["broker"] * broker_kills
    rng.shuffle(events)
    with serving(path, "--listen", f"127.0.0.1:{free_port()}", settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT)]
        for made in admin.create_topics(topics).values():
            made.result(20)
        application = Application(broker, protocol, path / "application.log")
        reader = Reader(broker.bootstrap)

        def reads(count: int) -> bool:
            application.keep_running()
            reader.read()
            return reader.count >= count

        try:
            with feeding(broker.bootstrap) as source:
                for event in events:
                    block_until(partial(reads, reader.count + 1), "the pipeline goes on", 60)
                    time.sleep(rng.uniform(0, 0.3))  # so that the kill comes anywhere in a transaction
                    if event == "application":
                        application.kill()
                    else:
                        broker.kill()
                        broker.start()
            assert not source.failed
            wanted = [[transformed(value) for value in values] for values in source.written]
            block_until(partial(reads, sum(map(len, wanted))), "everything has passed", DRAIN_S)
            application.kill()
            assert reader.values == wanted
        except AssertionError as error:
            error.add_note((path / "application.log").read_text()[-2000:])
            raise
        finally:
            application.kill()
            reader.close()


@pytest.mark.ci
def test_a_pipeline_passes_everything_on_once_whatever_is_killed(tmp_path: Path) -> None:
    run_pipeline(tmp_path, "range", kills=2, broker_kills=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pipeline_passes_everything_on_once_under_many_kills(tmp_path: Path, protocol: str) -> None:
    run_pipeline(tmp_path, protocol, kills=30, broker_kills=10, seed=2)
