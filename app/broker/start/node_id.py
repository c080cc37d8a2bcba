"""Which node id a broker with ``--node-id auto`` has: its data directory's, or a new one (ADR 0029).

It is known before the ``Node`` is made, and durable in the data directory before the broker registers (B4).

Tests: ``tests/broker/test_node_ids.py``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

from app.configs import BrokerConfig
from app.configs.broker import NODE_ID_AUTO
from app.core.log_events import Event
from app.core.seams import BlockingPool, Clock
from app.hot.checkpoints import MetaProperties
from app.hot.manager import read_meta, write_meta
from app.machine.files import FileSystem
from app.metadata.log.numbered_log import LogTimings
from app.metadata.membership.node_ids import NodeIds
from app.metadata.peers.control import ControlLink
from app.objectstore.api import ObjectStore


async def with_node_id(
    config: BrokerConfig,
    *,
    store: ObjectStore,
    fs: FileSystem,
    pool: BlockingPool,
    rng: random.Random,
    clock: Clock,
    link: ControlLink,
    log_line: Callable[[str], None],
    timings: LogTimings | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> BrokerConfig:
    """``config`` with the broker's node id. The caller has the lock of the data directory.

    Raises: StartRefused, StorageUnavailable, CorruptionError.
    """
    if config.node_id != NODE_ID_AUTO:
        return config
    meta = await pool.run(lambda: read_meta(fs, config.data_dir))
    if meta is None:
        directory_id = uuid.UUID(bytes=rng.randbytes(16), version=4)
        ids = NodeIds(
            store,
            link,
            config=config,
            directory_id=directory_id,
            rng=rng,
            clock=clock,
            timings=timings,
            log_line=log_line,
            stopping=stopping,
        )
        try:
            given = await ids.obtain()
        finally:
            await link.close()
        meta = MetaProperties(given.cluster_id, given.node_id, directory_id)
        await pool.run(lambda: write_meta(fs, config.data_dir, meta))
        log_line(
            Event.BROKER_NODE_ID.line(
                f"this broker has node id {meta.node_id} from now on, and keeps it in {config.data_dir}",
                broker_id=int(meta.node_id),
            )
        )
    return replace(config, node_id=int(meta.node_id))
