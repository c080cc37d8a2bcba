"""The books of the soak: what was sent, what was promised about it, and what a reader may see of it.

A book decides, and does no input or output: a client tells it what it sent, which acknowledgement it got and what it read, and
the book raises ``Wrong`` where the two do not fit. So each check can be shown to find its fault without a broker.
"""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import Protocol

IDENTITY = Struct(">Q")
FILLER = random.Random(20).randbytes(1 << 16)
RECORD_BYTES = 1_000
NOT_ACKNOWLEDGED = -1
TOLD_MAX = 3
"""Of one kind of fault, in words; the count of the others is told."""


class Wrong(Exception):
    """What was read is not what was written; the message says where."""


class Read(Protocol):
    """A record as a consumer returns it."""

    def value(self) -> bytes | None: ...

    def offset(self) -> int | None: ...

    def partition(self) -> int | None: ...


def value_of(sequence: int) -> bytes:
    """The record of this number."""
    start = sequence * 7 % (len(FILLER) - RECORD_BYTES)
    return IDENTITY.pack(sequence) + FILLER[start : start + RECORD_BYTES - IDENTITY.size]


def told(faults: Collection[str], what: str) -> list[str]:
    """The first few of ``faults``, and how many more there are of ``what``."""
    some = list(faults)[:TOLD_MAX]
    return some + ([f"{len(faults) - TOLD_MAX} more of {what}"] if len(faults) > TOLD_MAX else [])


class Book:
    """What one producer sent to one topic: record ``n`` went to partition ``n % partitions``, and where it was acknowledged."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.offsets = array("q")
        """By record number; ``NOT_ACKNOWLEDGED`` until it is."""
        self.acknowledged = 0
        self.errors: list[str] = []

    def check(self, message: Read, after: int) -> int:
        """The number of a record that was read; it must come after number ``after`` of its partition. Raises: Wrong."""
        value, offset, partition = message.value(), message.offset(), message.partition()
        where = f"{self.topic}-{partition} at {offset}"
        if value is None or len(value) != RECORD_BYTES:
            raise Wrong(f"{where}: not a record of ours")
        sequence: int = IDENTITY.unpack_from(value)[0]
        if value != value_of(sequence) or sequence >= len(self.offsets) or sequence % self.partitions != partition:
            raise Wrong(f"{where}: bytes that nobody sent")
        if sequence <= after:
            raise Wrong(f"{where}: record {sequence} after record {after}: twice, or out of order")
        promised = self.offsets[sequence]
        if promised not in (NOT_ACKNOWLEDGED, offset):
            raise Wrong(f"{where}: record {sequence}, which was acknowledged at {promised}")
        return sequence


class Marks:
    """Which numbers were met, one byte each."""

    def __init__(self) -> None:
        self._met = bytearray()
        self._lock = threading.Lock()
        self.count = 0
        """Of numbers that were met."""

    def add(self, number: int) -> bool:
        """Whether it is met for the first time."""
        with self._lock:
            if number >= len(self._met):
                self._met.extend(bytes(number + 1 - len(self._met) + 4096))
            first = not self._met[number]
            self._met[number] = 1
            self.count += first
        return first

    def __contains__(self, number: int) -> bool:
        return number < len(self._met) and bool(self._met[number])


class GroupBook:
    """What the members of one consumer group read together, and what the group committed.

    A member says that it read a record before it commits the offset behind it. So whatever offset is committed, every
    acknowledged record before that offset was read by some member.
    """

    def __init__(self, group: str, book: Book) -> None:
        self.group, self.book = group, book
        self.seen = Marks()
        self.reads = self.refused = 0
        self._read_ends = [0] * book.partitions
        self._committed = [0] * book.partitions
        self._next = list(range(book.partitions))
        """Of each partition the first record that no committed offset has passed yet."""

    def read(self, sequence: int, offset: int) -> None:
        """A member read this record."""
        partition = sequence % self.book.partitions
        self.reads += 1
        self.seen.add(sequence)
        self._read_ends[partition] = max(self._read_ends[partition], offset + 1)

    def committed(self, partition: int, offset: int) -> None:
        """The broker says that the group has committed this offset. Raises: Wrong."""
        where = f"group {self.group}, {self.book.topic}-{partition}"
        if offset < self._committed[partition]:
            raise Wrong(f"{where}: the committed offset went back from {self._committed[partition]} to {offset}")
        if offset > self._read_ends[partition]:
            raise Wrong(f"{where}: {offset} is committed, but the group read to {self._read_ends[partition]} only")
        self._committed[partition] = offset
        offsets, place = self.book.offsets, self._next[partition]
        while place < len(offsets) and NOT_ACKNOWLEDGED != offsets[place] < offset:
            if place not in self.seen:
                raise Wrong(f"{where}: {offset} is committed, but nobody read record {place} at {offsets[place]}")
            place += self.book.partitions
        self._next[partition] = place

    @property
    def behind(self) -> int:
        """Acknowledged records that no committed offset has passed yet."""
        offsets, left = self.book.offsets, 0
        for partition, place in enumerate(self._next):
            left += len(range(place, len(offsets), self.book.partitions)) if partition < len(offsets) else 0
        return left

    def unread(self) -> list[str]:
        """Every acknowledged record that no member read."""
        missed = [
            f"group {self.group}: nobody read record {sequence} of {self.book.topic}, acknowledged at {offset}"
            for sequence, offset in enumerate(self.book.offsets)
            if offset != NOT_ACKNOWLEDGED and sequence not in self.seen
        ]
        return told(missed, f"records that group {self.group} skipped")


class ShareBook:
    """What the members of one share group got and accepted of a topic."""

    def __init__(self, group: str, book: Book) -> None:
        self.group, self.book = group, book
        self.accepted = Marks()
        self.deliveries = self.released = 0

    def delivered(self, message: Read) -> int:
        """The number of a record that a member got. Raises: Wrong, also if the broker took its acceptance already."""
        sequence = self.book.check(message, -1)
        self.deliveries += 1
        if sequence in self.accepted:
            raise Wrong(f"share group {self.group}: record {sequence} came again, though its acceptance was confirmed")
        return sequence

    def unaccepted(self) -> list[str]:
        """Every acknowledged record that no member has accepted."""
        missed = [
            f"share group {self.group}: nobody accepted record {sequence} of {self.book.topic}, acknowledged at {offset}"
            for sequence, offset in enumerate(self.book.offsets)
            if offset != NOT_ACKNOWLEDGED and sequence not in self.accepted
        ]
        return told(missed, f"records that share group {self.group} never finished")


class Outcome(Enum):
    """How a transaction went, as its producer knows it."""

    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Or given up, and its producer has come again: that aborts it."""
    UNKNOWN = "without an answer"


