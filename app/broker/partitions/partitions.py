"""The partitions of this broker, brought in line with the image of the cluster.

The image has the wanted state. ``Partitions`` establishes it: ``next_step`` decides, and this module carries the steps out.
Partitions with work left have a record with a stage (``unsettled``). New topics get their logs in the change that creates them. If
there are many logs, they are created before the response to the client. So a client that knows of a topic can write to it.
``run`` does all work that may have to wait, and retries it until it succeeds: missing logs are made here, named partitions are
opened by the ``Opener``, and manifests are read by ``ManifestReading``.

Tests: ``tests/broker/test_deleted_topics.py``, ``tests/broker/test_following_in_turns.py``, ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.broker.partitions.deleted_topics import DeletedTopics
from app.broker.partitions.held import HeldPartitions
from app.broker.partitions.leadership_lines import resigned_line
from app.broker.partitions.logs_in_image import is_to_lead, key_of, leader_epoch
from app.broker.partitions.manifest_copies import ManifestCopies
from app.broker.partitions.manifests import MANIFESTS_AT_ONCE, Manifests
from app.broker.partitions.next_step import NO_LOG, LocalState, Stage, Step, next_step
from app.broker.partitions.opener import Opener
from app.broker.partitions.opening import Opened, Opening
from app.broker.partitions.reading import ManifestReading
from app.broker.partitions.start_report import StartReport
from app.broker.partitions.unsettled import RETRY_S_MAX, RETRY_S_MIN, Unsettled
from app.configs import BrokerConfig, TopicConfig
from app.core.errors import (
    ConfigError,
    CorruptionError,
    FencedError,
    FirnError,
)
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.seams import Clock
from app.core.turns import Portion
from app.core.units import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.image.image import ClusterImage, ImageDelta, PartitionImage, TopicImage
from app.metadata.log.numbered_log import LogTimings
from app.metadata.manifest.manifest import SegmentManifest
from app.metadata.membership.membership import Membership
from app.metadata.view.view import Listener
from app.objectstore.api import ObjectStore
from app.replication.partition import Partition
from app.replication.roles import TRANSITIONS, Role, Transition, Wanted, wanted_by
from app.tiering.repair.rebuild import (
    apply_plan,
    plan_restore,
)
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    pass

SETTLED: Final = frozenset({Transition.STAY, Transition.RAISE})
"""Transitions that leave the role as it is: it is in line with the image."""
WAITED_FOR_MAX: Final = 1_000
"""Partitions of a topic whose logs are all created before the request that creates it is answered."""
LOGS_AT_ONCE: Final = 16
"""Logs created before the event loop serves other work. Each takes about 0.1 ms."""
BROUGHT_AT_ONCE: Final = 128
"""Changed partitions that are brought in line with an image before the event loop serves other work. Each takes some 20 µs, if it
has its log."""


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
        broker_id = BrokerId(config.node_id)
        cluster, registration = membership.view, membership.registration
        self._broker_id = broker_id
        self._cluster, self._registration = cluster, registration
        self._controller = membership.controller
        self._logs = logs
        self._tier = tier = remote_log_manager
        self._work = work
        self._copies = copies
        self._log_line = log_line
        self._faults = faults = faults if faults is not None else Faults(log_line)
        self.manifests = Manifests(
            broker_id,
            membership=membership,
            store=store,
            copies=copies,
            clock=clock,
            rng=rng,
            timings=timings,
            faults=faults,
        )
        self.held = held = HeldPartitions(
            broker_id,
            cluster=cluster,
            logs=logs,
            tier=tier,
            copies=copies,
            manifests=self.manifests,
            log_line=log_line,
        )
        self.table = held.table
        self.table.make_missing = self.make_missing_now
        self._opening = opening = Opening(
            held,
            membership=membership,
            logs=logs,
            tier=tier,
            store=store,
            work=work,
            clock=clock,
            log_line=log_line,
        )
        self.opener = Opener(broker_id, held, opening, cluster=cluster, logs=logs, faults=faults, log_line=log_line)
        self._reading = ManifestReading(
            held, opening, cluster=cluster, tier=tier, faults=faults, write_copies=self.write_copies
        )
        self.report = StartReport(
            broker_id, config.data_dir, membership=membership, table=held.table, tier=tier, log_line=log_line
        )
        self._led: dict[UUID, tuple[str, int]] = {}
        """By topic id: name and number of partitions of every topic with a log. ``take_out`` looks for the logs by it."""
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
        self._deleted = DeletedTopics(self.table, logs, held.detach)
        """The remaining logs of topics that were deleted."""
        self._started = False
        """Whether roles follow the image one by one. Before that ``take_over_all`` opens all partitions together."""
        self.high_watermarks: Mapping[TopicIdPartition, int] = {}
        """High watermarks of partitions with several replicas, as the last run has left them."""

    # --- starting ------------------------------------------------------------------------------------------------

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
        clean = clean and self.manifests.follows_the_last_stop
        existing = {key_of(log) for log in self._logs.logs()}
        never_had_records = await self.manifests.without_records(clean=clean)
        portion = Portion()
        for log in self._logs.logs():
            await portion.rest_if_spent()
            held = self.table.hold(log)
            of_image = image.partition(log.topic_id, log.partition)
            if of_image is not None and len(of_image.replicas) > 1:
                self.table.follow(held, self.high_watermarks.get(held.key, 0))
                self.held.view(held)
        for topic in image.topics_by_name.values():
            going_on: int | None = 0
            while going_on is not None:
                going_on = self._bring_in_line(topic, going_on, LOGS_AT_ONCE)
                await portion.rest_if_spent()
        if self.held.views is not None:
            await self.held.views.restore()
        manifests = self.manifests.known(self._logs_to_lead())
        believed = frozenset(map(key_of, manifests))
        await self.manifests.load_all(manifests, self._logs_to_lead(), self.held.go_offline)
        self._check_tiered_topics_stay(image, manifests)
        foreign = [
            log
            for log in manifests
            if not self.manifests.is_ours(manifests[log])
            or not (key_of(log) in existing or (never_had_records(log) and manifests[log].state.is_blank))
        ]
        # Offline partitions, too: when they are back, clients have to notice the records that a crash has taken from them.
        everything = self._logs_to_lead()
        cut = [log for log in everything if log.topic_partition in differing]
        await self._opening.bump(manifests, {*foreign, *cut} if clean else everything)
        limit = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        opened: dict[PartitionLog, Opened] = {}

        async def check(log: PartitionLog, manifest: SegmentManifest) -> None:
            found = None
            async with limit:
                named = leader_epoch(self._cluster.image, log)
                try:
                    found = await self._opening.open(
                        log,
                        manifest,
                        foreign=log in foreign,
                        since_s=since_s,
                        believed=key_of(log) in believed,
                        is_wanted=lambda: is_to_lead(self._cluster.image, log, named, self._broker_id),
                    )
                except CorruptionError as error:
                    self.held.go_offline(log, error)
                    return
                except FencedError:
                    if not image.level:
                        raise
            if found is None:
                # Another broker leads, perhaps only until now: the image will say so. If not, this broker tries again.
                partition = self.table.get(log.topic, log.partition)
                assert partition is not None
                self.held.unsettled.begin(Unsettled(partition, Stage.NAMED, loop_time_s()))
                return
            opened[log] = found
            self.held.join_tier(log, manifest)

        async with asyncio.TaskGroup() as group:
            for log, manifest in manifests.items():
                group.create_task(check(log, manifest))
        self.manifests.forget_the_last_stop()
        if new_directory:
            self.report.tell_what_is_lost(image, {log: manifests[log] for log in opened})
        restored = {log: one.plan for log, one in opened.items() if one.plan is not None}
        for log, plan in sorted(restored.items(), key=lambda one: (one[0].topic, one[0].partition)):
            self._opening.tell_of_restored(log, plan)
        if clean:
            await self._opening.bump(manifests, [log for log in restored if log not in foreign])
        for log in opened:
            partition = self.table.get(log.topic, log.partition)
            assert partition is not None
            self.held.lead(partition, leader_epoch(self._cluster.image, log))
            if partition.key in believed:
                self.held.unsettled.begin(Unsettled(partition, Stage.BELIEVED))
            await portion.rest_if_spent()
        if new_directory or self._registration.took_over:
            # Before markers are written: up to here the store has it.
            self.report.tell_what_is_back(opened)
            if image.level:
                self.report.told = frozenset(map(key_of, opened))
        for log, one in opened.items():
            self._opening.end_transactions(log, one.lost)
        await self._copies.note_led(self._cluster.identity.incarnation)
        self._started = True
        self._cluster.on_change(self._follow)
        self._controller.before_answering(self.followed)
        if image.level and (now := self._cluster.image) is not image:
            # Others lead since then, or lead no more: no later change tells of it.
            self._follow(now, ImageDelta.between(image, now))

    async def start_at_tier(self, log: PartitionLog, is_wanted: Callable[[], bool]) -> None:
        """Empty the log of a follower, and let it go on at the tiered end, as the manifest says (T5), if ``is_wanted`` still holds
        when the store has been read. Raises: FirnError; then the log is as it was."""
        copy = None if self.held.views is None else self.held.views.copy_of(key_of(log))
        manifest = await self.manifests.load(log, copy, None)
        plan = await plan_restore(manifest, self._work)
        if not is_wanted() or plan.next_offset <= log.log_end_offset:
            return
        apply_plan(log, plan)
        self._opening.tell_of_restored(log, plan)

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

    def _drop_foreign(self, image: ClusterImage) -> None:
        """Delete logs of topics that were deleted, or deleted and created again. Raises: StorageUnavailable."""
        for log in self._logs.logs():
            topic = image.topic(log.topic)
            if topic is None or int(log.partition) >= len(topic.partitions):
                self._log_line(
                    Event.PARTITION_DELETED.line(
                        f"{log.topic}-{log.partition} is no longer in the cluster; its local log is deleted",
                        topic=log.topic,
                        partition=int(log.partition),
                    )
                )
                self._logs.delete(log.topic, log.partition)
            elif log.topic_id == NO_TOPIC_ID and log.recovery_point > log.segments()[0].base_offset:
                log.topic_id = topic.topic_id  # something was synced, so the file was there and is damaged
            elif log.topic_id == NO_TOPIC_ID:
                # Nothing was ever made durable here, and the files may be of an older topic of that name.
                self._log_line(
                    Event.PARTITION_DELETED.line(
                        f"{log.topic}-{log.partition} has no topic id; its local log is deleted",
                        topic=log.topic,
                        partition=int(log.partition),
                    )
                )
                self._logs.delete(log.topic, log.partition)
            elif log.topic_id != topic.topic_id:
                self._log_line(
                    Event.PARTITION_DELETED.line(
                        f"{log.topic}-{log.partition} belongs to an older topic with this name; its local log is deleted",
                        topic=log.topic,
                        partition=int(log.partition),
                    )
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

    def _logs_to_lead(self) -> list[PartitionLog]:
        return [partition.log for partition in self._to_lead()]

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
                self.held.unsettled.stage_of(partition),
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
            self.held.lead(partition, image.leader_epoch)
            self._read_later(partition, Stage.UNREAD)
        elif step is not Step.MAKE:
            self.table.follow(partition, 0)
            self.held.view(partition)
            if step is Step.MAKE_AND_OPEN:
                self._open_later(partition, image)
        return partition

    def _change_role(self, partition: Partition, image: PartitionImage, step: Step) -> None:
        """Carry out the step of a partition that has a log and keeps it."""
        match step:
            case Step.UNNAME:
                self.held.unsettled.settle(partition.key)
            case Step.LOOK_AGAIN:
                one = self.held.unsettled.get(partition.key)
                assert one is not None
                one.since_s = loop_time_s()
                self.opener.wake()  # the opener reads its manifest, may change its log, and opens it
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
                if self.held.write_ahead is not None and partition.log.journaled:
                    self.held.write_ahead.resign(partition.log)
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
        self.held.unsettled.begin(Unsettled(partition, Stage.NAMED, loop_time_s(), image.leader_epoch, in_sync))
        self.opener.wake()

    def _read_later(self, partition: Partition, stage: Stage) -> None:
        """This broker leads a partition whose manifest it has not read."""
        self.held.unsettled.begin(Unsettled(partition, stage))
        self._reading.wake()

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

    def make_missing_now(self, name: str, index: int) -> None:
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
        self.held.unsettled.settle(key)
        led_by = self._tier.manifest_of(key)
        self._tier.detach(*key)
        if partition.role is Role.OFFLINE:
            self._logs.bring_back(partition.log)
        self.table.resign(partition)
        if self.held.write_ahead is not None:
            self.held.write_ahead.resign(partition.log)
        self.held.view(partition, led_by)
        if not partition.commits_alone:
            self.table.follow(partition, partition.log.high_watermark)
        self._resigned.append((partition, image))

    def _tell_resigned(self) -> None:
        """Log which partitions other brokers lead now: in one line, since it may be thousands."""
        resigned, self._resigned = self._resigned, []
        if resigned:
            self._log_line(Event.LEADERSHIP_RESIGNED.line(resigned_line(resigned), partitions=len(resigned)))

    def _drop_replica(self, partition: Partition) -> None:
        """This broker is no replica of the partition any more: delete its log. Raises: StorageUnavailable."""
        self.held.forget(partition.key)
        if partition.leads:
            self.table.resign(partition)
        if self.held.write_ahead is not None:
            self.held.write_ahead.resign(partition.log)
        self._logs.delete(partition.topic, partition.index)
        self.table.drop(partition)
        self._log_line(
            Event.PARTITION_DELETED.line(
                f"{partition.topic}-{partition.index}: this broker is no replica any more, its local log is deleted",
                topic=partition.topic,
                partition=int(partition.index),
            )
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

    async def wait_detached(self, topic_id: UUID) -> None:
        """Wait until this broker begins to write no more objects of a deleted topic."""
        await self._deleted.wait_detached(topic_id)

    async def run(self) -> None:
        """Create missing logs, read manifests of new partitions, and write changed ones to disk, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._make_missing())
                group.create_task(self._reading.attach_and_cache())
                group.create_task(self._reading.catch_up())
                group.create_task(self.opener.bring_back_offline())
                group.create_task(self.opener.open_named())
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
        """Notify listeners of the topics whose turn is over, and yield the loop. Returns: an empty list, for the next turn."""
        if over:
            self._tell_after(over)
        await asyncio.sleep(0)
        self._left = BROUGHT_AT_ONCE
        return []

    async def write_copies(self) -> None:
        """Write the copies of changed manifests."""
        await self._copies.write({topic_id: count for topic_id, (_, count) in self._led.items()})

    async def leave(self) -> None:
        """After the end of ``run``: save state for the next start."""
        await self.write_copies()
        led = {
            key: (manifest, log.leader_epoch)
            for log in self._logs.logs()
            if (manifest := self._tier.manifest_of(key := key_of(log))) is not None
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
