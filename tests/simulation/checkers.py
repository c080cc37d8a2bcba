"""One checker for each invariant of ``ARCHITECTURE.md`` that a run can break. Each raises ``Violation``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import CorruptionError
from app.core.units import BrokerId, LeaderEpoch, TopicIdPartition
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.log.log_format import NO_NONCE, Entry, decode_entry
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_state import ManifestState, SegmentEntry, SegmentState, decode_change
from app.metadata.view.follower import MetadataFollower
from app.records.batch import BatchHeader, check_stored_batch, iter_headers
from app.tiering.read.chunk_cache import ENTRIES_MAX, QUEUE_MAX, READ_BYTES_MAX, READS_MAX
from app.tiering.read.footers import FOOTER_CACHE_BYTES_MAX
from app.tiering.read.read_ahead import STREAMS_MAX
from app.tiering.repair.verify import verify
from app.tiering.store.segment_format import check_stored_chunk, decode_footer
from app.tiering.store.store_work import unfold_chunk
from tests.sim.violation import Violation
from tests.simulation.history import Batch, Bound, PartitionHistory

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

CRC_POSITION = 17


def served_batches(records: memoryview, name: str, *, rotten: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """INV-6: (position, header) of each batch of an answer, whole and with the CRC that a client would check.

    ``rotten``: the local disk has changed bytes by itself, which a hot read does not look for.
    """
    try:
        for position, header in iter_headers(records):
            if not rotten:
                check_stored_batch(records, position)
            yield position, header
    except CorruptionError as error:
        raise Violation("INV-6", f"{name}: damaged bytes were served: {error}") from error


class AckedMeansKept:
    """INV-1: what was acknowledged stays where it is, as long as what it was promised to survive is all that happens."""

    def __init__(self, world: World) -> None:
        self._world = world

    def acked(self, history: PartitionHistory, batch: Batch, base: int, machine: Machine) -> None:
        """A producer got an answer without error."""
        if history.deleting or (history.rotten_from is not None and base >= history.rotten_from):
            return
        bound = history.bind(batch, base, machine.epoch_of(history, base))
        bound.acked = batch.acked = True
        if history.disk:
            bound.needs_disk = True
            self.check_on_disk(history, bound.base, batch, machine)

    def check_on_disk(self, history: PartitionHistory, base: int, batch: Batch, machine: Machine) -> None:
        """Under ``disk`` the bytes, and the way to them, are durable by the time that they are acknowledged or read."""
        path = machine.segment_path(history, base)
        if path is None or not machine.disk.exists(path) or machine.worst != "clean":
            return
        durable = machine.disk.durable_bytes(path)
        if durable is None:
            raise Violation("INV-1", f"{history.name}: {base} is out, but the name of {path} is not durable")
        if batch.tail not in durable and batch.tail in bytes(machine.disk._file(path).current):
            raise Violation("INV-1", f"{history.name}: {base} is out, but not durable in {path}")

    def observed(
        self, history: PartitionHistory, base: int, count: int, tail: bytes, epoch: int, *, visible: bool
    ) -> Batch | None:
        """Somebody has read a batch."""
        batch = history.sent.get(tail)
        if batch is None:
            if history.rotten_from is not None and base >= history.rotten_from:
                return None
            raise Violation("INV-1", f"{history.name}: at {base} are bytes that nobody sent")
        if count != batch.count:
            raise Violation("INV-1", f"{history.name}: the batch at {base} has {count} records, not {batch.count}")
        if history.rotten_from is not None and base >= history.rotten_from:
            return batch
        bound = history.bind(batch, base, epoch)
        if visible and history.disk:
            bound.needs_disk = True
        return batch

    def restarted(self, history: PartitionHistory, log_end: int, tiered_end: int, worst: str) -> None:
        """A broker is about to serve the partition again; ``worst`` is the worst that has happened to its records."""
        if history.rotten_from is not None:
            history.drop_from(history.rotten_from)
        must_end = 0
        for bound in history.bound.values():
            if worst in ("clean", "kill") or bound.tiered or (worst == "power" and bound.needs_disk):
                must_end = max(must_end, bound.end)
        if log_end < must_end:
            raise Violation(
                "INV-1",
                f"{history.name} ends at {log_end} after {worst}, but what was promised to be kept ends at {must_end}",
            )
        if worst == "moved":
            history.drop_from(tiered_end)
        elif worst == "power":
            history.drop_from(log_end)

    def finished(self, history: PartitionHistory, known: list[Bound], found: list[int], log_start: int) -> None:
        """All of a partition was read, base offsets in order; ``known`` is what was known before."""
        there = set(found)
        for bound in known:
            if bound.end > log_start and bound.base not in there and bound.acked:
                raise Violation("INV-1", f"{history.name}: the acknowledged batch at {bound.base} is not there")
        places: dict[int, int] = {}
        for base in found:
            there_now = history.bound.get(base)
            if there_now is None or not there_now.batch.idempotent:
                continue
            batch = there_now.batch
            if places.get(batch.stream, -1) >= batch.place and not history.losses:
                raise Violation(
                    "INV-1", f"{history.name}: batch {batch.number} at {base} is out of its producer's order"
                )
            places[batch.stream] = batch.place


@dataclass(slots=True)
class _Chain:
    """A numbered log as it is in the bucket."""

    next_sequence: int = 0
    nonce: bytes = NO_NONCE
    writer_id: str = ""
    epoch: int = -1
    manifest: ManifestState | None = None
    seals: set[str] = field(default_factory=set)


class OneWriter:
    """INV-2: every numbered log is one chain, each entry of it by whoever sealed last; seals stay; offers do not change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chains: dict[str, _Chain] = {}
        self._offers: dict[tuple[str, str], bytes] = {}
        self._stored: dict[str, bytes] = {}

    def offered(self, key: str, data: bytes) -> None:
        """A process sends a put-if-absent."""
        named = layout.parse_numbered_key(key)
        if named is None or named.is_snapshot:
            return
        entry = decode_entry(key, named.sequence, data)
        if not entry.is_seal and self._offers.setdefault((entry.writer_id, key), data) != data:
            raise Violation("INV-2", f"{entry.writer_id} offers other bytes under {key}")

    def stored(self, key: str, data: bytes, before: bytes | None) -> None:
        named = layout.parse_numbered_key(key)
        if named is None:
            return
        if before is not None and before != data:
            raise Violation("INV-2", f"{key} was replaced")
        if named.is_snapshot:
            return
        if self._world.is_deleted_prefix(named.prefix):
            return  # whoever has not heard of it yet may write there; nobody reads it
        if self._stored.get(key) == data:
            return  # a request that was repeated and has come late, after compaction: it says nothing new
        self._stored[key] = data
        chain = self._chains.setdefault(named.prefix, _Chain())
        entry = decode_entry(key, named.sequence, data)
        if entry.is_seal:
            chain.seals.add(key)
        if entry.sequence != chain.next_sequence or entry.previous != chain.nonce:
            if not entry.is_seal or entry.sequence >= chain.next_sequence:
                raise Violation("INV-2", f"{key} by {entry.writer_id} does not follow the entry before it")
            return  # a seal on a number that was deleted: no part of the log
        if not entry.is_seal and entry.writer_id != chain.writer_id:
            raise Violation("INV-2", f"{key} is by {entry.writer_id}, but {chain.writer_id} had sealed")
        if entry.is_seal:
            if entry.epoch < chain.epoch:
                raise Violation("INV-2", f"{key} seals with epoch {entry.epoch} after {chain.epoch}")
            chain.writer_id, chain.epoch = entry.writer_id, entry.epoch
        chain.next_sequence, chain.nonce = entry.sequence + 1, entry.nonce
        if named.prefix.startswith(layout.TOPICS_PREFIX):
            if chain.manifest is None:
                chain.manifest = ManifestState()
            self._apply(key, chain.manifest, entry)
            partition = layout.parse_manifest_prefix(key)
            assert partition is not None
            for record_key, value in entry.records:
                change = decode_change(record_key, value)
                if isinstance(change, SegmentEntry) and change.state is SegmentState.COPY_FINISHED:
                    self._world.bucket_is_enough.finished(partition, change)

    @staticmethod
    def _apply(key: str, state: ManifestState, entry: Entry) -> None:
        try:
            state.apply(entry)
        except CorruptionError as error:
            raise Violation("INV-4", f"{key}: {error}") from error

    def removed(self, key: str, data: bytes) -> None:
        named = layout.parse_numbered_key(key)
        if named is None:
            return
        chain = self._chains.get(named.prefix)
        if chain is not None and key in chain.seals and not self._world.is_deleted_prefix(named.prefix):
            raise Violation("INV-2", f"the seal {key} was deleted")

    @property
    def cluster_writer(self) -> str:
        """Who sealed the cluster log last: the one broker that may serve, whether or not another knows it yet."""
        return self._chains[layout.CLUSTER_PREFIX].writer_id

    def manifest(self, topic_id: UUID, partition: int) -> ManifestState:
        """What a partition's manifest durably says at this moment."""
        chain = self._chains.get(layout.manifest_prefix(topic_id, partition))  # type: ignore[arg-type]
        return chain.manifest if chain is not None and chain.manifest is not None else ManifestState()


