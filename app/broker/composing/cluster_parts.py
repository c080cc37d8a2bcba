"""The parts of a node that stand for its place in the cluster: made before the cluster log is read.

Tests: ``tests/broker/test_node.py``, ``tests/broker/test_cluster.py``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from app.broker.composing.listening import Addresses
from app.broker.composing.local_parts import DataDirectory, LocalParts
from app.broker.composing.node_seams import NodeLink, NodeSeams
from app.broker.composing.object_journal import ObjectJournal
from app.broker.composing.stages import Background, first_error
from app.broker.partitions.partitions import Partitions
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId
from app.handlers.state.acknowledging import AcknowledgementGate
from app.hot.manager import LoadReport
from app.metadata.image.wal_ranges import WalId
from app.metadata.membership.member import ClusterMember
from app.metadata.membership.membership import Membership
from app.metadata.peers.liveness import ObjectLiveness
from app.metadata.view.view import ClusterView

SEAL_S: Final = 5.0
"""A write-ahead log that cannot be sealed for this time is logged, and retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """A broker's membership, and the partitions that it keeps in line with the image."""

    directory: DataDirectory
    link: NodeLink | None
    """Reaches the other brokers; None without a network."""
    membership: Membership
    gate: AcknowledgementGate
    partitions: Partitions
    journal: ObjectJournal

    @property
    def view(self) -> ClusterView:
        """This broker's copy of the cluster's metadata."""
        return self.membership.view

    @property
    def member(self) -> ClusterMember | None:
        """This broker as one of several; None while it is alone (level 0)."""
        return self.membership.member

    @property
    def link_of_several(self) -> NodeLink | None:
        """Reaches the other brokers; None on a broker that is alone."""
        return self.link if self.member is not None else None


class LogSealer:
    """Ends write-ahead logs of brokers that lead no more."""

    def __init__(self, around: NodeSeams, broker_id: BrokerId) -> None:
        self._around = around
        self._broker_id = broker_id

    async def seal(self, wal: WalId) -> int:
        """End a write-ahead log. Returns: the number of its seal. Raises: StorageUnavailable, CorruptionError."""
        from app.wal.taker import seal

        around = self._around
        return await seal(
            around.store, wal, sealer=self._broker_id, clock=around.clock, rng=around.rng, deadline_s=SEAL_S
        )


def new_cluster_parts(
    config: BrokerConfig,
    around: NodeSeams,
    registry: Registry,
    faults: Faults,
    *,
    local: LocalParts,
    directory: DataDirectory,
    addresses: Addresses,
    background: Background,
) -> ClusterParts:
    """Make the parts. ``addresses`` are bound, as far as this broker listens."""
    link = around.new_link() if around.new_link is not None else None
    objects = ObjectLiveness(around.store, rng=around.rng, clock=around.clock)
    last_run, meta = directory.last_run, directory.meta
    membership = Membership(
        around.store,
        config=config,
        directory_id=directory.directory_id,
        endpoints=addresses.endpoints,
        liveness=around.liveness or objects,
        signs=objects,
        rng=around.rng,
        clock=around.clock,
        take_over=config.take_over,
        expected_cluster_id=meta.cluster_id if meta is not None else None,
        timings=around.timings,
        places=around.places,
        log_line=around.log_line,
        faults=faults,
        link=link,
        boot_id=around.boot_id,
        last_run=(last_run.broker_epoch, last_run.clean, last_run.boot_id),
        last_runs=directory.runs,
        seal_log=LogSealer(around, BrokerId(config.node_id)).seal,
        new_level=around.new_level,
        start_pulses=around.start_pulses,
        elapsed_s=around.elapsed_s,
    )
    # Before the registration: a broker that stands still after its registration may have been replaced.
    gate = AcknowledgementGate(around.boot_s, around.log_line)
    partitions = Partitions(
        config,
        membership=membership,
        logs=local.logs,
        remote_log_manager=local.remote_log_manager,
        store=around.store,
        work=around.work,
        clock=around.clock,
        rng=around.rng,
        copies=local.manifest_copies,
        timings=around.timings,
        log_line=around.log_line,
        faults=faults,
    )
    journal = ObjectJournal(
        config, around, registry, faults, membership=membership, tier=local.remote_log_manager, background=background
    )
    partitions.held.new_write_ahead = journal.begin
    return ClusterParts(
        directory=directory,
        link=link,
        membership=membership,
        gate=gate,
        partitions=partitions,
        journal=journal,
    )


async def load(local: LocalParts, cluster: ClusterParts) -> LoadReport:
    """Open the logs, list the manifests and register in the cluster log, all at once.

    Raises: StartRefused, StorageUnavailable, CorruptionError.
    """
    ticking = asyncio.create_task(cluster.gate.keep_ticking())
    try:
        async with asyncio.TaskGroup() as together:
            loading = together.create_task(local.logs.load_all())
            together.create_task(cluster.partitions.manifests.prepare())
            together.create_task(cluster.membership.start())
    except BaseExceptionGroup as failures:
        raise first_error(failures) from None
    finally:
        ticking.cancel()
    return loading.result()
