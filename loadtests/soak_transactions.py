"""The soak's transactions: producers that commit, abort and give up, and readers of committed records."""

from __future__ import annotations

import random
import time
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition

from loadtests.soak_books import CommittedReading, Outcome, TransactionBook, TransactionId, Wrong, transactional_value
from loadtests.soak_clients import Worker, Workload, make_rolling_topic, read_to_end, reader
from loadtests.system import System

PRODUCERS = 2
RECORDS_MAX = 40
ABORTED_SHARE, GIVEN_UP_SHARE = 0.15, 0.05
PAUSE_S = 0.15
ANSWER_TIMEOUT_S = 15.0
LAST_COME_TIMEOUT_S = 60.0
TRANSACTION_TIMEOUT_MS = 20_000


class GivenUp(Exception):
    """This producer object is of no more use; the next one with its transactional id ends what it left open."""


class TransactionalProducer(Worker):
    """Transactions of some records over all partitions: most are committed, some aborted, some left open by a producer that goes,
    and comes again with its transactional id."""

    def __init__(self, bootstrap: str, book: TransactionBook, place: int, seed: int) -> None:
        super().__init__(f"transactional producer {place}")
        self.book = book
        self.come = 0
        self._address, self._place, self._rng = bootstrap, place, random.Random(seed)
        self._number = 0

    def run(self) -> None:
        last_come = 0.0
        settled = False
        while not (settled and self._ending.is_set()):
            producer = self._producer()
            settled = False
            try:
                self._retry(producer.init_transactions)
                settled = True  # whatever was left open is aborted now, or its commit is complete
                self.come += 1
                while not self._ending.wait(PAUSE_S):
                    settled = False
                    self._transaction(producer)
                    settled = True
            except (GivenUp, KafkaException) as trouble:
                if self._ending.is_set():
                    last_come = last_come or time.monotonic() + LAST_COME_TIMEOUT_S
                    if time.monotonic() > last_come:
                        self.book.errors.append(f"transactional producer {self._place} cannot come again: {trouble}")
                        return
                time.sleep(0.1)  # a broker that is being restarted

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": f"soak-{self._place}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def _retry(self, ask: object) -> None:
        """Until it is answered. Raises: KafkaException that is not for another try; GivenUp if it takes too long."""
        deadline = time.monotonic() + 4 * ANSWER_TIMEOUT_S
        while True:
            try:
                ask(ANSWER_TIMEOUT_S)  # type: ignore[operator]
                return
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                if time.monotonic() > deadline:
                    raise GivenUp("no answer") from failure

    def _transaction(self, producer: Producer) -> None:
        """One transaction. Raises: GivenUp, KafkaException, and its outcome is in the book then."""
        book, rng = self.book, self._rng
        name: TransactionId = (self._place, self._number)
        self._number += 1
        book.begin(name)
        asked = False
        try:
            producer.begin_transaction()
            for index in range(rng.randint(1, RECORDS_MAX)):
                place = rng.randrange(book.partitions)
                book.sent(name, index, place)
                producer.produce(
                    book.topic,
                    transactional_value(name, index),
                    partition=place,
                    on_delivery=partial(self._delivered, name, index),
                )
            producer.poll(0)
            fate = rng.random()
            if fate < GIVEN_UP_SHARE:
                producer.flush(ANSWER_TIMEOUT_S)
                raise GivenUp("on purpose")
            if fate < GIVEN_UP_SHARE + ABORTED_SHARE:
                producer.flush(ANSWER_TIMEOUT_S)  # so that there is something to abort
                self._retry(producer.abort_transaction)
                book.ended(name, Outcome.ABORTED)
                return
            asked = True
            book.ended(name, Outcome.COMMITTING)
            self._retry(producer.commit_transaction)
            book.ended(name, Outcome.COMMITTED)
        except (GivenUp, KafkaException) as failure:
            error = failure.args[0]
            if isinstance(error, KafkaError) and error.txn_requires_abort():
                # The commit failed before the broker decided on it, so that the transaction can only be aborted.
                book.ended(name, Outcome.ABORTED)
                self._retry(producer.abort_transaction)
                return
            book.ended(name, Outcome.UNKNOWN if asked else Outcome.ABORTED)
            raise

    def _delivered(self, name: TransactionId, index: int, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self.book.acknowledged(name, index, offset)


class CommittedTail(Worker):
    """Stays at the end of the topic and reads committed records as they come."""

    def __init__(self, bootstrap: str, book: TransactionBook) -> None:
        super().__init__("tail of committed records")
        self.book = book
        self.read = 0
        self._address = bootstrap

    def run(self) -> None:
        book, reading = self.book, CommittedReading(self.book)
        with reader(self._address, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition(book.topic, place, OFFSET_BEGINNING) for place in range(book.partitions)])
            try:
                while not self._ending.is_set():
                    for message in consumer.consume(1000, 0.2):
                        if message.error() is None:
                            reading.read(message)
                            self.read += 1
            except Wrong as wrong:
                self.wrong = str(wrong)


class Transactions(Workload):
    """Producers with transactions on one topic, a tail while it goes on, and a reading of everything at the end."""

    name = "transactions"

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__()
        self.book = TransactionBook("transacted", 3)
        self._address = bootstrap
        self._producers = [
            TransactionalProducer(bootstrap, self.book, place, seed * 100 + place) for place in range(PRODUCERS)
        ]
        self._tail = CommittedTail(bootstrap, self.book)
        self.watched = (self._tail,)
        self._read_at_end = 0

    def prepare(self, system: System) -> None:
        make_rolling_topic(system, self.book.topic, self.book.partitions)

    def start(self) -> None:
        for worker in (*self._producers, self._tail):
            worker.start()

    def stop_writing(self) -> None:
        for producer in self._producers:
            producer.stop()
        self.wrong += self.book.errors[:3]

    def settle(self) -> None:
        committed = sum(len(one.records) for one in self.book.transactions.values() if one.outcome is Outcome.COMMITTED)

        self.wait_until(
            lambda: self._tail.read >= committed,
            lambda: f"the tail has {self._tail.read} of {committed} committed records and stays there",
        )

    def finish(self) -> None:
        self._tail.stop()
        self.gather()
        reading = CommittedReading(self.book)
        try:
            read = [
                reading.read(message)
                for message in read_to_end(
                    self._address, self.book.topic, self.book.partitions, isolation_level="read_committed"
                )
            ]
        except Wrong as wrong:
            self.wrong.append(str(wrong))
            return
        self._read_at_end = len(read)
        self.wrong += self.book.check_all(read)

    def counts(self) -> dict[str, int]:
        return {
            "committed": self.book.count(Outcome.COMMITTED),
            "aborted or given up": self.book.count(Outcome.ABORTED),
            "without an answer": self.book.count(Outcome.UNKNOWN),
            "times a producer came": sum(producer.come for producer in self._producers),
            "committed records read as they came": self._tail.read,
            "at the end": self._read_at_end,
        }
