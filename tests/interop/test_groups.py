"""Classic consumer groups by real clients: librdkafka, aiokafka, kafka-python, the Java client and Kafka's tools."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.serving import Served, create_topic, firn_serving
from tests.interop.tools import CONSUMER, DUMP, GROUPS
from tests.support.waiting import block_until

kafka = pytest.importorskip("kafka", reason="kafka-python is not here")

pytestmark = pytest.mark.interop

RECORDS = 200
PARTITIONS = 4
DEADLINE_S = 60


@pytest.fixture(scope="module")
def firn(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("groups")
    with firn_serving(path, *how, group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=4) as served:
        yield served
    assert not served.troubles


@pytest.fixture
def topic(firn: Served, request: pytest.FixtureRequest) -> str:
    """A topic with records in all of its partitions."""
    name = re.sub(r"\W", "-", request.node.name)
    create_topic(firn.port, name, PARTITIONS)
    producer = Producer({"bootstrap.servers": firn.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0
    return name


@pytest.fixture
def tools(jvm: JavaProgram, quiet: Served) -> Tools:
    return Tools(jvm, quiet)


class Member:
    """A librdkafka consumer that reads in a thread of its own until it is stopped."""

    def __init__(self, firn: Served, group: str, topic: str, **settings: object) -> None:
        self.values: list[int] = []
        self.assigned: set[int] = set()
        """Never changed but replaced: another thread reads it."""
        self.revoked = 0
        self.error: BaseException | None = None
        self.consumer = Consumer(
            {
                "bootstrap.servers": firn.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 500,
                "auto.commit.interval.ms": 200,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = self.assigned | {partition.partition for partition in partitions}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = self.assigned - {partition.partition for partition in partitions}
        self.revoked += len(partitions)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                message = self.consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    raise KafkaException(message.error())
                self.values.append(int(message.value()))
            self.consumer.close()
        except (KafkaException, RuntimeError, ValueError) as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


@contextmanager
def member(firn: Served, group: str, topic: str, **settings: object) -> Iterator[Member]:
    made = Member(firn, group, topic, **settings)
    try:
        yield made
    finally:
        made.stop()


def owned_once(*members: Member) -> Callable[[], bool]:
    """Whether every partition is assigned, and to one member only, and nobody has none."""
    return lambda: (
        sorted(index for one in members for index in one.assigned) == list(range(PARTITIONS))
        and all(one.assigned for one in members)
    )


# --- librdkafka -------------------------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_shares_partitions_hands_them_over_and_reads_all_once(
    quiet: Served, topic: str, strategy: str
) -> None:
    group = f"librdkafka-{strategy}"
    settings = {"partition_assignment_strategy": strategy}
    with member(quiet, group, topic, **settings) as first:
        block_until(lambda: len(first.values) == RECORDS, "the first member reads everything", DEADLINE_S)
        with member(quiet, group, topic, **settings) as second:
            block_until(owned_once(first, second), "two members share", DEADLINE_S)
            # A cooperative member gives up only what another gets (KIP-429).
            assert first.revoked == (PARTITIONS // 2 if strategy == "cooperative-sticky" else PARTITIONS)
            with member(quiet, group, topic, **settings) as third:
                block_until(owned_once(first, second, third), "three members share", DEADLINE_S)
            block_until(owned_once(first, second), "two members share what a third left", DEADLINE_S)
        block_until(owned_once(first), "one member has all", DEADLINE_S)
    assert Counter(first.values) == Counter(range(RECORDS))
    assert second.values == third.values == []


def test_librdkafka_goes_on_where_its_group_was(quiet: Served, topic: str) -> None:
    with member(quiet, "goes-on", topic) as first:
        block_until(lambda: len(first.values) == RECORDS, "everything is read", DEADLINE_S)
    producer = Producer({"bootstrap.servers": quiet.bootstrap})
    producer.produce(topic, b"%d" % RECORDS)
    producer.flush(DEADLINE_S)
    with member(quiet, "goes-on", topic) as second:
        block_until(lambda: second.values == [RECORDS], "only what is new is read", DEADLINE_S)


def test_a_static_member_of_librdkafka_comes_back_without_a_rebalance(quiet: Served, topic: str) -> None:
    static = {"group_instance_id": "one", "enable_auto_commit": False}
    with member(quiet, "static", topic, group_instance_id="two") as other:
        with member(quiet, "static", topic, **static) as first:
            block_until(owned_once(first, other), "both share", DEADLINE_S)
            had, revoked = set(first.assigned), other.revoked
        with member(quiet, "static", topic, **static) as again:
            block_until(lambda: again.assigned == had, "it has what it had", DEADLINE_S)
            assert other.revoked == revoked
            with ExitStack() as rest:
                # Its own later self takes the place of the one that is still there, who is told so.
                usurper = rest.enter_context(member(quiet, "static", topic, **static))
                block_until(lambda: usurper.assigned == had, "the newest has it", DEADLINE_S)
                block_until(lambda: again.error is not None, "the older one is fenced", DEADLINE_S)
                assert isinstance(again.error, KafkaException)
                assert again.error.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
                again.error = None


def test_a_commit_with_an_old_generation_changes_nothing(quiet: Served, topic: str) -> None:
    with member(quiet, "old", topic, enable_auto_commit=False) as first:
        block_until(owned_once(first), "it has all", DEADLINE_S)
        outsider = Consumer({"bootstrap.servers": quiet.bootstrap, "group.id": "old"})
        with pytest.raises(KafkaException) as refused:
            outsider.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        (found,) = outsider.committed([TopicPartition(topic, 0)], DEADLINE_S)
        assert found.offset < 0
        outsider.close()


# --- aiokafka, kafka-python -------------------------------------------------------------------------------------------


async def test_aiokafka_shares_partitions_commits_and_goes_on(quiet: Served, topic: str) -> None:
    def made() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=quiet.bootstrap,
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
            session_timeout_ms=45_000,
        )

    first, second = made(), made()
    await first.start()
    try:
        values = []
        while len(values) < RECORDS:
            batches = await asyncio.wait_for(first.getmany(timeout_ms=1000), DEADLINE_S)
            values += [int(record.value) for records in batches.values() for record in records]
        assert Counter(values) == Counter(range(RECORDS))
        await first.commit()
        await second.start()
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while not (len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.gather(first.getmany(timeout_ms=100), second.getmany(timeout_ms=100))
        assert await second.getmany(timeout_ms=200) == {}
        assert sum([await second.committed(partition) for partition in second.assignment()]) == RECORDS // 2
    finally:
        await first.stop()
        await second.stop()


def kafka_python_consumer(firn: Served, topic: str, **settings: object) -> Any:
    """A consumer of kafka-python that knows the topic's partitions before it joins its group.

    It joins with whatever it knows, and again when it learns of partitions; if a poll ends in the middle of that second
    join, kafka-python 3.0.12 never completes it, and sends no heartbeats either.
    """
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=firn.bootstrap, **settings)
    block_until(lambda: len(consumer.partitions_for_topic(topic)) == PARTITIONS, "the topic is known", DEADLINE_S)
    return consumer


@pytest.mark.ci
@pytest.mark.usefixtures("kafka_python_leftovers")
def test_kafka_python_commits_with_metadata_and_goes_on(quiet: Served, topic: str) -> None:
    def made() -> Any:
        return kafka_python_consumer(
            quiet,
            topic,
            group_id="kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=1000,
        )

    def read_by(consumer: Any, count: int) -> Counter[int]:
        """What it is given until so much has come and then nothing for a second."""
        values: list[int] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(values) < count and time.monotonic() < deadline:
            values += [int(record.value) for record in consumer]
        return Counter(values)

    first = made()
    assert read_by(first, RECORDS) == Counter(range(RECORDS))
    first.commit()
    partition = kafka.TopicPartition(topic, 1)
    first.commit({partition: kafka.OffsetAndMetadata(7, "note", -1)})
    first.close()
    second = made()
    left = range(7 * PARTITIONS + 1, RECORDS, PARTITIONS)
    assert read_by(second, len(left)) == Counter(left)
    assert second.committed(partition, metadata=True).metadata == "note"
    second.close()


@pytest.mark.ci
@pytest.mark.usefixtures("kafka_python_leftovers")
def test_members_of_kafka_python_share_partitions_and_hand_them_over(quiet: Served, topic: str) -> None:
    stopping = [threading.Event() for _ in range(3)]
    assigned: list[set[int]] = [set() for _ in stopping]
    values: list[list[int]] = [[] for _ in stopping]

    def read(number: int) -> None:
        consumer = kafka_python_consumer(
            quiet,
            topic,
            group_id="kafka-python-members",
            auto_offset_reset="earliest",
            session_timeout_ms=45_000,
            heartbeat_interval_ms=300,
            auto_commit_interval_ms=200,
        )
        while not stopping[number].is_set():
            for records in consumer.poll(timeout_ms=100).values():
                values[number] += [int(record.value) for record in records]
            assigned[number] = {place.partition for place in consumer.assignment()}
        consumer.close()

    def owned_by(*numbers: int) -> Callable[[], bool]:
        return lambda: (
            sorted(index for number in numbers for index in assigned[number]) == list(range(PARTITIONS))
            and all(assigned[number] for number in numbers)
        )

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    try:
        threads[0].start()
        block_until(lambda: len(values[0]) == RECORDS, "the first member reads everything", DEADLINE_S)
        threads[1].start()
        block_until(owned_by(0, 1), "two members share", DEADLINE_S)
        threads[2].start()
        block_until(owned_by(0, 1, 2), "three members share", DEADLINE_S)
        stopping[0].set()
        block_until(owned_by(1, 2), "two members share what the first left", DEADLINE_S)
    finally:
        for event in stopping:
            event.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert Counter(values[0]) == Counter(range(RECORDS))
    assert values[1] == values[2] == []


# --- the Java client and Kafka's tools --------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_java_client_reads_in_a_group_and_goes_on(tools: Tools, topic: str) -> None:
    arguments = ("--topic", topic, "--group", "java", "--from-beginning", "--timeout-ms", 1000 * DEADLINE_S)
    out = tools(CONSUMER, *arguments, "--max-messages", RECORDS)
    assert Counter(map(int, out.split())) == Counter(range(RECORDS))
    producer = Producer({"bootstrap.servers": tools.firn.bootstrap})
    producer.produce(topic, b"777")
    producer.flush(DEADLINE_S)
    assert tools(CONSUMER, *arguments, "--max-messages", 1).split() == ["777"]


@pytest.mark.ci
def test_consumer_groups_are_listed_described_reset_and_deleted(tools: Tools, topic: str) -> None:
    with member(tools.firn, "tooled", topic, client_id="reader") as reading:
        block_until(lambda: len(reading.values) == RECORDS, "everything is read", DEADLINE_S)
        assert "tooled" in tools(GROUPS, "--list").split()
        assert re.search(r"tooled\s+Stable", tools(GROUPS, "--list", "--state", "stable"))
        assert re.search(r"tooled\s+Classic", tools(GROUPS, "--list", "--type", "classic"))
        members = tools(GROUPS, "--describe", "--group", "tooled", "--members", "--verbose")
        assert re.search(rf"tooled\s+reader-\S+\s+/127.0.0.1\s+reader\s+{PARTITIONS}", members)
        state = tools(GROUPS, "--describe", "--group", "tooled", "--state")
        assert re.search(r"tooled\s+127\S+\s+\(1\)\s+range\s+Stable\s+1", state)
        refused = tools.run(GROUPS, "--bootstrap-server", tools.firn.bootstrap, *("--delete", "--group", "tooled"))
        assert "GroupNotEmptyException" in refused.out + refused.error
    described = tools(GROUPS, "--describe", "--group", "tooled", "--offsets")
    count = RECORDS // PARTITIONS
    assert len(re.findall(rf"tooled\s+{topic}\s+\d\s+{count}\s+{count}\s+0\s", described)) == PARTITIONS
    reset = ("--reset-offsets", "--group", "tooled")
    plan = tools(GROUPS, *reset, "--topic", topic, "--shift-by", -10, "--dry-run")
    assert len(re.findall(rf"tooled\s+{topic}\s+\d\s+{count - 10}", plan)) == PARTITIONS
    tools(GROUPS, *reset, "--all-topics", "--to-earliest", "--execute")
    described = tools(GROUPS, "--describe", "--group", "tooled")
    assert len(re.findall(rf"tooled\s+{topic}\s+\d\s+0\s+{count}\s+{count}\s", described)) == PARTITIONS
    tools(GROUPS, "--delete-offsets", "--group", "tooled", "--topic", f"{topic}:0")
    described = tools(GROUPS, "--describe", "--group", "tooled")
    assert len(re.findall(rf"tooled\s+{topic}\s+\d\s+0\s+{count}", described)) == PARTITIONS - 1
    assert "deletion of requested consumer groups" in tools(GROUPS, "--delete", "--group", "tooled").lower()
    assert "tooled" not in tools(GROUPS, "--list").split()


@pytest.mark.ci
def test_kafkas_dump_tool_reads_what_the_coordinator_wrote(tools: Tools, topic: str) -> None:
    with member(tools.firn, "dumped", topic, client_id="reader") as reading:
        block_until(lambda: len(reading.values) == RECORDS, "everything is read", DEADLINE_S)
    logs = sorted(tools.firn.data_dir.glob("__consumer_offsets-*/*.log"))
    out = tools.run(DUMP, "--files", ",".join(map(str, logs)), "--offsets-decoder")
    assert out.code == 0, out
    assert "isvalid: false" not in out.out
    commit = rf'"type":"1","data":{{"group":"dumped","topic":"{topic}","partition":0}}'
    assert re.search(commit, out.out), out.out[-3000:]
    assert re.search(r'"type":"2","data":{"group":"dumped"}', out.out)
    assert re.search(r'"protocolType":"consumer","generation":1,"protocol":"range","leader":"reader-', out.out)
    assert "Failed to decode" not in out.out
