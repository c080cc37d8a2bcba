"""The controller: decides whether a broker may start, and is the only writer of the cluster log.

A single broker is its own controller, with the same code as a future cluster. It seals the cluster log, binds its node id to
its data directory in the same entry, and then groups the requested changes.

**Who may start.** The cluster log binds a node id to a data directory. A broker on the bound directory starts at once (a lock
in the directory keeps a second process out). A broker on another directory starts only if the bound broker was silent for 30 s
and does not respond at its address, or if the operator forces it (``take_over``). After its registration it notifies the bound
broker, which then reads the log before it acknowledges anything else (ADR 0018). All this is a courtesy: the seal prevents two
writers in the bucket.

**Replacement.** A broker is *fenced* when it sees a registration of its node id that is not its own, or the seal of another
writer. Then every change fails with FencedError, ``on_fenced`` is called, and ``run`` raises. The broker learns this at its
next append or poll.

**Grouping.** Changes wait in a queue. One entry is under way at a time. When it is durable, the waiting changes are planned one
after another on one draft of the next image, and become the next entry. A refusal is also returned only when the entry of its
draft is durable.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from app.configs import BrokerConfig, TopicConfig
from app.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    ErrorCode,
    FencedError,
    FirnError,
    LimitExceeded,
    RequestRejected,
    StorageUnavailable,
    copy_of,
    without_frames,
)
from app.faults import Faults
from app.limits import LOG_ENTRY_BYTES_MAX
from app.metadata import changes, layout
from app.metadata.changes import DEFAULT, Assignments, ConfigChange, Planned, Surroundings
from app.metadata.cluster import (
    BrokerImage,
    BrokerRecord,
    ClusterImage,
    ClusterRecord,
    ClusterState,
    ControllerRecord,
    Endpoint,
    ImageDelta,
    ImageDraft,
    TopicImage,
    broker_change,
    cluster_change,
    controller_change,
)
from app.metadata.liveness import BEAT_INTERVAL_MS, SILENCE_MS_MAX, Identity, Liveness
from app.metadata.log_format import KeyValue, encoded_bytes_max
from app.metadata.numbered_log import LogTimings, NumberedLog
from app.metadata.place import ASK_S, TELL_AGAIN_S, Holder, Places
from app.objectstore.api import ObjectStore
from app.seams import Clock
from app.units import BrokerId, LeaderEpoch, TopicId, TopicIdPartition

T = TypeVar("T")

PENDING_CHANGES_MAX: Final = 10_000
"""Maximum number of waiting changes."""

GROUP_BYTES_MAX: Final = LOG_ENTRY_BYTES_MAX // 2
"""Maximum records of one group. The largest single change, a topic of 10,000 partitions, is a quarter of it."""

GROUP_CHANGES_MAX: Final = 200
"""Maximum changes of one group, so that adding them to the image does not delay the event loop."""

PLANNED_AT_ONCE: Final = 32
"""Changes planned before the loop serves other work. One change takes about 50 µs."""

EPOCH_BUMPS_PER_CHANGE_MAX: Final = 10_000
"""Maximum partitions whose leader epochs rise in one change. More partitions need several changes."""

START_TRIES_MAX: Final = 16
"""Maximum retries of a start because another writer was faster."""

Listener = Callable[[ClusterImage, ImageDelta], None]

_logger = logging.getLogger(__name__)


class StartRefused(ConfigError):
    """This broker must not start. The message says what to do. Nothing was changed."""


@dataclass(slots=True)
class _Change:
    """One change in the queue."""

    plan: Callable[[ImageDraft, Surroundings], Planned[Any]]
    validate_only: bool
    done: asyncio.Future[Any]


class Controller:
    """One broker's view of the cluster, with changes to it. Belongs to one event loop: call ``start``, then keep ``run`` running.

    When a changing method returns, the change is durable and in ``image``. It raises RequestRejected (nothing changed),
    FencedError (another broker has taken over for good), StorageUnavailable (the outcome is unknown; ``image`` will show it),
    LimitExceeded. The cancellation of a caller does not undo its change.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        config: BrokerConfig,
        directory_id: UUID,
        endpoints: Sequence[Endpoint],
        liveness: Liveness,
        rng: random.Random,
        clock: Clock,
        take_over: bool = False,
        expected_cluster_id: str | None = None,
        on_fenced: Callable[[FencedError], None] | None = None,
        timings: LogTimings | None = None,
        places: Places | None = None,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        """``directory_id`` is the permanent id of the data directory. ``expected_cluster_id`` is the directory's cluster, if it
        has one. ``places`` reaches other brokers; without it none is asked or notified."""
        self.config = config
        self.identity = Identity(BrokerId(config.node_id), directory_id, UUID(bytes=rng.randbytes(16), version=4))
        self._endpoints = tuple(endpoints)
        self._liveness = liveness
        self._rng = rng
        self._clock = clock
        self._take_over = take_over
        self._expected_cluster_id = expected_cluster_id
        self._on_fenced = on_fenced
        self._faults = faults if faults is not None else Faults(_logger.warning)
        self._timings = timings if timings is not None else LogTimings()
        self._places = places
        self._log_line = log_line
        self._log: NumberedLog[ClusterState] = NumberedLog(
            store,
            layout.CLUSTER_PREFIX,
            writer_id=self.writer_id,
            rng=rng,
            clock=clock,
            new_state=ClusterState,
            timings=timings,
        )
        self._published = ClusterImage()
        self._listeners: list[Listener] = []
        self._before_answering: Callable[[UUID], Awaitable[None]] | None = None
        self._queue: deque[_Change] = deque()
        self._work_waits = asyncio.Event()
        self._started = False
        self._predecessor: BrokerImage | None = None
        self._fenced: FencedError | None = None

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The present image of the cluster. Immutable."""
        return self._published

    @property
    def writer_id(self) -> str:
        """The writer id with which this start of this broker seals logs and manifests."""
        return f"{self.identity.broker_id}/{self.identity.directory_id}/{self.identity.incarnation}"

    @property
    def fenced(self) -> bool:
        """Whether another broker has taken over."""
        return self._fenced is not None

    @property
    def took_over(self) -> bool:
        """Whether the node id was bound to another data directory when this broker started.

        Then the previous broker may still be running. So each led partition's manifest must be sealed, and then read, before a
        produce is accepted (``SegmentManifest.seal``).
        """
        return self._predecessor is not None and self._predecessor.directory_id != self.identity.directory_id

    @property
    def predecessor(self) -> UUID | None:
        """The previous incarnation with this node id; None if this is the first."""
        return None if self._predecessor is None else self._predecessor.incarnation

    def effective_config(self, topic: TopicImage) -> TopicConfig:
        """The settings of a topic on this broker, from the topic's overrides, dynamic broker overrides and static settings."""
        return self._published.effective_config(topic, self.config)

    def effective_broker_config(self) -> BrokerConfig:
        """This broker's settings with their dynamic overrides."""
        return self._published.effective_broker_config(self.config)

    def on_change(self, listener: Listener) -> None:
        """Call ``listener(image, delta)`` after every change of the image, in order. The listener must not wait."""
        self._listeners.append(listener)

    def before_answering(self, wait: Callable[[UUID], Awaitable[None]]) -> None:
        """Await ``wait(topic_id)`` before the creation of a topic, or of more partitions, returns."""
        self._before_answering = wait

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the cluster log, decide whether this broker may start, and register it by sealing the log.

        An empty prefix becomes a new cluster. Costs a LIST, reads of the log, a PUT for a heartbeat and a PUT.

        Raises: StartRefused, StorageUnavailable, CorruptionError.
        """
        assert not self._started
        await self._log.load()
        for _ in range(START_TRIES_MAX):
            image = self._log.state.image
            await self._check_may_start(image)
            # Before the seal: a rival that finds this directory bound must find its sign of life, too.
            await self._patiently(lambda: self._liveness.beat(self.identity))
            try:
                sequence = await self._seal()
                await self._log.append(sequence + 1, [self._controllership(), *self._registration(image)])
            except ConflictError:
                await self._log.poll()
                continue
            except FencedError:
                raise StartRefused(
                    f"Another broker is starting with node id {self.identity.broker_id} or in this cluster at this"
                    " moment: see which one is to run, and start only that one."
                ) from None
            self._predecessor = image.brokers.get(self.identity.broker_id)
            self._started = True
            self._publish()
            await self._tell_replaced(image)
            return
        raise StorageUnavailable("the cluster log is written by others again and again")

    async def run(self) -> None:
        """Make changes, send heartbeats and watch for a replacement, until cancelled.

        Raises: FencedError when another has taken over.
        """
        assert self._started, "start first"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._change_forever())
                group.create_task(self._beat_forever())
        except BaseExceptionGroup as failures:
            fenced, _ = failures.split(FencedError)
            if fenced is not None and self._fenced is not None:
                raise copy_of(self._fenced) from None
            raise
        finally:
            self._refuse_waiting(self._fenced or StorageUnavailable("the broker is stopping"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        """``start``, and ``run`` until the block is left; then ``leave``. For tools and tests."""
        await self.start()
        task = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, FencedError):
                raise error
        await self.leave()

    async def heartbeat(self) -> None:
        """Send one heartbeat, and check once for a replacement. Raises: FencedError, StorageUnavailable."""
        if self._fenced is not None:
            raise copy_of(self._fenced)
        silent: StorageUnavailable | None = None
        try:
            async with asyncio.timeout(self._timings.attempt_timeout_s):
                await self._liveness.beat(self.identity)
        except TimeoutError:
            silent = StorageUnavailable(f"a sign of life was not taken within {self._timings.attempt_timeout_s:g} s")
        except StorageUnavailable as error:
            silent = without_frames(error)
        # Whether or not others hear of us, we must hear of a replacement.
        await self._catch_up()
        if silent is not None:
            raise copy_of(silent)

    async def look(self) -> None:
        """Read new entries of the cluster log. When this returns, it is known whether another broker has this broker's place.

        Raises: FencedError, StorageUnavailable, CorruptionError.
        """
        if self._fenced is not None:
            raise self._fenced
        await self._catch_up()

    async def leave(self) -> None:
        """After the end of ``run``: let another directory start at once. Does nothing if the broker is fenced."""
        if self._fenced is None:
            try:
                async with asyncio.timeout(self._timings.attempt_timeout_s):
                    await self._liveness.leave(self.identity)
            except (StorageUnavailable, TimeoutError) as error:
                _logger.warning("the last sign of life stays: %s", str(error) or "no answer in time")

    # --- changes ----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int = DEFAULT,
        *,
        assignments: Assignments | None = None,
        fewer_replicas: bool = False,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic, or only check it (``validate_only``). -1 is the broker's default.

        The default factor, and with ``fewer_replicas`` any, is lowered to the number of live brokers.

        Rejected with INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
        INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG or INVALID_REQUEST.
        """
        topic_id = TopicId(UUID(bytes=self._rng.randbytes(16), version=4))
        topic = await self.submit(
            lambda draft, around: changes.create_topic(
                draft,
                around,
                topic_id=topic_id,
                name=name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs or {},
                assignments=assignments,
                fewer_replicas=fewer_replicas,
            ),
            validate_only=validate_only,
        )
        await self._followed(topic, validate_only)
        return topic

    async def delete_topic(self, name: str | None = None, *, topic_id: UUID | None = None) -> TopicImage:
        """Delete a topic by name or id. It moves to ``image.deleting``. Returns: the deleted topic.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID.
        """
        return await self.submit(lambda draft, _: changes.delete_topic(draft, name=name, topic_id=topic_id))

    async def finish_topic_deletion(self, topic_id: UUID) -> None:
        """Forget a deleted topic when a LIST finds no object of it. A repeated call does nothing."""
        await self.submit(lambda draft, _: changes.finish_topic_deletion(draft, topic_id))

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Raise a topic's partitions to ``count`` in all.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS or INVALID_REPLICA_ASSIGNMENT.
        """
        topic = await self.submit(
            lambda draft, around: changes.create_partitions(
                draft, around, name=name, count=count, assignments=assignments
            ),
            validate_only=validate_only,
        )
        await self._followed(topic, validate_only)
        return topic

    async def _followed(self, topic: TopicImage, validate_only: bool) -> None:
        if self._before_answering is not None and not validate_only:
            await self._before_answering(topic.topic_id)

    async def alter_configs(
        self,
        resource_type: int,
        resource_name: str,
        operations: Sequence[ConfigChange],
        *,
        validate_only: bool = False,
        nothing_tiered: bool = False,
    ) -> Mapping[str, str]:
        """Change configs of a topic, a broker, or (a broker named "") all brokers. Returns: the overrides afterwards.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG or INVALID_REQUEST; with
        TierMustBeEmpty unless ``nothing_tiered``, if the caller must ensure an empty tier and keep it empty.
        """
        return await self.submit(
            lambda draft, around: changes.alter_configs(
                draft,
                around,
                resource_type=resource_type,
                resource_name=resource_name,
                changes=operations,
                nothing_tiered=nothing_tiered,
            ),
            validate_only=validate_only,
        )

    async def replace_configs(
        self,
        resource_type: int,
        resource_name: str,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        nothing_tiered: bool = False,
    ) -> Mapping[str, str]:
        """Set exactly these overrides (AlterConfigs). Rejected as ``alter_configs``."""
        return await self.submit(
            lambda draft, around: changes.replace_configs(
                draft,
                around,
                resource_type=resource_type,
                resource_name=resource_name,
                configs=configs,
                nothing_tiered=nothing_tiered,
            ),
            validate_only=validate_only,
        )

    async def settle(self) -> None:
        """Wait until the image contains the outcome of all earlier changes, also of those whose outcome was unknown.

        Raises: StorageUnavailable, FencedError.
        """
        await self.submit(lambda _draft, _around: changes.Planned((), None))

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids that nobody else ever gets."""
        return await self.submit(lambda draft, _: changes.allocate_producer_ids(draft, self.identity.broker_id))

    async def bump_leader_epochs(
        self,
        partitions: Iterable[TopicIdPartition],
        *,
        above: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, LeaderEpoch]:
        """Raise leader epochs above the present ones and above ``above`` (epochs found elsewhere). Returns: the new epochs.

        More than ``EPOCH_BUMPS_PER_CHANGE_MAX`` partitions need several changes. Some may succeed although others fail.
        """
        wanted = list(partitions)
        epochs: dict[TopicIdPartition, LeaderEpoch] = {}
        for start in range(0, len(wanted), EPOCH_BUMPS_PER_CHANGE_MAX):
            page = wanted[start : start + EPOCH_BUMPS_PER_CHANGE_MAX]
            epochs |= await self.submit(
                lambda draft, _, page=page: changes.bump_leader_epochs(draft, page, above or {})  # type: ignore[misc]
            )
        return epochs

    # --- starting ---------------------------------------------------------------------------------------------------

    async def _check_may_start(self, image: ClusterImage) -> None:
        """Raises: StartRefused, StorageUnavailable."""
        mine = self.identity
        if self._expected_cluster_id is not None and image.cluster_id != self._expected_cluster_id:
            what = f"is of cluster {image.cluster_id}" if image.cluster_id else "is empty"
            raise StartRefused(
                f"The data directory belongs to cluster {self._expected_cluster_id}, but the store {what}: give the store"
                " that goes with the directory, or an empty directory."
            )
        if self._take_over:
            return
        for broker in self._others(image):
            if broker.broker_id == mine.broker_id:
                what = f"Node id {mine.broker_id} is in use by a broker with another data directory ({broker.directory_id})"
            else:
                what = f"Broker {broker.broker_id} runs this cluster by itself"
            await self._check_silent(broker.broker_id, broker.directory_id, what)
            if await self._ask(image.cluster_id, broker) is not None:
                raise StartRefused(
                    f"{what}, which answers at {_addresses(broker)} though it gives no sign of life in the store: it may be cut"
                    " off from the store alone. Stop it and start again, or start with --take-over."
                )

    def _others(self, image: ClusterImage) -> list[BrokerImage]:
        """The places that this start takes: of another directory with this node id, and of another controller."""
        mine = self.identity
        bound = image.brokers.get(mine.broker_id)
        controller = image.brokers.get(image.controller.broker_id)
        others = [] if bound is None or bound.directory_id == mine.directory_id else [bound]
        if controller is not None and controller.broker_id != mine.broker_id:
            others.append(controller)
        return others

    async def _check_silent(self, broker_id: BrokerId, directory_id: UUID, what: str) -> None:
        age_ms = await self._patiently(lambda: self._liveness.age_ms(broker_id, directory_id))
        if age_ms is not None and age_ms <= SILENCE_MS_MAX:
            raise StartRefused(
                f"{what}, which gave a sign of life {age_ms / 1000:.0f} s ago: stop it and wait"
                f" {(SILENCE_MS_MAX - age_ms) // 1000 + 1} s, or start with --take-over."
            )

    async def _ask(self, cluster_id: str, broker: BrokerImage, replaced_by: str = "") -> Holder | None:
        """The broker's response from any of its endpoints; None if no endpoint responds as this broker within ``ASK_S``."""
        places = self._places
        if places is None:
            return None

        async def ask(endpoint: Endpoint) -> Holder | None:
            found = await places.ask(
                endpoint,
                cluster_id=cluster_id,
                node_id=broker.broker_id,
                directory_id=broker.directory_id,
                replaced_by=replaced_by,
            )
            who = None if found is None else (found.cluster_id, found.node_id, found.directory_id)
            return found if who == (cluster_id, broker.broker_id, broker.directory_id) else None

        asking = {asyncio.ensure_future(ask(endpoint)) for endpoint in broker.endpoints}
        answer: Holder | None = None
        try:
            async with asyncio.timeout(ASK_S):
                while asking and answer is None:
                    done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                    answer = next((one for task in done if (one := task.result()) is not None), None)
        except TimeoutError:
            answer = None
        finally:
            for task in asking:
                task.cancel()
            if asking:
                await asyncio.wait(asking)
        return answer

    async def _tell_replaced(self, before: ClusterImage) -> None:
        """Make the previous owner of this place read the cluster log, which has our registration. If it does not respond, log
        the risk."""
        if self._places is None:
            return
        loop = asyncio.get_running_loop()
        for broker in self._others(before):
            deadline_s = loop.time() + ASK_S
            answer = await self._ask(before.cluster_id, broker, self.writer_id)
            while answer is not None and not answer.looks and loop.time() < deadline_s:
                await asyncio.sleep(TELL_AGAIN_S)  # it was told a moment ago, by anybody
                answer = await self._ask(before.cluster_id, broker, self.writer_id)
            who = f"the broker with data directory {broker.directory_id}"
            if answer is not None and answer.looks:
                self._log_line(
                    f"{who} was told at {_addresses(broker)} that it is replaced, and acknowledges nothing more;"
                    f" on its disk alone are, and stay, {answer.untiered_bytes} bytes of {answer.untiered_partitions} partitions"
                )
            else:
                self._log_line(
                    f"{who} did not answer at {_addresses(broker)}: if it still runs, it may acknowledge records until it"
                    f" next looks at the store, {BEAT_INTERVAL_MS // 1000} s at most, or for as long as it is cut off from the"
                    " store too; these records would be lost"
                )

    def _registration(self, image: ClusterImage) -> list[KeyValue]:
        records: list[KeyValue] = []
        now_ms = self._clock.now_ms()
        if not image.cluster_id:
            # Kafka's form of a cluster id: 16 bytes in URL-safe base 64.
            cluster_id = base64.urlsafe_b64encode(self._rng.randbytes(16)).rstrip(b"=").decode()
            records.append(cluster_change(ClusterRecord(1, cluster_id, now_ms)))
        broker_epoch = 1 + max((broker.broker_epoch for broker in image.brokers.values()), default=-1)
        record = BrokerRecord(
            1,
            self.identity.directory_id,
            self.identity.incarnation,
            broker_epoch,
            self._endpoints,
            self.config.broker_rack,
            now_ms,
            self.config.firn_instance_id,
        )
        records.append(broker_change(self.identity.broker_id, record))
        return records

    async def _seal(self) -> int:
        """Become the writer of the cluster log with a new controller epoch. Raises: as ``NumberedLog.seal``."""
        self._log.epoch = self._log.writer.epoch + 1
        return await self._log.seal(self._log.next_sequence)

    def _controllership(self) -> KeyValue:
        """The controller record of a seal. It is the first record of the entry after the seal."""
        return controller_change(
            ControllerRecord(1, self._log.epoch, self.identity.broker_id, self.identity.incarnation)
        )

    async def _patiently(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry until the store or Redis responds, up to the read deadline. Raises: StorageUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timings.read_deadline_s
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await request()
            except TimeoutError:
                raise StorageUnavailable("no answer to a sign of life, or to a question for one") from None
            except StorageUnavailable:
                if loop.time() + 1 >= deadline_s:
                    raise
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))

    # --- following --------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Pass the newest image to all listeners."""
        image, before = self._log.state.image, self._published
        if image is before:
            return
        self._published = image
        if self._listeners:
            delta = ImageDelta.between(before, image)
            for listener in self._listeners:
                listener(image, delta)

    async def _catch_up(self) -> None:
        """Raises: FencedError, StorageUnavailable, CorruptionError."""
        await self._log.poll()
        self._publish()
        self._check_not_replaced()

    def _check_not_replaced(self) -> None:
        image = self._log.state.image
        mine = self.identity
        bound = image.brokers.get(mine.broker_id)
        if bound is None or (bound.directory_id, bound.incarnation) != (mine.directory_id, mine.incarnation):
            directory = f"data directory {bound.directory_id}" if bound is not None else "nobody"
            raise self.fence(f"Node id {mine.broker_id} has been taken over by {directory}; this broker stops.")
        if self._log.writer.writer_id != self.writer_id:
            raise self.fence(f"{self._log.writer.writer_id} has taken over the cluster; this broker stops.")

    def fence(self, reason: str) -> FencedError:
        if self._fenced is None:
            self._fenced = FencedError(reason)
            self._refuse_waiting(self._fenced)
            if self._on_fenced is not None:
                self._on_fenced(self._fenced)
        return self._fenced

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_MS / 1000)
            try:
                await self.heartbeat()
            except (StorageUnavailable, CorruptionError) as error:
                # Two of three beats may be lost, and a replacement is found out by the next append at the latest.
                sentence = f"no sign of life given, or no look at the cluster log: {error}"
                self._faults.met("the heartbeat of", f"broker {self.identity.broker_id}", sentence)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def submit(self, plan: Callable[[ImageDraft, Surroundings], Planned[T]], *, validate_only: bool = False) -> T:
        """Make the change that ``plan`` derives from the newest image, in the order of the calls. Returns its result when it is
        durable.

        ``plan`` may be called again, on a newer image. Raises: what it raises; RequestRejected THROTTLING_QUOTA_EXCEEDED;
        StorageUnavailable (undecided), FencedError.
        """
        if self._fenced is not None:
            raise copy_of(self._fenced)
        if len(self._queue) >= PENDING_CHANGES_MAX:
            raise RequestRejected(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{PENDING_CHANGES_MAX} changes of the cluster wait already."
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Change(plan, validate_only, done))
        self._work_waits.set()
        try:
            return await done
        finally:
            del done  # A refusal holds this frame and those of the whole request, and the future holds the refusal.

    def _refuse_waiting(self, error: FirnError) -> None:
        while self._queue:
            _refuse(self._queue.popleft().done, error)

    async def _change_forever(self) -> None:
        while True:
            await self._work_waits.wait()
            self._work_waits.clear()
            while self._queue:
                await self._make_group()

    async def _make_group(self) -> None:
        """Plan the waiting changes as one entry, make it durable, and return the results. Raises: FencedError."""
        planned: list[tuple[_Change, Any]] = []
        made = False
        try:
            if not self._log.is_writer:
                await self._become_writer()
            sequence = self._log.next_sequence
            records = await self._plan_group(planned)
            if records:
                await self._log.append(sequence, records)
            made = True
        except ConflictError:
            # Another has written: everything is planned again on what there is now, in the same order.
            self._queue.extendleft(change for change, _ in reversed(planned))
            planned.clear()
            await self._look_again()
            return
        except FencedError:
            self._queue.extendleft(change for change, _ in reversed(planned))
            planned.clear()
            raise self.fence("Another broker has taken over the cluster; this broker stops.") from None
        except (StorageUnavailable, CorruptionError, LimitExceeded) as error:
            for change, _ in planned:
                _refuse(change.done, error)
            if not planned:
                self._refuse_waiting(error)
            planned.clear()
            return
        finally:
            if not made:
                for change, _ in planned:
                    _refuse(change.done, StorageUnavailable("the broker is stopping; the change may have been made"))
        self._publish()
        for change, outcome in planned:
            if isinstance(outcome, FirnError):
                _refuse(change.done, outcome)
            elif not change.done.done():
                change.done.set_result(outcome)
        if self._log.snapshot_due:
            try:
                await self._log.snapshot()
            except StorageUnavailable as error:
                self._faults.met("snapshots of", "the cluster log", f"no snapshot of the cluster log for now: {error}")

    async def _plan_group(self, planned: list[tuple[_Change, Any]]) -> list[KeyValue]:
        """Take as many changes from the queue as fit into one entry, each with its plan.

        Other tasks may run meanwhile. The entry's number, taken before, shows whether others wrote.
        """
        draft = self._log.state.image.draft()
        around = Surroundings(self.config, self._live_brokers(), self._clock.now_ms(), self._rng.randrange(1 << 16))
        # The seal of an earlier try may still lack its record.
        resealed = self._log.state.image.controller.epoch != self._log.epoch
        records: list[KeyValue] = [self._controllership()] if resealed else []
        size_bytes = 0
        while self._queue and len(planned) < GROUP_CHANGES_MAX:
            if len(planned) % PLANNED_AT_ONCE == PLANNED_AT_ONCE - 1:
                await asyncio.sleep(0)
                if not self._queue:
                    break
            change = self._queue[0]
            outcome: Any
            try:
                plan = change.plan(draft, around)
            except RequestRejected as error:
                outcome = without_frames(error)
            else:
                outcome = plan.answer
                if plan.records and not change.validate_only:
                    more_bytes = encoded_bytes_max(plan.records)
                    if records and size_bytes + more_bytes > GROUP_BYTES_MAX:
                        break
                    draft.apply(plan.records)
                    records += plan.records
                    size_bytes += more_bytes
            planned.append((self._queue.popleft(), outcome))
        return records

    def _live_brokers(self) -> Sequence[BrokerId]:
        """The brokers that may get new partitions. Without a registry of live brokers this is only the controller's broker."""
        return (self.identity.broker_id,)

    async def _become_writer(self) -> None:
        """Seal again after an append that stayed undecided. Raises: as ``_catch_up`` and ``NumberedLog.seal``."""
        await self._catch_up()
        await self._seal()
        self._publish()

    async def _look_again(self) -> None:
        try:
            await self._catch_up()
        except (StorageUnavailable, CorruptionError) as error:
            self._refuse_waiting(error)


def _addresses(broker: BrokerImage) -> str:
    return ", ".join(f"{one.host}:{one.port}" for one in broker.endpoints) or "no address"


def _refuse(done: asyncio.Future[Any], error: FirnError) -> None:
    if not done.done():
        done.set_exception(copy_of(error))
