"""Pages of a cluster with a broker that has stopped: it is fenced, and its partitions have no leader."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from app.core.units import PartitionIndex, TopicPartition
from app.http.application import create_app
from app.http.gateway import Gateway, HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until

HTML = {"accept": "text/html"}
RECORDS = 3


async def filled(gateway: Gateway, http: httpx.AsyncClient) -> None:
    """A topic with records in a partition of each broker, one of broker 1 alone, and a group that has read none."""
    await gateway.admin.create_topic("t", assignments={0: [1], 1: [2]})
    await gateway.admin.create_topic("whole", assignments={0: [1]})
    cluster = f"/v3/clusters/{await gateway.cluster_id()}"
    for index in range(2):
        for _ in range(RECORDS):
            record = {"partition_id": index, "value": {"data": 1}}
            assert (await http.post(f"{cluster}/topics/t/records", json=record)).is_success
    await gateway.groups.commit("g", {TopicPartition("t", PartitionIndex(one)): 0 for one in range(2)})


def _alive(broker: RunningBroker, ids: list[int]) -> bool:
    return unfenced(broker) == ids


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of broker 1, after broker 2 has stopped."""
    async with member(tmp_path, 1) as first:
        app = create_app(
            HttpSettings(bootstrap=(("127.0.0.1", first.port),)), clock=SystemClock(), rng=random.Random(3)
        )
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client,
        ):
            async with member(tmp_path, 2) as second:
                for broker in (first, second):
                    await until(partial(_alive, broker, [1, 2]))
                await filled(app.state.gateway, client)
                assert (await client.get("/console/live/topics")).json()["counters"] == {"t": 2 * RECORDS, "whole": 0}
            await until(partial(_alive, first, [1]))
            yield client


async def test_the_settings_of_a_fenced_broker_have_no_link(http: httpx.AsyncClient) -> None:
    for path in ("/", "/console/brokers"):
        page = (await http.get(path, headers=HTML)).text
        assert '<span class="tag hurts">fenced</span>' in page, path
        links = re.findall(r'href="(/console/brokers/[^"]+)"', page)
        assert links == ["/console/brokers/1"], path
        assert (await http.get(links[0], headers=HTML)).status_code == 200
    refused = await http.get("/console/brokers/2", headers=HTML)
    assert refused.status_code == 404
    assert "Broker 2 is fenced or does not exist." in refused.text


async def test_numbers_that_move_leave_out_sums_without_a_partition_that_has_no_leader(http: httpx.AsyncClient) -> None:
    assert (await http.get("/console/live/topics")).json()["counters"] == {"whole": 0}
    assert (await http.get("/console/groups/g/live")).status_code == 503, "a part is no lag"
    page = (await http.get("/console/groups/g", headers=HTML)).text
    assert 'data-gauge="lag">–</p>' in page
    assert '<td data-label="Lag" class="n">–</td>' in page


async def test_bytes_without_those_of_a_partition_that_has_no_leader_are_not_summed(http: httpx.AsyncClient) -> None:
    rows = (await http.get("/console/topics", headers=HTML)).text.split("<tr data-row>")[1:]
    bucket = [re.search(r'"Bucket" class="n">(.*?)</td>', row) for row in rows]
    assert [one and one[1] for one in bucket] == ["–", '<span class="quiet">0</span>'], "of t and of whole"
    first = (await http.get("/", headers=HTML)).text
    assert "a part has no leader" in first
    assert "What partitions without a leader hold is not known." in first


async def test_the_timeline_of_a_partition_without_a_leader_says_which_broker_brings_it_back(
    http: httpx.AsyncClient,
) -> None:
    parts = (await http.get("/console/topics/t/partitions", headers=HTML)).text.split("<tr data-row>")[1:]
    (lost,) = [index for index, row in enumerate(parts) if '<span class="tag hurts">none</span>' in row]
    for index, sentence in ((lost, "It comes back with broker 2."), (1 - lost, "Log start")):
        page = (await http.get(f"/console/topics/t?partition={index}", headers=HTML)).text
        assert sentence in page
        assert "<dt>Records</dt>" not in page, "they would be those of one part"