@dataclass(slots=True)
class Transaction:
    """What was sent in it: index to partition and acknowledged offset."""

    outcome: Outcome = Outcome.OPEN
    records: dict[int, tuple[int, int]] = field(default_factory=dict)


TransactionId = tuple[int, int]
"""A producer, and the number of its transaction."""
IN_TRANSACTION = Struct(">IIH")
TRANSACTIONAL_BYTES = 200


def transactional_value(transaction: TransactionId, index: int) -> bytes:
    """Record ``index`` of a transaction."""
    start = (transaction[0] * 31 + transaction[1] * 7 + index) % (len(FILLER) - TRANSACTIONAL_BYTES)
    return IN_TRANSACTION.pack(*transaction, index) + FILLER[start : start + TRANSACTIONAL_BYTES - IN_TRANSACTION.size]


class TransactionBook:
    """Transactions of several producers on one topic, and what a reader of committed records may see of them."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.transactions: dict[TransactionId, Transaction] = {}
        self.errors: list[str] = []

    def begin(self, transaction: TransactionId) -> None:
        self.transactions[transaction] = Transaction()

    def sent(self, transaction: TransactionId, index: int, partition: int) -> None:
        self.transactions[transaction].records[index] = (partition, NOT_ACKNOWLEDGED)

    def acknowledged(self, transaction: TransactionId, index: int, offset: int) -> None:
        records = self.transactions[transaction].records
        records[index] = (records[index][0], offset)

    def ended(self, transaction: TransactionId, outcome: Outcome) -> None:
        self.transactions[transaction].outcome = outcome

    def count(self, outcome: Outcome) -> int:
        return sum(one.outcome is outcome for one in list(self.transactions.values()))

    def check(self, message: Read) -> tuple[TransactionId, int]:
        """Which record a reader of committed records has just got. Raises: Wrong, also if its transaction was aborted or is
        open still."""
        value, offset, partition = message.value(), message.offset(), message.partition()
        where = f"{self.topic}-{partition} at {offset}"
        if value is None or len(value) != TRANSACTIONAL_BYTES:
            raise Wrong(f"{where}: not a record of ours")
        producer, number, index = IN_TRANSACTION.unpack_from(value)
        name = (producer, number)
        found = self.transactions.get(name)
        if found is None or index not in found.records or value != transactional_value(name, index):
            raise Wrong(f"{where}: bytes that nobody sent")
        at, promised = found.records[index]
        if at != partition or promised not in (NOT_ACKNOWLEDGED, offset):
            raise Wrong(f"{where}: record {index} of transaction {name}, which was acknowledged at {at}, {promised}")
        if found.outcome in (Outcome.OPEN, Outcome.ABORTED):
            raise Wrong(
                f"{where}: a reader of committed records sees transaction {name}, which is {found.outcome.value}"
            )
        return name, index

    def check_all(self, read: Iterable[tuple[TransactionId, int]]) -> list[str]:
        """``read`` is everything that a reader of committed records got from the start to the end, after the last producer
        ended. Every committed transaction must be there once and whole, one without an answer whole or not at all."""
        wrong = []
        there: dict[TransactionId, list[int]] = {}
        for name, index in read:
            there.setdefault(name, []).append(index)
        for name, transaction in self.transactions.items():
            found = there.get(name, [])
            if len(found) != len(set(found)):
                wrong.append(f"{self.topic}: records of transaction {name} are there twice")
            missing = len(transaction.records) - len(set(found))
            match transaction.outcome:
                case Outcome.COMMITTED if missing:
                    wrong.append(
                        f"{self.topic}: transaction {name} was committed, but {missing} of its {len(transaction.records)} "
                        "records are missing"
                    )
                case Outcome.UNKNOWN if found and missing:
                    wrong.append(
                        f"{self.topic}: of transaction {name}, without an answer, {missing} of {len(transaction.records)} "
                        "records are missing"
                    )
                case Outcome.ABORTED | Outcome.OPEN if found:
                    wrong.append(f"{self.topic}: transaction {name} is {transaction.outcome.value}, but can be read")
                case _:
                    pass
        return told(wrong, "transactions that are not as they ended")


class CommittedReading:
    """One reading of a topic with transactions, from some offset on: no record twice, each producer's in the order sent."""

    def __init__(self, book: TransactionBook) -> None:
        self.book = book
        self._last: dict[tuple[int, int], tuple[int, int]] = {}

    def read(self, message: Read) -> tuple[TransactionId, int]:
        """Which record this is. Raises: Wrong."""
        (producer, number), index = self.book.check(message)
        place = message.partition() or 0, producer
        if (number, index) <= (last := self._last.get(place, (-1, -1))):
            raise Wrong(
                f"{self.book.topic}-{place[0]} at {message.offset()}: producer {producer}'s record {(number, index)} after "
                f"{last}: twice, or out of order"
            )
        self._last[place] = (number, index)
        return (producer, number), index


