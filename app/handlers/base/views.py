"""Views of the broker's parts: which of them a handler can reach.

The signature of a handler names a view, and the type checker holds it to that view. ``Context`` has the parts of all views, and is
passed as it is. So a view costs nothing at run time. A new handler takes the smallest view that has its parts. If no view has
them, add the part to the view of its family, or write a view for a new family.

- ``RightsView``, ``ImageView``, ``PartitionsView``, ``WritesView``: for helpers, and bases of the others
- ``ProduceView``, ``FetchView``: the fast paths; ``KeyedView``: keyed requests; ``ClientView``: a connection, which takes both
- ``ChangesView``, ``TopicsView``, ``TokensView``: changes of the cluster; ``MetadataView``, ``QuorumView``: what it is like
- ``OffsetsView``, ``DisksView``: logs; ``MembersView``, ``GroupsView``, ``SharesView``: groups
- ``TransactionsView``, ``AdmissionView``, ``SchemasView``, ``RequestsView``: other coordinators
- ``TelemetryView``: metrics of clients
- ``PeersView``: requests of other brokers; ``OperatorView``: requests of operators

Tests: ``tests/handlers/test_views.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from app.configs import BrokerConfig
    from app.core.errors import ErrorCode, FirnError
    from app.core.faults import Faults, Limited
    from app.core.metrics import Registry, Sample
    from app.core.seams import BlockingPool, Clock
    from app.core.units import BrokerId
    from app.exactly_once.coordinator import RequestCoordinator
    from app.groups.coordinator import GroupCoordinator
    from app.groups.share.share_coordinator import ShareCoordinator
    from app.handlers.policy.auditing import Audit, Sampler
    from app.handlers.policy.callers import Doorkeeper, Quotas
    from app.handlers.state.acknowledging import AcknowledgementGate
    from app.handlers.state.draining import Drain
    from app.handlers.state.fetch_fan_out import FanOut
    from app.handlers.state.fetch_sessions import FetchSessions
    from app.handlers.state.metadata_cache import MetadataCache
    from app.handlers.state.metrics import ApiMetrics
    from app.handlers.state.parked_followers import ParkedFollowers
    from app.handlers.state.producer_id_block import ProducerIds
    from app.handlers.state.telemetry import Telemetry
    from app.hot.manager import LogManager
    from app.metadata.controller.controller import Controller
    from app.metadata.controller.desk import Desk
    from app.metadata.image.image import ClusterImage
    from app.metadata.manifest.manifest_entries import ManifestEntries
    from app.metadata.peers.control import PulseRequest
    from app.metadata.view.view import ClusterView
    from app.replication.followed_tier import FollowedTier
    from app.replication.partition import PartitionTable
    from app.replication.reading import PartitionReads
    from app.replication.throttle import Throttle
    from app.schemas.coordinator import SchemaCoordinator
    from app.schemas.follower import SchemaFollower
    from app.security.authorizer import Authorizer
    from app.security.delegation import TokenSecrets
    from app.tiering.upload.copy_holds import CopyHolds, HoldsOfLeaders
    from app.tiering.upload.remote_log_manager import RemoteLogManager
    from app.transactions.coordinator import TransactionCoordinator
    from app.transport.replays import ReplayTurns


# --- bases ------------------------------------------------------------------------------------------------------------


class RightsView(Protocol):
    """The rights of callers."""

    authorizer: Authorizer | None


class ImageView(RightsView, Protocol):
    """The cluster's metadata, and this broker's settings."""

    config: BrokerConfig

    @property
    def image(self) -> ClusterImage: ...

    @property
    def node_id(self) -> BrokerId: ...


class PartitionsView(ImageView, Protocol):
    """The partitions of this broker."""

    partitions: PartitionTable


class WritesView(PartitionsView, Protocol):
    """Topics that clients write to."""

    schemas: SchemaCoordinator


# --- the fast paths ---------------------------------------------------------------------------------------------------


class ProduceView(WritesView, Protocol):
    """Appends batches."""

    clock: Clock
    effective: BrokerConfig
    pool: BlockingPool
    faults: Faults
    metrics: ApiMetrics
    client_line: Limited
    quotas: Quotas | None
    audit: Audit | None
    sampler: Sampler | None
    refusal: FirnError | None
    refuses_transactions: bool
    transactions: TransactionCoordinator
    schema_follower: SchemaFollower


class FetchView(PartitionsView, Protocol):
    """Reads partitions, for consumers and followers."""

    clock: Clock
    effective: BrokerConfig
    pool: BlockingPool
    faults: Faults
    metrics: ApiMetrics
    quotas: Quotas | None
    audit: Audit | None
    sampler: Sampler | None
    logs: LogManager
    reads: PartitionReads
    replays: ReplayTurns
    remote_log_manager: RemoteLogManager
    fetch_sessions: FetchSessions
    fan_out: FanOut
    parked_followers: ParkedFollowers
    leader_throttle: Throttle
    selects_by_rack: bool


class KeyedView(ProduceView, Protocol):
    """Writes the records and the result of a keyed request."""

    requests: RequestCoordinator


class ClientView(KeyedView, FetchView, Protocol):
    """A connection: its caller, and both fast paths."""

    doorkeeper: Doorkeeper


# --- the cluster ------------------------------------------------------------------------------------------------------


class ChangesView(ImageView, Protocol):
    """Changes the cluster."""

    controller: Controller

    def random_bytes(self, count: int, /) -> bytes: ...


class TopicsView(ChangesView, Protocol):
    """Changes topics and settings."""

    cluster: ClusterView
    effective: BrokerConfig
    quotas: Quotas | None
    holds_of_leaders: HoldsOfLeaders
    client_line: Limited


class TelemetryView(ImageView, Protocol):
    """Takes metrics of clients."""

    telemetry: Telemetry
    pool: BlockingPool

    def random_bytes(self, count: int, /) -> bytes: ...


class TokensView(ChangesView, Protocol):
    """Changes delegation tokens."""

    token_secrets: TokenSecrets | None


class QuorumView(ChangesView, Protocol):
    """Describes the controller and its brokers."""

    clock: Clock
    desk: Desk | None


class MetadataView(PartitionsView, Protocol):
    """Describes the cluster to clients. Metadata may create a topic."""

    cluster: ClusterView
    controller: Controller
    metadata_cache: MetadataCache
    audit: Audit | None
    desk: Desk | None
    store_trouble: Callable[[], str] | None


# --- logs -------------------------------------------------------------------------------------------------------------


class OffsetsView(PartitionsView, Protocol):
    """Finds offsets."""

    reads: PartitionReads
    remote_log_manager: RemoteLogManager
    faults: Faults


class DisksView(WritesView, Protocol):
    """Log directories, and the deletion of records."""

    logs: LogManager
    remote_log_manager: RemoteLogManager


# --- coordinators -----------------------------------------------------------------------------------------------------


class MembersView(PartitionsView, Protocol):
    """Groups of any type."""

    groups: GroupCoordinator


class GroupsView(MembersView, Protocol):
    """Groups and committed offsets."""

    shares: ShareCoordinator
    cluster: ClusterView
    controller: Controller
    clock: Clock
    pool: BlockingPool
    rng: random.Random


class SharesView(MembersView, Protocol):
    """Share groups, and their records."""

    shares: ShareCoordinator
    reads: PartitionReads
    clock: Clock
    faults: Faults
    metrics: ApiMetrics


class AdmissionView(PartitionsView, Protocol):
    """Adds partitions of internal topics to transactions."""

    transactions: TransactionCoordinator
    effective: BrokerConfig


class RequestsView(AdmissionView, Protocol):
    """The results of keyed requests."""

    requests: RequestCoordinator
    refusal: FirnError | None
    refuses_transactions: bool


class TransactionsView(AdmissionView, Protocol):
    """Transactions and producer ids."""

    producer_ids: ProducerIds
    groups: GroupCoordinator
    cluster: ClusterView
    controller: Controller
    clock: Clock
    faults: Faults


class SchemasView(WritesView, Protocol):
    """The log of the schema registry."""

    refusal: FirnError | None


# --- brokers and operators --------------------------------------------------------------------------------------------


class PeersView(ImageView, Protocol):
    """Serves other brokers."""

    cluster: ClusterView
    clock: Clock

    def random_bytes(self, count: int, /) -> bytes: ...

    desk: Desk | None
    hears_controller: Callable[[], bool] | None
    pulsed: Callable[[PulseRequest], ErrorCode] | None
    copy_holds: CopyHolds
    manifest_entries: ManifestEntries | None
    remote_log_manager: RemoteLogManager


class OperatorView(PartitionsView, Protocol):
    """Shows the broker and its tier, and drains it."""

    cluster: ClusterView
    logs: LogManager
    remote_log_manager: RemoteLogManager
    followed_tiers: Callable[[], Iterable[FollowedTier]] | None
    drain: Drain
    gate: AcknowledgementGate
    back: Sequence[tuple[str, int, int]]
    pool: BlockingPool
    faults: Faults
    registry: Registry
    store_samples: Callable[[], Awaitable[Sequence[Sample]]] | None
    store_trouble: Callable[[], str] | None
