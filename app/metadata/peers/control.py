"""Requests between brokers of one cluster, and the seam that carries them (ADR 0023).

``ControlLink`` reaches other brokers. The composition root implements it with Kafka's protocol; tests and the simulation bring
their own network. Messages are arrays, so that fields may be appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, clause
from app.core.limits import PARTITIONS_PER_TOPIC_MAX, REQUEST_ELEMENTS_MAX
from app.core.units import TopicId
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import Endpoint
from app.metadata.image.wal_ranges import WalRange
from app.security.scram import ScramCredential

LISTED: Final = msgspec.Meta(max_length=REQUEST_ELEMENTS_MAX)
"""No list of a request is longer."""


class RegisterRequest(msgspec.Struct, array_like=True, frozen=True):
    """Asks the controller to register a broker: ``RegistrationAsked`` on the wire."""

    cluster_id: str
    broker_id: int
    directory_id: UUID
    incarnation: UUID
    replaces: int
    clean_epoch: int
    run_epoch: int
    run_boot_id: str
    boot_id: str
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    instance_id: str
    level_min: int
    level_max: int
    force: bool = False
    anew: int = -1
    ephemeral: bool = False
    wal_store: str = ""


class RegisterResponse(msgspec.Struct, array_like=True, frozen=True):
    """The registration, or why it was refused."""

    error: int = 0
    message: str = ""
    broker_id: int = -1
    broker_epoch: int = -1
    sequence: int = -1
    """Number of the entry that this broker must have applied."""


class HeardRequest(msgspec.Struct, array_like=True, frozen=True):
    """Asks a broker whether it has heard the controller (C3)."""

    cluster_id: str
    broker_id: int


class HeardResponse(msgspec.Struct, array_like=True, frozen=True):
    heard: bool
    controller_epoch: int
    """The highest that it knows."""
    next_sequence: int


class PulseRequest(msgspec.Struct, array_like=True, frozen=True):
    """How the loop of a broker gets on, by a thread beside it (L6, C10)."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    late: bool
    """Whether the loop missed its last turn, or is starved. Otherwise the pulse only keeps the connection open."""
    turned_ms: int
    """Since the loop turned last."""
    controller_epoch: int = -1
    """Under which the broker was the controller at that turn; -1 if it was not."""
    confirmed_ms: int = -1
    """Since the controller confirmed the log last."""


class PulseResponse(msgspec.Struct, array_like=True, frozen=True):
    error: int = 0
    """NOT_CONTROLLER: the asked broker cannot prolong a session."""


class EntriesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Asks the controller for entries of the cluster log from a number on; waits for the next one."""

    cluster_id: str
    start: int
    wait_ms: int
    broker_id: int = -1
    """The broker that asks."""
    now_ms: int = -1
    """Its clock, to be compared and for nothing else."""


class EntriesResponse(msgspec.Struct, array_like=True, frozen=True):
    error: int = 0
    entries: tuple[bytes, ...] = ()
    lost: bool = False
    """The controller does not have them at hand: read the bucket."""


class LookRequest(msgspec.Struct, array_like=True, frozen=True):
    """A coordinator whose log may lack its end asks each broker for its facts about transactions (ADR 0037, J46)."""

    cluster_id: str
    sequence: int
    """The entry of the cluster log that the asked broker must have applied (J46g)."""
    producers: Annotated[tuple[tuple[int, int], ...], LISTED] = ()
    """Producer ids with open transactions, each with the epoch of one."""
    doubts: Annotated[tuple[tuple[str, int, int, int], ...], LISTED] = ()
    """Topic, partition, producer id and time: has the partition a marker of a decision of that time or later?"""


class LookResponse(msgspec.Struct, array_like=True, frozen=True):
    """A broker's facts about transactions."""

    error_code: int = 0
    led: tuple[tuple[str, int, int], ...] = ()
    """The partitions that this is about: all that the broker leads, each with its leader epoch. Those of ``__transaction_state``
    only if their logs are read."""
    opened: tuple[tuple[str, int, int, int, int], ...] = ()
    """If no producer was named: open transactions, each with topic, partition, producer id, its epoch, and the highest epoch of a
    coordinator."""
    known: tuple[int, ...] = ()
    """Which of the named producers belong to transactional ids whose coordinator lacks nothing."""
    outcomes: tuple[tuple[int, int, bool, int, tuple[tuple[str, int], ...]], ...] = ()
    """How transactions of the named producers ended: producer id, epoch of the marker, whether it commits, time of the decision or
    -1, and partitions."""
    marked: tuple[tuple[str, int, int, int], ...] = ()
    """The doubts whose partition has such a marker."""


