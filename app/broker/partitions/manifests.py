"""The manifests of the partitions on this broker: made, listed and read.

Tests: ``tests/broker/test_manifest_copies.py``, ``tests/broker/test_leadership.py``, ``tests/broker/test_empty_partitions.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from app.broker.partitions.logs_in_image import key_of, leader_epoch
from app.broker.partitions.manifest_copies import READ_AT_ONCE, ManifestCopies, ManifestEnds
from app.core.errors import CorruptionError
from app.core.faults import Faults
from app.core.seams import Clock
from app.core.units import BrokerId, LeaderEpoch, TopicId, TopicIdPartition
from app.metadata.log.numbered_log import LogTimings
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.manifest.manifest_listing import list_manifests
from app.metadata.membership.membership import Membership
from app.objectstore.api import ObjectStore

if TYPE_CHECKING:
    from app.hot.log import PartitionLog

MANIFESTS_AT_ONCE: Final = 256
"""Manifests read at the same time: a thousand partitions take a quarter of a second at 50 ms a request."""


class Manifests:
    """Makes, lists and reads manifests, and knows which ones are as the last stop has left them. Belongs to the broker's loop."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        membership: Membership,
        store: ObjectStore,
        copies: ManifestCopies,
        clock: Clock,
        rng: random.Random,
        timings: LogTimings | None,
        faults: Faults,
    ) -> None:
        self._broker_id = broker_id
        self._cluster, self._registration = membership.view, membership.registration
        self._store = store
        self._copies = copies
        self._clock = clock
        self._rng = rng
        self._timings = timings
        self._faults = faults
        self._ends: ManifestEnds | None = None
        self._prepared: dict[TopicIdPartition, SegmentManifest] = {}
        """Manifests whose ends are known from the last stop."""
        self._listed: Mapping[TopicIdPartition, Sequence[str]] = {}
        """Keys of manifests, listed before the cluster log was read."""
        self.entries: ManifestEntries | None = None
        """Gets the entries that this broker writes to manifests, for followers; None on a broker that is alone."""

    # --- of the last stop ----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Collect facts about the manifests while the cluster log and the local logs are read."""
        self._ends = await self._copies.take_ends()
        if self._ends is None:
            self._listed = await self.list_keys(await self._copies.partitions())
            return
        for start in range(0, len(self._ends.ends), READ_AT_ONCE):
            some = self._ends.ends[start : start + READ_AT_ONCE]
            keys = [TopicIdPartition(TopicId(end.topic_id), end.partition) for end in some]
            for key, end, copy in zip(keys, some, await self._copies.read(keys), strict=True):
                manifest = self.new(key, end.leader_epoch)
                if await manifest.restore(copy, end.version):
                    self._prepared[key] = manifest

    def known(self, to_lead: Iterable[PartitionLog]) -> dict[PartitionLog, SegmentManifest]:
        """Manifests that are unchanged since the last stop: this broker was the last to start with this node id, and led them
        until then."""
        if self._ends is None or not self.follows_the_last_stop:
            return {}
        epochs = {(end.topic_id, end.partition): end.leader_epoch for end in self._ends.ends}
        return {
            log: manifest
            for log in to_lead
            if (manifest := self._prepared.get(key_of(log))) is not None
            and epochs[key_of(log)] == leader_epoch(self._cluster.image, log)
        }

    @property
    def follows_the_last_stop(self) -> bool:
        """Whether the last start of this node id was in this data directory, and has stopped in order."""
        return self._ends is not None and self._ends.incarnation == self._registration.predecessor

    async def without_records(self, *, clean: bool) -> Callable[[PartitionLog], bool]:
        """Tells of a log without files whether it never had any, while this data directory's broker led it.

        After a clean stop its list says so. After any other stop everything is led anew under higher epochs; then it is enough that
        the last start of this node id was here and led everything, so that no other broker may still be about to write.
        """
        if clean:
            assert self._ends is not None
            epochs = {(one.topic_id, one.partition): one.leader_epoch for one in self._ends.empty}
            return lambda log: epochs.get((log.topic_id, log.partition)) == leader_epoch(self._cluster.image, log)
        predecessor = self._registration.predecessor
        continues = predecessor is not None and await self._copies.led_by() == predecessor.bytes
        return lambda log: continues

    def is_ours(self, manifest: SegmentManifest) -> bool:
        """Whether the last writer of the manifest was a broker with this data directory."""
        identity = self._cluster.identity
        return not manifest.sealed_by or manifest.sealed_by.startswith(f"{identity.broker_id}/{identity.directory_id}/")

    async def load_all(
        self,
        manifests: dict[PartitionLog, SegmentManifest],
        to_lead: Iterable[PartitionLog],
        go_offline: Callable[[PartitionLog, CorruptionError], None],
    ) -> None:
        """Read the manifests that ``manifests`` lacks of the logs ``to_lead``, some at a time, and add them there. A partition with
        a damaged manifest goes offline.

        Raises: StorageUnavailable.
        """
        logs = [log for log in to_lead if log not in manifests]
        # After a take-over, a former broker of this node id may have written manifests as leader since that LIST.
        listed = {} if self._registration.took_over else dict(self._listed)
        listed |= await self.list_keys(key for key in map(key_of, logs) if key not in listed)
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE // READ_AT_ONCE)
        one_thread = asyncio.Lock()  # of many, each would wait for the interpreter

        async def load_one(log: PartitionLog, copy: bytes | None) -> SegmentManifest | None:
            try:
                return await self.load(log, copy, listed.get(key_of(log)))
            except CorruptionError as error:
                go_offline(log, error)
                return None

        async def load(some: Sequence[PartitionLog]) -> None:
            async with limit:
                async with one_thread:
                    copies = await self._copies.read([key_of(log) for log in some])
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(load_one(log, copy)) for log, copy in zip(some, copies, strict=True)]
            found = [(log, task.result()) for log, task in zip(some, tasks, strict=True)]
            manifests.update((log, manifest) for log, manifest in found if manifest is not None)

        async with asyncio.TaskGroup() as group:
            for start in range(0, len(logs), READ_AT_ONCE):
                group.create_task(load(logs[start : start + READ_AT_ONCE]))

    def forget_the_last_stop(self) -> None:
        """The start is over: give up the facts that ``prepare`` has collected."""
        self._prepared, self._listed = {}, {}

    # --- made and read -------------------------------------------------------------------------------------------

    async def list_keys(self, keys: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, Sequence[str]]:
        """The keys of manifests, by partition. Raises: StorageUnavailable."""
        timeout_s = (self._timings or LogTimings()).attempt_timeout_s
        return await list_manifests(self._store, keys, page_timeout_s=timeout_s)

    async def load(self, log: PartitionLog, copy: bytes | None, listed: Sequence[str] | None) -> SegmentManifest:
        """Read a partition's manifest: from the data directory's ``copy``, if there is one, and later entries.

        Raises: StorageUnavailable, CorruptionError.
        """
        manifest = self.new(key_of(log), LeaderEpoch(max(log.leader_epoch, leader_epoch(self._cluster.image, log), 0)))
        await manifest.load(copy, listed)
        return manifest

    def new(self, key: TopicIdPartition, epoch: LeaderEpoch) -> SegmentManifest:
        """A manifest without entries, to read one, or to follow one. ``epoch``: the leader epoch of its writes."""
        manifest = SegmentManifest(
            self._store,
            *key,
            writer_id=self._cluster.writer_id,
            broker_id=self._broker_id,
            leader_epoch=epoch,
            rng=self._rng,
            clock=self._clock,
            timings=self._timings,
            faults=self._faults,
        )
        self.hand_on(manifest)
        return manifest

    def hand_on(self, manifest: SegmentManifest) -> None:
        """Keep the entries that this broker writes to a manifest at hand for followers."""
        entries = self.entries
        if entries is not None:
            key = TopicIdPartition(manifest.topic_id, manifest.partition)
            manifest.on_written(lambda sequence, body: entries.add(key, sequence, body))
