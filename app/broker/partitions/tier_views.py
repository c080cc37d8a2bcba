"""A follower's views of the tier: of the segment manifest of each partition that this broker follows (ADR 0024, T3, T8).

A view is the manifest as its leader wrote it, read only. The leader hands on new entries: each leader gets one parked request, for
any number of partitions. An entry is applied only if it follows from the last one. A follower that lost the thread asks the leader
for the entries that it lacks, and reads the bucket if the leader does not have them at hand.

By its views a follower deletes local segments that the tier has, learns the log start, and serves reads of tiered records.

Tests: ``tests/broker/test_tier_replication.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from app.broker.partitions.manifest_copies import READ_AT_ONCE, ManifestCopies
from app.core.errors import BrokerUnavailable, CorruptionError, ErrorCode, FirnError, ProtocolError, RequestRejected
from app.core.faults import Faults
from app.core.seams import Clock
from app.core.turns import STRIDE, Steps, run, whole
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.hot.log import PartitionLog
from app.metadata.image.image import BrokerImage, ClusterImage, ImageDelta
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.peers.control import ManifestInfo, ManifestsRequest, ManifestsResponse
from app.replication.followed_tier import FollowedTier
from app.replication.partition import Partition, PartitionTable
from app.replication.roles import Role
from app.tiering.repair.rebuild import lower_log_start
from app.tiering.upload.local_retention import drop_local

WAIT_MS: Final = 2_000
"""How long a leader parks a request. A partition that is newly followed waits for the end of it at most."""
ASKED_MAX: Final = 1_000
"""Partitions that one request asks for."""
PAUSE_S: Final = 0.5
"""Pause after a failure, or if a leader does not know a manifest yet."""
READS_AT_ONCE: Final = 64
"""Manifests that are read from the bucket together."""
DECIDED_AT_ONCE: Final = 1_000
"""Views whose leaders are looked up in one go: about 1 ms."""
LOOKED_AT_ONCE: Final = 64
"""Partitions whose local retention is looked at before the loop serves other work."""


class ManifestLink(Protocol):
    """The way to leaders."""

    async def manifests(self, to: BrokerImage, asked: ManifestsRequest) -> ManifestsResponse:
        """Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        ...


class _View:
    """The view of one manifest."""

    __slots__ = ("is_current", "key", "manifest", "partition", "source", "terms")

    def __init__(self, partition: Partition, source: SegmentManifest | None) -> None:
        self.key = partition.key
        self.partition = partition
        self.manifest: SegmentManifest | None = None
        """None while no entry is known."""
        self.source = source
        """The manifest that this broker wrote as leader. The view begins as its copy."""
        self.is_current = False
        self.terms: tuple[int, int, Role] | None = None
        """Leader, leader epoch and role at the last decision about its leader."""

    @property
    def version(self) -> int:
        return 0 if self.manifest is None else self.manifest.version

    def terms_now(self) -> tuple[int, int, Role]:
        partition = self.partition
        return partition.leader, partition.leader_epoch, partition.role


