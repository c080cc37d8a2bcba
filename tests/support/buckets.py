"""Buckets without a broker: topics of exactly the batches that a test or a measurement wants, as a broker would have tiered them.

    bucket = await BucketBuilder.open(path)
    topic = await bucket.create_topic("t", partitions=1)
    await bucket.add_segment(topic, 0, batches, chunk_bytes=1000)

Batches carry their final offsets. Cluster log, manifests and segment objects are written by the broker's own code.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, SegmentId, TimestampMs, TopicId
from app.machine.files import PosixFileSystem
from app.metadata.image.draft import ClusterState
from app.metadata.image.records import (
    ClusterRecord,
    PartitionRecord,
    TopicRecord,
    cluster_change,
    partition_change,
    topic_change,
)
from app.metadata.log import layout
from app.metadata.log.numbered_log import NumberedLog
from app.metadata.manifest.manifest import SegmentEntry, SegmentManifest
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore, DirectPool
from app.records.batch import iter_headers
from app.tiering.store.store_work import InlineStoreWork, UploadJob

BROKER = BrokerId(1)
CREATED_MS = TimestampMs(1_700_000_000_000)


class FixedClock:
    def now_ms(self) -> TimestampMs:
        return CREATED_MS


class BucketBuilder:
    """Writes a cluster into a store. Make one with ``open``."""

    def __init__(self, store: ObjectStore, scratch: Path, seed: int) -> None:
        self.store = store
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._clock = FixedClock()
        self._work = InlineStoreWork(store, PosixFileSystem(), DirectPool(), self._rng)
        self._manifests: dict[tuple[TopicId, int], SegmentManifest] = {}
        self._cluster = NumberedLog(
            store,
            layout.CLUSTER_PREFIX,
            writer_id="builder",
            rng=self._rng,
            clock=self._clock,
            new_state=ClusterState,
        )

    @classmethod
    async def open(cls, path: Path, *, store: ObjectStore | None = None, seed: int = 0) -> BucketBuilder:
        """A new cluster in the directory ``path``, or in ``store`` (``path`` is scratch then)."""
        path.mkdir(parents=True, exist_ok=True)
        builder = cls(store if store is not None else DirectoryStore(path), path, seed)
        await builder._cluster.load()
        await builder._cluster.seal(builder._cluster.next_sequence)
        await builder._cluster.append(
            builder._cluster.next_sequence, [cluster_change(ClusterRecord(1, "AAAAAAAAAAAAAAAAAAAAAA", CREATED_MS))]
        )
        return builder

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> TopicId:
        topic_id = TopicId(uuid.UUID(int=self._rng.getrandbits(128)))
        records = [topic_change(topic_id, TopicRecord(1, name, partitions, dict(configs or {}), CREATED_MS))]
        for index in range(partitions):
            record = PartitionRecord(1, BROKER, LeaderEpoch(0), 0, (BROKER,), (BROKER,))
            records.append(partition_change(topic_id, index, record))
        await self._cluster.append(self._cluster.next_sequence, records)
        return topic_id

    async def delete_topic(self, topic_id: TopicId) -> None:
        """Forget a topic in the cluster log; its objects stay, as they do until a sweeper comes."""
        topic = self._cluster.state.image.topics_by_id[topic_id]
        records = [topic_change(topic_id, None)]
        records += [partition_change(topic_id, image.partition_index, None) for image in topic.partitions]
        await self._cluster.append(self._cluster.next_sequence, records)

    async def manifest(self, topic_id: TopicId, partition: int) -> SegmentManifest:
        found = self._manifests.get((topic_id, partition))
        if found is None:
            found = self._manifests[topic_id, partition] = SegmentManifest(
                self.store,
                topic_id,
                PartitionIndex(partition),
                writer_id=f"builder-{partition}",
                broker_id=BROKER,
                leader_epoch=LeaderEpoch(0),
                rng=self._rng,
                clock=self._clock,
            )
            await found.load()
        return found

    async def add_segment(
        self,
        topic_id: TopicId,
        partition: int,
        batches: Sequence[bytes],
        *,
        end_offset: int | None = None,
        chunk_bytes: int = 4 << 20,
        compression: str = "none",
        aborted: Sequence[tuple[int, int, int, int]] = (),
        epochs: Sequence[tuple[int, int]] = ((0, 0),),
        base_offset: int | None = None,
        enter: bool = True,
    ) -> SegmentEntry:
        """Upload a segment and enter it in the manifest (unless not ``enter``); answers its finished entry.

        ``aborted``: (producer id, first offset, last offset, last stable offset) of transactions that overlap it.
        """
        data = b"".join(batches)
        headers = [header for _, header in iter_headers(data)]
        base = headers[0].base_offset if base_offset is None else Offset(base_offset)
        end = headers[-1].end_offset if end_offset is None else Offset(end_offset)
        segment_id = SegmentId(uuid.UUID(int=self._rng.getrandbits(128)))
        manifest = await self.manifest(topic_id, partition)
        entry = SegmentEntry.started(segment_id, base, end, broker_id=BROKER).replace(
            leader_epochs=tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs)
        )
        if enter:
            await manifest.copy_started(entry)
        path = self._scratch / ".segment"
        path.write_bytes(data)
        uploaded = await self._work.upload_segment(
            UploadJob(
                key=layout.segment_key(topic_id, partition, base, segment_id),
                segment_id=segment_id.bytes,
                topic_id=topic_id.bytes,
                partition=partition,
                path=str(path),
                log_bytes=len(data),
                base_offset=base,
                end_offset=end,
                leader_epochs=list(epochs),
                aborted=list(aborted),
                producer_snapshot=b"",
                compression=compression,
                chunk_bytes=chunk_bytes,
                created_ms=CREATED_MS,
            )
        )
        path.unlink()
        finished = uploaded.recorded_in(entry).replace(aborted_transaction_count=len(aborted))
        if enter:
            await manifest.copy_finished(finished)
        return finished
