"""Real brokers of a cluster under transactional producers (librdkafka), killed, stopped and paused one after another (ADR 0026).

Writers append to every partition in each transaction, and abort some. A copier reads what is committed, and writes it to another
topic with its offsets, in transactions too. At the end the history is checked for anomalies of transactions.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import NODES, WAIT_S, Brokers, all_in_sync, brokers_running, seen, until
from tests.transactions.list_append import Outcome, Txn, find_anomalies

pytestmark = pytest.mark.faults

PARTITIONS = 4
WRITERS = 3
SETTINGS = {
    "replica_lag_time_max_ms": 2_000,
    "transaction_state_log_num_partitions": 6,
    "offsets_topic_num_partitions": 6,
    "transaction_state_log_replication_factor": 3,
    "offsets_topic_replication_factor": 3,
}
CLIENT = {
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 5_000,
}
CALL_S = 10.0
BACK_S = 3 * CALL_S
"""A call that has not returned by then never will."""
TRIES = 3
Lists = dict[tuple[int, str], list[str]]
"""Values by partition and writer, in the order of their offsets."""


class Transactional(threading.Thread):
    """A thread with a transactional producer. A producer that fails for good is replaced by one with the same transactional id."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(name=name)
        self.bootstrap = bootstrap
        self.committed = 0
        self.failed: BaseException | None = None
        self.stopping = threading.Event()
        self.producer: Producer | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except BaseException as error:
            self.failed = error
            raise

    def step(self) -> None:
        raise NotImplementedError

    def begin(self) -> Producer:
        """A producer whose transaction has begun."""
        if self.producer is None:
            self.producer = Producer(
                {
                    **CLIENT,
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 60_000,
                    "linger.ms": 2,
                }
            )
            self._call(self.producer.init_transactions, CALL_S)
        self.producer.begin_transaction()
        return self.producer

    def end(self, *, commit: bool) -> Outcome:
        """Commit or abort. Raises: KafkaException."""
        assert self.producer is not None
        if not commit:
            self._call(self.producer.abort_transaction, CALL_S)
            return Outcome.ABORTED
        try:
            self._call(self.producer.commit_transaction, CALL_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self.producer = None
                return Outcome.UNKNOWN
            self._call(self.producer.abort_transaction, CALL_S)
            return Outcome.ABORTED
        self.committed += 1
        return Outcome.COMMITTED

    def give_up(self, error: KafkaException) -> None:
        """After an error before the end: the transaction is aborted, by its producer or by the next one of its id."""
        assert self.producer is not None
        if error.args[0].txn_requires_abort():
            try:
                self._call(self.producer.abort_transaction, CALL_S)
            except KafkaException:
                self.producer = None
        else:
            self.producer = None

    def _call(self, call: Any, *arguments: Any) -> None:
        """Call until it is known what became of it. Raises: KafkaException, also if the client does not get on."""
        for tries_left in reversed(range(TRIES)):
            try:
                call(*arguments)
            except KafkaException as error:
                if not tries_left or not error.args[0].retriable():
                    raise
            else:
                return


def returned(call: Any, *arguments: Any) -> None:
    """Make a call of a client, and wait until it is back. Raises: KafkaException, also if it does not come back.

    librdkafka (2.16) ends its connection to a broker that Metadata does not list any more, and waits for that connection if the
    broker was the group's coordinator: ``send_offsets_to_transaction`` then sends nothing, and returns at no time limit
    (https://github.com/confluentinc/librdkafka/issues/5511 and 5456). Kafka does not list a fenced broker either. A producer that
    is caught so is left alone: the next one of its id fences it.
    """
    failed: list[KafkaException] = []

    def make() -> None:
        try:
            call(*arguments)
        except KafkaException as error:
            failed.append(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(BACK_S)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._FAIL, f"{call.__name__} does not return"))
    for error in failed:
        raise error


class Writer(Transactional):
    """Appends two values to each partition in every transaction."""

    def __init__(self, bootstrap: str, name: str, seed: int) -> None:
        super().__init__(bootstrap, name)
        self._rng = random.Random(seed)
        self.history: list[Txn] = []

    def step(self) -> None:
        number = len(self.history)
        appends = {
            (partition, self.name): [f"{self.name} {number} {partition} {part}" for part in "ab"]
            for partition in range(PARTITIONS)
        }
        try:
            producer = self.begin()
            for (partition, _), values in appends.items():
                for value in values:
                    producer.produce("t", value.encode(), partition=partition)
            outcome = self.end(commit=self._rng.random() < 0.8)
        except KafkaException as error:
            self.give_up(error)
            outcome = Outcome.ABORTED
        self.history.append(Txn(f"{self.name} {number}", outcome, appends))