class KeyBook:
    """What one producer wrote to a compacted topic: number ``n`` has the key and is a tombstone or not as it was drawn then.

    All records of a key go to one partition, in the order of their numbers.
    """

    VALUE_BYTES = 1_000

    def __init__(self, topic: str, partitions: int, keys: int) -> None:
        self.topic, self.partitions, self.keys = topic, partitions, keys
        self.drawn: list[tuple[int, bool]] = []
        """By number: the key, and whether it is a tombstone."""
        self.acknowledged = 0
        self.latest: dict[int, int] = {}
        """Key to the number of its last acknowledged record."""
        self.errors: list[str] = []
        self._numbers: dict[tuple[int, int], int] = {}
        """Partition and acknowledged offset to the number."""
        self._offsets: dict[int, int] = {}

    def draw(self, key: int, *, tombstone: bool) -> int:
        """The number of the next record."""
        self.drawn.append((key, tombstone))
        return len(self.drawn) - 1

    def value(self, number: int) -> bytes | None:
        if self.drawn[number][1]:
            return None
        start = number * 7 % (len(FILLER) - self.VALUE_BYTES)
        return IDENTITY.pack(number) + FILLER[start : start + self.VALUE_BYTES - IDENTITY.size]

    def acknowledge(self, number: int, offset: int) -> None:
        key = self.drawn[number][0]
        self.acknowledged += 1
        self._numbers[key % self.partitions, offset] = number
        self._offsets[number] = offset
        self.latest[key] = max(number, self.latest.get(key, -1))

    def check(self, message: Read, key: bytes | None) -> tuple[int, int | None]:
        """The key and the number of a record that was read; no number of a tombstone that is not acknowledged yet.
        Raises: Wrong."""
        value, offset, partition = message.value(), message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        where = f"{self.topic}-{partition} at {offset}"
        if key is None or len(key) != IDENTITY.size or IDENTITY.unpack(key)[0] % self.partitions != partition:
            raise Wrong(f"{where}: a key that nobody sent")
        of_key: int = IDENTITY.unpack(key)[0]
        promised = self._numbers.get((partition, offset))
        if value is None:
            if promised is not None and self.drawn[promised] != (of_key, True):
                raise Wrong(f"{where}: a tombstone of key {of_key}, which was not acknowledged there")
            return of_key, promised
        number: int = IDENTITY.unpack_from(value)[0] if len(value) == self.VALUE_BYTES else -1
        if not 0 <= number < len(self.drawn) or value != self.value(number) or self.drawn[number][0] != of_key:
            raise Wrong(f"{where}: bytes that nobody sent")
        if self._offsets.get(number, offset) != offset or promised not in (None, number):
            raise Wrong(f"{where}: record {number}, which was acknowledged at {self._offsets.get(number)}")
        return of_key, number

    def check_all(self, latest_before: Mapping[int, int], read: Mapping[int, int | None]) -> list[str]:
        """``read`` has each key with the number of its last record in a reading of the whole topic that began after
        ``latest_before`` was so. A key whose last record is a tombstone may be gone; older values may not come back."""
        wrong = []
        for key, wanted in latest_before.items():
            number = read.get(key, -1)
            if number is None or number >= wanted:
                continue
            if number >= 0:
                wrong.append(f"{self.topic}: key {key} reads record {number}, its last acknowledged one is {wanted}")
            elif not any(tombstone for _, tombstone in map(self.drawn.__getitem__, self._since(key, wanted))):
                wrong.append(f"{self.topic}: key {key} is gone, its last acknowledged record is {wanted}")
        return told(wrong, "keys without their last value")

    def _since(self, key: int, number: int) -> Iterable[int]:
        """The records of a key from ``number`` on: a later tombstone may have taken the key away meanwhile."""
        return (n for n in range(number, len(self.drawn)) if self.drawn[n][0] == key)


