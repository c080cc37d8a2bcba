"""Requests that would change a cluster of three, or tell what brokers alone may know, if whoever asks were allowed to ask them.

Unlike those of ``rights.py`` they name what is there: brokers with their epochs, topics, users, tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from app.core.units import TopicId
from app.metadata.image.records import Endpoint
from app.metadata.peers import control
from app.metadata.peers.control import HoldId, HoldRequest
from app.security.acls import Operation
from app.wire import private as own
from app.wire.apikeys import ApiKey
from app.wire.apis.envelope import EnvelopeRequest
from app.wire.framing import request_frame
from app.wire.principal import encode_principal
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, SERVED
from tests.interop.peers import make, request
from tests.support.guarded_cluster import CONTROLLER, FOLLOWER, LEADER, NODES, GuardedCluster
from tests.support.rights import GONE, SEEN, TRANSACTION, share_key
from tests.support.schema_records import operator_record, schema_record

_K = ApiKey
TOPIC_IDS_FROM, REPLICA_STATE_FROM = 13, 15
"""First versions of Fetch with ids of topics, and with the epoch of the broker that asks."""
EPOCHS_OF_MEMBERS_FROM = 3
"""First version of AlterPartition with them."""
TAKES_LONG = 60_000


class Harm(NamedTuple):
    """One request."""

    label: str
    key: ApiKey
    build: Callable[[int, GuardedCluster], Any]
    """(version, cluster) to the request."""
    asks: Operation = Operation.CLUSTER_ACTION
    """What it needs of the cluster; for tokens, of their owner."""
    first: int = 0

    def versions(self) -> range:
        if self.key in OPAQUE:
            return range(1)
        lowest, highest = SERVED[self.key] if self.key in SERVED else BETWEEN_BROKERS[self.key]
        return range(max(lowest, self.first), highest + 1)


def _broker(cluster: GuardedCluster, node_id: int) -> Any:
    return cluster.controller.node.context.image.brokers[node_id]


def _partition(cluster: GuardedCluster, name: str = SEEN) -> Any:
    return cluster.controller.node.context.image.topics_by_name[name].partitions[0]


def _cluster_id(cluster: GuardedCluster) -> str:
    return cluster.controller.node.context.image.cluster_id


# --- between brokers ----------------------------------------------------------------------------------------------------


def _fetch(session_epoch: int) -> Callable[[int, GuardedCluster], Any]:
    """As the follower that has all records, with its epoch. With session epoch 0 it takes the place of its session."""

    def build(version: int, cluster: GuardedCluster) -> Any:
        key = _K.FETCH
        asked = make(
            key,
            "FetchPartition",
            current_leader_epoch=_partition(cluster).leader_epoch,
            fetch_offset=0,
            partition_max_bytes=1 << 20,
        )
        named = {"topic_id": cluster.ids[SEEN]} if version >= TOPIC_IDS_FROM else {"topic": SEEN}
        state = make(key, "ReplicaState", replica_id=FOLLOWER, replica_epoch=_broker(cluster, FOLLOWER).broker_epoch)
        who = {"replica_state": state} if version >= REPLICA_STATE_FROM else {"replica_id": FOLLOWER}
        return request(
            key,
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_epoch=session_epoch,
            topics=[make(key, "FetchTopic", partitions=[asked], **named)],
            **who,
        )

    return build


def _alter_partition(version: int, cluster: GuardedCluster) -> Any:
    """The leader alone is in sync."""
    key, partition, leader = _K.ALTER_PARTITION, _partition(cluster), _broker(cluster, LEADER)
    members = {"new_isr": [LEADER]}
    if version >= EPOCHS_OF_MEMBERS_FROM:
        member = make(key, "BrokerState", broker_id=LEADER, broker_epoch=leader.broker_epoch)
        members = {"new_isr_with_epochs": [member]}
    data = make(
        key,
        "AlterPartitionRequestPartitionData",
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        **members,
    )
    topic = make(key, "AlterPartitionRequestTopicData", topic_id=cluster.ids[SEEN], partitions=[data])
    return request(key, broker_id=LEADER, broker_epoch=leader.broker_epoch, topics=[topic])


def _heartbeat(stops: bool) -> Callable[[int, GuardedCluster], Any]:
    def build(version: int, cluster: GuardedCluster) -> Any:
        return request(
            _K.BROKER_HEARTBEAT,
            broker_id=FOLLOWER,
            broker_epoch=_broker(cluster, FOLLOWER).broker_epoch,
            current_metadata_offset=cluster.controller.node.cluster.image.sequence,
            want_shut_down=stops,
        )

    return build


def _register(node_id: int, force: bool) -> Callable[[int, GuardedCluster], Any]:
    """A new broker, or another one in the place of one that lives."""

    def build(version: int, cluster: GuardedCluster) -> Any:
        endpoints = (Endpoint("BROKERS", "127.0.0.1", 9, "SASL_PLAINTEXT"),)
        asked = control.RegisterRequest(
            _cluster_id(cluster), node_id, UUID(int=7), UUID(int=8), -1, -1, -1, "", "", endpoints, None, "", 0, 9, force
        )  # fmt: skip
        return own.pack(asked)

    return build


def _change(name: str, body: Callable[[GuardedCluster], Any] | None, node_id: int = LEADER) -> Any:
    def build(version: int, cluster: GuardedCluster) -> Any:
        epoch = -1 if node_id < 0 else _broker(cluster, node_id).broker_epoch
        packed = b"" if body is None else own.pack(body(cluster))
        return own.pack(control.ChangeRequest(_cluster_id(cluster), node_id, epoch, name, packed))

    return build


def _first_user(cluster: GuardedCluster) -> control.FirstUsersChange:
    (kept,) = cluster.controller.node.context.image.scram_users["victim"].values()
    return control.FirstUsersChange((("admin", 2, kept),))


def _manifests(version: int, cluster: GuardedCluster) -> Any:
    asked = ((cluster.ids[SEEN], 0, 0),)
    return own.pack(control.ManifestsRequest(_cluster_id(cluster), FOLLOWER, "", 0, 0, asked))


def _markers(version: int, cluster: GuardedCluster) -> Any:
    key = _K.WRITE_TXN_MARKERS
    topic = make(key, "WritableTxnMarkerTopic", name=SEEN, partition_indexes=[0])
    return request(key, markers=[make(key, "WritableTxnMarker", producer_id=5, topics=[topic])])


def _add_partitions(version: int, cluster: GuardedCluster) -> Any:
    """For any transactional id, as leaders ask on behalf of its producers."""
    key = _K.ADD_PARTITIONS_TO_TXN
    topic = make(key, "AddPartitionsToTxnTopic", name=SEEN, partitions=[0])
    one = make(key, "AddPartitionsToTxnTransaction", transactional_id=TRANSACTION, producer_id=0, topics=[topic])
    return request(key, transactions=[one])


def _share_state(key: ApiKey, name: str, **fields: Any) -> Callable[[int, GuardedCluster], Any]:
    def build(version: int, cluster: GuardedCluster) -> Any:
        topic = make(key, name, topic_id=cluster.ids[SEEN], partitions=[make(key, "PartitionData", **fields)])
        return request(key, group_id="workers", topics=[topic])

    return build


def envelope(
    key: ApiKey,
    message: Any,
    user: str = "admin",
    *,
    version: int = -1,
    host: str = "127.0.0.1",
    by_token: bool = False,
) -> EnvelopeRequest:
    """A request, with correlation id 1, that is passed on for somebody; of its newest version, unless another is given."""
    frame = request_frame(key, SERVED[key][1] if version < 0 else version, 1, "test", message)[4:]
    principal = encode_principal("User", user, token_authenticated=by_token)
    return EnvelopeRequest(bytes(frame), principal, f"{host}:1".encode())


def _new_topic(version: int, cluster: GuardedCluster) -> Any:
    topic = make(_K.CREATE_TOPICS, "CreatableTopic", name="passed-on", num_partitions=1, replication_factor=1)
    return request(_K.CREATE_TOPICS, topics=[topic], timeout_ms=TAKES_LONG)


def _told_of_replacement(version: int, cluster: GuardedCluster) -> Any:
    directory_id = _broker(cluster, LEADER).directory_id
    return own.pack(own.PlaceRequest(_cluster_id(cluster), LEADER, directory_id, "somebody"))


def _hold(version: int, cluster: GuardedCluster) -> Any:
    image = cluster.controller.node.context.image
    hold = HoldId(TopicId(cluster.ids[SEEN]), image.controller.epoch, 1)
    partitions = ((0, _partition(cluster).leader_epoch),)
    return own.pack(HoldRequest(image.cluster_id, hold, image.sequence, partitions))


def _fate_of_record(version: int, cluster: GuardedCluster) -> Any:
    return own.pack(own.RequestsRequest("fate", partitions=[("t", 0)], producer_id=0, offset=0))


BETWEEN: list[Harm] = [
    Harm("fetch as a follower", _K.FETCH, _fetch(-1)),
    Harm("fetch in a follower's session", _K.FETCH, _fetch(0), first=7),
    Harm("alter the in-sync set", _K.ALTER_PARTITION, _alter_partition),
    Harm("learn the fate of a record", _K.FIRN_REQUESTS, _fate_of_record),
    Harm("heartbeat", _K.BROKER_HEARTBEAT, _heartbeat(False)),
    Harm("stop a broker", _K.BROKER_HEARTBEAT, _heartbeat(True)),
    Harm("register", _K.FIRN_REGISTER, _register(9, False)),
    Harm("register in another's place", _K.FIRN_REGISTER, _register(FOLLOWER, True)),
    Harm(
        "read the cluster log",
        _K.FIRN_ENTRIES,
        lambda version, cluster: own.pack(control.EntriesRequest(_cluster_id(cluster), 0, 0)),
    ),
    Harm(
        "ask for the controller",
        _K.FIRN_MEMBERS,
        lambda version, cluster: own.pack(control.HeardRequest(_cluster_id(cluster), LEADER)),
    ),
    Harm(
        "make a topic",
        _K.FIRN_CHANGE,
        _change(control.CREATE_TOPIC, lambda cluster: control.CreateTopicChange("fresh", 1, {}, 1, False)),
    ),
    Harm("take producer ids", _K.FIRN_CHANGE, _change(control.PRODUCER_IDS, None)),
    Harm(
        "raise epochs",
        _K.FIRN_CHANGE,
        _change(control.RAISE_EPOCHS, lambda cluster: control.RaiseChange(((cluster.ids[SEEN], 0, 5),))),
    ),
    Harm(
        "forget a topic",
        _K.FIRN_CHANGE,
        _change(control.FORGET_TOPIC, lambda cluster: control.ForgetTopicChange(cluster.ids[GONE])),
    ),
    Harm("take a node id", _K.FIRN_CHANGE, _change(control.NODE_ID, None, node_id=-1)),
    Harm("make a user", _K.FIRN_CHANGE, _change(control.FIRST_USERS, _first_user)),
    Harm("leave for another", _K.FIRN_CHANGE, _change(control.LEAVE, None)),
    Harm("read manifests", _K.FIRN_MANIFESTS, _manifests),
    Harm(
        "look at transactions",
        _K.FIRN_TRANSACTIONS,
        lambda version, cluster: own.pack(control.LookRequest(_cluster_id(cluster), 0)),
    ),
    Harm("hold copies", _K.FIRN_HOLD, _hold),
    Harm(
        "say that a broker lives",
        _K.FIRN_PULSE,
        lambda version, cluster: own.pack(control.PulseRequest(_cluster_id(cluster), FOLLOWER, 0, True, 1000)),
    ),
    Harm(
        "replace segments",
        _K.FIRN_TIER_REPLACE,
        lambda version, cluster: own.pack(own.TierReplaceRequest(SEEN, 0, "begin", [bytes(16)], bytes(16))),
    ),
    Harm("tell of a replacement", _K.FIRN_PLACE, _told_of_replacement),
    Harm("pass a request on", _K.ENVELOPE, lambda version, cluster: envelope(_K.CREATE_TOPICS, _new_topic(7, cluster))),
    Harm("write markers", _K.WRITE_TXN_MARKERS, _markers),
    Harm("add partitions for others", _K.ADD_PARTITIONS_TO_TXN, _add_partitions, first=4),
    Harm(
        "find a share coordinator",
        _K.FIND_COORDINATOR,
        lambda version, cluster: request(
            _K.FIND_COORDINATOR, key_type=2, coordinator_keys=[share_key(cluster.ids[SEEN])]
        ),
        first=6,
    ),
    Harm(
        "initialize share state",
        _K.INITIALIZE_SHARE_GROUP_STATE,
        _share_state(_K.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData", state_epoch=1),
    ),
    Harm("read share state", _K.READ_SHARE_GROUP_STATE, _share_state(_K.READ_SHARE_GROUP_STATE, "ReadStateData")),
    Harm(
        "write share state",
        _K.WRITE_SHARE_GROUP_STATE,
        _share_state(_K.WRITE_SHARE_GROUP_STATE, "WriteStateData", state_epoch=1, start_offset=1),
    ),
    Harm(
        "delete share state",
        _K.DELETE_SHARE_GROUP_STATE,
        _share_state(_K.DELETE_SHARE_GROUP_STATE, "DeleteStateData"),
    ),
    Harm(
        "share state summary",
        _K.READ_SHARE_GROUP_STATE_SUMMARY,
        _share_state(_K.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryData"),
    ),
]
"""What brokers alone may ask."""


# --- of operators -------------------------------------------------------------------------------------------------------


def _configs(key: ApiKey) -> Callable[[int, GuardedCluster], Any]:
    """Of each broker and of all, of their loggers, and of client metrics."""

    def build(version: int, cluster: GuardedCluster) -> Any:
        operation = {"config_operation": 0} if key is _K.INCREMENTAL_ALTER_CONFIGS else {}
        value = "3" if operation else "2"
        named = [(4, "")] + [(kind, str(node_id)) for kind in (4, 8, 16) for node_id in NODES]
        resources = [
            make(
                key,
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=[make(key, "AlterableConfig", name="log.cleaner.threads", value=value, **operation)],
            )
            for kind, name in named
        ]
        return request(key, resources=resources)

    return build


def _describe_configs(version: int, cluster: GuardedCluster) -> Any:
    key = _K.DESCRIBE_CONFIGS
    named = [(4, ""), *((kind, str(node_id)) for kind in (4, 8, 16) for node_id in NODES)]
    resources = [
        make(key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in named
    ]
    return request(key, resources=resources)


def _reassign(version: int, cluster: GuardedCluster) -> Any:
    key = _K.ALTER_PARTITION_REASSIGNMENTS
    asked = make(key, "ReassignablePartition", partition_index=0, replicas=[CONTROLLER])
    topic = make(key, "ReassignableTopic", name=SEEN, partitions=[asked])
    return request(key, topics=[topic], timeout_ms=TAKES_LONG)


def _elect(kind: int) -> Callable[[int, GuardedCluster], Any]:
    def build(version: int, cluster: GuardedCluster) -> Any:
        every = [make(_K.ELECT_LEADERS, "TopicPartitions", topic=SEEN, partitions=[0])] if version == 0 else None
        more = {"election_type": kind} if version >= 1 else {}
        return request(_K.ELECT_LEADERS, topic_partitions=every, timeout_ms=TAKES_LONG, **more)

    return build


def _raise_level(version: int, cluster: GuardedCluster) -> Any:
    key = _K.UPDATE_FEATURES
    update = make(key, "FeatureUpdateKey", feature="firn.version", max_version_level=3, upgrade_type=1)
    return request(key, timeout_ms=TAKES_LONG, feature_updates=[update])


def _all_for(principal: str) -> Callable[[int, GuardedCluster], Any]:
    def build(version: int, cluster: GuardedCluster) -> Any:
        rule = {"principal": principal, "host": "*", "operation": 2, "permission_type": 3}
        made = make(_K.CREATE_ACLS, "AclCreation", resource_type=4, resource_name="kafka-cluster", **rule)
        return request(_K.CREATE_ACLS, creations=[made])

    return build


def _no_acls(version: int, cluster: GuardedCluster) -> Any:
    anything = {"resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None, "host_filter": None}
    wanted = make(
        _K.DELETE_ACLS, "DeleteAclsFilter", resource_type_filter=1, operation=1, permission_type=1, **anything
    )
    return request(_K.DELETE_ACLS, filters=[wanted])


def _quota(version: int, cluster: GuardedCluster) -> Any:
    key = _K.ALTER_CLIENT_QUOTAS
    entity = [make(key, "EntityData", entity_type="user", entity_name="nobody")]
    ops = [make(key, "OpData", key="producer_byte_rate", value=1.0)]
    return request(key, entries=[make(key, "AlterClientQuotasRequestEntryData", entity=entity, ops=ops)])


def _users(version: int, cluster: GuardedCluster) -> Any:
    key = _K.ALTER_USER_SCRAM_CREDENTIALS
    gone = make(key, "ScramCredentialDeletion", name="victim", mechanism=2)
    made = make(
        key, "ScramCredentialUpsertion", name="admin", mechanism=2, iterations=4096, salt=bytes(24),
        salted_password=bytes(64),
    )  # fmt: skip
    return request(key, deletions=[gone], upsertions=[made])


def _step(step: str) -> Callable[[int, GuardedCluster], Any]:
    return lambda version, cluster: own.pack(own.DrainRequest(step))


def _any_schema(version: int, cluster: GuardedCluster) -> Any:
    return own.pack(own.SchemasRequest("append", 0, "com.example.Order", [schema_record("com.example.Order", 1)]))


def _config_of_schemas(version: int, cluster: GuardedCluster) -> Any:
    records = [operator_record("CONFIG", "t-value", compatibilityLevel="NONE")]
    return own.pack(own.SchemasRequest("append", 0, "t-value", records))


def _token_for_another(version: int, cluster: GuardedCluster) -> Any:
    owner = {"owner_principal_type": "User", "owner_principal_name": "victim"}
    return request(_K.CREATE_DELEGATION_TOKEN, max_lifetime_ms=-1, **owner)


OF_OPERATORS: list[Harm] = [
    Harm("settings of brokers", _K.DESCRIBE_CONFIGS, _describe_configs, Operation.DESCRIBE_CONFIGS),
    Harm("replace settings of brokers", _K.ALTER_CONFIGS, _configs(_K.ALTER_CONFIGS), Operation.ALTER_CONFIGS),
    Harm(
        "alter settings of brokers",
        _K.INCREMENTAL_ALTER_CONFIGS,
        _configs(_K.INCREMENTAL_ALTER_CONFIGS),
        Operation.ALTER_CONFIGS,
    ),
    Harm("reassign", _K.ALTER_PARTITION_REASSIGNMENTS, _reassign, Operation.ALTER),
    Harm("elect preferred leaders", _K.ELECT_LEADERS, _elect(0), Operation.ALTER),
    Harm("elect any leaders", _K.ELECT_LEADERS, _elect(1), Operation.ALTER, first=1),
    Harm("raise the level", _K.UPDATE_FEATURES, _raise_level, Operation.ALTER),
    Harm("allow oneself", _K.CREATE_ACLS, _all_for("User:alice"), Operation.ALTER),
    Harm("allow everybody", _K.CREATE_ACLS, _all_for("User:*"), Operation.ALTER),
    Harm("delete all ACLs", _K.DELETE_ACLS, _no_acls, Operation.ALTER),
    Harm("limit a user", _K.ALTER_CLIENT_QUOTAS, _quota, Operation.ALTER_CONFIGS),
    Harm("alter users", _K.ALTER_USER_SCRAM_CREDENTIALS, _users, Operation.ALTER),
    Harm("token for another", _K.CREATE_DELEGATION_TOKEN, _token_for_another, Operation.CREATE_TOKENS, first=3),
    Harm("metrics", _K.FIRN_METRICS, lambda version, cluster: own.pack(own.MetricsRequest()), Operation.DESCRIBE),
    Harm("cluster", _K.FIRN_CLUSTER, lambda version, cluster: own.pack(own.ClusterRequest()), Operation.DESCRIBE),
    Harm("drain", _K.FIRN_DRAIN, _step("begin"), Operation.ALTER),
    Harm("stop a drain", _K.FIRN_DRAIN, _step("stop"), Operation.ALTER),
    Harm("register a schema of no topic", _K.FIRN_SCHEMAS, _any_schema, Operation.ALTER),
    Harm("alter the config of a subject", _K.FIRN_SCHEMAS, _config_of_schemas, Operation.ALTER),
    *(
        Harm(
            f"unregister broker {node_id}",
            _K.UNREGISTER_BROKER,
            lambda version, cluster, node_id=node_id: request(_K.UNREGISTER_BROKER, broker_id=node_id),
            Operation.ALTER,
        )
        for node_id in NODES
    ),
]
"""What asks for a right on the cluster, however many others one has."""
