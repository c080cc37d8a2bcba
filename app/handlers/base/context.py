"""The broker's parts. The composition root (``app/broker/``) builds them, and one ``Context`` of them, which all connections share.

A handler takes a view of it (``views.py``): its signature shows which parts it can reach. Handlers keep no state of their own,
except the parts that are named here (fetch sessions, producer ids).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, FirnError, StorageFull
from app.core.faults import Faults, Limited
from app.core.metrics import Registry, Sample
from app.core.seams import BlockingPool, Clock
from app.core.units import BrokerId
from app.handlers.policy.callers import Doorkeeper, KnownRights, Quotas
from app.handlers.state.acknowledging import AcknowledgementGate
from app.handlers.state.draining import Drain
from app.handlers.state.fetch_fan_out import FanOut
from app.handlers.state.metadata_cache import MetadataCache
from app.handlers.state.parked_followers import ParkedFollowers
from app.replication.throttle import Throttle
from app.transport.replays import ReplayTurns

if TYPE_CHECKING:
    from app.exactly_once.coordinator import RequestCoordinator
    from app.groups.coordinator import GroupCoordinator
    from app.groups.share.share_coordinator import ShareCoordinator
    from app.handlers.base.request import Request
    from app.handlers.policy.auditing import Audit, Sampler
    from app.handlers.state.fetch_sessions import FetchSessions
    from app.handlers.state.metrics import ApiMetrics
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
    from app.schemas.coordinator import SchemaCoordinator
    from app.schemas.follower import SchemaFollower
    from app.security.authorizer import Authorizer
    from app.security.delegation import TokenSecrets
    from app.tiering.upload.copy_holds import CopyHolds, HoldsOfLeaders
    from app.tiering.upload.remote_log_manager import RemoteLogManager
    from app.transactions.coordinator import TransactionCoordinator


class ApiHandler(Protocol):
    """How one API is answered; ``app.handlers.base.api.Api`` is one."""

    @property
    def handle(self) -> Callable[[Context, Request, Any], Any]:
        """(context, request, message) to the response message, or to an awaitable of it."""
        ...

    @property
    def refuse(self) -> Callable[[Request, Any, ErrorCode, str], Any]:
        """(request, message, code, sentence) to the response that carries the code."""
        ...


class PassesOn(Protocol):
    """The way to the controller."""

    def needed(self) -> bool:
        """Whether another broker is the controller, as far as this one knows."""
        ...

    async def pass_on(self, frame: bytes, principal: bytes, client_address: bytes) -> bytes:
        """Have the controller answer a request, given without its size. Returns: the answer's frame without its size.

        Raises: RequestRejected, also REQUEST_TIMED_OUT if it is not known whether the request was carried out.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Context:
    """The parts of one running broker. Everything belongs to its event loop."""

    config: BrokerConfig
    clock: Clock
    rng: random.Random
    pool: BlockingPool
    registry: Registry
    cluster: ClusterView
    """This broker's copy of the cluster's metadata."""
    controller: Controller
    """Makes changes of the cluster: here, or on the broker that is the controller."""
    logs: LogManager
    """The logs on the disk, their directories, and the free space. ``partitions`` decides which of them may be read and written."""
    partitions: PartitionTable
    reads: PartitionReads
    """Reads partitions, from the disk or the object store."""
    remote_log_manager: RemoteLogManager
    copy_holds: CopyHolds
    """The holds of copies on this broker, which the controller asks for."""
    holds_of_leaders: HoldsOfLeaders
    """Has all leaders of a topic hold copies, for changes that are made here."""
    metrics: ApiMetrics
    fetch_sessions: FetchSessions
    telemetry: Telemetry
    producer_ids: ProducerIds
    groups: GroupCoordinator
    shares: ShareCoordinator
    transactions: TransactionCoordinator
    schemas: SchemaCoordinator
    requests: RequestCoordinator
    schema_follower: SchemaFollower
    advertised_host: str
    advertised_port: int
    log_line: Callable[[str], None]
    """Writes a one-line notice for the operator. Notices that clients can cause at will go to ``client_line``."""
    store_samples: Callable[[], Awaitable[Sequence[Sample]]] | None = None
    """Asks the store process for its metrics. Raises: StorageUnavailable."""
    store_trouble: Callable[[], str] | None = None
    """A sentence that says since when the object store is away, empty while it responds; None if nothing is known of it."""
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """Returns so many unpredictable bytes."""
    doorkeeper: Doorkeeper
    """Names the caller of a connection."""
    authorizer: Authorizer | None = None
    """Decides about the rights of callers; None if every caller has all rights."""
    brokers: frozenset[str] = frozenset()
    """Principals of brokers, as far as the settings name them. Without an authorizer, only they may pass requests on."""
    token_secrets: TokenSecrets | None = None
    """Derives the secrets of delegation tokens; None if there are none."""
    audit: Audit | None = None
    """Hears of refusals, changes and logins; None if no caller can be refused and nothing is written."""
    sampler: Sampler | None = None
    """Chooses requests that were allowed, for the audit log; None if none are."""
    rights: KnownRights
    """Where doorkeepers get the rights of callers. They end when the rules change."""
    apis: Mapping[int, ApiHandler]
    """The handler of each API."""
    desk: Desk | None = None
    """Where other brokers ask the controller; None on a broker that is alone."""
    passes_on: PassesOn | None = None
    """The way to the controller of several brokers; None on a broker that is alone."""
    starting: bool = False
    """Whether this broker, one of several, serves only other brokers because it is not registered yet."""
    users_due: bool = False
    """Whether this start still has to create users that were left for it. Until then no client is told that its login is wrong."""
    hears_controller: Callable[[], bool] | None = None
    """Whether this broker has just heard the controller of several brokers."""
    pulsed: Callable[[PulseRequest], ErrorCode] | None = None
    """Takes the pulse of another broker (ADR 0023, L6); None on a broker that is alone."""
    manifest_entries: ManifestEntries | None = None
    """The newest entries of led manifests, for their followers; None on a broker that is alone."""
    followed_tiers: Callable[[], Iterable[FollowedTier]] | None = None
    """The known state of the tier of each partition that this broker follows; None on a broker that is alone."""
    quotas: Quotas | None = None
    """Limits the rates of clients; None while there are no quotas."""
    faults: Faults
    """Logs the faults of disks, of the store and of stored bytes that clients get as errors."""
    no_room: StorageFull | None = None
    """Why producers are refused for now: the disk is nearly full. Changed by ``refuse_for_room``."""
    replays: ReplayTurns
    """Readers of the tier take turns, so that others need not wait for them."""
    parked_followers: ParkedFollowers
    gate: AcknowledgementGate
    """Holds responses back while it is in doubt whether another broker has this one's place."""
    metadata_cache: MetadataCache
    fan_out: FanOut
    """Responses that many consumers share."""
    back: Sequence[tuple[str, int, int]] = ()
    """If this start took over: each tiered topic, its number of partitions, and the sum of the offsets at which they went on."""
    effective: BrokerConfig
    """``config`` with the settings that were altered since the start."""
    refusal: FirnError | None = None
    """The error with which producers are refused now: of the disk or of a drain. None if they are not."""
    refuses_transactions: bool = False
    """Whether batches of open transactions are refused with the others."""
    selects_by_rack: bool
    """Whether consumers are sent to a replica in their rack (KIP-392)."""
    leader_throttle: Throttle
    """Limits the bytes that this broker sends to throttled replicas that are out of sync."""
    client_line: Limited
    """``log_line`` for notices that clients can cause: at most so many lines in a while."""
    drain: Drain
    """Refuses producers, and has all of their records tiered, before this broker stops for good."""

    def refuse_for_room(self, error: StorageFull | None) -> None:
        """Refuse producers from now on because there is no room, or (None) no longer for that reason."""
        self.no_room = error
        self.decide_refusal()

    def decide_refusal(self) -> None:
        """Bring ``refusal`` in line with its reasons."""
        self.refusal = self.no_room if self.no_room is not None else self.drain.refusal
        self.refuses_transactions = self.no_room is not None or self.drain.sealed

    @property
    def node_id(self) -> BrokerId:
        return BrokerId(self.config.node_id)

    @property
    def image(self) -> ClusterImage:
        """The cluster as of now; immutable, so one handler that reads it twice should keep it in a variable."""
        return self.cluster.image
