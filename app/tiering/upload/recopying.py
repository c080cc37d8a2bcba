"""When the remote segments of a compacted topic are replaced by cleaned ones, and by which change. Pure.

They were copied before cleaning, so that no upload waits for the cleaner. The leader copies its cleaned segments anew when the
remote ones have twice their bytes, or are many. All of them are replaced in one entry, by segments of one state of the local log
(ADR 0037, J59).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.core.errors import ConflictError
from app.core.units import Offset
from app.metadata.manifest.manifest import CHANGES_PER_ENTRY_MAX, SegmentManifest
from app.metadata.manifest.manifest_state import Change, ManifestState, SegmentEntry, SegmentState
from app.tiering.upload.tiered_log import LocalSegment, TieredLog

SEGMENTS_MORE: Final = 32
"""So many more remote segments than twice the local ones are many: a broker that takes the partition over reads each by itself."""


def to_recopy(log: TieredLog, manifest: SegmentManifest) -> list[LocalSegment]:
    """The local segments that should replace all remote ones now; none if that is not worth it, or not possible now."""
    finished, end = manifest.finished, manifest.tiered_end
    if not (log.config.compacted and log.config.tiered) or not finished:
        return []
    local = [one for one in log.segments() if not one.active and one.end_offset <= end]
    local_bytes = sum(one.size_bytes for one in local)
    if (
        manifest.state.raw_bytes <= 2 * local_bytes + log.config.segment_bytes
        and len(finished) <= 2 * len(local) + SEGMENTS_MORE
    ):
        return []
    start = max(finished[0].base_offset, log.log_start_offset)
    if (
        not local
        or local[0].base_offset > start
        or local[-1].end_offset != end
        or not all(each.size_bytes for each in local)
    ):
        return []
    return local if len(local) + len(finished) < CHANGES_PER_ENTRY_MAX else []


async def swap(manifest: SegmentManifest, replaced: Sequence[SegmentEntry], copies: Sequence[SegmentEntry]) -> None:
    """Make ``copies``, which are announced and uploaded, readable in place of ``replaced``, which is all that was readable.

    Raises, with nothing changed: ConflictError, FencedError. Raises: StorageUnavailable.
    """
    ids = [one.segment_id for one in replaced]

    def plan(state: ManifestState) -> list[Change]:
        if [one.segment_id for one in state.finished] != ids:
            known = state.get(copies[-1].segment_id)
            if known is not None and known.state is SegmentState.COPY_FINISHED:
                return []  # an answer that was lost
            raise ConflictError("Other segments are readable than those that were to be replaced.")
        _check_covered(state, copies)
        gone = [manifest.entered(one, SegmentState.DELETE_STARTED) for one in state.finished]
        return [*gone, *(manifest.entered(one, SegmentState.COPY_FINISHED) for one in copies)]

    await manifest.change(plan)


def _check_covered(state: ManifestState, copies: Sequence[SegmentEntry]) -> None:
    at = Offset(copies[0].base_offset)
    for one in copies:
        if one.base_offset != at:
            raise ConflictError(f"The copies leave out offsets from {at} to {one.base_offset}.")
        at = one.end_offset
    if at != state.tiered_end:
        raise ConflictError(f"The copies end at {at}, but the tiered end is {state.tiered_end}.")
