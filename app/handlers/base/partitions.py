"""Finding the partition that a request names, and the checks that all data requests begin with.

Tests: ``tests/handlers/test_fetch.py``, ``tests/handlers/test_produce.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.coordinator.topics import HTTP_REQUESTS
from app.core.errors import ErrorCode, FirnError, NotLeader, RequestRejected, kafka_code
from app.core.units import BrokerId
from app.handlers.base.views import ImageView, PartitionsView, WritesView
from app.metadata.image.image import GUARDED_TOPICS, INTERNAL_TOPICS, PartitionImage, TopicImage
from app.wire.endpoints import NodeEndpoint

if TYPE_CHECKING:
    from app.handlers.policy.callers import Caller
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition

LEADER_CODES: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors beside which the leader is named (KIP-951)."""

CHANGED_BY_CLIENTS: Final = ("firn.durability", "min.insync.replicas", "remote.storage.enable")
"""Settings of the topic of keyed requests that operators change: a topic of records may need stronger results."""


def topic_name(context: ImageView, topic: str | UUID) -> str | None:
    """The name of a topic that a request names or gives an id for; None for an unknown id."""
    if isinstance(topic, str):
        return topic
    found = context.image.topic_by_id(topic)
    return None if found is None else found.name


def node_endpoints(context: ImageView, caller: Caller, node_ids: Iterable[int]) -> list[NodeEndpoint]:
    """The addresses of the brokers that an answer names as leaders (KIP-951), for the listener that the client came by. Brokers
    without that listener, and unregistered ones, are left out."""
    brokers = context.image.brokers
    found = []
    for node_id in node_ids:
        broker = brokers.get(node_id)
        endpoint = broker.endpoint(caller.listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append(NodeEndpoint(broker.broker_id, endpoint.host, endpoint.port, broker.rack))
    return found


def led_log(context: PartitionsView, topic: str, partition: int) -> PartitionLog:
    """The log of a partition that this broker leads.

    Raises: as ``PartitionTable.require``.
    """
    return context.partitions.require_served(topic, partition).log


def led_in_epoch(context: PartitionsView, topic: str, index: int, claimed: int) -> Partition:
    """A partition that this broker leads, in the leader epoch that the client names (-1 names none).

    As in Kafka, a replica compares epochs before it says that it is not the leader: a client that is behind learns that.

    Raises: as ``PartitionTable.require`` and ``check_leader_epoch``.
    """
    try:
        partition = context.partitions.require_served(topic, index)
    except NotLeader:
        held = context.partitions.get(topic, index)
        if held is not None and not held.leads:
            check_epoch(held.leader_epoch, claimed)
        raise
    check_leader_epoch(partition.log, claimed)
    return partition


def hint(context: PartitionsView, partition: Partition | None, error: FirnError) -> tuple[int, int] | None:
    """Leader and leader epoch to name beside an error (KIP-951); None for other errors, for a partition without leader (V6), and
    while this broker is isolated (IS10)."""
    if context.partitions.isolated:
        return None
    if isinstance(error, NotLeader):
        return (error.leader, error.leader_epoch) if error.leader >= 0 else None
    if partition is None or kafka_code(error) not in LEADER_CODES:
        return None
    if partition.serves:
        return context.config.node_id, partition.log.leader_epoch
    return (partition.leader, partition.leader_epoch) if partition.leader >= 0 else None


def shown_leader(context: PartitionsView, topic: TopicImage, partition: PartitionImage) -> BrokerId:
    """The leader that clients are told. -1 for a partition that its broker cannot open, since no broker serves it. While this
    broker is isolated, it names another broker that may lead a partition that it has led (IS9); -1 if there is none."""
    if context.partitions.is_shut(partition):
        likely = others_that_may_lead(context, partition)
        return likely[partition.partition_index % len(likely)] if likely else BrokerId(-1)
    offline = context.partitions.offline
    if offline and (topic.topic_id, partition.partition_index) in offline:
        return BrokerId(-1)
    return partition.leader


def shown_leader_epoch(context: PartitionsView, partition: PartitionImage) -> int:
    """The leader epoch that clients are told. While this broker is isolated, its image may be old: -1 (not known) unless no other
    broker may lead the partition (IS10)."""
    table = context.partitions
    if table.isolated and (partition.leader != context.node_id or table.is_shut(partition)):
        return -1
    return partition.leader_epoch


def others_that_may_lead(context: PartitionsView, partition: PartitionImage) -> list[BrokerId]:
    """Other brokers that may lead by now a partition that this broker has led, as far as an isolated broker knows (IS9).

    Clients ask a broker that they are connected to. A client that knows this broker alone must hear of another one, or it asks this
    broker again and again. A broker that does not lead refuses, and has a newer image.
    """
    elsewhere = context.partitions.elsewhere
    return [one for one in partition.isr if one in elsewhere] or list(elsewhere)


def offline_replicas(context: PartitionsView, topic: TopicImage, partition: PartitionImage) -> list[int]:
    """The replicas that are on no broker that lives, or that their broker cannot open."""
    all_offline = context.partitions.offline
    offline = all_offline and (topic.topic_id, partition.partition_index) in all_offline
    brokers = context.image.brokers
    return [
        replica
        for replica in partition.replicas
        if replica not in brokers or brokers[replica].fenced or (offline and replica == context.config.node_id)
    ]


def check_not_internal(topic: str) -> None:
    """Clients read the topics in which coordinators keep their state, but do not write there.

    Raises: RequestRejected INVALID_TOPIC_EXCEPTION.
    """
    if topic in INTERNAL_TOPICS:
        raise RequestRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by coordinators alone.")


def check_not_owned(topic: str | None) -> None:
    """Clients neither make nor delete the topic of keyed requests, nor change how long it keeps results (ADR 0043, EO13).

    Raises: RequestRejected INVALID_TOPIC_EXCEPTION.
    """
    if topic == HTTP_REQUESTS.name:
        raise RequestRejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic} is made and kept by Firn alone. Change {' or '.join(CHANGED_BY_CLIENTS)} of it, if anything.",
        )


