"""What a broker is in the cluster: its view, its registration, and the controller."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from uuid import UUID

from app.configs import BrokerConfig
from app.errors import FencedError
from app.faults import Faults
from app.metadata.cluster import Endpoint
from app.metadata.controller import Controller
from app.metadata.liveness import Identity, Liveness
from app.metadata.numbered_log import LogTimings
from app.metadata.place import Places
from app.metadata.registration import Registration
from app.metadata.view import ClusterView
from app.objectstore.api import ObjectStore
from app.seams import Clock
from app.units import BrokerId

_logger = logging.getLogger(__name__)


class Membership:
    """Belongs to one event loop. Call ``start``, then keep ``run`` running, then ``leave``."""

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
        timings: LogTimings | None = None,
        places: Places | None = None,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        """``directory_id`` is the permanent id of the data directory. The rest: as ``ClusterView``, ``Registration`` and
        ``Controller``."""
        timings = timings if timings is not None else LogTimings()
        identity = Identity(BrokerId(config.node_id), directory_id, UUID(bytes=rng.randbytes(16), version=4))
        self.view = ClusterView(store, config=config, identity=identity, rng=rng, clock=clock, timings=timings)
        self.registration = Registration(
            self.view,
            endpoints=endpoints,
            liveness=liveness,
            rng=rng,
            clock=clock,
            timings=timings,
            take_over=take_over,
            expected_cluster_id=expected_cluster_id,
            places=places,
            log_line=log_line,
            faults=faults,
        )
        self.controller = Controller(self.view, rng=rng, clock=clock, faults=faults)

    async def start(self) -> None:
        """Read the cluster log and register this broker. Raises: StartRefused, StorageUnavailable, CorruptionError."""
        await self.controller.start(self.registration)

    async def run(self) -> None:
        """Make changes, give signs of life and watch for a replacement, until cancelled. Raises: FencedError."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.controller.run())
                group.create_task(self.registration.run())
        except BaseExceptionGroup as failures:
            if failures.split(FencedError)[0] is None:
                raise
        self.view.check_not_fenced()

    async def leave(self) -> None:
        """After the end of ``run``: let another directory start at once. Does nothing if the broker is fenced."""
        await self.registration.leave()