class CommittedOnly:
    """INV-3: nobody reads at or past the high watermark, which never goes back unless records were allowed to be lost."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fetched(self, history: PartitionHistory, high_watermark: int, end: int, before: int) -> None:
        """Records up to ``end`` were read; ``before`` was the high watermark that somebody knew when it was asked."""
        if end > high_watermark:
            raise Violation(
                "INV-3", f"{history.name}: records up to {end} were read, the high watermark is {high_watermark}"
            )
        if history.rotten_from is None and high_watermark < before and not history.deleting:
            raise Violation("INV-3", f"{history.name}: the high watermark went back from {before} to {high_watermark}")
        history.high_watermark = max(high_watermark, history.high_watermark)


class NoGapNoOverlap:
    """INV-4: local and remote segments cover the log exactly; local bytes go only after their manifest entry is durable."""

    def __init__(self, world: World) -> None:
        self._world = world

    def local_dropped(self, machine: Machine, path: str) -> None:
        """A segment file was taken out of its directory."""
        directory, _, name = path.rpartition("/")
        topic, _, index = directory.rpartition("/")[2].rpartition("-")
        node = machine.node
        log = node.logs.get(topic, int(index)) if node is not None else None
        if log is None or log.path != directory:
            return
        history = self._world.histories.get((log.topic_id, int(index)))
        if history is None or history.deleting or machine is not self._world.owner or not machine.up:
            return  # before it serves a log may be begun anew; what of it may be lost is decided then
        base = int(name.partition(".")[0])
        following = [segment.base_offset for segment in log.segments() if segment.base_offset > base]
        if not following:
            return
        end = following[0]
        state = self._world.one_writer.manifest(history.topic_id, history.index)
        if end > max(state.tiered_end, state.log_start_offset):
            raise Violation(
                "INV-4",
                f"{history.name}: the local [{base}, {end}) goes; durable in the tier is what is below {state.tiered_end}, "
                f"and the log starts at {state.log_start_offset}",
            )

    def look(self, machine: Machine) -> None:
        """Hold every log of the owner against what is durable."""
        node = machine.node
        assert node is not None
        for log in node.logs.logs():
            history = self._world.histories.get((log.topic_id, int(log.partition)))
            if history is None or history.deleting or log.offline_error is not None:
                continue
            state = self._world.one_writer.manifest(history.topic_id, history.index)
            if log.log_end_offset < state.tiered_end:
                raise Violation(
                    "INV-4", f"{history.name} ends at {log.log_end_offset}, below the tiered end {state.tiered_end}"
                )
            start, local_start = log.log_start_offset, log.segments()[0].base_offset
            if start < local_start and state.tiered_end < local_start:
                raise Violation(
                    "INV-4", f"{history.name}: [{max(start, state.tiered_end)}, {local_start}) is in no tier"
                )
            segments = log.segments()
            for one, following in pairwise(segments):
                if one.end_offset != following.base_offset:
                    raise Violation("INV-4", f"{history.name}: a gap or overlap at {one.end_offset}")
            if start < history.log_start_acked:
                raise Violation(
                    "INV-4", f"{history.name} starts at {start}, but was truncated at {history.log_start_acked}"
                )
            if start > history.log_start_asked and not history.expires:
                raise Violation("INV-1", f"{history.name} starts at {start}, but nobody asked for that")


class BucketIsEnough:
    """INV-5: what the manifests call readable is there, whole and the very bytes that were sent."""

    def __init__(self, world: World) -> None:
        self._world = world

    def finished(self, partition: TopicIdPartition, entry: SegmentEntry) -> None:
        """A segment has just become readable."""
        key = entry.object_key(*partition)
        data = self._world.bucket.peek(key)
        history = self._world.histories.get((partition.topic_id, int(partition.partition)))
        if history is None or history.deleting:
            return
        if data is None:
            raise Violation("INV-5", f"{key} is readable by the manifest, and is not there")
        try:
            footer = decode_footer(data, len(data), key)
        except CorruptionError as error:
            raise Violation("INV-5", f"{key}: {error}") from error
        if (footer.base_offset, footer.end_offset) != (entry.base_offset, entry.end_offset):
            raise Violation("INV-5", f"{key}: the footer covers [{footer.base_offset}, {footer.end_offset})")
        at = int(entry.base_offset)
        for chunk in footer.chunks:
            stored = data[chunk.position : chunk.position + chunk.stored_bytes]
            try:
                check_stored_chunk(stored, chunk, key)
                raw = memoryview(unfold_chunk(stored, chunk, key))
            except CorruptionError as error:
                raise Violation("INV-5", f"{key}: {error}") from error
            for position, header in iter_headers(raw):
                if header.base_offset != at:
                    raise Violation("INV-4", f"{key}: offset {header.base_offset} comes where {at} should")
                tail = bytes(raw[position + CRC_POSITION : position + header.size_bytes])
                if header.is_control:
                    history.know_marker(tail, header.max_timestamp)
                batch = history.sent.get(tail)
                if batch is None:
                    raise Violation("INV-5", f"{key}: at {at} are bytes that nobody sent")
                if history.rotten_from is None or at < history.rotten_from:
                    history.bind(batch, at, header.leader_epoch).tiered = True
                at = header.end_offset
        if at != entry.end_offset:
            raise Violation("INV-4", f"{key}: its batches end at {at}, not {entry.end_offset}")

    def stored(self, key: str, data: bytes, before: bytes | None) -> None:
        if before is not None and key.startswith(layout.DATA_PREFIX) and before != data:
            raise Violation("INV-5", f"{key} was replaced")

    def removed(self, key: str, data: bytes) -> None:
        named = layout.parse_segment_key(key)
        if named is None:
            return
        history = self._world.histories.get((named.topic_id, int(named.partition)))
        if history is None or history.deleting:
            return
        entry = self._world.one_writer.manifest(history.topic_id, history.index).get(named.segment_id)
        if entry is not None and entry.state in (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED):
            raise Violation("INV-5", f"{key} was deleted while the manifest says {entry.state.name}")

    async def prove(self) -> None:
        """Walk the whole bucket as ``firn verify`` does."""
        world = self._world

        async def read_manifest(partition: TopicIdPartition) -> ManifestState:
            manifest = SegmentManifest(
                world.bucket,
                *partition,
                writer_id="prover",
                broker_id=BrokerId(0),
                leader_epoch=LeaderEpoch(0),
                rng=world.rng,
                clock=world.clock,
            )
            await manifest.load()
            return manifest.state

        async def read_cluster() -> ClusterImage:
            return await MetadataFollower(world.bucket, world.clock).cluster()

        deleted = {history.topic_id for history in world.histories.values() if history.deleting}
        async with aclosing(
            verify(world.bucket, read_manifest, read_cluster, only=lambda one: one.topic_id not in deleted)
        ) as findings:
            damage = [finding async for finding in findings if finding.is_damage]
        for finding in damage:
            raise Violation("INV-5", f"{finding.kind}: {finding.object_key}: {finding.message}")


class OneAcknowledges:
    """INV-1 and INV-2 for a single copy: what a broker was sent after another served in its place, it does not acknowledge."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._served_by: Machine | None = None
        self._since_s = 0.0
        self.stale = 0
        """Acknowledgements of a broker that was replaced, of records that it was sent before that."""

    def serving(self, machine: Machine) -> None:
        if machine is not self._served_by:
            self._served_by, self._since_s = machine, self._world.loop.time()

    def acked(self, machine: Machine, sent_s: float) -> None:
        """A record that was sent to ``machine`` at ``sent_s`` is acknowledged. Raises: Violation."""
        if machine is self._served_by:
            return
        if sent_s > self._since_s:
            raise Violation(
                "INV-1",
                f"{machine.name} acknowledged what it was sent {sent_s - self._since_s:.3f} s after another served in its place",
            )
        self.stale += 1


