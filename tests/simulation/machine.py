"""The machines of a cluster of one broker: each may run the broker, and another one may take its place."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING
from uuid import UUID

from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import holder
from app.core.errors import FirnError
from app.metadata.image.records import Endpoint
from app.metadata.peers.place import Holder
from app.wire.apikeys import ApiKey
from app.wire.private import PlaceRequest, PlaceResponse, pack, unpack
from tests.sim.loop import Process
from tests.sim.machine import BrokerMachine
from tests.sim.wire import Wire
from tests.simulation.history import PartitionHistory

if TYPE_CHECKING:
    from tests.simulation.world import World


async def _reaches_nobody(_protocol: object, host: str, port: int) -> None:
    """Brokers with one node id have nothing to ask of each other, but whether they have a place."""
    raise ConnectionRefusedError(f"{host}:{port}")


class SimPlaces:
    """A machine's way to the others, by their names."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | None:
        world = self._world
        machine = next((one for one in world.machines if one.name == endpoint.host), None)
        if world.brokers_cut_apart or machine is None:
            await world.loop.create_future()
        assert machine is not None
        if not machine.up or machine.node is None or machine.process is None or machine.process.dead:
            return None
        if machine.process.paused and world.paused_hear_nothing:
            await world.loop.create_future()
        wire = Wire(world.loop, world.new_rng(), machine.process, machine.node.server, world.outside, 0.0)
        machine.wires.append(wire)
        asked = PlaceRequest(cluster_id, node_id, directory_id, replaced_by)
        try:
            return holder(unpack(PlaceResponse, await wire.ask(ApiKey.FIRN_PLACE, 0, pack(asked))))
        except ConnectionResetError:
            return None
        finally:
            wire.close()


class Machine(BrokerMachine):
    """See the module."""

    world: World

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, world.clock)
        self.worst = "clean"
        """The worst that has happened to this disk since the broker on it last began to serve: clean, kill or power."""
        self.rotten = False
        """Some bit of it has changed by itself."""
        self.ended = asyncio.Event()
        self.wires: list[Wire] = []

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self, *, take_over: bool = False) -> None:
        """Start a broker; ``world.serving`` is told when it serves, ``ended`` is set when it has ended by itself."""
        world = self.world
        process = self._begin(f"{self.name}{self.starts + 1}", take_over)
        world.challenged = world.challenged or self is not world.owner
        self.ended = asyncio.Event()
        rng = world.new_rng()
        config = self._config(
            take_over=take_over,
            firn_chunk_cache_bytes=world.chunk_cache_bytes,
            log_cleaner_backoff_ms=150,
            group_consumer_assignment_interval_ms=world.assignment_interval_ms,
            group_share_assignment_interval_ms=world.assignment_interval_ms,
        )
        self._run(
            process,
            config,
            rng,
            rng,
            places=SimPlaces(world),
            new_link=lambda: KafkaControlLink(dial=_reaches_nobody),
            new_level=world.new_level,
        )

    def _serves(self, process: Process) -> None:
        self.world.serving(self)

    def _failed(self, error: FirnError) -> None:
        if self.worst == "clean":
            self.worst = "kill"

    def _end(self, process: Process, *, told: bool) -> None:
        super()._end(process, told=told)
        self.gone()

    def _ended(self) -> None:
        self.ended.set()

    def gone(self) -> None:
        """Whoever was connected is cut off."""
        self.up = False
        for wire in self.wires:
            wire.cut()
        self.wires.clear()

    # --- death ------------------------------------------------------------------------------------------------------

    def crash(self, how: str) -> None:
        alive = self.alive
        super().crash(how)
        if alive or self.worst != "clean":
            self.worst = "power" if "power" in (how, self.worst) else "kill"

    def _crashed_within(self, how: str) -> None:
        self.world.crashed(self)

    def _disk_changed(self, call: str, path: str) -> None:
        with self.world.judging():
            if call == "rename" and path.endswith(".log.deleted"):
                self.world.no_gap_no_overlap.local_dropped(self, path.removesuffix(".deleted"))
        if self.world.dies_at_swap and call == "rename" and path.endswith(".log.swap"):
            self.world.dies_at_swap = False
            self.crash_within(self.world.rng.randint(1, 10), "kill")
        super()._disk_changed(call, path)

    # --- looking ----------------------------------------------------------------------------------------------------

    def epoch_of(self, history: PartitionHistory, offset: int) -> int:
        log = self.node.logs.get(history.topic, history.index) if self.node is not None and self.up else None
        if log is None or log.topic_id != history.topic_id:
            return -1
        return int(log.epoch_of(offset))  # type: ignore[arg-type]

    def segment_path(self, history: PartitionHistory, offset: int) -> str | None:
        """The local file that holds an offset."""
        log = self.node.logs.get(history.topic, history.index) if self.node is not None else None
        if log is None or log.topic_id != history.topic_id:
            return None
        for segment in log.segments():
            if segment.base_offset <= offset < segment.end_offset:
                return segment.path
        return None


def rng_of(seed: object) -> random.Random:
    return random.Random(f"{seed}")
