"""Segments replaced by one of the same offsets: what the leader lets a compaction job do to its manifest.

The job reads and uploads; only the leader writes. It enters COPY_STARTED for the output, and when the upload is whole it looks
once more whether every input is still readable and swaps in one entry: readers see the inputs or the output, never a mixture.
Every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.errors import ConflictError
from app.metadata.manifest import SegmentManifest
from app.metadata.manifest_state import Change, ManifestState, SegmentEntry, SegmentState
from app.units import Offset


async def begin(
    manifest: SegmentManifest, output: SegmentEntry, inputs: Sequence[UUID], *, local_start_offset: Offset
) -> None:
    """Enter the output's COPY_STARTED. ``local_start_offset``: where the leader's local log starts.

    What an earlier job has begun with the same offsets is given up: it was killed, or it finds out when it has finished.
    Raises, with nothing changed: ConflictError (the inputs are not readable neighbours that the output covers exactly, or
    some of them are local still, where a consumer would see their old records), FencedError. Raises: StorageUnavailable.
    """
    if output.end_offset > local_start_offset:
        raise ConflictError(
            f"[{output.base_offset}, {output.end_offset}) is local from {local_start_offset} on: compact what has left the disks"
        )

    def plan(state: ManifestState) -> list[Change]:
        _check_inputs(state, output, inputs)
        known = state.get(output.segment_id)
        if known is not None and known.state is not SegmentState.COPY_STARTED:
            raise ConflictError(f"segment {output.segment_id} is {known.state.name} already")
        overtaken = [
            entry.replace(state=SegmentState.DELETE_STARTED, changed_ms=output.changed_ms)
            for entry in state.pending_copies()
            if entry.segment_id != output.segment_id
            # A copy of the leader's own is of offsets that are not tiered yet, and so of none of the inputs'.
            and entry.base_offset < output.end_offset
            and output.base_offset < entry.end_offset
        ]
        return [*overtaken, output.replace(state=SegmentState.COPY_STARTED)]

    await manifest.change(plan)


async def finish(manifest: SegmentManifest, output: SegmentEntry, inputs: Sequence[UUID]) -> None:
    """Put the uploaded output in the place of the inputs, in one entry. Raises: as ``begin``."""

    def plan(state: ManifestState) -> list[Change]:
        known = state.get(output.segment_id)
        if known is not None and known.state is SegmentState.COPY_FINISHED:
            return []  # An answer that was lost.
        if known is None or known.state is not SegmentState.COPY_STARTED:
            raise ConflictError(f"segment {output.segment_id} was given up: begin again")
        entries = _check_inputs(state, output, inputs)
        replaced = [entry.replace(state=SegmentState.DELETE_STARTED, changed_ms=output.changed_ms) for entry in entries]
        return [*replaced, output.replace(state=SegmentState.COPY_FINISHED)]

    await manifest.change(plan)


async def give_up(manifest: SegmentManifest, output: SegmentEntry) -> None:
    """Let the sweeper have what was uploaded. Raises: FencedError, StorageUnavailable."""
    known = manifest.state.get(output.segment_id)
    if known is not None and known.state is SegmentState.COPY_STARTED:
        await manifest.delete_started([output.segment_id])


def _check_inputs(state: ManifestState, output: SegmentEntry, inputs: Sequence[UUID]) -> list[SegmentEntry]:
    """The entries of the inputs. Raises: ConflictError."""
    entries: list[SegmentEntry] = []
    at = output.base_offset
    for segment_id in inputs:
        entry = state.get(segment_id)
        if entry is None or entry.state is not SegmentState.COPY_FINISHED:
            raise ConflictError(f"segment {segment_id} was deleted or replaced")
        if entry.base_offset != at:
            raise ConflictError(f"segment {segment_id} starts at {entry.base_offset}, not at {at}")
        at = entry.end_offset
        entries.append(entry)
    if at != output.end_offset or not entries:
        raise ConflictError(f"the inputs end at {at}, their replacement at {output.end_offset}")
    return entries
