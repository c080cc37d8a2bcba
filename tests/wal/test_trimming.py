"""No object is deleted that a partition needs (ADR 0037, J32 to J38), and ranges say what they must (J16 to J21)."""

from __future__ import annotations

import pytest

from app.core.errors import CorruptionError
from app.core.units import LeaderEpoch, Offset, TopicIdPartition
from app.metadata.image.wal_ranges import OPEN, WalId, WalRange, dropped, opened, released, sealed
from app.wal.format import WINDOW
from app.wal.trimming import LogRegistration, WalNeeds, deletable, has_ended
from app.wal.writer import DurableObject, DurableSection
from tests.wal.objects import WAL, P, Q

OTHER = WalId(9, 1)


def R(broker_id: int, broker_epoch: int, first: int, last: int, leader_epoch: int = 3) -> WalRange:  # noqa: N802
    return WalRange(broker_id, broker_epoch, leader_epoch, first, last)


def section(partition: TopicIdPartition, end: int, state_number: int, epoch: int = 3) -> DurableSection:
    return DurableSection(partition, Offset(end), state_number, LeaderEpoch(epoch))


def needs_of(*objects: list[DurableSection], size_bytes: int = 100) -> WalNeeds:
    needs = WalNeeds(WAL)
    for partition in (P, Q):
        needs.note_led(partition, 3)
    for number, sections in enumerate(objects):
        needs.note_object(DurableObject(number, size_bytes, tuple(sections)))
    return needs


def test_nothing_is_deleted_before_it_is_tiered() -> None:
    needs = needs_of([section(P, 5, 0)], [section(P, 9, 0)], [section(P, 12, 2)])
    assert needs.trim_end(100) == 0
    needs.note_floor(P, Offset(4))
    assert needs.trim_end(100) == 0
    needs.note_floor(P, Offset(5))
    assert needs.trim_end(100) == 0, "object 0 has the state that object 1 names"
    needs.note_floor(P, Offset(9))
    assert needs.trim_end(100) == 2
    needs.note_floor(P, Offset(12))
    assert needs.trim_end(100) == 100 - WINDOW - 1


def test_what_may_be_repeated_stays_with_its_state_though_it_is_tiered() -> None:
    """A segment's footer knows the last batch of a producer only, and the producer may have heard of none."""
    needs = needs_of([section(P, 5, 0)], [section(P, 9, 0)], [section(P, 12, 2)], [section(P, 15, 2)])
    needs.note_floor(P, Offset(15), may_be_repeated=True)
    assert needs.trim_end(100) == 2
    needs.note_floor(P, Offset(15), Offset(15), may_be_repeated=True)
    assert needs.trim_end(100) == 2, "whether its records are deleted or not"
    needs.note_floor(P, Offset(15))
    assert needs.trim_end(100) == 91


def test_the_newest_objects_stay_whether_needed_or_not() -> None:
    needs = WalNeeds(WAL)
    assert needs.trim_end(WINDOW + 1) == 0
    assert needs.trim_end(WINDOW + 3) == 2


def test_the_slowest_partition_holds_the_log_back() -> None:
    needs = needs_of([section(P, 5, 0)], [section(Q, 3, 1)])
    needs.note_floor(P, Offset(5))
    assert needs.trim_end(100) == 1
    needs.note_gone(Q)
    assert needs.trim_end(100) == 91


def test_after_a_leadership_only_the_image_says_what_is_needed() -> None:
    needs = needs_of([section(P, 5, 0)])
    needs.note_image(P, leader_epoch=3, ranges=[])
    assert needs.trim_end(100) == 0, "an image from before its end says nothing of a leadership"
    needs.note_image(P, leader_epoch=4, ranges=[R(*WAL, 0, OPEN)])
    needs.note_floor(P, Offset(5))
    assert needs.trim_end(100) == 0, "only its leader knows what is tiered"
    needs.note_image(P, leader_epoch=5, ranges=[R(*WAL, 0, 0), R(*OTHER, 0, OPEN, 5)])
    assert needs.trim_end(100) == 0
    needs.note_image(P, leader_epoch=3, ranges=[])
    assert needs.trim_end(100) == 0, "an older image says nothing any more"
    needs.note_image(P, leader_epoch=5, ranges=[R(*OTHER, 0, OPEN, 5)])
    assert needs.trim_end(100) == 91


