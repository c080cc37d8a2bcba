"""The partitions that this broker leads without having read their manifests: read and checked while clients are served.

Tests: ``tests/broker/test_leadership.py``, ``tests/broker/test_replication.py``, ``tests/broker/test_manifest_copies.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from app.broker.partitions.held import HeldPartitions
from app.broker.partitions.logs_in_image import leader_epoch
from app.broker.partitions.manifests import MANIFESTS_AT_ONCE
from app.broker.partitions.next_step import Stage
from app.broker.partitions.opening import Opening
from app.broker.partitions.unsettled import RETRY_S_MAX, RETRY_S_MIN, STARTED_AT_ONCE, Unsettled
from app.core.errors import CorruptionError, FencedError, FirnError
from app.core.faults import Faults
from app.hot.log import PartitionLog
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.view.view import ClusterView
from app.tiering.upload.remote_log_manager import RemoteLogManager

MANIFEST: Final = "reading the manifest of"
"""Name of this work in log lines about faults."""
LISTED_AT_ONCE: Final = 2_048
"""New partitions whose manifests are listed together."""
CACHE_WRITE_S: Final = 5.0
"""How long changed manifests wait, so that they are written to the data directory together."""
TAKEN_OVER_MANY: Final = 16
"""With more partitions that were taken over at once, their producers have priority …"""
AFTER_TAKE_OVER_S: Final = 2.0
"""… for so long: reading a manifest takes some 0.2 ms of this loop."""
CATCH_UP_DELAY_S: Final = 1.0
"""Delay after a start, because clients have priority."""


class ManifestReading:
    """Reads the manifests of partitions in the stages UNCHECKED, UNREAD and BELIEVED. Belongs to the broker's loop."""

    def __init__(
        self,
        held: HeldPartitions,
        opening: Opening,
        *,
        cluster: ClusterView,
        tier: RemoteLogManager,
        faults: Faults,
        write_copies: Callable[[], Awaitable[None]],
    ) -> None:
        self._held, self._manifests = held, held.manifests
        self._opening = opening
        self._cluster = cluster
        self._tier = tier
        self._faults = faults
        self._write_copies = write_copies
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A partition has come whose manifest is to be read."""
        self._wake.set()

    async def attach_and_cache(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            if self._held.unsettled.count(Stage.UNCHECKED) > TAKEN_OVER_MANY:
                # Producers wait for these partitions, but no client waits for their manifests: readers have the views.
                await asyncio.sleep(AFTER_TAKE_OVER_S)
            # A partition that comes while this round waits is not in the round. It wakes the next one.
            self._wake.clear()
            await self._attach_new()
            delay_s = min(delay_s * 2, RETRY_S_MAX) if self._waits_for_manifests() else RETRY_S_MIN
            await self._write_copies()
            try:
                async with asyncio.timeout(delay_s if self._waits_for_manifests() else CACHE_WRITE_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _waits_for_manifests(self) -> bool:
        return self._held.unsettled.count(Stage.UNCHECKED, Stage.UNREAD) > 0

    async def _attach_new(self) -> None:
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        new = tuple(self._held.unsettled.of(Stage.UNCHECKED, Stage.UNREAD).values())
        for start in range(0, len(new), LISTED_AT_ONCE):
            await self._attach(new[start : start + LISTED_AT_ONCE], limit)

    async def _attach(self, some: Sequence[Unsettled], limit: asyncio.Semaphore) -> None:
        listed = await self._manifests.list_keys(one.partition.key for one in some)

        async def attach(one: Unsettled) -> None:
            if not self._held.unsettled.holds(one):
                return  # Deleted meanwhile, or led by another broker, perhaps only until now: then it has a new record.
            key, unchecked = one.partition.key, one.stage is Stage.UNCHECKED
            topic = self._cluster.image.topic_by_id(key.topic_id)
            log = None if topic is None else self._held.table.led_log(topic.name, key.partition)
            if log is None:
                self._held.unsettled.settle(key)
                return
            try:
                async with limit:
                    copy = None if self._held.views is None else self._held.views.copy_of(key)
                    manifest = await self._manifests.load(log, copy, listed.get(key))
                    if unchecked and self._held.unsettled.holds(one):
                        await self._opening.check_manifest_is_there(log, manifest)
                        if manifest.state.pending_copies() and self._held.unsettled.holds(one):
                            # An earlier leader may be about to finish them. Else the first change seals (T2).
                            await manifest.seal(leader_epoch(self._cluster.image, log))
                            if self._held.unsettled.holds(one):
                                await self._tier.settle(manifest)
                        self._opening.check_in_sync_log(log, manifest)
            except FencedError:
                if not self._cluster.image.level:
                    raise
                return  # a leader of a higher epoch has sealed it: the image says so by now, or will
            except CorruptionError as error:
                if not self._held.is_held(log):
                    return  # its topic was deleted meanwhile
                if unchecked:
                    if self._held.unsettled.holds(one):
                        self._held.go_offline(log, error)
                    return
                self._tell_unread(log, error)
                return
            except FirnError as error:
                self._tell_unread(log, error)
                return
            # The topic may have been deleted meanwhile, or another broker leads: then the record is gone.
            if self._held.unsettled.holds(one):
                self._held.unsettled.settle(key)
                self._held.join_tier(log, manifest)

        async with asyncio.TaskGroup() as group:
            for place, one in enumerate(some, 1):
                group.create_task(attach(one))
                if place % STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _tell_unread(self, log: PartitionLog, error: FirnError) -> None:
        sentence = f"cannot read the manifest of {log.topic}-{log.partition}, will try again: {error}"
        self._faults.met(MANIFEST, str(log.topic_partition), sentence)

    async def catch_up(self) -> None:
        """Check the ends of manifests that were not checked yet: a job may have written while no broker ran."""
        delay_s = CATCH_UP_DELAY_S
        while self._held.unsettled.count(Stage.BELIEVED):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)
            believed = self._held.unsettled.of(Stage.BELIEVED)
            listed = await self._manifests.list_keys(tuple(believed))
            for key, keys in listed.items():
                if not self._held.unsettled.holds(believed[key]):
                    continue  # another broker has led it meanwhile: its manifest is read anew
                manifest = self._tier.manifest_of(key)
                try:
                    if (
                        manifest is not None
                        and layout.entry_key(layout.manifest_prefix(*key), manifest.version) in keys
                    ):
                        await self._refresh(manifest, believed[key])
                except FencedError:
                    if not self._cluster.image.level:
                        raise
                    if self._held.unsettled.holds(believed[key]):
                        self._held.unsettled.settle(key)  # the image will say who leads
                except FirnError as error:
                    prefix = layout.manifest_prefix(*key)
                    sentence = f"cannot read new entries of {prefix}, will try again: {error}"
                    self._faults.met(MANIFEST, prefix, sentence)
                else:
                    if self._held.unsettled.holds(believed[key]):
                        self._held.unsettled.settle(key)

    async def _refresh(self, manifest: SegmentManifest, one: Unsettled) -> None:
        """Read new entries, and seal, so that their writer cannot add more, while this broker leads. Raises: FirnError."""
        await manifest.refresh()
        if not self._manifests.is_ours(manifest) and self._held.unsettled.holds(one):
            partition = self._cluster.image.partition(manifest.topic_id, manifest.partition)
            if partition is not None:
                await manifest.seal(partition.leader_epoch)
