from __future__ import annotations

from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from app.core.turns import whole
from app.http.console.texts.timeline import BLOCKS_MAX, Taking, Timeline, timeline_steps
from app.wire.private import PartitionTierStatus, SegmentInfo

HOUR = 3_600_000


def segment(place: int, tier: str, *, state: str = "ROLLED", start: int = 0) -> SegmentInfo:
    """Segment ``place`` has 100 offsets, and the records of an hour."""
    begins = start + place * HOUR
    base = place * 100
    return SegmentInfo(tier, base, base + 100, 1_000, begins + HOUR, state, min_timestamp=begins, stored_bytes=500)


def status(end: int, cleaned: int = -1) -> PartitionTierStatus:
    return PartitionTierStatus(
        "t", 0, 1, 0, 0, 0, 0, end, end, end, 0, 0, 0, 0, 0, 0, 0, "idle", cleaned_end_offset=cleaned
    )


def drawn(*segments: SegmentInfo, cleaned: int = -1, **options: Any) -> Timeline:
    given = {"axis": "time", "write_ahead": False, "now_ms": 0, "taking": Taking()} | options
    return whole(timeline_steps(segments, status(len(segments) * 100, cleaned), **given))


def lane(timeline: Timeline, tier: str) -> list[tuple[int, int]]:
    return [(one.base_offset, one.end_offset) for name, _, blocks in timeline.lanes if name == tier for one in blocks]


def test_each_segment_lies_in_the_lanes_of_its_tiers() -> None:
    found = drawn(segment(0, "remote"), segment(1, "both"), segment(2, "local", state="ACTIVE"))
    assert lane(found, "bucket") == [(0, 100), (100, 200)]
    assert lane(found, "local") == [(100, 200), (200, 300)]
    assert [name for name, _, _ in found.lanes] == ["bucket", "local"]
    assert found.bytes == {"bucket": 1_000, "local": 2_000}


def test_records_that_no_segment_in_the_bucket_has_lie_in_the_write_ahead_log() -> None:
    found = drawn(segment(0, "both"), segment(1, "local", state="ACTIVE"), write_ahead=True)
    assert lane(found, "wal") == [(100, 200)]


def test_blocks_fill_the_width_and_stay_within_it() -> None:
    found = drawn(*(segment(place, "remote") for place in range(10)))
    (blocks,) = (blocks for name, _, blocks in found.lanes if name == "bucket")
    assert blocks[0].x == 0
    assert all(0 <= one.x <= one.x + one.width <= 100 for one in blocks)
    assert round(blocks[5].x) == 50


def test_thousands_of_segments_are_drawn_as_few_blocks_that_cover_all_offsets() -> None:
    found = drawn(*(segment(place, "remote") for place in range(5_000)))
    blocks = lane(found, "bucket")
    assert len(blocks) <= 2 * BLOCKS_MAX
    assert blocks[0][0] == 0
    assert blocks[-1][1] == 500_000
    assert all(left[1] == right[0] for left, right in pairwise(blocks))


def test_ticks_show_as_much_of_a_time_as_tells_them_apart() -> None:
    def ticks(span_ms: int) -> list[str]:
        begins = 20_000 * 86_400_000
        only = SegmentInfo("local", 0, 10, 1, begins + span_ms, "ACTIVE", min_timestamp=begins)
        return [tick.text for tick in drawn(only).ticks]

    assert ticks(20 * 86_400_000)[:2] == ["2024-10-04", "2024-10-09"]
    assert ticks(2 * 86_400_000)[:3] == ["2024-10-04 00:00", "12:00", "2024-10-05 00:00"]
    assert ticks(60_000)[:3] == ["2024-10-04 00:00:00", "00:00:15", "00:00:30"]
    assert ticks(40)[:3] == ["2024-10-04 00:00:00.000", "00:00:00.010", "00:00:00.020"]


def test_without_times_the_axis_has_offsets() -> None:
    found = drawn(SegmentInfo("local", 0, 50, 10, -1, "ACTIVE"))
    assert found.axis == "offset"
    assert [tick.text for tick in found.ticks][::4] == ["0", "50"]


