"""The machines of a cluster: each has a clock, boots, a network, a thread for pulses, and a way to the bucket of its own.

The clock of each machine has its own error. The loop's time, which counts seconds and not hours, runs equally fast everywhere: a
crystal that drifts is not modelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from app.broker.node import Node
from app.broker.peers.control_link import CONNECT_MS, KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.core.errors import FirnError
from app.handlers.serving.server import KafkaServer
from app.hot.log import PartitionLog
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import LEVEL_MAX, Endpoint
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer, RegisterRequest, RegisterResponse
from app.metadata.peers.pulses import TurnBoard
from app.wire.fetch import FetchPartition, FetchRequest
from tests.cluster_simulation.levels import PROGRAM
from tests.cluster_simulation.sim_pulses import SimPulses
from tests.sim.loop import Process
from tests.sim.machine import BrokerMachine
from tests.sim.network import Network
from tests.support.virtual_loop import VirtualClock

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

Late: TypeAlias = Callable[[KafkaControlLink], Awaitable[object]]
"""Something that was sent, to be sent over another link."""

PORT = 9092


class SimLink(KafkaControlLink):
    """The broker's own link, over the simulated network."""

    def __init__(self, machine: ClusterMachine, network: Network, process: Process) -> None:
        self._machine = machine
        self._dialer = network.dialer(machine.name, process)
        super().__init__(dial=self._dialer)
        machine.link = self
        self._registration: Late | None = None
        self._beat: Late | None = None

    @property
    def sent(self) -> list[Late]:
        """The last registration and the last heartbeat, to be sent again."""
        return [one for one in (self._beat, self._registration) if one is not None]

    async def register(self, to: BrokerImage, asked: RegisterRequest) -> RegisterResponse:
        self._machine.world.starts[asked.incarnation] = self._machine.starts
        self._registration = lambda link: link.register(self._machine.controller(), asked)
        return await super().register(to, asked)

    async def heartbeat(self, to: BrokerImage, beat: Heartbeat) -> HeartbeatAnswer:
        self._beat = lambda link: link.heartbeat(self._machine.controller(), beat)
        return await super().heartbeat(to, beat)

    async def refuses(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                await self._dialer(lambda: _Knock(), endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False


def last_fetches(node: Node) -> list[Late]:
    """What a broker may have asked its leaders for last, in new sessions."""
    followers, members = node.followers, node.cluster.image.brokers
    requests: list[Late] = []
    if followers is None:
        return requests
    for leader, fetcher in followers._fetchers.items():
        topics: dict[UUID, list[FetchPartition]] = {}
        for followed in fetcher._followed.values():
            topics.setdefault(followed.key.topic_id, []).append(followed.position())
        to = members.get(leader)  # type: ignore[call-overload]
        if to is not None and topics:
            request = FetchRequest(
                replica_id=followers.broker_id,
                replica_epoch=followers.broker_epoch(),
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                topics=list(topics.items()),  # type: ignore[arg-type] # topics by id
            )
            requests.append(lambda link, to=to, request=request: link.fetch(to, request))  # type: ignore[misc]
    return requests


class _Knock(asyncio.BufferedProtocol):
    """Sees whether somebody is there, and leaves."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class ClusterMachine(BrokerMachine):
    """See the module."""

    descriptors_max = 256
    world: World

    def __init__(self, world: World, node_id: int) -> None:
        super().__init__(world, f"n{node_id}", VirtualClock(world.loop))
        self.node_id = node_id
        self.powered = True
        self.link: SimLink | None = None
        self.pulses: SimPulses | None = None
        self.bucket_cut = False
        self.wanted = True
        """Somebody is to start it again when it is down."""
        self.program = self.runs = LEVEL_MAX
        """The level that the program understands that is installed, and the one that was started last."""
        self.ends: dict[tuple[UUID, int], int] = {}
        """What its replicas had stored when its process died last."""

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    def controller(self) -> BrokerImage:
        """As of the durable log."""
        image = self.world.newest
        return image.brokers[image.controller.broker_id]

    def listening(self) -> KafkaServer | None:
        """The server that accepts connections here now."""
        if self.node is None or not self.alive or not self.node.started:
            return None
        server = self.node.server
        return None if server.loop is None or server._closed or self.node._fenced is not None else server

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        process = self._begin(f"{self.name}.{self.starts + 1}")
        self.powered = True
        self.runs = self.program
        process.context.run(PROGRAM.set, self.runs)
        rng = world.new_rng()
        pool_rng = world.new_rng()
        config = self._config(
            node_id=self.node_id,
            advertised_port=PORT,
            firn_chunk_cache_bytes=40_000,
            firn_cluster_log_key=world.log_key,
            log_cleaner_backoff_ms=500,
            group_consumer_assignment_interval_ms=200,
            group_share_assignment_interval_ms=200,
        )
        objects = world.objects
        if objects is not None:
            config = objects.broker_config(config)
        self._run(
            process,
            config,
            rng,
            pool_rng,
            places=KafkaPlaces(dial=world.network.dialer(self.name, process)),
            new_link=lambda: SimLink(self, world.network, process),
            start_pulses=(lambda board: self._start_pulses(process, board)) if world.shape.pulses else None,
            new_level=self._new_level(),
        )
        assert self.store is not None
        self.store.cut_off = self.bucket_cut

    def _new_level(self) -> int:
        """Of the cluster that is made."""
        if self.world.objects is not None:
            return self.world.objects.shape.level
        return LEVEL_MAX if self.world.shape.pulses else 0 if self.world.shape.from_0 else 1

    def _start_pulses(self, owner: Process, board: TurnBoard) -> SimPulses:
        self.pulses = SimPulses(self, owner, board)
        return self.pulses

    def _serves(self, process: Process) -> None:
        self.world.trace("serves", process.name)
        self.world.levels.serves(self)

    def _failed(self, error: FirnError) -> None:
        self.world.levels.ended(self, error)

    # --- death ------------------------------------------------------------------------------------------------------

    def crash(self, how: str) -> None:
        alive = self.alive
        super().crash(how)
        if alive and self.pulses is not None:
            self.pulses.process.kill()
            self.world.network.process_died(self.pulses.process, told=how == "kill")
        self.powered = how != "power" and self.powered

    def _end(self, process: Process, *, told: bool) -> None:
        self._remember_ends()
        super()._end(process, told=told)
        self.world.network.process_died(process, told=told)

    def _crashed_within(self, how: str) -> None:
        self.world.crashed(self, how)

    def lose_disk(self) -> None:
        """The machine comes back with an empty disk."""
        assert not self.alive
        self.disk = self._new_disk()
        self.boots += 1
        self.ends.clear()

    def _remember_ends(self) -> None:
        node = self.node
        if node is not None and node.load_report is not None:
            self.ends = {(log.topic_id, int(log.partition)): self.stored_end_of(log) for log in node.logs.logs()}

    def stored_end_of(self, log: PartitionLog) -> int:
        """What a log has stored here. What an earlier process had synced is so, also if this one has not looked yet."""
        earlier = self.ends.get((log.topic_id, int(log.partition)), 0)
        return max(int(log.stored_end_offset), min(earlier, int(log.log_end_offset)))

    def cut_bucket(self, cut: bool) -> None:
        """Cut this machine off from the bucket, or heal that."""
        self.bucket_cut = cut
        if self.store is not None:
            self.store.cut_off = cut
