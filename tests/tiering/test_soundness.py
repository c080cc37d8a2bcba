"""Whether a broker without data could lead a partition, by its objects in the store alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from app.core.errors import CorruptionError
from app.core.units import (
    LeaderEpoch,
    LogSequence,
    Offset,
    PartitionIndex,
    SegmentId,
    TimestampMs,
    TopicIdPartition,
)
from app.metadata.log import layout
from app.metadata.log.log_format import Entry
from app.metadata.manifest.manifest_state import (
    Change,
    ManifestPartitionRecord,
    ManifestState,
    SegmentState,
    Tombstone,
    encode_change,
)
from app.objectstore.memory import MemoryStore
from app.tiering.repair.soundness import how_to_mend, why_not_led
from app.tiering.store.discovery import entry_of
from app.tiering.store.segment_format import SegmentFooter, encode_footer
from tests.tiering.segments import small_footer

FIRST = small_footer()
COUNT = FIRST.end_offset - FIRST.base_offset
SECOND = replace(
    FIRST,
    segment_id=SegmentId(UUID(int=9)),
    base_offset=FIRST.end_offset,
    end_offset=Offset(FIRST.end_offset + COUNT),
    chunks=tuple(one._replace(base_offset=Offset(one.base_offset + COUNT)) for one in FIRST.chunks),
    leader_epochs=FIRST.leader_epochs[-1:],
    aborted=(),
)
"""The segment that follows the first one."""
KEY = TopicIdPartition(FIRST.topic_id, PartitionIndex(FIRST.partition))


def object_key(footer: SegmentFooter) -> str:
    return layout.segment_key(KEY.topic_id, KEY.partition, footer.base_offset, footer.segment_id)


def object_of(footer: SegmentFooter) -> bytes:
    return bytes(footer.stored_bytes) + encode_footer(footer)


def apply(state: ManifestState, *changes: Change) -> None:
    records = tuple(encode_change(change) for change in changes)
    state.apply(Entry(LogSequence(1), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), records))


def naming(*footers: SegmentFooter) -> ManifestState:
    """A manifest in which these segments are readable."""
    state = ManifestState()
    apply(state, ManifestPartitionRecord(1, FIRST.base_offset, FIRST.base_offset))
    for footer in footers:
        entry = entry_of(footer, len(object_of(footer))).replace(
            leader_epochs=((LeaderEpoch(0), Offset(footer.base_offset)),)
        )
        apply(state, entry)
        apply(state, entry.replace(state=SegmentState.COPY_FINISHED))
    return state


class Bucket:
    """Objects of one partition, and its manifest as it is at each look; the last one from then on."""

    def __init__(self, *states: ManifestState) -> None:
        self.store = MemoryStore()
        self.states = list(states)
        self.before_look: Callable[[], None] = lambda: None

    async def put(self, *footers: SegmentFooter) -> Bucket:
        for footer in footers:
            await self.store.put(object_key(footer), object_of(footer))
        return self

    async def read(self, key: TopicIdPartition) -> ManifestState:
        assert key == KEY
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def why(self) -> str | None:
        return await why_not_led(self.store, KEY, self.read)


async def test_a_partition_whose_last_object_is_as_the_manifest_says_can_be_led() -> None:
    assert await (await Bucket(naming(FIRST)).put(FIRST)).why() is None
    assert await (await Bucket(naming(FIRST, SECOND)).put(FIRST, SECOND)).why() is None


async def test_a_partition_that_was_never_tiered_can_be_led() -> None:
    assert await Bucket(ManifestState()).why() is None
    assert await Bucket(naming()).why() is None


async def test_objects_without_a_manifest_mean_that_it_was_lost() -> None:
    bucket = Bucket(ManifestState())
    await bucket.store.put(f"{layout.data_prefix(*KEY)}note", b"of a person")
    assert await bucket.why() is None
    await bucket.put(FIRST)
    told = await bucket.why()
    assert told == f"the segments under {layout.data_prefix(*KEY)} have no manifest: it was lost"


async def test_an_object_above_the_tiered_end_that_no_record_names_is_named() -> None:
    told = await (await Bucket(naming(FIRST)).put(FIRST, SECOND)).why()
    assert told is not None
    assert f"hold offsets [{SECOND.base_offset}, {SECOND.end_offset}) above the tiered end {FIRST.end_offset}" in told
    assert told.endswith("(or a broker that still has these records will copy them again)")
    # The log may begin above all that was tiered.
    told = await (await Bucket(naming()).put(FIRST)).why()
    assert told is not None
    assert f"hold offsets [{FIRST.base_offset}, {FIRST.end_offset})" in told


async def test_an_object_that_is_named_by_the_next_look_is_no_damage() -> None:
    assert await (await Bucket(naming(FIRST), naming(FIRST, SECOND)).put(FIRST, SECOND)).why() is None
    # A record that says that its copy has begun is enough.
    begun = naming(FIRST)
    apply(begun, entry_of(SECOND, len(object_of(SECOND))))
    assert await (await Bucket(naming(FIRST), begun).put(FIRST, SECOND)).why() is None


async def test_an_object_below_the_tiered_end_is_none_of_a_lost_entry() -> None:
    old = replace(FIRST, segment_id=SegmentId(UUID(int=8)))
    assert await (await Bucket(naming(FIRST)).put(old, FIRST)).why() is None


async def test_a_last_object_that_is_missing_is_named_unless_it_was_replaced_meanwhile() -> None:
    assert await Bucket(naming(FIRST)).why() == f"{object_key(FIRST)} is missing, although the manifest names it"
    gone = naming(FIRST)
    apply(gone, ManifestPartitionRecord(1, FIRST.end_offset, FIRST.end_offset))
    apply(gone, gone.finished[0].replace(state=SegmentState.DELETE_STARTED))
    assert await Bucket(naming(FIRST), gone).why() is None
    deleted = gone.copy()
    apply(deleted, Tombstone(FIRST.segment_id))
    assert await Bucket(naming(FIRST), deleted).why() is None


async def test_damage_of_the_last_object_or_of_the_manifest_is_the_reason() -> None:
    bucket = Bucket(naming(FIRST))
    await bucket.store.put(object_key(FIRST), object_of(FIRST) + b"x")
    told = await bucket.why()
    assert told is not None
    assert f"{object_key(FIRST)}: has" in told

    async def damaged(_key: TopicIdPartition) -> ManifestState:
        raise CorruptionError("Entry 7 is cut.")

    assert await why_not_led(bucket.store, KEY, damaged) == "Entry 7 is cut."


def test_the_mend_names_the_objects_of_the_partition() -> None:
    told = how_to_mend(KEY)
    assert told.startswith("restore the objects under ")
    assert f"topics/{KEY.topic_id}/{KEY.partition}/" in told
    assert layout.data_prefix(*KEY) in told
