"""Requests of brokers to the controller and each other (ADR 0023): registration, heartbeats, entries of the cluster log, changes.

A broker of level 0 answers all of them as a broker that is not the controller.

Tests: ``tests/broker/test_private_apis.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.units import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import PeersView
from app.metadata.changes import topic_changes
from app.metadata.changes.broker_changes import ANY_NODE_ID, AlteredSet, ProposedSet, RegistrationAsked
from app.metadata.changes.scram_changes import ScramAsked
from app.metadata.controller.controller import not_controller
from app.metadata.peers.control import (
    CREATE_TOPIC,
    FIRST_USERS,
    FORGET_TOPIC,
    LEAVE,
    NODE_ID,
    NOT_RELEASED,
    PRODUCER_IDS,
    RAISE_EPOCHS,
    ChangeRequest,
    ChangeResponse,
    CreateTopicChange,
    DropAsked,
    EntriesRequest,
    EntriesResponse,
    FirstUsersChange,
    FirstUsersMade,
    ForgetTopicChange,
    HeardRequest,
    HeardResponse,
    Heartbeat,
    NodeIdChange,
    OfLog,
    ProducerIdsChange,
    PulseRequest,
    PulseResponse,
    RaiseChange,
    RegisterRequest,
    RegisterResponse,
    ReleaseAsked,
    SwitchAsked,
    decode_ranges,
)
from app.metadata.replicas.replica_changes import ProposedReplica
from app.security.scram import SECRET_BYTES
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from app.wire.apis.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from app.wire.private import pack, unpack

if TYPE_CHECKING:
    from app.metadata.controller.desk import Desk

ENTRIES_WAIT_MS_MAX = 10_000


def _desk(context: PeersView) -> Desk:
    """Raises: RequestRejected NOT_CONTROLLER."""
    if context.desk is None:
        raise not_controller()
    return context.desk


def _check_cluster(context: PeersView, cluster_id: str) -> None:
    """Raises: RequestRejected INCONSISTENT_CLUSTER_ID."""
    if cluster_id != context.image.cluster_id:
        raise RequestRejected(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"This broker is of cluster {context.image.cluster_id}, and the request is for cluster {cluster_id}: the brokers"
            " of one cluster use one bucket and prefix.",
        )


# --- heartbeats -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TellsOfItsEnd:
    """Tells the controller's service when a connection ends over which a broker sent its heartbeats (L2)."""

    desk: Desk
    broker_id: int

    def cancel(self) -> None:
        self.desk.lost_connection(self.broker_id)


async def handle_heartbeat(
    context: PeersView, request: Request, message: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """BrokerHeartbeat. Raises: RequestRejected."""
    desk = _desk(context)
    beat = Heartbeat(
        message.broker_id,
        message.broker_epoch,
        message.current_metadata_offset,
        message.want_shut_down,
        max(message.wal_next, 0),
    )
    answer = await desk.heard(beat)
    if answer.error is ErrorCode.NONE:
        request.on_close.add(_TellsOfItsEnd(desk, message.broker_id))
    return BrokerHeartbeatResponse(
        error_code=int(answer.error),
        is_caught_up=answer.caught_up,
        is_fenced=answer.fenced,
        should_shut_down=answer.may_stop,
    )


def _refuse_heartbeat(request: Request, message: object, code: ErrorCode, why: str) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=int(code))


# --- in-sync sets ---------------------------------------------------------------------------------------------------


async def handle_alter_partition(
    context: PeersView, request: Request, message: AlterPartitionRequest
) -> AlterPartitionResponse:
    """AlterPartition (KIP-497, KIP-903), and the requests of leaders for partitions in write-ahead logs.

    Raises: RequestRejected, StorageUnavailable, ProtocolError.
    """
    desk = _desk(context)
    of_logs = [
        asked
        for topic in message.topics
        for one in topic.partitions
        if (asked := _asked_of_log(topic.topic_id, one)) is not None
    ]
    proposals = [
        ProposedSet(
            topic.topic_id,
            one.partition_index,
            one.leader_epoch,
            one.partition_epoch,
            [ProposedReplica(member.broker_id, member.broker_epoch) for member in one.new_isr_with_epochs]
            or [ProposedReplica(broker_id, -1) for broker_id in one.new_isr],
            bool(one.leader_recovery_state),
        )
        for topic in message.topics
        for one in topic.partitions
        if _asked_of_log(topic.topic_id, one) is None
    ]
    answers: list[AlteredSet] = []
    if proposals or not of_logs:
        answers += await desk.alter_in_sync(message.broker_id, message.broker_epoch, proposals)
    if of_logs:
        answers += await desk.alter_logs(message.broker_id, message.broker_epoch, of_logs)
    topics: dict[UUID, AlterPartitionResponseTopicData] = {}
    for answer in answers:
        topic = topics.setdefault(answer.topic_id, AlterPartitionResponseTopicData(topic_id=answer.topic_id))
        data = AlterPartitionResponsePartitionData(partition_index=answer.partition, error_code=int(answer.error))
        if answer.image is not None:
            data.leader_id = answer.image.leader
            data.leader_epoch = answer.image.leader_epoch
            data.isr = list(answer.image.isr)
            data.partition_epoch = answer.image.partition_epoch
            data.leader_recovery_state = int(answer.image.recovering)
        topic.partitions.append(data)
    return AlterPartitionResponse(topics=list(topics.values()))