def test_a_range_of_another_leadership_keeps_nothing() -> None:
    needs = needs_of([section(P, 5, 0)])
    needs.note_image(P, leader_epoch=8, ranges=[R(*WAL, 0, 20, leader_epoch=6)])
    assert needs.trim_end(100) == 91


def test_a_leadership_that_ends_without_a_range_leaves_nothing_behind() -> None:
    """A change to object durability had begun, and the partition failed over by the rule of before (J42)."""
    needs = needs_of([section(P, 5, 0)])
    needs.note_image(P, leader_epoch=4, ranges=[])
    needs.note_object(DurableObject(1, 100, (section(P, 6, 0),)))
    assert needs.trim_end(100) == 91
    assert list(needs.to_roll(0)) == []


def test_what_an_ended_leadership_has_on_its_way_is_nothing_to_the_next_one() -> None:
    needs = WalNeeds(WAL)
    needs.note_led(P, 3)
    needs.note_led(P, 5)
    needs.note_image(P, leader_epoch=5, ranges=[])
    needs.note_object(DurableObject(0, 100, (section(P, 6, 0),)))
    assert needs.trim_end(100) == 91


def test_an_object_on_its_way_is_needed_though_its_leadership_has_ended() -> None:
    """The broker was fenced, and its log is not sealed yet: what becomes durable counts."""
    needs = WalNeeds(WAL)
    needs.note_led(P, 3)
    needs.note_image(P, leader_epoch=4, ranges=[R(*WAL, 0, OPEN)])
    needs.note_object(DurableObject(0, 100, (section(P, 6, 0),)))
    assert needs.trim_end(100) == 0


def test_objects_on_their_way_do_not_bring_a_deleted_partition_back() -> None:
    needs = needs_of([section(P, 5, 0)])
    needs.note_gone(P)
    needs.note_object(DurableObject(1, 100, (section(P, 6, 0),)))
    assert needs.trim_end(100) == 91


def test_a_partition_that_comes_back_and_is_idle_holds_nothing_back() -> None:
    """A, B, A again: B has tiered what A had, and A learns so from the manifest alone, or as the range leaves the record."""
    for way in ("floor", "image"):
        needs = needs_of([section(P, 5, 0)])
        needs.note_image(P, leader_epoch=4, ranges=[R(*WAL, 0, 0), R(*OTHER, 0, OPEN, 4)])
        needs.note_led(P, 5)
        needs.note_image(P, leader_epoch=5, ranges=[R(*WAL, 0, 0), R(*OTHER, 0, 3, 4), R(*WAL, 1, OPEN, 5)])
        assert needs.trim_end(100) == 0
        if way == "floor":
            needs.note_floor(P, Offset(9))
        else:
            needs.note_image(P, leader_epoch=5, ranges=[R(*OTHER, 0, 3, 4), R(*WAL, 1, OPEN, 5)])
        assert needs.trim_end(100) == 91


def test_the_last_section_is_needed_until_it_is_tiered_though_its_records_are_deleted() -> None:
    """Nothing else has the producers and the leader epochs up to the end. What holds the log back is rolled."""
    needs = needs_of([section(P, 5, 0)], [section(P, 9, 0)])
    needs.note_floor(P, Offset(2), Offset(9))
    assert needs.trim_end(100) == 0
    assert list(needs.to_roll(100)) == [P]
    needs.note_object(DurableObject(2, 100, (section(P, 12, 2),)))
    needs.note_floor(P, Offset(2), Offset(9))
    assert needs.trim_end(100) == 2, "a later section has all that the earlier ones had"
    needs.note_floor(P, Offset(12), Offset(9))
    assert needs.trim_end(100) == 91


