"""Kafka Connect: workers that are a group of their own protocol, keep what they know in compacted topics, and write exactly once.

Two workers run a connector that counts (``java/NumberSource.java``, KIP-618). Whoever is killed, workers or the broker, no number
is missing from a reader at read_committed, and none comes twice. A broker without a disk begins again with an empty directory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from tests.faults.served import Served, serving
from tests.interop.java_programs import SOURCES
from tests.interop.serving import FACTOR, create_topic, kafka_libs_or_skip, kill_and_start
from tests.support.ports import free_port
from tests.support.waiting import block_until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 2
START_S = 300.0
RESUME_S = 90.0
PROPERTIES = """
bootstrap.servers={bootstrap}
group.id=connect
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=1000
exactly.once.source.support=enabled
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
offset.storage.replication.factor={factor}
config.storage.topic=connect-configs
config.storage.replication.factor={factor}
status.storage.topic=connect-status
status.storage.replication.factor={factor}
listeners=http://127.0.0.1:{port}
plugin.discovery=service_load
plugin.path={plugins}
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the connector."""
    libs = kafka_libs_or_skip()
    if shutil.which("javac") is None or shutil.which("jar") is None:
        pytest.skip("no Java compiler here")
    path = tmp_path_factory.mktemp("connect")
    services = path / "classes/META-INF/services"
    services.mkdir(parents=True)
    (services / "org.apache.kafka.connect.source.SourceConnector").write_text("NumberSource\n")
    classes = services.parents[1]
    subprocess.run(["javac", "-cp", f"{libs}/*", "-d", classes, SOURCES / "NumberSource.java"], check=True)
    plugin = path / "plugins/numbers"
    plugin.mkdir(parents=True)
    subprocess.run(["jar", "cf", plugin / "numbers.jar", "-C", classes, "."], check=True)
    return plugin.parent


class ConnectWorker:
    """One of the group."""

    def __init__(self, path: Path, broker: Served, plugins: Path, factor: int) -> None:
        self.port = free_port()
        properties = path / f"worker-{self.port}.properties"
        properties.write_text(
            PROPERTIES.format(bootstrap=broker.bootstrap, port=self.port, plugins=plugins, factor=factor)
        )
        options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-cp", f"{kafka_libs_or_skip()}/*")
        self._command = ["java", *options, "org.apache.kafka.connect.cli.ConnectDistributed", str(properties)]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, body: object = None) -> Any:
        """What it answers; None while it does not."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=START_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                return None
        except (URLError, ConnectionError):
            return None


class Numbers:
    """A reader of what the connector wrote, from the beginning on; every number has to be the next of its partition."""

    def __init__(self, broker: Served) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "numbers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("numbers", index, 0) for index in range(PARTITIONS)])
        self.next = [0] * PARTITIONS

    def read(self) -> None:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                assert int(message.value()) == self.next[message.partition()]
                self.next[message.partition()] += 1

    def read_on(self, count: int, seconds: float) -> None:
        """Read so many more of every partition."""
        wanted = [number + count for number in self.next]

        def has_all() -> bool:
            self.read()
            return all(number >= least for number, least in zip(self.next, wanted, strict=True))

        block_until(has_all, "both tasks go on", seconds)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def broker(tmp_path: Path, how: Sequence[str]) -> Iterator[Served]:
    with serving(tmp_path, "--listen", f"127.0.0.1:{free_port()}", *how) as broker:
        yield broker


def test_workers_write_every_number_once_whatever_is_killed(
    tmp_path: Path, broker: Served, plugins: Path, how: Sequence[str]
) -> None:
    create_topic(broker.port, "numbers", PARTITIONS)
    factor = FACTOR if how else 1
    with ExitStack() as stack:
        workers = [ConnectWorker(tmp_path, broker, plugins, factor) for _ in range(2)]
        for worker in workers:
            stack.callback(worker.kill)
        for worker in workers:
            block_until(lambda worker=worker: worker.ask("/"), "the worker serves", START_S)  # type: ignore[misc]
        config = {"connector.class": "NumberSource", "tasks.max": PARTITIONS, "exactly.once.support": "required"}
        made = {"name": "counting", "config": config}
        block_until(lambda: workers[0].ask("/connectors", made), "the connector is made", START_S)
        numbers = Numbers(broker)
        stack.callback(numbers.close)
        numbers.read_on(100, RESUME_S)
        kill_and_start(broker, how)
        numbers.read_on(300, RESUME_S)
        workers[1].kill()
        numbers.read_on(300, RESUME_S)
        workers[1].start()
        block_until(lambda: workers[1].ask("/"), "the worker serves again", START_S)
        workers[0].kill()
        kill_and_start(broker, how)
        numbers.read_on(300, RESUME_S)