def _asked_of_log(topic_id: UUID, one: AlterPartitionRequestPartitionData) -> OfLog | None:
    """The request of a leader for a partition in its write-ahead log, if it is one (docs/adr/0037-object-durability.md).

    Raises: ProtocolError.
    """
    place = (topic_id, one.partition_index, one.leader_epoch, one.partition_epoch)
    if one.switched_first != NOT_RELEASED:
        return SwitchAsked(*place, one.switched_first, one.released_last)
    if one.released_last != NOT_RELEASED:
        return ReleaseAsked(*place, one.released_last, one.released_to)
    return DropAsked(*place, decode_ranges(one.dropped_ranges)) if one.dropped_ranges else None


def _refuse_alter(request: Request, message: object, code: ErrorCode, why: str) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=int(code))


# --- Firn's own -----------------------------------------------------------------------------------------------------


async def handle_register(context: PeersView, request: Request, message: bytes) -> bytes:
    """Registration of a broker. Raises: ProtocolError."""
    asked = unpack(RegisterRequest, message)
    try:
        desk = _desk(context)
        _check_cluster(context, asked.cluster_id)
        await desk.asked()
        answer = await desk.register(
            RegistrationAsked(
                asked.broker_id,
                asked.directory_id,
                asked.incarnation,
                asked.boot_id,
                asked.endpoints,
                asked.level_min,
                asked.level_max,
                asked.replaces,
                asked.clean_epoch,
                asked.run_epoch,
                asked.run_boot_id,
                asked.rack,
                asked.instance_id,
                asked.force,
                asked.anew,
                asked.ephemeral,
                asked.wal_store,
            )
        )
    except FirnError as error:
        return pack(RegisterResponse(int(kafka_code(error)), str(error)))
    return pack(RegisterResponse(0, "", answer.broker_id, answer.broker_epoch, answer.sequence))


async def handle_heard(context: PeersView, request: Request, message: bytes) -> bytes:
    """Whether this broker has heard the controller (C3). Raises: ProtocolError."""
    asked = unpack(HeardRequest, message)
    if context.desk is not None and asked.cluster_id == context.image.cluster_id:
        await context.desk.asked()
    image = context.image
    heard = context.hears_controller is not None and context.hears_controller()
    if asked.cluster_id != image.cluster_id:
        return pack(HeardResponse(False, -1, -1))
    return pack(HeardResponse(heard, context.cluster.log.writer.epoch, context.cluster.log.next_sequence))


def handle_pulse(context: PeersView, request: Request, message: bytes) -> bytes:
    """The pulse of a broker (L6, C10). Raises: ProtocolError."""
    asked = unpack(PulseRequest, message)
    if context.pulsed is None:
        return pack(PulseResponse(int(ErrorCode.NOT_CONTROLLER)))
    if asked.cluster_id != context.image.cluster_id:
        return pack(PulseResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID)))
    return pack(PulseResponse(int(context.pulsed(asked))))


async def handle_entries(context: PeersView, request: Request, message: bytes) -> bytes:
    """Entries of the cluster log, from the controller that wrote them. Raises: ProtocolError."""
    asked = unpack(EntriesRequest, message)
    try:
        _check_cluster(context, asked.cluster_id)
        desk = _desk(context)
        if asked.now_ms >= 0:
            desk.note_clock(asked.broker_id, asked.now_ms - context.clock.now_ms())
        await desk.asked()
        entries = await desk.entries(asked.start, min(max(asked.wait_ms, 0), ENTRIES_WAIT_MS_MAX) / 1000)
    except FirnError as error:
        return pack(EntriesResponse(int(kafka_code(error))))
    return pack(EntriesResponse(0, (), True) if entries is None else EntriesResponse(0, tuple(entries)))


