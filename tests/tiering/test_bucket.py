"""The bucket as a whole: sweeping it, proving it, and finding everything in it without a manifest (INV-5)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.errors import CorruptionError
from app.core.units import BrokerId, LeaderEpoch, Offset, SegmentId, TimestampMs, TopicId, TopicIdPartition
from app.metadata.image.image import ClusterImage, PartitionImage, TopicImage
from app.metadata.log import layout
from app.metadata.manifest.manifest import ManifestState, SegmentEntry, SegmentState
from app.objectstore.memory import Fault, FaultKind
from app.tiering.repair.rebuild import plan_restore
from app.tiering.repair.verify import Finding, FindingKind, Progress, verify
from app.tiering.store.discovery import list_manifests
from app.tiering.store.segment_format import SegmentFooter
from app.tiering.upload.deletion import delete_of_topics, delete_segments
from app.tiering.upload.sweeper import delete_topic, sweep_partition, sweep_unknown_topics
from tests.support.discovery import discover, longest_chains
from tests.tiering.segments import TOPIC
from tests.tiering.world import CONFIG, KEY, World, run_world


async def _tiered(world: World, batches: int = 30) -> None:
    world.append(batches)
    await world.until(world.all_copied)
    await asyncio.sleep(2)


def _fresh(world: World) -> Callable[[TopicIdPartition], Awaitable[ManifestState]]:
    async def read(partition: TopicIdPartition) -> ManifestState:
        assert partition == KEY
        manifest = world.new_manifest()
        await manifest.load()
        return manifest.state

    return read


async def _cluster() -> ClusterImage:
    """A cluster in which the world's topic lives."""
    partition = PartitionImage(KEY.partition, BrokerId(0), LeaderEpoch(1), 0, (BrokerId(0),), (BrokerId(0),))
    return ClusterImage(topics_by_id={TOPIC: TopicImage(TOPIC, "t", (partition,), {}, TimestampMs(0))})


async def _without_topics() -> ClusterImage:
    return ClusterImage()


async def _findings(world: World, progress: Progress | None = None) -> list[Finding]:
    return [one async for one in verify(world.store, _fresh(world), _cluster, progress=progress)]


async def _lose_manifest(world: World) -> list[str]:
    """Delete all of the world's manifest; answers the keys of the segment objects that it named."""
    for info in await world.store.list_objects(layout.topic_prefix(TOPIC)):
        await world.store.delete(info.key)
    return [info.key for info in await world.store.list_objects("data/")]


# --- sweeping -----------------------------------------------------------------------------------------------------------


def test_orphan_objects_and_uploads_go_and_everything_known_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        known = {info.key for info in await world.store.list_objects("data/")}
        orphan = layout.segment_key(TOPIC, 0, 5, SegmentId(uuid.UUID(int=1)))
        await world.store.put(orphan, b"left by a lost answer")
        await world.store.put(f"{layout.data_prefix(TOPIC, 0)}notes.txt", b"not ours to judge")
        await world.store.begin_upload(layout.segment_key(TOPIC, 0, 9, SegmentId(uuid.UUID(int=2))))
        swept = await world.tier.sweep(KEY)
        assert (swept.objects, swept.uploads) == (1, 1)
        left = {info.key for info in await world.store.list_objects("data/")}
        assert left == known | {f"{layout.data_prefix(TOPIC, 0)}notes.txt"}
        assert await world.store.list_uploads("data/") == []

    run_world(tmp_path, scenario)


def test_a_copy_that_begins_while_the_sweeper_looks_is_never_taken_for_an_orphan(tmp_path: Path) -> None:
    """The object lists before its COPY_STARTED is in the image that a sweeper might have had before."""

    async def scenario(world: World) -> None:
        await _tiered(world, 6)
        world.store.faults = [
            Fault(FaultKind.LATENCY, "list_objects", latency_ms=(0, 4000)),
            Fault(FaultKind.LATENCY, "list_uploads", latency_ms=(0, 4000)),
            Fault(FaultKind.LATENCY, latency_ms=(0, 300)),
        ]

        async def sweep_for_ever() -> None:
            while True:
                other = world.new_manifest()

                async def read(other: object = other) -> ManifestState:
                    await other.load()  # type: ignore[attr-defined]
                    return other.state  # type: ignore[attr-defined, no-any-return]

                swept = await sweep_partition(world.store, KEY, read)
                assert swept.objects == 0

        sweeping = asyncio.create_task(sweep_for_ever())
        for _ in range(10):
            world.append(6)
            await world.until(world.all_copied)
        sweeping.cancel()
        await asyncio.wait((sweeping,))
        assert sweeping.cancelled()
        world.store.faults = []
        await world.check()

    run_world(tmp_path, scenario)


