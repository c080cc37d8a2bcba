"""Which versions of which API Firn's brokers serve, and which are flexible (KIP-482).

Tests: ``tests/wire/test_header.py``, ``tests/wire/test_negotiation.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.wire.apikeys import ApiKey
from app.wire.apis import APIS

SERVED: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (3, 13),
        ApiKey.FETCH: (4, 18),
        ApiKey.LIST_OFFSETS: (1, 11),
        ApiKey.METADATA: (0, 13),
        ApiKey.OFFSET_COMMIT: (2, 10),
        ApiKey.OFFSET_FETCH: (1, 10),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.SASL_HANDSHAKE: (0, 1),
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.CREATE_TOPICS: (2, 7),
        ApiKey.DELETE_TOPICS: (1, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.WRITE_TXN_MARKERS: (1, 2),
        ApiKey.TXN_OFFSET_COMMIT: (0, 5),
        ApiKey.DESCRIBE_ACLS: (1, 3),
        ApiKey.CREATE_ACLS: (1, 3),
        ApiKey.DELETE_ACLS: (1, 3),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.ALTER_CONFIGS: (0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
        ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
        ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
        ApiKey.DELETE_GROUPS: (0, 2),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_QUORUM: (0, 2),
        ApiKey.UPDATE_FEATURES: (0, 2),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        ApiKey.UNREGISTER_BROKER: (0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0),
        ApiKey.PUSH_TELEMETRY: (0, 0),
        ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
        ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
        ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
        ApiKey.SHARE_FETCH: (1, 2),
        ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, 0),
        ApiKey.READ_SHARE_GROUP_STATE: (0, 0),
        ApiKey.WRITE_SHARE_GROUP_STATE: (0, 1),
        ApiKey.DELETE_SHARE_GROUP_STATE: (0, 0),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, 1),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
    }
)
"""First and last version served of each API: the stable ranges of Kafka 4.3.1."""

ADVERTISED: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType({**SERVED, ApiKey.PRODUCE: (0, 13)})
"""The versions in ApiVersions responses. Produce 0 to 2 are refused, as Kafka refuses them. But old librdkafka disables features
if the first version is not 0 (KAFKA-18659)."""

PRIVATE: Final[frozenset[int]] = frozenset(
    {
        ApiKey.FIRN_METRICS,
        ApiKey.FIRN_TIER_STATUS,
        ApiKey.FIRN_TIER_SEGMENTS,
        ApiKey.FIRN_TIER_REPLACE,
        ApiKey.FIRN_PLACE,
        ApiKey.FIRN_DRAIN,
        ApiKey.FIRN_CLUSTER,
        ApiKey.FIRN_FORWARDED,
        ApiKey.FIRN_SCHEMAS,
        ApiKey.FIRN_REQUESTS,
        ApiKey.FIRN_TOPICS,
        ApiKey.FIRN_APPEND,
        ApiKey.FIRN_TOPIC_LAGS,
        ApiKey.FIRN_KEYED,
    }
)
"""Firn's own keys that every client may send: version 0 only, flexible headers, a body of one compact bytes field."""

BETWEEN_BROKERS: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.ALTER_PARTITION: (2, 3),
        ApiKey.ENVELOPE: (0, 0),
        ApiKey.BROKER_HEARTBEAT: (0, 1),
        ApiKey.FIRN_ENTRIES: (0, 0),
        ApiKey.FIRN_MEMBERS: (0, 0),
        ApiKey.FIRN_REGISTER: (0, 0),
        ApiKey.FIRN_CHANGE: (0, 0),
        ApiKey.FIRN_MANIFESTS: (0, 0),
        ApiKey.FIRN_TRANSACTIONS: (0, 0),
        ApiKey.FIRN_HOLD: (0, 0),
        ApiKey.FIRN_PULSE: (0, 0),
    }
)
"""First and last version of each API that brokers alone send to each other. ApiVersions does not list them: Kafka serves its three
on the listener of its controllers. WriteTxnMarkers and the states of share groups are not among them, because Kafka's brokers list
those."""

OPAQUE: Final[frozenset[int]] = PRIVATE | {
    ApiKey.FIRN_ENTRIES,
    ApiKey.FIRN_MEMBERS,
    ApiKey.FIRN_REGISTER,
    ApiKey.FIRN_CHANGE,
    ApiKey.FIRN_MANIFESTS,
    ApiKey.FIRN_TRANSACTIONS,
    ApiKey.FIRN_HOLD,
    ApiKey.FIRN_PULSE,
}
"""All of Firn's own keys, for clients and for brokers."""


def is_served(key: int, version: int) -> bool:
    """Whether Firn's brokers answer this version of this API with more than UNSUPPORTED_VERSION."""
    if key in PRIVATE:
        return version == 0
    served = SERVED.get(key)  # type: ignore[call-overload]
    return served is not None and served[0] <= version <= served[1]


def is_between_brokers(key: int, version: int) -> bool:
    """Whether Firn's brokers answer this version of this API to each other."""
    served = BETWEEN_BROKERS.get(key)  # type: ignore[call-overload]
    return served is not None and served[0] <= version <= served[1]


def first_flexible(key: int) -> int:
    """First version of an API with compact lengths and tagged fields; above its last version if there is none.

    Raises: KeyError for a key that has no schema.
    """
    return 0 if key in OPAQUE else APIS[key].flexible_first


def is_flexible(key: int, version: int) -> bool:
    """Whether this version uses compact lengths and tagged fields, hence a flexible request header.

    Raises: KeyError for a key that has no schema.
    """
    return version >= first_flexible(key)
