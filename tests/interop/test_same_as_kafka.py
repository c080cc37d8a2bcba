"""The same requests to Firn and to Apache Kafka: bad input gets equal codes and offsets, unless the difference is meant."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.codec import shape_of
from app.wire.header import FLEXIBLE_FIRST
from app.wire.versions import SERVED
from loadtests.kafka_peer import kafka_running
from tests.interop.peers import (
    Peer,
    Step,
    batch,
    fetch,
    list_offsets,
    make,
    now_ms,
    patched,
    play,
    produce,
    request,
)
from tests.interop.serving import Closed, Raw, firn_serving, kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NO_SUCH_ID = UUID(int=0xDEAD)
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def peers(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("peers")
    with kafka_running(path / "kafka") as kafka, firn_serving(path, *how, auto_create_topics_enable="false") as firn:
        both = [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]
        for peer in both:
            peer.create("t", 2)
            peer.create("odd", 1)
            peer.create("small", 1, max_message_bytes="1000")
            peer.create("compacted", 1, cleanup_policy="compact")
            peer.create("appended", 1, message_timestamp_type="LogAppendTime")
            peer.create("ties", 1)
            start = now_ms() - HOUR_MS
            for n in range(10):
                peer.ask(ApiKey.PRODUCE, 9, produce(("t", 0, batch(1, timestamp=start + n))))
                peer.ask(ApiKey.PRODUCE, 9, produce(("ties", 0, batch(3, timestamp=start + n // 4))))
        yield both


# --- the script -------------------------------------------------------------------------------------------------------


def produced(*partitions: Any, version: int = 9, **fields: Any) -> Step:
    return lambda peer: (ApiKey.PRODUCE, version, produce(*partitions, **fields))


def fetched(*partitions: Any, version: int = 12, **fields: Any) -> Step:
    return lambda peer: (ApiKey.FETCH, version, fetch(*partitions, **fields))


def listed(topic: str, partition: int, timestamp: int, *, version: int = 11, **fields: Any) -> Step:
    return lambda peer: (ApiKey.LIST_OFFSETS, version, list_offsets(topic, partition, timestamp, **fields))


def created(name: str, partitions: int = 1, replication: int = 1, *, version: int = 7, **more: Any) -> Step:
    key = ApiKey.CREATE_TOPICS
    topic = make(key, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=replication)
    for config, value in more.pop("configs", {}).items():
        topic.configs.append(make(key, "CreatableTopicConfig", name=config, value=value))
    for index, brokers in more.pop("assignments", ()):
        topic.assignments.append(make(key, "CreatableReplicaAssignment", partition_index=index, broker_ids=brokers))
    topics = [topic] * more.pop("times", 1)
    return lambda peer: (key, version, request(key, topics=topics, timeout_ms=5000, **more))


def grown(name: str, count: int, assignments: list[list[int]] | None = None, **more: Any) -> Step:
    key = ApiKey.CREATE_PARTITIONS
    given = None
    if assignments is not None:
        given = [make(key, "CreatePartitionsAssignment", broker_ids=brokers) for brokers in assignments]
    topic = make(key, "CreatePartitionsTopic", name=name, count=count, assignments=given)
    return lambda peer: (key, 3, request(key, topics=[topic], timeout_ms=5000, **more))


def deleted(*names: str) -> Step:
    key = ApiKey.DELETE_TOPICS
    return lambda peer: (
        key,
        6,
        request(key, topics=[make(key, "DeleteTopicState", name=name) for name in names], timeout_ms=5000),
    )


def shortened(topic: str, partition: int, offset: int) -> Step:
    key = ApiKey.DELETE_RECORDS
    asked = make(key, "DeleteRecordsPartition", partition_index=partition, offset=offset)
    topics = [make(key, "DeleteRecordsTopic", name=topic, partitions=[asked])]
    return lambda peer: (key, 2, request(key, topics=topics, timeout_ms=5000))


def altered(kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> Step:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = [
        make(key, "AlterableConfig", name=config, config_operation=operation, value=value)
        for config, operation, value in changes
    ]
    resource = make(key, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    return lambda peer: (key, 1, request(key, resources=[resource], validate_only=validate_only))


def replaced(kind: int, name: str, *changes: tuple[str, str | None]) -> Step:
    key = ApiKey.ALTER_CONFIGS
    configs = [make(key, "AlterableConfig", name=config, value=value) for config, value in changes]
    resource = make(key, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    return lambda peer: (key, 2, request(key, resources=[resource]))


def described(kind: int, name: str) -> Step:
    key = ApiKey.DESCRIBE_CONFIGS
    resource = make(key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=["x"])
    return lambda peer: (key, 4, request(key, resources=[resource]))


def epoch_ends(topic: str, partition: int, epoch: int, current: int = -1) -> Step:
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    asked = make(key, "OffsetForLeaderPartition", partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    topics = [make(key, "OffsetForLeaderTopic", topic=topic, partitions=[asked])]
    return lambda peer: (key, 4, request(key, replica_id=-1, topics=topics))


def metadata(*names: str | None, version: int = 12, topic_id: UUID | None = None, create: bool = False) -> Step:
    key = ApiKey.METADATA
    topics = [make(key, "MetadataRequestTopic", name=name) for name in names]
    if topic_id is not None:
        topics.append(make(key, "MetadataRequestTopic", name=None, topic_id=topic_id))
    return lambda peer: (key, version, request(key, topics=topics, allow_auto_topic_creation=create))


def moved(*asked: tuple[str | None, str, int], version: int = 2) -> Step:
    """Partitions to a directory each; None for the one that the broker has."""
    key = ApiKey.ALTER_REPLICA_LOG_DIRS

    def step(peer: Peer) -> Any:
        described = request(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
        (own,) = peer.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, described).results
        dirs = [
            make(
                key,
                "AlterReplicaLogDir",
                path=own.log_dir if path is None else path,
                topics=[make(key, "AlterReplicaLogDirTopic", name=topic, partitions=[partition])],
            )
            for path, topic, partition in asked
        ]
        return key, version, request(key, dirs=dirs)

    return step


def initialised(**fields: Any) -> Step:
    return lambda peer: (ApiKey.INIT_PRODUCER_ID, 4, request(ApiKey.INIT_PRODUCER_ID, **fields))


def by_id(step: Any) -> Step:
    """A request that names topic ``t`` by its id."""
    return lambda peer: step(peer.ids["t"])(peer)


SEQUENCED = {"producer_id": 4711, "producer_epoch": 3}
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

SCRIPT: dict[str, list[Step]] = {
    # Produce
    "produce to an unknown topic": [produced(("none", 0, batch()))],
    "produce to an unknown partition": [produced(("t", 7, batch()))],
    "produce to a negative partition": [produced(("t", -1, batch()))],
    "produce to an unknown id": [produced((NO_SUCH_ID, 0, batch()), version=13)],
    "produce with acks 2": [produced(("t", 1, batch()), acks=2)],
    "produce with acks -2": [produced(("t", 1, batch()), acks=-2)],
    "produce in version 2": [lambda peer: (ApiKey.PRODUCE, 3, produce(("t", 1, b"")))],
    "produce nothing": [produced(("t", 1, b""))],
    "produce a wrong checksum": [produced(("t", 1, patched(batch(), 17, ">I", 1, crc=False)))],
    "produce magic 0": [produced(("t", 1, patched(batch(), 16, ">b", 0)))],
    "produce magic 1": [produced(("t", 1, patched(batch(), 16, ">b", 1)))],
    "produce magic 3": [produced(("t", 1, patched(batch(), 16, ">b", 3)))],
    "produce magic 9": [produced(("t", 1, patched(batch(), 16, ">b", 9)))],
    "produce a length too great": [produced(("t", 1, patched(batch(), 8, ">i", 5000)))],
    "produce a length too small": [produced(("t", 1, patched(batch(), 8, ">i", 20)))],
    "produce a negative length": [produced(("t", 1, patched(batch(), 8, ">i", -5)))],
    "produce half a header": [produced(("t", 1, batch()[:30]))],
    "produce a batch cut": [produced(("t", 1, batch(3)[:-4]))],
    "produce two batches": [produced(("t", 1, batch() + batch()))],
    "produce a batch and garbage": [produced(("odd", 0, batch() + b"garbage"))],
    "produce too few records": [produced(("t", 1, patched(batch(3), 57, ">i", 2)))],
    "produce too many records": [produced(("t", 1, patched(batch(3), 57, ">i", 5)))],
    "produce no records": [produced(("t", 1, patched(batch(), 57, ">i", 0)))],
    "produce a wrong last offset delta": [produced(("t", 1, patched(batch(3), 23, ">i", 7)))],
    "produce a negative last offset delta": [produced(("t", 1, patched(batch(3), 23, ">i", -1)))],
    "produce a base offset": [produced(("t", 1, batch(1, base_offset=55)))],
    "produce an unknown codec": [produced(("odd", 0, patched(batch(), 21, ">h", 6)))],
    "produce plain bytes as gzip": [produced(("odd", 0, patched(batch(), 21, ">h", 1)))],
    "produce a control batch": [produced(("t", 1, patched(batch(), 21, ">h", 0x20)))],
    "produce the append time bit": [produced(("odd", 0, patched(batch(), 21, ">h", 0x08)))],
    "produce the delete horizon bit": [produced(("odd", 0, patched(batch(), 21, ">h", 0x40)))],
    "produce an unused bit": [produced(("odd", 0, patched(batch(), 21, ">h", 0x100)))],
    "produce into the far future": [produced(("t", 1, batch(timestamp=now_ms() + 3 * HOUR_MS)))],
    "produce into the near future": [produced(("t", 1, batch(timestamp=now_ms() + HOUR_MS // 2)))],
    "produce without a time": [produced(("t", 1, batch(timestamp=-1)))],
    "produce a negative time": [produced(("odd", 0, batch(timestamp=-5)))],
    "produce a wrong max timestamp": [produced(("odd", 0, patched(batch(), 35, ">q", 5)))],
    "produce too large a batch": [produced(("small", 0, batch(value=b"x" * 2000)))],
    "produce without key to a compacted topic": [produced(("compacted", 0, batch()))],
    "produce append time": [produced(("appended", 0, batch(timestamp=now_ms() + 9 * HOUR_MS)))],
    "produce zstd in version 6": [produced(("t", 1, batch(codec=4)), version=6)],
    "produce good beside bad": [produced(("none", 0, batch()), ("t", 1, batch()), ("t", 9, batch()))],
    "what was produced": [listed("t", 1, -1)],
    # Directories
    "move to the directory that it has": [moved((None, "t", 0))],
    "move to the directory that it has in version 1": [moved((None, "t", 0), version=1)],
    "move to an unknown directory": [moved(("/elsewhere", "t", 0))],
    "move to a relative directory": [moved(("elsewhere", "t", 0))],
    "move to no directory": [moved(("", "t", 0))],
    "move an unknown topic": [moved((None, "none", 0))],
    "move an unknown topic to an unknown directory": [moved(("/elsewhere", "none", 0))],
    "move an unknown partition": [moved((None, "t", 7))],
    "move a negative partition": [moved((None, "t", -1))],
    "move a name that is no topic's": [moved((None, "a/b", 0))],
    "move a name too long for its folder": [moved((None, "x" * 214, 0))],
    "move a name just short enough": [moved((None, "x" * 213, 0))],
    "move a name too long for its folder to an unknown directory": [moved(("/elsewhere", "x" * 240, 0))],
    "move twice, then to an unknown directory": [moved((None, "t", 0), ("/elsewhere", "t", 0))],
    "move twice, then to the directory that it has": [moved(("/elsewhere", "t", 0), (None, "t", 0))],
    "move good beside bad": [moved((None, "t", 0), (None, "t", 1), (None, "t", 9), ("/elsewhere", "odd", 0))],
    "move nothing": [moved()],
    # ListOffsets as a broker
    **{
        f"offset of {timestamp} as broker {replica_id}": [listed("ties", 0, timestamp, replica_id=replica_id)]
        for timestamp in (-1, -2, -3, 0)
        for replica_id in (0, 1, 5, 2**31 - 1, -2, -3, -(2**31))
    },
    "offset as broker 5 in the epoch": [listed("t", 0, -1, replica_id=5, leader_epoch=0)],
    "offset as broker 5 in a newer epoch": [listed("t", 0, -1, replica_id=5, leader_epoch=9)],
    "offset as broker 5 of an unknown partition": [listed("t", 9, -1, replica_id=5)],
    "committed offset as broker 5": [listed("t", 0, -1, replica_id=5, isolation_level=1)],
    # Sequences
    "sequences": [
        produced(("t", 1, batch(2, base_sequence=0, **SEQUENCED))),
        produced(("t", 1, batch(3, base_sequence=2, **SEQUENCED))),
        produced(("t", 1, batch(2, base_sequence=0, **SEQUENCED))),
        produced(("t", 1, batch(3, base_sequence=2, **SEQUENCED))),
        produced(("t", 1, batch(1, base_sequence=9, **SEQUENCED))),
        produced(("t", 1, batch(1, base_sequence=3, **SEQUENCED))),
        produced(("t", 1, batch(1, base_sequence=5, producer_id=4711, producer_epoch=2))),
        produced(("t", 1, batch(1, base_sequence=5, producer_id=4711, producer_epoch=4))),
        produced(("t", 1, batch(1, base_sequence=0, producer_id=4711, producer_epoch=4))),
        produced(("t", 1, batch(1, base_sequence=6, producer_id=815, producer_epoch=0))),
        produced(("t", 1, batch(1, base_sequence=-1, producer_id=816, producer_epoch=0))),
        produced(("t", 1, batch(1, base_sequence=0, producer_id=-1, producer_epoch=0))),
    ],
    "produce a sequence without an epoch": [
        produced(("odd", 0, batch(1, base_sequence=0, producer_id=817, producer_epoch=-1)))
    ],
    "sequences far back": [
        *(produced(("t", 1, batch(1, base_sequence=n, producer_id=99, producer_epoch=0))) for n in range(8)),
        produced(("t", 1, batch(1, base_sequence=3, producer_id=99, producer_epoch=0))),
        produced(("t", 1, batch(1, base_sequence=1, producer_id=99, producer_epoch=0))),
        produced(("t", 1, batch(1, base_sequence=7, producer_id=99, producer_epoch=0))),
        produced(("t", 1, batch(1, base_sequence=0x7FFF_FFFF, producer_id=99, producer_epoch=0))),
    ],
    "producer ids": [
        initialised(transactional_id=None, transaction_timeout_ms=60000),
        initialised(transactional_id=None, transaction_timeout_ms=-1),
        initialised(transactional_id=None, transaction_timeout_ms=60000, producer_id=5, producer_epoch=1),
        initialised(transactional_id="", transaction_timeout_ms=60000),
    ],
    # Fetch
    "fetch an unknown topic": [fetched(("none", {}))],
    "fetch an unknown partition": [fetched(("t", {"partition": 7}))],
    "fetch an unknown id": [fetched((NO_SUCH_ID, {}), version=16)],
    "fetch by id": [by_id(lambda topic: fetched((topic, {}), version=17))],
    "fetch from the end": [fetched(("t", {"fetch_offset": 10}))],
    "fetch past the end": [fetched(("t", {"fetch_offset": 11}))],
    "fetch a negative offset": [fetched(("t", {"fetch_offset": -1}))],
    "fetch a small piece": [fetched(("t", {"partition_max_bytes": 1}), max_bytes=1)],
    "fetch nothing of a partition": [fetched(("t", {"partition_max_bytes": 0}))],
    "fetch negative bytes": [fetched(("t", {"partition_max_bytes": -1}))],
    "fetch with a newer epoch": [fetched(("t", {"current_leader_epoch": 9}))],
    "fetch with the epoch": [fetched(("t", {"current_leader_epoch": 0}))],
    "fetch as a follower that is none": [fetched(("t", {}), replica_id=5)],
    "fetch with the epoch as a follower that is none": [fetched(("t", {"current_leader_epoch": 0}), replica_id=5)],
    "fetch with a newer epoch as a follower that is none": [fetched(("t", {"current_leader_epoch": 9}), replica_id=5)],
    "fetch as the debugging consumer": [fetched(("t", {}), replica_id=-2)],
    "fetch with a known last epoch": [fetched(("t", {"fetch_offset": 3, "last_fetched_epoch": 0}))],
    "fetch with an unknown last epoch": [fetched(("t", {"fetch_offset": 3, "last_fetched_epoch": 7}))],
    "fetch in an odd isolation": [fetched(("t", {}), isolation_level=7)],
    "fetch in a session that is none": [fetched(("t", {}), session_id=12345, session_epoch=1)],
    "fetch in no session with an epoch": [fetched(("t", {}), session_id=0, session_epoch=5)],
    "fetch closing a session that is none": [fetched(("t", {}), session_id=12345, session_epoch=-1)],
    "fetch nothing": [fetched()],
    # ListOffsets
    **{
        f"offset of {timestamp} in version {version}": [listed("t", 0, timestamp, version=version)]
        for version in (1, 7, 8, 9, 10, 11)
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 1 << 60)
        if not (version == 10 and timestamp == -6)
    },
    "offset in an unknown topic": [listed("none", 0, -1)],
    "offset in an unknown partition": [listed("t", 7, -1)],
    "offset with a newer epoch": [listed("t", 0, -1, leader_epoch=9)],
    "offset with the epoch": [listed("t", 0, -1, leader_epoch=0)],
    "offset committed": [listed("t", 0, -1, isolation_level=1)],
    "offset of the greatest of equal times": [listed("ties", 0, -3)],
    "offset of the empty end": [listed("small", 0, t) for t in (-1, -2, -3, 0)],
    # OffsetForLeaderEpoch
    "epochs": [
        epoch_ends("t", 0, 0),
        epoch_ends("t", 0, 5),
        epoch_ends("t", 0, -1),
        epoch_ends("t", 0, 0, current=9),
        epoch_ends("t", 9, 0),
        epoch_ends("none", 0, 0),
        epoch_ends("small", 0, 0),
    ],
    # Metadata
    "metadata": [
        metadata("t"),
        metadata("none"),
        metadata("in valid"),
        metadata(""),
        metadata("."),
        metadata("x" * 250),
        metadata(topic_id=NO_SUCH_ID),
        metadata("none", create=True),
        metadata("none", create=True, version=1),
        metadata("t", "none", version=4),
        metadata(),
    ],
    # CreateTopics
    "create what is there": [created("t")],
    **{f"create {name!r}": [created(name)] for name in ("", ".", "..", "a b", "ä", "a/b", "x" * 250, "x" * 249)},
    "create names that collide": [created("a.b"), created("a_b")],
    "create without partitions": [created("none", 0)],
    "create negative partitions": [created("none", -2)],
    "create default partitions": [created("by-default", -1, -1)],
    "create without replicas": [created("none", 1, 0)],
    "create negative replicas": [created("none", 1, -2)],
    "create too many replicas": [created("copies", 1, 3)],
    "create twice at once": [created("none", times=2)],
    "create by hand": [created("by-hand", -1, -1, assignments=[(0, [1]), (1, [1])])],
    "create by hand and count": [created("none", 1, 1, assignments=[(0, [1])])],
    "create by hand with a gap": [created("none", -1, -1, assignments=[(0, [1]), (2, [1])])],
    "create by hand on no broker": [created("none", -1, -1, assignments=[(0, [])])],
    "create by hand on an unknown broker": [created("none", -1, -1, assignments=[(0, [77])])],
    "create by hand on a broker twice": [created("none", -1, -1, assignments=[(0, [1, 1])])],
    "create by hand a partition twice": [created("none", -1, -1, assignments=[(0, [1]), (0, [1])])],
    "create by hand unevenly": [created("none", -1, -1, assignments=[(0, [1]), (1, [1, 2])])],
    "create with an unknown config": [created("none", configs={"no.such": "1"})],
    "create with a config of letters": [created("none", configs={"retention.ms": "soon"})],
    "create with a config too small": [created("none", configs={"segment.bytes": "1"})],
    "create with a config too great": [created("none", configs={"segment.bytes": str(1 << 40)})],
    "create with a null config": [created("none", configs={"retention.ms": None})],
    "create with an empty config": [created("none", configs={"retention.ms": ""})],
    "create with a wrong choice": [created("none", configs={"cleanup.policy": "burn"})],
    "create with a wrong codec": [created("none", configs={"compression.type": "brotli"})],
    "create with local above whole": [
        created("none", configs={"retention.ms": "1000", "local.retention.ms": "2000", "remote.storage.enable": "true"})
    ],
    "create only to see": [created("only-seen", validate_only=True), metadata("only-seen")],
    "create only to see what is there": [created("t", validate_only=True)],
    # CreatePartitions
    "grow an unknown topic": [grown("none", 3)],
    "grow to the same": [grown("t", 2)],
    "shrink": [grown("t", 1)],
    "grow to nothing": [grown("t", 0)],
    "grow to less than nothing": [grown("t", -1)],
    "grow by hand wrongly": [grown("t", 4, [[1]]), grown("t", 3, [[77]]), grown("t", 3, [[]]), grown("t", 3, [[1, 1]])],
    "grow only to see": [grown("t", 5, validate_only=True), metadata("t")],
    # DeleteTopics, DeleteRecords
    "delete an unknown topic": [deleted("none")],
    "delete an invalid name": [deleted("a b")],
    "delete twice at once": [deleted("none", "none")],
    "delete records of nothing": [shortened("none", 0, 1), shortened("t", 9, 1)],
    "delete records out of range": [shortened("t", 0, 11), shortened("t", 0, -2), shortened("t", 0, 1 << 40)],
    "delete records": [
        shortened("t", 0, 4),
        shortened("t", 0, 2),
        shortened("t", 0, 0),
        listed("t", 0, -2),
        fetched(("t", {"fetch_offset": 3})),
        listed("t", 0, 0),
        epoch_ends("t", 0, 0),
    ],
    "delete records of a compacted topic": [shortened("compacted", 0, 0)],
    # Configs
    "describe configs": [
        described(TOPIC, "t"),
        described(TOPIC, "none"),
        described(TOPIC, "a b"),
        described(TOPIC, ""),
        described(BROKER, "1"),
        described(BROKER, "7"),
        described(BROKER, "x"),
        described(BROKER, ""),
        described(77, "t"),
        described(0, "t"),
    ],
    "alter configs": [
        altered(TOPIC, "t", ("retention.ms", SET, "7000")),
        altered(TOPIC, "t", ("retention.ms", SET, "soon")),
        altered(TOPIC, "t", ("retention.ms", SET, None)),
        altered(TOPIC, "t", ("no.such", SET, "1")),
        altered(TOPIC, "t", ("retention.ms", APPEND, "1")),
        altered(TOPIC, "t", ("retention.ms", SUBTRACT, "1")),
        altered(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
        altered(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")),
        altered(TOPIC, "t", ("cleanup.policy", APPEND, "burn")),
        altered(TOPIC, "t", ("retention.ms", DELETE, None)),
        altered(TOPIC, "t"),
        altered(TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True),
        altered(TOPIC, "none", ("retention.ms", SET, "1")),
        altered(TOPIC, "a b", ("retention.ms", SET, "1")),
        altered(BROKER, "x", ("log.retention.ms", SET, "1000000")),
        altered(BROKER, "1", ("node.id", SET, "5")),
        altered(77, "t", ("retention.ms", SET, "1")),
    ],
    "throttle a replica": [altered(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "0:1,1:1"))],
    "throttle all replicas": [altered(TOPIC, "t", ("follower.replication.throttled.replicas", SET, "*"))],
    "throttle what is no replica": [altered(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "0:1,x"))],
    "throttle all replicas and one": [altered(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "*,0:1"))],
    "compact later than at the latest": [
        altered(TOPIC, "compacted", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "1"))
    ],
    "produce without a key to a compacted topic": [produced(("compacted", 0, batch(1)))],
    "alter an unknown config back": [altered(TOPIC, "t", ("no.such", DELETE, None))],
    "alter in an unknown way": [altered(TOPIC, "t", ("retention.ms", 9, "1"))],
    "alter an unknown broker": [altered(BROKER, "7", ("log.retention.ms", SET, "1000000"))],
    "alter a broker to letters": [altered(BROKER, "1", ("log.retention.ms", SET, "soon"))],
    "replace configs": [
        replaced(TOPIC, "t", ("retention.ms", "604800000")),
        replaced(TOPIC, "t", ("retention.ms", "soon")),
        replaced(TOPIC, "t", ("retention.ms", None)),
        replaced(TOPIC, "t", ("no.such", "1")),
        replaced(TOPIC, "none", ("retention.ms", "1")),
        replaced(TOPIC, "t"),
    ],
    # Others
    "coordinator of no kind": [
        lambda peer: (
            ApiKey.FIND_COORDINATOR,
            4,
            request(ApiKey.FIND_COORDINATOR, key_type=9, coordinator_keys=["g"]),
        )
    ],
    "api versions without a name": [
        lambda peer: (ApiKey.API_VERSIONS, 3, request(ApiKey.API_VERSIONS)),
    ],
}

MEANT: dict[str, str] = {
    # What a batch's header claims is checked before anything is stored; Kafka corrects it, or stores it.
    "produce magic 0": "Firn names the format as what is wrong (43); Kafka says that the record is invalid (87)",
    "produce magic 1": "as magic 0",
    "produce a length too great": "bytes were lost on the way: corrupt (2), which clients send again; Kafka says 87",
    "produce half a header": "as a length too great",
    "produce a batch cut": "as a length too great",
    "produce a batch and garbage": "bytes that nobody will read are refused (87); Kafka drops them",
    "produce an unknown codec": "Firn names the codec as what is wrong (76); Kafka answers an unknown error (-1)",
    "produce plain bytes as gzip": "record interiors are not decoded to be stored; Kafka meets an unknown error (-1)",
    "produce the append time bit": "only the broker stamps append time (32); Kafka stores the claim",
    "produce the delete horizon bit": "only a cleaner sets it (87); Kafka stores the claim",
    "produce an unused bit": "what it will mean is not known (87); Kafka stores it",
    "produce a negative time": "below -1 nothing is a time (32); Kafka stores it",
    "produce a wrong max timestamp": "refused (32); Kafka reads all records and corrects it",
    "produce a sequence without an epoch": "a producer has an id, an epoch and a sequence, or none (87); Kafka stores it",
    # Requests that make no sense
    "fetch negative bytes": "as few bytes as can be: one batch; Kafka meets an unknown error (-1)",
    "fetch in an odd isolation": "read as uncommitted; Kafka meets an unknown error (-1)",
    "alter in an unknown way": "an invalid request (42); Kafka meets an unknown error (-1)",
    "alter an unknown broker": "Firn says that there is no such broker (102); Kafka that it is another one (42)",
    "alter a broker to letters": "an invalid config (40), as for a topic; Kafka says an invalid request (42)",
    # Defaults
    "offset of -6 in version 11": "Firn's topics are tiered by default, Kafka's are not",
}
"""Where Firn differs on purpose, and why. (A partition whose records are null is not asked: Kafka never answers it.)"""

MEANT_WITHOUT_DISK: dict[str, str] = MEANT | {
    "create too many replicas": "the factor is kept for the day on which the topic's durability is another (ADR 0037)",
}
"""The same, of a broker without a disk."""


@pytest.mark.parametrize("name", SCRIPT)
def test_firn_answers_as_kafka_does(peers: list[Peer], how: Sequence[str], name: str) -> None:
    kafka, firn = (play(peer, SCRIPT[name]) for peer in peers)
    if name in (MEANT_WITHOUT_DISK if how else MEANT):
        assert firn != kafka, "they agree now"
    else:
        assert firn == kafka


ANY = 1
"""Of the kinds of a filter for rules."""


def is_answered(peer: Peer, key: int, version: int) -> bool:
    """Whether a request with nothing but defaults in it gets any answer."""
    body = b""
    if shape_of(key, version) is not None:
        message = request(key, acks=1) if key == ApiKey.PRODUCE else request(key)
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            message.transactions.append(
                make(key, "AddPartitionsToTxnTransaction")
            )  # Kafka never answers if there is none
        if key == ApiKey.DESCRIBE_ACLS:  # Kafka closes the connection at kinds that it does not know
            message.resource_type_filter = message.pattern_type_filter = message.operation = message.permission_type = (
                ANY
            )
        body = codec.encode_request(key, version, message)
    flexible = version >= FLEXIBLE_FIRST.get(key, 0x7FFF)
    with Raw(peer.port) as raw:
        raw.send(struct.pack(">hhih", key, version, 7, -1) + b"\0" * flexible + body)
        try:
            return raw.frame()[:4] == struct.pack(">i", 7)
        except Closed:
            return False


@pytest.mark.parametrize("key", SERVED, ids=lambda key: key.name.lower())
def test_every_version_is_answered_that_kafka_answers_and_no_other(peers: list[Peer], key: ApiKey) -> None:
    first, last = SERVED[key]
    versions = range(-1, last + 3)
    kafka, firn = ([version for version in versions if is_answered(peer, key, version)] for peer in peers)
    expected = list(versions) if key == ApiKey.API_VERSIONS else list(range(first, last + 1))
    assert firn == expected
    assert [version for version in kafka if version <= last] == [version for version in firn if version <= last]


def test_keys_that_nobody_knows_close_the_connection(peers: list[Peer]) -> None:
    for key in (-1, 7, 99, 1000, 0x7FFF):
        assert [is_answered(peer, key, 0) for peer in peers] == [False, False], key
