"""Whether a partition can be led, told from the store alone: what ``firn doctor`` asks, and the sentences that tell of a mend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.errors import CorruptionError
from app.metadata import layout
from app.metadata.manifest import ManifestState
from app.objectstore.api import ObjectMissing, ObjectStore
from app.tiering.verify import read_checked_footer
from app.units import TopicIdPartition


def how_to_mend(key: TopicIdPartition) -> str:
    """What to do about damage to what a partition has in the store, in a clause."""
    return (
        f"put back what was under {layout.manifest_prefix(*key)}/ and {layout.data_prefix(*key)} (older versions, or a copy of the"
        " bucket)"
    )


async def why_not_led(
    store: ObjectStore, key: TopicIdPartition, read_manifest: Callable[[TopicIdPartition], Awaitable[ManifestState]]
) -> str | None:
    """Why a broker with an empty data directory could not lead a partition, in a sentence; None if it could.

    ``read_manifest`` reads it from the store. Costs what that costs, a LIST of one key, and a GET of the last footer.
    Raises: StorageUnavailable.
    """
    try:
        state = await read_manifest(key)
        if state.is_blank:
            return await _why_not_blank(store, key)
        if not state.finished:
            return None
        last = state.finished[-1]
        object_key = last.object_key(*key)
        try:
            await read_checked_footer(store, key, last, object_key)
        except ObjectMissing:
            # It may have been replaced, or have expired, since the manifest was read.
            now = (await read_manifest(key)).get(last.segment_id)
            if now is not None and now.state is last.state:
                return f"{object_key} is missing, though the manifest names it"
    except CorruptionError as error:
        return str(error)
    return None


async def _why_not_blank(store: ObjectStore, key: TopicIdPartition) -> str | None:
    data_prefix = layout.data_prefix(*key)
    for info in await store.list_objects(data_prefix, limit=1000):
        if layout.parse_segment_key(info.key) is not None:
            return f"the segments under {data_prefix} have lost the manifest that names them"
    return None