class Copier(Transactional):
    """Copies what is committed, with the offsets in the same transactions."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "copier")
        self._consumer: Consumer | None = None
        self.ends: dict[int, int] = {}
        """Up to where it has copied, by partition."""

    def step(self) -> None:
        try:
            if self._consumer is None:
                self._consumer = self._at_committed()
            messages = []
            for message in self._consumer.consume(200, 0.2):
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._note(message)
            if not messages:
                return
            producer = self.begin()
            for message in messages:
                producer.produce("copy", message.value(), partition=message.partition())
            positions = self._consumer.position(self._consumer.assignment())
            offsets = [one for one in positions if one.offset >= 0]
            metadata = self._consumer.consumer_group_metadata()
            self._call(returned, producer.send_offsets_to_transaction, offsets, metadata, CALL_S)
            if self.end(commit=True) is not Outcome.COMMITTED:
                self._rewind()
        except KafkaException as error:
            if self.producer is not None:
                self.give_up(error)
            self._rewind()

    def _note(self, message: Any) -> None:
        self.ends[message.partition()] = message.offset()

    def _at_committed(self) -> Consumer:
        consumer = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": self.bootstrap,
                "group.id": "copy",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            found = consumer.committed([TopicPartition("t", partition) for partition in range(PARTITIONS)], CALL_S)
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)
            consumer.assign([TopicPartition("t", one.partition, max(one.offset, 0)) for one in found])
        except KafkaException:
            consumer.close()
            raise
        return consumer

    def _rewind(self) -> None:
        self.ends.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def final(bootstrap: str, topic: str) -> tuple[Lists, dict[int, int]]:
    """All that is committed, and the end of each partition, once nothing is open there."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "final",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    lists: Lists = defaultdict(list)
    at: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ends = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)[1]
            for partition in range(PARTITIONS)
        }

        def read_on() -> bool:
            for message in consumer.consume(1_000, 0.2):
                error, partition, offset, value = (
                    message.error(),
                    message.partition(),
                    message.offset(),
                    message.value(),
                )
                if error is None:
                    assert value is not None
                    text = value.decode()
                    lists[partition or 0, text.split()[0]].append(text)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at[partition or 0] = offset or 0
            return at == ends

        until(read_on, f"{topic} is read to its end: {at} of {ends}")
    finally:
        consumer.close()
    return dict(lists), ends


def hit(brokers: Brokers, admin: AdminClient, how: str, node_id: int, threads: list[Transactional]) -> None:
    """One fault. Transactions go on while it lasts, and after it."""

    def go_on() -> None:
        before = [one.committed for one in threads]
        until(
            lambda: (
                all(one.committed > old for one, old in zip(threads, before, strict=True))
                or any(one.failed for one in threads)
            ),
            f"every producer commits: {before}",
        )
        assert not any(one.failed for one in threads)

    if how == "pause":
        brokers.pause(node_id)
        go_on()
        brokers.go_on(node_id)
    else:
        brokers.end(node_id, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        go_on()
        brokers.start(node_id)
    until(lambda: all_in_sync(admin), f"all are in sync after the {how} of broker {node_id}")
    go_on()


@pytest.mark.parametrize(
    ("faults", "seed"), [(3, 1), *(pytest.param(30, seed, marks=pytest.mark.slow) for seed in (2, 3, 4))]
)
def test_transactions_are_whole_while_brokers_die(tmp_path: Path, faults: int, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path, settings=SETTINGS) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == 3, "three brokers are in the cluster")
        topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in ("t", "copy")]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)
        writers = [Writer(brokers.bootstrap, f"writer-{number}", seed + number) for number in range(WRITERS)]
        copier = Copier(brokers.bootstrap)
        threads: list[Transactional] = [*writers, copier]
        for one in threads:
            one.start()
        try:
            until(lambda: all(one.committed > 1 for one in threads), "every producer commits")
            for fault in range(faults):
                hit(brokers, admin, ("kill", "pause", "stop")[fault % 3], rng.choice(NODES), threads)
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join(5 * WAIT_S)
            try:
                lists, ends = final(brokers.bootstrap, "t")
                until(lambda: copier.failed is not None or copier.ends == ends, f"all is copied to {ends}")
            finally:
                copier.stopping.set()
                copier.join(5 * WAIT_S)
        assert [one.failed for one in threads] == [None] * len(threads)
        history = [txn for writer in writers for txn in writer.history]
        assert find_anomalies(history, lists) == []
        for (_, name), values in lists.items():
            numbers = [int(value.split()[1]) for value in values]
            assert numbers == sorted(numbers), f"the transactions of {name} in their order"
        assert final(brokers.bootstrap, "copy")[0] == lists, "what was copied in transactions is there once, in order"
        outcomes = {txn.outcome for txn in history}
        assert {Outcome.COMMITTED, Outcome.ABORTED} <= outcomes
