"""What the walk through all APIs asks: an entry for each API that brokers serve.

The requests are generated from the wire schema (``fillings.py``). An entry says what the schema cannot: values without which a
request is refused before it costs anything, and how many elements must be served (``floors``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from app.configs.client_metrics import Client
from app.core.limits import PARTITIONS_PER_TOPIC_MAX
from app.core.units import ProducerEpoch, ProducerId, TimestampMs, TopicId
from app.exactly_once.records import RECORDS_MAX, Part, RequestKey, Result, encode_result
from app.exactly_once.transactional_ids import prefix_of
from app.groups.offsets.offsets import offset_place, offset_value
from app.metadata.peers.control import (
    RAISE_EPOCHS,
    ChangeRequest,
    EntriesRequest,
    HeardRequest,
    HoldId,
    HoldRequest,
    LookRequest,
    ManifestsRequest,
    PulseRequest,
    RaiseChange,
)
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.bounds import BYTES_MAX
from app.wire.codec import encode_opaque, shape_of
from app.wire.private import (
    KEYED_RECORDS_MAX,
    LAG_ENDS_MAX,
    LAG_TOPICS_MAX,
    METRIC_NAMES_MAX,
    REPLACED_AT_ONCE_MAX,
    TOPIC_NAME_CHARS_MAX,
    AppendRequest,
    ClusterRequest,
    DrainRequest,
    ForwardedRequest,
    KeyedRequest,
    MetricsRequest,
    PlaceRequest,
    RequestsRequest,
    SchemasRequest,
    TierReplaceRequest,
    TierSegmentsRequest,
    TierStatusRequest,
    TopicLagsRequest,
    TopicsRequest,
)
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, PRIVATE, SERVED
from tests.support.client_metrics import metrics_of
from tests.support.crowded import CROWD, ENDED, LOADED, LONG, WIDE, Crowded
from tests.support.fillings import Filler, Filling, Names, fillings_of
from tests.support.schema_records import schema_key

LONGEST_NAMES_MAX: Final = BYTES_MAX // 33_000
"""Names of 32,767 bytes that fit in the longest request of all APIs but Produce."""
SHORT_BYTES_MAX: Final = 250
SHORT_TIMES: Final = 1_000
"""Bytes of a body so short that one read brings so many of them."""
BEYOND: Final = 1_000_000
"""Elements of a list that is longer than any request may have."""
SHARING: Final = "sharing"
NEWCOMER: Final = "00000000-0000-0000-0000-00000000ffff"
NO_ID: Final = uuid.UUID(int=0)
ABSENT: Final = 12_345
"""A broker that does not exist."""


class Floor(NamedTuple):
    """A request that must be served, whatever bounds there are."""

    widest: tuple[str, ...]
    count: int
    names: Names = Names.EXISTING
    refused_with: frozenset[int] = frozenset()
    """Error codes that are no refusal of the request's size."""


class Entry(NamedTuple):
    """How an API is asked."""

    values: Mapping[str, Any] | Callable[[Crowded], Mapping[str, Any]] = MappingProxyType({})
    """Of fields, by ``Struct.field`` or ``field``."""
    floors: Sequence[Floor] = ()
    destroys: bool = False
    """Whether it is asked after all others."""
    bodies: Callable[[Crowded, int], Iterator[tuple[str, bytes]]] | None = None
    """Names and bodies of the requests of Firn's own keys, for a number of elements."""
    beside: int = 1
    """So many short requests are sent at once, too: a connection is served several of them at a time."""


class Asked(NamedTuple):
    """One request."""

    key: ApiKey
    version: int
    label: str
    body: Callable[[], bytes]
    times: int = 1
    """How often it is sent, before an answer is read."""

    def __str__(self) -> str:
        return f"{self.key.name} v{self.version} {self.label}"


RECORDS: Final = build_batch([(1_700_000_000_000, None, b"value", ())])