class Bounded:
    """INV-7: every queue and cache of a running broker keeps its limit."""

    def look(self, machine: Machine) -> None:
        node = machine.node
        assert node is not None
        cache, reader, server = node.chunk_cache, node.remote_reader, node.server
        largest = max((entry.charged_bytes for entry in cache._entries.values()), default=0)
        descriptors = node.logs.log_directory.descriptors
        limits = {
            "bytes of the chunk cache": (cache.used_bytes, max(cache.capacity_bytes, largest)),
            "entries of the chunk cache": (len(cache._entries), ENTRIES_MAX + QUEUE_MAX),
            "chunks waiting for room": (len(cache._queue), QUEUE_MAX),
            "chunks being read": (cache._reading, READS_MAX),
            "bytes of chunks being read": (cache._reading_bytes, max(READ_BYTES_MAX, largest)),
            "bytes of footers": (reader.footers.size_bytes, FOOTER_CACHE_BYTES_MAX),
            "sequential readers": (len(reader.read_ahead.streams), STREAMS_MAX),
            "bytes of read-ahead": (reader.read_ahead.window_bytes, node.config.firn_read_ahead_bytes),
            "bytes of arriving frames": (server.frames.bytes, node.config.queued_max_request_bytes),
            "open log files": (descriptors.open_count, max(64, machine.descriptors_max)),
            "tasks of the loop": (len(asyncio.all_tasks()), 2000),
            "files of the chunk cache": (
                len(machine.disk.list_dir(cache._directory)) if machine.disk.is_dir(cache._directory) else 0,
                len(cache._entries) + READS_MAX + 64 + len(cache._unlinks) + len(cache._spares),
            ),
        }
        for what, (value, limit) in limits.items():
            if value > limit:
                raise Violation("INV-7", f"{what}: {value} is over the limit of {limit}")
