from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from html import unescape
from itertools import chain
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from app.client.admin import AdminClient
from app.client.cluster import TopicView
from app.core.turns import Portion
from app.http.console.pages import topics
from app.wire.private import OFFLINE, PartitionTierStatus, TierStatusResponse
from tests.support.waiting import WAIT_S

HTML = {"accept": "text/html"}


async def made(http: httpx.AsyncClient, cluster: str, *names: str, partitions: int = 1) -> None:
    for name in names:
        response = await http.post(f"{cluster}/topics", json={"topic_name": name, "partitions_count": partitions})
        assert response.status_code == 201, response.text


async def timeline_of(http: httpx.AsyncClient, topic: str, partition: int = 0) -> str:
    """The page of a timeline by offset. The broker tells of a new partition a moment after its first records."""
    url = f"/console/topics/{topic}?partition={partition}&by=offset"
    async with asyncio.timeout(WAIT_S):
        while "High watermark" not in (page := (await http.get(url)).text):
            await asyncio.sleep(0.005)
    return page


def named(text: str) -> list[str]:
    return re.findall(r'<a href="/console/topics/[^"/?]+">([^<]+)</a>', text.replace("<wbr>", ""))


async def test_the_list_has_pages_that_together_have_each_topic_once(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.console.pages.topics.TOPICS_A_PAGE", 3)
    wanted = [f"t{index}" for index in range(7)]
    await made(http, cluster, *wanted)
    found: list[str] = []
    url: str | None = "/console/topics"
    pages = 0
    while url is not None:
        text = (await http.get(url)).text
        assert 'class="pager"' in text
        found += named(text)
        pages += 1
        link = re.search(r'rel="next" href="([^"]+)"', text)
        url = link[1].replace("&amp;", "&") if link else None
    assert (found, pages) == (wanted, 3)
    assert 'class="pager"' not in (await http.get("/console/topics?q=t6")).text, "there is one page"


async def test_a_filter_shows_the_topics_with_a_part_of_a_name(http: httpx.AsyncClient, cluster: str) -> None:
    await made(http, cluster, "orders.eu", "orders.us", "flights")
    assert named((await http.get("/console/topics?q=orders")).text) == ["orders.eu", "orders.us"]
    nothing = (await http.get("/console/topics?q=<script>")).text
    assert "&lt;script&gt;" in nothing
    assert "<script>" not in nothing
    assert (await http.get("/console/topics", params={"q": "x" * 1000})).status_code == 400


async def test_a_topic_has_its_timeline_partitions_and_settings(http: httpx.AsyncClient, cluster: str) -> None:
    await made(http, cluster, "flights", partitions=3)
    record = {"partition_id": 1, "value": {"type": "STRING", "data": "x" * 5000}}
    assert (await http.post(f"{cluster}/topics/flights/records", json=record)).status_code == 200
    timeline = await timeline_of(http, "flights", 1)
    assert "/console/topics/flights/messages?partition=1&amp;offset=0" in timeline
    assert "Local disk" in timeline
    empty = (await http.get("/console/topics/flights?partition=0")).text
    assert "Partition 0 has no record yet." in empty
    partitions = (await http.get("/console/topics/flights/partitions")).text
    assert re.findall(r"\?partition=(\d)", partitions) == ["0", "1", "2"]
    assert (await http.put(f"{cluster}/topics/flights/configs/retention.ms", json={"value": "86400000"})).is_success
    settings = (await http.get("/console/topics/flights/settings")).text
    own = settings[: settings.index("As in the cluster")]
    assert "retention.ms" in own
    assert "1 d" in own
    without = r"<span><code>log.retention.hours</code> = <span><code>168</code></span></span>"
    assert re.search(rf'<td data-label="Otherwise"[^>]*>{without}</td>', own)
    assert (await http.put(f"{cluster}/topics/flights/configs/segment.bytes", json={"value": "2097152"})).is_success
    settings = (await http.get("/console/topics/flights/settings")).text
    assert re.search(
        r'"Otherwise"[^>]*><span><code>1073741824</code> <span class="quiet">1.0 GiB</span></span></td>', settings
    )
    assert "segment.bytes" not in own
    assert "segment.bytes" in settings


async def test_the_timeline_of_a_compacted_topic_tells_of_compaction_alone(
    http: httpx.AsyncClient, cluster: str
) -> None:
    for name, policy in (("kept", "compact"), ("both", "compact,delete"), ("old", "delete")):
        configs = [{"name": "cleanup.policy", "value": policy}]
        assert (await http.post(f"{cluster}/topics", json={"topic_name": name, "configs": configs})).is_success
        record = {"key": {"type": "STRING", "data": "k"}, "value": {"type": "STRING", "data": "v"}}
        assert (await http.post(f"{cluster}/topics/{name}/records", json=record)).is_success
        page = await timeline_of(http, name)
        assert ("Compaction has nothing to do" in page) is ("compact" in policy)
        assert ("Retention takes nothing yet" in page) is ("delete" in policy)


async def test_a_page_of_a_topic_that_there_is_not_is_404(http: httpx.AsyncClient, cluster: str) -> None:
    await made(http, cluster, "flights")
    for end in (
        "",
        "/messages",
        "/partitions",
        "/settings",
        "/partitions/0/messages/0",
        "/partitions/0/messages/0/value",
    ):
        response = await http.get(f"/console/topics/none{end}")
        assert response.status_code == 404, end
    assert (await http.get("/console/topics/flights?partition=1")).status_code == 404
    assert (await http.get("/console/topics/flights?partition=x")).status_code == 400
    assert (await http.get("/console/topics/flights/messages?partition=1")).status_code == 404
    assert (await http.get("/console/topics/flights/partitions/0/messages/0")).status_code == 404


async def test_the_script_of_the_list_gets_the_records_of_each_topic_of_its_page(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.console.pages.topics.TOPICS_A_PAGE", 2)
    await made(http, cluster, "__proto__", "a", "b.c", "d", partitions=2)
    for index in (0, 1, 1):
        record = {"partition_id": index, "value": {"data": 1}}
        assert (await http.post(f"{cluster}/topics/b.c/records", json=record)).is_success
    text = (await http.get("/console/topics?after=a")).text
    link = re.search(r'data-live="([^"]+)"', text)
    assert link is not None
    assert 'data-rate="b.c"' in text
    assert (await http.get(unescape(link[1]))).json()["counters"] == {"b.c": 3, "d": 0}
    assert (await http.get("/console/live/topics?q=a")).json()["counters"] == {"a": 0}
    assert (await http.get("/console/live/topics", params={"q": "x" * 301})).status_code == 400
    monkeypatch.setattr("app.http.console.pages.topics.PARTITIONS_SUMMED_MAX", 1)
    assert (await http.get("/console/live/topics")).json()["counters"] is None
    assert "data-live" not in (await http.get("/console/topics")).text


def moved(one: PartitionTierStatus) -> list[PartitionTierStatus]:
    return []


def offline(one: PartitionTierStatus) -> list[PartitionTierStatus]:
    return [replace(one, state=OFFLINE, leader=-1, high_watermark=0)]


def led_twice(one: PartitionTierStatus) -> list[PartitionTierStatus]:
    return [one, replace(one, high_watermark=1)]


@pytest.mark.parametrize(
    ("changed", "counters"),
    [(moved, {"a": 0}), (offline, {"a": 0}), (led_twice, {"a": 0, "b": 3})],
)
async def test_the_script_of_the_list_gets_no_topic_of_which_a_part_is_missing_and_no_partition_twice(
    http: httpx.AsyncClient,
    cluster: str,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[PartitionTierStatus], list[PartitionTierStatus]],
    counters: dict[str, int],
) -> None:
    ask = AdminClient.tier_status_by

    async def told(self: AdminClient, *given: Any) -> TierStatusResponse:
        found = await ask(self, *given)
        parts = [changed(one) if (one.topic, one.partition) == ("b", 1) else [one] for one in found.partitions]
        return replace(found, partitions=[*chain(*parts)])

    await made(http, cluster, "a", "b", partitions=2)
    for index in (0, 1, 1):
        record = {"partition_id": index, "value": {"data": 1}}
        assert (await http.post(f"{cluster}/topics/b/records", json=record)).is_success
    assert (await http.get("/console/live/topics")).json()["counters"] == {"a": 0, "b": 3}
    monkeypatch.setattr(AdminClient, "tier_status_by", told)
    assert (await http.get("/console/live/topics")).json()["counters"] == counters


async def test_the_list_rests_between_its_rows(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[str] = []
    state_of = topics.state_of

    async def rest_if_spent(_: Portion) -> None:
        rests.append("rest")

    def noted(topic: TopicView) -> str:
        rests.append("row")
        return state_of(topic)

    await made(http, cluster, "a", "b", "c")
    monkeypatch.setattr(Portion, "rest_if_spent", rest_if_spent)
    monkeypatch.setattr(topics, "state_of", noted)
    assert (await http.get("/console/topics")).status_code == 200
    begin = rests.index("row")
    assert rests[begin : begin + 6] == ["row", "rest"] * 3
