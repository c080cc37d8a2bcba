"""Legal transitions and the invariants of INV-4, one rule a test; lookups against a plain model."""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ConflictError, CorruptionError
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.metadata.log import layout
from app.metadata.log.log_format import Entry
from app.metadata.manifest.manifest_state import (
    LEGAL,
    Change,
    ManifestPartitionRecord,
    ManifestState,
    SegmentEntry,
    SegmentState,
    Tombstone,
    decode_change,
    encode_change,
)
from tests.metadata.support import uuid_of

STARTED, FINISHED, DELETING, GONE = SegmentState


def segment(number: int, base: int, end: int, state: SegmentState = FINISHED, *, newest_ms: int = 0) -> SegmentEntry:
    return SegmentEntry(
        1,
        uuid_of(number),
        state,
        Offset(base),
        Offset(end),
        leader_epochs=((LeaderEpoch(0), Offset(0)),),
        max_timestamp=TimestampMs(newest_ms),
        record_count=end - base,
        raw_bytes=100,
        size_bytes=50,
        footer_position=40,
        footer_bytes=10,
        chunk_count=1,
        broker_id=BrokerId(1),
    )


def apply(state: ManifestState, *changes: Change) -> None:
    records = tuple(encode_change(change) for change in changes)
    state.apply(Entry(LogSequence(1), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), records))


def put(state: ManifestState, entry: SegmentEntry, *states: SegmentState) -> None:
    for each in states:
        apply(state, Tombstone(entry.segment_id) if each is GONE else entry.replace(state=each))


def readable(*ranges: tuple[int, int], log_start: int = 0) -> ManifestState:
    """A manifest with these segments readable, numbered from 1."""
    state = ManifestState()
    if log_start:
        apply(state, ManifestPartitionRecord(1, log_start, 0))
    for number, (base, end) in enumerate(ranges, 1):
        put(state, segment(number, base, end), STARTED, FINISHED)
    return state


def refused(state: ManifestState, *changes: Change) -> str:
    """Why the changes are refused before a write; after a read they are corruption, in the same words."""
    before = (state.entries, state.tiered_end, state.log_start_offset)
    with pytest.raises(ConflictError) as told:
        state.check(changes)
    assert (state.entries, state.tiered_end, state.log_start_offset) == before
    with pytest.raises(CorruptionError) as found:
        apply(state.copy(), *changes)
    reason = str(told.value).removeprefix("The manifest cannot take the change: ")
    assert reason in str(found.value)
    return reason


def test_a_segment_record_is_these_bytes() -> None:
    key, value = encode_change(segment(10, 5, 9, STARTED))
    assert key.hex() == "9240c410" + "0000000000000000000000000000000a"
    assert value is not None
    assert msgspec.msgpack.decode(value) == [
        1, uuid_of(10).bytes, 0, 5, 9, [[0, 0]], -1, 0, -1, 4, 100, 50, 40, 10, 1, 0, 1, -1, "", -1,
    ]  # fmt: skip
    assert value.hex().startswith("dc001401c410" + "0000000000000000000000000000000a" + "00" + "05" + "09")
    assert encode_change(ManifestPartitionRecord(1, 7, 9)) == (bytes.fromhex("9141"), bytes.fromhex("93010709"))


@pytest.mark.parametrize("before", [None, *SegmentState])
@pytest.mark.parametrize("after", SegmentState)
def test_transitions_are_those_of_the_table(before: SegmentState | None, after: SegmentState) -> None:
    state, entry = ManifestState(), segment(1, 0, 10)
    steps = {None: [], STARTED: [STARTED], FINISHED: [STARTED, FINISHED], DELETING: [STARTED, DELETING]}
    put(state, entry, *steps.get(before, [STARTED, DELETING, GONE]))
    apply(state, ManifestPartitionRecord(1, 10, state.tiered_end))
    change = Tombstone(entry.segment_id) if after is GONE else entry.replace(state=after)
    # What is gone is as if it had never been.
    if after in LEGAL.get(before if before is not GONE else None, ()):
        apply(state, change)
    else:
        assert "cannot go from" in refused(state, change)


