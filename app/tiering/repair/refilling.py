"""Fetches a log that has to be on the local disk from its start on back from the object store.

Compacted topics with ``firn.durability=object`` are tiered as they are rolled, and their local segments stay: the cleaner and the
coordinators read the log from its start. A broker without it, or with a part of it, empties its log and takes all remote segments,
one chunk at a time, before it leads (ADR 0037, J55 to J59). It keeps no records of an older leadership: a later leader may have
dropped a tombstone whose older value is still among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.limits import KIB
from app.core.seams import BlockingPool
from app.core.units import TimestampMs
from app.hot.log import PartitionLog
from app.hot.producers import ProducerStates, parse_snapshot
from app.hot.segments import DELETED_SUFFIX
from app.machine.files import FileSystem, storage_error, unlink_quietly
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_state import SegmentEntry
from app.objectstore.api import ObjectMissing
from app.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES
from app.tiering.repair.rebuild import RestorePlan, apply_plan, disagreement, plan_restore
from app.tiering.store.segment_format import ChunkEntry, decode_footer
from app.tiering.store.store_work import StoreWork

APPEND_BYTES: Final = 256 * KIB
"""Appended before the event loop serves other work: about a millisecond."""
QUIET_TRIES_MAX: Final = 300
QUIET_PAUSE_S: Final = 0.1

_LENGTH: Final = Struct(">8xi")


def is_whole(log: PartitionLog, manifest: SegmentManifest) -> bool:
    """Whether the local log has everything from the log start to the tiered end, as far as its ends and epochs tell."""
    start = max(log.log_start_offset, manifest.log_start_offset)
    if manifest.finished:
        start = max(start, manifest.finished[0].base_offset)  # records that the store has lost cannot come back
    if manifest.tiered_end > start and log.local_log_start_offset > start:
        return False
    return disagreement(log, manifest) is None


async def refill(
    log: PartitionLog,
    manifest: SegmentManifest,
    work: StoreWork,
    *,
    fs: FileSystem,
    pool: BlockingPool,
    now_ms: Callable[[], TimestampMs],
) -> RestorePlan:
    """Empty a log, and give it all remote segments, with the epochs and producers of the last one. It ends at the tiered end then,
    and is synced. ``manifest`` is sealed by this broker, and there are no appends.

    Memory: a chunk. Raises: CorruptionError, StorageFull, StorageUnavailable. Then the log is a part of it, and not whole.
    """
    plan = await plan_restore(manifest, work)
    entries = [entry for entry in manifest.finished if entry.end_offset > plan.log_start_offset]
    await wait_quiet(log)
    if not entries:
        apply_plan(log, plan)
        return plan
    log.truncate_fully_and_start_at(
        entries[0].base_offset, plan.leader_epochs, None, log_start_offset=plan.log_start_offset
    )
    for entry in entries:
        await _append_segment(log, manifest.object_key(entry), entry, work, fs, pool, now_ms)
        if entry is entries[-1]:
            log.restore_lineage(plan.leader_epochs)
            if plan.producer_snapshot is not None:
                # The batches of some producers were compacted away, or deleted below the log start. Only the snapshot has those.
                known = ProducerStates()
                known.load_rows(parse_snapshot(plan.producer_snapshot))
                log.restore_producers(known)
        # Local segments end where remote ones do, so that none has records of both sides of the tiered end.
        log.begin_segment_at(entry.end_offset)
    # Or a loss of power leaves a hole, and it looks like one that compaction has made.
    await log.flush()
    return plan


async def _append_segment(
    log: PartitionLog,
    key: str,
    entry: SegmentEntry,
    work: StoreWork,
    fs: FileSystem,
    pool: BlockingPool,
    now_ms: Callable[[], TimestampMs],
) -> None:
    try:
        found = await work.read_footer(key, (entry.footer_position, entry.size_bytes))
        footer = decode_footer(found.tail, found.object_bytes, key)
        path = f"{log.path}/refill{DELETED_SUFFIX}"  # a name that the next start removes
        for chunk in footer.chunks:
            data = memoryview(await _chunk(key, chunk, path, work, fs, pool))
            position = 0
            while position < len(data):
                end = _some_batches(data, position)
                log.append_as_follower(data[position:end], now_ms=now_ms())
                position = end
                await asyncio.sleep(0)
    except ObjectMissing as error:
        raise CorruptionError(f"{key} is missing, although the manifest names it.") from error


async def _chunk(
    key: str, chunk: ChunkEntry, path: str, work: StoreWork, fs: FileSystem, pool: BlockingPool
) -> bytearray:
    """The raw bytes of a chunk, whose checksum was checked. Raises: ObjectMissing, CorruptionError, StorageUnavailable."""
    location = await work.fetch_chunk(key, chunk, path)

    def read() -> bytearray:
        data = bytearray(location.length)
        file = fs.open(location.path, read_only=True)
        try:
            got = file.pread_into(memoryview(data), location.position)
        finally:
            file.close()
        if got != location.length:
            raise StorageUnavailable(f"{location.path}: {got} bytes of a chunk of {location.length} could be read.")
        return data

    try:
        return await pool.run(read)
    except OSError as error:
        raise storage_error(error, f"Cannot read a chunk of {key}") from error
    finally:
        if location.in_cache:
            unlink_quietly(fs, path)


def _some_batches(data: memoryview, position: int) -> int:
    """The end of whole batches from ``position`` on: as many as fit into ``APPEND_BYTES``, and at least one."""
    end = position
    while end + HEADER_BYTES <= len(data):
        size = _LENGTH.unpack_from(data, end)[0] + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES or end + size > len(data):
            break  # the append raises the error
        if end > position and end + size - position > APPEND_BYTES:
            return end
        end += size
    return end if end > position and end <= len(data) else len(data)


async def wait_quiet(log: PartitionLog) -> None:
    """Wait for the end of a sync or a swap under way, so that the log can be cut. There are no appends, so no other sync follows.

    Raises: StorageUnavailable.
    """
    for _ in range(QUIET_TRIES_MAX):
        if not log.busy:
            return
        await asyncio.sleep(QUIET_PAUSE_S)
    raise StorageUnavailable(f"{log.topic}-{log.partition} is still being synced.")
