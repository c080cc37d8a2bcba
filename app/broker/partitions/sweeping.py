"""Deletes objects of deleted and unknown topics from the bucket. The tier of their leader sweeps led partitions.

Tests: ``tests/broker/test_deleted_topics.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Final
from uuid import UUID

from app.core.errors import ErrorCode, FencedError, FirnError, RequestRejected, StorageUnavailable
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.units import TopicId
from app.metadata.changes.topic_changes import finish_topic_deletion
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.membership.membership import Membership
from app.objectstore.api import ObjectStore
from app.tiering.upload.sweeper import Swept, delete_topic, sweep_unknown_topics

RETRY_S: Final = 30.0
DELETE_DEADLINE_S: Final = 600.0
"""Deadline of one attempt to empty a topic's prefixes. The next attempt continues."""
ENDED_LOGS_S: Final = 6 * 3600.0
ENDED_LOGS_PAUSE_S: Final = 60.0
"""After a change of the brokers: a write-ahead log that ends then is closed in the records of its partitions meanwhile."""
LATE_MODULES: Final = ("app.wal.format", "app.wal.objects", "app.wal.writer", "app.broker.write_ahead.sweep")
"""Imported before the first sweep, each in a turn of its own: together they take 25 to 50 ms of CPU (INV-15). A broker that has no
write-ahead log needs them for nothing else, so its start does not wait for them."""
UNKNOWN_TOPICS_S: Final = 24 * 3600.0
"""Pause between two searches for objects of unknown topics. A search LISTs all segments and manifests."""


class Sweeping:
    """Runs the sweeper. Belongs to the broker's loop."""

    def __init__(
        self,
        store: ObjectStore,
        membership: Membership,
        *,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        wait_left: Callable[[UUID], Awaitable[None]],
    ) -> None:
        """``wait_left`` returns when this broker no longer writes objects of a deleted topic."""
        self._store = store
        self._cluster, self._controller = membership.view, membership.controller
        self._wait_left = wait_left
        self._clock = clock
        self._rng = rng
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._wake = asyncio.Event()
        self._brokers_changed = asyncio.Event()
        self._brokers_changed.set()
        self._objects = registry.counter("firn_swept_objects_total", "Orphaned objects removed from the bucket.")
        self._bytes = registry.counter("firn_swept_bytes_total", "Bytes of orphaned objects removed from the bucket.")
        self._uploads = registry.counter("firn_swept_uploads_total", "Orphaned multipart uploads aborted.")

    async def run(self) -> None:
        """Run until cancelled. Raises: FencedError."""
        self._cluster.on_change(self._see)
        self._controller.on_office(self._wake.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._delete_topics())
            group.create_task(self._look_for_unknown_topics())
            group.create_task(self._sweep_write_ahead_logs())

    def _see(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.deleting and image.deleting:
            self._wake.set()
        if delta.brokers:
            self._brokers_changed.set()

    async def _delete_topics(self) -> None:
        """Empty the prefixes of deleted topics, then let the cluster forget them.

        Every broker does the first, once it writes nothing there any more. The controller alone does the second.
        """
        emptied: set[TopicId] = set()
        while True:
            failed = False
            deleting = tuple(self._cluster.image.deleting.values())
            emptied.intersection_update([topic.topic_id for topic in deleting])
            for topic in deleting:
                if topic.topic_id in emptied and not self._controller.active:
                    continue
                try:
                    async with asyncio.timeout(DELETE_DEADLINE_S):
                        await self._wait_left(topic.topic_id)
                        self._count(await delete_topic(self._store, topic.topic_id, topic.partition_count))
                    emptied.add(topic.topic_id)
                    if self._controller.active:
                        await self._forget(topic.topic_id)
                except FencedError:
                    raise
                except (FirnError, TimeoutError) as error:
                    if isinstance(error, RequestRejected) and error.code is ErrorCode.NOT_CONTROLLER:
                        continue  # another broker is the controller by now, and lets the cluster forget the topic
                    failed = True
                    why = str(error) or f"it takes longer than {DELETE_DEADLINE_S:g} s"
                    self._faults.met(
                        "deleting objects of",
                        topic.name,
                        f"cannot delete the objects of topic {topic.name} in the bucket, will try again: {why}",
                    )
            if not failed:
                await self._wake.wait()
                self._wake.clear()
            else:
                await asyncio.sleep(RETRY_S)

    async def _forget(self, topic_id: TopicId) -> None:
        await self._controller.submit(lambda draft, _: finish_topic_deletion(draft, topic_id))

    async def _look_for_unknown_topics(self) -> None:
        while True:
            await asyncio.sleep(UNKNOWN_TOPICS_S)
            await self._sweep_unknown()

    async def _sweep_unknown(self) -> None:
        async def known() -> frozenset[TopicId]:
            await self._cluster.look()
            image = self._cluster.image
            return frozenset(TopicId(topic_id) for topic_id in (*image.topics_by_id, *image.deleting))

        try:
            async with asyncio.timeout(DELETE_DEADLINE_S):
                self._count(await sweep_unknown_topics(self._store, known))
        except (StorageUnavailable, TimeoutError) as error:
            self._faults.met(
                "sweeping", "the bucket", f"cannot look for orphaned objects in the bucket, will try again: {error}"
            )

    async def _sweep_write_ahead_logs(self) -> None:
        """Some time after a broker has come, gone or begun anew, and four times a day: a late object may have landed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDED_LOGS_S):
                    await self._brokers_changed.wait()
            await asyncio.sleep(ENDED_LOGS_PAUSE_S)
            self._brokers_changed.clear()
            if self._cluster.image.level < OBJECT_LEVEL or not self._controller.active:
                continue
            for module in LATE_MODULES:
                import_module(module)
                await asyncio.sleep(0)
            from app.broker.write_ahead.sweep import sweep_ended

            try:
                async with asyncio.timeout(DELETE_DEADLINE_S):
                    deleted = await sweep_ended(
                        self._store,
                        lambda: self._cluster.image,
                        sealer=int(self._cluster.identity.broker_id),
                        clock=self._clock,
                        rng=self._rng,
                    )
                self._objects.value += deleted
            except (FirnError, TimeoutError) as error:
                why = str(error) or f"it takes longer than {DELETE_DEADLINE_S:g} s"
                self._faults.met(
                    "sweeping", "ended write-ahead logs", f"cannot sweep ended write-ahead logs, will try again: {why}"
                )

    def _count(self, swept: Swept) -> None:
        self._objects.value += swept.objects
        self._bytes.value += swept.bytes
        self._uploads.value += swept.uploads
        if swept.objects or swept.uploads:
            self._log_line(
                Event.ORPHANS_DELETED.line(
                    f"deleted {swept.objects} orphaned objects of {swept.bytes} bytes, and aborted "
                    f"{swept.uploads} orphaned uploads",
                    objects=swept.objects,
                    bytes=swept.bytes,
                    uploads=swept.uploads,
                )
            )