async def handle_change(context: PeersView, request: Request, message: bytes) -> bytes:
    """A change that a broker asks for by itself. Raises: ProtocolError."""
    asked = unpack(ChangeRequest, message)
    try:
        _check_cluster(context, asked.cluster_id)
        desk = _desk(context)
        await desk.asked()
        if not desk.serving:
            raise not_controller()
        if asked.name == NODE_ID and asked.broker_id == ANY_NODE_ID:
            body = pack(NodeIdChange(await desk.allot_node_id()))
            return pack(ChangeResponse(0, "", context.cluster.log.next_sequence - 1, body))
        broker = context.image.brokers.get(asked.broker_id)
        if broker is None or broker.broker_epoch != asked.broker_epoch:
            raise RequestRejected(ErrorCode.STALE_BROKER_EPOCH, f"Broker {asked.broker_id} is to register again.")
        body = await _changed(context, desk, asked)
    except FirnError as error:
        return pack(ChangeResponse(int(kafka_code(error)), str(error)))
    return pack(ChangeResponse(0, "", context.cluster.log.next_sequence - 1, body))


async def _changed(context: PeersView, desk: Desk, asked: ChangeRequest) -> bytes:
    """Raises: FirnError, ProtocolError."""
    controller = desk.controller
    match asked.name:
        case name if name == CREATE_TOPIC:
            topic = unpack(CreateTopicChange, asked.body)
            await controller.create_topic(
                topic.name, topic.partitions, topic.configs, topic.factor, fewer_replicas=topic.fewer_replicas
            )
            return b""
        case name if name == PRODUCER_IDS:
            block = await controller.allocate_producer_ids(BrokerId(asked.broker_id))
            return pack(ProducerIdsChange(block.start, block.stop))
        case name if name == RAISE_EPOCHS:
            wanted = {
                TopicIdPartition(TopicId(topic_id), PartitionIndex(index)): above
                for topic_id, index, above in unpack(RaiseChange, asked.body).epochs
            }
            for key in wanted:
                image = context.image.partition(key.topic_id, key.partition)
                if image is not None and image.leader != asked.broker_id:
                    raise RequestRejected(
                        ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        f"Broker {asked.broker_id} does not lead all of these partitions.",
                    )
            epochs = await controller.bump_leader_epochs(wanted, above=wanted)
            return pack(RaiseChange(tuple((*key, epoch) for key, epoch in epochs.items())))
        case name if name == FORGET_TOPIC:
            topic_id = unpack(ForgetTopicChange, asked.body).topic_id
            await controller.submit(lambda draft, _: topic_changes.finish_topic_deletion(draft, topic_id))
            return b""
        case name if name == FIRST_USERS:
            users = [
                ScramAsked(user, mechanism, False, credential=kept)
                for user, mechanism, kept in unpack(FirstUsersChange, asked.body).users
            ]
            made = await controller.make_first_users(users, context.random_bytes(SECRET_BYTES))
            return pack(FirstUsersMade(tuple((one.user, int(one.code), one.sentence) for one in made)))
        case name if name == LEAVE:
            await desk.left(asked.broker_id, asked.broker_epoch)
            return b""
        case other:
            raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, f"This broker knows no change {other!r}.")


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


def _refuse_register(request: Request, message: object, code: ErrorCode, why: str) -> bytes | None:
    """A missing right is told. Any other message that cannot be read closes the connection."""
    return pack(RegisterResponse(int(code), why)) if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


def _refuse_entries(request: Request, message: object, code: ErrorCode, why: str) -> bytes | None:
    return pack(EntriesResponse(int(code))) if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


def _refuse_pulse(request: Request, message: object, code: ErrorCode, why: str) -> bytes | None:
    return pack(PulseResponse(int(code))) if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


def _refuse_change(request: Request, message: object, code: ErrorCode, why: str) -> bytes | None:
    return pack(ChangeResponse(int(code), why)) if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


APIS: ApiTable = {
    ApiKey.BROKER_HEARTBEAT: Api(handle_heartbeat, _refuse_heartbeat),
    ApiKey.ALTER_PARTITION: Api(handle_alter_partition, _refuse_alter),
    ApiKey.FIRN_ENTRIES: Api(handle_entries, _refuse_entries),
    ApiKey.FIRN_MEMBERS: Api(handle_heard, _refuse),
    ApiKey.FIRN_REGISTER: Api(handle_register, _refuse_register),
    ApiKey.FIRN_CHANGE: Api(handle_change, _refuse_change),
    ApiKey.FIRN_PULSE: Api(handle_pulse, _refuse_pulse),
}
