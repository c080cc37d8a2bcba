"""The soak's books: each of them finds the faults that it is for, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from loadtests.soak import Outcome, Sample, flatness
from loadtests.soak_books import (
    IDENTITY,
    NOT_ACKNOWLEDGED,
    Book,
    CommittedReading,
    GroupBook,
    KeyBook,
    RestBook,
    ShareBook,
    TransactionBook,
    Wrong,
    transactional_value,
    value_of,
)
from loadtests.soak_books import (
    Outcome as Ended,
)


@dataclass
class Read:
    """A message as a consumer hands it out."""

    sequence: int
    at: int
    of: int = 0
    bytes_: bytes | None = None

    def value(self) -> bytes:
        return value_of(self.sequence) if self.bytes_ is None else self.bytes_

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return self.of


def book() -> Book:
    kept = Book("t", 2)
    kept.offsets.extend([10, 0, 11, NOT_ACKNOWLEDGED, 12])
    return kept


def test_what_was_acknowledged_is_fine_where_it_was_acknowledged() -> None:
    assert book().check(Read(2, 11), 0) == 2


def test_what_was_never_acknowledged_may_be_there() -> None:
    assert book().check(Read(3, 44, of=1), 1) == 3


@pytest.mark.parametrize(
    ("read", "after", "words"),
    [
        (Read(2, 12), 0, "acknowledged at 11"),
        (Read(2, 11), 2, "twice, or out of order"),
        (Read(2, 11), 4, "twice, or out of order"),
        (Read(1, 0), -1, "nobody sent"),
        (Read(5, 0, of=1), -1, "nobody sent"),
        (Read(2, 11, bytes_=value_of(2)[:-1] + b"!"), 0, "nobody sent"),
        (Read(2, 11, bytes_=b"short"), 0, "not a record of ours"),
    ],
)
def test_everything_else_is_wrong(read: Read, after: int, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        book().check(read, after)


def calm(count: int, broker_mb: float, descriptors: int = 50, lag: int = 0, cleaner_mb: float = 0.0) -> list[Sample]:
    return [Sample(0.0, 1, True, broker_mb, 60.0, 50.0, cleaner_mb, descriptors, lag, 1.0) for _ in range(count)]


def test_flat_is_flat_and_growth_is_told() -> None:
    assert flatness(Outcome(samples=calm(80, 70.0))) == []
    grown = flatness(Outcome(samples=calm(40, 70.0) + calm(40, 90.0)))
    assert grown == ["broker_mb grew from 70 to 90 in the calm half"]
    leaking = flatness(Outcome(samples=calm(40, 70.0) + calm(40, 70.0, descriptors=100)))
    assert leaking == ["descriptors grew from 50 to 100 in the calm half"]
    assert flatness(Outcome(samples=calm(80, 70.0, cleaner_mb=300.0))) == ["the cleaner process held 300 MB"]
    assert "behind" in flatness(Outcome(samples=calm(80, 70.0, lag=1_000_000)))[0]


def test_what_happens_between_restarts_is_not_held_against_it() -> None:
    restarting = [Sample(0.0, 1, False, mb, 60.0, 50.0, 0.0, 50, 0, 1.0) for mb in range(50, 500)]
    assert flatness(Outcome(samples=restarting + calm(80, 70.0))) == []


def test_too_little_to_say_is_said() -> None:
    assert "too short" in flatness(Outcome(samples=calm(10, 70.0)))[0]


def group() -> GroupBook:
    """Records 0, 2, 4 and 6 of partition 0 are at offsets 0 to 3, records 1, 3 and 5 of partition 1 at 0, 1 and 2; the group has
    read the first two of each."""
    sent = Book("t", 2)
    sent.offsets.extend([0, 0, 1, 1, 2, 2, 3])
    sent.acknowledged = 7
    found = GroupBook("g", sent)
    for sequence in range(4):
        found.read(sequence, sequence // 2)
    return found


def test_a_group_may_commit_what_it_has_read_and_read_it_again() -> None:
    found = group()
    found.committed(0, 1)
    found.committed(0, 2)
    found.committed(0, 2)
    found.committed(1, 2)
    found.read(2, 1)
    assert (found.behind, found.seen.count, found.reads) == (3, 4, 5)


def test_a_committed_offset_that_goes_back_is_found() -> None:
    found = group()
    found.committed(0, 2)
    with pytest.raises(Wrong, match="went back from 2 to 1"):
        found.committed(0, 1)


def test_a_commit_beyond_what_the_group_read_is_found() -> None:
    with pytest.raises(Wrong, match="3 is committed, but the group read to 2 only"):
        group().committed(0, 3)


def test_a_record_that_the_group_skipped_is_found_when_a_later_offset_is_committed() -> None:
    found = group()
    found.read(6, 3)  # record 4 at offset 2 was dropped
    with pytest.raises(Wrong, match="nobody read record 4 at 2"):
        found.committed(0, 4)


def test_an_acknowledged_record_that_nobody_of_the_group_read_is_found_at_the_end() -> None:
    found = group()
    for sequence in (4, 6):
        found.read(sequence, sequence // 2)
    assert found.unread() == ["group g: nobody read record 5 of t, acknowledged at 2"]
    found.read(5, 2)
    assert found.unread() == []


def test_a_share_group_has_to_accept_every_acknowledged_record() -> None:
    found = ShareBook("g", book())
    for sequence in (0, 1, 2):
        found.accepted.add(found.delivered(Read(sequence, book().offsets[sequence], of=sequence % 2)))
    assert found.delivered(Read(4, 12)) == 4  # got, and not accepted
    assert found.unaccepted() == ["share group g: nobody accepted record 4 of t, acknowledged at 12"]


def test_an_accepted_record_that_a_share_group_gets_again_is_found() -> None:
    found = ShareBook("g", book())
    assert found.delivered(Read(2, 11)) == found.delivered(Read(2, 11))  # it was not accepted: it may come again
    found.accepted.add(2)
    with pytest.raises(Wrong, match="came again"):
        found.delivered(Read(2, 11))
    with pytest.raises(Wrong, match="acknowledged at 12"):
        found.delivered(Read(4, 13))


@dataclass
class ReadBytes:
    """A message with any value."""

    bytes_: bytes | None
    at: int
    of: int = 0

    def value(self) -> bytes | None:
        return self.bytes_

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return self.of


def transactions() -> TransactionBook:
    """Of producer 7: transaction 0 was committed, 1 aborted, 2 has no answer, 3 is open; two records each, in partition 0."""
    found = TransactionBook("t", 1)
    for number, outcome in enumerate((Ended.COMMITTED, Ended.ABORTED, Ended.UNKNOWN, Ended.OPEN)):
        found.begin((7, number))
        for index in (0, 1):
            found.sent((7, number), index, 0)
            found.acknowledged((7, number), index, 3 * number + index)
        found.ended((7, number), outcome)
    return found


def transacted(number: int, index: int, at: int | None = None) -> ReadBytes:
    return ReadBytes(transactional_value((7, number), index), 3 * number + index if at is None else at)


def test_committed_transactions_may_be_read_and_those_without_an_answer_too() -> None:
    reading = CommittedReading(transactions())
    read = [reading.read(transacted(number, index)) for number in (0, 2) for index in (0, 1)]
    assert transactions().check_all(read) == []
    assert transactions().check_all(read[:2]) == []  # the one without an answer is not there at all


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (transacted(1, 0), "which is aborted"),
        (transacted(3, 0), "which is open"),
        (transacted(0, 0, at=5), "acknowledged at 0, 0"),
        (transacted(9, 0), "nobody sent"),
        (ReadBytes(transactional_value((7, 0), 0)[:-1] + b"!", 0), "nobody sent"),
        (ReadBytes(None, 0), "not a record of ours"),
    ],
)
def test_a_reader_of_committed_records_that_sees_anything_else_is_told(message: ReadBytes, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        CommittedReading(transactions()).read(message)


def test_a_committed_record_that_comes_twice_is_found() -> None:
    reading = CommittedReading(transactions())
    reading.read(transacted(0, 1))
    with pytest.raises(Wrong, match="twice, or out of order"):
        reading.read(transacted(0, 1))


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ([((7, 0), 0)], "committed, but 1 of its 2 records are missing"),
        ([], "committed, but 2 of its 2 records are missing"),
        ([((7, 0), 0), ((7, 0), 1), ((7, 2), 1)], "without an answer, 1 of 2 records are missing"),
        ([((7, 0), 0), ((7, 0), 1), ((7, 1), 0)], "is aborted, but can be read"),
        ([((7, 0), 0), ((7, 0), 1), ((7, 0), 1)], "there twice"),
    ],
)
def test_a_transaction_that_is_not_whole_at_the_end_is_found(
    read: list[tuple[tuple[int, int], int]], words: str
) -> None:
    [wrong] = transactions().check_all(read)
    assert words in wrong


def keys() -> KeyBook:
    """Key 0 has values 0 and 2, key 1 a value and then a tombstone; record ``n`` is at offset ``10 + n`` of its partition."""
    found = KeyBook("t", 2, 2)
    for number, (key, tombstone) in enumerate([(0, False), (1, False), (0, False), (1, True)]):
        assert found.draw(key, tombstone=tombstone) == number
        found.acknowledge(number, 10 + number)
    return found


def keyed(number: int, at: int | None = None) -> tuple[ReadBytes, bytes]:
    key = keys().drawn[number][0]
    return ReadBytes(keys().value(number), 10 + number if at is None else at, of=key), IDENTITY.pack(key)


def test_a_compacted_topic_may_have_lost_old_values_and_tombstones() -> None:
    found = keys()
    everything = dict(found.check(*keyed(number)) for number in range(4))
    assert everything == {0: 2, 1: 3}
    assert found.check_all(dict(found.latest), everything) == []
    assert found.check_all(dict(found.latest), {0: 2}) == []
    assert found.check_all({0: 0, 1: 1}, {0: 2}) == []  # the tombstone came while it was read


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ({1: 3}, "key 0 is gone, its last acknowledged record is 2"),
        ({0: 0, 1: 3}, "key 0 reads record 0, its last acknowledged one is 2"),
        ({0: 2, 1: 1}, "key 1 reads record 1, its last acknowledged one is 3"),  # what a tombstone deleted came back
    ],
)
def test_a_key_without_its_last_value_is_found(read: dict[int, int | None], words: str) -> None:
    [wrong] = keys().check_all(keys().latest, read)
    assert words in wrong


@pytest.mark.parametrize(
    ("message", "key", "words"),
    [
        (ReadBytes(keys().value(0), 11, of=0), IDENTITY.pack(0), "acknowledged at 10"),
        (ReadBytes(keys().value(0), 10, of=1), IDENTITY.pack(1), "nobody sent"),
        (ReadBytes(b"short", 10, of=0), IDENTITY.pack(0), "nobody sent"),
        (ReadBytes((keys().value(0) or b"")[:-1] + b"!", 10, of=0), IDENTITY.pack(0), "nobody sent"),
        (ReadBytes(None, 12, of=0), IDENTITY.pack(0), "tombstone of key 0, which was not"),
        (ReadBytes(None, 12, of=0), None, "a key that nobody sent"),
    ],
)
def test_a_record_of_a_compacted_topic_that_nobody_wrote_there_is_found(
    message: ReadBytes, key: bytes | None, words: str
) -> None:
    with pytest.raises(Wrong, match=words):
        keys().check(message, key)


def rest() -> RestBook:
    """Records 0 to 2 have receipts, and one request was sent again."""
    found = RestBook("t", 1)
    found.asked, found.retried = 3, 1
    for number in range(3):
        found.receipt(number, 0, number)
    return found


def stored() -> dict[tuple[int, int], object]:
    return {(0, number): RestBook.data(number) for number in range(3)}


def test_what_has_a_receipt_is_where_the_receipt_says_and_a_retry_may_be_there_twice() -> None:
    assert rest().check_all(stored()) == []
    assert rest().check_all(stored() | {(0, 3): RestBook.data(2)}) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda read: read.pop((0, 1)), "t-0 at 1: record 1 was stored there, now there is None"),
        (lambda read: read.update({(0, 1): RestBook.data(2)}), "record 1 was stored there"),
        (lambda read: read.update({(0, 3): {"number": 1}}), "a record that nobody sent"),
        (lambda read: read.update({(0, 3): RestBook.data(3)}), "a record that nobody sent"),
        (lambda read: read.update({(0, n): RestBook.data(0) for n in (3, 4)}), "2 records more than receipts, but 1"),
    ],
)
def test_what_http_stored_wrongly_is_found(damage: Callable[[dict[tuple[int, int], object]], None], words: str) -> None:
    read = stored()
    damage(read)
    assert any(words in wrong for wrong in rest().check_all(read))


def test_two_receipts_for_one_offset_are_found() -> None:
    with pytest.raises(Wrong, match="two receipts name offset 2"):
        rest().receipt(3, 0, 2)
