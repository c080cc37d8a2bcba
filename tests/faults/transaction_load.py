"""Transactional producers of librdkafka, and a copier that reads and writes in transactions, while brokers of their cluster die.

Writers append to every partition in each transaction, and abort some. The copier reads what is committed, and writes it to another
topic with its offsets, in transactions too. At the end the history is checked for anomalies of transactions.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.cluster import WAIT_S
from tests.support.cluster import ends_of as partition_ends
from tests.support.waiting import block_until
from tests.transactions.list_append import Outcome, Txn, find_anomalies

LOGGER = logging.getLogger(__name__)
"""Gets the log lines of a producer when the producer is polled. A producer that is left alone (``returned``) is not polled any
more, so its lines go nowhere. Without a logger, they would go to the standard error of all later tests of the process."""
PARTITIONS = 4
WRITERS = 3
SETTINGS = {
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
    "socket.timeout.ms": 3_000,
}
PACE_S = 0.05
CALL_S = 6.0
BACK_S = CALL_S + 2
"""A call that has not returned by then never will."""
TRIES = 3
Lists = dict[tuple[int, str], list[str]]
"""Values by partition and writer, in the order of their offsets."""


class Transactional(threading.Thread):
    """A thread with a transactional producer. A producer that fails for good is replaced by one with the same transactional id."""

    def __init__(self, bootstrap: str, name: str, client: Mapping[str, Any]) -> None:
        """``client``: settings with which it gets in."""
        super().__init__(name=name)
        self.bootstrap = bootstrap
        self.client = client
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

    def ready(self) -> Producer:
        """A producer to which no transaction of its id is open any more, its own or an earlier one's."""
        if self.producer is None:
            self.producer = Producer(
                {
                    **CLIENT,
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 60_000,
                    "linger.ms": 2,
                    **self.client,
                },
                logger=LOGGER,
            )
            self._call(self.producer.init_transactions, CALL_S)
        return self.producer

    def begin(self) -> Producer:
        """A producer whose transaction has begun."""
        producer = self.ready()
        producer.begin_transaction()
        return producer

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

    def __init__(self, bootstrap: str, name: str, seed: int, client: Mapping[str, Any]) -> None:
        super().__init__(bootstrap, name, client)
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
                    producer.produce("txn", value.encode(), partition=partition)
            outcome = self.end(commit=self._rng.random() < 0.8)
        except KafkaException as error:
            self.give_up(error)
            outcome = Outcome.ABORTED
        self.history.append(Txn(f"{self.name} {number}", outcome, appends))
        self.stopping.wait(PACE_S)


class Copier(Transactional):
    """Copies what is committed, with the offsets in the same transactions."""

    def __init__(self, bootstrap: str, client: Mapping[str, Any]) -> None:
        super().__init__(bootstrap, "copier", client)
        self._consumer: Consumer | None = None
        self.ends: dict[int, int] = {}
        """Up to where it has copied, in transactions that are committed, by partition."""

    def step(self) -> None:
        try:
            if self._consumer is None:
                # In this order: an earlier transaction's offsets are known only when it has ended.
                self.ready()
                self._consumer = self._at_committed()
            messages, ends = [], {}
            for message in self._consumer.consume(200, 0.2):
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends[message.partition()] = message.offset()
            if not messages:
                self.ends.update(ends)
                return
            producer = self.begin()
            for message in messages:
                producer.produce("copy", message.value(), partition=message.partition())
            positions = self._consumer.position(self._consumer.assignment())
            offsets = [one for one in positions if one.offset >= 0]
            metadata = self._consumer.consumer_group_metadata()
            self._call(returned, producer.send_offsets_to_transaction, offsets, metadata, CALL_S)
            if self.end(commit=True) is Outcome.COMMITTED:
                self.ends.update(ends)
            else:
                self.leave()
        except KafkaException as error:
            if self.producer is not None:
                self.give_up(error)
            self.leave()

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
                **self.client,
            }
        )
        try:
            found = consumer.committed([TopicPartition("txn", partition) for partition in range(PARTITIONS)], CALL_S)
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)
            consumer.assign([TopicPartition("txn", one.partition, max(one.offset, 0)) for one in found])
        except KafkaException:
            consumer.close()
            raise
        return consumer

    def leave(self) -> None:
        """Close the consumer. The next one begins at what is committed."""
        self.ends.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def ends_of(consumer: Consumer, topic: str) -> dict[int, int]:
    """The end of each partition. A consumer that is ``read_committed`` is told where it may read to."""
    return {partition: partition_ends(consumer, topic, partition)[1] for partition in range(PARTITIONS)}


