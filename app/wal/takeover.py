"""Where a partition goes on, from the footers of sealed or released ranges alone (ADR 0037, J24 to J30, J35). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from app.core.errors import CorruptionError
from app.core.units import Offset, TopicIdPartition
from app.hot.checkpoints import EpochStart
from app.hot.epochs import between
from app.hot.indexes import AbortedTransaction
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId, WalRange
from app.wal.format import Section, WalFooter
from app.wal.states import replay, restored

Objects = Mapping[WalId, Mapping[int, WalFooter]]
"""The footers of all objects that are there, by log and number."""


class Piece(NamedTuple):
    """Records of the partition in an object."""

    wal: WalId
    number: int
    section: Section


class Tiered(NamedTuple):
    """The manifest's view, read after the ranges were closed and their footers were read."""

    tiered_end: Offset
    log_start: Offset

    @property
    def floor(self) -> Offset:
        """Below it nothing of a write-ahead log is needed."""
        return max(self.tiered_end, self.log_start)


@dataclass(frozen=True, slots=True)
class NeedsManifest:
    """The ranges do not say where the partition ends: read the manifest, and ask again (J25)."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Where a partition goes on."""

    end_offset: Offset
    """The log end and the high watermark of the next leader (J29)."""
    leader_epochs: tuple[EpochStart, ...] | None
    """The lineage below the end; None if it is that of the last segment's footer."""
    producers: ProducerStates | None
    """Producers at the end; None if they are those of the last segment's footer."""
    pieces: tuple[Piece, ...]
    """The pieces to read from sealed ranges until they are tiered (J30): without a gap up to the end. Once the manifest is known,
    only a part of the first piece is below the tiered end or the log start."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Transactions whose abort marker is in the pieces, in order of the markers. Those that were aborted below are in the footers
    of segments. Readers of the pieces need them, and so does the footer of a segment that is made of them."""


def continue_from(
    partition: TopicIdPartition, ranges: Sequence[WalRange], objects: Objects, tiered: Tiered | None
) -> TakeOver | NeedsManifest:
    """Where a partition goes on. ``ranges`` are closed, of the partition's record. ``tiered``: None if it was not read yet.

    Ask without the manifest first. If it is needed, read it now, and ask again with the same footers: an object that was trimmed
    before the footers were read was tiered before the manifest was read. So missing records are lost then: do not try again. A
    manifest that the next leader has sealed itself (T1) may be read earlier: no other leader can append to it any more.
    Raises: CorruptionError with a sentence, if the store has lost an object that counts (J21, J26).
    """
    by_range = _by_range(partition, ranges, objects)
    if tiered is None:
        for each, found in zip(reversed(ranges), reversed(by_range), strict=True):
            if found:
                break
            if not _is_whole(each, objects):
                return NeedsManifest(f"objects of range {each} were trimmed, and it has no section")
        else:
            return NeedsManifest("no range has a section")
    pieces = [piece for found in by_range for piece in found]
    _check_order(partition, pieces)
    last = pieces[-1] if pieces else None
    if tiered is None:
        pieces = _unbroken_end(pieces)
    else:
        pieces = [piece for piece in pieces if piece.section.end_offset > tiered.floor]
        _check_covered(partition, pieces, tiered)
        if last is None or last.section.end_offset < tiered.floor:
            return TakeOver(tiered.floor, None, None, ())
    assert last is not None
    end = last.section.end_offset
    # Trimmed sections are tiered, and a section that is needed keeps its state (J32): those in front that have lost it are tiered.
    while (run := _run_to(partition, pieces[0] if pieces else last, objects)) is None and tiered is None:
        del pieces[:1]
        if not pieces:
            return NeedsManifest(f"the state that object {last.number} of {last.wal} names was trimmed")
    if run is not None:
        floor = max(pieces[0].section.base_offset if pieces else end, 0 if tiered is None else tiered.floor)
        return _replayed([*run, *(piece.section for piece in pieces[1:])], end, pieces, floor)
    assert tiered is not None
    # If all records were deleted, the state is kept for a while only (J32).
    if pieces or max(tiered.tiered_end, tiered.log_start) < end:
        missing = pieces[0] if pieces else last
        raise CorruptionError(
            f"{partition}: object {missing.number} of write-ahead log {missing.wal} names object {missing.section.state_number} "
            f"for the state of its producers, and the store has lost that, or one after it."
        )
    return TakeOver(end, None, None, ())


def begins_at_zero(partition: TopicIdPartition, ranges: Sequence[WalRange], objects: Objects) -> bool:
    """Whether closed ranges have the first record that the partition ever had.

    If so, they have all records (or J26 takes the partition offline), and nothing that the tier has lost is missing.
    """
    return any(found and found[0].section.base_offset == 0 for found in _by_range(partition, ranges, objects))


def narrowed(partition: TopicIdPartition, taken: TakeOver, tiered: Tiered) -> TakeOver:
    """The same once the manifest is known, if the partition goes on without it (J26). ``tiered`` was read after the footers.

    Raises: CorruptionError if there is a gap between the tier and the ranges.
    """
    pieces = [piece for piece in taken.pieces if piece.section.end_offset > tiered.floor]
    _check_covered(partition, pieces, tiered)
    if not pieces and tiered.floor < taken.end_offset:
        raise CorruptionError(
            f"{partition}: records from offset {tiered.floor} to {taken.end_offset} are neither tiered nor in a write-ahead log: "
            "the store has lost them."
        )
    aborted = tuple(each for each in taken.aborted if each.last_offset >= tiered.floor)
    return replace(taken, pieces=tuple(pieces), aborted=aborted)