def of_producer(on: Crowded, transactional_id: str) -> Mapping[str, Any]:
    producer_id, producer_epoch = on.producers[transactional_id]
    return {"producer_id": producer_id, "producer_epoch": producer_epoch}


def in_transaction(on: Crowded) -> Mapping[str, Any]:
    """Fields of the requests of a transactional producer."""
    return {
        **of_producer(on, LONG), "committed": True, "verify_only": False,
        "generation_id": -1, "TxnOffsetCommitRequest.member_id": "",
    }  # fmt: skip


def _of_loaded(on: Crowded) -> TopicLagsRequest:
    """A question about a topic of a group that has loaded nearly as many offsets as are looked at for one response."""
    topics = [WIDE, *(f"other-{number}" for number in range(16))]

    def load() -> None:
        for _, shard in on.broker.node.context.groups.shell.shards():
            if LOADED in shard.groups:
                value = offset_value(0, 0, "", 1 << 60)
                raw = shard.offsets._groups[LOADED].raw
                raw |= {offset_place(topic, index): value for topic in topics for index in range(LAG_ENDS_MAX)}
                return
        raise AssertionError("the group is missing")

    on.measured.call(load)
    return TopicLagsRequest([(WIDE, [BEYOND] * LAG_ENDS_MAX)], 1, "group-z")  # the group is the next one


def _private(*bodies: Callable[[Crowded, int], Any], beside: int = 1) -> Entry:
    def made(on: Crowded, count: int) -> Iterator[tuple[str, bytes]]:
        for build in bodies:
            message = build(on, count)
            yield f"{count} × {message.__class__.__name__}", encode_opaque(msgspec.msgpack.encode(message))
        yield "nested", encode_opaque(b"\x91" * min(count, 1 << 20))

    return Entry(bodies=made, beside=beside)


def _raised(on: Crowded, count: int) -> ChangeRequest:
    epochs = tuple((on.ids[index % len(on.ids)], index % on.sizes.partitions, 0) for index in range(count))
    body = msgspec.msgpack.encode(RaiseChange(epochs))
    return ChangeRequest(_cluster(on), 0, 0, RAISE_EPOCHS, body)


def _cluster(on: Crowded) -> str:
    return str(on.broker.node.cluster.image.cluster_id)


