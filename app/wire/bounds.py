"""How long a request may be, by API (INV-15, ADR 0039).

A request is bounded by its cost, not only by its bytes. ``tests/support/walked_apis.py`` states how large a request of each API
must be served in any case, and the test that walks all APIs sends requests of this size. A request beyond its bounds ends the
connection, as any other request that cannot be read.

Tests: ``tests/handlers/test_long_requests.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.core.limits import MIB, REQUEST_ELEMENTS_MAX
from app.wire.apikeys import ApiKey

BYTES_MAX: Final = 8 * MIB
"""Longest request but of Produce. A commit of 10,000 offsets with long names has 3 MiB."""

_FEW: Final = 2_000
"""Elements of requests about the cluster as a whole: settings, features, the quorum, quotas of entities."""
_LISTED: Final = 12_000
"""Elements of requests that change many things at once, or look at many."""

ELEMENTS: Final[Mapping[int, int]] = {
    ApiKey.FETCH: 25_000,
    ApiKey.PRODUCE: 10_000,
    ApiKey.JOIN_GROUP: 1_000,
    ApiKey.SYNC_GROUP: 20_000,
    ApiKey.LEAVE_GROUP: 6_000,
    ApiKey.LIST_GROUPS: 1_000,
    ApiKey.LIST_TRANSACTIONS: 10_000,
    ApiKey.DESCRIBE_QUORUM: _FEW,
    ApiKey.UPDATE_FEATURES: _FEW,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _FEW,
    ApiKey.ALTER_CLIENT_QUOTAS: _LISTED,
    ApiKey.CREATE_ACLS: 10_000,
    ApiKey.DELETE_ACLS: 10_000,
    ApiKey.CREATE_DELEGATION_TOKEN: _FEW,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _FEW,
    ApiKey.BROKER_HEARTBEAT: _FEW,
    ApiKey.LIST_CONFIG_RESOURCES: 1_000,
    ApiKey.SHARE_GROUP_HEARTBEAT: _LISTED,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 25_000,
}
"""Array elements of a request, nested ones included; of all other APIs ``REQUEST_ELEMENTS_MAX``."""


def elements_max(key: int) -> int:
    """Array elements that a request of an API may have."""
    return ELEMENTS.get(key, REQUEST_ELEMENTS_MAX)
