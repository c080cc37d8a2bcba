"""Pages of transactions over a real broker."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.client.security import SecureDialer, client_security
from app.client.transactional_batches import write_batches
from app.client.transactions import (
    ListedTransaction,
    Transaction,
    begin_transaction,
    described_transactions,
    end_transaction,
)
from app.core.units import PartitionIndex, TimestampMs, TopicPartition
from app.http.console.pages import transactions
from app.http.gateway import Gateway
from app.machine.runtime import SystemClock
from app.security.acls import Operation, ResourceType
from tests.http.secured import secured
from tests.support.waiting import until

PARTITION = TopicPartition("t", PartitionIndex(0))


async def opened(application: FastAPI, name: str, records: int = 3) -> Transaction:
    """A transaction with records in ``PARTITION``, which began in a later millisecond than the one before it."""
    now_ms = SystemClock().now_ms()
    await until(lambda: SystemClock().now_ms() > now_ms)
    gateway: Gateway = application.state.gateway
    transaction = await begin_transaction(gateway.cluster, name, timeout_ms=60_000)
    rows = [(TimestampMs(1), None, b"open", ()) for _ in range(records)]
    await write_batches(gateway.cluster, transaction, {PARTITION: rows})
    return transaction


async def made(http: httpx.AsyncClient, cluster: str) -> None:
    response = await http.post(f"{cluster}/topics", json={"topic_name": "t", "partitions_count": 1})
    assert response.status_code == 201, response.text


def named(text: str) -> list[str]:
    return re.findall(r'<a href="/console/transactions/([^"?]+)">', text)


async def test_open_transactions_are_listed_the_longest_first_until_they_end(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = (await http.get("/console/transactions")).text
    assert "No transaction is open that you may see." in empty
    await made(http, cluster)
    first = await opened(application, "z-first")
    await opened(application, "m<second>")
    await opened(application, "a-third")
    assert named((await http.get("/console/transactions")).text) == ["z-first", "m%3Csecond%3E", "a-third"]
    monkeypatch.setattr("app.http.console.pages.transactions.TRANSACTIONS_A_PAGE", 2)
    page = (await http.get("/console/transactions")).text
    assert named(page) == ["z-first", "m%3Csecond%3E"]
    assert "m&lt;second&gt;" in page
    assert named((await http.get("/console/transactions?from=2")).text) == ["a-third"]
    gateway: Gateway = application.state.gateway
    await end_transaction(gateway.cluster, first, commit=True)
    assert "z-first" not in (await http.get("/console/transactions")).text


async def test_of_more_transactions_than_are_described_the_page_says_so(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(http, cluster)
    for name in ("a", "b", "c"):
        await opened(application, name)
    monkeypatch.setattr("app.http.console.pages.transactions.DESCRIBED_MAX", 2)
    text = (await http.get("/console/transactions")).text
    assert 'Open transactions <span class="quiet">3</span>' in text
    assert len(named(text)) == 2
    assert "The ages of the oldest alone were asked for." in text


async def test_of_more_transactions_the_oldest_are_described_though_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ages_ms = {"a": 1, "b": 20_000, "c": 1, "d": 90_000_000, "e": 1}
    described: list[str] = []

    async def listed_by_age(connection: object, *, older_ms: int = -1) -> list[ListedTransaction]:
        return [ListedTransaction(name, "Ongoing") for name, age_ms in ages_ms.items() if age_ms > older_ms]

    async def describe(connection: object, names: Sequence[str]) -> list[object]:
        described.extend(names)
        return []

    monkeypatch.setattr(transactions, "DESCRIBED_MAX", 3)
    monkeypatch.setattr(transactions, "transactions_at", listed_by_age)
    monkeypatch.setattr(transactions, "described_transactions", describe)
    told = await transactions.open_at(cast(KafkaConnection, None))
    assert told.all_count == 5
    assert described == ["d", "b", "a"]


async def test_a_list_of_transactions_keeps_the_count_of_their_partitions_alone(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await made(http, cluster)
    await opened(application, "a")
    gateway: Gateway = application.state.gateway
    connection = await gateway.cluster.any_broker()
    (found,) = await described_transactions(connection, ["a", "none"])
    assert (found.transactional_id, found.partition_count) == ("a", 1)
    assert not any(isinstance(one, tuple) for one in found)
    assert '<td data-label="Partitions" class="n">1</td>' in (await http.get("/console/transactions")).text


async def test_a_transaction_shows_the_records_that_it_holds_back_and_the_command_that_aborts_it(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await made(http, cluster)
    assert (await http.post(f"{cluster}/topics/t/records", json={"value": {"data": 1}})).is_success
    await opened(application, "pay/ments", records=4)
    page = await http.get("/console/transactions/pay%2Fments")
    assert page.status_code == 200, page.text
    assert "<dd>Ongoing</dd>" in page.text
    assert "/console/topics/t/messages?partition=0&amp;offset=1" in page.text
    assert '<td data-label="Records held back" class="n">4</td>' in page.text
    assert "abort --topic t --partition 0 --start-offset 1" in page.text
    assert (await http.get("/console/transactions/none")).status_code == 404


async def test_producers_of_a_partition_are_shown_with_their_open_transactions(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await made(http, cluster)
    none = await http.get("/console/topics/t/partitions/0/producers")
    assert "No producer is known" in none.text
    transaction = await opened(application, "settlement")
    page = (await http.get("/console/topics/t/partitions/0/producers")).text
    assert f'<td data-label="Producer" class="n">{transaction.producer_id}</td>' in page
    assert "open since offset 0" in page
    for place in ("1", "x", "9" * 30):
        assert (await http.get(f"/console/topics/t/partitions/{place}/producers")).status_code == 404
    partitions = (await http.get("/console/topics/t/partitions")).text
    assert "/console/topics/t/partitions/0/producers" in partitions


async def test_a_caller_sees_its_own_transactions_alone(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave")
        await http.allow(
            "carol",
            (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "hers"),
            (Operation.WRITE, ResourceType.TOPIC, "t"),
            (Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster"),
        )
        assert (
            await http.ask("carol", f"{http.cluster}/topics", "POST", json={"topic_name": "t", "partitions_count": 1})
        ).status_code == 201
        dial = SecureDialer(
            client_security(
                {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "carol",
                    "sasl.password": "carol-secret",
                }
            )
        )
        async with ClusterClient((("127.0.0.1", http.port),), rng=random.Random(1), dial=dial) as own:
            transaction = await begin_transaction(own, "hers", timeout_ms=60_000)
            await write_batches(own, transaction, {PARTITION: [(TimestampMs(1), None, b"x", ())]})
        assert named((await http.ask("carol", "/console/transactions")).text) == ["hers"]
        # She may write to the topic and not read it.
        shown = await http.ask("carol", "/console/transactions/hers")
        assert shown.status_code == 200
        assert '<td data-label="First record" class="n">–</td>' in shown.text
        assert named((await http.ask("dave", "/console/transactions")).text) == []
        assert (await http.ask("dave", "/console/transactions/hers")).status_code == 403
        assert (await http.ask("dave", "/console/topics/t/partitions/0/producers")).status_code == 403
