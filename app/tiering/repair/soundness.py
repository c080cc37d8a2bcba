"""Whether a partition can be led, judged from the store alone, for ``firn doctor``; and how to repair a partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from app.core.errors import CorruptionError
from app.core.units import TopicIdPartition
from app.metadata.log import layout
from app.metadata.manifest.manifest import ManifestState
from app.objectstore.api import ObjectMissing, ObjectStore
from app.tiering.repair.unnamed import describe, unnamed_above
from app.tiering.repair.verify import read_checked_footer

RESTORE: Final = "restore the objects under"
"""How a repair begins that needs an older state of the bucket."""


def how_to_mend(key: TopicIdPartition) -> str:
    """How to repair damage to a partition's objects in the store: a clause."""
    return (
        f"{RESTORE} {layout.manifest_prefix(*key)}/ and {layout.data_prefix(*key)} (from older versions, or from a copy of the"
        " bucket)"
    )


async def why_not_led(
    store: ObjectStore, key: TopicIdPartition, read_manifest: Callable[[TopicIdPartition], Awaitable[ManifestState]]
) -> str | None:
    """Why a broker with an empty data directory could not lead a partition, in a sentence; None if it could.

    ``read_manifest`` reads the manifest from the store. Costs its requests, a LIST, and a GET of the last footer.
    Raises: StorageUnavailable.
    """
    try:
        state = await read_manifest(key)
        if state.is_blank:
            return await _why_not_blank(store, key)
        # Objects are listed after the manifest was read, so unnamed objects are looked up in the manifest again.
        objects = await store.list_objects(layout.data_prefix(*key), start_after=_from_the_end(key, state), limit=1000)
        unnamed = await unnamed_above(store, key, state, objects)
        if unnamed and (now := await read_manifest(key)).tiered_end == state.tiered_end:
            unnamed = [one for one in unnamed if now.get(one.segment_id) is None]
            if unnamed:
                return f"{describe(unnamed, state)} (or a broker that still has these records will copy them again)"
        if not state.finished:
            return None
        last = state.finished[-1]
        object_key = last.object_key(*key)
        try:
            await read_checked_footer(store, key, last, object_key)
        except ObjectMissing:
            # It may have been replaced, or have expired, since the manifest was read.
            still = (await read_manifest(key)).get(last.segment_id)
            if still is not None and still.state is last.state:
                return f"{object_key} is missing, although the manifest names it"
    except CorruptionError as error:
        return str(error)
    return None


def _from_the_end(key: TopicIdPartition, state: ManifestState) -> str:
    """A key that sorts before the keys of all segments that begin at or above the tiered end."""
    end = max(state.tiered_end, state.log_start_offset)
    return f"{layout.data_prefix(*key)}{end:0{layout.SEQUENCE_DIGITS}d}"


async def _why_not_blank(store: ObjectStore, key: TopicIdPartition) -> str | None:
    data_prefix = layout.data_prefix(*key)
    for info in await store.list_objects(data_prefix, limit=1000):
        if layout.parse_segment_key(info.key) is not None:
            return f"the segments under {data_prefix} have no manifest: it was lost"
    return None
