"""The entries that a leader keeps at hand for followers: order, bounds, and what is lost (ADR 0024, T8)."""

from __future__ import annotations

import asyncio
import uuid

from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.metadata.manifest.manifest_entries import ENTRY_OVERHEAD_BYTES, ManifestEntries

A = TopicIdPartition(TopicId(uuid.UUID(int=1)), PartitionIndex(0))
B = TopicIdPartition(TopicId(uuid.UUID(int=1)), PartitionIndex(1))


def everything(key: TopicIdPartition) -> bool:
    return True


def numbers(found: object) -> tuple[list[tuple[TopicIdPartition, int]], int]:
    assert isinstance(found, tuple)
    some, place = found
    return [(one.key, one.sequence) for one in some], place


async def test_entries_come_in_the_order_in_which_they_became_durable() -> None:
    entries = ManifestEntries("term")
    for key, sequence in ((A, 0), (B, 0), (A, 1)):
        entries.add(key, sequence, b"%d" % sequence)
    assert numbers(entries.after(0, everything, 100)) == ([(A, 0), (B, 0), (A, 1)], 3)
    assert numbers(entries.after(1, everything, 100)) == ([(B, 0), (A, 1)], 3)
    assert numbers(entries.after(0, lambda key: key == B, 100)) == ([(B, 0)], 3)
    assert numbers(entries.after(3, everything, 100)) == ([], 3)


async def test_an_answer_is_bounded_and_goes_on_where_it_ended() -> None:
    entries = ManifestEntries("term")
    for sequence in range(5):
        entries.add(A, sequence, b"12345")
    found, place = numbers(entries.after(0, everything, 11))
    assert (found, place) == ([(A, 0), (A, 1)], 2)
    assert numbers(entries.after(place, everything, 1)) == ([(A, 2)], 3), "one entry, however long it is"


async def test_a_place_that_is_not_at_hand_is_lost() -> None:
    entries = ManifestEntries("term", entries_max=2)
    for sequence in range(4):
        entries.add(A, sequence, b"x")
    assert entries.after(1, everything, 100) is None
    assert numbers(entries.after(2, everything, 100)) == ([(A, 2), (A, 3)], 4)
    assert entries.after(5, everything, 100) is None, "of another term"
    assert entries.after(-1, everything, 100) is None
    assert ManifestEntries("term").after(0, everything, 100) == ([], 0)


async def test_bytes_are_bounded_and_the_newest_entry_stays() -> None:
    entries = ManifestEntries("term", bytes_max=2 * (ENTRY_OVERHEAD_BYTES + 10))
    for sequence in range(3):
        entries.add(A, sequence, b"0123456789")
    assert entries.of(A, 1, 3) == [b"0123456789"] * 2
    entries.add(B, 0, b"x" * 10_000)
    assert entries.of(B, 0, 1) == [b"x" * 10_000]
    assert entries.of(A, 2, 3) is None


async def test_the_entries_of_one_manifest_are_given_without_a_gap_or_not_at_all() -> None:
    entries = ManifestEntries("term")
    for sequence in (3, 4, 6):  # entry 5 is another writer's
        entries.add(A, sequence, b"%d" % sequence)
    assert entries.of(A, 3, 5) == [b"3", b"4"]
    assert entries.of(A, 6, 7) == [b"6"]
    assert entries.of(A, 3, 7) is None
    assert entries.of(A, 2, 5) is None
    assert entries.of(A, 7, 7) == []
    assert entries.of(B, 0, 1) is None


async def test_who_waits_is_woken_by_an_entry() -> None:
    entries = ManifestEntries("term")
    waiting = asyncio.create_task(entries.wait(60))
    await asyncio.sleep(0)
    entries.add(A, 0, b"")
    await asyncio.wait_for(waiting, 60)
    await entries.wait(0)