def _long_result(count: int) -> bytes:
    """The value of a result with as many records as there may be, each in another partition than the one before."""
    records = min(count, RECORDS_MAX)
    parts = tuple(Part(WIDE, index, 0, (records + 1 - index) // 2, -1) for index in range(min(records, 2)))
    result = Result(bytes(16), bytes(32), 200, 0, 0, parts, tuple(index % 2 for index in range(records)))
    return encode_result(RequestKey("User:ANONYMOUS", b"key"), result)[1]


def _append_of(result: bytes) -> RequestsRequest:
    """A result in a transaction that its caller may use."""
    return RequestsRequest(
        "append", b"key", bytes(16), transactional_id=prefix_of("User:ANONYMOUS") + "x", result=result
    )


@cache
def _result_of_one_run() -> bytes:
    """The value of a result of as many records as there may be, all in one partition: 116 bytes name 10,000 places."""
    part = Part("t", 0, 0, RECORDS_MAX, -1)
    result = Result(bytes(16), bytes(32), 200, 0, 0, (part,), (0,) * RECORDS_MAX)
    return encode_result(RequestKey("User:ANONYMOUS", b"key"), result)[1]


def _topics(on: Crowded, count: int) -> list[str]:
    return [on.names["topic"][index % len(on.ids)] for index in range(count)]


WALKED_INSTANCE: Final = uuid.UUID(int=7)


def _subscription_of(on: Crowded, instance_id: uuid.UUID) -> int:
    """The subscription of a client instance without an interval to wait for: each walked push says that it is the last one."""
    clients = on.broker.node.context.telemetry.clients
    client = Client(str(instance_id), "walk", "unknown", "unknown", "127.0.0.1", "1")
    return clients.subscribe(client, instance_id, -1e9).subscription_id


MANY: Final = 10_000
"""Partitions that one request may name."""
OTHER_TYPE: Final = frozenset({69})
"""The group is of another type than the API is for."""
MORE_ALREADY: Final = frozenset({37})
"""The topic has more partitions already."""
UNFIT_VALUE: Final = frozenset({40})
"""One of the settings that are named does not take the value."""
UNKNOWN_PRODUCER: Final = frozenset({47, 48, 49, 51, 59, 90})

WALKED: Final[Mapping[ApiKey, Entry]] = {
    ApiKey.PRODUCE: Entry(
        {"acks": -1, "timeout_ms": 5000, "records": RECORDS, "transactional_id": None},
        [Floor(("topic_data", "partition_data"), 5_000), Floor(("topic_data",), 5_000)],
    ),
    ApiKey.FETCH: Entry(
        {
            "session_epoch": -1,
            "max_wait_ms": 0,
            "max_bytes": 50 << 20,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "replica_id": -1,
        },
        [Floor(("topics", "partitions"), MANY), Floor(("topics",), MANY)],
    ),
    ApiKey.LIST_OFFSETS: Entry(
        {"timestamp": -1, "current_leader_epoch": -1, "replica_id": -1}, [Floor(("topics", "partitions"), MANY)]
    ),
    ApiKey.METADATA: Entry({"topic_id": NO_ID}, [Floor(("topics",), MANY)]),
    ApiKey.OFFSET_COMMIT: Entry(
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "group_id": "group-00001"},
        [Floor(("topics", "partitions"), MANY)],
    ),
    ApiKey.OFFSET_FETCH: Entry(
        {"OffsetFetchRequestGroup.member_id": None, "member_epoch": -1},
        [Floor(("groups",), 5_000), Floor(("groups", "topics", "partition_indexes"), MANY)],
    ),
    ApiKey.FIND_COORDINATOR: Entry({}, [Floor(("coordinator_keys",), 5_000)]),
    ApiKey.JOIN_GROUP: Entry(
        {
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "group_id": "joined",
            "metadata": b"m" * 20,
        },
    ),
    ApiKey.HEARTBEAT: Entry(),
    ApiKey.LEAVE_GROUP: Entry(destroys=True),
    ApiKey.SYNC_GROUP: Entry({"protocol_type": "consumer", "protocol_name": "range", "assignment": b"a" * 20}),
    ApiKey.DESCRIBE_GROUPS: Entry({}, [Floor(("groups",), 5_000, refused_with=OTHER_TYPE)]),
    ApiKey.LIST_GROUPS: Entry(),
    ApiKey.SASL_HANDSHAKE: Entry(),
    ApiKey.API_VERSIONS: Entry(),
    ApiKey.CREATE_TOPICS: Entry(
        {
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": None,
            "timeout_ms": 30_000,
            "validate_only": False,
            "CreatableTopicConfig.value": "100000000",
        },
        [Floor(("topics",), 1_000, Names.UNKNOWN, UNFIT_VALUE)],
    ),
    ApiKey.DELETE_TOPICS: Entry({"timeout_ms": 30_000, "topic_id": NO_ID}, destroys=True),
    ApiKey.DELETE_RECORDS: Entry({"timeout_ms": 30_000}, [Floor(("topics", "partitions"), MANY)], destroys=True),
    ApiKey.INIT_PRODUCER_ID: Entry({"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Entry(
        {"replica_id": -1, "current_leader_epoch": -1}, [Floor(("topics", "partitions"), MANY)]
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Entry(
        in_transaction, [Floor(("transactions", "topics", "partitions"), MANY, refused_with=UNKNOWN_PRODUCER)]
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Entry(in_transaction),
    ApiKey.END_TXN: Entry(
        lambda on: {**of_producer(on, ENDED), "transactional_id": ENDED, "committed": True}, destroys=True
    ),
    ApiKey.WRITE_TXN_MARKERS: Entry({}, [Floor(("markers", "topics", "partition_indexes"), MANY)]),
    ApiKey.TXN_OFFSET_COMMIT: Entry(
        in_transaction, [Floor(("topics", "partitions"), MANY, refused_with=UNKNOWN_PRODUCER)]
    ),
    ApiKey.DESCRIBE_ACLS: Entry(
        {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
            "resource_name_filter": None,
            "principal_filter": None,
            "host_filter": None,
        }
    ),
    ApiKey.CREATE_ACLS: Entry(
        {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3, "host": "*"},
        [Floor(("creations",), 1_000)],
    ),
    ApiKey.DELETE_ACLS: Entry(
        {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
            "host_filter": "192.0.2.1",
        },
        [Floor(("filters",), 1_000)],
    ),
    ApiKey.DESCRIBE_CONFIGS: Entry(
        {"resource_type": 2, "configuration_keys": None, "include_synonyms": True, "include_documentation": True},
        [Floor(("resources",), 5_000)],
    ),
    ApiKey.ALTER_CONFIGS: Entry({"resource_type": 2, "validate_only": False, "value": "100000000"}),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Entry(),
    ApiKey.DESCRIBE_LOG_DIRS: Entry({}, [Floor(("topics", "partitions"), MANY)]),
    ApiKey.SASL_AUTHENTICATE: Entry({"auth_bytes": b"x" * 100_000}),
    ApiKey.CREATE_PARTITIONS: Entry(
        {"count": 2, "timeout_ms": 30_000, "assignments": None, "validate_only": False},
        [Floor(("topics",), 1_000, refused_with=MORE_ALREADY)],
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: Entry({"max_lifetime_ms": -1}),
    ApiKey.RENEW_DELEGATION_TOKEN: Entry({"hmac": b"h" * 100_000}),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Entry({"hmac": b"h" * 100_000}),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Entry(),
    ApiKey.DELETE_GROUPS: Entry({}, destroys=True),
    ApiKey.ELECT_LEADERS: Entry({"timeout_ms": 5_000}),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Entry({"resource_type": 2, "validate_only": False, "value": "100000000"}),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Entry({"timeout_ms": 5_000}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Entry({"timeout_ms": 5_000}),
    ApiKey.OFFSET_DELETE: Entry(destroys=True),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Entry(),
    ApiKey.ALTER_CLIENT_QUOTAS: Entry({"value": 1000.0}, [Floor(("entries",), 1_000, Names.REPEATED, frozenset({42}))]),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Entry({}, [Floor(("users",), 5_000, refused_with=frozenset({92}))]),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Entry(
        {"mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32},
    ),
    ApiKey.DESCRIBE_QUORUM: Entry(),
    ApiKey.ALTER_PARTITION: Entry({"broker_id": ABSENT}),
    ApiKey.UPDATE_FEATURES: Entry({"timeout_ms": 5_000, "max_version_level": 1, "upgrade_type": 1}),
    ApiKey.ENVELOPE: Entry({"request_data": b"r" * 100_000, "client_host_address": b"\x7f\0\0\1"}),
    ApiKey.DESCRIBE_CLUSTER: Entry({"include_cluster_authorized_operations": True}),
    ApiKey.DESCRIBE_PRODUCERS: Entry({}, [Floor(("topics", "partition_indexes"), MANY)]),
    ApiKey.BROKER_HEARTBEAT: Entry({"broker_id": ABSENT, "offline_log_dirs": lambda index: uuid.UUID(int=index + 1)}),
    ApiKey.UNREGISTER_BROKER: Entry({"broker_id": ABSENT}),
    ApiKey.DESCRIBE_TRANSACTIONS: Entry(),
    ApiKey.LIST_TRANSACTIONS: Entry({"duration_filter": -1, "transactional_id_pattern": None}),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Entry(
        {
            "ConsumerGroupHeartbeatRequest.member_id": NEWCOMER,
            "member_epoch": 0,
            "rebalance_timeout_ms": 300_000,
            "group_id": CROWD,
            "topic_partitions": [],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "instance_id": None,
        },
        [Floor(("subscribed_topic_names",), 1_000)],
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Entry(
        {"include_authorized_operations": True}, [Floor(("group_ids",), 1_000, refused_with=OTHER_TYPE)]
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Entry(),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Entry(),
    ApiKey.PUSH_TELEMETRY: Entry(
        lambda on: {
            "client_instance_id": WALKED_INSTANCE,
            "subscription_id": _subscription_of(on, WALKED_INSTANCE),
            "compression_type": 0,
            "terminating": True,
            "metrics": metrics_of(20_000),
        }
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Entry(
        {"response_partition_limit": 2_000, "cursor": None}, [Floor(("topics",), MANY)]
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Entry(
        {"ShareGroupHeartbeatRequest.member_id": NEWCOMER, "member_epoch": 0, "group_id": SHARING}
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Entry(),
    ApiKey.SHARE_FETCH: Entry(
        {
            "group_id": SHARING,
            "member_id": NEWCOMER,
            "max_wait_ms": 0,
            "max_bytes": 50 << 20,
            "max_records": 500,
            "batch_size": 500,
        }
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Entry({"group_id": SHARING, "member_id": NEWCOMER}),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Entry(),
    ApiKey.READ_SHARE_GROUP_STATE: Entry(),
    ApiKey.WRITE_SHARE_GROUP_STATE: Entry(),
    ApiKey.DELETE_SHARE_GROUP_STATE: Entry(),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Entry(),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Entry(),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Entry({"group_id": SHARING}),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Entry({"group_id": SHARING}),
    ApiKey.FIRN_METRICS: _private(
        lambda on, count: MetricsRequest(),
        lambda on, count: MetricsRequest([f"firn_unknown_{index}" for index in range(METRIC_NAMES_MAX)]),
    ),
    ApiKey.FIRN_TIER_STATUS: _private(
        lambda on, count: TierStatusRequest(),
        lambda on, count: TierStatusRequest(_topics(on, count)),
        lambda on, count: TierStatusRequest([WIDE] * count, True),
        lambda on, count: TierStatusRequest([f"unknown-{index}" for index in range(count)]),
        lambda on, count: TierStatusRequest(["x"] * BEYOND),
    ),
    ApiKey.FIRN_TIER_SEGMENTS: _private(lambda on, count: TierSegmentsRequest(WIDE, 0)),
    ApiKey.FIRN_TIER_REPLACE: _private(
        lambda on, count: TierReplaceRequest(
            WIDE, 0, "begin", [b"i" * 16] * min(count, REPLACED_AT_ONCE_MAX), b"s" * 16, 0, 1
        ),
        lambda on, count: TierReplaceRequest(WIDE, 0, "begin", [b"i" * 16] * count, b"s" * 16, 0, 1),
    ),
    ApiKey.FIRN_PLACE: _private(lambda on, count: PlaceRequest("x" * count, 0, NO_ID)),
    ApiKey.FIRN_DRAIN: _private(lambda on, count: DrainRequest("status")),
    ApiKey.FIRN_ENTRIES: _private(lambda on, count: EntriesRequest(_cluster(on), 0, 0)),
    ApiKey.FIRN_MEMBERS: _private(lambda on, count: HeardRequest(_cluster(on), ABSENT)),
    ApiKey.FIRN_REGISTER: _private(lambda on, count: HeardRequest("x" * count, ABSENT)),
    ApiKey.FIRN_CHANGE: _private(_raised),
    ApiKey.FIRN_HOLD: _private(
        lambda on, count: HoldRequest(
            _cluster(on),
            HoldId(TopicId(on.ids[0]), 0, 0),
            0,
            tuple((index, 0) for index in range(min(count, PARTITIONS_PER_TOPIC_MAX))),
        ),
        lambda on, count: HoldRequest(_cluster(on), HoldId(TopicId(on.ids[0]), 0, 0), 0, ((0, 0),) * BEYOND),
        lambda on, count: HoldRequest(_cluster(on), HoldId(TopicId(on.ids[0]), 0, 0), 0),
    ),
    ApiKey.FIRN_MANIFESTS: _private(
        lambda on, count: ManifestsRequest(
            _cluster(on), 0, "", 0, 0, tuple((on.ids[0], index % on.sizes.partitions, 0) for index in range(count))
        )
    ),
    ApiKey.FIRN_TRANSACTIONS: _private(
        lambda on, count: LookRequest(_cluster(on), 0),
        lambda on, count: LookRequest(_cluster(on), 0, tuple((index, 0) for index in range(count))),
        lambda on, count: LookRequest(_cluster(on), 0, (), tuple((WIDE, 0, index, 0) for index in range(count))),
        lambda on, count: LookRequest(_cluster(on), 0, ((0, 0),) * BEYOND),
    ),
    ApiKey.FIRN_PULSE: _private(lambda on, count: PulseRequest(_cluster(on), ABSENT, 0, True, 1000, 0, 1000)),
    ApiKey.FIRN_CLUSTER: _private(lambda on, count: ClusterRequest()),
    ApiKey.FIRN_TOPICS: _private(
        lambda on, count: TopicsRequest(internal=True),
        lambda on, count: TopicsRequest("x" * TOPIC_NAME_CHARS_MAX, limit=BEYOND),
        lambda on, count: TopicsRequest("", "t", 1),
    ),
    ApiKey.FIRN_TOPIC_LAGS: _private(
        lambda on, count: TopicLagsRequest([(WIDE, [BEYOND] * min(count, LAG_ENDS_MAX))]),
        lambda on, count: TopicLagsRequest([(WIDE, [BEYOND] * min(count, LAG_ENDS_MAX))], BEYOND),
        lambda on, count: _of_loaded(on),
        lambda on, count: TopicLagsRequest([(f"unknown-{index}", [0] * 100) for index in range(LAG_TOPICS_MAX)]),
        lambda on, count: TopicLagsRequest([(WIDE, [0] * LAG_ENDS_MAX)] * LAG_TOPICS_MAX),
    ),
    ApiKey.FIRN_SCHEMAS: _private(
        lambda on, count: SchemasRequest("read", 0),
        lambda on, count: SchemasRequest("append", 0, "t-value", [(b'{"keytype":"SCHEMA"}', b"{}")] * count),
        lambda on, count: SchemasRequest(
            "append", 0, "t-value", [(schema_key("t-value", index), None) for index in range(min(count, 2_000))]
        ),
        lambda on, count: SchemasRequest("append", 0, "t-value", [(b"[" * count, b"[" * count)]),
    ),
    ApiKey.FIRN_REQUESTS: _private(
        lambda on, count: RequestsRequest(
            "look", b"key", bytes(16), [(name, 0) for name in _topics(on, min(count, 1_000))]
        ),
        lambda on, count: RequestsRequest("settle", b"key", bytes(16)),
        lambda on, count: RequestsRequest("look", b"k" * count, bytes(16)),
        lambda on, count: RequestsRequest("append", b"key", bytes(16), result=b"x" * count),
        lambda on, count: _append_of(_long_result(count)),
        lambda on, count: _append_of(_result_of_one_run()),
        lambda on, count: RequestsRequest("fate", partitions=[(WIDE, 0)] * count),
        beside=SHORT_TIMES,
    ),
    ApiKey.FIRN_APPEND: _private(
        lambda on, count: AppendRequest(on.ids[0], 0),
        lambda on, count: AppendRequest(on.ids[0], 0, _long_batch(count), 0, -1),
        lambda on, count: AppendRequest(on.ids[0], 0, _long_batch(count), 2**62, 0),
        lambda on, count: AppendRequest(on.ids[0], 0, b"x" * count, 0, -1),
    ),
    ApiKey.FIRN_KEYED: _private(
        lambda on, count: _keyed_request(on, min(count, KEYED_RECORDS_MAX)),
        lambda on, count: KeyedRequest(b"key", bytes(16), "x", 0, 0, 0, b"x" * min(count, 60_000), []),
        lambda on, count: KeyedRequest(b"key", bytes(16), "x", 0, 0, 0, _result_of_one_run(), [b""]),
        beside=SHORT_TIMES,
    ),
    ApiKey.FIRN_FORWARDED: _private(lambda on, count: ForwardedRequest("1" * count)),
}


def _keyed_request(on: Crowded, count: int) -> KeyedRequest:
    """A try of so many records in one partition."""
    records = [(TimestampMs(1_790_000_000_000), None, b"v", ())] * count
    batch = build_batch(
        records, producer_id=ProducerId(0), producer_epoch=ProducerEpoch(0), base_sequence=0, transactional=True
    )
    part = Part(on.names["topic"][0], 0, -1, count, -1)
    result = Result(bytes(16), bytes(32), 200, 0, 0, (part,), (0,) * count)
    _, value = encode_result(RequestKey("", b"key"), result)
    return KeyedRequest(b"key", bytes(16), "__http.x", 0, 0, 10_000, value, [batch])


@cache
def _long_batch(count: int) -> bytes:
    return build_batch([(TimestampMs(1_790_000_000_000), None, b"v", ())] * min(count, 200_000))


def served_keys() -> set[ApiKey]:
    """Every API that brokers serve, to clients or to each other."""
    return {*SERVED, *BETWEEN_BROKERS, *map(ApiKey, PRIVATE), *map(ApiKey, OPAQUE)}


def versions_of(key: ApiKey) -> list[int]:
    """One version of each shape that a request has, the newest of those that are alike; oldest first."""
    first, last = SERVED.get(key) or BETWEEN_BROKERS[key]
    newest: dict[object, int] = {}
    for version in range(first, last + 1):
        shape = shape_of(key, version)
        assert shape is not None
        arrays = [(name, one.name, one.kind) for name in shape.rows for one in shape.wire_fields(name) if one.is_array]
        ids = [(name, one.name) for name in shape.rows for one in shape.wire_fields(name) if one.kind == "uuid"]
        newest[tuple(arrays), tuple(ids)] = version
    return sorted(newest.values())


def filler_of(on: Crowded, key: ApiKey, version: int) -> Filler:
    """A writer of requests of an API, with the values of its entry."""
    values = WALKED[key].values
    return Filler(key, version, on.domains, dict(values(on) if callable(values) else values))


def requests_of(
    on: Crowded, key: ApiKey, count: int, *, newest_only: bool = False, names: Sequence[Names] = tuple(Names)
) -> Iterator[Asked]:
    """The worst requests of an API that ``count`` elements make."""
    entry = WALKED[key]
    if entry.bodies is not None:
        for label, body in entry.bodies(on, count):
            yield Asked(key, 0, label, partial(bytes, body))
            if entry.beside > 1 and len(body) <= SHORT_BYTES_MAX:
                yield Asked(key, 0, f"{label}, {entry.beside} times", partial(bytes, body), entry.beside)
        return
    for version in versions_of(key)[-1:] if newest_only else versions_of(key):
        filler = filler_of(on, key, version)
        for filling in fillings_of(key, version, count):
            if filling.names not in names:
                continue
            if filling.names is Names.LONGEST:
                filling = filling._replace(count=min(count, LONGEST_NAMES_MAX))
            yield Asked(key, version, str(filling), partial(filler.body, filling))


def floor_request(on: Crowded, key: ApiKey, floor: Floor) -> Asked:
    """A request that must be served, in the newest version that has its array."""
    for version in reversed(versions_of(key)):
        if any(one.widest == floor.widest for one in fillings_of(key, version, 1)):
            filling = Filling(floor.widest, floor.count, floor.names)
            filler = filler_of(on, key, version)
            return Asked(key, version, str(filling), partial(filler.body, filling))
    raise AssertionError(f"{key.name} has no array {floor.widest}")
