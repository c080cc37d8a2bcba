"""The parts of a node that serve clients: made when the logs are open and the metadata is read.

Tests: ``tests/broker/test_node.py``, ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from app.broker.composing.cluster_parts import ClusterParts
from app.broker.composing.following_settings import FollowingSettings
from app.broker.composing.late_parts import LateSpending, new_quota_tokens, security_runs, spot_notice_runs
from app.broker.composing.local_parts import LocalParts
from app.broker.composing.node_seams import NodeSeams
from app.broker.composing.several_parts import SeveralParts, new_several_parts
from app.broker.composing.stages import Run
from app.broker.partitions.sweeping import Sweeping
from app.broker.replication.replication_metrics import ReplicationMetrics
from app.broker.security.connection_limits import admission_limits
from app.broker.watching.room import DiskRoom
from app.configs import BrokerConfig
from app.configs.broker import RACK_AWARE_SELECTOR
from app.core.faults import Faults, Limited
from app.core.metrics import Registry
from app.core.units import BrokerId
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.record_fates import RecordFates
from app.groups.coordinator import GroupCoordinator
from app.groups.share.share_coordinator import ShareCoordinator
from app.handlers.base.authorising import new_authorizer
from app.handlers.base.context import Context
from app.handlers.policy.callers import KnownRights, OpenDoor
from app.handlers.serving.dispatch import Apis
from app.handlers.serving.server import KafkaServer
from app.handlers.state.draining import Drain
from app.handlers.state.fetch_fan_out import FanOut
from app.handlers.state.fetch_sessions import FetchSessions
from app.handlers.state.metadata_cache import MetadataCache
from app.handlers.state.metrics import ApiMetrics
from app.handlers.state.parked_followers import ParkedFollowers
from app.handlers.state.producer_id_block import ProducerIds
from app.handlers.state.telemetry import Telemetry
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.work import InlineCleanerWork
from app.hot.log import PartitionLog
from app.metadata.changes.topic_changes import no_change
from app.metadata.image.image import ClusterImage, ImageDelta
from app.replication.reading import PartitionReads
from app.replication.throttle import new_throttle
from app.schemas.coordinator import SchemaCoordinator
from app.schemas.follower import SchemaFollower
from app.schemas.registry_reads import RegistryReads
from app.security.delegation import TokenSecrets
from app.tiering.upload.copy_holds import CopyHolds, HoldsOfLeaders
from app.transactions.coordinator import TransactionCoordinator
from app.transactions.elsewhere import OtherBrokers
from app.transport.replays import ReplayTurns

if TYPE_CHECKING:
    from app.broker.security.broker_audit import BrokerAudit
    from app.broker.security.listener_doors import Doors
    from app.core.tracing import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingParts:
    """All parts of a node that has started. ``runs`` are run by the node."""

    faults: Faults
    local: LocalParts
    cluster: ClusterParts
    cleaner: LogCleaner
    sweeping: Sweeping
    copy_holds: CopyHolds
    holds_of_leaders: HoldsOfLeaders
    groups: GroupCoordinator
    shares: ShareCoordinator
    transactions: TransactionCoordinator
    schemas: SchemaCoordinator
    requests: RequestCoordinator
    schema_follower: SchemaFollower
    context: Context
    apis: Apis
    server: KafkaServer
    settings: FollowingSettings
    room: DiskRoom
    spending: LateSpending
    several: SeveralParts | None
    """Follows leaders; None on a broker that is alone."""
    of_security: tuple[Run, ...]
    """The parts to run that the settings of logins and limits want."""
    of_machine: tuple[Run, ...]
    """The part that asks whether this machine is taken away, where the settings want it."""

    def begin_to_follow(self) -> list[Run]:
        """Follow the image from now on, after the partitions. Call it once, when the partitions are led.

        Returns: the parts to run beside the requests, in the order of their start. They come so late because the sync of records
        that a kill left unsynced would delay the start, for which clients wait.
        """
        local, cluster, image = self.local, self.cluster, self.cluster.view.image
        runs = [
            local.logs.run,
            self.faults.run,
            local.remote_log_manager.run,
            cluster.partitions.run,
            self.cleaner.run,
            self.sweeping.run,
            self.room.run,
            *self.spending.runs(),
            self.apis.load_all,
            self.context.drain.run,
            *self.of_security,
        ]
        if self.several is not None:
            runs += self.several.follow()
        cluster.partitions.on_followed(self._end_holds)
        runs.append(self.holds_of_leaders.run)
        self.groups.start(image)
        cluster.view.on_change(self.settings.forget_deleted)
        cluster.partitions.on_followed(self.groups.follow)
        runs.append(self.groups.run)
        self.shares.follow(image)
        cluster.partitions.on_followed(self.shares.follow)
        runs.append(self.shares.run)
        self.transactions.follow(image)
        cluster.partitions.on_followed(self._follow_coordinated)
        runs.append(self.transactions.run)
        self.schemas.follow(image)
        self.requests.follow(image)
        return [*runs, self.schemas.run, self.requests.run, self.schema_follower.run, *self.of_machine]

    def _end_holds(self, image: ClusterImage, delta: ImageDelta) -> None:
        self.copy_holds.follow()

    def _follow_coordinated(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Runs after the logs were updated, because coordinators need the logs."""
        self.transactions.follow(image)
        self.schemas.follow(image)
        self.requests.follow(image)


