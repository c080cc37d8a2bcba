"""Remote segments of a compacted topic that are replaced by cleaned ones (ADR 0037, J59)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from app.core.errors import ConflictError
from app.core.units import LeaderEpoch, LogSequence, Offset, TimestampMs
from app.metadata.log.log_format import Entry
from app.metadata.manifest.manifest import CHANGES_PER_ENTRY_MAX
from app.metadata.manifest.manifest_state import Change, ManifestState, SegmentEntry, SegmentState, encode_change
from app.tiering.upload.recopying import SEGMENTS_MORE, swap, to_recopy
from tests.metadata.support import uuid_of

STARTED, FINISHED, DELETING, GONE = SegmentState
SEGMENT_BYTES = 100


class Local(NamedTuple):
    base_offset: int
    end_offset: int
    size_bytes: int = 10
    active: bool = False


def chosen(
    local: Sequence[Local],
    *,
    remote_bytes: int = 1_000,
    remote: Sequence[tuple[int, int]] = ((0, 10), (10, 20)),
    log_start_offset: int = 0,
    compacted: bool = True,
    tiered: bool = True,
) -> list[tuple[int, int]]:
    """The offsets of the local segments that replace the remote ones."""
    config = SimpleNamespace(compacted=compacted, tiered=tiered, segment_bytes=SEGMENT_BYTES)
    log: Any = SimpleNamespace(config=config, segments=lambda: local, log_start_offset=log_start_offset)
    manifest: Any = SimpleNamespace(
        finished=[SimpleNamespace(base_offset=base, end_offset=end) for base, end in remote],
        tiered_end=remote[-1][1] if remote else log_start_offset,
        state=SimpleNamespace(raw_bytes=remote_bytes),
    )
    return [(one.base_offset, one.end_offset) for one in to_recopy(log, manifest)]


WHOLE = [Local(0, 15), Local(15, 20), Local(20, 30), Local(30, 35, active=True)]


def test_cleaned_segments_up_to_the_tiered_end_replace_the_remote_ones() -> None:
    assert chosen(WHOLE) == [(0, 15), (15, 20)]


def test_only_segments_of_compacted_tiered_topics_are_replaced() -> None:
    assert chosen(WHOLE, compacted=False) == []
    assert chosen(WHOLE, tiered=False) == []
    assert chosen(WHOLE, remote=()) == []


def test_remote_segments_must_have_twice_the_bytes_and_a_segment_more() -> None:
    local_bytes = sum(one.size_bytes for one in WHOLE[:2])
    assert chosen(WHOLE, remote_bytes=2 * local_bytes + SEGMENT_BYTES) == []
    assert chosen(WHOLE, remote_bytes=2 * local_bytes + SEGMENT_BYTES + 1) == [(0, 15), (15, 20)]


def test_many_remote_segments_are_replaced_although_they_have_few_bytes() -> None:
    local = [Local(0, 1_000)]

    def remote(count: int) -> list[tuple[int, int]]:
        return [*((number, number + 1) for number in range(count - 1)), (count - 1, 1_000)]

    assert chosen(local, remote_bytes=0, remote=remote(2 + SEGMENTS_MORE)) == []
    assert chosen(local, remote_bytes=0, remote=remote(3 + SEGMENTS_MORE)) == [(0, 1_000)]


def test_all_changes_fit_in_one_entry() -> None:
    def local(count: int) -> list[Local]:
        ends = [*range(1, count), 20_000]
        return [Local(begin, end, 1) for begin, end in zip([0, *ends], ends, strict=False)]

    many = CHANGES_PER_ENTRY_MAX - 2
    assert len(chosen(local(many - 1), remote=[(0, 10), (10, 20_000)], remote_bytes=1 << 30)) == many - 1
    assert chosen(local(many), remote=[(0, 10), (10, 20_000)], remote_bytes=1 << 30) == []


@pytest.mark.parametrize(
    "local",
    [
        [],
        [Local(1, 20)],
        [Local(0, 15)],
        [Local(0, 15), Local(15, 21)],
        [Local(0, 15), Local(15, 20, active=True)],
        [Local(0, 15), Local(15, 20, size_bytes=0)],
    ],
    ids=["none", "late", "short", "across the tiered end", "active", "empty"],
)
def test_nothing_is_replaced_unless_full_local_segments_have_all_offsets(local: list[Local]) -> None:
    assert chosen(local) == []


def test_offsets_before_the_log_start_need_no_local_segment() -> None:
    assert chosen([Local(5, 20)]) == []
    assert chosen([Local(5, 20)], log_start_offset=5) == [(5, 20)]


# --- the change ---------------------------------------------------------------------------------------------------------


def segment(number: int, base: int, end: int) -> SegmentEntry:
    return SegmentEntry(
        1,
        uuid_of(number),
        STARTED,
        Offset(base),
        Offset(end),
        leader_epochs=((LeaderEpoch(0), Offset(0)),),
        record_count=end - base,
        raw_bytes=100,
        size_bytes=50,
        footer_position=40,
        footer_bytes=10,
        chunk_count=1,
    )


OLD = [segment(1, 0, 10), segment(2, 10, 20)]
NEW = [segment(3, 0, 15), segment(4, 15, 20)]


class Manifest:
    """Its state, and the changes of each call."""

    def __init__(self, *finished: SegmentEntry, announced: Sequence[SegmentEntry] = ()) -> None:
        self.state = ManifestState()
        self.changes: list[Sequence[Change]] = []
        for one in finished:
            self._apply([one])
            self._apply([self.entered(one, FINISHED)])
        for one in announced:
            self._apply([one])

    def _apply(self, changes: Sequence[Change]) -> None:
        records = tuple(encode_change(change) for change in changes)
        self.state.apply(Entry(LogSequence(1), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), records))

    def entered(self, entry: SegmentEntry, state: SegmentState) -> SegmentEntry:
        return entry.replace(state=state)

    async def change(self, plan: Callable[[ManifestState], list[Change]]) -> None:
        changes = plan(self.state)
        self.changes.append(changes)
        self.state.check(changes)
        self._apply(changes)

    async def swap(self, copies: Sequence[SegmentEntry] = NEW) -> None:
        this: Any = self
        await swap(this, [one.replace(state=FINISHED) for one in OLD], copies)

    def readable(self) -> list[tuple[int, int]]:
        return [(one.base_offset, one.end_offset) for one in self.state.finished]


async def test_all_segments_are_replaced_in_one_entry() -> None:
    manifest = Manifest(*OLD, announced=NEW)
    await manifest.swap()
    assert manifest.readable() == [(0, 15), (15, 20)]
    assert len(manifest.changes) == 1
    assert [one.state for one in manifest.state.entries].count(DELETING) == 2


async def test_a_swap_whose_answer_was_lost_changes_nothing_more() -> None:
    manifest = Manifest(*OLD, announced=NEW)
    await manifest.swap()
    await manifest.swap()
    assert [bool(changes) for changes in manifest.changes] == [True, False]
    assert manifest.readable() == [(0, 15), (15, 20)]


async def test_a_swap_of_other_segments_than_the_readable_ones_is_refused() -> None:
    more = segment(5, 20, 30)
    manifest = Manifest(*OLD, more, announced=NEW)
    with pytest.raises(ConflictError, match="Other segments"):
        await manifest.swap()
    # Nor if the copies were never announced.
    with pytest.raises(ConflictError, match="Other segments"):
        await Manifest(*OLD, more).swap()
    assert manifest.readable() == [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize(
    ("copies", "why"),
    [
        ([segment(3, 0, 15), segment(4, 16, 20)], "leave out offsets from 15 to 16"),
        ([segment(3, 0, 15), segment(4, 15, 19)], "end at 19, but the tiered end is 20"),
    ],
)
async def test_copies_with_a_gap_or_another_end_are_refused(copies: list[SegmentEntry], why: str) -> None:
    manifest = Manifest(*OLD, announced=copies)
    with pytest.raises(ConflictError, match=why):
        await manifest.swap(copies)
    assert manifest.readable() == [(0, 10), (10, 20)]