def check_writable(context: WritesView, topic: str) -> None:
    """Clients do not write to topics that only Firn writes: those of coordinators, and `_schemas` once Firn's registry has it.

    Raises: RequestRejected INVALID_TOPIC_EXCEPTION; NOT_ENOUGH_REPLICAS while it is not known who writes `_schemas`.
    """
    if topic in GUARDED_TOPICS:
        check_not_internal(topic)
        context.schemas.check_producer(topic)


def check_leader_epoch(log: PartitionLog, claimed: int) -> None:
    """Compare the epoch that a client names with the leader's (KIP-320). -1 names none.

    Raises: RequestRejected with FENCED_LEADER_EPOCH (the client is behind) or UNKNOWN_LEADER_EPOCH (we are).
    """
    check_epoch(log.leader_epoch, claimed)


def check_epoch(current: int, claimed: int) -> None:
    """As ``check_leader_epoch``, for the leader epoch that this broker leads in or follows."""
    if claimed < 0:
        return
    if claimed < current:
        raise RequestRejected(ErrorCode.FENCED_LEADER_EPOCH, f"Leader epoch {claimed} is over; it is {current} now.")
    if claimed > current:
        raise RequestRejected(ErrorCode.UNKNOWN_LEADER_EPOCH, f"Leader epoch {claimed} is not known; it is {current}.")


def check_reader(log: PartitionLog, replica_id: int, claimed_epoch: int) -> None:
    """Check the claimed role of the sender of a Fetch: ``replica_id`` is a broker's id, or negative.

    Followers read up to the log end, past the committed records (INV-3). ``followers.py`` serves the registered ones. Every other
    claim to be a follower is refused here.

    A negative id means a consumer, which sees committed records only. That includes Kafka's debugging consumer (-2), and -3,
    which Kafka's brokers use internally.

    Raises: RequestRejected, with the code that Kafka gives to a follower that it does not know yet: UNKNOWN_LEADER_EPOCH if the
    request names an epoch, else NOT_LEADER_OR_FOLLOWER.
    """
    if replica_id >= 0:
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if claimed_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise RequestRejected(code, f"Broker {replica_id} is no replica of {log.topic}-{log.partition}.")
