"""A broker's place in the cluster: who may have it, its registration, and its signs of life.

The cluster log binds a node id to a data directory. A broker on the bound directory starts at once (a lock in the directory keeps a
second process out). A broker on another directory starts only if the bound broker was silent for 30 s and does not respond at its
address, or if the operator forces it (``take_over``). After its registration it notifies the bound broker, which then reads the log
before it acknowledges anything else (ADR 0018). All this is a courtesy: the seal prevents two writers in the bucket.

Tests: ``tests/metadata/test_controller.py``.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from app.core.errors import ConfigError, CorruptionError, StorageUnavailable, copy_of, without_frames
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import Clock
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage, ClusterImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    BrokerRecord,
    ClusterRecord,
    Endpoint,
    broker_change,
    cluster_change,
)
from app.metadata.log.log_format import KeyValue
from app.metadata.log.numbered_log import LogTimings
from app.metadata.peers.liveness import BEAT_INTERVAL_MS, SILENCE_MS_MAX, Liveness
from app.metadata.peers.place import ASK_S, TELL_AGAIN_S, Holder, Places, Stranger
from app.metadata.view.view import ClusterView

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class StartRefused(ConfigError):
    """This broker must not start. The message names the cause and the mend. Nothing was changed."""


class Registration:
    """Belongs to one event loop. The owner calls ``prepare``, has ``records`` written, then calls ``registered``, and runs
    ``run``."""

    def __init__(
        self,
        view: ClusterView,
        *,
        endpoints: Sequence[Endpoint],
        liveness: Liveness,
        rng: random.Random,
        clock: Clock,
        timings: LogTimings,
        take_over: bool = False,
        expected_cluster_id: str | None = None,
        places: Places | None = None,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        """``expected_cluster_id`` is the data directory's cluster, if it has one. ``places`` reaches other brokers; without it
        none is asked or notified."""
        self._view = view
        self._endpoints = tuple(endpoints)
        self._liveness = liveness
        self._rng = rng
        self._clock = clock
        self._timings = timings
        self._take_over = take_over
        self._expected_cluster_id = expected_cluster_id
        self._places = places
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(_logger.warning)
        self._predecessor: BrokerImage | None = None

    @property
    def took_over(self) -> bool:
        """Whether the node id was bound to another data directory when this broker started.

        Then the previous broker may still be running. So each led partition's manifest must be sealed, and then read, before a
        produce is accepted (``SegmentManifest.seal``).
        """
        before = self._predecessor
        return before is not None and before.directory_id != self._view.identity.directory_id

    @property
    def predecessor(self) -> UUID | None:
        """The previous incarnation with this node id; None if this is the first."""
        return None if self._predecessor is None else self._predecessor.incarnation

    # --- starting -----------------------------------------------------------------------------------------------------

    async def prepare(self, image: ClusterImage) -> None:
        """Decide whether this broker may have its place in ``image``, and give a sign of life before it takes it.

        Raises: StartRefused, StorageUnavailable.
        """
        await self._check_may_start(image)
        # Before the registration: a rival that finds this directory bound must find its sign of life, too.
        await self._patiently(lambda: self._liveness.beat(self._view.identity))

    async def prepare_member(self, image: ClusterImage, signs: Liveness) -> None:
        """As ``prepare``, for one broker of several: only the place of another directory with this node id is taken, and the
        controller has the last word (M11). Only where the other one may commit records by itself must it have been silent.

        ``signs`` replace the present signs of life, as several brokers need: a Redis that is away or was emptied must not decide
        which broker starts.
        Raises: StartRefused, StorageUnavailable.
        """
        self._liveness = signs
        mine = self._view.identity
        self.check_cluster(image)
        bound = image.brokers.get(mine.broker_id)
        if not self._take_over and bound is not None and bound.directory_id != mine.directory_id:
            # Later writes of a broker without a disk count only by its write-ahead log, so its silence is not waited for (J47).
            silent = not bound.ephemeral and (not bound.fenced or _commits_alone(image, bound.broker_id))
            await self._check_gone(image, bound, silent=silent)
        self._predecessor = bound
        await self._patiently(lambda: self._liveness.beat(mine))

    async def registered(self, before: ClusterImage) -> None:
        """The records are durable, and ``before`` was the image without them. Tells this place's earlier owner, if it may still
        acknowledge records by itself."""
        mine = self._view.identity.broker_id
        self._predecessor = before.brokers.get(mine)
        if not before.level or _had_alone(before, mine):
            await self._tell_replaced(before)

    async def _check_may_start(self, image: ClusterImage) -> None:
        """Raises: StartRefused, StorageUnavailable."""
        self.check_cluster(image)
        if self._take_over:
            return
        for broker in self._others(image):
            await self._check_gone(image, broker)

    def check_cluster(self, image: ClusterImage) -> None:
        """Check that the data directory is of the store's cluster. Raises: StartRefused."""
        if self._expected_cluster_id is not None and image.cluster_id != self._expected_cluster_id:
            what = f"is of cluster {image.cluster_id}" if image.cluster_id else "is empty"
            raise StartRefused(
                f"The data directory belongs to cluster {self._expected_cluster_id}, but the store {what}: give the store"
                " that goes with the directory, or an empty directory."
            )

    async def _check_gone(self, image: ClusterImage, broker: BrokerImage, *, silent: bool = True) -> None:
        """``silent``: it must have given no sign of life for a while. Raises: StartRefused, StorageUnavailable."""
        mine = self._view.identity
        more = ""
        if broker.broker_id == mine.broker_id:
            what = f"Node id {mine.broker_id} is in use by a broker with another data directory ({broker.directory_id})"
            more = (
                " Or give this broker another node id: --node-id auto takes one that nobody had." if image.level else ""
            )
        else:
            what = f"Broker {broker.broker_id} runs this cluster by itself"
            more = f" {mend_of_one_broker(image)}"
        if silent:
            await self._check_silent(broker.broker_id, broker.directory_id, what, more)
        answer = await self._ask(image.cluster_id, broker)
        if isinstance(answer, Stranger):
            raise StartRefused(
                f"{what}. A broker answers at {_addresses(broker)}, and cannot be asked who it is: {answer.why} It may be that"
                " broker, cut off from the store alone. Mend the certificates or users, or stop that broker, and start again, or"
                f" start with --take-over.{more}"
            )
        if answer is not None:
            raise StartRefused(
                f"{what}, which answers at {_addresses(broker)} though it gives no sign of life in the store: it may be cut"
                f" off from the store alone. Stop it and start again, or start with --take-over.{more}"
            )

    def _others(self, image: ClusterImage) -> list[BrokerImage]:
        """The places that this start takes: of another directory with this node id, and, of one broker, of another controller."""
        mine = self._view.identity
        bound = image.brokers.get(mine.broker_id)
        controller = image.brokers.get(image.controller.broker_id)
        others = [] if bound is None or bound.directory_id == mine.directory_id else [bound]
        if not image.level and controller is not None and controller.broker_id != mine.broker_id:
            others.append(controller)
        return others

    async def _check_silent(self, broker_id: BrokerId, directory_id: UUID, what: str, more: str) -> None:
        age_ms = await self._patiently(lambda: self._liveness.age_ms(broker_id, directory_id))
        if age_ms is not None and age_ms <= SILENCE_MS_MAX:
            raise StartRefused(
                f"{what}, which gave a sign of life {age_ms / 1000:.0f} s ago: stop it and wait"
                f" {(SILENCE_MS_MAX - age_ms) // 1000 + 1} s, or start with --take-over.{more}"
            )

    async def _ask(self, cluster_id: str, broker: BrokerImage, replaced_by: str = "") -> Holder | Stranger | None:
        """The broker's response from any of its endpoints; None if no endpoint responds as this broker within ``ASK_S``. A
        ``Stranger`` counts if no other endpoint responds as the broker."""
        places = self._places
        if places is None:
            return None

        async def ask(endpoint: Endpoint) -> Holder | Stranger | None:
            found = await places.ask(
                endpoint,
                cluster_id=cluster_id,
                node_id=broker.broker_id,
                directory_id=broker.directory_id,
                replaced_by=replaced_by,
            )
            if found is None or isinstance(found, Stranger):
                return found
            who = found.cluster_id, found.node_id, found.directory_id
            return found if who == (cluster_id, broker.broker_id, broker.directory_id) else None

        asking = {asyncio.ensure_future(ask(endpoint)) for endpoint in broker.endpoints}
        stranger: Stranger | None = None
        holder: Holder | None = None
        try:
            async with asyncio.timeout(ASK_S):
                while asking and holder is None:
                    done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                    for answer in (task.result() for task in done):
                        if isinstance(answer, Stranger):
                            stranger = answer
                        elif answer is not None:
                            holder = answer
        except TimeoutError:
            holder = None
        finally:
            for task in asking:
                task.cancel()
            if asking:
                await asyncio.wait(asking)
        return stranger if holder is None else holder

    async def _tell_replaced(self, before: ClusterImage) -> None:
        """Make the previous owner of this place read the cluster log, which has our registration. If it does not respond, log
        the risk."""
        if self._places is None:
            return
        loop = asyncio.get_running_loop()
        for broker in self._others(before):
            deadline_s = loop.time() + ASK_S
            answer = await self._ask(before.cluster_id, broker, self._view.writer_id)
            while isinstance(answer, Holder) and not answer.looks and loop.time() < deadline_s:
                await asyncio.sleep(TELL_AGAIN_S)  # another caller told it a moment ago
                answer = await self._ask(before.cluster_id, broker, self._view.writer_id)
            who = f"the broker with data directory {broker.directory_id}"
            if isinstance(answer, Holder) and answer.looks:
                self._log_line(
                    Event.BROKER_TAKE_OVER.line(
                        f"{who} was told at {_addresses(broker)} that it is replaced, and acknowledges nothing more;"
                        f" on its disk alone are, and stay, {answer.untiered_bytes} bytes of"
                        f" {answer.untiered_partitions} partitions",
                        untiered_bytes=answer.untiered_bytes,
                        untiered_partitions=answer.untiered_partitions,
                    )
                )
            else:
                self._log_line(
                    Event.BROKER_TAKE_OVER.line(
                        f"{who} did not answer at {_addresses(broker)}: if it still runs, it may acknowledge records until it"
                        f" next looks at the store, {BEAT_INTERVAL_MS // 1000} s at most, or for as long as it is cut off from the"
                        " store too; these records would be lost"
                    )
                )

    def records(self, image: ClusterImage) -> list[KeyValue]:
        """The records that register this broker, and create the cluster if there is none."""
        records: list[KeyValue] = []
        now_ms = self._clock.now_ms()
        if not image.cluster_id:
            # Kafka's form of a cluster id: 16 bytes in URL-safe base 64.
            cluster_id = base64.urlsafe_b64encode(self._rng.randbytes(16)).rstrip(b"=").decode()
            records.append(cluster_change(ClusterRecord(1, cluster_id, now_ms)))
        broker_epoch = 1 + max((broker.broker_epoch for broker in image.brokers.values()), default=-1)
        record = BrokerRecord(
            1,
            self._view.identity.directory_id,
            self._view.identity.incarnation,
            broker_epoch,
            self._endpoints,
            self._view.config.broker_rack,
            now_ms,
            self._view.config.firn_instance_id,
        )
        records.append(broker_change(self._view.identity.broker_id, record))
        return records

    async def _patiently(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry until the store or Redis responds, up to the read deadline. Raises: StorageUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timings.read_deadline_s
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await request()
            except TimeoutError:
                raise StorageUnavailable("No answer to a sign of life, or to a question for one.") from None
            except StorageUnavailable:
                if loop.time() + 1 >= deadline_s:
                    raise
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))

    # --- signs of life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Give signs of life and watch for a replacement, until cancelled. Raises: FencedError."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_MS / 1000)
            try:
                await self.heartbeat()
            except (StorageUnavailable, CorruptionError) as error:
                # Two of three beats may be lost, and a replacement is found out by the next append at the latest.
                sentence = f"no sign of life given, or no look at the cluster log: {error}"
                self._faults.met("the heartbeat of", f"broker {self._view.identity.broker_id}", sentence)

    async def heartbeat(self) -> None:
        """Send one heartbeat, and check once for a replacement. Raises: FencedError, StorageUnavailable."""
        self._view.check_not_fenced()
        silent: StorageUnavailable | None = None
        try:
            async with asyncio.timeout(self._timings.attempt_timeout_s):
                await self._liveness.beat(self._view.identity)
        except TimeoutError:
            silent = StorageUnavailable(f"A sign of life was not taken within {self._timings.attempt_timeout_s:g} s.")
        except StorageUnavailable as error:
            silent = without_frames(error)
        # Whether or not others hear of us, we must hear of a replacement.
        await self._view.look()
        if silent is not None:
            raise copy_of(silent)

    async def leave(self) -> None:
        """After the end of ``run``: let another directory start at once. Does nothing if the broker is fenced."""
        if not self._view.fenced:
            try:
                async with asyncio.timeout(self._timings.attempt_timeout_s):
                    await self._liveness.leave(self._view.identity)
            except (StorageUnavailable, TimeoutError) as error:
                _logger.warning("the last sign of life stays: %s", str(error) or "no answer in time")


