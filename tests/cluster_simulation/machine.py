"""A simulated machine of a cluster: disk, clock, boots, its way to the bucket, and the broker that runs on it, if one does.

The clock of each machine has its own error. The loop's time, which counts seconds and not hours, runs equally fast everywhere: a
crystal that drifts is not modelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from app.broker.node import Node, NodeSeams
from app.broker.peers.control_link import CONNECT_MS, KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.configs import BrokerConfig
from app.core.errors import FirnError
from app.handlers.serving.server import KafkaServer
from app.hot.log import PartitionLog
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import LEVEL_MAX, Endpoint
from app.metadata.log.numbered_log import LogTimings
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer, RegisterRequest, RegisterResponse
from app.metadata.peers.pulses import TurnBoard
from app.tiering.store.store_work import InlineStoreWork
from app.wire.fetch import FetchPartition, FetchRequest
from tests.cluster_simulation.levels import PROGRAM
from tests.cluster_simulation.network import Network
from tests.cluster_simulation.sim_pulses import SimPulses
from tests.sim.bucket import ProcessStore
from tests.sim.disk import ProcessFiles, SimDisk
from tests.sim.loop import Process, ProcessDied
from tests.simulation.machine import SESSION_MS, SHARE_LOCK_MS
from tests.support.virtual_loop import VirtualClock, VirtualPool

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

Late: TypeAlias = Callable[[KafkaControlLink], Awaitable[object]]
"""Something that was sent, to be sent over another link."""

DATA_DIR = "/data"
PORT = 9092
TIMINGS = LogTimings(append_deadline_s=4.0, attempt_timeout_s=1.0, read_deadline_s=4.0)


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


class _WatchedStore(ProcessStore):
    """A process's way to the bucket, with a witness of what it offers."""

    world: World

    async def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self.world.judging():
            self.world.one_writer.offered(key, bytes(data))
        await super().put_if_absent(key, data)


