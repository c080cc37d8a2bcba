"""A broker with quotas, and one that starts again: clients wait, other clients do not, and without limits nothing is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.handlers.policy.client_quotas import ClientQuotas
from app.metadata.changes.quotas import QuotaOperation, alter_quotas
from app.metadata.image.records import SECURITY_LEVEL, QuotaEntity
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from tests.faults.producing import link
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import unfenced
from tests.support.waiting import until

ALL, ONE_PROGRAM = QuotaEntity("ANONYMOUS", None, None), QuotaEntity("ANONYMOUS", "test", None)
VALUE = b"x" * 50_000
HELLO = ApiVersionsRequest("test", "1")


@asynccontextmanager
async def serving(path: Path, seed: int = 7) -> AsyncIterator[RunningBroker]:
    async with running_broker(path, seed=seed, new_level=SECURITY_LEVEL) as broker:
        await until(lambda: unfenced(broker) == [1])
        yield broker


async def limit(broker: RunningBroker, entity: QuotaEntity, **limits: float | None) -> None:
    operations = [QuotaOperation(key, value) for key, value in limits.items()]
    await broker.node.membership.controller.submit(
        lambda draft, around: alter_quotas(draft, around, entity, operations)
    )


async def produced(broker: RunningBroker) -> int:
    """The throttle time that a producer is told; it leaves then."""
    async with talk(broker.port) as client:
        answer = await client.produce(9, [("t", [(0, batch(1, value=VALUE))])])
        assert answer.responses[0].partition_responses[0].error_code == 0
        return int(answer.throttle_time_ms)


async def test_limits_count_from_their_entry_on_and_outlive_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_topic("t")
        assert broker.node.context.quotas is None
        assert await produced(broker) == 0
        await limit(broker, ONE_PROGRAM, producer_byte_rate=100.0)
        assert 490_000 < await produced(broker) < 510_000
        await limit(broker, ONE_PROGRAM, producer_byte_rate=None)
        assert broker.node.context.quotas is None
        await limit(broker, ALL, producer_byte_rate=1000.0)
    async with serving(tmp_path, 8) as broker:
        assert 40_000 < await produced(broker) < 60_000


async def test_changed_limits_reach_requests_that_are_alike(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_topic("t")
        for _ in range(3):  # from the second on it is known what they are like
            assert await produced(broker) == 0
        await limit(broker, ALL, producer_byte_rate=1e9, request_percentage=1e4)
        for _ in range(3):
            assert await produced(broker) == 0
        await limit(broker, ALL, producer_byte_rate=100.0)
        assert 490_000 < await produced(broker) < 510_000
        await limit(broker, ONE_PROGRAM, producer_byte_rate=1e9)
        assert await produced(broker) == 0, "a closer limit"
        await limit(broker, ONE_PROGRAM, producer_byte_rate=None)
        assert 990_000 < await produced(broker) < 1_010_000
        await limit(broker, ALL, producer_byte_rate=None, request_percentage=None)
        assert broker.node.context.quotas is None
        assert await produced(broker) == 0
        await limit(broker, ALL, producer_byte_rate=100.0)
        assert await produced(broker) > 1_400_000, "a debt is not forgiven"


async def test_a_consumer_gets_a_share_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        await broker.create_topic("t")
        for _ in range(4):
            await produced(broker)
        await limit(broker, QuotaEntity(None, "fault", None), consumer_byte_rate=60_000.0)
        async with link(broker.port) as client:
            first = await client.fetch("t", 0, 0)
            assert 50_000 < len(first.records) < 60_000, "as much as a sample allows, and a batch at least"
        quotas = broker.node.context.quotas
        assert quotas is not None
        assert quotas.fetch_bytes_max(broker.node.context.doorkeeper.admit("", "", 0), "other") is None


@pytest.mark.parametrize("limited", [False, True])
async def test_a_connection_too_many_is_closed_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, limited: bool
) -> None:
    async with serving(tmp_path) as broker:
        await limit(broker, QuotaEntity(None, None, "127.0.0.1" if limited else "::1"), connection_creation_rate=2.0)
        quotas = broker.node.context.quotas
        assert isinstance(quotas, ClientQuotas)
        monkeypatch.setattr(quotas, "now_s", lambda: 1000.0)  # the bucket does not fill while a slow machine connects

        async def served() -> bool:
            try:
                async with talk(broker.port) as client:
                    return (await client.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
            except (ConnectionError, asyncio.IncompleteReadError):
                return False

        assert [await served() for _ in range(3)] == [True, True, not limited]
        if limited:
            assert any("opens more connections a second" in line for line in broker.lines)
