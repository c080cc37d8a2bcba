"""Positions move when a page is delivered, and are committed when the client is known to have it."""

from __future__ import annotations

from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.consumers.positions import Page, Positions
from app.records.record import Record

A, B = (TopicPartition("t", PartitionIndex(index)) for index in (0, 1))


def record(offset: int) -> Record:
    return Record(Offset(offset), TimestampMs(0), b"k", b"vv")


def page(*offsets: int, start: int = 0) -> Page:
    made = Page(starts={A: Offset(start)})
    for offset in offsets:
        made.add(A, record(offset))
    return made


def begun() -> Positions:
    positions = Positions()
    positions.begin({A: Offset(0)}, {})
    return positions


def test_only_what_the_client_is_known_to_have_is_committed() -> None:
    positions = begun()
    positions.deliver(page(0, 1))
    assert positions.position(A) == 2
    assert positions.uncommitted() == {}
    positions.client_has_all()
    assert positions.uncommitted() == {A: 2}
    assert positions.uncommitted([B]) == {}
    positions.was_committed({A: Offset(2)})
    assert positions.uncommitted() == {}


def test_a_partition_that_was_sought_elsewhere_meanwhile_stays_there() -> None:
    positions = begun()
    read = page(0, 1)
    positions.seek({A: Offset(7)})
    positions.deliver(read)
    assert positions.position(A) == 7
    assert positions.uncommitted() == {A: 7}


def test_a_partition_that_was_given_up_meanwhile_gets_no_position() -> None:
    positions = begun()
    read = page(0)
    positions.retain([B])
    positions.deliver(read)
    assert A not in positions
    positions.was_committed({A: Offset(1)})
    positions.begin({A: Offset(0)}, {})
    assert positions.uncommitted() == {}


def test_a_position_that_came_from_the_reset_is_committed_though_the_client_has_no_record() -> None:
    positions = Positions()
    positions.begin({B: Offset(7)}, {A: Offset(100)})
    assert (positions.position(A), positions.position(B)) == (100, 7)
    positions.deliver(page(100, 101, start=100))
    assert positions.uncommitted() == {A: 100}
    positions.was_committed({A: Offset(100)})
    assert positions.uncommitted() == {}


def test_records_behind_a_cut_are_read_again() -> None:
    cut = page(0, 1, 4)
    cut.starts[B] = Offset(9)
    cut.add(B, record(9))
    cut.cut(1)
    assert [one.offset for _, one in cut.records] == [0]
    assert cut.ends == {A: 1, B: 9}


def test_a_page_keeps_the_records_of_assigned_partitions_only() -> None:
    kept = page(0)
    kept.starts[B] = Offset(3)
    kept.add(B, record(3))
    kept.keep({B})
    assert [partition for partition, _ in kept.records] == [B]
    assert (kept.starts, kept.ends) == ({B: 3}, {B: 4})


class Listed(tuple[TopicPartition, ...]):
    """Partitions that must not be searched one after the other."""

    def __contains__(self, one: object) -> bool:
        raise AssertionError("a search for each record or position takes as long as there are partitions")


def test_partitions_are_not_searched_once_for_each_record() -> None:
    kept = page(0)
    kept.starts[B] = Offset(3)
    kept.add(B, record(3))
    kept.keep(Listed([B]))
    assert [partition for partition, _ in kept.records] == [B]
    positions = begun()
    positions.retain(Listed([B]))
    assert A not in positions
