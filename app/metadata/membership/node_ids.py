"""How a broker without a node id gets one (ADR 0029, B2 to B5).

The controller gives it. Where no broker is registered yet, the broker takes one from the log itself. Nothing is bound to the id
until the broker registers. If the answer is lost, so is the id.

Tests: ``tests/broker/test_node_ids.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.configs import BrokerConfig
from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, StorageUnavailable, clause
from app.core.log_events import Event
from app.core.seams import Clock
from app.core.units import BrokerId
from app.metadata.changes.broker_changes import ANY_NODE_ID, new_node_id
from app.metadata.changes.features import new_store_level
from app.metadata.controller.candidacy import SIGN_STALE_S
from app.metadata.controller.controller import Controller
from app.metadata.image.image import BrokerImage, ClusterImage
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX, CountersRecord, counters_change
from app.metadata.log.log_format import KeyValue
from app.metadata.log.numbered_log import LogTimings
from app.metadata.peers.control import NODE_ID, ChangeRequest, ControlLink, NodeIdChange
from app.metadata.peers.liveness import Identity, ObjectLiveness
from app.metadata.view.registration import StartRefused, mend_of_one_broker
from app.metadata.view.view import ClusterView
from app.objectstore.api import ObjectStore

ASLEEP_LOOKS: Final = 3
"""So many looks in a row must find no living broker before an id is taken by itself (B8). They are ``AGAIN_S`` apart at least, as a
process that is being killed may close its connections before it stops to listen."""
SIGN_S: Final = 5.0
"""How long a look for a sign of life may take."""

QUIET_S: Final = 10.0
"""If no broker is registered, an id is taken only after the log had no new entry for so long (B5): the broker with the first id
is about to register."""
WAIT_S: Final = 60.0
"""How long a controller is waited for."""
AGAIN_S: Final = 0.25
TELL_S: Final = 5.0


class NodeIdGiven(NamedTuple):
    """The cluster and the node id that a broker without an id got."""

    cluster_id: str
    node_id: BrokerId


class NodeIds:
    """One broker's way to its node id. Belongs to one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        link: ControlLink,
        *,
        config: BrokerConfig,
        directory_id: UUID,
        rng: random.Random,
        clock: Clock,
        timings: LogTimings | None = None,
        log_line: Callable[[str], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stopping`` says whether the operator wants the broker to end."""
        self._store = store
        self._link = link
        self._config = config
        self._directory_id = directory_id
        self._rng = rng
        self._clock = clock
        self._timings = timings if timings is not None else LogTimings()
        self._log_line = log_line
        self._stopping = stopping
        self._signs = ObjectLiveness(store, rng=rng, clock=clock)

    async def obtain(self) -> NodeIdGiven:
        """An id that no other broker has or gets. An empty store becomes a cluster of several brokers.

        Raises: StartRefused (a cluster of one broker; no controller gives an id), StorageUnavailable, CorruptionError.
        """
        loop = asyncio.get_running_loop()
        view = self._view(ANY_NODE_ID)
        await view.log.load()
        began_s = changed_s = told_s = loop.time()
        why = ""
        looks = 0
        while True:
            image = view.log.state.image
            self._check(image)
            if not image.brokers:
                if not image.cluster_id or loop.time() - changed_s >= QUIET_S:
                    given = await self._take_one(image)
                    if given is not None:
                        return given
            else:
                node_id, why = await self._ask(image)
                if node_id is not None:
                    return NodeIdGiven(image.cluster_id, node_id)
                quiet = image.controller.broker_id in image.brokers or loop.time() - changed_s >= QUIET_S
                asleep = self._config.firn_ephemeral and quiet and await self._is_asleep(image)
                looks = looks + 1 if asleep else 0
                if asleep and all(broker.fenced for broker in image.brokers.values()):
                    looks = ASLEEP_LOOKS  # the last one has stopped in order, and no process listens at its address
                if looks >= ASLEEP_LOOKS:
                    given = await self._take_one(image)
                    if given is not None:
                        return given
                    looks = 0
            now_s = loop.time()
            if now_s - began_s >= WAIT_S:
                raise StartRefused(
                    f"Nobody gave this broker a node id within {WAIT_S:.0f} s: {why or 'the first broker does not register'}."
                    " Start a broker that is in the cluster already, then this one."
                )
            if now_s - told_s >= TELL_S:
                told_s = now_s
                self._log_line(
                    Event.BROKER_WAITS.line(
                        f"waits for a node id: {why or 'the first broker of the cluster is still starting'}"
                    )
                )
            await asyncio.sleep(self._rng.uniform(AGAIN_S, 2 * AGAIN_S))
            if self._stopping():
                raise StartRefused("The broker was stopped before it had a node id.")
            if await view.log.poll():
                changed_s = loop.time()

    def _check(self, image: ClusterImage) -> None:
        """Raises: StartRefused."""
        if not image.cluster_id:
            return
        if not image.level:
            raise StartRefused(
                f"The store holds cluster {image.cluster_id} of one broker ({LEVEL_FEATURE} is 0), so there is no node id for a"
                f" second one. {mend_of_one_broker(image)}"
            )
        if image.level > LEVEL_MAX:
            raise StartRefused(
                f"The cluster's {LEVEL_FEATURE} is {image.level}, and this program understands {LEVEL_MAX} at most: start a newer"
                " version."
            )

    async def _ask(self, image: ClusterImage) -> tuple[BrokerId | None, str]:
        """The controller's answer, or why there is none."""
        controller = image.brokers.get(image.controller.broker_id)
        if controller is None:
            return None, "there is no controller"
        asked = ChangeRequest(image.cluster_id, ANY_NODE_ID, -1, NODE_ID, b"")
        where = _named(controller)
        try:
            answer = await self._link.change(controller, asked)
            if not answer.error:
                return BrokerId(msgspec.msgpack.decode(answer.body, type=NodeIdChange).node_id), ""
        except (BrokerUnavailable, ProtocolError, msgspec.MsgspecError) as error:
            return None, f"the controller, {where}, does not answer ({clause(error)})"
        if answer.error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return None, f"at the address of {where} answers a broker of another cluster"
        return None, f"{where} is not the controller any more"

    async def _is_asleep(self, image: ClusterImage) -> bool:
        """Whether none of the brokers lives that could be, or become, the controller: the address of each refuses connections, or
        it has given no sign of life in the store for so long that a broker of the cluster would seal, too (C4)."""
        asked = [
            broker
            for broker_id, broker in image.brokers.items()
            if not broker.fenced or broker_id == image.controller.broker_id
        ]
        return all(await asyncio.gather(*map(self._is_gone, asked)))

    async def _is_gone(self, broker: BrokerImage) -> bool:
        if broker.endpoints and await self._link.refuses(broker.endpoints[0]):
            return True
        try:
            async with asyncio.timeout(SIGN_S):
                age_ms = await self._signs.age_ms(broker.broker_id, broker.directory_id)
        except (StorageUnavailable, TimeoutError):
            return False
        return age_ms is None or age_ms / 1000 >= SIGN_STALE_S

    async def _take_one(self, seen: ClusterImage) -> NodeIdGiven | None:
        """Seal the log, and take the next id with the entry after the seal, which also creates the cluster if there is none (B2).

        Returns: None if another writer was faster. Raises: StorageUnavailable, CorruptionError.
        """
        view = self._view(new_node_id(seen))
        await view.log.load()
        image, node_id = view.log.state.image, view.identity.broker_id
        if image.brokers != seen.brokers or image.controller != seen.controller or new_node_id(image) != node_id:
            return None
        self._check(image)
        controller = Controller(view, rng=self._rng, clock=self._clock)
        counter: list[KeyValue] = [counters_change(CountersRecord(1, node_id + 1))]
        if not image.cluster_id:
            won = await controller.create_cluster(self._new_level(), counter)
        else:
            won = await controller.take_office(counter)
        return NodeIdGiven(view.log.state.image.cluster_id, node_id) if won else None

    def _new_level(self) -> int:
        """Raises: StartRefused."""
        level = new_store_level(self._config.firn_new_store_level)
        if not level:
            raise StartRefused(
                "firn.new.store.level=0 makes the store that of one broker, whose node id is not given by the cluster: start"
                " without --node-id auto, or with a higher level."
            )
        return level

    def _view(self, node_id: int) -> ClusterView:
        identity = Identity(BrokerId(node_id), self._directory_id, UUID(bytes=self._rng.randbytes(16), version=4))
        return ClusterView(
            self._store,
            config=self._config,
            identity=identity,
            rng=self._rng,
            clock=self._clock,
            timings=self._timings,
        )


def _named(broker: BrokerImage) -> str:
    return f"broker {broker.broker_id} at {broker.host}:{broker.port}"
