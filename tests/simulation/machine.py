"""A simulated machine: a disk that outlives its processes, and the broker that runs on it, if one does."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING
from uuid import UUID

from app.broker.node import Node, NodeSeams
from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import holder
from app.configs import BrokerConfig
from app.core.errors import FirnError
from app.metadata.image.records import Endpoint
from app.metadata.log.numbered_log import LogTimings
from app.metadata.peers.place import Holder
from app.tiering.store.store_work import InlineStoreWork
from app.wire.apikeys import ApiKey
from app.wire.private import PlaceRequest, PlaceResponse, pack, unpack
from tests.sim.bucket import ProcessStore
from tests.sim.disk import ProcessFiles, SimDisk
from tests.sim.loop import Process, ProcessDied
from tests.sim.network import Wire
from tests.simulation.history import PartitionHistory
from tests.support.virtual_loop import VirtualPool

if TYPE_CHECKING:
    from tests.simulation.world import World

DATA_DIR = "/data"
SESSION_MS = 800
"""Of members of groups that the broker assigns, and of share groups."""
SHARE_LOCK_MS = 700
"""How long a worker of a share group has a record."""
TIMINGS = LogTimings(append_deadline_s=4.0, attempt_timeout_s=1.0, read_deadline_s=4.0)


class Unreachable(Exception):
    """There is nobody to connect to, or no answer."""


class _WatchedStore(ProcessStore):
    """A process's way to the bucket, with a witness of what it offers."""

    world: World

    async def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self.world.judging():
            self.world.one_writer.offered(key, bytes(data))
        await super().put_if_absent(key, data)


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


class Machine:
    """See the module."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimDisk(world.new_rng(), lambda: int(world.clock.now_ms()))
        self.disk.on_change = self._disk_changed
        self.process: Process | None = None
        self.node: Node | None = None
        self.store: ProcessStore | None = None
        self.up = False
        """A broker serves here."""
        self.worst = "clean"
        """The worst that has happened to this disk since the broker on it last began to serve: clean, kill or power."""
        self.rotten = False
        """Some bit of it has changed by itself."""
        self.exit: BaseException | None = None
        self.ended = asyncio.Event()
        self.wires: list[Wire] = []
        self.starts = 0
        self.boots = 1
        self.descriptors_max = 128
        self._die_after: int | None = None
        self._die_how = "kill"

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self, *, take_over: bool = False) -> None:
        """Start a broker; ``world.serving`` is told when it serves, ``ended`` is set when it has ended by itself."""
        assert self.process is None or self.process.dead, f"a broker runs on {self.name}"
        world = self.world
        self.starts += 1
        self.exit = None
        world.challenged = world.challenged or self is not world.owner
        self.ended = asyncio.Event()
        process = self.process = Process(world.loop, f"{self.name}{self.starts}")
        world.processes.append(process)
        world.trace("start", process.name, take_over)
        rng = world.new_rng()
        pool = VirtualPool(lambda: world.pool_latency_s(rng))
        files = ProcessFiles(process, self.disk)
        store = self.store = _WatchedStore(process, world.bucket, world.new_rng(), world.outside, world.trace)
        store.world = world
        config = BrokerConfig(
            data_dir=DATA_DIR,
            take_over=take_over,
            advertised_host=self.name,
            topic_defaults=world.topic_defaults,
            auto_create_topics_enable=False,
            remote_log_manager_task_interval_ms=1500,
            log_retention_check_interval_ms=1500,
            firn_chunk_cache_bytes=world.chunk_cache_bytes,
            firn_read_ahead_bytes=4000,
            firn_log_dir_free_bytes_min=0,
            offsets_topic_num_partitions=2,
            log_cleaner_backoff_ms=150,
            transaction_state_log_num_partitions=2,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=50,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_assignment_interval_ms=world.assignment_interval_ms,
            group_share_assignment_interval_ms=world.assignment_interval_ms,
            share_coordinator_state_topic_num_partitions=2,
            group_share_session_timeout_ms=SESSION_MS,
            group_share_record_lock_duration_ms=SHARE_LOCK_MS,
            group_share_delivery_count_limit=1000,
        )
        node = self.node = Node(
            config,
            NodeSeams(
                clock=world.clock,
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
                places=SimPlaces(world),
                new_link=lambda: KafkaControlLink(dial=_reaches_nobody),
                boot_id=f"{self.name}-{self.boots}",
                new_level=world.new_level,
            ),
        )
        process.spawn(self._serve(node, process))

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
            self.world.trace("exit", process.name, type(error).__name__, str(error))
            if self.worst == "clean":
                self.worst = "kill"
        except ProcessDied:
            raise
        except BaseException as error:
            if process.dead:
                raise
            self.world.fail(error)
            raise
        self.gone()
        process.kill()
        self.disk.kill()
        self.ended.set()

    def _ready(self, process: Process) -> None:
        process.check()
        with self.world.judging():
            self.world.serving(self)
        self.up = True

    def gone(self) -> None:
        """Whoever was connected is cut off."""
        self.up = False
        for wire in self.wires:
            wire.cut()
        self.wires.clear()

    def stop(self) -> None:
        """Ask the broker to end in order."""
        if self.node is not None and self.process is not None and not self.process.dead:
            self.world.trace("stop", self.process.name)
            node = self.node
            self.process.call_at(self.world.loop.time(), node.request_stop)

    # --- death ------------------------------------------------------------------------------------------------------

    def crash(self, how: str) -> None:
        """Kill the process; with ``power`` the disk forgets what it had not made durable."""
        self._die_after = None
        process = self.process
        self.world.trace("crash", self.name, how)
        alive = process is not None and not process.dead
        if alive:
            assert process is not None
            process.kill()
            self.gone()
        if how == "power":
            self.boots += 1
            self.disk.crash()
        else:
            self.disk.kill()
        if alive or self.worst != "clean":
            self.worst = "power" if "power" in (how, self.worst) else "kill"

    def crash_within(self, changes: int, how: str) -> None:
        """Crash in the middle of things: after so many more changes of the disk."""
        self._die_after, self._die_how = changes, how

    def _disk_changed(self, call: str, path: str) -> None:
        with self.world.judging():
            if call == "rename" and path.endswith(".log.deleted"):
                self.world.no_gap_no_overlap.local_dropped(self, path.removesuffix(".deleted"))
        if self.world.dies_at_swap and call == "rename" and path.endswith(".log.swap"):
            self.world.dies_at_swap = False
            self.crash_within(self.world.rng.randint(1, 10), "kill")
        if self._die_after is not None and self.process is not None and not self.process.dead:
            self._die_after -= 1
            if self._die_after <= 0:
                process = self.process
                self.crash(self._die_how)
                self.world.crashed(self)
                raise ProcessDied(process.name)

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