def _commits_alone(image: ClusterImage, broker_id: BrokerId) -> bool:
    """Whether there is a partition whose only replica in sync is this broker. Of others it can commit nothing once it is fenced:
    it cannot change the in-sync set, and the other members refuse its epoch."""
    return any(
        partition.isr == (broker_id,) and not partition.durability.by_log
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def _had_alone(image: ClusterImage, broker_id: BrokerId) -> bool:
    """Whether there is a partition that this broker alone had. One that does not know that it is fenced may still lead it."""
    return any(
        (broker_id,) in (partition.isr, partition.replicas) and not partition.durability.by_log
        for topic in image.topics_by_name.values()
        for partition in topic.partitions
    )


def mend_of_one_broker(image: ClusterImage) -> str:
    """How more brokers can join a cluster of level 0, in a sentence."""
    broker = image.brokers.get(image.controller.broker_id)
    where = f" --bootstrap {broker.host}:{broker.port}" if broker is not None and broker.endpoints else ""
    which = f"broker {image.controller.broker_id}" if broker is not None else "its broker"
    return (
        f"To let more brokers join, run `firn cluster features --upgrade {LEVEL_FEATURE}=1{where}`, restart {which}, and start this"
        " one again."
    )


def _addresses(broker: BrokerImage) -> str:
    return ", ".join(f"{one.host}:{one.port}" for one in broker.endpoints) or "no address"