class HoldId(msgspec.Struct, array_like=True, frozen=True):
    """Names one hold."""

    topic_id: TopicId
    controller_epoch: int
    """Of the controller that asks."""
    number: int
    """Which of its holds."""


class HoldRequest(msgspec.Struct, array_like=True, frozen=True):
    """The controller asks a leader to hold copies, or says that a hold is over."""

    cluster_id: str
    hold: HoldId
    sequence: int
    """The entry of the cluster log that the leader must have applied before it answers, or before the hold ends."""
    partitions: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = ()
    """The topic's partitions that the leader leads, each with its leader epoch. Empty: the hold is over."""


class HoldResponse(msgspec.Struct, array_like=True, frozen=True):
    """How many segments the object store has of these partitions, or why that is not known."""

    error: int = 0
    message: str = ""
    segments: int = 0


class ManifestsRequest(msgspec.Struct, array_like=True, frozen=True):
    """A follower asks a leader for entries of the segment manifests of its partitions (ADR 0024, T8).

    With ``asked`` it is answered at once; without, when there is a new entry or the time is over.
    """

    cluster_id: str
    broker_id: int
    term: str
    """The leader's process that ``place`` is of; empty if none is known."""
    place: int
    """All entries before it were handed on, of all partitions."""
    wait_ms: int
    asked: Annotated[tuple[tuple[UUID, int, int], ...], LISTED] = ()
    """Partitions, each with the number of the next entry that the follower lacks."""


class ManifestInfo(msgspec.Struct, array_like=True, frozen=True):
    """A leader's answer about one manifest."""

    topic_id: UUID
    partition: int
    version: int
    """Number of its next entry; -1 if this broker does not know it now."""
    entries: tuple[bytes, ...] = ()
    """From the asked number on, up to ``version``; none if they are not all at hand."""


class ManifestsResponse(msgspec.Struct, array_like=True, frozen=True):
    error: int = 0
    term: str = ""
    place: int = 0
    """Where to go on."""
    lost: bool = False
    """Entries from the follower's place on are not at hand: it asks for each of its partitions."""
    entries: tuple[tuple[UUID, int, int, bytes], ...] = ()
    """Partition, number and bytes of each new entry, in the order in which they became durable."""
    given: tuple[ManifestInfo, ...] = ()


class ChangeRequest(msgspec.Struct, array_like=True, frozen=True):
    """A change that a broker asks for by itself, not for a client."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    name: str
    body: bytes


class ChangeResponse(msgspec.Struct, array_like=True, frozen=True):
    error: int = 0
    message: str = ""
    sequence: int = -1
    """The broker answers its client when it has applied this entry (F2)."""
    body: bytes = b""


class CreateTopicChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of the change ``create-topic``: as ``Controller.create_topic``."""

    name: str
    partitions: int
    configs: dict[str, str | None]
    factor: int
    fewer_replicas: bool


class ProducerIdsChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of the answer to ``producer-ids``: ids from ``start`` up to ``end`` are the broker's."""

    start: int
    end: int


class RaiseChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of ``raise-epochs``, and of its answer: leader epochs by partition, to rise above, or as they are now."""

    epochs: tuple[tuple[UUID, int, int], ...]


class ForgetTopicChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of ``forget-topic``: nothing of a deleted topic is left in the bucket."""

    topic_id: UUID


class NodeIdChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of the answer to ``node-id``: an id that no other broker gets."""

    node_id: int


class FirstUsersChange(msgspec.Struct, array_like=True, frozen=True):
    """Body of ``first-users``: name, mechanism and SCRAM credential of each user."""

    users: tuple[tuple[str, int, ScramCredential], ...]


class FirstUsersMade(msgspec.Struct, array_like=True, frozen=True):
    """Body of its answer: name, error code and sentence of each user."""

    users: tuple[tuple[str, int, str | None], ...]


CREATE_TOPIC: Final = "create-topic"
PRODUCER_IDS: Final = "producer-ids"
RAISE_EPOCHS: Final = "raise-epochs"
FORGET_TOPIC: Final = "forget-topic"
LEAVE: Final = "leave"
NODE_ID: Final = "node-id"
FIRST_USERS: Final = "first-users"
"""Names of changes. ``leave``: the broker has stopped in order. ``node-id``: the only one that a broker asks for before it is
registered, as broker -1 (M10)."""


ENVELOPE_SEQUENCE: Final = Struct(">q")
"""Before the answer in an Envelope: number of the newest entry when it was answered (F2)."""


class Heartbeat(NamedTuple):
    """The request of BrokerHeartbeat (API 63)."""

    broker_id: int
    broker_epoch: int
    applied: int
    """Number of the last entry that the broker has applied."""
    wants_stop: bool
    wal_next: int = 0
    """A number of the broker's write-ahead log that it has not begun; 0 is always right (J19)."""


