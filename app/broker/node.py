"""One broker, composed of its parts inside one event loop, with any implementation of the seams.

``Broker`` (``process.py``) runs a ``Node`` with the machine's clock, disk and a store process; tests and the simulation run
it with others. The parts start in the order of their dependencies, and nothing is served before all of them have started::

    lock → check the owner of the directory → open the logs, list the manifests, register in the cluster log: all at once →
    compare every led log with its manifest → raise leader epochs if records may be lost → listen
"""

from __future__ import annotations

import asyncio
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from app.broker.last_registration import LastRegistration
from app.broker.partitions.manifest_copies import ManifestCopies
from app.broker.partitions.partitions import Partitions
from app.broker.partitions.sweeping import Sweeping
from app.broker.partitions.tier_views import ManifestLink, TierViews
from app.broker.replication.followers import FetchLink, Followers
from app.broker.replication.high_watermark_file import HighWatermarks
from app.broker.replication.in_sync_sets import InSyncSets
from app.broker.replication.replication_metrics import ReplicationMetrics
from app.broker.security.connection_limits import admission_limits
from app.broker.watching.health import judge
from app.broker.watching.loop_watch import LoopWatch, Serving, Stall, sentence_of
from app.configs import BrokerConfig
from app.configs.broker import RACK_AWARE_SELECTOR
from app.core.errors import ConfigError, FencedError, FirnError, StorageFull, StorageUnavailable, clause, copy_of
from app.core.faults import Faults, Limited
from app.core.loop_time import loop_time_s
from app.core.metrics import Registry, Sample
from app.core.seams import BlockingPool, BootClock, Clock, shared_wait_s
from app.core.turns import Portion
from app.core.units import BrokerId, Offset, TopicIdPartition
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.record_fates import RecordFates, RequestsLink
from app.groups.coordinator import GroupCoordinator
from app.groups.share.share_coordinator import CoordinatorLink, ShareCoordinator
from app.handlers.base.authorising import new_authorizer
from app.handlers.base.context import Context
from app.handlers.clients.serving import in_words
from app.handlers.policy.callers import KnownRights, OpenDoor
from app.handlers.policy.client_quotas import ClientQuotas
from app.handlers.serving.dispatch import Apis
from app.handlers.serving.server import KafkaServer
from app.handlers.serving.session import SERVING
from app.handlers.state.acknowledging import AcknowledgementGate
from app.handlers.state.draining import Drain
from app.handlers.state.fetch_fan_out import FanOut
from app.handlers.state.fetch_sessions import FetchSessions
from app.handlers.state.metadata_cache import MetadataCache
from app.handlers.state.metrics import ApiMetrics
from app.handlers.state.parked_followers import ParkedFollowers
from app.handlers.state.producer_id_block import ProducerIds
from app.handlers.state.telemetry import Telemetry
from app.hot.checkpoints import MetaProperties
from app.hot.cleaning.cleaner import LogCleaner
from app.hot.cleaning.plain import PlainEngine
from app.hot.cleaning.work import CleanerWork, InlineCleanerWork
from app.hot.log import PartitionLog
from app.hot.manager import LoadReport, LogManager
from app.hot.unreadable import UnreadableBatch, UnreadableBatches
from app.machine.files import DirectoryLock, FileSystem, storage_error
from app.metadata.changes.quotas import TIER_ENTITY, TIER_RATE
from app.metadata.changes.topic_changes import no_change
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import OBJECT_LEVEL, Endpoint
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.numbered_log import LogTimings
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.membership.member import ClusterMember
from app.metadata.membership.membership import Membership
from app.metadata.peers.control import ANYBODY_OR_NOBODY, ControlLink
from app.metadata.peers.liveness import Liveness, ObjectLiveness
from app.metadata.peers.place import Places
from app.metadata.peers.pulses import StartPulses
from app.metadata.view.view import ClusterView
from app.objectstore.api import ObjectStore
from app.replication.reading import PartitionReads
from app.replication.throttle import new_throttle
from app.schemas.coordinator import SchemaCoordinator
from app.schemas.follower import SchemaFollower
from app.schemas.registry_reads import RegistryReads, SchemasLink
from app.security.delegation import TokenSecrets
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.reader import RemoteReader
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.copy_holds import CopyHolds, HoldLink, HoldsOfLeaders
from app.tiering.upload.remote_log_manager import RemoteLogManager
from app.transactions.coordinator import TransactionCoordinator
from app.transactions.elsewhere import OtherBrokers
from app.transactions.link import TransactionLink
from app.transport.replays import ReplayTurns

if TYPE_CHECKING:
    from app.broker.quota_tokens import QuotaTokens, Tokens
    from app.broker.security.broker_audit import BrokerAudit
    from app.broker.security.listener_doors import Doors
    from app.broker.spending import Spending
    from app.broker.write_ahead.release import Releases
    from app.broker.write_ahead.switching import DurabilityChanges
    from app.broker.write_ahead.write_ahead import WriteAhead
    from app.cost.prices import StoreKind
    from app.http.health import Health

SEAL_S: Final = 5.0
"""A write-ahead log that cannot be sealed for this time is logged, and retried."""
OWN_DIRECTORY: Final = ".firn"
"""Folder in the data directory for files that Kafka does not have."""
KAFKA_METADATA_DIRECTORY: Final = "__cluster_metadata-0"
"""Every data directory of Apache Kafka has it, and none of Firn."""
ROOM_CHECK_S: Final = 1.0
LOG_DESCRIPTORS_MAX: Final = 65_536
LEAD_S: Final = 10.0
"""So long a broker that is alone waits to lead again before it counts as ready: it serves meanwhile."""
RELEASE_S: Final = 4.0
"""How long a stop waits until its leaderships in the write-ahead log are given up."""
REFRESH_S: Final = 5.0
"""How long a replaced broker reads manifests, to log the records that they lack."""
PARTITIONS_NAMED_MAX: Final = 10
"""Partitions in one log line."""


