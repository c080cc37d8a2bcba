"""A simulated machine: a disk that outlives its processes, and the whole broker that runs on it, if one does.

A world says in a class of its own what its brokers are told, and what else their deaths mean.
"""

from __future__ import annotations

import random
from typing import Any

from app.broker.composing.node_seams import NodeSeams
from app.broker.node import Node
from app.configs import BrokerConfig
from app.core.errors import FirnError
from app.metadata.log.numbered_log import LogTimings
from app.tiering.store.store_work import InlineStoreWork
from tests.sim.bucket import ProcessStore
from tests.sim.disk import ProcessFiles, SimDisk
from tests.sim.loop import Process, ProcessDied
from tests.sim.world import WorldOfBrokers
from tests.support.virtual_loop import VirtualClock, VirtualPool

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

    world: WorldOfBrokers

    async def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self.world.judging():
            self.world.one_writer.offered(key, bytes(data))
        await super().put_if_absent(key, data)


class BrokerMachine:
    """See the module. A world's own class starts processes by ``_begin`` and ``_run``."""

    descriptors_max = 128

    def __init__(self, world: WorldOfBrokers, name: str, clock: VirtualClock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.disk = self._new_disk()
        self.process: Process | None = None
        self.node: Node | None = None
        self.store: ProcessStore | None = None
        self.up = False
        """A broker serves here."""
        self.exit: BaseException | None = None
        """The error by which the last broker ended by itself."""
        self.starts = 0
        self.boots = 1
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

    # --- life -------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, *parts: object) -> Process:
        """A new process. ``parts``: what the trace says beside its name."""
        assert not self.alive, f"a broker runs on {self.name}"
        self.starts += 1
        self.exit = None
        process = self.process = Process(self.world.loop, name)
        self.world.processes.append(process)
        self.world.trace("start", process.name, *parts)
        return process

    def _config(self, **more: Any) -> BrokerConfig:
        """Settings by which little time and few bytes are enough. ``more``: fields of ``BrokerConfig``."""
        return BrokerConfig(
            data_dir=DATA_DIR,
            advertised_host=self.name,
            topic_defaults=self.world.topic_defaults,
            auto_create_topics_enable=False,
            remote_log_manager_task_interval_ms=1500,
            log_retention_check_interval_ms=1500,
            firn_read_ahead_bytes=4000,
            firn_log_dir_free_bytes_min=0,
            offsets_topic_num_partitions=2,
            transaction_state_log_num_partitions=2,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=50,
            group_consumer_session_timeout_ms=SESSION_MS,
            share_coordinator_state_topic_num_partitions=2,
            group_share_session_timeout_ms=SESSION_MS,
            group_share_record_lock_duration_ms=SHARE_LOCK_MS,
            group_share_delivery_count_limit=1000,
            **more,
        )

    def _run(
        self, process: Process, config: BrokerConfig, rng: random.Random, pool_rng: random.Random, **seams: Any
    ) -> None:
        """Run a broker in a process. ``seams``: fields of ``NodeSeams`` that each world has its own of."""
        world = self.world
        pool = VirtualPool(lambda: world.pool_latency_s(pool_rng))
        files: Any = ProcessFiles(process, self.disk)  # forwards all of it
        store = self.store = _WatchedStore(process, world.bucket, world.new_rng(), world.outside, world.trace)
        store.world = world
        node = self.node = Node(
            config,
            NodeSeams(
                clock=self.clock,
                rng=rng,
                pool=pool,
                fs=files,
                store=store,
                work=InlineStoreWork(store, files, pool, rng, part_bytes=1500, part_deadline_s=3.0, get_deadline_s=3.0),
                log_line=lambda line: world.trace("line", process.name, line),
                descriptors_max=self.descriptors_max,
                timings=TIMINGS,
                boot_s=world.loop.time,
                boot_id=f"{self.name}-{self.boots}",
                **seams,
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
            with self.world.judging():
                self._failed(error)
            self.world.trace("exit", process.name, type(error).__name__, str(error))
        except ProcessDied:
            raise
        except BaseException as error:
            if process.dead:
                raise
            self.world.fail(error)
            raise
        self._end(process, told=True)
        self.disk.kill()
        self._ended()

    def _ready(self, process: Process) -> None:
        process.check()
        with self.world.judging():
            self._serves(process)
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
        self.world.trace("crash", self.name, how)
        if self.process is not None and self.alive:
            self._end(self.process, told=how == "kill")
        self.up = False
        if how == "power":
            self.boots += 1
            self.disk.crash()
        else:
            self.disk.kill()

    def crash_within(self, changes: int, how: str) -> None:
        """Crash in the middle of things: after so many more changes of the disk."""
        self._die_after, self._die_how = changes, how

    def _disk_changed(self, call: str, path: str) -> None:
        if self._die_after is not None and self.process is not None and self.alive:
            self._die_after -= 1
            if self._die_after <= 0:
                process = self.process
                self.crash(self._die_how)
                self._crashed_within(self._die_how)
                raise ProcessDied(process.name)

    # --- what a world's own class may add -----------------------------------------------------------------------------

    def _serves(self, process: Process) -> None:
        """The broker begins to serve. Raises: Violation."""

    def _failed(self, error: FirnError) -> None:
        """The broker ends by an error. Raises: Violation."""

    def _end(self, process: Process, *, told: bool) -> None:
        """The process ends. ``told``: the machine's kernel lives, and tells its peers."""
        process.kill()

    def _ended(self) -> None:
        """The broker has ended by itself."""

    def _crashed_within(self, how: str) -> None:
        """``crash_within`` has come true."""