def test_the_manifest_is_read_after_the_lists(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        before = len(world.store.history)
        await sweep_partition(world.store, KEY, lambda: _fresh(world)(KEY))
        operations = list(world.store.history)[before:]
        last_list = max(i for i, one in enumerate(operations) if one.key.startswith("data/"))
        first_manifest = min(i for i, one in enumerate(operations) if one.key.startswith("topics/"))
        assert last_list < first_manifest

    run_world(tmp_path, scenario)


def test_history_whose_manifest_was_lost_is_not_swept(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        keys = await _lose_manifest(world)
        assert len(keys) > 2
        upload = await world.store.begin_upload(layout.segment_key(TOPIC, 0, 9, SegmentId(uuid.UUID(int=2))))
        for sealed in (False, True):
            if sealed:
                await world.new_manifest().seal()
            swept = await sweep_partition(world.store, KEY, lambda: _fresh(world)(KEY))
            assert (swept.objects, swept.uploads) == (0, 0 if sealed else 1), upload.key
            assert [info.key for info in await world.store.list_objects("data/")] == keys

    run_world(tmp_path, scenario)


def test_a_manifest_begun_anew_does_not_give_the_history_before_it_away(tmp_path: Path) -> None:
    """A broker with an empty directory writes on where the manifest was lost: neither its end nor what lies there is trusted."""

    async def scenario(world: World) -> None:
        await _tiered(world)
        keys = await _lose_manifest(world)
        await asyncio.sleep(1)
        manifest = world.new_manifest()
        await manifest.load()
        begun = SegmentEntry.started(SegmentId(uuid.UUID(int=2)), Offset(0), Offset(1), broker_id=BrokerId(0))
        await manifest.copy_started(begun)
        unnamed = layout.segment_key(TOPIC, 0, 0, SegmentId(uuid.UUID(int=1)))
        await world.store.put(unnamed, b"it cannot be told what it held")
        found = await _findings(world)
        assert [one.kind for one in found] == [FindingKind.ENTRIES_LOST, FindingKind.MANIFEST_MISSING]
        assert f"{len(keys)} segment objects" in found[1].message
        swept = await sweep_partition(world.store, KEY, lambda: _fresh(world)(KEY))
        assert swept.objects == 0
        assert {info.key for info in await world.store.list_objects("data/")} == {*keys, unnamed}

    run_world(tmp_path, scenario)


def test_what_lies_unnamed_above_the_tiered_end_is_damage_and_swept_only_once_that_end_has_passed_it(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.crash()
        last = world.manifest.finished[-1]
        newest = (await world.store.list_objects(layout.log_prefix(layout.manifest_prefix(*KEY))))[-1].key
        while (await _fresh(world)(KEY)).get(last.segment_id) is not None:
            await world.store.delete(newest)
            newest = (await world.store.list_objects(layout.log_prefix(layout.manifest_prefix(*KEY))))[-1].key
        [finding] = await _findings(world)
        assert (finding.kind, finding.is_damage) == (FindingKind.ENTRIES_LOST, True)
        assert f"hold offsets [{last.base_offset}, {last.end_offset}) above the tiered end" in finding.message
        swept = await sweep_partition(world.store, KEY, lambda: _fresh(world)(KEY))
        assert swept.objects == 0
        deleted = [one async for one in verify(world.store, _fresh(world), _without_topics)]
        assert FindingKind.ENTRIES_LOST not in {one.kind for one in deleted}
        await world.start()  # on its own directory, which has the records: they are copied again
        await world.until(lambda: world.manifest.tiered_end >= last.end_offset)
        assert (await world.tier.sweep(KEY)).objects == 1
        assert await _findings(world) == []
        await world.check()

    run_world(tmp_path, scenario, config=replace(CONFIG, local_retention_ms=-1, local_retention_bytes=-1))


def test_a_deleted_topic_leaves_nothing_and_an_unknown_one_is_swept(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        stray = TopicId(uuid.UUID(int=99))
        await world.store.put(layout.segment_key(stray, 3, 5, SegmentId(uuid.UUID(int=1))), b"x")
        await world.store.put(f"{layout.manifest_prefix(stray, 3)}/log/00000000000000000001", b"x")

        async def known() -> frozenset[TopicId]:
            return frozenset({TOPIC})

        swept = await sweep_unknown_topics(world.store, known)
        assert swept.objects == 2
        world.tier.detach(*KEY)
        await world.store.begin_upload(layout.segment_key(TOPIC, 0, 9, SegmentId(uuid.UUID(int=2))))
        await delete_topic(world.store, TOPIC, 1)
        assert await world.store.list_objects("") == []
        assert await world.store.list_uploads("") == []
        await delete_topic(world.store, TOPIC, 1)

    run_world(tmp_path, scenario)


def test_nothing_is_deleted_whose_key_is_not_that_of_a_segment_of_the_partition(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        before = await world.store.list_objects("")
        own = world.manifest.object_key(world.manifest.finished[0])
        for foreign in (
            "cluster/log/00000000000000000001",
            layout.entry_key(layout.manifest_prefix(*KEY), 0),
            layout.segment_key(TOPIC, 1, 0, SegmentId(world.manifest.finished[0].segment_id)),
            layout.segment_key(TopicId(uuid.UUID(int=99)), 0, 0, SegmentId(uuid.UUID(int=1))),
            f"{own}/../../../x",
            "",
        ):
            with pytest.raises(CorruptionError, match="is not a segment of"):
                await delete_segments(world.store, KEY, [own, foreign])
            with pytest.raises(CorruptionError, match="belongs to no topic that is being deleted"):
                await delete_of_topics(world.store, [uuid.UUID(int=5)], [own, foreign])
        assert await world.store.list_objects("") == before

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("state", [SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED])
def test_what_a_record_of_an_older_version_wrongly_names_is_never_deleted_and_told_of(
    tmp_path: Path, state: SegmentState
) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        victim = "cluster/log/00000000000000000001"
        await world.store.put(victim, b"an entry of the cluster log")
        planted = SegmentEntry.started(SegmentId(uuid.UUID(int=7)), Offset(0), Offset(4), broker_id=BrokerId(-1))
        planted = planted.replace(stored_key=victim, changed_ms=TimestampMs(0))
        await world.manifest.change(lambda _: [planted])
        if state is SegmentState.DELETE_STARTED:
            await world.manifest.change(lambda _: [planted.replace(state=state)])
        await world.crash()
        await world.start()
        await asyncio.sleep(100)  # of virtual time: both the delay of deletions and a look at the partition have passed
        assert await world.store.get(victim) == b"an entry of the cluster log"
        [fault] = world.status().faults
        assert f"names {victim!r}, which is not its object" in fault
        [finding] = await _findings(world)
        assert (finding.kind, finding.is_damage) == (FindingKind.FOREIGN_KEY, True)
        await world.check()

    run_world(tmp_path, scenario)


def test_what_firn_did_not_make_stays_when_a_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        world.tier.detach(*KEY)
        notes = [f"{layout.data_prefix(TOPIC, 0)}notes.txt", f"{layout.manifest_prefix(TOPIC, 0)}/notes.txt"]
        for key in notes:
            await world.store.put(key, b"somebody's")
        await delete_topic(world.store, TOPIC, 1)
        assert [info.key for info in await world.store.list_objects("")] == notes

    run_world(tmp_path, scenario)


# --- proving ------------------------------------------------------------------------------------------------------------


def test_a_sound_bucket_has_no_findings_and_every_record_was_looked_at(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        progress = Progress()
        assert await _findings(world, progress) == []
        assert progress.records_done == world.manifest.tiered_end
        assert progress.bytes_done == progress.bytes_total > 0
        assert progress.segments_done == progress.segments_total == len(world.manifest.finished)
        assert progress.partitions_done == 1

    run_world(tmp_path, scenario)


def test_every_flipped_byte_of_an_object_is_found_and_named(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world, 12)
        key = world.manifest.object_key(world.manifest.finished[0])
        whole = await world.store.get(key)
        for at in range(0, len(whole), 37):
            broken = bytearray(whole)
            broken[at] ^= 0x10
            await world.store.put(key, broken)
            [found] = await _findings(world)
            assert (found.kind, found.object_key) == (FindingKind.OBJECT_DAMAGED, key)
            assert found.is_damage
        for wrong in (whole[:-1], whole + b"x", whole[1:]):
            await world.store.put(key, wrong)
            [found] = await _findings(world)
            assert found.kind is FindingKind.OBJECT_DAMAGED

    run_world(tmp_path, scenario)


def test_missing_objects_orphans_uploads_and_foreign_keys_are_found(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        gone = world.manifest.object_key(world.manifest.finished[1])
        await world.store.delete(gone)
        orphan = layout.segment_key(TOPIC, 0, 5, SegmentId(uuid.UUID(int=1)))
        await world.store.put(orphan, b"x")
        await world.store.put("data/00/readme", b"x")
        upload_key = layout.segment_key(TOPIC, 0, 9, SegmentId(uuid.UUID(int=2)))
        await world.store.begin_upload(upload_key)
        found = {(one.kind, one.object_key) for one in await _findings(world)}
        assert found == {
            (FindingKind.OBJECT_MISSING, gone),
            (FindingKind.ORPHAN_OBJECT, orphan),
            (FindingKind.FOREIGN_OBJECT, "data/00/readme"),
            (FindingKind.ORPHAN_UPLOAD, upload_key),
        }

    run_world(tmp_path, scenario)


def test_what_no_manifest_names_does_not_count_as_proven(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        readable, size_bytes = len(world.manifest.finished), world.manifest.state.size_bytes
        await world.store.put(layout.segment_key(TOPIC, 0, 5, SegmentId(uuid.UUID(int=1))), b"left by a lost answer")
        progress = Progress()
        [found] = await _findings(world, progress)
        assert (found.kind, found.is_damage) == (FindingKind.ORPHAN_OBJECT, False)
        assert progress.segments_done == progress.segments_total == readable
        assert progress.bytes_done == progress.bytes_total == size_bytes

    run_world(tmp_path, scenario)


def test_segments_whose_manifest_is_gone_are_damage_unless_their_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        keys = await _lose_manifest(world)
        for sealed in (False, True):
            if sealed:  # as a broker does that starts with an empty directory
                await world.new_manifest().seal()
            progress = Progress()
            [found] = await _findings(world, progress)
            assert (found.kind, found.is_damage) == (FindingKind.MANIFEST_MISSING, True)
            assert (found.partition, found.object_key) == (KEY, layout.manifest_prefix(*KEY))
            assert f"{len(keys)} segment objects" in found.message
            assert progress.segments_done == progress.records_done == progress.bytes_done == 0
        left = [one async for one in verify(world.store, _fresh(world), _without_topics)]
        assert [(one.kind, one.object_key) for one in left] == [(FindingKind.ORPHAN_OBJECT, key) for key in keys]

    run_world(tmp_path, scenario)


def test_older_objects_of_offsets_that_can_be_read_or_have_expired_only_take_room(tmp_path: Path) -> None:
    """As in a bucket that was copied, data first: then every object is older than its manifest."""

    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.tier.advance_log_start(TOPIC, KEY.partition, world.manifest.finished[2].base_offset)
        await world.until(lambda: not world.manifest.state.pending_deletes(), seconds=300)
        bases = (0, world.manifest.finished[-1].base_offset + 1)
        for base in bases:
            await world.store.put(layout.segment_key(TOPIC, 0, base, SegmentId(uuid.UUID(int=base))), b"x")
        await asyncio.sleep(1)
        for info in await world.store.list_objects(layout.topic_prefix(TOPIC)):
            await world.store.put(info.key, await world.store.get(info.key))
        assert [one.kind for one in await _findings(world)] == [FindingKind.ORPHAN_OBJECT] * len(bases)

    run_world(tmp_path, scenario)


def test_another_segment_under_the_key_is_damage(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        first, second = world.manifest.finished[:2]
        await world.store.put(
            world.manifest.object_key(first), await world.store.get(world.manifest.object_key(second))
        )
        [found] = await _findings(world)
        assert found.kind is FindingKind.OBJECT_DAMAGED

    run_world(tmp_path, scenario)


def test_a_gap_or_overlap_in_a_manifest_is_found(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        real = _fresh(world)

        for index in (0, 1):

            async def with_gap(partition: TopicIdPartition, index: int = index) -> ManifestState:
                state = await real(partition)
                del state._finished[index]
                return state

            kinds = [one.kind async for one in verify(world.store, with_gap, _cluster)]
            assert FindingKind.OFFSET_GAP in kinds, index

        async def with_overlap(partition: TopicIdPartition) -> ManifestState:
            state = await real(partition)
            state._finished[1] = state._finished[1].replace(base_offset=state._finished[1].base_offset - 1)
            return state

        kinds = [one.kind async for one in verify(world.store, with_overlap, _cluster)]
        assert FindingKind.OFFSET_OVERLAP in kinds

        async def without_end(partition: TopicIdPartition) -> ManifestState:
            state = await real(partition)
            state._finished.pop()
            return state

        kinds = [one.kind async for one in verify(world.store, without_end, _cluster)]
        assert FindingKind.OFFSET_GAP in kinds

    run_world(tmp_path, scenario)


def test_expired_history_is_no_gap(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        await world.tier.advance_log_start(TOPIC, KEY.partition, world.manifest.finished[2].base_offset)
        await world.until(
            lambda: not world.manifest.state.pending_deletes() and len(world.manifest.entries) > 0, seconds=300
        )
        assert await _findings(world) == []

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("fate", ["expired", "topic deleted", "lost"])
def test_an_object_that_goes_under_a_verification_is_damage_only_if_it_is_promised_still(
    tmp_path: Path, fate: str
) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        fresh, reads = _fresh(world), 0

        async def read(partition: TopicIdPartition) -> ManifestState:
            nonlocal reads
            reads += 1
            state = await fresh(partition)
            if reads == 1:
                first = state.finished[0]
                if fate == "expired":
                    manifest = world.new_manifest()
                    await manifest.seal()
                    await manifest.delete_started([first.segment_id], log_start_offset=first.end_offset)
                    await manifest.delete_finished([first.segment_id])
                await world.store.delete(first.object_key(*KEY))
            return state

        cluster = _without_topics if fate == "topic deleted" else _cluster
        found = [finding.kind async for finding in verify(world.store, read, cluster)]
        assert found == ([FindingKind.OBJECT_MISSING] if fate == "lost" else [])

    run_world(tmp_path, scenario)


def test_verifying_while_copies_go_on_finds_nothing_wrong(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        world.store.faults = [Fault(FaultKind.LATENCY, latency_ms=(0, 200))]
        for _ in range(3):
            world.append(8)
            assert await _findings(world) == []

    run_world(tmp_path, scenario)


# --- without a manifest -------------------------------------------------------------------------------------------------


def test_the_bucket_alone_tells_every_segment_and_all_of_its_records(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        finished = list(world.manifest.finished)
        assert await list_manifests(world.store) == [KEY]
        for info in await world.store.list_objects("topics/"):
            await world.store.delete(info.key)
        footers = [one.footer async for one in discover(world.store)]
        chain = longest_chains([one for one in footers if one is not None])
        assert [(one.segment_id, one.base_offset, one.end_offset) for one in chain] == [
            (one.segment_id, one.base_offset, one.end_offset) for one in finished
        ]
        assert sum(one.record_count for one in chain) == finished[-1].end_offset

    run_world(tmp_path, scenario)


def test_a_copy_made_twice_is_used_once() -> None:
    from dataclasses import replace

    from tests.tiering.segments import small_footer

    def footer(base: int, end: int, created: int) -> SegmentFooter:
        return replace(small_footer(), base_offset=base, end_offset=end, created_ms=created)  # type: ignore[arg-type]

    twice = [footer(0, 10, 1), footer(0, 10, 2), footer(10, 20, 3), footer(0, 10, 1)]
    assert [(one.base_offset, one.created_ms) for one in longest_chains(twice)] == [(0, 2), (10, 3)]


def test_a_damaged_footer_is_told_and_does_not_stop_the_discovery(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        key = world.manifest.object_key(world.manifest.finished[0])
        data = bytearray(await world.store.get(key))
        data[-20] ^= 1
        await world.store.put(key, data)
        found = [one async for one in discover(world.store)]
        assert [one.info.key for one in found if one.error is not None] == [key]
        assert len(found) == len(world.manifest.finished)

    run_world(tmp_path, scenario)


def test_the_plan_of_a_restore_comes_from_the_last_footer(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        plan = await plan_restore(world.manifest, world.work)
        assert (plan.log_start_offset, plan.tiered_end) == (0, world.manifest.tiered_end)
        assert [one.epoch for one in plan.leader_epochs] == [1]
        assert plan.producer_snapshot == world.log.producer_snapshot(plan.tiered_end)
        assert plan.remote_segments == len(world.manifest.finished)
        assert all(entry.state is SegmentState.COPY_FINISHED for entry in world.manifest.finished)

    run_world(tmp_path, scenario)


@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.FLIPPED_BYTE])
def test_a_start_with_a_faulty_store_waits_and_never_guesses(tmp_path: Path, kind: FaultKind) -> None:
    async def scenario(world: World) -> None:
        await _tiered(world)
        end = world.manifest.tiered_end
        await world.crash()
        (tmp_path / "data").rename(tmp_path / "lost")
        world.store.faults = [Fault(kind, "get_range", times=3), Fault(kind, "get_tail", times=3)]
        await world.start()
        assert world.log.log_end_offset == end

    run_world(tmp_path, scenario)
