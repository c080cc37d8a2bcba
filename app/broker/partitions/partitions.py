"""The partitions that this broker leads, and their parts: a log, a manifest, the tier.

The cluster image has the wanted state. ``Partitions`` establishes it: ``next_step`` decides, and this module carries the steps
out. Partitions with work left have a record with a stage (``unsettled``). New topics
get their logs in the change that creates them. If there are many logs, they are created before the response to the client. So a
client that knows of a topic can write to it. ``run`` does all work that may have to wait (a manifest, a full disk), and retries
it until it succeeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from app.broker.partitions.deleted_topics import DeletedTopics
from app.broker.partitions.leadership_lines import resigned_line, why_offline
from app.broker.partitions.lost_directory import Back, BegunAnew, back_from_the_store, lost_with_the_directory
from app.broker.partitions.manifest_copies import READ_AT_ONCE, ManifestCopies, ManifestEnds
from app.broker.partitions.next_step import NO_LOG, LocalState, Stage, Step, next_step
from app.broker.partitions.tier_views import TierViews
from app.broker.partitions.unsettled import Unsettled, UnsettledPartitions
from app.configs import BrokerConfig, Durability, TopicConfig
from app.core.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    FencedError,
    FirnError,
    StorageFull,
    StorageUnavailable,
    clause,
)
from app.core.faults import Faults
from app.core.loop_time import loop_time_s
from app.core.seams import Clock
from app.core.turns import Portion
from app.core.units import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    ProducerEpoch,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.image.image import ClusterImage, ImageDelta, PartitionImage, TopicImage
from app.metadata.log import layout
from app.metadata.log.numbered_log import LogTimings
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.manifest.manifest_listing import list_manifests
from app.metadata.membership.membership import Membership
from app.metadata.view.view import Listener
from app.objectstore.api import ObjectStore
from app.records.control import ControlType
from app.replication.partition import Partition, PartitionTable
from app.replication.roles import TRANSITIONS, Role, Transition, Wanted, wanted_by
from app.tiering.repair.rebuild import (
    LostMarker,
    RestorePlan,
    agree,
    apply_plan,
    check_manifest_is_there,
    disagreement,
    lost_beginning,
    lost_markers,
    plan_restore,
    take_beginning,
)
from app.tiering.repair.unnamed import check_nothing_is_unnamed
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.write_ahead.write_ahead import WriteAhead

SETTLED: Final = frozenset({Transition.STAY, Transition.RAISE})
"""Transitions that leave the role as it is: it is in line with the image."""
MANIFEST: Final = "reading the manifest of"
OPENING: Final = "opening"
"""Names of this work in log lines about faults."""
MANIFESTS_AT_ONCE: Final = 256
"""Manifests read at the same time: a thousand partitions take a quarter of a second at 50 ms a request."""
RETRY_S_MIN: Final = 0.5
RETRY_S_MAX: Final = 30.0
WAITED_FOR_MAX: Final = 1_000
"""Partitions of a topic whose logs are all created before the request that creates it is answered."""
LOGS_AT_ONCE: Final = 16
"""Logs created, or given a manifest, before the event loop serves other work. Each takes about 0.1 ms."""
BROUGHT_AT_ONCE: Final = 128
"""Changed partitions that are brought in line with an image before the event loop serves other work. Each takes some 20 µs, if it
has its log."""
OPENED_AT_ONCE: Final = 1024
"""Partitions of other brokers that are opened at the same time: those of one write-ahead log share its objects."""
REFILLS_AT_ONCE: Final = 8
"""Compacted topics' logs that are fetched from the object store at the same time. Each takes a chunk of memory, 4 MiB."""
LISTED_AT_ONCE: Final = 2_048
"""New partitions whose manifests are listed together."""
AGREE_TRIES_MAX: Final = 300
AGREE_PAUSE_S: Final = 0.1
CACHE_WRITE_S: Final = 5.0
"""How long changed manifests wait, so that they are written to the data directory together."""
LED_LOOK_S: Final = 0.05
"""Between two looks of a start whether this broker leads again …"""
LED_SOON_S: Final = 10.0
"""… in its first seconds, while the start waits for it …"""
LED_LOOK_LATE_S: Final = 2.0
"""… and later. A look at 10,000 partitions takes some 10 ms."""
OFFLINE_RETRY_S_MIN: Final = 5.0
OFFLINE_RETRY_S_MAX: Final = 120.0
"""Pause between two attempts to open offline partitions. Each attempt reads their manifests."""
TAKEN_OVER_MANY: Final = 16
"""With more partitions that were taken over at once, their producers have priority …"""
AFTER_TAKE_OVER_S: Final = 2.0
"""… for so long: reading a manifest takes some 0.2 ms of this loop."""
CATCH_UP_DELAY_S: Final = 1.0
"""Delay after a start, because clients have priority."""


class _Opened(NamedTuple):
    """The result of opening a partition."""

    plan: RestorePlan | None
    lost: list[LostMarker]


