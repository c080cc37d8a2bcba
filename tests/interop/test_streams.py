"""Kafka Streams with exactly-once, on topics whose only copy is the bucket: the input, the output, and all that it makes itself.

An application (``java/Counting.java``) counts numbers that another client writes, through a repartition topic and a store with a
changelog. The application and the brokers are killed, and the brokers begin again on empty disks. What was counted is there once.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.served import Served, serving
from tests.interop.java_programs import JavaProgram, Tools, running
from tests.interop.serving import FACTOR, WITHOUT_DISK, kafka_libs_or_skip, kill_and_start
from tests.interop.tools import CONFIGS, TOPICS
from tests.support.cluster import PARTITIONS, Writing, seen
from tests.support.ports import free_port
from tests.support.waiting import block_until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.slow]

KEYS = 7
COUNTED = 2
"""Partitions of what the application writes."""
GO_ON_S = 600.0
"""How long an application may take to go on before the test gives up. It is waited for the transactions of killed ones, too."""
MORE = 200
INPUT, OUTPUT = "numbers", "counts"
SETTINGS = (
    *(f"replication.factor={FACTOR}", "commit.interval.ms=500", "transaction.timeout.ms=20000"),
    *("session.timeout.ms=15000", "heartbeat.interval.ms=2000"),
)


class Application:
    """One instance."""

    def __init__(self, stack: ExitStack, bootstrap: str, state: Path) -> None:
        self._stack = stack.enter_context(ExitStack())
        arguments = (bootstrap, "counting", state, INPUT, OUTPUT, KEYS, COUNTED, *SETTINGS)
        self._program: JavaProgram = self._stack.enter_context(running("Counting.java", *arguments))

    def state(self) -> str:
        return self._program.ask("state")

    def kill(self) -> None:
        self._stack.close()

    def stop(self) -> None:
        assert self._program.ask("close").startswith("NOT_RUNNING")
        self._stack.close()


class Counts:
    """A reader of the output, committed records only. Each count has to be the next of its key."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "counts",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(OUTPUT, index, 0) for index in range(COUNTED)])
        self.numbers: dict[int, list[int]] = defaultdict(list)

    def read(self) -> None:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is not None:
                continue  # of a broker that is away
            key = int(message.key())
            counted, number = map(int, message.value().split(b":"))
            assert counted == len(self.numbers[key]) + 1, (key, counted, self.numbers[key][-3:])
            assert number % KEYS == key
            self.numbers[key].append(number)

    def total(self) -> int:
        self.read()
        return sum(map(len, self.numbers.values()))

    def read_on(self, more: int, application: Application) -> None:
        wanted = self.total() + more
        try:
            block_until(lambda: self.total() >= wanted, "the application goes on", GO_ON_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {application.state()}") from None

    def read_to_the_end(self, acknowledged: Sequence[Mapping[int, int]]) -> None:
        """Every number that was written to some partition is counted as often as it was written."""
        wanted = Counter(number for partition in acknowledged for number in partition)
        block_until(lambda: self.total() >= wanted.total(), "all is counted", GO_ON_S)
        assert Counter(number for numbers in self.numbers.values() for number in numbers) == wanted

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(autouse=True)
def streams() -> None:
    if not any(kafka_libs_or_skip().glob("kafka-streams-*.jar")):
        pytest.skip("Kafka Streams is not here (make kafka-libs)")


@pytest.fixture(params=[1, 3], ids=["one broker", "three brokers"])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Served]]:
    """Brokers without disks, each of which is found where it was when it comes back."""
    settings = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 250}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving(
                    tmp_path,
                    *("--listen", f"127.0.0.1:{free_port()}", *WITHOUT_DISK),
                    name=f"broker-{number}",
                    data_dir=tmp_path / f"data-{number}",
                    settings=settings,
                )
            )
            for number in range(request.param)
        ]


def create(bootstrap: str, factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    block_until(lambda: len(seen(admin).brokers) == factor, "the brokers are there", GO_ON_S)
    for made in admin.create_topics([NewTopic(INPUT, PARTITIONS, factor), NewTopic(OUTPUT, COUNTED, factor)]).values():
        made.result(60)


def look_at_internal_topics(tools: Tools) -> None:
    """What Streams made for itself is in the bucket, and compacted where it has to be."""
    described = tools(TOPICS, "--describe")
    for name, cleanup in (("counted-changelog", "compact"), ("by-key-repartition", "delete")):
        topic = f"counting-{name}"
        assert re.search(rf"Topic: {topic}\s.*PartitionCount: {COUNTED}\s+ReplicationFactor: 1\s", described)
        shown = tools(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic)
        assert "firn.durability=object" in shown, shown
        assert f"cleanup.policy={cleanup}" in shown, shown
    assert tools(TOPICS, "--describe", "--under-replicated-partitions") == ""
    assert tools(TOPICS, "--describe", "--unavailable-partitions") == ""


def test_every_number_is_counted_once_whatever_is_killed(
    tmp_path: Path, brokers: list[Served], jvm: JavaProgram
) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    create(bootstrap, len(brokers))
    state = tmp_path / "state"
    with ExitStack() as stack:
        numbers = Writing(bootstrap, INPUT, pace_s=0.05)
        stack.callback(numbers.finish)
        counts = Counts(bootstrap)
        stack.callback(counts.close)
        application = Application(stack, bootstrap, state)
        counts.read_on(MORE, application)
        look_at_internal_topics(Tools(jvm, brokers[0]))  # type: ignore[arg-type] # it has a bootstrap, too
        for broker in brokers:
            kill_and_start(broker, WITHOUT_DISK)
            counts.read_on(MORE, application)
        application.kill()
        application = Application(stack, bootstrap, state)  # it finds its state
        counts.read_on(MORE, application)
        application.kill()
        shutil.rmtree(state)  # the next one reads the changelog
        for broker in brokers:
            broker.kill()
            shutil.rmtree(broker.data_dir)
        for broker in brokers:
            broker.start()
        application = Application(stack, bootstrap, state)
        counts.read_on(MORE, application)
        numbers.finish()
        assert numbers.refused == []
        counts.read_to_the_end(numbers.acknowledged)
        application.stop()