def new_serving_parts(
    config: BrokerConfig,
    around: NodeSeams,
    registry: Registry,
    faults: Faults,
    *,
    local: LocalParts,
    cluster: ClusterParts,
    doors: Doors | None,
    audit: BrokerAudit | None,
    token_secrets: TokenSecrets | None,
    advertised: tuple[str, int],
    on_drained: Callable[[], None],
    tracer: Tracer | None = None,
) -> ServingParts:
    """Make the parts, and apply the settings of the image. ``on_drained``: called when a drain has ended. ``tracer``: None if
    nothing is traced."""
    view, controller, partitions = cluster.view, cluster.membership.controller, cluster.partitions
    broker_id, log_line = BrokerId(config.node_id), around.log_line

    def image() -> ClusterImage:
        return view.image

    def tiered_end(log: PartitionLog) -> int:
        return local.remote_log_manager.tiered_end(log.topic_id, log.partition) or 0

    async def wait_left(topic_id: UUID) -> None:
        """Wait until this broker writes no objects of a deleted topic."""
        await partitions.wait_detached(topic_id)
        await local.remote_log_manager.wait_left(topic_id)

    cleaner = LogCleaner(
        local.logs,
        around.new_cleaner_work or (lambda: InlineCleanerWork(around.fs, around.pool, PlainEngine)),
        config=view.effective_broker_config,
        fs=around.fs,
        pool=around.pool,
        clock=around.clock,
        rng=around.rng,
        registry=registry,
        log_line=log_line,
        faults=faults,
        tiered_end=tiered_end,
    )
    sweeping = Sweeping(
        around.store,
        cluster.membership,
        clock=around.clock,
        rng=around.rng,
        registry=registry,
        log_line=log_line,
        faults=faults,
        wait_left=wait_left,
    )
    copy_holds = CopyHolds(
        local.remote_log_manager,
        image=image,
        epoch_of=partitions.epoch_of,
        has_followed=partitions.has_followed,
    )
    holds_of_leaders = HoldsOfLeaders(
        copy_holds,
        cluster.link_of_several,
        broker_id=broker_id,
        image=image,
        newest=lambda: view.log.next_sequence - 1,
        settle=lambda: controller.submit(no_change),
        in_office=lambda: controller.active,
        faults=faults,
    )
    metrics = ApiMetrics(registry, config.broker_rack)
    groups = GroupCoordinator(
        config=view.effective_broker_config,
        broker_id=broker_id,
        partitions=partitions.table,
        clock=around.clock,
        rng=around.rng,
        registry=registry,
        log_line=log_line,
        faults=faults,
    )
    shares = ShareCoordinator(
        config=view.effective_broker_config,
        cluster=view,
        controller=controller,
        broker_id=broker_id,
        partitions=partitions.table,
        clock=around.clock,
        registry=registry,
        log_line=log_line,
        faults=faults,
        link=cluster.link_of_several,
    )
    producer_ids = ProducerIds(controller)
    reads = PartitionReads(local.remote_reader, around.pool)
    requests = RequestCoordinator(
        config=view.effective_broker_config,
        broker_id=broker_id,
        cluster=view,
        controller=controller,
        partitions=partitions.table,
        reads=reads,
        pool=around.pool,
        clock=around.clock,
        registry=registry,
        log_line=log_line,
        faults=faults,
        advance=local.remote_log_manager.advance_log_start,
    )
    transactions = TransactionCoordinator(
        config,
        partitions=partitions.table,
        producer_ids=producer_ids,
        offsets=groups,
        clock=around.clock,
        registry=registry,
        log_line=log_line,
        faults=faults,
        others=_other_brokers(config, cluster),
        reads=reads,
        image=image,
        results=requests,
    )
    requests.end_of = transactions.end_by_hand
    requests.fate_of = RecordFates(broker_id, requests, image, cluster.link).fate
    schemas = SchemaCoordinator(
        config=view.effective_broker_config,
        broker_id=broker_id,
        cluster=view,
        controller=controller,
        partitions=partitions.table,
        reads=reads,
        clock=around.clock,
        registry=registry,
        log_line=log_line,
        faults=faults,
    )
    schema_reads = RegistryReads(broker_id, schemas, image, cluster.link)
    schema_follower = SchemaFollower(schema_reads.read, around.pool)
    authorizer = new_authorizer(config)
    if authorizer is not None:
        authorizer.follow(view.image.acls)
    rights = KnownRights(by_host=authorizer is not None)
    heard = None
    if audit is not None:
        heard = audit.attach(
            cluster=view,
            controller=controller,
            partitions=partitions.table,
            link=cluster.link,
            authorizer=authorizer,
        )
    client_line = Limited(log_line)
    drain = Drain(
        config=config,
        clock=around.clock,
        registry=registry,
        cluster=view,
        logs=local.logs,
        partitions=partitions.table,
        remote_log_manager=local.remote_log_manager,
        transactions=transactions,
        log_line=log_line,
        client_line=client_line,
    )
    apis = Apis()
    telemetry = Telemetry(config)
    telemetry.show(registry)
    context = Context(
        config=config,
        effective=config,
        selects_by_rack=config.replica_selector_class == RACK_AWARE_SELECTOR,
        leader_throttle=new_throttle(config),
        apis=apis,
        drain=drain,
        metadata_cache=MetadataCache(),
        fan_out=FanOut(),
        client_line=client_line,
        clock=around.clock,
        rng=around.rng,
        pool=around.pool,
        registry=registry,
        cluster=view,
        controller=controller,
        logs=local.logs,
        partitions=partitions.table,
        reads=reads,
        remote_log_manager=local.remote_log_manager,
        copy_holds=copy_holds,
        holds_of_leaders=holds_of_leaders,
        metrics=metrics,
        fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots, around.rng),
        telemetry=telemetry,
        producer_ids=producer_ids,
        transactions=transactions,
        schemas=schemas,
        requests=requests,
        schema_follower=schema_follower,
        groups=groups,
        shares=shares,
        advertised_host=advertised[0],
        advertised_port=advertised[1],
        log_line=log_line,
        faults=faults,
        store_samples=around.store_samples,
        store_trouble=around.store_trouble,
        replays=ReplayTurns(around.elapsed_s),
        parked_followers=ParkedFollowers(around.elapsed_s),
        gate=cluster.gate,
        doorkeeper=OpenDoor(rights),
        authorizer=authorizer,
        token_secrets=token_secrets,
        rights=rights,
        audit=heard,
        sampler=heard.sampler if heard is not None else None,
    )
    partitions.table.on_lead = context.parked_followers.began_to_lead
    drain.on_change = context.decide_refusal
    drain.on_end = on_drained
    several = None
    if cluster.member is not None:
        several = new_several_parts(
            config,
            around,
            faults,
            local=local,
            cluster=cluster,
            member=cluster.member,
            context=context,
            shares=shares,
        )
    connections_max = admission_limits(config, around.descriptors_max).connections_max
    if tracer is None:
        server = KafkaServer(context, apis, connections_max=connections_max)
    else:
        from app.handlers.serving.traced import TracedServer

        server = TracedServer(context, apis, connections_max=connections_max, tracer=tracer)
    if doors is not None:
        from app.broker.security import first_users

        context.brokers = doors.brokers
        context.users_due = first_users.are_left(around.fs, config.data_dir)
        server.secure(doors.by_listener)
    elif config.super_users:
        from app.security.authorizer import split_super_users

        context.brokers = split_super_users(config.super_users)
    tokens = new_quota_tokens(config, around, registry, faults, cluster)
    ReplicationMetrics(
        registry,
        partitions.table,
        image=image,
        is_controller=lambda: controller.active if cluster.member is not None else True,
        office=cluster.member.desk if cluster.member is not None else None,
        lag_max=lambda: several.followers.lag_max() if several is not None else 0,
    )
    settings = FollowingSettings(
        config,
        around,
        registry,
        context=context,
        server=server,
        doors=doors,
        followers=several.followers if several is not None else None,
        tokens=tokens,
    )
    settings.begin()
    return ServingParts(
        faults=faults,
        local=local,
        cluster=cluster,
        cleaner=cleaner,
        sweeping=sweeping,
        copy_holds=copy_holds,
        holds_of_leaders=holds_of_leaders,
        groups=groups,
        shares=shares,
        transactions=transactions,
        schemas=schemas,
        requests=requests,
        schema_follower=schema_follower,
        context=context,
        apis=apis,
        server=server,
        settings=settings,
        room=DiskRoom(context, pool=around.pool, faults=faults, log_line=log_line),
        spending=LateSpending(config, around, registry, faults, local=local, cluster=cluster, context=context),
        several=several,
        of_security=tuple(security_runs(config, around, faults, cluster=cluster, tokens=tokens, doors=doors)),
        of_machine=tuple(spot_notice_runs(config, around, faults, context)),
    )


def _other_brokers(config: BrokerConfig, cluster: ClusterParts) -> OtherBrokers | None:
    """The leaders and coordinators on other brokers; None on a broker that is alone."""
    link, view = cluster.link_of_several, cluster.view
    return None if link is None else OtherBrokers(config.node_id, link, lambda: view.image)