def test_a_partition_without_segments_has_empty_lanes() -> None:
    assert [blocks for _, _, blocks in drawn().lanes] == [[], []]


def test_the_next_deletion_is_foretold() -> None:
    found = drawn(
        segment(0, "both"),
        segment(1, "local", state="ACTIVE"),
        now_ms=2 * HOUR,
        taking=Taking(retention_ms=5 * HOUR, local_retention_ms=HOUR // 2),
    )
    assert found.next == [
        "Retention deletes offsets 0 to 99 at 1970-01-01 06:00:00 UTC.",
        "Local retention takes off the disk offsets 0 to 99 at its next look.",
    ]


def test_a_segment_with_old_timestamps_ages_from_its_last_change() -> None:
    old = replace(segment(0, "remote"), changed_ms=100 * HOUR)
    taking = Taking(retention_ms=5 * HOUR)
    found = drawn(old, segment(1, "local", state="ACTIVE"), now_ms=101 * HOUR, taking=taking)
    assert found.next == ["Retention deletes offsets 0 to 99 at 1970-01-05 09:00:00 UTC."]


def test_nothing_is_taken_from_the_segment_that_is_written_to() -> None:
    for taking in (Taking(retention_ms=1), Taking(retention_bytes=0)):
        (only,) = drawn(segment(0, "local", state="ACTIVE"), now_ms=9 * HOUR, taking=taking).next
        assert only == "Retention takes nothing yet: all records are in the segment that is written to."
    assert drawn(segment(0, "local", state="ACTIVE")).next == []


def test_retention_by_bytes_says_how_many_are_missing() -> None:
    def told(most: int) -> list[str]:
        segments = [segment(0, "local"), segment(1, "local"), segment(2, "local", state="ACTIVE")]
        return drawn(*segments, taking=Taking(retention_bytes=most)).next

    assert told(2_500) == ["Retention by bytes deletes offsets 0 to 99 once 500 B more are written."]
    assert told(2_000) == [
        "Retention by bytes deletes offsets 0 to 99 at its next look, since the partition is too large."
    ]


def test_the_part_that_is_not_compacted_is_told_and_marked() -> None:
    segments = [segment(place, "local") for place in range(4)] + [segment(4, "local", state="ACTIVE")]

    def told(cleaned: int, **options: Any) -> str:
        (only,) = drawn(*segments, cleaned=cleaned, taking=Taking(**options)).next
        return only

    assert told(300) == (
        "Compaction: 1000 B in offsets 300 to 399 are not compacted, 25% of the bytes. It begins above 50%."
    )
    assert told(0).endswith("in offsets 0 to 399 are not compacted, 100% of the bytes. It is due.")
    assert told(300, dirty_ratio=0.2).endswith("It is due.")
    nothing = "Compaction has nothing to do: no segment that may be compacted has new records."
    assert told(400) == nothing
    assert told(300, compaction_lag_ms=HOUR) == nothing, "its records are too young"
    marks = [drawn(*segments, cleaned=300, axis=axis).marks for axis in ("time", "offset")]
    assert [[(round(one.x), one.text) for one in found] for found in marks] == [
        [(60, "the end of the compacted part")]
    ] * 2
    assert drawn(*segments, cleaned=0).marks == []


def test_groups_stand_at_the_moment_of_their_offset() -> None:
    segments = [segment(place, "remote", start=HOUR) for place in range(4)]
    committed = [("half", 200), ("first", 0), ("end", 400), ("between", 350), ("gone", -5), ("ahead", 999)]
    found = drawn(*segments, committed=committed)
    assert found.axis == "time"
    assert [(one.group_id, round(one.x, 3)) for one in found.groups] == [
        ("half", 50.0),
        ("first", 0.0),
        ("end", 100.0),
        ("between", 87.5),
        ("gone", 0.0),
        ("ahead", 100.0),
    ]
    assert [one.lag for one in found.groups] == [200, 400, 0, 50, 405, 0]
    by_offset = drawn(*segments, axis="offset", committed=[("third", 100), ("ahead", 999)])
    assert [one.x for one in by_offset.groups] == [25.0, 100.0]


def test_a_partition_without_segments_has_no_groups() -> None:
    assert drawn(committed=[("g", 1)]).groups == []
