"""The parts of one of several brokers that follow leaders, and count followers.

Tests: ``tests/broker/test_replication.py``, ``tests/broker/test_tier_replication.py``, ``tests/broker/test_isolation.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.broker.composing.cluster_parts import ClusterParts
from app.broker.composing.local_parts import OWN_DIRECTORY, LocalParts
from app.broker.composing.node_seams import NodeSeams
from app.broker.composing.stages import Run
from app.broker.partitions.tier_views import TierViews
from app.broker.replication.followers import Followers
from app.broker.replication.high_watermark_file import HighWatermarks
from app.broker.replication.in_sync_sets import InSyncSets
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.turns import Portion
from app.core.units import BrokerId
from app.groups.share.share_coordinator import ShareCoordinator
from app.handlers.base.context import Context
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.membership.member import ClusterMember
from app.replication.throttle import new_throttle

if TYPE_CHECKING:
    from app.broker.write_ahead.switching import DurabilityChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralParts:
    """Made once this broker is known to be one of several."""

    config: BrokerConfig
    around: NodeSeams
    faults: Faults
    local: LocalParts
    cluster: ClusterParts
    context: Context
    shares: ShareCoordinator
    member: ClusterMember
    high_watermarks: HighWatermarks
    followers: Followers
    """Fetches from other leaders."""
    tier_views: TierViews
    """This broker's views of the tier of partitions that it follows."""
    in_sync_sets: InSyncSets

    def follow(self) -> list[Run]:
        """Follow the image from now on, after the partitions. Returns: the parts to run, in their order."""
        partitions, view = self.cluster.partitions, self.cluster.view
        partitions.on_followed(self.tier_views.follow)
        changes = self._durability_changes()
        partitions.on_followed(changes.follow)
        if view.image.level >= OBJECT_LEVEL:
            changes.follow(view.image, ImageDelta.between(ClusterImage(), view.image))
        return [
            self.followers.run,
            self.tier_views.run,
            self.in_sync_sets.run,
            changes.run,
            self.high_watermarks.run,
        ]

    def _durability_changes(self) -> DurabilityChanges:
        from app.broker.write_ahead.switching import DurabilityChanges

        member, cluster = self.member, self.cluster
        return DurabilityChanges(
            cluster.partitions.table,
            broker_id=BrokerId(self.config.node_id),
            image=lambda: cluster.view.image,
            wal=lambda: cluster.journal.write_ahead,
            broker_epoch=lambda: member.broker_epoch,
            tier=self.local.remote_log_manager,
            ask=member.switch,
            drop=member.drop_ranges,
            log_line=self.around.log_line,
            faults=self.faults,
        )

    async def shut_or_open(self, isolated: bool) -> None:
        """Shut the gate of isolation, and end the requests that wait behind it in portions; or open it (ADR 0040)."""
        table = self.cluster.partitions.table
        if not isolated:
            table.open_gate()
            return
        shut = table.shut_gate(self.member.elsewhere())
        self.context.fan_out.forget_all()
        self.shares.leader.end_waits()
        portion = Portion()
        for partition in shut:
            table.end_waits(partition)
            if portion.spent():
                await portion.rest()


def new_several_parts(
    config: BrokerConfig,
    around: NodeSeams,
    faults: Faults,
    *,
    local: LocalParts,
    cluster: ClusterParts,
    member: ClusterMember,
    context: Context,
    shares: ShareCoordinator,
) -> SeveralParts:
    """Make the parts, and join them to the partitions and to the context."""
    partitions, table, link, view = cluster.partitions, cluster.partitions.table, cluster.link, cluster.view
    assert link is not None, "a member reaches the others"
    context.desk, context.passes_on = member.desk, member
    context.hears_controller = member.hears_controller
    context.pulsed = member.pulsed
    context.starting = True
    table.lag_ms_max = config.replica_lag_time_max_ms
    high_watermarks = HighWatermarks(
        table,
        f"{config.data_dir}/{OWN_DIRECTORY}",
        fs=around.fs,
        pool=around.pool,
        faults=faults,
        interval_s=config.replica_high_watermark_checkpoint_interval_ms / 1000,
    )
    followers = Followers(
        table,
        link,
        broker_id=BrokerId(config.node_id),
        broker_epoch=lambda: member.broker_epoch,
        image=lambda: view.image,
        start_at_tier=partitions.start_at_tier,
        throttle=new_throttle(config),
        clock=around.clock,
        faults=faults,
        log_line=around.log_line,
        lower_high_watermark=high_watermarks.lower,
    )
    tier_views = partitions.held.views = TierViews(
        table,
        link,
        broker_id=BrokerId(config.node_id),
        image=lambda: view.image,
        new_manifest=partitions.manifests.new,
        list_manifests=partitions.manifests.list_keys,
        copies=local.manifest_copies,
        clock=around.clock,
        interval_ms=min(config.remote_log_manager_task_interval_ms, config.log_retention_check_interval_ms),
        faults=faults,
    )
    context.followed_tiers = tier_views.followed
    local.remote_log_manager.followed_manifest_of = tier_views.manifest_of
    partitions.manifests.entries = context.manifest_entries = ManifestEntries(view.writer_id)
    several = SeveralParts(
        config=config,
        around=around,
        faults=faults,
        local=local,
        cluster=cluster,
        context=context,
        shares=shares,
        member=member,
        high_watermarks=high_watermarks,
        followers=followers,
        tier_views=tier_views,
        in_sync_sets=InSyncSets(table, lambda: view.image, member, faults=faults),
    )
    member.on_isolated = several.shut_or_open
    return several