def ranges_are_done(end_offset: Offset, tiered: Tiered, *, own_section: bool) -> bool:
    """Whether the leader may ask for all closed ranges to leave the record (J35). ``end_offset``: where it took the partition over.

    ``own_section``: an object that counts has a section of this leadership. Until there is one, the last section is in a closed
    range, and is needed for producers and lineage until it is tiered itself: that its records were deleted is not enough.
    """
    return tiered.floor >= end_offset and (own_section or tiered.tiered_end >= end_offset)


def local_end(start: Offset, end: Offset, epochs: Sequence[EpochStart], taken: TakeOver) -> Offset | None:
    """Up to where the bytes of a local log [``start``, ``end``) may stay (J27); None if it has to begin anew.

    ``epochs`` is its lineage. Without one in ``taken`` all of the partition is tiered, and the log agrees with the tier already.
    """
    kept = min(end, taken.end_offset)
    if taken.leader_epochs is None:
        return kept
    theirs = [each for each in taken.leader_epochs if each.start_offset < kept]
    # Below the log start neither has to be known any more.
    first = max(start, theirs[0].start_offset if theirs else kept)
    return kept if first >= kept or between(epochs, first, kept) == between(theirs, first, kept) else None


def counted_run(each: WalRange, objects: Objects) -> range:
    """J25: the numbers that go down from the range's last one without a gap.

    Lower sections were trimmed, and may be there again after a late put. A seal in a range lies at a number that was trimmed, or
    all were trimmed, too (J10).
    """
    there = objects.get(each.wal, {})
    first = each.last + 1
    while first > each.first and (footer := there.get(first - 1)) is not None and not footer.is_seal:
        first -= 1
    return range(first, each.last + 1)


def _by_range(partition: TopicIdPartition, ranges: Sequence[WalRange], objects: Objects) -> list[list[Piece]]:
    """J20, J24: for each range the sections of the partition that its leadership wrote, in order.

    One leadership may have several ranges, and a range may begin too low (J19): a section is counted in the newest that covers it.
    """
    by_range: list[list[Piece]] = []
    taken: dict[tuple[WalId, int], int] = {}
    for each in reversed(ranges):
        wal, there = each.wal, objects.get(each.wal, {})
        below = taken.get((wal, each.leader_epoch), each.last + 1)
        found: list[Piece] = []
        for number in counted_run(each, objects):
            section = there[number].section_of(partition)
            if section is not None and section.leader_epoch == each.leader_epoch and number < below:
                found.append(Piece(wal, number, section))
        by_range.append(found)
        taken[wal, each.leader_epoch] = min(below, each.first)
    by_range.reverse()
    return by_range


def _is_whole(each: WalRange, objects: Objects) -> bool:
    """Whether nothing of the range was trimmed."""
    return counted_run(each, objects).start == each.first


def _check_order(partition: TopicIdPartition, pieces: Sequence[Piece]) -> None:
    for before, after in pairwise(pieces):
        if after.section.base_offset < before.section.end_offset:
            raise CorruptionError(
                f"{partition}: object {after.number} of write-ahead log {after.wal} has records from offset "
                f"{after.section.base_offset} on, and an earlier one up to {before.section.end_offset}."
            )


def _unbroken_end(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces that go on to the end without a gap. Records below a gap are tiered (J26): the partition had another
    durability."""
    first = len(pieces) - 1
    while first > 0 and pieces[first - 1].section.end_offset == pieces[first].section.base_offset:
        first -= 1
    return list(pieces[first:])


def _check_covered(partition: TopicIdPartition, pieces: Sequence[Piece], tiered: Tiered) -> None:
    """J26: there is no gap above the tiered end."""
    at = int(tiered.floor)
    for piece in pieces:
        if piece.section.base_offset > at:
            raise CorruptionError(
                f"{partition}: records from offset {at} to {piece.section.base_offset} are neither tiered nor in write-ahead "
                f"log {piece.wal}, whose object {piece.number} has later ones: the store has lost them."
            )
        at = piece.section.end_offset


def _run_to(partition: TopicIdPartition, piece: Piece, objects: Objects) -> list[Section] | None:
    """The sections from the state that a piece names up to the piece, without a gap (J28); None if something of it was trimmed.

    An object that was trimmed and is there again has the bytes that it had (J2), so it serves as well.
    """
    there = objects.get(piece.wal, {})
    run: list[Section] = []
    for number in range(piece.section.state_number, piece.number + 1):
        footer = there.get(number)
        section = None if footer is None else footer.section_of(partition)
        if section is None or section.leader_epoch != piece.section.leader_epoch:
            continue
        if run and section.base_offset != run[-1].end_offset:
            return None
        if not run and (section.state is None or number != piece.section.state_number):
            return None
        run.append(section)
    return run


def _replayed(sections: Sequence[Section], end: Offset, pieces: Sequence[Piece], floor: int) -> TakeOver:
    """The state at the end: that of the first section, and every batch after it."""
    state = sections[0].state
    assert state is not None
    producers, epochs = restored(state)
    batches = (fields for section in sections for fields in section.batches if fields.base_offset >= state.offset)
    aborted = replay(producers, epochs, batches)
    producers.decide_below(end)
    above = tuple(each for each in aborted if each.last_offset >= floor)
    return TakeOver(end, epochs.entries(), producers, tuple(pieces), above)
