"""A compacted topic that is written, cleaned on every replica and read from its start again and again, while its brokers die.

Whatever the cleaner has left of a partition when somebody reads it, the newest value of each key that was acknowledged before is in
it, or a newer one, and all is in the order in which it was written.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.support.cluster import WAIT_S
from tests.support.waiting import block_until

TOPIC: Final = "keyed"
GROUP: Final = "keepers"
"""librdkafka asks for its coordinator, though nothing is committed."""
PARTITIONS: Final = 3
KEYS: Final = 20
DELETED_SHARE: Final = 0.1
CONFIG: Final = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
}
SETTINGS: Final[dict[str, Any]] = {"log_cleaner_backoff_ms": 200}
PACE_S: Final = 0.05
LEAST: Final = 3
"""Records of a partition that are more than what is under way at any moment."""
LEFT_MAX: Final = 0.5
"""The share of the repeats that may be left at the end: of the records that a later record of the same key stands for."""
PASS_S: Final = WAIT_S
"""A reader that has not come to the end in this time begins again."""


def repeats_left(count: int, keys: int, found: Iterable[bytes]) -> float:
    """The share of its repeats that a log still has: 1.0 if it was never cleaned.

    ``count`` records of at most ``keys`` keys were acknowledged before somebody read the log and found ``found``, the key of each
    record. One record of each key stays however clean the log is. So records are not compared with records: of 30 records of 20
    keys most stay.
    """
    there = list(found)
    written = count - keys
    return (len(there) - len(set(there))) / written if written > 0 else 1.0


class Keyed:
    """Threads that write and read. ``one_by_one``: as of ``Writing``. ``client``: settings with which they get in."""

    name = "who writes and reads a compacted topic"
    between_brokers = False

    def __init__(
        self, bootstrap: str, seed: int, *, one_by_one: bool = False, client: Mapping[str, Any] | None = None
    ) -> None:
        self._rng = random.Random(seed)
        self._one_by_one = one_by_one
        self._client = {
            "bootstrap.servers": bootstrap,
            "socket.timeout.ms": 2_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            **(client or {}),
        }
        self._tried: list[dict[bytes, int]] = [{} for _ in range(PARTITIONS)]
        """The newest number of each key that was written, acknowledged or not."""
        self._acknowledged: list[dict[bytes, int]] = [{} for _ in range(PARTITIONS)]
        """The newest that was acknowledged at an offset."""
        self._count = [0] * PARTITIONS
        """How many were acknowledged."""
        self._last = [-1] * PARTITIONS
        """The highest offset that was acknowledged. Readers go that far: a leader of before may tell an older end."""
        self._refused: list[str] = []
        self._wrong: list[str] = []
        self._passes = 0
        self._dirt = [1.0] * PARTITIONS
        """What ``repeats_left`` told of the last pass, per partition."""
        self._was_clean = False
        """Whether the cleaner was seen to have done its work, at the end."""
        self._stop_writing, self._stop_reading = threading.Event(), threading.Event()
        self._unsent = -1
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        producer = Producer(
            {
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                **self._client,
            }
        )
        number = 0
        while not self._stop_writing.is_set():
            for partition in range(PARTITIONS):
                key = b"%d" % self._rng.randrange(KEYS)
                number += 1
                self._tried[partition][key] = number
                self._produce(producer, partition, key, number)
            producer.poll(PACE_S)
            while self._one_by_one and len(producer) and not self._stop_writing.is_set():
                producer.poll(PACE_S)
        self._unsent = producer.flush(WAIT_S)

    def _produce(self, producer: Producer, partition: int, key: bytes, number: int) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None:
                self._count[partition] += 1
                offset = message.offset()
                # None: the broker knows the batch, and remembers no more where it is. Nobody could say whether a reader got there.
                if offset is not None:
                    self._last[partition] = max(self._last[partition], offset)
                    self._acknowledged[partition][key] = number
            else:
                self._refused.append(f"{partition} {key!r} {number}: {error}")

        # The number is in a header, too, because a deleted key has no value.
        value = None if self._rng.random() < DELETED_SHARE else b"%d" % number
        while True:
            try:
                producer.produce(TOPIC, value, key, partition, on_delivery=done, headers=[("n", b"%d" % number)])
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _read(self) -> None:
        consumer = Consumer(
            {"group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "error", **self._client}
        )
        try:
            while not self._stop_reading.is_set():
                self._look(consumer)
        finally:
            consumer.close()

    def _look(self, consumer: Consumer) -> None:
        """Read all of each partition once."""
        for partition in range(PARTITIONS):
            count, keys = self._count[partition], len(self._tried[partition])
            least = dict(self._acknowledged[partition])
            found = self._all_of(consumer, partition, self._last[partition])
            if found is None:
                return
            numbers = [number for _, number in found]
            if numbers != sorted(set(numbers)):
                self._wrong.append(f"partition {partition} is not in order: {numbers}")
            newest = dict(found)
            lost = {key: (number, newest.get(key)) for key, number in least.items() if newest.get(key, -1) < number}
            if lost:
                self._wrong.append(f"partition {partition} lost keys: (acknowledged, found) by key: {lost}")
            tried = dict(self._tried[partition])
            never = {key: number for key, number in newest.items() if number > tried.get(key, -1)}
            if never:
                self._wrong.append(f"partition {partition} has what was never written: {never}")
            self._dirt[partition] = repeats_left(count, keys, (key for key, _ in found))
        self._passes += 1

    def _all_of(self, consumer: Consumer, partition: int, end: int) -> list[tuple[bytes, int]] | None:
        """Keys and numbers, up to the offset ``end`` and perhaps further; None if it is to be tried again."""
        consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
        found: list[tuple[bytes, int]] = []
        last, until_s = -1, time.monotonic() + PASS_S
        while last < end:  # that record may be gone by now; then there is a later one
            if self._stop_reading.is_set() or time.monotonic() > until_s:
                return None
            for message in consumer.consume(1_000, 0.2):
                if message.error() is not None:
                    return None
                key, offset, headers = message.key(), message.offset(), message.headers()
                assert key is not None
                assert offset is not None
                assert headers is not None
                (number,) = [value for name, value in headers if name == "n"]
                found.append((key, int(number)))
                last = offset
        return found

    @property
    def acknowledged(self) -> list[int]:
        """How many records of each partition."""
        return list(self._count)

    def more(self) -> Callable[[], bool]:
        """Whether every partition took more records since this call, and all of them were read from their starts."""
        counts, passes = list(self._count), self._passes
        return lambda: (
            all(now > old + LEAST for now, old in zip(list(self._count), counts, strict=True))
            and self._passes > passes + 1
        )

    def finish(self) -> None:
        """Write until most of what can be cleaned away is. Then write no more, and read once more when all is acknowledged."""
        passes = self._passes
        # A segment is cleaned when a later record has rolled it, so there have to be later records. And the cleaner gives way to
        # all else: on a busy machine it may be behind.
        self._until(lambda: self._passes > passes + 1 and max(self._dirt) < LEFT_MAX, "the compacted topic is clean")
        self._was_clean = True
        self._stop_writing.set()
        self._threads[0].join(2 * WAIT_S)
        assert not self._threads[0].is_alive()
        assert self._unsent == 0, "all was acknowledged or refused"
        passes = self._passes
        self._until(lambda: self._passes > passes + 1, "the compacted topic is read to its end")
        self.stop()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        passes = self._passes
        try:
            block_until(holds, what)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: repeats left per partition {self._dirt}, records {self._count}, {self._passes - passes} passes"
            ) from None

    def stop(self) -> None:
        self._stop_writing.set()
        self._stop_reading.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
            assert not thread.is_alive()

    def check(self) -> None:
        """After ``finish``: no acknowledged value is lost or went back, and the cleaner was at work."""
        assert self._refused == []
        assert not self._wrong, self._wrong[:3]
        assert self._was_clean, "``finish`` saw that the cleaner was at work"