class NodeLink(
    ControlLink,
    FetchLink,
    ManifestLink,
    CoordinatorLink,
    TransactionLink,
    HoldLink,
    SchemasLink,
    RequestsLink,
    Protocol,
):
    """Reaches the other brokers of a cluster: as members, as leaders, and as coordinators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeams:
    """The surroundings of a node: the implementations of its seams."""

    clock: Clock
    rng: random.Random
    pool: BlockingPool
    fs: FileSystem
    store: ObjectStore
    work: StoreWork
    log_line: Callable[[str], None]
    lock: DirectoryLock | None = None
    """The lock of the data directory, if it is already taken."""
    descriptors_max: int = 1024
    """Limit of open files and sockets together."""
    liveness: Liveness | None = None
    """The heartbeats of a broker that is alone. None: they are objects of ``store``, as they always are for several brokers."""
    timings: LogTimings | None = None
    store_samples: Callable[[], Awaitable[Sequence[Sample]]] | None = None
    """Requests the metrics of the store process."""
    store_trouble: Callable[[], str] | None = None
    """As ``Context.store_trouble``."""
    boot_s: BootClock = loop_time_s
    """A clock that also runs while this process is stopped or the machine is suspended."""
    places: Places | None = None
    """Reaches other brokers. With None, none is asked or notified."""
    elapsed_s: Callable[[], float] = loop_time_s
    """Seconds since an arbitrary moment, precise enough to time a callback."""
    new_cleaner_work: Callable[[], CleanerWork] | None = None
    """With None, logs are compacted slowly in ``pool``."""
    new_link: Callable[[], NodeLink] | None = None
    """Reaches the other brokers of a cluster. With None, this broker is always alone."""
    new_tokens: Callable[[Callable[[], str]], Tokens] | None = None
    """Where limits of the whole cluster are leased from (``firn.quota.scope``); told how to name the cluster."""
    start_pulses: StartPulses | None = None
    """Starts the pulses of this broker in a thread of their own (ADR 0023, L6). With None, this broker sends no pulses."""
    boot_id: str = ""
    """The boot of this machine; empty if unknown."""
    new_level: int = 0
    """The level of a cluster that this broker creates (ADR 0023)."""


class Node:
    """A broker inside one loop. ``start``, then ``run`` until it returns or is cancelled, then ``stop``."""

    def __init__(self, config: BrokerConfig, around: NodeSeams) -> None:
        self.config = config
        self.registry = Registry()
        self._around = around
        self._log_line = around.log_line
        self.faults = Faults(around.log_line)
        self._stopping = asyncio.Event()
        self._fenced: FencedError | None = None
        self._sockets: dict[str, socket.socket] = {}
        """The bound sockets, by the name of the listener."""
        self.ports: dict[str, int] = {one.name: one.port for one in config.served}
        """By the name of the listener. A port that the system chooses is known after ``start`` has bound it."""
        self._tasks: asyncio.TaskGroup | None = None
        self._leads = False
        """Whether leader epochs have risen where records may be lost."""
        self.logs = LogManager(
            config.data_dir,
            around.fs,
            around.pool,
            around.clock,
            around.rng,
            descriptors_max=min(LOG_DESCRIPTORS_MAX, max(64, around.descriptors_max // 2)),
            registry=self.registry,
            producer_expiration_ms=config.producer_id_expiration_ms,
            lock=around.lock,
            faults=self.faults,
        )
        self.logs.log_directory.on_offline = self._on_offline
        self._manifest_copies = ManifestCopies(
            f"{config.data_dir}/{OWN_DIRECTORY}",
            fs=around.fs,
            pool=around.pool,
            log_line=around.log_line,
            faults=self.faults,
        )
        self.remote_log_manager = RemoteLogManager(
            around.store,
            around.work,
            clock=around.clock,
            rng=around.rng,
            registry=self.registry,
            broker_id=BrokerId(config.node_id),
            interval_ms=min(config.remote_log_manager_task_interval_ms, config.log_retention_check_interval_ms),
            retention_interval_ms=config.log_retention_check_interval_ms,
            log_line=around.log_line,
            faults=self.faults,
            on_manifest_change=self._manifest_copies.note_change,
        )
        self.chunk_cache = ChunkCache(
            around.work,
            f"{config.data_dir}/{OWN_DIRECTORY}/chunks",
            config.firn_chunk_cache_bytes,
            fs=around.fs,
            pool=around.pool,
            descriptors=self.logs.log_directory.descriptors,
            registry=self.registry,
            faults=self.faults,
        )
        self.remote_reader = RemoteReader(
            around.work,
            self.chunk_cache,
            self.remote_log_manager.served_manifest_of,
            pool=around.pool,
            registry=self.registry,
            read_ahead_bytes=config.firn_read_ahead_bytes,
            on_unreadable=self._note_unreadable,
            faults=self.faults,
        )
        self.logs.log_directory.unreadable = UnreadableBatches(Limited(around.log_line))
        self.membership: Membership = None  # type: ignore[assignment] # until start
        self.context: Context = None  # type: ignore[assignment]
        self.server: KafkaServer = None  # type: ignore[assignment]
        self.partitions: Partitions = None  # type: ignore[assignment]
        self.groups: GroupCoordinator = None  # type: ignore[assignment]
        self.shares: ShareCoordinator = None  # type: ignore[assignment]
        self.transactions: TransactionCoordinator = None  # type: ignore[assignment]
        self.schemas: SchemaCoordinator = None  # type: ignore[assignment]
        self.requests: RequestCoordinator = None  # type: ignore[assignment]
        self.schema_follower: SchemaFollower = None  # type: ignore[assignment]
        key = config.delegation_token_secret_key
        self._token_secrets = TokenSecrets(key) if key else None
        self.audit: BrokerAudit | None = None
        """None if there are no rights to check, no logins, and nothing is written."""
        self._doors: Doors | None = None
        """The authentication of listeners that are not plain; None if there are none."""
        self.load_report: LoadReport | None = None
        self._new_directory = False
        """Whether the data directory is new."""
        self._sweeping: Sweeping = None  # type: ignore[assignment]
        self._apis: Apis = None  # type: ignore[assignment]
        self.cleaner: LogCleaner = None  # type: ignore[assignment]
        self._copy_holds: CopyHolds = None  # type: ignore[assignment]
        self._holds_of_leaders: HoldsOfLeaders = None  # type: ignore[assignment]
        self._last_registration: LastRegistration = None  # type: ignore[assignment]
        self._link: NodeLink = None  # type: ignore[assignment]
        self.tier_views: TierViews | None = None
        """This broker's views of the tier of partitions that it follows; None on a broker that is alone."""
        self.followers: Followers | None = None
        """Fetches from other leaders; None on a broker that is alone."""
        self._quotas: ClientQuotas | None = None
        self._tokens: QuotaTokens | None = None
        """Leases the tokens of limits of the whole cluster; None if all limits are this broker's."""
        self._in_sync_sets: InSyncSets | None = None
        self.write_ahead: WriteAhead | None = None
        """None until this broker leads a partition of a topic with ``firn.durability=object``."""
        self._balancing: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []
        """The tasks that run beside the requests."""
        self._high_watermarks: HighWatermarks | None = None
        self.port = config.listen_port
        self.spending: Spending | None = None
        """The requests to the store in the last hour. It is there soon after the broker serves; None where they are not counted."""
        self.registry.gauge(
            "firn_offline_partitions", "Partitions that this broker should lead but cannot open", self._count_offline
        )
        self.registry.gauge(
            "firn_broker_isolated",
            "Whether this broker is isolated, and refuses clients what other brokers may lead by now",
            self._is_isolated,
        )
        self.registry.gauge("firn_ready", "Whether this broker can serve something of what it leads", self._show_ready)
        if self._around.store_trouble is not None:
            self.registry.gauge("firn_store_responds", "Whether the object store responds", self._show_store)

    @property
    def cluster(self) -> ClusterView:
        """This broker's copy of the cluster's metadata; there after ``start``."""
        return self.membership.view

    # --- starting ------------------------------------------------------------------------------------------------

    async def start(self, *, listen: bool = True) -> None:
        """Do all work before the first request; see the module's docstring.

        Raises: ConfigError (another node's directory, an address that cannot be listened on), ConflictError (the directory
        is in use), StartRefused, StorageUnavailable, CorruptionError. ``stop`` must be called then, too.
        """
        around, config = self._around, self.config
        if not config.open:
            from app.broker.security.listener_doors import Doors

            self._doors = Doors(config, lambda: self.cluster.image, around.clock.now_ms, self._token_secrets)
            self._doors.register(self.registry)
        if config.audited:
            from app.broker.security.broker_audit import BrokerAudit

            self.audit = BrokerAudit(
                config, clock=around.clock, pool=around.pool, registry=self.registry, faults=self.faults
            )
        self.logs.lock()
        if around.fs.exists(f"{config.data_dir}/{KAFKA_METADATA_DIRECTORY}"):
            raise ConfigError(
                f"The data directory {config.data_dir} belongs to Apache Kafka: Firn cannot read its logs, and would truncate "
                "them. Name an empty directory (log.dirs, --data-dir), and copy topics from a running Kafka, for example with "
                "MirrorMaker."
            )
        meta = self.logs.read_meta()
        if meta is not None and meta.node_id != config.node_id:
            raise ConfigError(
                f"The data directory {config.data_dir} belongs to node {meta.node_id}, but this is node {config.node_id}: "
                f"use --node-id {meta.node_id}, or another --data-dir."
            )
        self._new_directory = meta is None
        if listen:
            self._bind()
        directory_id = meta.directory_id if meta is not None else uuid.UUID(bytes=around.rng.randbytes(16), version=4)
        last_registration = self._last_registration = LastRegistration(around.fs, f"{config.data_dir}/{OWN_DIRECTORY}")
        last_run = await around.pool.run(last_registration.read)
        link = None
        if around.new_link is not None:
            link = self._link = around.new_link()
        objects = ObjectLiveness(around.store, rng=around.rng, clock=around.clock)
        self.membership = member = Membership(
            around.store,
            config=config,
            directory_id=directory_id,
            endpoints=self.endpoints,
            liveness=around.liveness or objects,
            signs=objects,
            rng=around.rng,
            clock=around.clock,
            take_over=config.take_over,
            expected_cluster_id=meta.cluster_id if meta is not None else None,
            timings=around.timings,
            places=around.places,
            log_line=self._log_line,
            faults=self.faults,
            link=link,
            boot_id=around.boot_id,
            last_run=(last_run.broker_epoch, last_run.clean, last_run.boot_id),
            last_runs=self,
            seal_log=self._seal_log,
            new_level=around.new_level,
            start_pulses=around.start_pulses,
            elapsed_s=around.elapsed_s,
        )
        member.view.on_fenced(self._on_fenced)
        # Before the registration: a broker that stands still after its registration may have been replaced.
        gate = AcknowledgementGate(around.boot_s, self._log_line)
        self.partitions = Partitions(
            config,
            membership=member,
            logs=self.logs,
            remote_log_manager=self.remote_log_manager,
            store=around.store,
            work=around.work,
            clock=around.clock,
            rng=around.rng,
            copies=self._manifest_copies,
            timings=around.timings,
            log_line=self._log_line,
            faults=self.faults,
        )
        self.partitions.new_write_ahead = self._new_write_ahead
        ticking = asyncio.create_task(gate.keep_ticking())
        try:
            async with asyncio.TaskGroup() as together:
                loading = together.create_task(self.logs.load_all())
                together.create_task(self.partitions.prepare())
                together.create_task(member.start())
        except BaseExceptionGroup as failures:
            raise first_error(failures) from None
        finally:
            ticking.cancel()
        self.load_report = report = loading.result()
        for problem in report.problems:
            self._log_line(problem)
        if meta is None:
            self.logs.write_meta(MetaProperties(self.cluster.image.cluster_id, BrokerId(config.node_id), directory_id))
        self.cleaner = LogCleaner(
            self.logs,
            around.new_cleaner_work or (lambda: InlineCleanerWork(around.fs, around.pool, PlainEngine)),
            config=self.cluster.effective_broker_config,
            fs=around.fs,
            pool=around.pool,
            clock=around.clock,
            rng=around.rng,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
            tiered_end=self._tiered_end_of,
        )
        self._sweeping = Sweeping(
            around.store,
            member,
            clock=around.clock,
            rng=around.rng,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
            wait_left=self._wait_left,
        )
        self._copy_holds = CopyHolds(
            self.remote_log_manager,
            image=lambda: self.cluster.image,
            epoch_of=self.partitions.epoch_of,
            has_followed=self.partitions.has_followed,
        )
        self._holds_of_leaders = HoldsOfLeaders(
            self._copy_holds,
            link if member.member is not None else None,
            broker_id=BrokerId(config.node_id),
            image=lambda: self.cluster.image,
            newest=lambda: self.cluster.log.next_sequence - 1,
            settle=lambda: member.controller.submit(no_change),
            in_office=lambda: member.controller.active,
            faults=self.faults,
        )
        metrics = ApiMetrics(self.registry, config.broker_rack)
        self.groups = GroupCoordinator(
            config=self.cluster.effective_broker_config,
            broker_id=BrokerId(config.node_id),
            partitions=self.partitions.table,
            clock=around.clock,
            rng=around.rng,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
        )
        self.shares = ShareCoordinator(
            config=self.cluster.effective_broker_config,
            cluster=self.cluster,
            controller=member.controller,
            broker_id=BrokerId(config.node_id),
            partitions=self.partitions.table,
            clock=around.clock,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
            link=link if member.member is not None else None,
        )
        producer_ids = ProducerIds(member.controller)
        reads = PartitionReads(self.remote_reader, around.pool)
        self.requests = RequestCoordinator(
            config=self.cluster.effective_broker_config,
            broker_id=BrokerId(config.node_id),
            cluster=self.cluster,
            controller=member.controller,
            partitions=self.partitions.table,
            reads=reads,
            clock=around.clock,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
            advance=self.remote_log_manager.advance_log_start,
        )
        self.transactions = TransactionCoordinator(
            config,
            partitions=self.partitions.table,
            producer_ids=producer_ids,
            offsets=self.groups,
            clock=around.clock,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
            others=self._other_brokers(),
            reads=reads,
            image=lambda: self.cluster.image,
            results=self.requests,
        )
        self.requests.end_of = self.transactions.end_by_hand
        self.requests.fate_of = RecordFates(
            BrokerId(config.node_id), self.requests, lambda: self.cluster.image, self._link
        ).fate
        self.schemas = SchemaCoordinator(
            config=self.cluster.effective_broker_config,
            broker_id=BrokerId(config.node_id),
            cluster=self.cluster,
            controller=member.controller,
            partitions=self.partitions.table,
            reads=reads,
            clock=around.clock,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
        )
        schema_reads = RegistryReads(BrokerId(config.node_id), self.schemas, lambda: self.cluster.image, self._link)
        self.schema_follower = SchemaFollower(schema_reads.read, around.pool)
        authorizer = new_authorizer(config)
        if authorizer is not None:
            authorizer.follow(self.cluster.image.acls)
        rights = KnownRights(by_host=authorizer is not None)
        audit = None
        if self.audit is not None:
            audit = self.audit.attach(
                cluster=self.cluster,
                controller=member.controller,
                partitions=self.partitions.table,
                link=self._link,
                authorizer=authorizer,
            )
        client_line = Limited(self._log_line)
        drain = Drain(
            config=config,
            clock=around.clock,
            registry=self.registry,
            cluster=self.cluster,
            logs=self.logs,
            partitions=self.partitions.table,
            remote_log_manager=self.remote_log_manager,
            transactions=self.transactions,
            log_line=self._log_line,
            client_line=client_line,
        )
        self._apis = Apis()
        telemetry = Telemetry(config)
        telemetry.show(self.registry)
        self.context = Context(
            config=config,
            effective=config,
            selects_by_rack=config.replica_selector_class == RACK_AWARE_SELECTOR,
            leader_throttle=new_throttle(config),
            apis=self._apis,
            drain=drain,
            metadata_cache=MetadataCache(),
            fan_out=FanOut(),
            client_line=client_line,
            clock=around.clock,
            rng=around.rng,
            pool=around.pool,
            registry=self.registry,
            cluster=self.cluster,
            controller=member.controller,
            logs=self.logs,
            partitions=self.partitions.table,
            reads=reads,
            remote_log_manager=self.remote_log_manager,
            copy_holds=self._copy_holds,
            holds_of_leaders=self._holds_of_leaders,
            metrics=metrics,
            fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots, around.rng),
            telemetry=telemetry,
            producer_ids=producer_ids,
            transactions=self.transactions,
            schemas=self.schemas,
            requests=self.requests,
            schema_follower=self.schema_follower,
            groups=self.groups,
            shares=self.shares,
            advertised_host=self.advertised_host,
            advertised_port=self.advertised_port,
            log_line=self._log_line,
            faults=self.faults,
            store_samples=around.store_samples,
            store_trouble=around.store_trouble,
            replays=ReplayTurns(around.elapsed_s),
            parked_followers=ParkedFollowers(around.elapsed_s),
            gate=gate,
            doorkeeper=OpenDoor(rights),
            authorizer=authorizer,
            token_secrets=self._token_secrets,
            rights=rights,
            audit=audit,
            sampler=audit.sampler if audit is not None else None,
        )
        self.cluster.on_change(self._follow_acls)
        self.cluster.on_change(self._follow_leaders)
        self.partitions.table.on_lead = self.context.parked_followers.began_to_lead
        drain.on_change = self.context.decide_refusal
        drain.on_end = self.request_stop
        self.cluster.on_change(self._follow_settings)
        if member.member is not None:
            self.context.desk, self.context.passes_on = member.member.desk, member.member
            self.context.hears_controller = member.member.hears_controller
            self.context.pulsed = member.member.pulsed
            member.member.on_isolated = self._shut_or_open
            self.context.starting = True
            await self._prepare_replication(member.member)
        self.server = KafkaServer(
            self.context,
            self._apis,
            connections_max=admission_limits(config, around.descriptors_max).connections_max,
        )
        if self._doors is not None:
            from app.broker.security import first_users

            self.context.brokers = self._doors.brokers
            self.context.users_due = first_users.are_left(around.fs, config.data_dir)
            self.server.secure(self._doors.by_listener)
        elif config.super_users:
            from app.security.authorizer import split_super_users

            self.context.brokers = split_super_users(config.super_users)
        if around.new_tokens is not None and config.firn_quota_scope == "cluster":
            from app.broker.quota_tokens import QuotaTokens

            self._tokens = QuotaTokens(
                around.new_tokens(lambda: str(self.cluster.image.cluster_id)),
                brokers=lambda: sum(not one.fenced for one in self.cluster.image.brokers.values()),
                now_s=around.elapsed_s,
                rng=around.rng,
                faults=self.faults,
                registry=self.registry,
            )
        ReplicationMetrics(
            self.registry,
            self.partitions.table,
            image=lambda: self.cluster.image,
            is_controller=lambda: self.membership.controller.active if self.membership.member is not None else True,
            office=member.member.desk if member.member is not None else None,
            lag_max=lambda: self.followers.lag_max() if self.followers is not None else 0,
        )
        self._apply_settings()
        self._apply_quotas()

    def _new_write_ahead(self) -> WriteAhead:
        """Make the journal when this broker leads its first partition of a topic with ``firn.durability=object``."""
        from app.broker.write_ahead.write_ahead import WriteAhead

        around = self._around
        self.write_ahead = wal = WriteAhead(
            around.store,
            config=self._effective_config,
            broker_id=BrokerId(self.config.node_id),
            image=lambda: self.cluster.image,
            floor_of=self._floor_of,
            clock=around.clock,
            rng=around.rng,
            registry=self.registry,
            log_line=self._log_line,
            faults=self.faults,
        )
        member = self.membership.member
        if member is not None:
            member.wal_next = lambda: wal.next_number(member.broker_epoch)
            wal.drop_ranges = member.drop_ranges
            wal.on_ended = lambda ended: member.register_again(ended.broker_epoch)
        assert self._tasks is not None, "partitions are led while the node runs"
        self._background.append(self._tasks.create_task(wal.run()))
        if member is not None:
            self._keep_balanced(member, wal)
        return wal

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
            image=lambda: self.cluster.image,
            broker_id=BrokerId(self.config.node_id),
            interval_s=interval_s,
            log_line=self._log_line,
        )

        def follow(image: ClusterImage, delta: ImageDelta) -> None:
            topics = [topic for one in delta.topics if (topic := image.topic_by_id(one)) is not None]
            if delta.brokers or reassigned(image, self.config.node_id, topics):
                balance.changed()

        self.cluster.on_change(follow)
        assert self._tasks is not None
        self._balancing = self._tasks.create_task(balance.run())
        self._background.append(self._balancing)

    def _durability_changes(self, member: ClusterMember) -> DurabilityChanges:
        from app.broker.write_ahead.switching import DurabilityChanges

        return DurabilityChanges(
            self.partitions.table,
            broker_id=BrokerId(self.config.node_id),
            image=lambda: self.cluster.image,
            wal=lambda: self.write_ahead,
            broker_epoch=lambda: member.broker_epoch,
            tier=self.remote_log_manager,
            ask=member.switch,
            drop=member.drop_ranges,
            log_line=self._log_line,
            faults=self.faults,
        )

    def _effective_config(self) -> BrokerConfig:
        return self.cluster.effective_broker_config()

    def _floor_of(self, partition: TopicIdPartition) -> tuple[Offset, Offset] | None:
        manifest = self.remote_log_manager.manifest_of(partition)
        return None if manifest is None else (manifest.tiered_end, manifest.log_start_offset)

    def _tiered_end_of(self, log: PartitionLog) -> int:
        return self.remote_log_manager.tiered_end(log.topic_id, log.partition) or 0

    def _follow_settings(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.broker_configs:
            self._apply_settings()
        if delta.quotas:
            self._apply_quotas()

    def _apply_quotas(self) -> None:
        """Apply the limits of the image. Without limits nothing is counted."""
        limits = self.cluster.image.quotas
        self.remote_log_manager.limit_copies(limits.get(TIER_ENTITY, {}).get(TIER_RATE))
        if limits:
            if self._quotas is None:
                leases = self._tokens.leases if self._tokens is not None else None
                self._quotas = ClientQuotas(self.config, self._around.elapsed_s, leases)
                self._quotas.waits.register(self.registry)
            self._quotas.follow(limits)
        self.context.quotas = self._quotas if limits else None

    def _follow_acls(self, image: ClusterImage, delta: ImageDelta) -> None:
        """From now on decide by the new rules. Remembered decisions and parked requests are authorised again."""
        authorizer = self.context.authorizer
        if delta.acls and authorizer is not None and authorizer.follow(image.acls):
            self.context.rights.end()
            self.server.produce_shapes.forget_closed()

    async def _shut_or_open(self, isolated: bool) -> None:
        """Shut the gate of isolation, and end the requests that wait behind it in portions; or open it (ADR 0040)."""
        table = self.partitions.table
        if not isolated:
            table.open_gate()
            return
        member = self.membership.member
        assert member is not None
        shut = table.shut_gate(member.elsewhere())
        self.context.fan_out.forget_all()
        self.shares.leader.end_waits()
        portion = Portion()
        for partition in shut:
            table.end_waits(partition)
            if portion.spent():
                await portion.rest()

    def _follow_leaders(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.topics or delta.brokers:
            self.context.parked_followers.leaders_changed()

    def _apply_settings(self) -> None:
        """Pass dynamically changed settings to the parts that do not read them themselves."""
        self.context.effective = effective = self.cluster.effective_broker_config()
        self.logs.producer_expiration_ms = effective.producer_id_expiration_ms
        self.server.limit_connections(admission_limits(effective, self._around.descriptors_max))
        if self._doors is not None:
            self._doors.follow(effective.security)
        self.context.leader_throttle.limit = effective.leader_replication_throttled_rate
        if self.followers is not None:
            self.followers.throttle.limit = effective.follower_replication_throttled_rate

    def health(self) -> Health:
        """Whether this broker is ready to serve, and the reasons if it is not."""
        table, no_room = self.partitions.table, self.context.no_room
        trouble = self._around.store_trouble
        return judge(
            store_trouble="" if trouble is None else trouble(),
            offline_reason=self.logs.offline_reason,
            no_room=None if no_room is None else str(no_room),
            leaders=sum(not one.shut for one in table.all_led()) if table.isolated else table.led_count,
            offline=len(table.offline),
            isolated=table.isolated,
        )

    def _show_ready(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(self.partitions is not None and self.health().ready))]

    def _show_store(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        trouble = self._around.store_trouble
        return [((), float(trouble is None or not trouble()))]

    def _count_offline(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(len(self.partitions.table.offline) if self.partitions is not None else 0))]

    def _is_isolated(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(self.partitions is not None and self.partitions.table.isolated))]

    def _forget_deleted(self, image: ClusterImage, delta: ImageDelta) -> None:
        if not all(topic_id in image.topics_by_id for topic_id in delta.topics):
            self.server.produce_shapes.forget_closed()

    async def _wait_left(self, topic_id: uuid.UUID) -> None:
        """Wait until this broker writes no objects of a deleted topic."""
        await self.partitions.wait_detached(topic_id)
        await self.remote_log_manager.wait_left(topic_id)

    def _end_holds(self, image: ClusterImage, delta: ImageDelta) -> None:
        self._copy_holds.follow()

    def _note_unreadable(self, partition: TopicIdPartition, batch: UnreadableBatch) -> None:
        topic = self.cluster.image.topics_by_id.get(partition.topic_id)
        name = topic.name if topic is not None else str(partition.topic_id)
        self.logs.log_directory.unreadable.note(f"{name}-{partition.partition}", batch)

    def _follow_coordinated(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Runs after the logs were updated, because coordinators need the logs."""
        self.transactions.follow(image)
        self.schemas.follow(image)
        self.requests.follow(image)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses of this broker, for its registration. The first is for other brokers."""
        return [
            Endpoint(
                one.name,
                one.advertised_host or one.host,
                one.advertised_port or self.ports[one.name],
                one.protocol.value,
            )
            for one in self.config.served
        ]

    @property
    def advertised_host(self) -> str:
        return self.config.advertised_host or self.config.listen_host

    @property
    def advertised_port(self) -> int:
        return self.config.advertised_port or self.port

    def _bind(self) -> None:
        """Bind all addresses. Connections are accepted later. Raises: ConfigError."""
        for one in self.config.served:
            self._sockets[one.name] = bound = bind(one.host, one.port)
            self.ports[one.name] = int(bound.getsockname()[1])
        self.port = self.ports[self.config.local.name]

    # --- running -------------------------------------------------------------------------------------------------

    def watch_loop(self) -> LoopWatch | None:
        """Watch the running loop until the watch is stopped. None if the settings do not want it."""
        limit_ms = self.config.firn_loop_stall_ms
        if not limit_ms:
            return None
        stalls = self.registry.counter(
            "firn_loop_stalls_total", "Times that the event loop stood still for longer than firn.loop.stall.ms."
        )
        seconds = self.registry.counter("firn_loop_stalled_seconds_total", "Time of these stalls together.")

        def tell(stall: Stall) -> None:
            stalls.value += 1
            seconds.value += stall.wall_s
            self.faults.met("a turn of the event loop with", stall.api, sentence_of(stall))

        def serving() -> Serving | None:
            found = in_words(self.server.serving)
            return None if found is None else Serving(*found)

        def rests(rouse: Callable[[], None] | None) -> None:
            self.server.rouse = rouse

        watch = LoopWatch(limit_ms / 1000, serving=serving, codes=SERVING, tell=tell, rests=rests)
        watch.start()
        return watch

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until ``request_stop``. ``ready`` is called when requests can be served.

        Raises: FencedError when another broker has taken over; StorageUnavailable (a manifest cannot be read, before anything
        is served); an ExceptionGroup for a bug of ours.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                background = self._background = [
                    tasks.create_task(self._run_membership()),
                    tasks.create_task(self._keep_sure_of_place()),
                    tasks.create_task(self.remote_reader.run()),
                ]
                if self.audit is not None:
                    background.append(tasks.create_task(self.audit.run()))
                report = self.load_report
                member = self.membership.member
                if member is not None:
                    # The controller tries this broker's address before it registers it.
                    await self._listen()
                    joined = False
                    try:
                        joined = await self._joins(member)
                    finally:
                        if not joined:
                            await self.server.close()
                    if not joined:
                        if self._fenced is not None:
                            raise copy_of(self._fenced)
                        for task in background:
                            task.cancel()
                        return
                    assert self._high_watermarks is not None
                    self.partitions.high_watermarks = await self._high_watermarks.read()
                await self.partitions.take_over_all(
                    clean=report is not None and report.clean,
                    new_directory=self._new_directory,
                    differing=report.differing if report is not None else (),
                )
                self._note_what_is_back()
                self._leads = True
                # Not earlier: to sync records that a kill left unsynced would delay the start, for which clients wait.
                background.append(tasks.create_task(self.logs.run()))
                background.append(tasks.create_task(self.faults.run()))
                background.append(tasks.create_task(self.remote_log_manager.run()))
                background.append(tasks.create_task(self.partitions.run()))
                background.append(tasks.create_task(self.cleaner.run()))
                background.append(tasks.create_task(self._sweeping.run()))
                background.append(tasks.create_task(self._watch_room()))
                if self._around.store_samples is not None:
                    background.append(tasks.create_task(self._count_spending(self._around.store_samples)))
                background.append(tasks.create_task(self._apis.load_all()))
                background.append(tasks.create_task(self.context.drain.run()))
                if self._token_secrets is not None:
                    background.append(tasks.create_task(self._sweep_tokens()))
                if self._tokens is not None:
                    background.append(tasks.create_task(self._tokens.run()))
                if self._doors is not None:
                    background.append(
                        tasks.create_task(self._doors.run(self._around.pool, self.faults, self._log_line))
                    )
                if self.followers is not None and self._in_sync_sets is not None and self._high_watermarks is not None:
                    background.append(tasks.create_task(self.followers.run()))
                    assert self.tier_views is not None
                    self.partitions.on_followed(self.tier_views.follow)
                    background.append(tasks.create_task(self.tier_views.run()))
                    background.append(tasks.create_task(self._in_sync_sets.run()))
                    assert member is not None
                    changes = self._durability_changes(member)
                    self.partitions.on_followed(changes.follow)
                    if self.cluster.image.level >= OBJECT_LEVEL:
                        changes.follow(self.cluster.image, ImageDelta.between(ClusterImage(), self.cluster.image))
                    background.append(tasks.create_task(changes.run()))
                    background.append(tasks.create_task(self._high_watermarks.run()))
                self.partitions.on_followed(self._end_holds)
                background.append(tasks.create_task(self._holds_of_leaders.run()))
                self.groups.start(self.cluster.image)
                self.cluster.on_change(self._forget_deleted)  # after the partitions have followed
                self.partitions.on_followed(self.groups.follow)
                background.append(tasks.create_task(self.groups.run()))
                self.shares.follow(self.cluster.image)
                self.partitions.on_followed(self.shares.follow)
                background.append(tasks.create_task(self.shares.run()))
                self.transactions.follow(self.cluster.image)
                self.partitions.on_followed(self._follow_coordinated)
                background.append(tasks.create_task(self.transactions.run()))
                self.schemas.follow(self.cluster.image)
                background.append(tasks.create_task(self.schemas.run()))
                self.requests.follow(self.cluster.image)
                background.append(tasks.create_task(self.requests.run()))
                background.append(tasks.create_task(self.schema_follower.run()))
                if self.config.firn_spot_notice_endpoint:
                    background.append(tasks.create_task(self._ask_for_spot_notice()))
                try:
                    if member is None:
                        await self._listen()
                    else:
                        self.context.starting = False
                        member.ready()
                        if member.alone:
                            await self._lead_again(tasks)
                    if self._doors is not None and not self._stopping.is_set():
                        await self._add_first_users()
                        self.context.users_due = False
                    if ready is not None and not self._stopping.is_set():
                        ready()
                    await self._stopping.wait()
                    if member is not None and self._fenced is None:
                        await self._leave_in_order(member)
                finally:
                    self.context.drain.interrupt()
                    await self.server.close()
                if self.write_ahead is not None and self._fenced is None:
                    await self.write_ahead.flush()
                    await self.write_ahead.close()
                if member is not None and self._fenced is None:
                    await member.left()
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as failures:
            _, bugs = failures.split((FirnError, asyncio.CancelledError))
            if bugs is not None:
                raise
            raise (copy_of(self._fenced) if self._fenced is not None else first_error(failures)) from None
        finally:
            self._tasks = None
            if self._fenced is not None:
                await self._tell_what_stays_behind()
        if self._fenced is not None:
            raise copy_of(self._fenced)

    async def _leave_in_order(self, member: ClusterMember) -> None:
        """Hand this broker's leaderships on: by its own release in its write-ahead log (J49), else by the controller."""
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.wait([self._balancing])
        async with asyncio.TaskGroup() as together:
            together.create_task(member.leave_in_order())
            if self.write_ahead is not None:
                from app.broker.write_ahead.release import leave

                releases, log_line = self._releases(member, self.write_ahead), self._log_line
                together.create_task(leave(releases, to=ANYBODY_OR_NOBODY, within_s=RELEASE_S, log_line=log_line))

    def _releases(self, member: ClusterMember, wal: WriteAhead) -> Releases:
        from app.broker.write_ahead.release import Releases

        return Releases(
            wal,
            image=lambda: self.cluster.image,
            broker_id=BrokerId(self.config.node_id),
            ask=member.release,
            log_line=self._log_line,
        )

    async def _ask_for_spot_notice(self) -> None:
        from app.broker.watching.spot_notice import SpotNotice

        notice = SpotNotice(
            self.config.firn_spot_notice_endpoint,
            on_notice=self.context.drain.begin,
            log_line=self._log_line,
            faults=self.faults,
        )
        await notice.run()

    async def _joins(self, member: ClusterMember) -> bool:
        """Wait until the controller has registered this broker. Returns: False if the broker is to stop before."""
        waiting = [asyncio.create_task(member.joined()), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return not self._stopping.is_set()
        finally:
            for task in waiting:
                task.cancel()

    async def _lead_again(self, tasks: asyncio.TaskGroup) -> None:
        """A broker that is alone is ready when it leads its former partitions, or after ``LEAD_S``: there is no other broker to
        ask. The losses of a take-over are told when the broker leads, however long that takes."""
        leading = tasks.create_task(self._until_led())
        self._background.append(leading)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((leading, stopping), timeout=LEAD_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _until_led(self) -> None:
        await self.partitions.until_led(new_directory=self._new_directory)
        self._note_what_is_back()

    def _note_what_is_back(self) -> None:
        self.context.back = [(one.name, len(one.ends), one.offsets) for one in self.partitions.back]

    async def _prepare_replication(self, member: ClusterMember) -> None:
        """The parts of one of several brokers that follow leaders, and count followers."""
        around, table = self._around, self.partitions.table
        assert around.new_link is not None
        table.lag_ms_max = self.config.replica_lag_time_max_ms
        self._high_watermarks = HighWatermarks(
            table,
            f"{self.config.data_dir}/{OWN_DIRECTORY}",
            fs=around.fs,
            pool=around.pool,
            faults=self.faults,
            interval_s=self.config.replica_high_watermark_checkpoint_interval_ms / 1000,
        )
        self.followers = Followers(
            table,
            self._link,
            broker_id=BrokerId(self.config.node_id),
            broker_epoch=lambda: member.broker_epoch,
            image=lambda: self.cluster.image,
            start_at_tier=self.partitions.start_at_tier,
            throttle=new_throttle(self.config),
            clock=around.clock,
            faults=self.faults,
            log_line=self._log_line,
            lower_high_watermark=self._high_watermarks.lower,
        )
        views = self.tier_views = self.partitions.views = TierViews(
            table,
            self._link,
            broker_id=BrokerId(self.config.node_id),
            image=lambda: self.cluster.image,
            new_manifest=self.partitions.new_view,
            list_manifests=self.partitions.list_manifests,
            copies=self._manifest_copies,
            clock=around.clock,
            interval_ms=min(
                self.config.remote_log_manager_task_interval_ms, self.config.log_retention_check_interval_ms
            ),
            faults=self.faults,
        )
        self.context.followed_tiers = views.followed
        self.remote_log_manager.followed_manifest_of = views.manifest_of
        self.partitions.entries = self.context.manifest_entries = ManifestEntries(self.cluster.writer_id)
        self._in_sync_sets = InSyncSets(table, lambda: self.cluster.image, member, faults=self.faults)

    def _other_brokers(self) -> OtherBrokers | None:
        """The leaders and coordinators on other brokers; None on a broker that is alone."""
        if self.membership.member is None:
            return None
        return OtherBrokers(self.config.node_id, self._link, lambda: self.cluster.image)

    async def _listen(self) -> None:
        if not self._sockets:
            self.server.attach()
        for name, bound in self._sockets.items():
            await self.server.listen(bound, self.server.maker(name), name)

    async def _add_first_users(self) -> None:
        """Make the users that `firn user add --offline` left in the data directory, if the cluster has none."""
        from app.broker.security.first_users import add_first_users

        await add_first_users(
            self.config, self.context, fs=self._around.fs, pool=self._around.pool, log_line=self._log_line
        )

    async def _count_spending(self, store_samples: Callable[[], Awaitable[Sequence[Sample]]]) -> None:
        """Load the counting of costs after the start, which does not need it: its modules add a tenth to the time of all others."""

        def load() -> type[Spending]:
            from app.broker.spending import Spending

            return Spending

        around = self._around
        spending = self.spending = (await around.pool.run(load))(
            self.registry,
            logs=self.logs,
            table=self.partitions.table,
            tier=self.remote_log_manager,
            traffic=self.context.metrics,
            store_samples=store_samples,
            wal_kept_bytes=lambda: 0.0 if self.write_ahead is None else self.write_ahead.kept_bytes,
            wal_store=self._kind_of_wal_store(),
            pool=around.pool,
            faults=self.faults,
        )
        await spending.run()

    def _kind_of_wal_store(self) -> StoreKind | None:
        """The kind of store that write-ahead logs have of their own; None if they have none."""
        from app.cost.prices import StoreKind
        from app.objectstore.location import DirectoryLocation, parse_store_url

        if not self.config.wal_store_url:
            return None
        location = parse_store_url(self.config.wal_store_url)
        if isinstance(location, DirectoryLocation):
            return StoreKind.FILE
        return StoreKind.EXPRESS if location.is_directory_bucket else StoreKind.S3

    async def _sweep_tokens(self) -> None:
        from app.broker.security.token_sweep import sweep_tokens

        await sweep_tokens(
            self.cluster,
            self.membership.controller,
            interval_ms=self.config.delegation_token_expiry_check_interval_ms,
            clock=self._around.clock,
            faults=self.faults,
            log_line=self._log_line,
        )

    async def _seal_log(self, wal: WalId) -> int:
        """End the write-ahead log of a broker that leads no more. Raises: StorageUnavailable, CorruptionError."""
        from app.wal.taker import seal

        around = self._around
        return await seal(
            around.store, wal, sealer=self.config.node_id, clock=around.clock, rng=around.rng, deadline_s=SEAL_S
        )

    async def registered(self, broker_epoch: int) -> None:
        """Note in the data directory that a run under this broker epoch begins (``LastRuns``). Raises: StorageUnavailable."""
        boot_id = self._around.boot_id
        try:
            await self._around.pool.run(lambda: self._last_registration.write(broker_epoch, boot_id, clean=False))
        except OSError as error:
            raise storage_error(error, "Cannot note the registration in the data directory") from error

    async def _tell_what_stays_behind(self) -> None:
        """Name the records that the new broker does not have, as far as the manifests can be read now."""
        logs = self.logs.logs()
        starts = {log: self._first_left_behind(log) for log in logs}
        unsure = False
        try:
            async with asyncio.timeout(REFRESH_S):
                for log in logs:
                    manifest = self.remote_log_manager.last_manifest_of(TopicIdPartition(log.topic_id, log.partition))
                    if manifest is not None and log.log_end_offset > starts[log]:
                        # The new broker may have finished an upload that was under way.
                        await manifest.refresh()
                        starts[log] = self._first_left_behind(log)
        except (TimeoutError, FirnError):
            unsure = True
        behind = [
            f"{log.topic}-{log.partition} [{starts[log]}, {log.log_end_offset})"
            for log in logs
            if log.log_end_offset > starts[log]
        ]
        if behind:
            more = f" and {len(behind) - PARTITIONS_NAMED_MAX} more" if len(behind) > PARTITIONS_NAMED_MAX else ""
            older = " (as far as this broker knows: it cannot read the store)" if unsure else ""
            self._log_line(
                f"records that were not in the store at the take-over are only in {self.config.data_dir}, and the new broker may"
                f" have given their offsets to other records{older}: {', '.join(behind[:PARTITIONS_NAMED_MAX])}{more}"
            )

    def _first_left_behind(self, log: PartitionLog) -> int:
        """The first offset of ``log`` whose record by this broker is not in the store."""
        manifest = self.remote_log_manager.last_manifest_of(TopicIdPartition(log.topic_id, log.partition))
        if manifest is None:
            return log.log_start_offset
        # Records that were tiered later under a leader epoch that this log does not have there are the new broker's.
        mine = {one.epoch: one.start_offset for one in log.leader_epochs()}
        oldest = min(mine, default=0)
        others = [
            start
            for epoch, start in manifest.state.leader_epochs()
            if mine and epoch > oldest and start < mine.get(epoch, log.log_end_offset)
        ]
        return max(min([manifest.tiered_end, *others]), log.log_start_offset)

    async def _run_membership(self) -> None:
        try:
            await self.membership.run()
        except FencedError as error:
            self._on_fenced(error)

    async def _keep_sure_of_place(self) -> None:
        try:
            await self.context.gate.run(self.cluster.look)
        except* FencedError as errors:
            self._on_fenced(next(iter(errors.exceptions)))  # type: ignore[arg-type]

    async def _watch_room(self) -> None:
        """Refuse producers while the disk is nearly full, before writes to the file system fail."""
        least = self.config.firn_log_dir_free_bytes_min
        while least > 0:
            try:
                free = await self._around.pool.run(self.logs.free_bytes)
            except StorageUnavailable as error:
                # The next write will report the fault of the disk.
                self.faults.met_error("reading the free space of", self.config.data_dir, error)
                await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), ROOM_CHECK_S))
                continue
            context = self.context
            if free < least and context.no_room is None:
                full = StorageFull(
                    f"The disk of {self.config.data_dir} has {free} bytes left, below firn.log.dir.free.bytes.min={least}."
                )
                context.refuse_for_room(full)
                sentence = f"{clause(full)}; producers are refused until there is space"
                self.faults.met("finding room in", self.config.data_dir, sentence, lasting=True)
            elif free >= least and context.no_room is not None:
                context.refuse_for_room(None)
                self.faults.over("finding room in", self.config.data_dir)
                self._log_line(f"the disk of {self.config.data_dir} has enough space again; producers are served")
            await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), ROOM_CHECK_S))

    def _on_offline(self, reason: str) -> None:
        sentence = (
            f"the log directory {self.config.data_dir} is offline: {clause(reason)}. The broker no longer reads or writes it; "
            "repair the disk and start the broker again"
        )
        self.faults.met("the log directory", self.config.data_dir, sentence, lasting=True)

    def _on_fenced(self, error: FencedError) -> None:
        """Another broker has taken this broker's place: refuse requests at once."""
        if self._fenced is None:
            self._fenced = error
            if self.server is not None:
                self.server.stop_listening()
                self.server.close_connections()
        self._stopping.set()

    def request_stop(self) -> None:
        """End ``run`` in order."""
        self._stopping.set()

    # --- stopping ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the logs cleanly, and release all resources. Call it after ``run``, or after a failed ``start``."""
        for bound in self._sockets.values():
            bound.close()
        if self.audit is not None:
            await self.audit.close()
        if self.membership is not None and self._fenced is None and self.load_report is not None:
            await self.membership.leave()
            if not self.config.firn_ephemeral:
                await self.partitions.leave()
            if self._high_watermarks is not None:
                await self._high_watermarks.write()
        if self.load_report is not None and self.config.firn_ephemeral:
            self.logs.abandon()  # the durable records are in the bucket, and the next start may have another disk
        elif self.load_report is not None:
            # A start after a crash that did not get so far leaves the next one to find it.
            await self.logs.close(clean=self._leads or self.load_report.clean)
            await self._note_clean_stop()
        else:
            self.logs.lock().close()

    async def _note_clean_stop(self) -> None:
        """One of several brokers has closed its logs in order: its next registration is kept (M4)."""
        member = self.membership.member if self.membership is not None else None
        if member is None or not self._leads or self._fenced is not None or member.broker_epoch < 0:
            return
        epoch, boot_id = member.broker_epoch, self._around.boot_id
        try:
            await self._around.pool.run(lambda: self._last_registration.write(epoch, boot_id, clean=True))
        except OSError as error:
            self._log_line(f"the next start counts as one after an unclean stop: {error}")


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet. Raises: ConfigError."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit the option, as in Kafka. A load balancer forgets a connection that is silent.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}; free the address or give another --listen."
        ) from error
    return bound


def first_error(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is not itself a group."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