class TierViews:
    """Belongs to one event loop. Keep ``run`` running."""

    def __init__(
        self,
        table: PartitionTable,
        link: ManifestLink,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        new_manifest: Callable[[TopicIdPartition, LeaderEpoch], SegmentManifest],
        list_manifests: Callable[[Iterable[TopicIdPartition]], Awaitable[Mapping[TopicIdPartition, Sequence[str]]]],
        copies: ManifestCopies,
        clock: Clock,
        interval_ms: int,
        faults: Faults,
    ) -> None:
        """``new_manifest`` makes a manifest without entries; ``list_manifests`` lists the keys of many. ``interval_ms``: between
        two looks at the local retention of everything."""
        self._table = table
        self._link = link
        self._broker_id = broker_id
        self.image = image
        self._new_manifest = new_manifest
        self._list_manifests = list_manifests
        self._copies = copies
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._faults = faults
        self._views: dict[TopicIdPartition, _View] = {}
        self._askers: dict[int, _Asker] = {}
        self._group: asyncio.TaskGroup | None = None
        self._has_others = False
        """Whether views came or went since the last decision about leaders."""
        self._changed_topics: set[UUID] = set()
        """Topics that changed since the last decision about leaders, …"""
        self._all_changed = False
        """… or whether anything may have."""
        self._due = asyncio.Event()
        """Set when the leaders are to be decided in portions."""
        self._is_deciding = False
        """Whether such a decision is under way."""

    # --- views ---------------------------------------------------------------------------------------------------------

    def manifest_of(self, key: TopicIdPartition) -> SegmentManifest | None:
        """The view of a partition's manifest, in which entries may be missing; None if no entry is known."""
        view = self._views.get(key)
        if view is None:
            return None
        return view.manifest or view.source

    def copy_of(self, key: TopicIdPartition) -> bytes | None:
        """The view as bytes for ``SegmentManifest.load``; None if no entry is known."""
        manifest = self.manifest_of(key)
        return None if manifest is None or not manifest.version else manifest.to_cache()

    def followed(self) -> Iterator[FollowedTier]:
        """The partitions that this broker follows now."""
        for view in list(self._views.values()):
            if view.partition.role is Role.FOLLOWER:
                yield FollowedTier(view.partition, self.manifest_of(view.key), view.is_current)

    # --- roles --------------------------------------------------------------------------------------------------------

    def begin(self, partition: Partition, led_by: SegmentManifest | None = None) -> None:
        """This broker follows the partition from now on. ``led_by``: the manifest that it wrote as its leader until now."""
        found = self._views.get(partition.key)
        if found is None or found.partition is not partition or led_by is not None:
            self._views[partition.key] = _View(partition, led_by)
            self._has_others = True

    def forget(self, key: TopicIdPartition) -> None:
        """Drop a view: this broker has the manifest itself, as leader, or is no replica any more."""
        if self._views.pop(key, None) is not None:
            self._has_others = True

    def follow(self, image: ClusterImage, delta: ImageDelta | None) -> None:
        """Ask the leaders of a new image: soon, in portions, if there are many views. Call it after the roles have followed."""
        if self._group is None:
            return
        if delta is None or delta.brokers:
            self._all_changed = True
        else:
            self._changed_topics |= delta.topics
        if len(self._views) <= DECIDED_AT_ONCE and not self._is_deciding:
            whole(self._deciding())
        else:
            self._due.set()

    async def _decide(self) -> None:
        """Decide which leaders to ask, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._is_deciding = True
            await run(self._deciding())
            self._is_deciding = False

    def _deciding(self) -> Steps[None]:
        """Decide which leaders to ask, in steps. If a role changes between two steps, the decision is made once more."""
        topics, self._changed_topics = self._changed_topics, set()
        everything, self._all_changed = self._all_changed or self._has_others, False
        if not everything and not (yield from self._concern(topics)):
            return
        self._has_others = False
        image, group = self.image(), self._group
        assert group is not None
        wanted: dict[int, dict[TopicIdPartition, _View]] = {}
        for seen, key in enumerate(list(self._views)):
            if not seen % STRIDE:
                yield
            view = self._views.get(key)
            if view is None:
                continue
            leader = view.partition.leader
            view.terms = view.terms_now()
            if view.partition.role is not Role.FOLLOWER:
                continue
            if leader >= 0 and leader != self._broker_id and leader in image.brokers:
                wanted.setdefault(leader, {})[key] = view
        for one in self._askers.keys() | wanted.keys():
            asker = self._askers.get(one)
            if asker is None:
                asker = self._askers[one] = _Asker(self, one)
                group.create_task(asker.run())
            asker.assign(wanted.get(one, {}))
            yield

    def _concern(self, topics: Collection[UUID]) -> Steps[bool]:
        """Whether another leader has to be asked. In-sync sets change often, and they do not matter."""
        for topic_id in topics:
            topic = self.image().topic_by_id(topic_id)
            if topic is None:
                return True
            for seen, partition in enumerate(topic.partitions):
                if not seen % STRIDE:
                    yield
                view = self._views.get(TopicIdPartition(TopicId(topic_id), partition.partition_index))
                if view is not None and view.terms != view.terms_now():
                    return True
        return False

    # --- running ------------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take the copies of the last run for views, also old ones, before anything is followed."""
        views = [view for view in self._views.values() if view.manifest is None]
        for start in range(0, len(views), READ_AT_ONCE):
            some = views[start : start + READ_AT_ONCE]
            for view, copy in zip(some, await self._copies.read([view.key for view in some]), strict=True):
                if copy is None:
                    continue
                manifest = self._new_manifest(view.key, view.partition.leader_epoch)
                if await manifest.adopt(copy):
                    view.manifest = manifest
                    self._settle(view)

    async def run(self) -> None:
        """Ask leaders, and apply local retention, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._decide())
            self.follow(self.image(), None)
            while True:
                await asyncio.sleep(self._interval_s)
                await self.look()

    async def look(self) -> None:
        """Apply local retention to all followed partitions."""
        for count, view in enumerate(list(self._views.values()), 1):
            self._drop_local(view)
            if not count % LOOKED_AT_ONCE:
                await asyncio.sleep(0)

    # --- effects of new entries ---------------------------------------------------------------------------------------

    def changed(self, view: _View) -> None:
        """A view has new entries."""
        if view.manifest is not None:
            self._copies.note_change(view.manifest)
        self._settle(view)
        self._drop_local(view)

    def _settle(self, view: _View) -> None:
        """Let the log begin where the manifest says. Records that are not known to be committed stay."""
        manifest, log = view.manifest, view.partition.log
        if manifest is None or not self._follows(view):
            return
        try:
            lower_log_start(log, manifest)
            if view.is_current:
                log.start_is_assumed = False  # the leader's manifest says no more
            start = min(manifest.log_start_offset, log.high_watermark)
            if start > log.log_start_offset:
                log.advance_log_start(start)
        except FirnError as error:
            self._tell(log, error)

    def _drop_local(self, view: _View) -> None:
        if view.manifest is None or not self._follows(view):
            return
        log = view.partition.log
        try:
            uncovered = drop_local(log, view.manifest, now_ms=self._clock.now_ms())
        except FirnError as error:
            self._tell(log, error)
            return
        if uncovered is not None:
            self._faults.met("the tier of", str(log.topic_partition), f"{log.topic}-{log.partition}: {uncovered}")

    def _follows(self, view: _View) -> bool:
        return self._views.get(view.key) is view and view.partition.role is Role.FOLLOWER

    def _tell(self, log: PartitionLog, error: FirnError) -> None:
        name = f"{log.topic}-{log.partition}"
        self._faults.met("local retention of", name, f"cannot delete local segments of {name}, will try again: {error}")

    # --- taking entries -----------------------------------------------------------------------------------------------

    async def ask(self, to: BrokerImage, asked: ManifestsRequest) -> ManifestsResponse:
        """Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        return await self._link.manifests(to, asked)

    def request(self, term: str, place: int, asked: Sequence[_View]) -> ManifestsRequest:
        return ManifestsRequest(
            self.image().cluster_id,
            self._broker_id,
            term,
            place,
            WAIT_MS,
            tuple((*view.key, view.version) for view in asked),
        )

    async def take(self, view: _View, sequence: int, bodies: Sequence[bytes]) -> bool:
        """Apply entries from number ``sequence`` on. Returns: False if they do not follow from the view (T8)."""
        if view.manifest is None:
            if view.source is not None or sequence > 0:
                return False
            view.manifest = self._new_manifest(view.key, view.partition.leader_epoch)
        manifest = view.manifest
        for number, body in enumerate(bodies, sequence):
            if number < manifest.version:
                continue
            try:
                if number > manifest.version or not await manifest.take(number, body):
                    return False
            except CorruptionError as error:
                self._tell_unread(view, error)
                return False
        self.changed(view)
        return True

    async def read(self, views: Sequence[_View]) -> None:
        """Read manifests from the bucket, for views that lost the thread. A read that fails is retried."""
        listed = await self._list_manifests([view.key for view in views])

        async def read_one(view: _View) -> None:
            held = self.manifest_of(view.key)
            manifest = self._new_manifest(view.key, view.partition.leader_epoch)
            try:
                copy = held.to_cache() if held is not None and held.version else None
                await manifest.load(copy, listed.get(view.key))
            except FirnError as error:
                self._tell_unread(view, error)
                return
            if self._views.get(view.key) is not view:
                return
            view.manifest, view.source, view.is_current = manifest, None, True
            self.changed(view)

        async with asyncio.TaskGroup() as group:
            for view in views:
                group.create_task(read_one(view))

    def _tell_unread(self, view: _View, error: FirnError) -> None:
        name = f"{view.partition.topic}-{view.partition.index}"
        self._faults.met(
            "reading the manifest of", name, f"cannot read the manifest of {name}, will try again: {error}"
        )

    def tell_unreachable(self, leader: int, error: FirnError) -> None:
        subject = f"broker {leader}"
        sentence = f"cannot learn from {subject} what is tiered, will try again: {error}"
        self._faults.met("learning of the tier from", subject, sentence)


