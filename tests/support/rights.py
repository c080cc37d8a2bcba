"""One request or more to each API, and what of its answer says who may do what. For brokers of Firn and of Apache Kafka alike."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch, ProducerId
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.versions import SERVED
from tests.interop.peers import make, request

SEEN, OTHER, GONE, NEW = "seen", "other", "gone", "new"
"""Topics: two that are there, one that a step deletes, and one that is not there."""
GROUP, TRANSACTION = "group", "transaction"
NO_SUCH_ID = UUID(int=0xDEAD)

TELEMETRY = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
"""Apache Kafka serves these with a plugin alone: ``tests/interop/test_client_metrics.py`` compares them."""

AUTHORIZATION = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.SECURITY_DISABLED,
    }
)
NAMES = frozenset({"name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key"})
OPERATIONS = frozenset({"authorized_operations", "topic_authorized_operations", "cluster_authorized_operations"})
HIDDEN_WITH_A_TOPIC = frozenset({"num_partitions", "replication_factor"})

Ids = Mapping[str, UUID]


class Step(NamedTuple):
    """One request."""

    label: str
    key: ApiKey
    build: Callable[[int, Ids], Any]
    """(version, ids of topics) to the request."""
    first: int = 0
    last: int = 99

    def versions(self) -> range:
        lowest, highest = SERVED[self.key]
        return range(max(lowest, self.first), min(highest, self.last) + 1)


def told(message: Any) -> Any:
    """What an answer tells of rights: names, refusals and operations. Everything else is a matter of other tests."""
    found: list[Any] = []
    for item in dataclasses.fields(message):
        value = getattr(message, item.name)
        if item.name.endswith("error_code"):
            if value in AUTHORIZATION:
                found.append((item.name, ErrorCode(value).name))
        elif (item.name in NAMES and isinstance(value, str)) or item.name in OPERATIONS:
            found.append((item.name, value))
        elif item.name in HIDDEN_WITH_A_TOPIC:
            found.append((item.name, value > 0))
        elif item.name in ("listeners", "config_resources"):
            continue  # of the brokers, not of the caller
        elif item.name == "configs":
            found.append((item.name, bool(value)))
        elif isinstance(value, list):
            parts = [told(one) for one in value if dataclasses.is_dataclass(one) and not _is_internal(one)]
            parts = sorted([part for part in parts if part], key=repr)
            if parts:
                found.append((item.name, parts))
        elif dataclasses.is_dataclass(value):
            part = told(value)
            if part:
                found.append((item.name, part))
    return found


def _is_internal(part: Any) -> bool:
    """What brokers have for themselves differs."""
    return any(str(getattr(part, name, "")).startswith("__") for name in NAMES)


def refusals(message: Any) -> set[str]:
    """The names of all authorization errors in an answer."""

    def walk(part: Any) -> Iterator[str]:
        if isinstance(part, (list, tuple)):
            for one in part:
                yield from walk(one)
        elif part in {code.name for code in AUTHORIZATION}:
            yield part

    return set(walk(told(message)))


def records(transactional: bool) -> bytes:
    """A batch that no topic takes: its producer has no such transaction, or it has a checksum of its own."""
    made = bytearray(
        build_batch(
            [(1_700_000_000_000, None, b"value", ())],
            producer_id=ProducerId(5 if transactional else -1),
            producer_epoch=ProducerEpoch(0 if transactional else -1),
            base_sequence=0 if transactional else -1,
            transactional=transactional,
        )
    )
    made[-1] ^= 1
    return bytes(made)


def _topics(key: ApiKey, class_name: str, ids: Ids, by_id: bool, name: str = "name", **fields: Any) -> list[Any]:
    return [
        make(key, class_name, **({"topic_id": ids[topic]} if by_id else {name: topic}), **fields)
        for topic in (SEEN, OTHER)
    ]


def _produce(transactional_id: str | None = None) -> Callable[[int, Ids], Any]:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.PRODUCE
        data = make(key, "PartitionProduceData", index=0, records=records(transactional_id is not None))
        topics = _topics(key, "TopicProduceData", ids, version >= 13, partition_data=[data])
        return request(key, acks=-1, timeout_ms=5000, topic_data=topics, transactional_id=transactional_id)

    return build


def _fetch(version: int, ids: Ids) -> Any:
    key = ApiKey.FETCH
    asked = make(key, "FetchPartition", partition_max_bytes=1000)
    topics = _topics(key, "FetchTopic", ids, version >= 13, "topic", partitions=[asked])
    return request(key, max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics)


def _list_offsets(version: int, ids: Ids) -> Any:
    key = ApiKey.LIST_OFFSETS
    asked = make(key, "ListOffsetsPartition", partition_index=0, timestamp=-1, current_leader_epoch=-1)
    return request(key, replica_id=-1, topics=_topics(key, "ListOffsetsTopic", ids, False, partitions=[asked]))


def _epochs(version: int, ids: Ids) -> Any:
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    asked = make(key, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0)
    topics = _topics(key, "OffsetForLeaderTopic", ids, False, "topic", partitions=[asked])
    return request(key, replica_id=-1, topics=topics)


def _metadata(*names: str, by_id: bool = False, creates: bool = False, operations: bool = False) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.METADATA
        if by_id:
            asked = [make(key, "MetadataRequestTopic", name=None, topic_id=ids.get(name, NO_SUCH_ID)) for name in names]
        else:
            asked = [make(key, "MetadataRequestTopic", name=name) for name in names]
        return request(
            key,
            topics=asked or ([] if version == 0 else None),
            allow_auto_topic_creation=creates,
            include_cluster_authorized_operations=operations and 8 <= version <= 10,
            include_topic_authorized_operations=operations,
        )

    return build


def _describe_topics(*names: str) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
        topics = [make(key, "TopicRequest", name=name) for name in names]
        return request(key, topics=topics, response_partition_limit=100)

    return build


def _commit(version: int, ids: Ids) -> Any:
    key = ApiKey.OFFSET_COMMIT
    asked = make(key, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1, committed_metadata="")
    topics = _topics(key, "OffsetCommitRequestTopic", ids, version >= 10, partitions=[asked])
    return request(key, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def _fetch_offsets(named: bool) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.OFFSET_FETCH
        if version < 8:
            topics = _topics(key, "OffsetFetchRequestTopic", ids, False, partition_indexes=[0]) if named else None
            return request(key, group_id=GROUP, topics=topics)
        topics = _topics(key, "OffsetFetchRequestTopics", ids, version >= 10, partition_indexes=[0]) if named else None
        groups = [
            make(key, "OffsetFetchRequestGroup", group_id=name, member_id=None, member_epoch=-1, topics=topics)
            for name in (GROUP, "another")
        ]
        return request(key, groups=groups)

    return build


def _delete_offsets(version: int, ids: Ids) -> Any:
    key = ApiKey.OFFSET_DELETE
    asked = make(key, "OffsetDeleteRequestPartition", partition_index=7)
    return request(key, group_id=GROUP, topics=_topics(key, "OffsetDeleteRequestTopic", ids, False, partitions=[asked]))


def _coordinator(key_type: int, *keys: str) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.FIND_COORDINATOR
        if version < 4:
            return request(key, key=keys[0], key_type=key_type)
        return request(key, key_type=key_type, coordinator_keys=list(keys))

    return build


def share_key(topic_id: UUID) -> str:
    """As Kafka writes the key of a share-partition."""
    return f"shared:{base64.urlsafe_b64encode(topic_id.bytes).rstrip(b'=').decode()}:0"


def _plain(key: ApiKey, **fields: Any) -> Callable[[int, Ids], Any]:
    return lambda version, ids: request(key, **fields)


def _leave(version: int, ids: Ids) -> Any:
    key = ApiKey.LEAVE_GROUP
    if version < 3:
        return request(key, group_id=GROUP, member_id="m")
    return request(key, group_id=GROUP, members=[make(key, "MemberIdentity", member_id="m")])


def _create_topics(*names: str) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.CREATE_TOPICS
        topics = [make(key, "CreatableTopic", name=name, num_partitions=1, replication_factor=1) for name in names]
        return request(key, topics=topics, timeout_ms=10_000, validate_only=True)

    return build


def _delete_topics(by_id: bool) -> Any:
    def build(version: int, ids: Ids) -> Any:
        key = ApiKey.DELETE_TOPICS
        if version < 6:
            return request(key, topic_names=[GONE, NEW], timeout_ms=10_000)
        if by_id:
            states = [make(key, "DeleteTopicState", name=None, topic_id=one) for one in (ids[GONE], NO_SUCH_ID)]
        else:
            states = [make(key, "DeleteTopicState", name=one) for one in (GONE, NEW)]
        return request(key, topics=states, timeout_ms=10_000)

    return build


def _delete_records(version: int, ids: Ids) -> Any:
    key = ApiKey.DELETE_RECORDS
    asked = make(key, "DeleteRecordsPartition", partition_index=0, offset=0)
    topics = _topics(key, "DeleteRecordsTopic", ids, False, partitions=[asked])
    return request(key, topics=topics, timeout_ms=10_000)


def _move_directory(version: int, ids: Ids) -> Any:
    key = ApiKey.ALTER_REPLICA_LOG_DIRS
    topics = [make(key, "AlterReplicaLogDirTopic", name=name, partitions=[0]) for name in (SEEN, OTHER)]
    return request(key, dirs=[make(key, "AlterReplicaLogDir", path="/elsewhere", topics=topics)])


def _create_partitions(version: int, ids: Ids) -> Any:
    key = ApiKey.CREATE_PARTITIONS
    topics = _topics(key, "CreatePartitionsTopic", ids, False, count=2, assignments=None)
    return request(key, topics=topics, timeout_ms=10_000, validate_only=True)


def _describe_configs(version: int, ids: Ids) -> Any:
    key = ApiKey.DESCRIBE_CONFIGS
    resources = [
        make(
            key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=["retention.ms"]
        )
        for kind, name in ((2, SEEN), (2, OTHER), (4, "1"), (32, GROUP))
    ]
    return request(key, resources=resources)


def _alter_quotas(version: int, ids: Ids) -> Any:
    key = ApiKey.ALTER_CLIENT_QUOTAS
    entity = [make(key, "EntityData", entity_type="user", entity_name="nobody")]
    entry = make(
        key,
        "AlterClientQuotasRequestEntryData",
        entity=entity,
        ops=[make(key, "OpData", key="producer_byte_rate", value=1e9)],
    )
    return request(key, entries=[entry], validate_only=True)


def _alter_scram_users(version: int, ids: Ids) -> Any:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    return request(key, deletions=[make(key, "ScramCredentialDeletion", name="nobody", mechanism=1)])


def _alter_configs(key: ApiKey) -> Any:
    def build(version: int, ids: Ids) -> Any:
        operation = {"config_operation": 0} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
        resources = [
            make(
                key,
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=[make(key, "AlterableConfig", name=config, value=value, **operation)],
            )
            for kind, name, config, value in (
                (2, SEEN, "retention.ms", "-1"),
                (2, OTHER, "retention.ms", "-1"),
                (4, "1", "log.cleaner.threads", "1"),
                (32, GROUP, "consumer.session.timeout.ms", "45000"),
            )
        ]
        return request(key, resources=resources, validate_only=True)

    return build


def _add_partitions(version: int, ids: Ids) -> Any:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    topics = _topics(key, "AddPartitionsToTxnTopic", ids, False, partitions=[0])
    if version < 4:
        return request(
            key,
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    one = make(
        key,
        "AddPartitionsToTxnTransaction",
        transactional_id=TRANSACTION,
        producer_id=1,
        verify_only=True,
        topics=topics,
    )
    return request(key, transactions=[one])


def _commit_in_transaction(version: int, ids: Ids) -> Any:
    key = ApiKey.TXN_OFFSET_COMMIT
    asked = make(key, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=1, committed_metadata="")
    topics = _topics(key, "TxnOffsetCommitRequestTopic", ids, False, partitions=[asked])
    return request(
        key,
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=-1,
        topics=topics,
    )


def _markers(version: int, ids: Ids) -> Any:
    key = ApiKey.WRITE_TXN_MARKERS
    topics = _topics(key, "WritableTxnMarkerTopic", ids, False, partition_indexes=[7])
    return request(key, markers=[make(key, "WritableTxnMarker", producer_id=1, topics=topics)])


def _subscribing(key: ApiKey, *names: str) -> Any:
    """Of a member that there is not, so that nothing comes of it."""

    def build(version: int, ids: Ids) -> Any:
        return request(
            key, group_id=GROUP, member_id=str(UUID(int=5)), member_epoch=7, subscribed_topic_names=list(names)
        )

    return build


def _share(key: ApiKey, batches: bool) -> Any:
    def build(version: int, ids: Ids) -> Any:
        part = "FetchPartition" if key is ApiKey.SHARE_FETCH else "AcknowledgePartition"
        topic = "FetchTopic" if key is ApiKey.SHARE_FETCH else "AcknowledgeTopic"
        acknowledged = [make(key, "AcknowledgementBatch", first_offset=0, last_offset=0, acknowledge_types=[1])]
        asked = make(key, part, partition_index=0, acknowledgement_batches=acknowledged if batches else [])
        topics = _topics(key, topic, ids, True, partitions=[asked])
        epoch = {"share_session_epoch": 0 if key is ApiKey.SHARE_FETCH else 1}
        more = (
            {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "max_records": 1} if key is ApiKey.SHARE_FETCH else {}
        )
        return request(key, group_id=GROUP, member_id=str(UUID(int=6)), topics=topics, **epoch, **more)

    return build


def _share_offsets(version: int, ids: Ids) -> Any:
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    topics = _topics(key, "DescribeShareGroupOffsetsRequestTopic", ids, False, "topic_name", partitions=[0])
    return request(key, groups=[make(key, "DescribeShareGroupOffsetsRequestGroup", group_id=GROUP, topics=topics)])


def _set_share_offsets(version: int, ids: Ids) -> Any:
    key = ApiKey.ALTER_SHARE_GROUP_OFFSETS
    asked = make(key, "AlterShareGroupOffsetsRequestPartition", partition_index=7, start_offset=0)
    topics = _topics(key, "AlterShareGroupOffsetsRequestTopic", ids, False, "topic_name", partitions=[asked])
    return request(key, group_id="shared", topics=topics)


def _delete_share_offsets(version: int, ids: Ids) -> Any:
    key = ApiKey.DELETE_SHARE_GROUP_OFFSETS
    topics = _topics(key, "DeleteShareGroupOffsetsRequestTopic", ids, False, "topic_name")
    return request(key, group_id="shared", topics=topics)


def _share_state(key: ApiKey, topic: str) -> Any:
    def build(version: int, ids: Ids) -> Any:
        asked = make(key, "PartitionData", partition=0)
        return request(key, group_id=GROUP, topics=_topics(key, topic, ids, True, partitions=[asked]))

    return build


def _reassign(version: int, ids: Ids) -> Any:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    asked = make(key, "ReassignablePartition", partition_index=7, replicas=None)
    return request(key, topics=_topics(key, "ReassignableTopic", ids, False, partitions=[asked]), timeout_ms=10_000)


def _elect(version: int, ids: Ids) -> Any:
    key = ApiKey.ELECT_LEADERS
    topics = _topics(key, "TopicPartitions", ids, False, "topic", partitions=[0])
    return request(key, election_type=0, topic_partitions=topics, timeout_ms=10_000)


def _feature(version: int, ids: Ids) -> Any:
    key = ApiKey.UPDATE_FEATURES
    update = make(key, "FeatureUpdateKey", feature="no.such.version", max_version_level=1, upgrade_type=1)
    return request(key, timeout_ms=10_000, feature_updates=[update], validate_only=version >= 1)


def _create_acls(version: int, ids: Ids) -> Any:
    # One that cannot be made.
    key = ApiKey.CREATE_ACLS
    return request(
        key,
        creations=[
            make(
                key,
                "AclCreation",
                resource_type=2,
                resource_name="",
                principal="User:x",
                host="*",
                operation=3,
                permission_type=3,
            )
        ],
    )


def _delete_acls(version: int, ids: Ids) -> Any:
    key = ApiKey.DELETE_ACLS
    wanted = make(
        key,
        "DeleteAclsFilter",
        resource_type_filter=2,
        resource_name_filter="no such topic",
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return request(key, filters=[wanted])


_ANY_ACL = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
_K = ApiKey

STEPS: list[Step] = [
    Step("produce", _K.PRODUCE, _produce()),
    Step("produce in a transaction", _K.PRODUCE, _produce(TRANSACTION)),
    Step("fetch", _K.FETCH, _fetch),
    Step("list offsets", _K.LIST_OFFSETS, _list_offsets),
    Step("epochs", _K.OFFSET_FOR_LEADER_EPOCH, _epochs),
    Step("all topics", _K.METADATA, _metadata()),
    Step("named topics", _K.METADATA, _metadata(SEEN, OTHER, NEW), first=1),
    Step("topics by id", _K.METADATA, _metadata(SEEN, OTHER, NEW, by_id=True), first=12),
    Step("topics with operations", _K.METADATA, _metadata(SEEN, OTHER, operations=True), first=8),
    Step("describe all topics", _K.DESCRIBE_TOPIC_PARTITIONS, _describe_topics()),
    Step("describe named topics", _K.DESCRIBE_TOPIC_PARTITIONS, _describe_topics(SEEN, OTHER, NEW)),
    Step("commit", _K.OFFSET_COMMIT, _commit),
    Step("committed", _K.OFFSET_FETCH, _fetch_offsets(True)),
    Step("all committed", _K.OFFSET_FETCH, _fetch_offsets(False), first=2),
    Step("delete offsets", _K.OFFSET_DELETE, _delete_offsets),
    Step("coordinator of groups", _K.FIND_COORDINATOR, _coordinator(0, GROUP, "another")),
    Step("coordinator of transactions", _K.FIND_COORDINATOR, _coordinator(1, TRANSACTION, "another"), first=1),
    Step("coordinator of shares", _K.FIND_COORDINATOR, _coordinator(2, share_key(UUID(int=1))), first=6),
    Step(
        "join",
        _K.JOIN_GROUP,
        _plain(_K.JOIN_GROUP, group_id=GROUP, session_timeout_ms=10_000, member_id="m", protocol_type="consumer"),
    ),
    Step("heartbeat", _K.HEARTBEAT, _plain(_K.HEARTBEAT, group_id=GROUP, member_id="m", generation_id=1)),
    Step("leave", _K.LEAVE_GROUP, _leave),
    Step(
        "sync",
        _K.SYNC_GROUP,
        _plain(
            _K.SYNC_GROUP,
            group_id=GROUP,
            member_id="m",
            generation_id=1,
            protocol_type="consumer",
            protocol_name="range",
        ),
    ),
    Step(
        "describe groups",
        _K.DESCRIBE_GROUPS,
        _plain(_K.DESCRIBE_GROUPS, groups=[GROUP, "another"], include_authorized_operations=False),
    ),
    Step(
        "describe groups with operations",
        _K.DESCRIBE_GROUPS,
        _plain(_K.DESCRIBE_GROUPS, groups=[GROUP, "another"], include_authorized_operations=True),
        first=3,
    ),
    Step("list groups", _K.LIST_GROUPS, _plain(_K.LIST_GROUPS)),
    Step("delete groups", _K.DELETE_GROUPS, _plain(_K.DELETE_GROUPS, groups_names=["nobody", "another"])),
    Step("consumer heartbeat", _K.CONSUMER_GROUP_HEARTBEAT, _subscribing(_K.CONSUMER_GROUP_HEARTBEAT, SEEN)),
    Step(
        "consumer heartbeat of two topics",
        _K.CONSUMER_GROUP_HEARTBEAT,
        _subscribing(_K.CONSUMER_GROUP_HEARTBEAT, SEEN, OTHER),
    ),
    Step(
        "describe consumer groups",
        _K.CONSUMER_GROUP_DESCRIBE,
        _plain(_K.CONSUMER_GROUP_DESCRIBE, group_ids=[GROUP, "another"], include_authorized_operations=True),
    ),
    Step("share heartbeat", _K.SHARE_GROUP_HEARTBEAT, _subscribing(_K.SHARE_GROUP_HEARTBEAT, SEEN)),
    Step(
        "describe share groups",
        _K.SHARE_GROUP_DESCRIBE,
        _plain(_K.SHARE_GROUP_DESCRIBE, group_ids=["shared", "another"], include_authorized_operations=True),
    ),
    Step("share fetch", _K.SHARE_FETCH, _share(_K.SHARE_FETCH, False)),
    Step("share acknowledge", _K.SHARE_ACKNOWLEDGE, _share(_K.SHARE_ACKNOWLEDGE, True)),
    Step("share offsets", _K.DESCRIBE_SHARE_GROUP_OFFSETS, _share_offsets),
    Step("set share offsets", _K.ALTER_SHARE_GROUP_OFFSETS, _set_share_offsets),
    Step("delete share offsets", _K.DELETE_SHARE_GROUP_OFFSETS, _delete_share_offsets),
    Step(
        "initialize share state",
        _K.INITIALIZE_SHARE_GROUP_STATE,
        _share_state(_K.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData"),
    ),
    Step("read share state", _K.READ_SHARE_GROUP_STATE, _share_state(_K.READ_SHARE_GROUP_STATE, "ReadStateData")),
    Step("write share state", _K.WRITE_SHARE_GROUP_STATE, _share_state(_K.WRITE_SHARE_GROUP_STATE, "WriteStateData")),
    Step(
        "delete share state", _K.DELETE_SHARE_GROUP_STATE, _share_state(_K.DELETE_SHARE_GROUP_STATE, "DeleteStateData")
    ),
    Step(
        "share state summary",
        _K.READ_SHARE_GROUP_STATE_SUMMARY,
        _share_state(_K.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryData"),
    ),
    Step(
        "producer id",
        _K.INIT_PRODUCER_ID,
        _plain(_K.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000),
    ),
    Step(
        "transactional producer id",
        _K.INIT_PRODUCER_ID,
        _plain(_K.INIT_PRODUCER_ID, transactional_id=TRANSACTION, transaction_timeout_ms=10**9),
    ),
    Step("add partitions", _K.ADD_PARTITIONS_TO_TXN, _add_partitions),
    Step(
        "add offsets",
        _K.ADD_OFFSETS_TO_TXN,
        _plain(_K.ADD_OFFSETS_TO_TXN, transactional_id=TRANSACTION, group_id=GROUP, producer_id=1),
    ),
    Step("end transaction", _K.END_TXN, _plain(_K.END_TXN, transactional_id=TRANSACTION, producer_id=1)),
    Step("commit in a transaction", _K.TXN_OFFSET_COMMIT, _commit_in_transaction),
    Step("markers", _K.WRITE_TXN_MARKERS, _markers),
    Step(
        "producers",
        _K.DESCRIBE_PRODUCERS,
        lambda version, ids: request(
            _K.DESCRIBE_PRODUCERS,
            topics=_topics(_K.DESCRIBE_PRODUCERS, "TopicRequest", ids, False, partition_indexes=[0]),
        ),
    ),
    Step(
        "describe transactions",
        _K.DESCRIBE_TRANSACTIONS,
        _plain(_K.DESCRIBE_TRANSACTIONS, transactional_ids=[TRANSACTION, "another"]),
    ),
    Step("list transactions", _K.LIST_TRANSACTIONS, _plain(_K.LIST_TRANSACTIONS)),
    Step("create topics", _K.CREATE_TOPICS, _create_topics(NEW, "fresh")),
    Step("delete records", _K.DELETE_RECORDS, _delete_records),
    Step("create partitions", _K.CREATE_PARTITIONS, _create_partitions),
    Step("describe configs", _K.DESCRIBE_CONFIGS, _describe_configs),
    Step("alter configs", _K.ALTER_CONFIGS, _alter_configs(_K.ALTER_CONFIGS)),
    Step("alter configs by increments", _K.INCREMENTAL_ALTER_CONFIGS, _alter_configs(_K.INCREMENTAL_ALTER_CONFIGS)),
    Step("list config resources", _K.LIST_CONFIG_RESOURCES, _plain(_K.LIST_CONFIG_RESOURCES)),
    Step("metrics subscription", TELEMETRY[0], _plain(TELEMETRY[0], client_instance_id=UUID(int=77))),
    Step("push of metrics", TELEMETRY[1], _plain(TELEMETRY[1], client_instance_id=UUID(int=78))),
    Step("log directories", _K.DESCRIBE_LOG_DIRS, _plain(_K.DESCRIBE_LOG_DIRS, topics=None)),
    Step("move to another directory", _K.ALTER_REPLICA_LOG_DIRS, _move_directory),
    Step("elect leaders", _K.ELECT_LEADERS, _elect),
    Step("reassign", _K.ALTER_PARTITION_REASSIGNMENTS, _reassign),
    Step(
        "reassignments",
        _K.LIST_PARTITION_REASSIGNMENTS,
        _plain(_K.LIST_PARTITION_REASSIGNMENTS, topics=None, timeout_ms=10_000),
    ),
    Step(
        "cluster",
        _K.DESCRIBE_CLUSTER,
        _plain(_K.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1),
    ),
    Step("quorum", _K.DESCRIBE_QUORUM, _plain(_K.DESCRIBE_QUORUM)),
    Step("unregister", _K.UNREGISTER_BROKER, _plain(_K.UNREGISTER_BROKER, broker_id=99)),
    Step("features", _K.UPDATE_FEATURES, _feature),
    Step("acls", _K.DESCRIBE_ACLS, _plain(_K.DESCRIBE_ACLS, **{**_ANY_ACL, "resource_name_filter": "no such topic"})),
    Step("quotas", _K.DESCRIBE_CLIENT_QUOTAS, _plain(_K.DESCRIBE_CLIENT_QUOTAS)),
    Step("alter quotas", _K.ALTER_CLIENT_QUOTAS, _alter_quotas),
    Step("SCRAM users", _K.DESCRIBE_USER_SCRAM_CREDENTIALS, _plain(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[])),
    Step("alter SCRAM users", _K.ALTER_USER_SCRAM_CREDENTIALS, _alter_scram_users),
    # Nobody is who they are on a plain listener; tests/interop/test_delegation_tokens.py asks on others.
    Step("create token", _K.CREATE_DELEGATION_TOKEN, _plain(_K.CREATE_DELEGATION_TOKEN, max_lifetime_ms=1)),
    Step("renew token", _K.RENEW_DELEGATION_TOKEN, _plain(_K.RENEW_DELEGATION_TOKEN, hmac=b"none", renew_period_ms=1)),
    Step(
        "expire token",
        _K.EXPIRE_DELEGATION_TOKEN,
        _plain(_K.EXPIRE_DELEGATION_TOKEN, hmac=b"none", expiry_time_period_ms=1),
    ),
    Step("tokens", _K.DESCRIBE_DELEGATION_TOKEN, _plain(_K.DESCRIBE_DELEGATION_TOKEN, owners=None)),
    Step("create acls", _K.CREATE_ACLS, _create_acls),
    Step("delete acls", _K.DELETE_ACLS, _delete_acls),
    # What is deleted is deleted last.
    Step("delete topics by id", _K.DELETE_TOPICS, _delete_topics(True), first=6),
    Step("delete topics", _K.DELETE_TOPICS, _delete_topics(False)),
    Step(
        "versions", _K.API_VERSIONS, _plain(_K.API_VERSIONS, client_software_name="test", client_software_version="1")
    ),
]
"""Requests that change nothing, even if they are allowed, except that a topic is deleted: what they ask for is not there, or is
only checked."""
