"""The write-ahead log of this broker: made when it leads its first partition of a topic with ``firn.durability=object``.

Tests: ``tests/broker/test_object_durability.py``, ``tests/broker/test_object_leaders.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from app.broker.composing.node_seams import NodeSeams
from app.broker.composing.stages import Background
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.units import BrokerId, Offset, TopicIdPartition
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.membership.member import ClusterMember
from app.metadata.membership.membership import Membership
from app.metadata.peers.control import ANYBODY_OR_NOBODY
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.write_ahead.release import Releases
    from app.broker.write_ahead.write_ahead import WriteAhead

RELEASE_S: Final = 4.0
"""How long a stop waits until its leaderships in the write-ahead log are given up."""


class ObjectJournal:
    """Belongs to one event loop. ``begin`` it while the node runs, then ``leave``, then ``close``."""

    def __init__(
        self,
        config: BrokerConfig,
        around: NodeSeams,
        registry: Registry,
        faults: Faults,
        *,
        membership: Membership,
        tier: RemoteLogManager,
        background: Background,
    ) -> None:
        self._broker_id = BrokerId(config.node_id)
        self._around = around
        self._registry = registry
        self._faults = faults
        self._membership = membership
        self._tier = tier
        self._background = background
        self.write_ahead: WriteAhead | None = None
        """None until this broker leads a partition of a topic with ``firn.durability=object``."""
        self._balancing: asyncio.Task[None] | None = None
        """Only on one of several brokers, from ``begin`` on."""

    def begin(self) -> WriteAhead:
        """Make the journal, and run it."""
        from app.broker.write_ahead.write_ahead import WriteAhead

        around = self._around
        self.write_ahead = wal = WriteAhead(
            around.store,
            config=self._effective_config,
            broker_id=self._broker_id,
            image=self._image,
            floor_of=self.floor_of,
            clock=around.clock,
            rng=around.rng,
            registry=self._registry,
            log_line=around.log_line,
            faults=self._faults,
        )
        member = self._membership.member
        if member is not None:
            member.wal_next = lambda: wal.next_number(member.broker_epoch)
            wal.drop_ranges = member.drop_ranges
            wal.on_ended = lambda ended: member.register_again(ended.broker_epoch)
        self._background.start(wal.run)
        if member is not None:
            self._keep_balanced(member, wal)
        return wal

    def _effective_config(self) -> BrokerConfig:
        return self._membership.view.effective_broker_config()

    def _image(self) -> ClusterImage:
        return self._membership.view.image

    def floor_of(self, partition: TopicIdPartition) -> tuple[Offset, Offset] | None:
        """Tiered end and log start of a led partition, below which the journal keeps nothing; None if its manifest is not read."""
        manifest = self._tier.manifest_of(partition)
        return None if manifest is None else (manifest.tiered_end, manifest.log_start_offset)

    def _keep_balanced(self, member: ClusterMember, wal: WriteAhead) -> None:
        """Let brokers that come have their share of the leaderships in write-ahead logs."""
        from app.broker.write_ahead.release import Balance
        from app.metadata.replicas.log_balance import reassigned

        def interval_s() -> float | None:
            config = self._effective_config()
            return config.leader_imbalance_check_interval_seconds if config.auto_leader_rebalance_enable else None

        balance = Balance(
            self._releases(member, wal),
            wal,
            image=self._image,
            broker_id=self._broker_id,
            interval_s=interval_s,
            log_line=self._around.log_line,
        )

        def follow(image: ClusterImage, delta: ImageDelta) -> None:
            topics = [topic for one in delta.topics if (topic := image.topic_by_id(one)) is not None]
            if delta.brokers or reassigned(image, self._broker_id, topics):
                balance.changed()

        self._membership.view.on_change(follow)
        self._balancing = self._background.start(balance.run)

    def _releases(self, member: ClusterMember, wal: WriteAhead) -> Releases:
        from app.broker.write_ahead.release import Releases

        return Releases(
            wal,
            image=self._image,
            broker_id=self._broker_id,
            ask=member.release,
            log_line=self._around.log_line,
        )

    async def leave(self, member: ClusterMember) -> None:
        """Hand this broker's leaderships on: by its own release in its write-ahead log (J49), else by the controller."""
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.wait([self._balancing])
        async with asyncio.TaskGroup() as together:
            together.create_task(member.leave_in_order())
            if self.write_ahead is not None:
                from app.broker.write_ahead.release import leave

                releases, log_line = self._releases(member, self.write_ahead), self._around.log_line
                together.create_task(leave(releases, to=ANYBODY_OR_NOBODY, within_s=RELEASE_S, log_line=log_line))

    async def close(self) -> None:
        """Store what is acknowledged, and end. Raises: as ``WriteAhead.flush`` and ``WriteAhead.close``."""
        if self.write_ahead is not None:
            await self.write_ahead.flush()
            await self.write_ahead.close()