class Partitions:
    """The partitions of one broker. Belongs to its loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        membership: Membership,
        logs: LogManager,
        remote_log_manager: RemoteLogManager,
        store: ObjectStore,
        work: StoreWork,
        clock: Clock,
        rng: random.Random,
        copies: ManifestCopies,
        timings: LogTimings | None,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
    ) -> None:
        self._config = config
        self._cluster, self._registration = membership.view, membership.registration
        self._controller = membership.controller
        self._logs = logs
        self._tier = remote_log_manager
        self._store = store
        self._work = work
        self._clock = clock
        self._rng = rng
        self._copies = copies
        self._timings = timings
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._led: dict[UUID, tuple[str, int]] = {}
        """By topic id: name and number of partitions of every topic with a log. ``take_out`` looks for the logs by it."""
        self._unsettled = UnsettledPartitions()
        """The partitions that have work left."""
        self._unmade: dict[UUID, int] = {}
        """Topics that are not in line with the image, each with the first partition that may not be: there are many partitions, or
        many logs to create, or one could not be created."""
        self._left = BROUGHT_AT_ONCE
        """How many more partitions may be brought in line in this turn of the loop."""
        self._configs: dict[UUID, TopicConfig] = {}
        """By topic id: the settings that its logs have. Logs with the same settings share one object."""
        self._after: list[Listener] = []
        self._resigned: list[tuple[Partition, PartitionImage]] = []
        """Partitions that other brokers lead now, which was not logged yet."""
        self._tried: dict[UUID, asyncio.Future[None]] = {}
        """By topic id: done when all logs of the topic are created, or when the first attempt has failed."""
        self._wake_maker = asyncio.Event()
        self._wake = asyncio.Event()
        self._ends: ManifestEnds | None = None
        self._prepared: dict[TopicIdPartition, SegmentManifest] = {}
        """Manifests whose ends are known from the last stop."""
        self._listed: Mapping[TopicIdPartition, Sequence[str]] = {}
        """Keys of manifests, listed before the cluster log was read."""
        self.back: list[Back] = []
        """The recovered end offsets of tiered topics after a take-over; empty without a take-over."""
        self._told: frozenset[TopicIdPartition] = frozenset()
        """Partitions whose lost and recovered offsets the start has told after a take-over. ``until_led`` tells of the others."""
        self._broker_id = BrokerId(config.node_id)
        self.table = PartitionTable(self._broker_id, lambda: membership.view.image)
        self.table.make_missing = self._make_missing_now
        self._deleted = DeletedTopics(self.table, logs, self._detach)
        """The remaining logs of topics that were deleted."""
        self._started = False
        """Whether roles follow the image one by one. Before that ``take_over_all`` opens all partitions together."""
        self._opening: set[TopicIdPartition] = set()
        """Partitions with an attempt under way. There is one attempt at a time, also if the partition is named anew meanwhile."""
        self._wake_opener = asyncio.Event()
        self.views: TierViews | None = None
        """The views of the tier of followed partitions; None on a broker that is alone. Set before the first role is taken."""
        self.entries: ManifestEntries | None = None
        """Gets the entries that this broker writes to manifests, for followers; None on a broker that is alone."""
        self.new_write_ahead: Callable[[], WriteAhead] | None = None
        """Makes the journal of topics with ``firn.durability=object`` when it is needed."""
        self._write_ahead: WriteAhead | None = None
        self._refills = asyncio.Semaphore(REFILLS_AT_ONCE)
        self.high_watermarks: Mapping[TopicIdPartition, int] = {}
        """High watermarks of partitions with several replicas, as the last run has left them."""

    # --- starting ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Collect facts about the manifests while the cluster log and the local logs are read."""
        self._ends = await self._copies.take_ends()
        if self._ends is None:
            self._listed = await self.list_manifests(await self._copies.partitions())
            return
        for start in range(0, len(self._ends.ends), READ_AT_ONCE):
            some = self._ends.ends[start : start + READ_AT_ONCE]
            keys = [TopicIdPartition(TopicId(end.topic_id), end.partition) for end in some]
            for key, end, copy in zip(keys, some, await self._copies.read(keys), strict=True):
                manifest = self._manifest(key, end.leader_epoch)
                if await manifest.restore(copy, end.version):
                    self._prepared[key] = manifest

    async def take_over_all(
        self, *, clean: bool, new_directory: bool, differing: Collection[TopicPartition] = ()
    ) -> None:
        """Update the logs to the image, compare every led log with its manifest, and become leader of all partitions.

        ``clean``: the logs were closed in order. Otherwise records that clients have read may be lost, so every leader epoch
        rises, and clients notice (KIP-320). ``new_directory``: the data directory is new. ``differing``: logs whose files differ
        from the state that the clean stop left.

        If a partition cannot be opened, only this partition goes offline. The broker continues with the others, and retries later.

        Raises: StorageUnavailable, FencedError; ConfigError where the brokers' settings would make compacted topics of tiered ones:
        then no manifest was written, and no partition is led.
        """
        image = self._cluster.image
        since_s = loop_time_s()
        self._drop_foreign(image)
        # The state of a clean stop is believed only if that stop was the last of this node id. An older copy of the directory,
        # put back, is complete as well.
        clean = clean and self._follows_the_last_stop
        existing = {_key_of(log) for log in self._logs.logs()}
        never_had_records = await self._without_records(clean=clean)
        portion = Portion()
        for log in self._logs.logs():
            await portion.rest_if_spent()
            held = self.table.hold(log)
            of_image = image.partition(log.topic_id, log.partition)
            if of_image is not None and len(of_image.replicas) > 1:
                self.table.follow(held, self.high_watermarks.get(held.key, 0))
                self._view(held)
        for topic in image.topics_by_name.values():
            going_on: int | None = 0
            while going_on is not None:
                going_on = self._bring_in_line(topic, going_on, LOGS_AT_ONCE)
                await portion.rest_if_spent()
        if self.views is not None:
            await self.views.restore()
        manifests = self._known_manifests()
        believed = frozenset(map(_key_of, manifests))
        await self._load_manifests(manifests)
        self._check_tiered_topics_stay(image, manifests)
        foreign = [
            log
            for log in manifests
            if not self._is_ours(manifests[log])
            or not (_key_of(log) in existing or (never_had_records(log) and manifests[log].state.is_blank))
        ]
        # Offline partitions, too: when they are back, clients have to notice the records that a crash has taken from them.
        everything = [partition.log for partition in self._to_lead()]
        cut = [log for log in everything if log.topic_partition in differing]
        await self._bump(manifests, {*foreign, *cut} if clean else everything)
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        opened: dict[PartitionLog, _Opened] = {}

        async def check(log: PartitionLog, manifest: SegmentManifest) -> None:
            found = None
            async with limit:
                named = self._leader_epoch(log)
                try:
                    found = await self.open_log(
                        log,
                        manifest,
                        foreign=log in foreign,
                        since_s=since_s,
                        believed=_key_of(log) in believed,
                        is_wanted=lambda: self._is_to_lead(log, named),
                    )
                except CorruptionError as error:
                    self._go_offline(log, error)
                    return
                except FencedError:
                    if not image.level:
                        raise
            if found is None:
                # Another broker leads, perhaps only until now: the image will say so. If not, this broker tries again.
                partition = self.table.get(log.topic, log.partition)
                assert partition is not None
                self._unsettled.begin(Unsettled(partition, Stage.NAMED, loop_time_s()))
                return
            opened[log] = found
            self._join_tier(log, manifest)

        async with asyncio.TaskGroup() as group:
            for log, manifest in manifests.items():
                group.create_task(check(log, manifest))
        self._prepared, self._listed = {}, {}
        if new_directory:
            self._tell_what_is_lost(image, {log: manifests[log] for log in opened})
        restored = {log: one.plan for log, one in opened.items() if one.plan is not None}
        for log, plan in sorted(restored.items(), key=lambda one: (one[0].topic, one[0].partition)):
            self._tell_of_restored(log, plan)
        if clean:
            await self._bump(manifests, [log for log in restored if log not in foreign])
        for log in opened:
            partition = self.table.get(log.topic, log.partition)
            assert partition is not None
            self._lead(partition, self._leader_epoch(log))
            if partition.key in believed:
                self._unsettled.begin(Unsettled(partition, Stage.BELIEVED))
            await portion.rest_if_spent()
        if new_directory or self._registration.took_over:
            # Before markers are written: up to here the store has it.
            self._tell_what_is_back(opened)
            if image.level:
                self._told = frozenset(map(_key_of, opened))
        for log, one in opened.items():
            self._end_transactions(log, one.lost)
        await self._copies.note_led(self._cluster.identity.incarnation)
        self._started = True
        self._cluster.on_change(self._follow)
        self._controller.before_answering(self.followed)
        if image.level and (now := self._cluster.image) is not image:
            # Others lead since then, or lead no more: no later change tells of it.
            self._follow(now, ImageDelta.between(image, now))

    async def open_log(
        self,
        log: PartitionLog,
        manifest: SegmentManifest,
        *,
        foreign: bool,
        since_s: float,
        believed: bool = False,
        is_wanted: Callable[[], bool],
    ) -> _Opened | None:
        """Compare a log with its manifest before it is led. ``foreign``: the partition was last led with other local data.
        ``since_s``: footers of ended write-ahead logs that were read since then are new enough. ``believed``: the manifest is as
        the last stop has left it, so that it was checked before. ``is_wanted``: whether this broker is still to lead it in
        the same leader epoch.

        Returns: None if it is not wanted any more. Then nothing was written since: a seal would carry the epoch of the next leader,
        and would stop that one. Raises: StorageUnavailable, CorruptionError (the partition cannot be led; says why), FencedError.
        """
        image = self._cluster.image.partition(log.topic_id, log.partition)
        journaled = image is not None and image.is_journaled
        if not believed:
            await self._check_manifest_is_there(log, manifest, image if journaled else None, since_s)
        # Before the first write, so that lost entries can be put back at their numbers.
        if not believed and self._may_lack_records(log, manifest, foreign=foreign):
            await check_nothing_is_unnamed(self._store, manifest, f"{log.topic}-{log.partition}")
        if foreign or journaled:
            if not is_wanted():
                return None
            # The broker that wrote it with other local data may live and be about to finish a copy. The seal stops it.
            await manifest.seal(self._leader_epoch(log))
        if not is_wanted():
            return None
        await self._tier.settle(manifest)
        if not is_wanted():
            return None  # the log is a follower's again
        plan = await self._agree(log, manifest)
        if image is not None and journaled:
            from app.broker.write_ahead.restore import continue_log

            emptied = await continue_log(
                log,
                manifest,
                image,
                self._journal().sealed,
                self._work,
                since_s=since_s,
                now_ms=self._clock.now_ms,
                refilled=lambda: self._refilled(log, manifest),
            )
            plan = emptied or plan
        elif plan is not None and log.config.compacted and manifest.finished:
            plan = await self._refilled(
                log, manifest
            )  # it changes to object durability, and has lost its only disk (J40)
        lost = await lost_markers(log.producers.open_transactions, manifest, self._work)
        hole = lost_beginning(manifest)
        if hole is not None:
            self._log_line(
                f"{log.topic}-{log.partition} has lost offsets [{hole[0]}, {hole[1]}): no segment in the store covers them, and"
                f" reads of them fail. To give them up, delete the records before offset {hole[1]} (firn topic delete-records)"
            )
        if log.config.firn_durability is Durability.DISK and log.recovery_point < log.log_end_offset:
            # Recovered records may only be in the page cache yet, names of files included, and are about to be read.
            try:
                await log.flush()
            except StorageFull:
                self._log_line(f"{log.topic}-{log.partition} is synced, but the disk has no space for its indexes")
        return _Opened(plan, lost)

    async def _refilled(self, log: PartitionLog, manifest: SegmentManifest) -> RestorePlan:
        """Raises: as ``refill``."""
        from app.tiering.repair.refilling import refill

        directory = self._logs.log_directory
        async with self._refills:
            plan = await refill(
                log, manifest, self._work, fs=directory.fs, pool=directory.pool, now_ms=self._clock.now_ms
            )
        await self._logs.checkpoint()  # so the next start knows that no loss of power has made its gaps
        return plan

    def _may_lack_records(self, log: PartitionLog, manifest: SegmentManifest, *, foreign: bool) -> bool:
        """Whether records above the tiered end may be missing here. Then the store must be checked before the partition is led.

        Never if the local log continues from the tiered end. A manifest without any record was already checked.
        """
        if manifest.state.is_blank:
            return False
        above = max(manifest.tiered_end, manifest.log_start_offset, log.log_start_offset)
        return foreign or log.local_log_start_offset > above or disagreement(log, manifest) is not None

    def _tell_of_restored(self, log: PartitionLog, plan: RestorePlan) -> None:
        at_end = plan.next_offset == plan.tiered_end
        where = f"its tiered end {plan.tiered_end}" if at_end else f"its log start {plan.next_offset}"
        self._log_line(
            f"{log.topic}-{log.partition} continues at {where}: offsets from "
            f"{plan.log_start_offset} are in {plan.remote_segments} remote segments of {plan.remote_raw_bytes} bytes"
        )

    def _tell_what_is_lost(self, image: ClusterImage, manifests: Mapping[PartitionLog, SegmentManifest]) -> None:
        logs: dict[str, list[PartitionLog]] = {}
        for log in manifests:
            logs.setdefault(log.topic, []).append(log)
        for of_topic in logs.values():
            of_topic.sort(key=lambda log: log.partition)
        begun = [
            BegunAnew(
                name,
                self._cluster.effective_config(image.topics_by_name[name]),
                [int(log.partition) for log in of_topic],
                [int(log.partition) for log in of_topic if not manifests[log].finished],
            )
            for name, of_topic in sorted(logs.items())
        ]
        for line in lost_with_the_directory(self._config.data_dir, begun):
            self._log_line(line)

    def _tell_what_is_back(self, logs: Iterable[PartitionLog]) -> None:
        ends: dict[str, list[tuple[int, int]]] = {}
        for log in logs:
            if log.config.tiered:
                ends.setdefault(log.topic, []).append((int(log.partition), int(log.log_end_offset)))
        self.back = [Back(name, sorted(of_topic)) for name, of_topic in sorted(ends.items())]
        for line in back_from_the_store(self.back):
            self._log_line(line)

    def _journal(self) -> WriteAhead:
        if self._write_ahead is None:
            assert self.new_write_ahead is not None
            self._write_ahead = self.new_write_ahead()
        return self._write_ahead

    def _lead(self, partition: Partition, epoch: LeaderEpoch) -> None:
        """Take records and answer readers from now on. Raises: FencedError if its WAL is not the present one."""
        image = self._cluster.image.partition(partition.topic_id, partition.index)
        if image is not None and image.is_journaled:
            self._journal().lead(partition.log, image)
        self.table.lead(partition, epoch)

    async def start_at_tier(self, log: PartitionLog, is_wanted: Callable[[], bool]) -> None:
        """Empty the log of a follower, and let it go on at the tiered end, as the manifest says (T5), if ``is_wanted`` still holds
        when the store has been read. Raises: FirnError; then the log is as it was."""
        copy = None if self.views is None else self.views.copy_of(_key_of(log))
        manifest = await self.load_manifest(log, copy, None)
        plan = await plan_restore(manifest, self._work)
        if not is_wanted() or plan.next_offset <= log.log_end_offset:
            return
        apply_plan(log, plan)
        self._tell_of_restored(log, plan)

    # --- partitions that cannot be opened ------------------------------------------------------------------------

    def _go_offline(self, log: PartitionLog, error: CorruptionError) -> None:
        """Take a partition offline, with its files on the disk, until it can be opened."""
        key = _key_of(log)
        partition = self.table.get(log.topic, log.partition)
        assert partition is not None
        why = why_offline(key, error)
        self._logs.set_aside(log)
        one = self._unsettled.get(key)
        if one is None:
            self._unsettled.begin(Unsettled(partition, Stage.OFFLINE, loop_time_s()))
        else:
            self._unsettled.put_offline(one)
        self.table.put_offline(partition, why)
        self._log_line(f"{log.topic}-{log.partition} is offline, and the broker serves the other partitions: {why}")

    def _is_held(self, log: PartitionLog) -> bool:
        """Whether a log still belongs to its partition. It does not from the moment in which its topic is deleted."""
        partition = self.table.get(log.topic, log.partition)
        return partition is not None and partition.log is log

    async def _bring_back_offline(self) -> None:
        """Try to open offline partitions again, at growing intervals, because an operator may have repaired the store."""
        delay_s = OFFLINE_RETRY_S_MIN
        while True:
            await asyncio.sleep(delay_s)
            unopened = self._unsettled.of(Stage.NAMED, Stage.OFFLINE)
            delay_s = min(delay_s * 2, OFFLINE_RETRY_S_MAX) if unopened else OFFLINE_RETRY_S_MIN
            for key in unopened:
                await self.try_to_open(key)

    async def _open_named(self) -> None:
        """Open partitions that another broker led until now, as soon as the store allows it."""
        delay_s = RETRY_S_MIN
        limit = asyncio.Semaphore(OPENED_AT_ONCE)
        begun: set[TopicIdPartition] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake_opener.clear()
                named = {key: one for key, one in self._unsettled.of(Stage.NAMED).items() if key not in begun}
                if named:
                    # Partitions that are named later do not wait for these.
                    begun.update(named)
                    group.create_task(self._open_together(named, limit, begun))
                left = self._unsettled.count(Stage.NAMED) > 0
                delay_s = min(delay_s * 2, RETRY_S_MAX) if left else RETRY_S_MIN
                try:
                    async with asyncio.timeout(delay_s if left else None):
                        await self._wake_opener.wait()
                except TimeoutError:
                    continue

    async def _open_together(
        self, named: Mapping[TopicIdPartition, Unsettled], limit: asyncio.Semaphore, begun: set[TopicIdPartition]
    ) -> None:
        """Try once to open partitions that were named together: their manifests are listed together."""

        async def open_one(key: TopicIdPartition) -> None:
            async with limit:
                await self.try_to_open(key, listed.get(key))

        try:
            listed = await self.list_manifests(named) if len(named) > 1 else {}
            async with asyncio.TaskGroup() as group:
                for place, key in enumerate(named, 1):
                    group.create_task(open_one(key))
                    if place % LOGS_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            begun.difference_update(named)
        if any((self._to_open(key) or one) is not one for key, one in named.items()):
            self._wake_opener.set()  # named again meanwhile

    @property
    def opening(self) -> frozenset[TopicIdPartition]:
        """The partitions that this broker is named to lead, or is trying to open, and does not lead yet."""
        return frozenset(self._unsettled.of(Stage.NAMED, Stage.OFFLINE))

    def _to_open(self, key: TopicIdPartition) -> Unsettled | None:
        one = self._unsettled.get(key)
        return one if one is not None and one.stage in (Stage.NAMED, Stage.OFFLINE) else None

    async def until_led(self, *, new_directory: bool) -> None:
        """Wait until this broker is unfenced, and leads every partition that the image says it leads, or has found out that it
        cannot. For a broker that is alone and starts: it is not ready before. Tells the offsets that a take-over lost or recovered.
        """
        begun_s, before = loop_time_s(), self._cluster.image
        while True:
            if not await self._waits_to_lead():
                break
            await asyncio.sleep(LED_LOOK_S if loop_time_s() < begun_s + LED_SOON_S else LED_LOOK_LATE_S)
        if not new_directory and not self._registration.took_over:
            return
        told, self._told = self._told, frozenset()
        image, portion, untold = self._cluster.image, Portion(), False
        manifests: dict[PartitionLog, SegmentManifest] = {}
        for partition in self.table:
            await portion.rest_if_spent()
            if before.topic_by_id(partition.topic_id) is None:
                continue  # clients have made the topic since the start: it has lost nothing
            wanted = wanted_by(image.partition(partition.topic_id, partition.index), self._broker_id)
            manifest = self._tier.manifest_of(partition.key)
            if wanted is Wanted.LEADER and partition.role is Role.LEADER and manifest is not None:
                manifests[partition.log] = manifest
                untold = untold or partition.key not in told
        if not untold:
            return
        if new_directory:
            self._tell_what_is_lost(image, manifests)
        await portion.rest_if_spent()
        self._tell_what_is_back(manifests)

    async def _waits_to_lead(self) -> bool:
        image = self._cluster.image
        mine = image.brokers.get(self._broker_id)
        if mine is None or mine.fenced:
            return True
        portion = Portion()
        for topic in image.topics_by_name.values():
            for partition in topic.partitions:
                held = self.table.get(topic.name, partition.partition_index)
                if partition.leader == self._broker_id and (held is None or held.role is Role.FOLLOWER):
                    return True
            await portion.rest_if_spent()
        return False

    async def try_to_open(self, key: TopicIdPartition, listed: Sequence[str] | None = None) -> bool:
        """Try to open a partition that is not led yet. ``listed``: the keys of its manifest, listed since it was named.

        Returns: whether it is led now. Raises: FencedError.
        """
        one = self._to_open(key)
        if one is None or key in self._opening:
            return one is None
        partition = one.partition
        log = partition.log
        named = self._leader_epoch(log)
        if one.named != named:
            # It was named once more, and followed no image in between: others may have led it meanwhile.
            one.named, one.since_s = named, loop_time_s()
        self._opening.add(key)
        try:
            manifest = await self.load_manifest(log, None, listed)
            await self._bump_once(one, manifest)
            if not self._cluster.image.level:
                named = self._leader_epoch(log)  # raised just now
            if one.was_in_sync:
                self._check_in_sync_log(log, manifest)
            opened = await self.open_log(
                log,
                manifest,
                foreign=True,
                since_s=one.since_s,
                is_wanted=lambda: self._unsettled.holds(one) and self._is_to_lead(log, named),
            )
        except FencedError:
            if not self._cluster.image.level:
                raise
            return False  # a leader of a higher epoch has sealed it: the image will say so
        except CorruptionError as error:
            if self._unsettled.holds(one) and self._is_held(log):
                self._tell_unopened(one, error)
            return False
        except StorageUnavailable:
            return False  # The store does not respond. Another part reports it, and the next attempt may succeed.
        except FirnError as error:
            self._faults.met_error(OPENING, f"{log.topic}-{log.partition}", error)
            return False
        finally:
            self._opening.discard(key)
        topic = self._cluster.image.topic_by_id(key.topic_id)
        if opened is None or not self._unsettled.holds(one) or topic is None or self._leader_epoch(log) != named:
            self._wake_opener.set()  # it may have been named once more
            return False  # It was deleted meanwhile, or another broker has led it since.
        if one.stage is Stage.OFFLINE:
            self._logs.bring_back(log)
        if opened.plan is not None:
            self._tell_of_restored(log, opened.plan)
        config = self._cluster.effective_config(topic)
        if log.config != config:
            log.update_config(config)
        try:
            self._lead(partition, self._leader_epoch(log))
        except FencedError:
            return False  # named again meanwhile, or not any more: the image will say so
        self._unsettled.settle(key)
        self._end_transactions(log, opened.lost)
        self._join_tier(log, manifest)
        self._log_line(f"{log.topic}-{log.partition} is led again")
        return True

    def _tell_unopened(self, one: Unsettled, error: CorruptionError) -> None:
        """A partition still cannot be opened. Logs the reason if it is new."""
        partition = one.partition
        if one.stage is not Stage.OFFLINE:
            self._go_offline(partition.log, error)
            return
        why = why_offline(partition.key, error)
        if why != partition.why_offline:
            self.table.put_offline(partition, why)
            self._log_line(f"{partition.topic}-{partition.index} is still offline: {why}")

    async def _bump_once(self, one: Unsettled, manifest: SegmentManifest) -> None:
        """Raise the leader epoch of an unopened partition above all known epochs, but not with every attempt."""
        if self._cluster.image.level:
            return  # the entry that named this leader has raised it (E2)
        log = one.partition.log
        known = [epoch for epoch, _ in manifest.state.leader_epochs()]
        known += [entry.epoch for entry in log.leader_epochs()]
        highest = max(known, default=-1)
        if one.bumped_above is None or highest > one.bumped_above:
            await self._bump({log: manifest}, [log])
            one.bumped_above = highest

    async def _check_manifest_is_there(
        self,
        log: PartitionLog,
        manifest: SegmentManifest,
        journaled: PartitionImage | None = None,
        since_s: float = 0.0,
    ) -> None:
        """Refuse to lead a partition whose manifest was lost. ``journaled``: the image of a partition with a write-ahead log.

        Raises: CorruptionError, StorageUnavailable.
        """
        reaches_back = log.log_end_offset > 0 and log.local_log_start_offset == log.log_start_offset
        if reaches_back:
            return
        if journaled is not None and manifest.state.is_blank:
            from app.broker.write_ahead.restore import has_first_record

            if await has_first_record(journaled, _key_of(log), self._journal().sealed, since_s):
                return
        try:
            await check_manifest_is_there(manifest)
        except CorruptionError as error:
            raise CorruptionError(f"{log.topic}-{log.partition} cannot be led: {clause(error)}.") from error

    def _end_transactions(self, log: PartitionLog, lost: Iterable[LostMarker]) -> None:
        """Write the markers of decided transactions that the log has lost. Raises: StorageUnavailable."""
        try:
            for producer_id, aborted in lost:
                entry = log.producers.entries[producer_id]
                log.append_control(
                    ControlType.ABORT if aborted else ControlType.COMMIT,
                    producer_id=producer_id,
                    producer_epoch=ProducerEpoch(entry.epoch),
                    coordinator_epoch=entry.coordinator_epoch,
                    now_ms=self._clock.now_ms(),
                )
            if log.config.firn_durability is Durability.DISK:
                log.request_checkpoint()  # as soon as a task can sync it
        except StorageFull as error:
            # Readers at read_committed wait, as they would for room; the next start tries again.
            self._log_line(f"transactions of {log.topic}-{log.partition} lost their markers and stay open: {error}")

    async def _agree(self, log: PartitionLog, manifest: SegmentManifest) -> RestorePlan | None:
        """Call ``rebuild.agree`` after the sync of recovered records. Raises: as ``rebuild.agree``, StorageUnavailable."""
        for _ in range(AGREE_TRIES_MAX):
            try:
                return await agree(log, manifest, self._work)
            except ConflictError:
                # A log is not emptied while it is being synced. There are no appends yet, so the sync ends.
                await asyncio.sleep(AGREE_PAUSE_S)
        raise StorageUnavailable(f"{log.topic}-{log.partition} is still being synced.")

    def _check_tiered_topics_stay(self, image: ClusterImage, manifests: Mapping[PartitionLog, SegmentManifest]) -> None:
        """Refuse settings at the start that would also be refused as a change while brokers run. Raises: ConfigError."""
        tiered = {
            log.topic
            for log, manifest in manifests.items()
            if log.config.compacted
            and not log.config.tiered
            and not log.config.remote_log_delete_on_disable
            and (manifest.finished or manifest.state.pending_copies())
            and (topic := image.topics_by_name.get(log.topic)) is not None
            and "cleanup.policy" not in topic.configs
        }
        if tiered:
            raise ConfigError(
                f"log.cleanup.policy=compact would turn topics with segments in the object store ({len(tiered)}, {min(tiered)} "
                "among them) into compacted topics, which are not tiered. Start the broker with log.cleanup.policy=delete, set "
                "cleanup.policy=delete on these topics, and then start the broker with log.cleanup.policy=compact."
            )

    async def _load_manifests(self, manifests: dict[PartitionLog, SegmentManifest]) -> None:
        """Read the manifest of every led log that ``manifests`` lacks, some at a time, and add it there. A partition with a damaged
        manifest goes offline.

        Raises: StorageUnavailable.
        """
        logs = [partition.log for partition in self._to_lead() if partition.log not in manifests]
        # After a take-over, a former broker of this node id may have written manifests as leader since that LIST.
        listed = {} if self._registration.took_over else dict(self._listed)
        listed |= await self.list_manifests(key for key in map(_key_of, logs) if key not in listed)
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE // READ_AT_ONCE)
        one_thread = asyncio.Lock()  # of many, each would wait for the interpreter

        async def load_one(log: PartitionLog, copy: bytes | None) -> SegmentManifest | None:
            try:
                return await self.load_manifest(log, copy, listed.get(_key_of(log)))
            except CorruptionError as error:
                self._go_offline(log, error)
                return None

        async def load(some: Sequence[PartitionLog]) -> None:
            async with limit:
                async with one_thread:
                    copies = await self._copies.read([_key_of(log) for log in some])
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(load_one(log, copy)) for log, copy in zip(some, copies, strict=True)]
            found = [(log, task.result()) for log, task in zip(some, tasks, strict=True)]
            manifests.update((log, manifest) for log, manifest in found if manifest is not None)

        async with asyncio.TaskGroup() as group:
            for start in range(0, len(logs), READ_AT_ONCE):
                group.create_task(load(logs[start : start + READ_AT_ONCE]))

    def _known_manifests(self) -> dict[PartitionLog, SegmentManifest]:
        """Manifests that are unchanged since the last stop: this broker was the last to start with this node id, and led them
        until then."""
        if self._ends is None or not self._follows_the_last_stop:
            return {}
        epochs = {(end.topic_id, end.partition): end.leader_epoch for end in self._ends.ends}
        return {
            log: manifest
            for log in (partition.log for partition in self._to_lead())
            if (manifest := self._prepared.get(_key_of(log))) is not None
            and epochs[_key_of(log)] == self._leader_epoch(log)
        }

    @property
    def _follows_the_last_stop(self) -> bool:
        """Whether the last start of this node id was in this data directory, and has stopped in order."""
        return self._ends is not None and self._ends.incarnation == self._registration.predecessor

    async def _without_records(self, *, clean: bool) -> Callable[[PartitionLog], bool]:
        """Tells of a log without files whether it never had any, while this data directory's broker led it.

        After a clean stop its list says so. After any other stop everything is led anew under higher epochs; then it is enough that
        the last start of this node id was here and led everything, so that no other broker may still be about to write.
        """
        if clean:
            assert self._ends is not None
            epochs = {(one.topic_id, one.partition): one.leader_epoch for one in self._ends.empty}
            return lambda log: epochs.get((log.topic_id, log.partition)) == self._leader_epoch(log)
        predecessor = self._registration.predecessor
        continues = predecessor is not None and await self._copies.led_by() == predecessor.bytes
        return lambda log: continues

    def _is_ours(self, manifest: SegmentManifest) -> bool:
        """Whether this data directory's broker was the last to write it."""
        identity = self._cluster.identity
        return not manifest.sealed_by or manifest.sealed_by.startswith(f"{identity.broker_id}/{identity.directory_id}/")

    async def _bump(self, manifests: Mapping[PartitionLog, SegmentManifest], logs: Iterable[PartitionLog]) -> None:
        """Raise the leader epochs of ``logs`` above all known epochs. Raises: StorageUnavailable, FencedError."""
        above: dict[TopicIdPartition, int] = {}
        for log in logs:
            manifest = manifests.get(log)
            known = [epoch for epoch, _ in manifest.state.leader_epochs()] if manifest is not None else []
            known += [entry.epoch for entry in log.leader_epochs()]
            above[TopicIdPartition(log.topic_id, log.partition)] = max(known, default=-1)
        if above:
            await self._controller.bump_leader_epochs(above, above=above)

    def _leader_epoch(self, log: PartitionLog) -> LeaderEpoch:
        partition = self._cluster.image.partition(log.topic_id, log.partition)
        return log.leader_epoch if partition is None else partition.leader_epoch

    def _is_to_lead(self, log: PartitionLog, epoch: LeaderEpoch) -> bool:
        """Whether the image names this broker as leader in this leader epoch."""
        image = self._cluster.image.partition(log.topic_id, log.partition)
        return image is not None and image.leader_epoch == epoch and wanted_by(image, self._broker_id) is Wanted.LEADER

    def _drop_foreign(self, image: ClusterImage) -> None:
        """Delete logs of topics that were deleted, or deleted and created again. Raises: StorageUnavailable."""
        for log in self._logs.logs():
            topic = image.topic(log.topic)
            if topic is None or int(log.partition) >= len(topic.partitions):
                self._log_line(f"{log.topic}-{log.partition} is no longer in the cluster; its local log is deleted")
                self._logs.delete(log.topic, log.partition)
            elif log.topic_id == NO_TOPIC_ID and log.recovery_point > log.segments()[0].base_offset:
                log.topic_id = topic.topic_id  # something was synced, so the file was there and is damaged
            elif log.topic_id == NO_TOPIC_ID:
                # Nothing was ever made durable here, and the files may be of an older topic of that name.
                self._log_line(f"{log.topic}-{log.partition} has no topic id; its local log is deleted")
                self._logs.delete(log.topic, log.partition)
            elif log.topic_id != topic.topic_id:
                self._log_line(
                    f"{log.topic}-{log.partition} belongs to an older topic with this name; its local log is deleted"
                )
                self._logs.delete(log.topic, log.partition)

    def _to_lead(self) -> list[Partition]:
        """The partitions with a local log that this broker leads by the image, opened or not."""
        image = self._cluster.image
        return [
            partition
            for partition in self.table
            if wanted_by(image.partition(partition.topic_id, partition.index), self._broker_id) is Wanted.LEADER
        ]

    def _bring_in_line(self, topic: TopicImage, first: int, at_most: int) -> int | None:
        """Give the partitions of a topic from ``first`` on the roles and settings of the image. Create ``at_most`` logs now.

        Partitions that are in line already cost next to nothing. The number of others is limited to the rest of this turn's share.
        There are two exceptions: the start, and internal topics, whose coordinators follow the image in the same turn (G1).

        Returns: the partition at which to continue; None if all are in line. Raises: FirnError; some logs may be created.
        """
        config = self._config_of(topic)
        self._led[topic.topic_id] = (topic.name, len(topic.partitions))
        in_turns = self._started and not topic.is_internal
        table, name = self.table, topic.name
        for place in range(first, len(topic.partitions)):
            image = topic.partitions[place]
            partition = table.get(name, image.partition_index)
            if partition is not None:
                if partition.followed is image and partition.log.config is config:
                    continue
            elif self._broker_id not in image.replicas and image.leader != self._broker_id:
                continue
            if in_turns and self._left <= 0:
                return place
            self._left -= 1
            made = self.bring_one(topic, image, config, may_make=at_most > 0)
            if made is None:
                return place
            at_most -= made
        return None

    def _config_of(self, topic: TopicImage) -> TopicConfig:
        config = self._cluster.effective_config(topic)
        known = self._configs.get(topic.topic_id)
        if known == config:
            return known
        self._configs[topic.topic_id] = config
        return config

    def bring_one(
        self, topic: TopicImage, image: PartitionImage, config: TopicConfig, *, may_make: bool
    ) -> bool | None:
        """Give one partition the role and settings of the image. Returns: whether its log was created; None if it is missing, and
        ``may_make`` is False. Raises: FirnError."""
        made = False
        partition = self.table.get(topic.name, image.partition_index)
        if partition is not None and partition.topic_id != topic.topic_id:
            self._deleted.take_out_older(partition)
            self._unmade.setdefault(partition.topic_id, 0)
            self._wake_maker.set()
            partition = None
        if partition is None:
            self._deleted.delete_older(topic.name, image.partition_index)
        local = NO_LOG
        if partition is not None:
            local = LocalState(
                self._unsettled.stage_of(partition),
                partition.log.leader_epoch,
                self._broker_id in partition.in_sync or self._broker_id in partition.eligible,
                partition.log.start_is_assumed,
            )
            self._configure(partition, config)  # later commits follow the new min.insync.replicas (R2)
            self.table.note(partition, image)
        several = self._cluster.image.level > 0
        match next_step(local, image, self._broker_id, started=self._started, several=several):
            case Step.STAY:
                pass
            case Step.FOLLOW | Step.MAKE | Step.MAKE_AND_LEAD | Step.MAKE_AND_OPEN as step:
                if not may_make:
                    return None
                made = True
                partition = self._make(topic, image, config, step)
            case step if partition is not None:
                if step is Step.DROP:
                    self._drop_replica(partition)
                    return False
                self._change_role(partition, image, step)
        if partition is None:
            return made
        if self._configure(partition, config):
            self.table.note(partition, image)  # the settings say how many have to be in sync
        if self._started and TRANSITIONS[partition.role, wanted_by(image, self._broker_id)] in SETTLED:
            partition.followed = image
        return made

    def _make(self, topic: TopicImage, image: PartitionImage, config: TopicConfig, step: Step) -> Partition:
        """Create the log of a partition. Raises: FirnError."""
        log = self._logs.create(topic.name, topic.topic_id, image.partition_index, config)
        partition = self.table.hold(log)
        self.table.note(partition, image)
        if step is Step.MAKE_AND_LEAD:
            self._lead(partition, image.leader_epoch)
            self._read_later(partition, Stage.UNREAD)
        elif step is not Step.MAKE:
            self.table.follow(partition, 0)
            self._view(partition)
            if step is Step.MAKE_AND_OPEN:
                self._open_later(partition, image)
        return partition

    def _change_role(self, partition: Partition, image: PartitionImage, step: Step) -> None:
        """Carry out the step of a partition that has a log and keeps it."""
        match step:
            case Step.UNNAME:
                self._unsettled.settle(partition.key)
            case Step.LOOK_AGAIN:
                one = self._unsettled.get(partition.key)
                assert one is not None
                one.since_s = loop_time_s()
                self._wake_opener.set()  # the opener reads its manifest, may change its log, and opens it
            case Step.LEAD:
                # It has all committed records, also if the store has others: no client waits for the store (T2).
                self.table.lead(partition, image.leader_epoch)
                self._read_later(partition, Stage.UNCHECKED)
            case Step.OPEN | Step.OPEN_IN_SYNC:
                if partition.role is Role.OFFLINE:
                    self._resign(partition, image)  # its leader contradicted it, and it is named (A3)
                self._open_later(partition, image, in_sync=step is Step.OPEN_IN_SYNC)
            case Step.REOPEN:
                # Between the two its write-ahead log has ended: its acknowledged records have to be read first (J24).
                self._resign(partition, image)
                self._open_later(partition, image)
            case Step.RAISE:
                if self._write_ahead is not None and partition.log.journaled:
                    self._write_ahead.resign(partition.log)
                    partition.log.leave_journal(partition.lost_leadership())  # the rule has changed (J41)
                self.table.lead(partition, image.leader_epoch)
                manifest = self._tier.manifest_of(partition.key)
                if self._cluster.image.level and manifest is not None:
                    manifest.raise_epoch(image.leader_epoch)
            case Step.RESIGN:
                self._resign(partition, image)
            case _:
                raise AssertionError(f"{step} is no change of role.")

    def _open_later(self, partition: Partition, image: PartitionImage, *, in_sync: bool = False) -> None:
        """The image names this broker as leader of a log that it follows: the opener opens it."""
        self._unsettled.begin(Unsettled(partition, Stage.NAMED, loop_time_s(), image.leader_epoch, in_sync))
        self._wake_opener.set()

    def _read_later(self, partition: Partition, stage: Stage) -> None:
        """This broker leads a partition whose manifest it has not read."""
        self._unsettled.begin(Unsettled(partition, stage))
        self._wake.set()

    @staticmethod
    def _configure(partition: Partition, config: TopicConfig) -> bool:
        """Give a log its settings. Returns: whether they have changed."""
        if partition.role is Role.OFFLINE or partition.log.config is config:
            return False
        changed = partition.log.config != config
        if changed:
            partition.log.update_config(config)
        partition.log.config = config  # logs with the same settings share one object
        return changed

    def _make_missing_now(self, name: str, index: int) -> None:
        """Bring a partition of a large topic in line before its turn, because a request needs it: make its log, or lead it."""
        if not self._unmade:
            return
        topic = self._cluster.image.topics_by_name.get(name)
        if topic is None or topic.topic_id not in self._unmade or not 0 <= index < len(topic.partitions):
            return
        image = topic.partitions[index]
        partition = self.table.get(name, index)
        if partition is not None and (partition.followed is image or not self._started):
            return
        self._led[topic.topic_id] = (name, len(topic.partitions))  # its turn may never come, if it is deleted
        try:
            self.bring_one(topic, image, self._config_of(topic), may_make=True)
        except FirnError as error:
            self._tell_not_made(name, error)

    def _tell_not_made(self, subject: str, error: FirnError) -> None:
        self._faults.met(
            "making logs of",
            subject,
            f"cannot create, change or delete logs of topic {subject}, will try again: {error}",
        )

    def _resign(self, partition: Partition, image: PartitionImage) -> None:
        """Another broker leads: give up the tier and the coordinators' records, and keep the log."""
        key = partition.key
        self._unsettled.settle(key)
        led_by = self._tier.manifest_of(key)
        self._tier.detach(*key)
        if partition.role is Role.OFFLINE:
            self._logs.bring_back(partition.log)
        self.table.resign(partition)
        if self._write_ahead is not None:
            self._write_ahead.resign(partition.log)
        self._view(partition, led_by)
        if not partition.commits_alone:
            self.table.follow(partition, partition.log.high_watermark)
        self._resigned.append((partition, image))

    def _tell_resigned(self) -> None:
        """Log which partitions other brokers lead now: in one line, since it may be thousands."""
        resigned, self._resigned = self._resigned, []
        if resigned:
            self._log_line(resigned_line(resigned))

    def _drop_replica(self, partition: Partition) -> None:
        """This broker is no replica of the partition any more: delete its log. Raises: StorageUnavailable."""
        self._forget(partition.key)
        if partition.leads:
            self.table.resign(partition)
        if self._write_ahead is not None:
            self._write_ahead.resign(partition.log)
        self._logs.delete(partition.topic, partition.index)
        self.table.drop(partition)
        self._log_line(
            f"{partition.topic}-{partition.index}: this broker is no replica any more, its local log is deleted"
        )

    # --- following the image -------------------------------------------------------------------------------------

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Bring the logs in line with a new image. ``run`` retries the partitions that fail."""
        changed = {*delta.topics, *image.topics_by_id} if delta.broker_configs else delta.topics
        deleted: list[UUID] = []
        internal: list[UUID] = []
        others: list[UUID] = []
        for topic_id in changed:
            topic = image.topic_by_id(topic_id)
            (deleted if topic is None else internal if topic.is_internal else others).append(topic_id)
        # Deleted topics first: one delta may delete a topic and make another of its name.
        for topic_id in deleted:
            self.take_out(topic_id)
        self._left, portion = BROUGHT_AT_ONCE, Portion()
        for topic_id in internal:
            self._settle(image, topic_id)
        for topic_id in (*deleted, *others):
            if self._left > 0 and not portion.spent():
                self._settle(image, topic_id)
            else:
                self._unmade[topic_id] = 0
                self._may_be_waited_for(topic_id, image.topic_by_id(topic_id))
        if self._unmade:
            self._wake_maker.set()
        else:
            self._tell_resigned()
        if delta.broker_configs or delta.topics:
            self._tier.kick(None if delta.broker_configs else delta.topics)

    def on_followed(self, listener: Listener) -> None:
        """Call ``listener`` after each change of the image, when the roles have followed it. It is called once more for a topic if
        some of its partitions have followed later. It must not wait."""
        self._after.append(listener)
        self._cluster.on_change(listener)

    def has_followed(self, topic_id: UUID) -> bool:
        """Whether all logs of the topic here have the settings of the newest image. True if there are none."""
        return topic_id not in self._unmade

    def epoch_of(self, key: TopicIdPartition) -> LeaderEpoch | None:
        """The leader epoch in which this broker leads a partition; None if it does not."""
        topic = self._cluster.image.topic_by_id(key.topic_id)
        partition = None if topic is None else self.table.get(topic.name, key.partition)
        if partition is None or partition.topic_id != key.topic_id or not partition.leads:
            return None
        return partition.leader_epoch

    def _tell_after(self, topic_ids: Collection[UUID]) -> None:
        delta = ImageDelta(frozenset(topic_ids), brokers=False, broker_configs=False, deleting=False)
        for listener in self._after:
            listener(self._cluster.image, delta)

    async def followed(self, topic_id: UUID) -> None:
        """Wait until all logs of a created or changed topic exist, or until creating one has failed.

        There is no wait for a topic with more than ``WAITED_FOR_MAX`` partitions. Its logs are created in the background, and each
        at once when a request needs it. Kafka waits for no log at all.
        """
        tried = self._tried.get(topic_id)
        if tried is not None:
            await asyncio.shield(tried)

    def _settle(self, image: ClusterImage, topic_id: UUID, first: int = 0) -> bool:
        """Create some missing logs of a topic, from partition ``first`` on. Returns: whether this attempt is over: the topic is
        complete, or a log could not be created."""
        topic = image.topic_by_id(topic_id)
        going_on, failed = None, False
        try:
            if topic is None:
                going_on = None if self._deleted.delete_some(topic_id, self._takes_a_share) else 0
            else:
                going_on = self._bring_in_line(topic, first, LOGS_AT_ONCE)
        except FirnError as error:
            subject = str(topic_id) if topic is None else topic.name
            self._tell_not_made(subject, error)
            going_on, failed = 0, True
        self._left -= 1  # for its settings
        made = going_on is None
        if going_on is None:
            self._unmade.pop(topic_id, None)
        else:
            self._unmade[topic_id] = going_on
        if made or failed:
            tried = self._tried.pop(topic_id, None)
            if tried is not None:
                tried.set_result(None)
        else:
            self._may_be_waited_for(topic_id, topic)
        return made or failed

    def _may_be_waited_for(self, topic_id: UUID, topic: TopicImage | None) -> None:
        if topic_id not in self._tried and topic is not None and len(topic.partitions) <= WAITED_FOR_MAX:
            self._tried[topic_id] = asyncio.get_running_loop().create_future()

    # --- deleted topics ------------------------------------------------------------------------------------------

    def take_out(self, topic_id: UUID) -> None:
        """Take the partitions of a deleted topic out of the table. ``delete_some`` does the rest, which takes longer."""
        name, count = self._led.pop(topic_id, ("", 0))
        self._configs.pop(topic_id, None)
        self._deleted.take_out(topic_id, name, count)

    def _takes_a_share(self) -> bool:
        """Whether one more partition may be brought in line in this turn of the loop. It counts."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def _detach(self, partition: Partition) -> None:
        """Remove a partition of a deleted topic from all other parts of the broker. Its log stays. A repeated call does nothing."""
        self._forget(partition.key)
        if self._write_ahead is not None:
            self._write_ahead.gone(partition.key)

    def _forget(self, key: TopicIdPartition) -> None:
        """Give up all waiting work for a partition, its copies and its view."""
        self._unsettled.settle(key)
        self._copies.forget(key)
        self._tier.detach(*key)
        self._forget_view(key)

    async def wait_detached(self, topic_id: UUID) -> None:
        """Wait until this broker begins to write no more objects of a deleted topic."""
        await self._deleted.wait_detached(topic_id)

    async def run(self) -> None:
        """Create missing logs, read manifests of new partitions, and write changed ones to disk, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._make_missing())
                group.create_task(self._attach_and_cache())
                group.create_task(self._catch_up())
                group.create_task(self._bring_back_offline())
                group.create_task(self._open_named())
        finally:
            for tried in self._tried.values():
                tried.set_result(None)
            self._tried.clear()

    async def _make_missing(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            self._wake_maker.clear()
            over: list[UUID] = []
            for topic_id in tuple(self._unmade):
                while True:
                    if self._left <= 0:
                        over = await self.give_way(over)
                    if self._settle(self._cluster.image, topic_id, self._unmade.get(topic_id, 0)):
                        break
                    over = await self.give_way(over)
                over.append(topic_id)
            if over:
                self._tell_after(over)
            self._tell_resigned()
            delay_s = min(delay_s * 2, RETRY_S_MAX) if self._unmade else RETRY_S_MIN
            try:
                async with asyncio.timeout(delay_s if self._unmade else None):
                    await self._wake_maker.wait()
            except TimeoutError:
                continue

    async def give_way(self, over: Sequence[UUID]) -> list[UUID]:
        """Tell of the topics whose turn is over, and let others have the loop. Returns: no topics."""
        if over:
            self._tell_after(over)
        await asyncio.sleep(0)
        self._left = BROUGHT_AT_ONCE
        return []

    async def _attach_and_cache(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            if self._unsettled.count(Stage.UNCHECKED) > TAKEN_OVER_MANY:
                # Producers wait for these partitions, but no client waits for their manifests: readers have the views.
                await asyncio.sleep(AFTER_TAKE_OVER_S)
            # A partition that comes while this round waits is not in the round. It wakes the next one.
            self._wake.clear()
            await self._attach_new()
            delay_s = min(delay_s * 2, RETRY_S_MAX) if self._waits_for_manifests() else RETRY_S_MIN
            await self.write_copies()
            try:
                async with asyncio.timeout(delay_s if self._waits_for_manifests() else CACHE_WRITE_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _waits_for_manifests(self) -> bool:
        return self._unsettled.count(Stage.UNCHECKED, Stage.UNREAD) > 0

    async def _attach_new(self) -> None:
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        new = tuple(self._unsettled.of(Stage.UNCHECKED, Stage.UNREAD).values())
        for start in range(0, len(new), LISTED_AT_ONCE):
            await self._attach(new[start : start + LISTED_AT_ONCE], limit)

    async def _attach(self, some: Sequence[Unsettled], limit: asyncio.Semaphore) -> None:
        listed = await self.list_manifests(one.partition.key for one in some)

        async def attach(one: Unsettled) -> None:
            if not self._unsettled.holds(one):
                return  # Deleted meanwhile, or led by another broker, perhaps only until now: then it has a new record.
            key, unchecked = one.partition.key, one.stage is Stage.UNCHECKED
            topic = self._cluster.image.topic_by_id(key.topic_id)
            log = None if topic is None else self.table.led_log(topic.name, key.partition)
            if log is None:
                self._unsettled.settle(key)
                return
            try:
                async with limit:
                    copy = None if self.views is None else self.views.copy_of(key)
                    manifest = await self.load_manifest(log, copy, listed.get(key))
                    if unchecked and self._unsettled.holds(one):
                        await self._check_manifest_is_there(log, manifest)
                        if manifest.state.pending_copies() and self._unsettled.holds(one):
                            # An earlier leader may be about to finish them. Else the first change seals (T2).
                            await manifest.seal(self._leader_epoch(log))
                            if self._unsettled.holds(one):
                                await self._tier.settle(manifest)
                        self._check_in_sync_log(log, manifest)
            except FencedError:
                if not self._cluster.image.level:
                    raise
                return  # a leader of a higher epoch has sealed it: the image says so by now, or will
            except CorruptionError as error:
                if not self._is_held(log):
                    return  # its topic was deleted meanwhile
                if unchecked:
                    if self._unsettled.holds(one):
                        self._go_offline(log, error)
                    return
                self._tell_unread(log, error)
                return
            except FirnError as error:
                self._tell_unread(log, error)
                return
            # The topic may have been deleted meanwhile, or another broker leads: then the record is gone.
            if self._unsettled.holds(one):
                self._unsettled.settle(key)
                self._join_tier(log, manifest)

        async with asyncio.TaskGroup() as group:
            for place, one in enumerate(some, 1):
                group.create_task(attach(one))
                if place % LOGS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _check_in_sync_log(self, log: PartitionLog, manifest: SegmentManifest) -> None:
        """Hold the log of a leader that was in sync against its manifest, after it has begun to lead (T2, T10).

        Raises: CorruptionError if they disagree, which only the loss of acknowledged records explains; StorageUnavailable.
        """
        if (why := disagreement(log, manifest)) is not None:
            raise CorruptionError(
                f"{log.topic}-{log.partition} was in sync, but lacks records of the store: {clause(why)}."
            )
        take_beginning(log, manifest)

    def _join_tier(self, log: PartitionLog, manifest: SegmentManifest) -> None:
        """This broker leads the partition, and writes its manifest from now on."""
        self._forget_view(_key_of(log))
        self._hand_on(manifest)
        self._tier.attach(log, manifest)

    def _view(self, partition: Partition, led_by: SegmentManifest | None = None) -> None:
        """This broker follows the partition, and learns of its tier from the leader."""
        if self.views is not None:
            self.views.begin(partition, led_by)

    def _forget_view(self, key: TopicIdPartition) -> None:
        if self.views is not None:
            self.views.forget(key)

    def _tell_unread(self, log: PartitionLog, error: FirnError) -> None:
        sentence = f"cannot read the manifest of {log.topic}-{log.partition}, will try again: {error}"
        self._faults.met(MANIFEST, str(log.topic_partition), sentence)

    async def _catch_up(self) -> None:
        """Check the ends of manifests that were not checked yet: a job may have written while no broker ran."""
        delay_s = CATCH_UP_DELAY_S
        while self._unsettled.count(Stage.BELIEVED):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)
            believed = self._unsettled.of(Stage.BELIEVED)
            listed = await self.list_manifests(tuple(believed))
            for key, keys in listed.items():
                if not self._unsettled.holds(believed[key]):
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
                    if self._unsettled.holds(believed[key]):
                        self._unsettled.settle(key)  # the image will say who leads
                except FirnError as error:
                    prefix = layout.manifest_prefix(*key)
                    sentence = f"cannot read new entries of {prefix}, will try again: {error}"
                    self._faults.met(MANIFEST, prefix, sentence)
                else:
                    if self._unsettled.holds(believed[key]):
                        self._unsettled.settle(key)

    async def _refresh(self, manifest: SegmentManifest, one: Unsettled) -> None:
        """Read new entries, and seal, so that their writer cannot add more, while this broker leads. Raises: FirnError."""
        await manifest.refresh()
        if not self._is_ours(manifest) and self._unsettled.holds(one):
            partition = self._cluster.image.partition(manifest.topic_id, manifest.partition)
            if partition is not None:
                await manifest.seal(partition.leader_epoch)

    # --- manifests -----------------------------------------------------------------------------------------------

    async def list_manifests(self, keys: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, Sequence[str]]:
        timeout_s = (self._timings or LogTimings()).attempt_timeout_s
        return await list_manifests(self._store, keys, page_timeout_s=timeout_s)

    async def load_manifest(
        self, log: PartitionLog, copy: bytes | None, listed: Sequence[str] | None
    ) -> SegmentManifest:
        """Read a partition's manifest: from the data directory's ``copy``, if there is one, and later entries.

        Raises: StorageUnavailable, CorruptionError.
        """
        manifest = self._manifest(_key_of(log), LeaderEpoch(max(log.leader_epoch, self._leader_epoch(log), 0)))
        await manifest.load(copy, listed)
        return manifest

    def new_view(self, key: TopicIdPartition, leader_epoch: LeaderEpoch) -> SegmentManifest:
        """A manifest without entries, to follow one."""
        return self._manifest(key, leader_epoch)

    def _manifest(self, key: TopicIdPartition, leader_epoch: LeaderEpoch) -> SegmentManifest:
        manifest = SegmentManifest(
            self._store,
            *key,
            writer_id=self._cluster.writer_id,
            broker_id=BrokerId(self._config.node_id),
            leader_epoch=leader_epoch,
            rng=self._rng,
            clock=self._clock,
            timings=self._timings,
            faults=self._faults,
        )
        self._hand_on(manifest)
        return manifest

    def _hand_on(self, manifest: SegmentManifest) -> None:
        """Keep the entries that this broker writes to a manifest at hand for followers."""
        entries = self.entries
        if entries is not None:
            key = TopicIdPartition(manifest.topic_id, manifest.partition)
            manifest.on_written(lambda sequence, body: entries.add(key, sequence, body))

    async def write_copies(self) -> None:
        """Write the copies of changed manifests."""
        await self._copies.write({topic_id: count for topic_id, (_, count) in self._led.items()})

    async def leave(self) -> None:
        """After the end of ``run``: save state for the next start."""
        await self.write_copies()
        led = {
            key: (manifest, log.leader_epoch)
            for log in self._logs.logs()
            if (manifest := self._tier.manifest_of(key := _key_of(log))) is not None
        }
        await self._copies.leave_ends(self._cluster.identity.incarnation, led, self._empty())

    def _empty(self) -> dict[TopicIdPartition, LeaderEpoch]:
        """The partitions that this start leads, and that have never had a record."""
        found = {
            partition.key: partition.log.leader_epoch
            for partition in self.table
            if partition.leads and not partition.log.has_files
        }
        image = self._cluster.image
        for topic_id in self._unmade:  # there was no time yet to make their logs
            topic = image.topic_by_id(topic_id)
            if topic is None:
                continue
            for one in topic.partitions:
                made = self.table.get(topic.name, one.partition_index) is not None
                if not made and wanted_by(one, self._broker_id) is Wanted.LEADER:
                    found[TopicIdPartition(TopicId(topic_id), one.partition_index)] = one.leader_epoch
        return found


def _key_of(log: PartitionLog) -> TopicIdPartition:
    return TopicIdPartition(log.topic_id, log.partition)
