"""A whole broker inside the test's own loop: real sockets and a real disk, no child processes.

    async with running_broker(tmp_path) as broker:
        ...  # any Kafka client to 127.0.0.1:broker.port

The store is a directory beside the data (or whatever is given), and store work is done inline. Leaving the block stops the
broker cleanly; the same paths may be started again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from app.broker.composing.node_seams import NodeLink, NodeSeams
from app.broker.node import Node
from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.quota_tokens import Tokens
from app.broker.start.node_id import with_node_id
from app.configs import BrokerConfig, TopicConfig
from app.core.errors import FencedError
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry, Sample
from app.core.seams import Clock
from app.machine.files import FileSystem, PosixFileSystem
from app.machine.runtime import SystemClock, ThreadPool
from app.metadata.image.records import LEVEL_MAX
from app.metadata.peers.liveness import Liveness
from app.metadata.peers.place import Places
from app.metadata.peers.pulses import StartPulses
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.tiering.store.store_work import InlineStoreWork

FEW_PARTITIONS: Final = {
    "offsets_topic_num_partitions": 5,
    "transaction_state_log_num_partitions": 5,
    "share_coordinator_state_topic_num_partitions": 5,
}
"""Of internal topics, where a test says nothing else: Firn's default of 50 takes a tenth of a second for each broker."""
STOOD_STILL: Final = "this broker stood still for"
"""What a broker says in the loop of a test if the test's process was given no time."""


class RunningBroker:
    """What a test is given."""

    def __init__(self, node: Node, store: ObjectStore, lines: list[str]) -> None:
        self.node = node
        self.store = store
        self.lines = lines
        """Notices for the operator, but for those of a machine whose time went elsewhere."""
        self.fenced: FencedError | None = None
        self.ended = asyncio.Event()
        """Set when the broker serves no more."""
        self.serving: asyncio.Task[None] | None = None

    async def kill(self) -> None:
        """End all that the broker does where it stands, and tell nobody. Leave its block soon after, to free what it holds."""
        assert self.serving is not None
        self.serving.cancel()
        await asyncio.wait([self.serving])

    @property
    def port(self) -> int:
        return self.node.port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.node.port}"

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Make a topic; ``configs`` have ``_`` for ``.``."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.node.membership.controller.create_topic(name, partitions, named)

    def log(self, topic: str, partition: int = 0) -> Any:
        found = self.node.logs.get(topic, partition)
        assert found is not None, f"no log of {topic}-{partition}"
        return found


@asynccontextmanager
async def running_broker(
    path: Path,
    *,
    store: ObjectStore | None = None,
    store_registry: Registry | None = None,
    clock: Clock | None = None,
    topic_defaults: TopicConfig | None = None,
    seed: int = 7,
    rng: random.Random | None = None,
    new_level: int = 0,
    boot_id: str = "boot",
    fs: FileSystem | None = None,
    log_line: Callable[[str], None] | None = None,
    new_link: Callable[[], NodeLink] = KafkaControlLink,
    places: Places | None = None,
    liveness: Liveness | None = None,
    descriptors_max: int = 1024,
    new_tokens: Callable[[Callable[[], str]], Tokens] | None = None,
    pool: ThreadPool | None = None,
    start_pulses: StartPulses | None = None,
    store_trouble: Callable[[], str] | None = None,
    **settings: Any,
) -> AsyncIterator[RunningBroker]:
    """Start a broker on ``path/data`` with ``path/store`` as its store; ``settings`` are fields of ``BrokerConfig``.

    ``rng`` instead of ``seed``: a broker that is started again must not draw the same ids. ``new_level``: of a cluster that
    it creates. ``new_link`` makes the ways to other brokers.
    ``descriptors_max``: half of them are for connections.
    ``pool``: its threads, which are ended with it. ``start_pulses``: as ``NodeSeams``; ``time.perf_counter`` is their clock.
    ``fs``: where it has its data, if not on the machine's own file system.
    ``store_trouble``: as ``NodeSeams``.
    ``store_registry``: what a metered ``store`` counts in, shown as the store process's.
    """
    pool = pool or ThreadPool(4)
    rng = rng if rng is not None else random.Random(seed)
    fs = fs or PosixFileSystem()
    object_path = None
    if store is None:
        directory = DirectoryStore(path / "store", pool)
        await directory.open()
        store = directory
        object_path = lambda key: str(path / "store" / key)  # noqa: E731
    lines: list[str] = []

    def note(line: str) -> None:
        if not line.startswith(STOOD_STILL):
            lines.append(line)

    async def store_samples() -> Sequence[Sample]:
        return store_registry.samples() if store_registry is not None else ()

    config = BrokerConfig(
        data_dir=str(settings.pop("data_dir", path / "data")),
        listen_port=settings.pop("listen_port", 0),
        http_address="off",
        topic_defaults=topic_defaults or TopicConfig(),
        firn_log_dir_free_bytes_min=settings.pop("firn_log_dir_free_bytes_min", 0),
        **FEW_PARTITIONS | settings,
    )
    config = await with_node_id(
        config, store=store, fs=fs, pool=pool, rng=rng, clock=clock or SystemClock(), link=new_link(),
        log_line=log_line or note,
    )  # fmt: skip
    node = Node(
        config,
        NodeSeams(
            clock=clock or SystemClock(),
            rng=rng,
            pool=pool,
            fs=fs,
            store=store,
            work=InlineStoreWork(store, fs, pool, rng, object_path=object_path),
            log_line=log_line or note,
            descriptors_max=descriptors_max,
            store_samples=store_samples,
            store_trouble=store_trouble,
            places=places or KafkaPlaces(),
            new_link=new_link,
            new_tokens=new_tokens,
            start_pulses=start_pulses,
            elapsed_s=loop_time_s if start_pulses is None else time.perf_counter,
            boot_id=boot_id,
            liveness=liveness,
            new_level=new_level or (LEVEL_MAX if config.firn_ephemeral else 0),
        ),
    )
    broker = RunningBroker(node, store, lines)
    try:
        await node.start()
        ready = asyncio.Event()

        async def serve() -> None:
            try:
                await node.run(ready.set)
            except FencedError as error:
                broker.fenced = error
                ready.set()
            finally:
                broker.ended.set()

        serving = broker.serving = asyncio.create_task(serve())
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            await serving
        try:
            yield broker
        finally:
            node.request_stop()
            if not serving.cancelled():
                await serving
    finally:
        await node.stop()
        pool.close()