def final(bootstrap: str, topic: str, client: Mapping[str, Any] | None = None) -> tuple[Lists, dict[int, int]]:
    """All that is committed, and the end of each partition, once nothing is open there. ``client``: settings with which a consumer
    gets in.

    Nobody writes to it any more, but the markers of the last transactions may still come.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": "final", "enable.auto.commit": False, **(client or {})}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    uncommitted = Consumer({**settings, "isolation.level": "read_uncommitted"})
    lists: Lists = defaultdict(list)
    at: dict[int, int] = {}
    ends: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

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
            try:
                ends.update(ends_of(uncommitted, topic))
            except KafkaException as error:
                if error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
                    return False  # it moves, and the client has not heard so yet
                raise
            return at == ends

        block_until(read_on, f"{topic} is read to its end")
    except AssertionError as error:
        raise AssertionError(f"{error}, but to {at} of {ends}") from None
    finally:
        consumer.close()
        uncommitted.close()
    return dict(lists), ends


def check_history(history: Sequence[Txn], lists: Lists) -> None:
    """Transactions are whole, once and in their order."""
    anomalies = find_anomalies(history, lists)
    assert not anomalies, anomalies[:10]
    for (_, name), values in lists.items():
        numbers = [int(value.split()[1]) for value in values]
        assert numbers == sorted(numbers), f"the transactions of {name} in their order"
    outcomes = {txn.outcome for txn in history}
    assert {Outcome.COMMITTED, Outcome.ABORTED} <= outcomes


class Transactions:
    """Writers of the topic ``txn``, and a copier from there to the topic ``copy``."""

    name = "librdkafka's transactional producers"
    between_brokers = True  # their coordinators write markers

    def __init__(
        self,
        bootstrap: str,
        seed: int,
        *,
        writer: Mapping[str, Any] | None = None,
        copier: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> None:
        """``writer``, ``copier`` and ``reader``: settings with which each gets in; the last one reads both topics at the end."""
        self._bootstrap = bootstrap
        self._reader = reader
        self._writers = [
            Writer(bootstrap, f"writer-{number}", seed + number, writer or {}) for number in range(WRITERS)
        ]
        self._copier = Copier(bootstrap, copier or {})
        self._threads: list[Transactional] = [*self._writers, self._copier]
        self._lists: Lists = {}
        for one in self._threads:
            one.start()

    @property
    def committed(self) -> int:
        """How many transactions of writers are known to be committed."""
        return sum(one.committed for one in self._writers)

    def more(self) -> Callable[[], bool]:
        """Whether every writer has committed since this call. Raises: AssertionError if a thread has failed."""
        before = [one.committed for one in self._writers]

        def holds() -> bool:
            assert [one.failed for one in self._threads] == [None] * len(self._threads)
            return all(one.committed > old for one, old in zip(self._writers, before, strict=True))

        return holds

    def finish(self) -> None:
        """Write no more, and wait until everything was copied. A second call does nothing."""
        try:
            for writer in self._writers:
                writer.stopping.set()
            for writer in self._writers:
                writer.join(5 * WAIT_S)
            if not self._copier.stopping.is_set():
                self._lists, ends = final(self._bootstrap, "txn", self._reader)
                block_until(
                    lambda: self._copier.failed is not None or self._copier.ends == ends, f"all is copied to {ends}"
                )
        finally:
            self.stop()

    def stop(self) -> None:
        for one in self._threads:
            one.stopping.set()
        for one in self._threads:
            one.join(5 * WAIT_S)
        self._copier.leave()

    def check(self) -> None:
        """After ``finish``."""
        assert [one.failed for one in self._threads] == [None] * len(self._threads)
        check_history([txn for writer in self._writers for txn in writer.history], self._lists)
        copied = final(self._bootstrap, "copy", self._reader)[0]
        assert copied == self._lists, "what was copied in transactions is there once, in order"
