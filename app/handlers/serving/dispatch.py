"""Maps each API to its handler: the tables of all families together.

A family is imported when the first request for it comes, or soon after the start. To define the messages of all APIs takes a
quarter of the time of a start, and the first answers need only three APIs.

Produce and Fetch are not here: ``session.py`` calls them with raw bytes. The rights of the caller are checked before every other
handler (``authorising.py``).

Tests: ``tests/handlers/test_small_apis.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from app.handlers.apis.passing_on import PASSED_ON
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import TABLE, guarded
from app.handlers.base.in_time import in_time
from app.wire.apikeys import ApiKey

FAMILIES: Final[Mapping[str, tuple[ApiKey, ...]]] = {
    "handshakes": (
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.FIRN_FORWARDED,
    ),
    "scram_users": (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
    "delegation_tokens": (
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ),
    "metadata": (ApiKey.METADATA,),
    "producer_ids": (ApiKey.INIT_PRODUCER_ID,),
    "offsets": (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    "coordinators": (ApiKey.FIND_COORDINATOR,),
    "committed_offsets": (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE),
    "groups": (
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.FIRN_TOPIC_LAGS,
    ),
    "consumer_groups": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    "share_groups": (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE),
    "share_fetch": (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE),
    "share_offsets": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ),
    "share_states": (
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ),
    "transactions": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
    ),
    "transactional_offsets": (ApiKey.TXN_OFFSET_COMMIT,),
    "transaction_listing": (
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.FIRN_TRANSACTIONS,
    ),
    "cluster": (ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.FIRN_CLUSTER, ApiKey.FIRN_TOPICS),
    "quorum": (ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER),
    "features": (ApiKey.UPDATE_FEATURES,),
    "quotas": (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
    "elections": (ApiKey.ELECT_LEADERS,),
    "reassignments": (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
    "acls": (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
    "topics": (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
    "configs": (
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
    ),
    "telemetry": (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
    "log_dirs": (ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DELETE_RECORDS),
    "controlling": (
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALTER_PARTITION,
        ApiKey.FIRN_ENTRIES,
        ApiKey.FIRN_MEMBERS,
        ApiKey.FIRN_REGISTER,
        ApiKey.FIRN_CHANGE,
        ApiKey.FIRN_PULSE,
    ),
    "manifests": (ApiKey.FIRN_MANIFESTS,),
    "copy_holds": (ApiKey.FIRN_HOLD,),
    "schemas": (ApiKey.FIRN_SCHEMAS,),
    "requests": (ApiKey.FIRN_REQUESTS,),
    "passing_on": (ApiKey.ENVELOPE,),
    "firn_api": (
        ApiKey.FIRN_METRICS,
        ApiKey.FIRN_TIER_STATUS,
        ApiKey.FIRN_TIER_SEGMENTS,
        ApiKey.FIRN_TIER_REPLACE,
        ApiKey.FIRN_PLACE,
        ApiKey.FIRN_DRAIN,
    ),
}
"""Module of this package to the keys of its table ``APIS``, which must be the same. A new family adds its line here."""

CHANGES: Final = PASSED_ON - {ApiKey.DESCRIBE_QUORUM}
"""APIs that need an entry of the cluster log."""
LOAD_PAUSE_S: Final = 0.02
"""Between two families: importing one holds the loop for some milliseconds."""


class Apis(Mapping[int, Api]):
    """API key to its handler."""

    def __init__(self) -> None:
        self._family_of = {int(key): family for family, keys in FAMILIES.items() for key in keys}
        assert len(self._family_of) == sum(map(len, FAMILIES.values())), "two families answer one key"
        assert self._family_of.keys() <= TABLE.keys(), "an API asks nothing of its caller"
        self._loaded: dict[int, Api] = {}

    def __getitem__(self, key: int) -> Api:
        api = self._loaded.get(key)
        if api is None:
            self.load(self._family_of[key])
            api = self._loaded[key]
        return api

    def __iter__(self) -> Iterator[int]:
        return iter(self._family_of)

    def __len__(self) -> int:
        return len(self._family_of)

    async def load_all(self) -> None:
        """Import the remaining families, one at a time, so that no request has to wait for an import."""
        for family in FAMILIES:
            self.load(family)
            await asyncio.sleep(LOAD_PAUSE_S)

    def load(self, family: str) -> None:
        table: ApiTable = import_module(f"app.handlers.apis.{family}").APIS
        assert set(table) == set(FAMILIES[family]), family
        for key, api in table.items():
            self._loaded[int(key)] = guarded(key, in_time(api) if key in CHANGES else api)
