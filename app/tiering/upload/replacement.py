"""Replaces segments by one segment with the same offsets, in the leader's manifest, for a compaction job.

The job reads and uploads; only the leader writes the manifest. First the leader enters COPY_STARTED for the output. When the
upload is complete, the leader checks again that every input is readable, and swaps in one entry: readers see the inputs or the
output, never a mixture. Every step may be repeated.

Everybody who reaches the leader may request a step, so the leader trusts no argument. The caller passes ids and a range. The
leader builds the output's key from the layout, and at the end reads the footer of the object under this key. The output's
record comes from this footer and from the records of the inputs, with times of the leader's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from app.core.errors import ConflictError, CorruptionError, clause
from app.core.units import LeaderEpoch, Offset, SegmentId
from app.metadata.log import layout
from app.metadata.manifest.manifest import CHANGES_PER_ENTRY_MAX, SegmentManifest
from app.metadata.manifest.manifest_state import Change, ManifestState, SegmentEntry, SegmentState
from app.objectstore.api import ObjectMissing
from app.tiering.store.discovery import NO_BROKER, entry_of
from app.tiering.store.segment_format import SegmentFooter, decode_footer
from app.tiering.store.store_work import StoreWork

INPUTS_MAX: Final = CHANGES_PER_ENTRY_MAX - 1
"""Maximum segments in one replacement, because all of them and their replacement are in one entry."""


class Replacement(NamedTuple):
    """The segments that a job replaces, and the id and range of the new segment."""

    segment_id: SegmentId
    base_offset: Offset
    end_offset: Offset
    inputs: tuple[UUID, ...]
    """Ids of the segments to replace, by offset."""


async def begin(manifest: SegmentManifest, wanted: Replacement, *, local_start_offset: Offset) -> None:
    """Enter the output's COPY_STARTED. ``local_start_offset``: where the leader's local log starts.

    The job must upload to ``layout.segment_key`` of the partition, the base offset and the segment's id. No other key is used.
    Unfinished replacements of earlier jobs with the same offsets are given up: such a job was killed, or learns this when it
    finishes.
    Raises, with nothing changed: FencedError; ConflictError if the inputs are not readable neighbours that the output covers
    exactly, or if a local segment still has some of their old records. Raises: StorageUnavailable.
    """
    if wanted.end_offset > local_start_offset:
        raise ConflictError(
            f"[{wanted.base_offset}, {wanted.end_offset}) is still local from {local_start_offset} on: "
            "compact only segments that have left the local disks."
        )

    def plan(state: ManifestState) -> list[Change]:
        inputs = _check_inputs(state, wanted)
        known = state.get(wanted.segment_id)
        if known is not None and known.state is not SegmentState.COPY_STARTED:
            raise ConflictError(f"Segment {wanted.segment_id} is already {known.state.name}.")
        overtaken = [
            manifest.entered(entry, SegmentState.DELETE_STARTED)
            for entry in state.pending_copies()
            if entry.segment_id != wanted.segment_id
            # A copy of the leader's own is of offsets that are not tiered yet, and so of none of the inputs'.
            and entry.base_offset < wanted.end_offset
            and wanted.base_offset < entry.end_offset
        ]
        output = SegmentEntry.started(wanted.segment_id, wanted.base_offset, wanted.end_offset, broker_id=NO_BROKER)
        return [
            *overtaken,
            manifest.entered(output.replace(leader_epochs=_epochs(inputs)), SegmentState.COPY_STARTED),
        ]

    await manifest.change(plan)


async def finish(manifest: SegmentManifest, wanted: Replacement, work: StoreWork) -> None:
    """Replace the inputs by the uploaded output, in one entry. Costs a GET of the output's footer.

    Raises, with nothing changed: ConflictError (as ``begin``; or the object under the output's key is missing, damaged, or not the
    announced one), FencedError. Raises: StorageUnavailable.
    """
    known = manifest.state.get(wanted.segment_id)
    if known is not None and known.state is SegmentState.COPY_FINISHED:
        return  # An answer that was lost.
    footer, object_bytes = await _uploaded(manifest, wanted, work)

    def plan(state: ManifestState) -> list[Change]:
        now = state.get(wanted.segment_id)
        if now is not None and now.state is SegmentState.COPY_FINISHED:
            return []
        if now is None or now.state is not SegmentState.COPY_STARTED:
            raise ConflictError(f"Segment {wanted.segment_id} was given up: begin again.")
        inputs = _check_inputs(state, wanted)
        output = _record_of(footer, object_bytes, inputs)
        replaced = [manifest.entered(entry, SegmentState.DELETE_STARTED) for entry in inputs]
        return [*replaced, manifest.entered(output, SegmentState.COPY_FINISHED)]

    await manifest.change(plan)


async def give_up(manifest: SegmentManifest, segment_id: UUID) -> None:
    """Give up a replacement. The sweeper deletes uploaded bytes.

    Raises, with nothing changed: ConflictError (the copy is the leader's own), FencedError. Raises: StorageUnavailable.
    """
    known = manifest.state.get(segment_id)
    if known is None or known.state is not SegmentState.COPY_STARTED:
        return
    if known.base_offset >= manifest.tiered_end:
        raise ConflictError(
            f"Segment {segment_id} replaces no segment: it is a copy of the leader, and only the leader may give it up."
        )
    await manifest.delete_started([segment_id])


async def _uploaded(manifest: SegmentManifest, wanted: Replacement, work: StoreWork) -> tuple[SegmentFooter, int]:
    """The footer under the output's key, and the object's bytes. Raises: ConflictError, StorageUnavailable."""
    key = layout.segment_key(manifest.topic_id, manifest.partition, wanted.base_offset, wanted.segment_id)
    try:
        found = await work.read_footer(key, None)
        footer = decode_footer(found.tail, found.object_bytes, key)
    except ObjectMissing:
        raise ConflictError(
            f"{key} is not in the store: upload the segment before you finish the replacement."
        ) from None
    except CorruptionError as error:
        raise ConflictError(f"The uploaded segment cannot be used: {clause(error)}.") from error
    told = (footer.topic_id, footer.partition, footer.segment_id, footer.base_offset, footer.end_offset)
    meant = (manifest.topic_id, manifest.partition, wanted.segment_id, wanted.base_offset, wanted.end_offset)
    if told != meant:
        raise ConflictError(f"{key} holds another segment: its footer says {told}, expected {meant}.")
    return footer, found.object_bytes


def _record_of(footer: SegmentFooter, object_bytes: int, inputs: Sequence[SegmentEntry]) -> SegmentEntry:
    """The output's manifest record. Raises: ConflictError (the output cannot have been made of the inputs)."""
    epochs, lineage = _epochs(inputs), footer.leader_epochs
    if epochs and (not lineage or lineage[-1].epoch != epochs[-1][0]):
        raise ConflictError(
            f"Segment {footer.segment_id} ends in leader epoch {lineage[-1].epoch if lineage else None}, but the replaced"
            f" segments end in {epochs[-1][0]}."
        )
    if footer.record_count > sum(entry.record_count for entry in inputs):
        raise ConflictError(
            f"Segment {footer.segment_id} has {footer.record_count} records, more than the replaced segments."
        )
    return entry_of(footer, object_bytes).replace(
        leader_epochs=epochs, arrived_ms=max(entry.newest_arrival_ms for entry in inputs)
    )


def _epochs(entries: Iterable[SegmentEntry]) -> tuple[tuple[LeaderEpoch, Offset], ...]:
    """The merged leader epochs of neighbouring segments."""
    merged: dict[LeaderEpoch, Offset] = {}
    for entry in entries:
        for epoch, start in entry.leader_epochs:
            merged.setdefault(epoch, start)
    return tuple(sorted(merged.items()))


def _check_inputs(state: ManifestState, wanted: Replacement) -> list[SegmentEntry]:
    """The entries of the inputs. Raises: ConflictError."""
    if len(wanted.inputs) > INPUTS_MAX:
        raise ConflictError(f"{len(wanted.inputs)} segments are too many: at most {INPUTS_MAX} are replaced at a time.")
    entries: list[SegmentEntry] = []
    at = wanted.base_offset
    for segment_id in wanted.inputs:
        entry = state.get(segment_id)
        if entry is None or entry.state is not SegmentState.COPY_FINISHED:
            raise ConflictError(f"Segment {segment_id} was deleted or replaced.")
        if entry.base_offset != at:
            raise ConflictError(f"Segment {segment_id} starts at {entry.base_offset}, not at {at}.")
        at = entry.end_offset
        entries.append(entry)
    if at != wanted.end_offset or not entries:
        raise ConflictError(f"The inputs end at {at}, but their replacement ends at {wanted.end_offset}.")
    return entries