class HeartbeatAnswer(NamedTuple):
    """The response to BrokerHeartbeat."""

    error: ErrorCode = ErrorCode.NONE
    caught_up: bool = False
    fenced: bool = True
    may_stop: bool = False


NOTHING_WRITTEN: Final = -1
"""As the last number of a release: the leader has put nothing of the partition."""
NOT_RELEASED: Final = -2
"""As the last number of a release: the partition is not released."""
ANYBODY: Final = -1
"""As the broker to which a partition is released."""
ANYBODY_OR_NOBODY: Final = -2
"""The same of a leader that stops: if no other broker can lead now, the leadership ends all the same (J49)."""


class MemberEpoch(NamedTuple):
    """A member of a proposed in-sync set, with its broker epoch (KIP-903)."""

    broker_id: int
    broker_epoch: int


class InSyncAsked(NamedTuple):
    """A partition's proposed in-sync set (AlterPartition)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    members: tuple[MemberEpoch, ...]


class InSyncAnswer(NamedTuple):
    """The answer for one partition. The caller reads the outcome from the image, and uses this answer only to decide on a retry."""

    topic_id: UUID
    partition: int
    error: ErrorCode


class ReleaseAsked(NamedTuple):
    """A leader gives a partition up (AlterPartition; J18)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    last_number: int
    """The last object with records of the partition; ``NOTHING_WRITTEN``, or any number below its range, if there is none."""
    to: int = ANYBODY
    """The broker that should lead next, if it can."""


class DropAsked(NamedTuple):
    """A leader needs these closed ranges no more (AlterPartition; J35)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    ranges: tuple[WalRange, ...]


class SwitchAsked(NamedTuple):
    """A leader asks for the second entry of a change of durability (AlterPartition; J40, J41).

    It says that the new rule holds for every record of the partition. On the way to the log, all untiered records are in these
    objects. On the way back, every member of the in-sync set has all records from the tiered end on.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    first_number: int
    """The first object of its log that may have records of this leadership."""
    last_number: int
    """The last one; lower if there is none. The leader takes no more records, as with a release."""


OfLog: TypeAlias = ReleaseAsked | DropAsked | SwitchAsked


def encode_ranges(ranges: Sequence[WalRange]) -> bytes:
    """The bytes of a request that names ranges."""
    return msgspec.msgpack.encode(tuple(ranges))


_ranges = msgspec.msgpack.Decoder(tuple[WalRange, ...])


def decode_ranges(data: bytes) -> tuple[WalRange, ...]:
    """The ranges that a request names. Raises: ProtocolError."""
    try:
        return _ranges.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"The ranges of a write-ahead log cannot be read: {clause(error)}.") from None


class NotSent(BrokerUnavailable):
    """A broker cannot be reached, and no byte of the request has left: it may be sent elsewhere (F1)."""


class ControlLink(Protocol):
    """Connections to other brokers of the cluster. Each method raises NotSent, BrokerUnavailable (the request may have been carried
    out) and ProtocolError."""

    async def register(self, to: BrokerImage, asked: RegisterRequest) -> RegisterResponse: ...

    async def heartbeat(self, to: BrokerImage, beat: Heartbeat) -> HeartbeatAnswer: ...

    async def heard(self, to: BrokerImage, asked: HeardRequest) -> HeardResponse: ...

    async def entries(self, to: BrokerImage, asked: EntriesRequest) -> EntriesResponse: ...

    async def change(self, to: BrokerImage, asked: ChangeRequest) -> ChangeResponse: ...

    async def alter_in_sync(
        self, to: BrokerImage, broker_id: int, broker_epoch: int, asked: Sequence[InSyncAsked]
    ) -> Sequence[InSyncAnswer]: ...

    async def alter_logs(
        self, to: BrokerImage, broker_id: int, broker_epoch: int, asked: Sequence[OfLog]
    ) -> Sequence[InSyncAnswer]:
        """Send a leader's requests for partitions in its write-ahead log. Raises also RequestRejected."""
        ...

    async def pass_on(
        self, to: BrokerImage, frame: bytes, principal: bytes, client_address: bytes
    ) -> tuple[int, bytes]:
        """Pass a client's request on in an Envelope. Returns: the number of the newest entry when it was answered, and the answer's
        frame. Raises also RequestRejected."""
        ...

    async def refuses(self, endpoint: Endpoint) -> bool:
        """Whether the address refuses connections: the machine is there, and no process listens (L2)."""
        ...

    async def close(self) -> None: ...