class _Asker:
    """Asks one leader."""

    def __init__(self, owner: TierViews, leader: int) -> None:
        self._owner = owner
        self._leader = leader
        self._views: dict[TopicIdPartition, _View] = {}
        self._epochs: dict[TopicIdPartition, int] = {}
        self._term = ""
        self._place = 0
        self._changed = asyncio.Event()

    def assign(self, views: dict[TopicIdPartition, _View]) -> None:
        """Ask for exactly these, which the leader leads now."""
        for key, view in views.items():
            epoch = view.partition.leader_epoch
            if self._views.get(key) is not view or self._epochs.get(key) != epoch:
                view.is_current = False  # entries may have come that another leader wrote
                self._epochs[key] = epoch
        for key in self._epochs.keys() - views.keys():
            del self._epochs[key]
        self._views = views
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if not self._views:
                self._term = ""
                await self._changed.wait()
                continue
            to = self._owner.image().brokers.get(self._leader)
            if to is None:
                await asyncio.sleep(PAUSE_S)
                continue
            asked = [view for view in self._views.values() if not view.is_current][:ASKED_MAX]
            try:
                answer = await self._owner.ask(to, self._owner.request(self._term, self._place, asked))
                if answer.error:
                    raise RequestRejected(ErrorCode(answer.error), f"Broker {self._leader} does not tell.")
            except (BrokerUnavailable, ProtocolError, RequestRejected) as error:
                self._term = ""
                self._owner.tell_unreachable(self._leader, error)
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.lost or answer.term != self._term:
                for view in self._views.values():
                    view.is_current = False
            self._term, self._place = answer.term, answer.place
            await self._take(answer)

    async def _take(self, answer: ManifestsResponse) -> None:
        for topic_id, index, sequence, body in answer.entries:
            view = self._views.get(TopicIdPartition(TopicId(topic_id), PartitionIndex(index)))
            if view is not None and view.is_current:  # else it is asked for, and gets this entry too
                view.is_current = await self._owner.take(view, sequence, (body,))
        behind: list[_View] = []
        unknown = 0
        for told in answer.given:
            view = self._views.get(TopicIdPartition(TopicId(told.topic_id), PartitionIndex(told.partition)))
            if view is None:
                continue
            if told.version < 0:
                unknown += 1
            elif await self._is_current(view, told):
                view.is_current = True
                self._owner.changed(view)
            else:
                behind.append(view)
        for start in range(0, len(behind), READS_AT_ONCE):
            await self._owner.read(behind[start : start + READS_AT_ONCE])
        if unknown or any(not view.is_current for view in behind):
            await asyncio.sleep(PAUSE_S)

    async def _is_current(self, view: _View, told: ManifestInfo) -> bool:
        if view.manifest is None and view.source is not None:
            return False  # its copy is taken with the entries of the bucket
        if view.version < told.version and told.entries:
            await self._owner.take(view, told.version - len(told.entries), told.entries)
        return view.version >= told.version
