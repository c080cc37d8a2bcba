"""What quotas are tested with: quotas that note what they are told, and the model of the place that gives out tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.client.connection import open_connection
from app.configs import BrokerConfig
from app.handlers.policy.callers import UNKNOWN, Caller, Remembers
from app.handlers.policy.client_quotas import PRODUCE, ClientQuotas
from app.handlers.policy.quota_leases import Ask
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)


def limit_client(bootstrap: str, client_id: str, **limits: float) -> None:
    """Set quotas of a client id, by the first of some addresses."""
    entry = AlterClientQuotasRequestEntryData(
        [EntityData("client-id", client_id)], [OpData(key, rate) for key, rate in limits.items()]
    )

    async def ask() -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        connection = await open_connection(host, int(port))
        answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest([entry]))
        await connection.close()
        assert [one.error_code for one in answer.entries] == [0]

    asyncio.run(ask())


class NotedQuotas(ClientQuotas):
    """Note what clients are charged. Without limits until it follows some; its time stands still unless it is given one."""

    def __init__(self, now_s: Callable[[], float] = lambda: 1000.0) -> None:
        super().__init__(BrokerConfig(node_id=1), now_s)
        self.charged: list[tuple[int, int]] = []
        """(API key, bytes) in order."""

    def charge(self, caller: Caller, client_id: str | None, api_key: int, size_bytes: int) -> int:
        self.charged.append((api_key, size_bytes))
        return super().charge(caller, client_id, api_key, size_bytes)

    def produced(self, caller: Caller, client_id: str | None, size_bytes: int) -> int:
        self.charged.append((PRODUCE, size_bytes))
        return super().produced(caller, client_id, size_bytes)

    def produced_alike(self, caller: Caller, kind: Remembers, size_bytes: int) -> int:
        self.charged.append((PRODUCE, size_bytes))
        wait_ms = super().produced_alike(caller, kind, size_bytes)
        kind.shares = UNKNOWN  # so that the next request is told, too
        return wait_ms


class CentralBucket:
    """What the place that gives out tokens does with each share; the script in Redis does the same."""

    __slots__ = ("at_s", "tokens")

    def __init__(self, now_s: float) -> None:
        self.tokens = 0.0  # whoever comes back after a loss gets nothing twice
        self.at_s = now_s

    def lease(self, ask: Ask, now_s: float) -> float:
        """Returns: what the broker gets."""
        passed_s = max(0.0, now_s - self.at_s)
        tokens = min(ask.capacity, self.tokens + passed_s * ask.rate)
        got = min(max(0.0, ask.tokens), tokens)
        self.tokens, self.at_s = tokens - got, now_s
        return got
