"""Where a partition goes on, from the footers of sealed or released ranges alone (ADR 0037, J24 to J30). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from app.errors import CorruptionError
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.producers import ProducerStates
from app.metadata.wal_ranges import WalId, WalRange
from app.units import Offset, TopicIdPartition
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
    """What the manifest says, read after the ranges were closed."""

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
    """What is to be read from sealed ranges, until it is tiered (J30)."""


def continue_from(
    partition: TopicIdPartition, ranges: Sequence[WalRange], objects: Objects, tiered: Tiered | None
) -> TakeOver | NeedsManifest:
    """Where a partition goes on. ``ranges`` are closed, of the partition's record. ``tiered``: None if it was not read yet.

    Raises: CorruptionError with a sentence, if the store has lost an object that counts (J21, J26).
    """
    by_range = [_pieces(partition, each, objects) for each in ranges]
    pieces = [piece for found in by_range for piece in found]
    if tiered is None:
        for each, found in zip(reversed(ranges), reversed(by_range), strict=True):
            if found:
                break
            if not _is_whole(each, objects):
                return NeedsManifest(f"objects of range {each} were trimmed, and it has no section")
        else:
            return NeedsManifest("no range has a section")
    _check_order(partition, pieces)
    end = max(pieces[-1].section.end_offset if pieces else 0, 0 if tiered is None else tiered.floor)
    last = pieces[-1] if pieces else None
    if tiered is not None:
        pieces = [piece for piece in pieces if piece.section.end_offset > tiered.floor]
        _check_covered(partition, pieces, tiered)
    state = None if last is None or last.section.end_offset != end else _state_at_end(partition, last, objects, ranges)
    if state is not None:
        producers, epochs = state
        return TakeOver(Offset(end), epochs.entries(), producers, tuple(pieces))
    if pieces:
        raise CorruptionError(
            f"{partition}: object {pieces[-1].number} of write-ahead log {pieces[-1].wal} names object "
            f"{pieces[-1].section.state_number} for the state of its producers, and that does not have it."
        )
    return TakeOver(Offset(end), None, None, ())


def local_end(local_end_offset: Offset, local_epochs: Sequence[EpochStart], taken: TakeOver) -> Offset | None:
    """Up to where local bytes may stay (J27): the end, or None if the local log has to begin anew at the end.

    ``taken`` has the lineage of the partition, from the ranges or from the last segment's footer.
    """
    assert taken.leader_epochs is not None
    end = taken.end_offset
    below = [each for each in local_epochs if each.start_offset < end]
    theirs = [each for each in taken.leader_epochs if each.start_offset < end]
    return end if local_end_offset >= end and below == theirs else None


def _run(each: WalRange, objects: Objects) -> range:
    """The numbers of the range that count: from the last one down, as long as there is an object with records.

    What lies below a gap was trimmed and is back, because a late put has landed there (J25). Seals in a range lie where objects
    were trimmed, too (J10).
    """
    there = objects.get(each.wal, {})
    first = each.last + 1
    while first > each.first and first - 1 in there and not there[first - 1].is_seal:
        first -= 1
    return range(first, each.last + 1)


def _pieces(partition: TopicIdPartition, each: WalRange, objects: Objects) -> list[Piece]:
    """J20, J24: sections of the partition in the range that its leadership wrote, in order."""
    return [
        Piece(each.wal, number, section)
        for number in _run(each, objects)
        for section in objects[each.wal][number].sections
        if section.partition == partition and section.leader_epoch == each.leader_epoch
    ]


def _is_whole(each: WalRange, objects: Objects) -> bool:
    """Whether nothing of the range was trimmed."""
    return _run(each, objects).start == each.first


def _check_order(partition: TopicIdPartition, pieces: Sequence[Piece]) -> None:
    for before, after in pairwise(pieces):
        if after.section.base_offset < before.section.end_offset:
            raise CorruptionError(
                f"{partition}: object {after.number} of write-ahead log {after.wal} has records from offset "
                f"{after.section.base_offset} on, and an earlier one up to {before.section.end_offset}."
            )


def _check_covered(partition: TopicIdPartition, pieces: Sequence[Piece], tiered: Tiered) -> None:
    """J26: there is no gap above what is tiered."""
    at = int(tiered.floor)
    for piece in pieces:
        if piece.section.base_offset > at:
            raise CorruptionError(
                f"{partition}: records from offset {at} to {piece.section.base_offset} are neither tiered nor in write-ahead "
                f"log {piece.wal}, whose object {piece.number} has later ones: the store has lost them."
            )
        at = piece.section.end_offset


def _state_at_end(
    partition: TopicIdPartition, last: Piece, objects: Objects, ranges: Sequence[WalRange]
) -> tuple[ProducerStates, LeaderEpochs] | None:
    """J28: the state that the last section names, and everything after it. None if that object was trimmed: then everything is
    tiered."""
    (own,) = [each for each in ranges if (each.wal, each.leader_epoch) == (last.wal, last.section.leader_epoch)]
    run = [piece for piece in _pieces(partition, own, objects) if piece.number >= last.section.state_number]
    state = run[0].section.state if run and run[0].number == last.section.state_number else None
    if state is None:
        return None
    producers, epochs = restored(state)
    for piece in run:
        replay(producers, epochs, [each for each in piece.section.batches if each.base_offset >= state.offset])
    return producers, epochs
