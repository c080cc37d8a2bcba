"""A broker's membership in the cluster: its view, its registration, the controller, and its part among several brokers.

Tests: ``tests/metadata/test_member.py``, ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from app.configs import BrokerConfig, Durability
from app.core.errors import FencedError, StorageUnavailable
from app.core.faults import Faults
from app.core.seams import Clock
from app.core.units import BrokerId
from app.metadata.changes.wal_store_changes import needs_level
from app.metadata.controller.controller import START_TRIES_MAX, Controller
from app.metadata.controller.log_ends import SealLog
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX, OBJECT_LEVEL, Endpoint
from app.metadata.log.numbered_log import LogTimings
from app.metadata.membership.member import ClusterMember, LastRuns
from app.metadata.peers.control import ControlLink
from app.metadata.peers.liveness import Identity, Liveness
from app.metadata.peers.place import Places
from app.metadata.peers.pulses import StartPulses
from app.metadata.view.registration import Registration, StartRefused, mend_of_one_broker
from app.metadata.view.view import ClusterView
from app.objectstore.api import ObjectStore

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
        signs: Liveness | None = None,
        rng: random.Random,
        clock: Clock,
        take_over: bool = False,
        expected_cluster_id: str | None = None,
        timings: LogTimings | None = None,
        places: Places | None = None,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
        link: ControlLink | None = None,
        boot_id: str = "",
        last_run: tuple[int, bool, str] = (-1, False, ""),
        last_runs: LastRuns | None = None,
        seal_log: SealLog | None = None,
        new_level: int = 0,
        start_pulses: StartPulses | None = None,
        elapsed_s: Callable[[], float] | None = None,
    ) -> None:
        """``directory_id`` is the permanent id of the data directory. ``link`` reaches other brokers: without it a cluster of
        several is refused. ``liveness`` is of a broker that is alone, and may be in Redis. ``signs`` are of several brokers, in the
        store; the same as ``liveness`` if not given. ``new_level``: the level of a cluster that is created. The rest: as
        ``ClusterView``, ``Registration``, ``Controller`` and ``ClusterMember``."""
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
        self.controller = Controller(self.view, rng=rng, clock=clock, faults=faults, log_line=log_line)
        self.member: ClusterMember | None = None
        """This broker as one of several; None while it is alone (level 0)."""
        self._new_level = new_level
        self._last_epoch = last_run[0]
        self._rng = rng
        self._new_member = (
            None
            if link is None
            else partial(
                ClusterMember,
                self.view,
                self.controller,
                self.registration,
                link,
                endpoints=endpoints,
                signs=liveness if signs is None else signs,
                places=places,
                rng=rng,
                clock=clock,
                boot_id=boot_id,
                last_run=last_run,
                last_runs=last_runs,
                take_over=take_over,
                seal_log=seal_log,
                store=store,
                start_pulses=start_pulses,
                elapsed_s=elapsed_s,
                log_line=log_line,
                faults=faults,
            )
        )

    async def start(self) -> None:
        """Read the cluster log, and register this broker if it is alone. Where others are registered, ``run`` registers it, because
        it must answer the controller meanwhile: see ``ClusterMember.joined``. An empty store becomes a cluster.

        Raises: StartRefused, StorageUnavailable, CorruptionError.
        """
        log = self.view.log
        await log.load()
        self.registration.check_cluster(log.state.image)
        for _ in range(START_TRIES_MAX):
            image = log.state.image
            level = image.level if image.cluster_id else self._new_level
            self._check_default_durability(level)
            if not level and self.member is None:
                if await self.controller.start(self.registration):
                    return
                continue
            self._check_level(image)
            self._check_not_older(image)
            if self.member is None:
                if self._new_member is None:
                    raise StartRefused("The cluster is of several brokers, and this one cannot reach others.")
                self.member = self._new_member()
            self.view.publish()
            if await self.member.start(self._new_level):
                return
            # The one that was faster has sealed, and its next entry is the cluster, or its registration.
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            await log.poll()
        raise StorageUnavailable("The cluster log is written by others again and again.")

    def _check_level(self, image: ClusterImage) -> None:
        """Raises: StartRefused."""
        if image.cluster_id and not image.level:
            raise StartRefused(
                f"The store holds cluster {image.cluster_id} of one broker ({LEVEL_FEATURE} is 0). {mend_of_one_broker(image)}"
            )
        if image.level > LEVEL_MAX:
            raise StartRefused(
                f"The cluster's {LEVEL_FEATURE} is {image.level}, and this program understands {LEVEL_MAX} at most: start a newer"
                " version."
            )

    def _check_default_durability(self, level: int) -> None:
        """``level``: of the cluster, also of one that is to be made. Raises: StartRefused."""
        if self.view.config.firn_ephemeral and level < OBJECT_LEVEL:
            raise StartRefused(
                f"firn.ephemeral (--ephemeral) needs {LEVEL_FEATURE} {OBJECT_LEVEL}, and the cluster's is {level}: run `firn"
                f" cluster features --upgrade {LEVEL_FEATURE}={OBJECT_LEVEL}` with the brokers that are there, and start again."
            )
        config = self.view.config
        if config.wal_store_url and level < OBJECT_LEVEL:
            raise StartRefused(needs_level(level))
        for name, wanted in (
            ("firn.durability", config.topic_defaults.firn_durability),
            ("firn.internal.durability", config.firn_internal_durability),
        ):
            if wanted == Durability.OBJECT and level < OBJECT_LEVEL:
                raise StartRefused(
                    f"{name}=object needs {LEVEL_FEATURE} {OBJECT_LEVEL}, and the cluster's is {level}: start with"
                    f" another durability, run `firn cluster features --upgrade {LEVEL_FEATURE}={OBJECT_LEVEL}`, and start again."
                )

    def _check_not_older(self, image: ClusterImage) -> None:
        """With a key, a log that lacks this broker's own last registration is not trusted (K11). Raises: StartRefused."""
        mine = self.view.identity
        bound = image.brokers.get(mine.broker_id)
        if not self.view.log.has_key or bound is None or bound.directory_id != mine.directory_id:
            return
        if bound.broker_epoch < self._last_epoch:
            raise StartRefused(
                f"The cluster log is older than this broker's last registration (broker epoch {self._last_epoch}; the log has "
                f"{bound.broker_epoch}): somebody has put an older state of it back, and later changes are gone, of rights too."
                " Restore the newest state; or, if you put it back yourself, remove .firn/registration from the data directory."
            )

    async def run(self) -> None:
        """Make changes, give signs of life and watch for a replacement, until cancelled. Raises: FencedError, StartRefused."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.controller.run())
                group.create_task(self.registration.run() if self.member is None else self.member.run())
        except BaseExceptionGroup as failures:
            refused = failures.split(StartRefused)[0]
            if refused is not None:
                raise first_of(refused) from None
            if failures.split(FencedError)[0] is None:
                raise
        self.view.check_not_fenced()

    async def leave(self) -> None:
        """After the end of ``run``: let another directory start at once. Does nothing if the broker is fenced."""
        await self.registration.leave()


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is not itself a group."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