class ClusterMachine:
    """See the module."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"n{node_id}"
        self.clock = VirtualClock(world.loop)
        self.disk = self._new_disk()
        self.powered = True
        self.boots = 1
        self.process: Process | None = None
        self.node: Node | None = None
        self.store: ProcessStore | None = None
        self.link: SimLink | None = None
        self.pulses: SimPulses | None = None
        self.bucket_cut = False
        self.up = False
        """A broker serves here."""
        self.wanted = True
        """Somebody is to start it again when it is down."""
        self.exit: BaseException | None = None
        self.starts = 0
        self.program = self.runs = LEVEL_MAX
        """The level that the program understands that is installed, and the one that was started last."""
        self.descriptors_max = 256
        self.ends: dict[tuple[UUID, int], int] = {}
        """What its replicas had stored when its process died last."""
        self._die_after: int | None = None
        self._die_how = "kill"

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(self.world.new_rng(), lambda: int(self.clock.now_ms()))
        disk.on_change = self._disk_changed
        return disk

    @property
    def alive(self) -> bool:
        """Whether a process runs, paused or not."""
        return self.process is not None and not self.process.dead

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    def controller(self) -> BrokerImage:
        """As of the durable log."""
        image = self.world.newest
        return image.brokers[image.controller.broker_id]

    def listening(self) -> KafkaServer | None:
        """The server that accepts connections here now."""
        if self.node is None or not self.alive or self.node.server is None:
            return None
        server = self.node.server
        return None if server.loop is None or server._closed or self.node._fenced is not None else server

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.alive, f"a broker runs on {self.name}"
        world = self.world
        self.starts += 1
        self.exit = None
        self.powered = True
        self.runs = self.program
        process = self.process = Process(world.loop, f"{self.name}.{self.starts}")
        process.context.run(PROGRAM.set, self.runs)
        world.processes.append(process)
        world.trace("start", process.name)
        rng = world.new_rng()
        pool_rng = world.new_rng()
        pool = VirtualPool(lambda: world.pool_latency_s(pool_rng))
        files = ProcessFiles(process, self.disk)
        store = self.store = _WatchedStore(process, world.bucket, world.new_rng(), world.outside, world.trace_store)
        store.world = world
        store.cut_off = self.bucket_cut
        config = BrokerConfig(
            data_dir=DATA_DIR,
            node_id=self.node_id,
            advertised_host=self.name,
            advertised_port=PORT,
            topic_defaults=world.topic_defaults,
            auto_create_topics_enable=False,
            remote_log_manager_task_interval_ms=1500,
            log_retention_check_interval_ms=1500,
            firn_chunk_cache_bytes=40_000,
            firn_read_ahead_bytes=4000,
            firn_log_dir_free_bytes_min=0,
            firn_cluster_log_key=world.log_key,
            offsets_topic_num_partitions=2,
            transaction_state_log_num_partitions=2,
            share_coordinator_state_topic_num_partitions=2,
            log_cleaner_backoff_ms=500,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=50,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_assignment_interval_ms=200,
            group_share_session_timeout_ms=SESSION_MS,
            group_share_assignment_interval_ms=200,
            group_share_record_lock_duration_ms=SHARE_LOCK_MS,
            group_share_delivery_count_limit=1000,
        )
        objects = world.objects
        if objects is not None:
            config = objects.broker_config(config)
        node = self.node = Node(
            config,
            NodeSeams(
                clock=self.clock,
                rng=rng,
                pool=pool,
                fs=files,  # type: ignore[arg-type] # forwards all of it
                store=store,
                work=InlineStoreWork(
                    store,
                    files,  # type: ignore[arg-type]
                    pool,
                    rng,
                    part_bytes=1500,
                    part_deadline_s=3.0,
                    get_deadline_s=3.0,
                ),
                log_line=lambda line: world.trace("line", process.name, line),
                descriptors_max=self.descriptors_max,
                timings=TIMINGS,
                boot_s=world.loop.time,
                places=KafkaPlaces(dial=world.network.dialer(self.name, process)),
                new_link=lambda: SimLink(self, world.network, process),
                boot_id=f"{self.name}-{self.boots}",
                start_pulses=(lambda board: self._start_pulses(process, board)) if world.shape.pulses else None,
                new_level=self._new_level(),
            ),
        )
        process.spawn(self._serve(node, process))

    def _new_level(self) -> int:
        """Of the cluster that is made."""
        if self.world.objects is not None:
            return self.world.objects.new_level
        return LEVEL_MAX if self.world.shape.pulses else 0 if self.world.shape.from_0 else 1

    def _start_pulses(self, owner: Process, board: TurnBoard) -> SimPulses:
        self.pulses = SimPulses(self, owner, board)
        return self.pulses

    async def _serve(self, node: Node, process: Process) -> None:
        try:
            try:
                await node.start(listen=False)
                await node.run(lambda: self._ready(process))
            finally:
                self.up = False
                await node.stop()
            self.world.trace("stopped", process.name)
        except FirnError as error:
            self.exit = error
            with self.world.judging():
                self.world.levels.ended(self, error)
            self.world.trace("exit", process.name, type(error).__name__, str(error))
        except ProcessDied:
            raise
        except BaseException as error:
            if process.dead:
                raise
            self.world.fail(error)
            raise
        self._remember_ends()
        process.kill()
        self.world.network.process_died(process, told=True)
        self.disk.kill()

    def _ready(self, process: Process) -> None:
        process.check()
        self.world.trace("serves", process.name)
        with self.world.judging():
            self.world.levels.serves(self)
        self.up = True

    def stop(self) -> None:
        """Ask the broker to end in order."""
        if self.node is not None and self.process is not None and self.alive:
            self.world.trace("stop", self.process.name)
            self.process.call_at(self.world.loop.time(), self.node.request_stop)

    # --- death ------------------------------------------------------------------------------------------------------

    def crash(self, how: str) -> None:
        """``kill`` the process, or cut the ``power``: then the disk forgets what it had not made durable."""
        self._die_after = None
        process = self.process
        self.world.trace("crash", self.name, how)
        if process is not None and not process.dead:
            self._remember_ends()
            process.kill()
            self.world.network.process_died(process, told=how == "kill")
            if self.pulses is not None:
                self.pulses.process.kill()
                self.world.network.process_died(self.pulses.process, told=how == "kill")
        self.up = False
        if how == "power":
            self.disk.crash()
            self.powered = False
            self.boots += 1
        else:
            self.disk.kill()

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

    def crash_within(self, changes: int, how: str) -> None:
        """Crash in the middle of things: after so many more changes of the disk."""
        self._die_after, self._die_how = changes, how

    def _disk_changed(self, call: str, path: str) -> None:
        if self._die_after is None or not self.alive:
            return
        self._die_after -= 1
        if self._die_after <= 0:
            process = self.process
            assert process is not None
            self.crash(self._die_how)
            self.world.crashed(self, self._die_how)
            raise ProcessDied(process.name)

    def cut_bucket(self, cut: bool) -> None:
        """Cut this machine off from the bucket, or heal that."""
        self.bucket_cut = cut
        if self.store is not None:
            self.store.cut_off = cut
