"""Pages of a cluster with a broker that accepts connections, and responds to nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from app.client.connection import dial_tcp, open_connection
from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.http.application import create_app
from app.http.console.asking import changed_by, soon
from app.http.gateway import Gateway, HttpSettings
from app.machine.runtime import SystemClock
from tests.support.console_forms import token_in
from tests.support.several import cluster_on

HTML = {"accept": "text/html"}
SILENT = BrokerId(2)
HANGS_S = 120.0
PATIENT_MS = 600_000
"""The client itself waits for so long, so a page that waits for it hangs."""


@asynccontextmanager
async def silent_port() -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for writer in writers:
            writer.close()
        server.close()


class Cluster:
    """Two brokers. The HTTP process reaches the silent port in the place of the second one."""

    def __init__(self, http: httpx.AsyncClient, gateway: Gateway) -> None:
        self.http = http
        self.gateway = gateway

    async def page(self, path: str) -> httpx.Response:
        async with asyncio.timeout(HANGS_S):
            return await self.http.get(path, headers=HTML)


@pytest.fixture
async def silenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("app.http.console.asking.BROKER_S", 3.0)
    monkeypatch.setattr("app.http.console.asking.ANY_S", 60.0)
    monkeypatch.setattr("app.http.gateway.PATIENCE_S", 0.5)
    monkeypatch.setattr("app.client.cluster.open_connection", partial(open_connection, timeout_ms=PATIENT_MS))
    async with cluster_on(tmp_path, 2) as brokers, silent_port() as nobody:
        first, second = brokers
        silent = False

        async def dial(protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
            await dial_tcp(protocol, host, nobody if silent and port == second.port else port)

        monkeypatch.setattr("app.http.gateway.dial_tcp", dial)
        # The silent broker is the first that the HTTP process would ask.
        settings = HttpSettings(bootstrap=tuple(("127.0.0.1", one.port) for one in (second, first)))
        await filled(settings)
        silent = True
        app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as http,
        ):
            yield Cluster(http, app.state.gateway)


async def filled(settings: HttpSettings) -> None:
    """A topic whose partition 1 is led by the silent broker, and groups at both brokers."""
    app = create_app(settings, clock=SystemClock(), rng=random.Random(5))
    async with app.router.lifespan_context(app):
        gateway: Gateway = app.state.gateway
        await gateway.admin.create_topic("t", assignments={0: [1], 1: [2]})
        for name in [f"g{one}" for one in range(16)]:
            await gateway.groups.commit(name, {TopicPartition("t", PartitionIndex(one)): 0 for one in range(2)})


async def test_pages_come_without_the_part_of_a_silent_broker_and_name_it(silenced: Cluster) -> None:
    for path in (
        "/console/topics", "/console/groups", "/console/cost", "/console/topics/t/partitions", "/", "/console/brokers",
        "/console/store", "/console/transactions", "/console/topics/t/groups",
    ):  # fmt: skip
        page = await silenced.page(path)
        assert page.status_code == 200, (path, page.text)
        assert "roker 2 did not respond" in page.text, (path, page.text)
    live = (await silenced.http.get("/console/live")).json()
    assert live["silent"] == [2]
    assert live["summed"] == [1]
    topics = (await silenced.http.get("/console/live/topics")).json()
    assert topics["counters"] == {}, "a part of its partitions would look like a leap"
    timeline = await silenced.page("/console/topics/t?partition=1")
    assert "Broker 2 did not respond" in timeline.text
    assert (await silenced.page("/console/access")).status_code == 200
    assert (await silenced.page("/console/topics/t/settings")).status_code == 200


async def test_messages_of_a_partition_of_a_silent_broker_are_an_error_that_names_it(silenced: Cluster) -> None:
    refused = await silenced.page("/console/topics/t/messages?partition=1")
    assert refused.status_code == 503
    assert "Broker 2 did not respond" in refused.text
    assert (await silenced.page("/console/topics/t/messages?partition=0")).status_code == 200


async def test_a_group_shows_the_lags_that_are_known_or_names_its_silent_coordinator(silenced: Cluster) -> None:
    seen = set()
    for name in [f"g{one}" for one in range(16)]:
        coordinator = await soon(silenced.gateway, partial(silenced.gateway.groups.coordinator_of, name))
        if coordinator in seen:
            continue
        seen.add(coordinator)
        page = await silenced.page(f"/console/groups/{name}")
        assert page.status_code == (503 if coordinator == SILENT else 200), page.text
        assert "Broker 2 did not respond" in page.text
        if coordinator != SILENT:
            assert (await silenced.page(f"/console/groups/{name}/live")).status_code == 503, "a part is no lag"
            assert '<td data-label="Lag" class="n">–</td>' in page.text
            assert '<td data-label="Lag" class="n"><span class="quiet">0</span></td>' in page.text
    assert seen == {1, 2}


async def test_pages_that_ask_any_broker_do_not_wait_for_a_silent_one(silenced: Cluster) -> None:
    for path in ("/console/users", "/console/schemas"):
        page = await silenced.page(path)
        assert page.status_code == 200, (path, page.text)


async def test_quotas_do_not_wait_for_a_silent_broker(silenced: Cluster) -> None:
    page = await silenced.page("/console/quotas")
    assert page.status_code == 200, page.text


async def test_a_reset_names_the_silent_broker_that_it_needs(silenced: Cluster) -> None:
    seen = set()
    token = ""
    for name in [f"g{one}" for one in range(16)]:
        coordinator = await soon(silenced.gateway, partial(silenced.gateway.groups.coordinator_of, name))
        if coordinator in seen:
            continue
        seen.add(coordinator)
        page = await silenced.page(f"/console/groups/{name}/reset?to=latest")
        assert page.status_code == 503, page.text
        assert "Broker 2 did not respond" in page.text
        one = await silenced.page(f"/console/groups/{name}/reset?to=latest&topic=t&partition=0")
        assert one.status_code == (503 if coordinator == SILENT else 200), one.text
        if coordinator != SILENT:
            token = token_in(one.text)
    assert seen == {1, 2}
    for name in [f"g{one}" for one in range(16)]:
        if await silenced.gateway.groups.coordinator_of(name) == SILENT:
            async with asyncio.timeout(HANGS_S):
                sent = await silenced.http.post(
                    f"/console/groups/{name}/reset", data={"form_token": token}, headers=HTML
                )
            assert sent.status_code == 503, sent.text
            assert "Broker 2 did not respond" in sent.text
            break


async def test_a_message_for_a_silent_broker_names_it_and_says_that_the_outcome_is_not_known(silenced: Cluster) -> None:
    token = token_in((await silenced.page("/console/topics/t/produce")).text)

    async def produced(partition: str) -> httpx.Response:
        form = {"form_token": token, "key_kind": "none", "value_kind": "text", "value": "v", "partition": partition}
        async with asyncio.timeout(HANGS_S):
            return await silenced.http.post("/console/topics/t/produce", data=form, headers=HTML)

    refused = await produced("1")
    assert refused.status_code == 503, refused.text
    assert "Broker 2 did not respond" in refused.text
    assert "not known whether the message is stored in partition 1" in refused.text
    assert (await produced("0")).status_code == 303


async def test_a_change_is_said_to_be_unknown_only_if_it_may_have_been_sent(silenced: Cluster) -> None:
    await soon(silenced.gateway, silenced.gateway.admin.describe_brokers)
    with pytest.raises(BrokerUnavailable, match=r"Broker 2 did not respond within 3 s\..* Nothing was sent"):
        await changed_by(silenced.gateway, SILENT, lambda _: asyncio.sleep(HANGS_S), unknown="Not known.")
    with pytest.raises(BrokerUnavailable, match=r"Broker 1 did not respond within 3 s\..* Not known\."):
        await changed_by(silenced.gateway, BrokerId(1), lambda _: asyncio.sleep(HANGS_S), unknown="Not known.")