class RestBook:
    """Records that were sent over HTTP one after another, each as often as it took until an answer said where it is."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.asked = 0
        """Numbers below were sent, the last of them perhaps without an answer yet."""
        self.places: dict[int, tuple[int, int]] = {}
        """Number to partition and offset of the receipt."""
        self.retried = self.reads = 0
        self.errors: list[str] = []
        self._taken: set[tuple[int, int]] = set()

    @staticmethod
    def data(number: int) -> dict[str, object]:
        """What is sent as JSON."""
        return {"number": number, "text": f"record {number} " + "ä" * (number % 50), "tenth": number / 10}

    def receipt(self, number: int, partition: int, offset: int) -> None:
        """The broker stored it. Raises: Wrong, if the place was given to another record."""
        if (partition, offset) in self._taken:
            raise Wrong(f"{self.topic}-{partition}: two receipts name offset {offset}")
        self._taken.add((partition, offset))
        self.places[number] = (partition, offset)

    def check_all(self, read: Mapping[tuple[int, int], object]) -> list[str]:
        """``read`` has everything in the topic by partition and offset, decoded. A record that was sent again after a request
        without an answer may be there twice; nothing else may."""
        wrong = [
            f"{self.topic}-{partition} at {offset}: record {number} was stored there, now there is {str(found)[:80]}"
            for number, (partition, offset) in self.places.items()
            if (found := read.get((partition, offset))) != self.data(number)
        ]
        for place, found in read.items():
            number = found.get("number") if isinstance(found, dict) else None
            if not isinstance(number, int) or not 0 <= number < self.asked or found != self.data(number):
                wrong.append(f"{self.topic}-{place[0]} at {place[1]}: a record that nobody sent")
        extra = len(read) - len(self.places)
        if extra > self.retried:
            wrong.append(
                f"{self.topic}: {extra} records more than receipts, but {self.retried} requests were sent again"
            )
        return told(wrong, f"records of {self.topic}")