def test_a_segment_keeps_its_range() -> None:
    state = ManifestState()
    put(state, segment(1, 0, 10), STARTED)
    assert "covers [0, 10), not [0, 11)" in refused(state, segment(1, 0, 11))


@pytest.mark.parametrize(("base", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_a_range_is_not_empty_or_backwards(base: int, end: int) -> None:
    assert "impossible range" in refused(ManifestState(), segment(1, base, end, STARTED))


def test_a_finished_segment_says_where_its_footer_is() -> None:
    state = ManifestState()
    put(state, segment(1, 0, 10), STARTED)
    assert "footer" in refused(state, segment(1, 0, 10).replace(footer_position=0))


@pytest.mark.parametrize(("base", "end"), [(5, 15), (0, 10), (0, 5), (9, 11), (3, 7)])
def test_readable_segments_do_not_overlap(base: int, end: int) -> None:
    state = readable((0, 10))
    put(state, segment(9, base, end), STARTED)
    assert any(word in refused(state, segment(9, base, end)) for word in ("overlap", "both start"))


def test_readable_segments_leave_no_gap() -> None:
    state = readable((0, 10))
    put(state, segment(9, 11, 20), STARTED)
    assert "no segment would cover [10, 11)" in refused(state, segment(9, 11, 20))


def test_a_gap_below_the_log_start_is_allowed() -> None:
    state = readable((0, 10))
    put(state, segment(9, 15, 20), STARTED)
    assert "no segment would cover" in refused(state, ManifestPartitionRecord(1, 14, 10), segment(9, 15, 20))
    apply(state, ManifestPartitionRecord(1, 15, 10), segment(9, 15, 20))
    assert state.tiered_end == 20


def test_the_first_segment_may_start_anywhere() -> None:
    assert readable((100, 110)).tiered_end == 110


def test_the_end_that_was_tiered_outlives_the_segments() -> None:
    state = readable((0, 10))
    apply(state, ManifestPartitionRecord(1, 10, 10), segment(1, 0, 10, DELETING))
    apply(state, Tombstone(uuid_of(1)))
    assert (state.entries, state.tiered_end) == ([], 10)
    put(state, segment(2, 8, 15), STARTED)
    assert "straddles the tiered end 10" in refused(state, segment(2, 8, 15))
    put(state, segment(3, 12, 15), STARTED)
    assert "starts at 12, past the tiered end 10" in refused(state, segment(3, 12, 15))
    put(state, segment(4, 10, 15), STARTED, FINISHED)


def test_the_log_start_and_the_tiered_end_do_not_go_back() -> None:
    state = readable((0, 10))
    apply(state, ManifestPartitionRecord(1, 5, 10))
    assert "the log start would go back" in refused(state, ManifestPartitionRecord(1, 4, 10))
    assert "the tiered end would go back" in refused(state, ManifestPartitionRecord(1, 6, 9))


def test_a_readable_segment_goes_only_when_the_log_start_has_passed_it() -> None:
    state = readable((0, 10), (10, 20))
    assert "still readable" in refused(state, segment(1, 0, 10, DELETING))
    assert "still readable" in refused(state, ManifestPartitionRecord(1, 9, 20), segment(1, 0, 10, DELETING))
    apply(state, ManifestPartitionRecord(1, 10, 20), segment(1, 0, 10, DELETING))
    assert [entry.base_offset for entry in state.finished] == [10]
    assert [entry.segment_id for entry in state.pending_deletes()] == [uuid_of(1)]


def test_replacements_are_swapped_in_by_one_entry_that_leaves_nothing_uncovered() -> None:
    state = readable((0, 10), (10, 20), (20, 30))
    put(state, segment(9, 0, 20), STARTED)
    gone = [segment(1, 0, 10, DELETING), segment(2, 10, 20, DELETING)]
    assert "overlap" in refused(state, gone[0], segment(9, 0, 20))
    assert "readable" in refused(state, *gone)
    apply(state, *gone, segment(9, 0, 20))
    assert [(entry.base_offset, entry.end_offset) for entry in state.finished] == [(0, 20), (20, 30)]
    assert state.tiered_end == 30


def test_a_finish_and_the_next_start_share_an_entry() -> None:
    state = ManifestState()
    put(state, segment(1, 0, 10), STARTED)
    apply(state, segment(1, 0, 10), segment(2, 10, 20, STARTED))
    assert [entry.segment_id for entry in state.pending_copies()] == [uuid_of(2)]


def test_sums_follow_the_readable_segments() -> None:
    state = readable((0, 10), (10, 25))
    assert (state.record_count, state.raw_bytes, state.size_bytes) == (25, 200, 100)
    apply(state, ManifestPartitionRecord(1, 10, 25), segment(1, 0, 10, DELETING))
    assert (state.record_count, state.raw_bytes, state.size_bytes) == (15, 100, 50)


def test_a_snapshot_that_breaks_a_rule_is_corruption() -> None:
    for bad in ([segment(1, 0, 10), segment(2, 5, 20)], [segment(1, 0, 10), segment(2, 11, 20)]):
        state = ManifestState()
        state.load([(key, value) for key, value in map(encode_change, bad) if value is not None])
        with pytest.raises(CorruptionError, match="not sound"):
            state.loaded(LogSequence(5))


def test_records_of_another_segment_or_of_nobody_are_corruption() -> None:
    key, _ = encode_change(segment(1, 0, 10))
    _, value = encode_change(segment(2, 0, 10))
    with pytest.raises(CorruptionError, match="says that it is"):
        decode_change(key, value)
    for bad_key in (key + b"x", key[:-1], b"", b"\xff"):
        with pytest.raises(CorruptionError):
            decode_change(bad_key, value)
    assert decode_change(bytes.fromhex("9163"), b"anything") is None, "of a newer version"


def test_the_object_key_is_the_layouts_unless_stored() -> None:
    topic_id = TopicId(uuid_of(5))
    entry = segment(1, 7, 10)
    assert entry.object_key(topic_id, PartitionIndex(2)) == layout.segment_key(topic_id, 2, 7, entry.segment_id)  # type: ignore[arg-type]
    assert entry.replace(stored_key="elsewhere").object_key(topic_id, PartitionIndex(2)) == "elsewhere"


def test_a_readable_segment_under_the_key_of_another_object_is_corruption() -> None:
    partition = TopicIdPartition(TopicId(uuid_of(5)), PartitionIndex(2))
    own = segment(1, 0, 10)
    own = own.replace(stored_key=own.object_key(*partition))
    for key, is_own in ((own.stored_key, True), ("cluster/log/00000000000000000001", False)):
        entry = own.replace(stored_key=key)
        state = ManifestState(partition)
        put(state, entry, STARTED)
        if is_own:
            apply(state, entry)
        else:
            assert "which is not its own" in refused(state, entry)
        loaded = ManifestState(partition)
        loaded.load([(key, value) for key, value in [encode_change(entry)] if value is not None])
        if is_own:
            loaded.loaded(LogSequence(5))
        else:
            with pytest.raises(CorruptionError, match="which is not its own"):
                loaded.loaded(LogSequence(5))


def test_records_that_nobody_reads_may_name_other_objects_and_are_told_of() -> None:
    state = ManifestState(TopicIdPartition(TopicId(uuid_of(5)), PartitionIndex(2)))
    foreign = segment(1, 0, 10, STARTED).replace(stored_key="cluster/log/00000000000000000001")
    apply(state, foreign)
    apply(state, foreign.replace(state=DELETING))
    put(state, segment(2, 0, 10), STARTED)
    assert [entry.segment_id for entry in state.with_foreign_keys()] == [uuid_of(1)]
    assert [entry.segment_id for entry in state.copy().with_foreign_keys()] == [uuid_of(1)]


# --- lookups against a plain model ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 20)), max_size=12), st.integers(0, 60), st.integers(0, 25))
def test_lookups_agree_with_a_scan(lengths: list[tuple[int, int]], log_start: int, wanted_ms: int) -> None:
    state, base, entries = ManifestState(), 0, []
    for number, (length, newest_ms) in enumerate(lengths, 1):
        entry = segment(number, base, base + length, newest_ms=newest_ms)
        put(state, entry, STARTED, FINISHED)
        if number % 3 == 0:
            state.find_timestamp(wanted_ms)  # from here on the running maxima are kept up to date
        entries.append(entry)
        base += length
    apply(state, ManifestPartitionRecord(1, log_start, base))
    for offset in range(base + 3):
        expected = next((e for e in entries if e.base_offset <= offset < e.end_offset), None)
        assert state.find(offset) == expected
        index = next((i for i, e in enumerate(entries) if e.end_offset > offset), len(entries))
        assert state.index_at(offset) == index
    live = [entry for entry in entries if entry.end_offset > log_start]
    assert state.find_timestamp(wanted_ms) == next((e for e in live if e.max_timestamp >= wanted_ms), None)
    for at in range(state.tiered_end + 2):
        assert state.last_before(at) == next((e for e in reversed(state.finished) if e.base_offset < at), None)


def test_the_lineage_is_put_together_over_segments() -> None:
    state = ManifestState()
    for number, (base, epochs) in enumerate([(0, ((0, 0),)), (10, ((0, 0), (2, 15))), (20, ((2, 15), (5, 20)))], 1):
        put(state, segment(number, base, base + 10).replace(leader_epochs=epochs), STARTED, FINISHED)
    assert state.leader_epochs() == [(0, 0), (2, 15), (5, 20)]


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_whatever_is_allowed_keeps_the_invariants(seed: int) -> None:
    """Random changes: those that pass ``check`` are applied; what a reader could have read stays readable."""
    rng = random.Random(seed)
    state, ids = ManifestState(), itertools.count(1)
    for _ in range(60):
        changes: list[Change] = []
        for _ in range(rng.randrange(1, 4)):
            known = state.entries
            match rng.randrange(6):
                case 0:
                    start = rng.choice([state.tiered_end, rng.randrange(30)])
                    changes.append(segment(next(ids), start, start + rng.randrange(1, 8), STARTED))
                case 1 if state.pending_copies():
                    changes.append(rng.choice(state.pending_copies()).replace(state=FINISHED))
                case 2 if known:
                    changes.append(rng.choice(known).replace(state=DELETING))
                case 3 if known:
                    changes.append(Tombstone(rng.choice(known).segment_id))
                case 4:
                    changes.append(ManifestPartitionRecord(1, rng.randrange(40), state.tiered_end))
                case _ if known:
                    changes.append(rng.choice(known).replace(state=rng.choice([STARTED, FINISHED, DELETING])))
        before = {offset for offset in range(60) if state.find(offset) is not None}
        tiered_end, log_start = state.tiered_end, state.log_start_offset
        try:
            state.check(changes)
        except ConflictError:
            continue
        apply(state, *changes)
        after = {offset for offset in range(60) if state.find(offset) is not None}
        assert state.tiered_end >= tiered_end
        assert state.log_start_offset >= log_start
        assert {offset for offset in before if offset >= state.log_start_offset} <= after
        covered = sorted(offset for offset in after if offset >= state.log_start_offset)
        assert covered == list(range(covered[0], covered[-1] + 1)) if covered else True
        ranges = [(entry.base_offset, entry.end_offset) for entry in state.finished]
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
        loaded = ManifestState()
        loaded.load(
            [
                (key, value)
                for key, value in map(
                    encode_change,
                    [*state.entries, ManifestPartitionRecord(1, state.log_start_offset, state.tiered_end)],
                )
                if value is not None
            ]
        )
        loaded.loaded(LogSequence(0))
        assert loaded.entries == state.entries
        assert list(loaded.finished) == list(state.finished)
        assert (loaded.tiered_end, loaded.record_count) == (state.tiered_end, state.record_count)


def test_ids_are_uuids() -> None:
    assert isinstance(segment(1, 0, 1).segment_id, UUID)
