"""Faults planted into the broker's own code, to see the simulation find them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest

import app.tiering.store.store_work as store_work
from app.broker.partitions import opening
from app.broker.partitions.opening import Opening
from app.coordinator.partition import CoordinatedLog, ReplayedBatch
from app.coordinator.schemas.consumer_group import ConsumerGroupCurrentMemberAssignmentKey
from app.core.units import Offset
from app.groups.classic.classic import ClassicGroup
from app.groups.consumer.members import MemberIndex
from app.groups.shard import GroupShard
from app.groups.share.core.share_partitions import SharePartitions
from app.handlers.apis import share_fetch
from app.hot import recovery
from app.hot.cleaning import cleaner, compaction
from app.hot.cleaning.plain import PlainEngine
from app.hot.log import PartitionLog
from app.hot.producers import ProducerStates
from app.hot.swapping import SWAP_SUFFIX
from app.metadata.log.append_attempt import AppendAttempt, PutOutcome, ReadBack, ReadOutcome
from app.metadata.log.numbered_log import NumberedLog
from app.metadata.manifest.manifest import SegmentManifest
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.repair import rebuild
from app.tiering.upload import remote_log_manager
from app.tiering.upload.remote_log_manager import RemoteLogManager
from app.transactions.markers import MarkerWriter

Plant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """A fault, and how many seeds it takes at the most to find it."""

    plant: Plant
    faults: tuple[str, ...] | None
    """What goes wrong in the runs besides; None is whatever the seed says."""
    seeds: int
    found_by: str
    """The invariant whose checker is meant for it. What else it breaks, in other runs, does not count."""
    first: int = 0
    """The first of these seeds."""


def acks_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "wait_stored", lambda _log, _end: None)


def drops_local_before_the_manifest_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        RemoteLogManager,
        "_drop_local",
        lambda _manager, partition: partition.log.delete_local_before(partition.log.segments()[-1].base_offset),
    )


def leads_without_looking_above_the_tiered_end(patch: pytest.MonkeyPatch) -> None:
    async def finds_nothing(*_: object) -> None:
        return

    patch.setattr(opening, "check_nothing_is_unnamed", finds_nothing)


class _NotWritten(Exception):
    """What the planted code makes of an undecided append."""


def _offers_again_with_another_nonce(patch: pytest.MonkeyPatch) -> None:
    write = NumberedLog._write

    async def rewrite(log: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(20):
            try:
                return await write(log, *args, **kwargs)
            except _NotWritten:
                continue
        return await write(log, *args, **kwargs)

    patch.setattr(NumberedLog, "_write", rewrite)


def takes_404_for_not_written(patch: pytest.MonkeyPatch) -> None:
    on_put, on_read = AppendAttempt.on_put, AppendAttempt.on_read

    def put(attempt: AppendAttempt, outcome: PutOutcome, now_s: float) -> Any:
        return ReadBack(0.0) if outcome is PutOutcome.UNDECIDED else on_put(attempt, outcome, now_s)

    def read(attempt: AppendAttempt, outcome: Any, now_s: float) -> Any:
        if outcome is ReadOutcome.MISSING:
            raise _NotWritten
        return on_read(attempt, outcome, now_s)

    patch.setattr(AppendAttempt, "on_put", put)
    patch.setattr(AppendAttempt, "on_read", read)
    _offers_again_with_another_nonce(patch)


def offers_other_bytes_after_an_undecided_append(patch: pytest.MonkeyPatch) -> None:
    on_put = AppendAttempt.on_put

    def put(attempt: AppendAttempt, outcome: PutOutcome, now_s: float) -> Any:
        if outcome is PutOutcome.UNDECIDED:
            raise _NotWritten
        return on_put(attempt, outcome, now_s)

    patch.setattr(AppendAttempt, "on_put", put)
    _offers_again_with_another_nonce(patch)


def deletes_seals(patch: pytest.MonkeyPatch) -> None:
    compact = NumberedLog._compact

    async def forgetful(log: Any) -> None:
        log._at.seals = []
        await compact(log)

    patch.setattr(NumberedLog, "_compact", forgetful)


async def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def keeps_the_epoch_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Opening, "bump", _nothing)


def does_not_seal_out_the_old_leader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentManifest, "seal", _nothing)


def settles_leftovers_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteLogManager, "settle_now", RemoteLogManager.settle, raising=False)
    patch.setattr(RemoteLogManager, "settle", _nothing)

    async def settle_leftovers(manager: Any, partition: Any) -> None:
        await manager.settle_now(partition.manifest)
        partition.settled = True

    patch.setattr(RemoteLogManager, "_settle_leftovers", settle_leftovers)


def gives_offsets_of_the_tier_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebuild, "disagreement", lambda _log, _manifest: None)


def ignores_the_crc_of_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_work, "check_stored_chunk", lambda _stored, _chunk, _name: None)


def sweeps_by_a_manifest_read_before_the_list(patch: pytest.MonkeyPatch) -> None:
    sweep = remote_log_manager.sweep_partition
    last_read: dict[Any, Any] = {}

    async def early(store: Any, partition: Any, read_manifest: Any) -> Any:
        state = last_read.get(partition)  # as long before as the sweep before
        last_read[partition] = (await read_manifest()).copy()

        async def known() -> Any:
            return state or last_read[partition]

        return await sweep(store, partition, known)

    patch.setattr(remote_log_manager, "sweep_partition", early)


def answers_a_duplicate_before_its_original_is_stored(patch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append_as_leader

    def hasty(log: PartitionLog, *args: Any, **kwargs: Any) -> Any:
        result = append(log, *args, **kwargs)
        return result._replace(last_offset_end=0) if result.duplicate else result

    patch.setattr(PartitionLog, "append_as_leader", hasty)


def shows_what_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append_as_leader

    def early(log: PartitionLog, *args: Any, **kwargs: Any) -> Any:
        result = append(log, *args, **kwargs)
        log.commit(int(log.log_end_offset))
        return result

    patch.setattr(PartitionLog, "append_as_leader", early)


def recovers_batches_with_a_bad_crc(patch: pytest.MonkeyPatch) -> None:
    walk = recovery.walk
    patch.setattr(recovery, "walk", lambda file, start, end, *, verify: walk(file, start, end, verify=False))


def deletes_records_before_the_log_start_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentManifest, "set_log_start", _nothing)


def finishes_a_copy_before_its_upload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_work._ObjectWriter, "complete", _nothing)


def serves_chunks_of_other_segments(patch: pytest.MonkeyPatch) -> None:
    request = ChunkCache.request

    def confused(cache: ChunkCache, object_key: str, chunk: Any) -> Any:
        for (_, position), entry in cache._entries.items():
            if entry.ready and position == chunk.position and entry.chunk.raw_bytes == chunk.raw_bytes:
                return entry
        return request(cache, object_key, chunk)

    patch.setattr(ChunkCache, "request", confused)


def forgets_producers_with_every_restart(patch: pytest.MonkeyPatch) -> None:
    rebuild_state = recovery._Loader._rebuild_state

    def forgetful(loader: Any, *args: Any) -> ProducerStates:
        rebuild_state(loader, *args)
        return ProducerStates()

    patch.setattr(recovery._Loader, "_rebuild_state", forgetful)


def answers_a_commit_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatedLog, "stored", lambda _log, _end: None)


def lets_members_of_older_generations_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicGroup, "check_offset_commit", lambda *_args, **_kwargs: None)


def loads_the_oldest_offset_of_a_place(patch: pytest.MonkeyPatch) -> None:
    load = GroupShard.load

    def backwards(shard: GroupShard, batch: ReplayedBatch) -> None:
        load(
            shard, batch._replace(records=[one for one in batch.records if one[0] not in seen.setdefault(shard, set())])
        )
        seen.setdefault(shard, set()).update(key for key, _ in batch.records)

    seen: dict[GroupShard, set[bytes]] = {}
    patch.setattr(GroupShard, "load", backwards)


def shows_what_no_marker_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", PartitionLog.high_watermark)


def names_no_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda _log, _start, _end: [])


def tiers_segments_without_their_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    make = store_work.SegmentFooter
    patch.setattr(store_work, "SegmentFooter", lambda **fields: make(**{**fields, "aborted": ()}))


def leaves_decided_transactions_open_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Opening, "end_transactions", lambda *_args: None)


def writes_the_marker_of_one_partition_alone(patch: pytest.MonkeyPatch) -> None:
    write = MarkerWriter.write

    def forgetful(writer: MarkerWriter, marker: Any, partition: Any) -> Any:
        return None if partition.partition else write(writer, marker, partition)

    patch.setattr(MarkerWriter, "write", forgetful)


def commits_what_is_to_be_aborted_in_a_second_partition(patch: pytest.MonkeyPatch) -> None:
    write = MarkerWriter.write

    def torn(writer: MarkerWriter, marker: Any, partition: Any, *rest: Any) -> Any:
        return write(writer, marker._replace(commit=True) if partition.partition else marker, partition, *rest)

    patch.setattr(MarkerWriter, "write", torn)


def drops_the_newest_of_each_key(patch: pytest.MonkeyPatch) -> None:
    def stays(engine: PlainEngine, record: Any, tombstones_go: bool) -> bool:
        return record.offset > engine.latest_offset or engine._newest.get(record.key) != record.offset

    patch.setattr(PlainEngine, "_stays", stays)


def drops_a_swap_that_was_cut_off(patch: pytest.MonkeyPatch) -> None:
    def drop(fs: Any, directory: str, names: Any) -> list[str]:
        for name in names:
            if name.endswith(SWAP_SUFFIX):
                fs.unlink(f"{directory}/{name}")
        return []

    patch.setattr(recovery, "complete", drop)


class _Unsynced:
    def __init__(self, file: Any) -> None:
        self._file = file

    def fdatasync(self) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def does_not_sync_what_compaction_wrote(patch: pytest.MonkeyPatch) -> None:
    make_durable = compaction.Compaction._make_durable

    def forgetful(job: Any, base_offset: int, log: Any, *others: Any) -> None:
        make_durable(job, base_offset, _Unsynced(log), *others)

    patch.setattr(compaction.Compaction, "_make_durable", forgetful)


def compacts_without_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    job = cleaner.CleaningJob
    patch.setattr(cleaner, "CleaningJob", lambda **fields: job(**{**fields, "aborted": []}))


def assigns_what_another_has_not_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberIndex, "is_held", lambda _index, _topic_id, _partition: False)
    patch.setattr(MemberIndex, "assert_free", lambda _index, _member_id, _assigned: None)


def forgets_who_has_what_with_every_restart(patch: pytest.MonkeyPatch) -> None:
    load = GroupShard._load_consumer_group

    def forgetful(shard: GroupShard, key: Any, value: bytes | None) -> None:
        if not isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            load(shard, key, value)

    patch.setattr(GroupShard, "_load_consumer_group", forgetful)
    patch.setattr(MemberIndex, "assert_free", lambda _index, _member_id, _assigned: None)


def shares_what_somebody_has(patch: pytest.MonkeyPatch) -> None:
    acquire = SharePartitions.acquire

    def generous(core: SharePartitions, moment: Any, key: Any, *args: Any, **options: Any) -> Any:
        shared = core.partitions.get(key)
        before = None if shared is None else shared.window
        acquired = acquire(core, moment, key, *args, **options)
        if shared is not None and before is not None:
            shared.window = before
        return acquired

    patch.setattr(SharePartitions, "acquire", generous)


def does_not_write_down_what_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def put(core: SharePartitions, moment: Any, shared: Any, window: Any) -> None:
        shared.window = window
        shared.changed.wake()
        core._arm(moment, shared.key, window)

    patch.setattr(SharePartitions, "_put", put)


def takes_records_for_control_records(patch: pytest.MonkeyPatch) -> None:
    sorted_out = share_fetch.sorted_out

    def confused(read: Any, offset: int) -> Any:
        batches, nobody = sorted_out(read, offset)
        return batches[1:], sorted([*nobody, *batches[:1]])

    patch.setattr(share_fetch, "sorted_out", confused)


def tells_an_older_high_watermark_at_times(patch: pytest.MonkeyPatch) -> None:
    told = count()

    def older(log: Any) -> Offset:
        return Offset(max(log.log_start_offset, log._high_watermark - next(told) % 2))

    patch.setattr(PartitionLog, "high_watermark", property(older))


def caches_without_a_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChunkCache, "_make_room", lambda _cache, _raw_bytes: True)


PLANTED: dict[str, Planted] = {
    "acks before sync": Planted(acks_before_sync, None, 10, "INV-1"),
    "local segments dropped before their manifest entry": Planted(
        drops_local_before_the_manifest_entry, None, 10, "INV-4"
    ),
    "404 on the read-back taken for not written": Planted(takes_404_for_not_written, ("store flaky",), 30, "INV-2"),
    "other bytes offered after an undecided append": Planted(
        offers_other_bytes_after_an_undecided_append, ("store flaky",), 30, "INV-2"
    ),
    "a deleted seal": Planted(deletes_seals, None, 30, "INV-2"),
    "the epoch kept after a loss": Planted(keeps_the_epoch_after_a_loss, ("power", "power within"), 30, "INV-1"),
    "the old leader not sealed out": Planted(
        does_not_seal_out_the_old_leader, ("take-over", "store flaky"), 20, "INV-4"
    ),
    "leftover copies settled after the log goes on": Planted(settles_leftovers_late, ("kill at upload",), 30, "INV-4"),
    "offsets of the tier given again": Planted(gives_offsets_of_the_tier_again, ("take-over",), 20, "INV-1"),
    "a manifest that has lost its last entries led": Planted(
        leads_without_looking_above_the_tiered_end, ("cut",), 30, "INV-1"
    ),
    "the CRC of chunks ignored": Planted(ignores_the_crc_of_chunks, ("store lies",), 20, "INV-6"),
    "the sweeper reads the manifest before it lists": Planted(
        sweeps_by_a_manifest_read_before_the_list, ("sweep", "take-over"), 200, "INV-5"
    ),
    "a duplicate answered before its original is stored": Planted(
        answers_a_duplicate_before_its_original_is_stored, ("cut", "slow pool"), 20, "INV-1"
    ),
    "a high watermark ahead of what is stored": Planted(shows_what_is_not_stored, None, 30, "INV-1"),
    "batches with a bad CRC recovered": Planted(
        recovers_batches_with_a_bad_crc, ("power", "power within"), 300, "INV-6"
    ),
    "an older high watermark told at times": Planted(tells_an_older_high_watermark_at_times, ("cut",), 10, "INV-3"),
    "a cache without a budget": Planted(caches_without_a_budget, ("cold pages",), 40, "INV-7"),
    "records deleted before the log start is durable": Planted(
        deletes_records_before_the_log_start_is_durable, ("kill", "cold pages"), 60, "INV-4"
    ),
    "a copy finished before its upload": Planted(finishes_a_copy_before_its_upload, None, 10, "INV-5"),
    "chunks of other segments served": Planted(serves_chunks_of_other_segments, ("cold pages",), 20, "INV-4"),
    "a commit answered before it is stored": Planted(
        answers_a_commit_before_it_is_stored, ("power", "slow pool"), 40, "INV-8"
    ),
    "members of older generations not fenced": Planted(lets_members_of_older_generations_commit, ("cut",), 20, "INV-8"),
    "the oldest of the offsets of a place loaded": Planted(loads_the_oldest_offset_of_a_place, ("kill",), 20, "INV-8"),
    "uncommitted records shown": Planted(shows_what_no_marker_has_ended, ("cut",), 20, "INV-9"),
    "aborted transactions not named": Planted(names_no_aborted_transactions, ("cut",), 20, "INV-9"),
    "segments tiered without their aborted transactions": Planted(
        tiers_segments_without_their_aborted_transactions, ("cold pages",), 20, "INV-9"
    ),
    "decided transactions left open after a loss": Planted(
        leaves_decided_transactions_open_after_a_loss, ("take-over",), 10, "liveness", first=90
    ),
    "a marker written to one partition alone": Planted(writes_the_marker_of_one_partition_alone, ("cut",), 20, "INV-9"),
    "a transaction committed in one of its partitions": Planted(
        commits_what_is_to_be_aborted_in_a_second_partition, ("cut",), 30, "INV-9"
    ),
    "the newest of each key dropped": Planted(drops_the_newest_of_each_key, ("cut",), 20, "INV-10"),
    "a swap that was cut off dropped": Planted(drops_a_swap_that_was_cut_off, ("kill at swap",), 30, "INV-10"),
    "what compaction wrote not synced": Planted(
        does_not_sync_what_compaction_wrote, ("power", "power within"), 60, "INV-10"
    ),
    "aborted records compacted like others": Planted(compacts_without_aborted_transactions, ("cut",), 40, "INV-10"),
    "a partition assigned before it is given up": Planted(
        assigns_what_another_has_not_given_up, ("cut",), 20, "INV-11"
    ),
    "assignments forgotten with a restart": Planted(forgets_who_has_what_with_every_restart, ("kill",), 80, "INV-11"),
    "a record shared twice": Planted(shares_what_somebody_has, ("cut",), 20, "INV-12"),
    "acknowledged records not written down": Planted(
        does_not_write_down_what_was_acknowledged, ("kill",), 40, "INV-12"
    ),
    "records taken for control records": Planted(takes_records_for_control_records, ("cut",), 20, "INV-12"),
    "producers forgotten with a restart": Planted(forgets_producers_with_every_restart, ("kill",), 30, "INV-1"),
}