def test_partitions_that_hold_too_much_back_are_rolled_the_oldest_first() -> None:
    needs = needs_of([section(Q, 1, 0)], [section(P, 5, 1)], [section(P, 6, 1)], [section(Q, 9, 0)])
    assert list(needs.to_roll(400)) == []
    assert list(needs.to_roll(399)) == [Q]
    assert list(needs.to_roll(250)) == [Q, P]
    needs.note_deleted(2)
    assert needs.held_bytes == 200


def test_a_dead_log_keeps_its_seal_and_what_ranges_cover() -> None:
    gone = LogRegistration(99, None)
    assert deletable(WAL, [0, 1, 2, 3, 5, 6], 5, [R(*WAL, 1, 2)], gone) == [0, 3, 6]
    assert deletable(WAL, [0, 1, 5], 5, [], gone) == [0, 1]
    assert deletable(WAL, [0, 1, 2, 5, 6], 5, [R(*WAL, 2, OPEN)], gone) == [0, 1], "it is not closed yet"


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (LogRegistration(16, None), False),  # an image from before the broker came
        (LogRegistration(16, 9), False),  # … and of its earlier registration
        (LogRegistration(17, 17), False),  # it writes
        (LogRegistration(40, 17), False),
        (LogRegistration(40, 17, 5), True),  # sealed
        (LogRegistration(40, 30), True),  # registered again
        (LogRegistration(40, None), True),  # unregistered
        (LogRegistration(17, 9), False),  # cannot be
    ],
)
def test_a_log_has_ended_only_by_an_image_that_has_its_end(said: LogRegistration, ended: bool) -> None:
    """A deposed, paused controller knows nothing of brokers that came after its image, and deletes nothing of theirs."""
    assert has_ended(WAL, said) == ended
    assert deletable(WAL, [0, 1], 5, [], said) == ([0, 1] if ended else [])


def test_ranges_are_closed_by_a_release_and_by_a_seal() -> None:
    ranges = released(opened((), WAL, 3, 5), WAL, 10)
    assert ranges == (R(*WAL, 5, 10),)
    ranges = opened(ranges, WAL, 7, 8)
    assert ranges == (R(*WAL, 5, 10), R(*WAL, 8, OPEN, 7))
    assert sealed(ranges, WAL, 14) == (R(*WAL, 5, 10), R(*WAL, 8, 13, 7))


def test_a_range_without_numbers_is_not_written() -> None:
    assert released(opened((), WAL, 3, 5), WAL, -1) == ()
    assert sealed(opened((), WAL, 3, 20), WAL, 14) == ()


def test_a_seal_below_a_released_range_is_damage() -> None:
    ranges = opened((R(*WAL, 5, 10),), OTHER, 4, 0)
    with pytest.raises(CorruptionError, match="lost objects that were confirmed"):
        sealed(ranges, WAL, 9)
    assert sealed(ranges, WAL, 11) == ranges


def test_a_range_that_is_done_leaves_and_the_open_one_stays() -> None:
    ranges = (R(*WAL, 0, 3), R(*OTHER, 0, 3), R(*WAL, 4, OPEN))
    assert dropped(ranges, [R(*WAL, 0, 3), R(*WAL, 4, OPEN)]) == ranges[1:]


def test_partitions_that_hold_too_many_objects_back_are_rolled_though_their_bytes_are_few() -> None:
    needs = needs_of([section(Q, 1, 0)], [section(P, 5, 1)], [section(P, 6, 1)], [section(Q, 9, 0)])
    assert list(needs.to_roll(400, objects_max=4)) == []
    assert list(needs.to_roll(400, objects_max=3)) == [Q]
    assert list(needs.to_roll(400, objects_max=2)) == [Q, P]
    assert needs.is_long(400, objects_max=3)
    assert needs.is_long(399, objects_max=4)
    assert not needs.is_long(400, objects_max=4)
