"""Lags and costs in the list of topics, and the tab of a topic's groups."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.client.admin import AdminClient
from app.client.groups import GroupClient, ShareProgress
from app.core.errors import BrokerUnavailable
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.cost.measured import OTHERS, MeasuredBill, Spent, TopicBill
from app.http.asked_once import AskedOnce
from app.http.console.pages import topic_totals
from app.http.console.pages.overview import Numbers
from app.http.console.pages.topic_totals import Measured
from app.http.gateway import Gateway
from app.metadata.image.records import LEVEL_MAX
from app.security.acls import CLUSTER_NAME, Operation, ResourceType
from app.wire.private import GroupOnTopic, TierStatusResponse, TopicLag, TopicLagsResponse
from tests.http.secured import secured
from tests.support.broker import RunningBroker, running_broker
from tests.support.console import served_by


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=LEVEL_MAX) as running:
        yield running


async def written(http: httpx.AsyncClient, cluster: str, topic: str, *counts: int) -> None:
    made = await http.post(f"{cluster}/topics", json={"topic_name": topic, "partitions_count": len(counts)})
    assert made.is_success, made.text
    for partition, count in enumerate(counts):
        for value in range(count):
            record = {"partition_id": partition, "value": {"data": value}}
            assert (await http.post(f"{cluster}/topics/{topic}/records", json=record)).is_success


async def committed(application: FastAPI, group: str, topic: str, *offsets: int) -> None:
    gateway: Gateway = application.state.gateway
    places = {TopicPartition(topic, PartitionIndex(index)): offset for index, offset in enumerate(offsets)}
    await gateway.groups.commit(group, places)


def cells(text: str, label: str) -> list[str]:
    found = re.findall(rf'data-label="{re.escape(label)}"[^>]*>(.*?)</td>', text, re.S)
    return [" ".join(unescape(re.sub("<[^>]+>", " ", one)).split()) for one in found]


def headings(text: str) -> list[str]:
    return [re.sub("<[^>]+>", "", one) for one in re.findall("<th[^>]*>(.*?)</th>", text)]


async def test_the_list_has_the_lag_of_all_groups_and_the_greatest(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await written(http, cluster, "a", 5, 4)
    await written(http, cluster, "b", 2)
    await written(http, cluster, "c", 1)
    await committed(application, "far", "a", 1, 0)
    await committed(application, "near", "a", 5, 3)
    await committed(application, "near", "b", 2)
    text = (await http.get("/console/topics")).text
    assert cells(text, "Lag") == ["9 most 8", "0", "no group"]
    assert 'href="/console/topics/a/groups" title="2 groups, far is furthest behind"' in text
    link = re.search(r'data-live="([^"]+)"', text)
    assert link is not None
    live = (await http.get(unescape(link[1]))).json()["gauges"]
    assert live == {"lag a": 9, "most a": 8, "lag b": 0, "most b": 0, "lag c": 0, "most c": 0}
    assert set(live) >= {unescape(one) for one in re.findall(r'data-gauge="([^"]+)"', text)}


@pytest.mark.parametrize(
    "told", [BrokerUnavailable("away"), TopicLagsResponse([TopicLag("a", 1, 4, 4, "far")], whole=False)]
)
async def test_no_lag_is_shown_that_lacks_groups(
    http: httpx.AsyncClient,
    cluster: str,
    application: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
    told: BrokerUnavailable | TopicLagsResponse,
) -> None:
    await written(http, cluster, "a", 5)
    await committed(application, "far", "a", 1)

    async def ask(*_: Any, **__: Any) -> TopicLagsResponse:
        if isinstance(told, BrokerUnavailable):
            raise told
        return told

    monkeypatch.setattr(GroupClient, "topic_lags_at", ask)
    text = (await http.get("/console/topics?col=records&col=lag")).text
    assert cells(text, "Lag") == ["–"]
    assert cells(text, "Records") == ["5"], "a broker told them"
    assert ("did not respond in time" in text) == isinstance(told, BrokerUnavailable)
    assert (await http.get("/console/live/topics")).json()["gauges"] == {}
    tab = (await http.get("/console/topics/a/groups")).text
    assert ("Some groups may be missing here" in tab) != isinstance(told, BrokerUnavailable)


async def test_a_broker_of_an_older_release_is_not_asked(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.client.groups.APPEND_LEVEL", 10_000)
    await written(http, cluster, "a", 1)
    assert cells((await http.get("/console/topics")).text, "Lag") == ["–"]


async def test_the_tab_names_a_level_that_is_too_low(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=0) as low, served_by(low) as http:
        await low.create_topic("a")
        text = (await http.get("/console/topics/a/groups")).text
    assert "or the cluster is at level 0 of <code>firn.version</code>" in text


async def test_the_answers_of_several_coordinators_are_one(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(http, cluster, "a", 5)
    answers = {
        1: TopicLagsResponse([TopicLag("a", 2, 7, 6, "x")], [row("b"), row("d")], 1, 4),
        2: TopicLagsResponse([TopicLag("a", 1, 4, 4, "y")], [row("a"), row("c")], 0, 2),
    }
    gateway: Gateway = application.state.gateway
    (topic,) = (await gateway.admin.describe_topics(["a"])).values()

    class Told:
        silent: list[int] = []  # noqa: RUF012
        answers: dict[int, TopicLagsResponse] = {}  # noqa: RUF012

    Told.answers = answers

    async def side_by_side(*_: Any) -> type[Told]:
        return Told

    monkeypatch.setattr(topic_totals, "side_by_side", side_by_side)
    found = await topic_totals.lags_of(gateway, [topic], {}, limit=3)
    assert found.topics == {"a": TopicLag("a", 3, 11, 6, "x")}
    assert [one.group_id for one in found.groups] == ["a", "b", "c"]
    assert (found.before, found.fitting, found.whole) == (1, 6, True)


def row(name: str) -> GroupOnTopic:
    return GroupOnTopic(name, "classic", "Empty", 0, False, 1, 0, [(0, 5)])


async def test_a_topic_has_its_groups_with_their_lag_by_partition(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(http, cluster, "a", 5, 4)
    empty = (await http.get("/console/topics/a/groups")).text
    assert "No group that you may see has a commit or a member here." in empty
    await committed(application, "team/<b>", "a", 1, 4)
    await committed(application, "other", "a", 5)
    text = (await http.get("/console/topics/a/groups")).text
    assert cells(text, "Group") == ["other", "team/<b>"]
    assert cells(text, "Lag") == ["0", "4"]
    assert cells(text, "Lag by partition") == ["0 0", "0 4 1 0"]
    assert cells(text, "State") == ["Empty", "Empty"]
    assert 'href="/console/groups/team%2F%3Cb%3E#a-1" aria-label="Partition 1: 0 records behind"' in text
    assert 'id="a-1"' in (await http.get("/console/groups/team%2F%3Cb%3E")).text
    assert "Furthest behind</dt><dd>4" in text
    monkeypatch.setattr("app.http.console.pages.topic_groups.GROUPS_A_PAGE", 1)
    first = (await http.get("/console/topics/a/groups")).text
    assert "1–1 of 2" in first
    link = re.search(r'rel="next" href="([^"]+)"', first)
    assert link is not None
    second = (await http.get(unescape(link[1]))).text
    assert cells(second, "Group") == ["team/<b>"]
    assert 'rel="next"' not in second
    assert (await http.get("/console/topics/a/groups", params={"after": "x" * 301})).status_code == 400


async def test_a_share_group_has_the_lag_that_its_coordinator_tells(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(http, cluster, "a", 5)
    await committed(application, "sharing", "a", 0)  # its coordinator is there from now on
    shared = GroupOnTopic("sharing", "share", "Stable", 1, True, 0, 0, [])

    async def ask(*_: Any, **__: Any) -> TopicLagsResponse:
        return TopicLagsResponse([TopicLag("a", 0, 0)], [shared], 0, 1)

    async def progress(*_: Any) -> dict[TopicPartition, ShareProgress]:
        return {
            TopicPartition("a", PartitionIndex(0)): ShareProgress(Offset(2), 3),
            TopicPartition("z", PartitionIndex(0)): ShareProgress(Offset(2), 9),
        }

    monkeypatch.setattr(GroupClient, "topic_lags_at", ask)
    monkeypatch.setattr(GroupClient, "share_progress", progress)
    text = (await http.get("/console/topics/a/groups")).text
    assert (cells(text, "Lag"), cells(text, "Lag by partition")) == (["3"], ["0 3"])


async def test_the_list_has_the_columns_that_its_reader_chooses(http: httpx.AsyncClient, cluster: str) -> None:
    for name in ("a", "b"):
        await written(http, cluster, name, 1)
    text = (await http.get("/console/topics?col=records&col=nonsense")).text
    assert headings(text) == ["Topic", "Records"]
    assert re.findall(r'name="col" value="(\w+)" checked', text) == ["records"]
    assert "data-live" not in text, "no number of these columns moves"
    assert "Lag" in headings((await http.get("/console/topics?col=nonsense")).text)


async def test_the_next_page_has_the_same_columns(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.console.pages.topics.TOPICS_A_PAGE", 1)
    for name in ("a", "b"):
        await written(http, cluster, name, 1)
    text = (await http.get("/console/topics?col=records&internal=1")).text
    link = re.search(r'rel="next" href="([^"]+)"', text)
    assert link is not None
    following = await http.get(unescape(link[1]))
    assert headings(following.text) == ["Topic", "Records"]
    assert str(following.url).endswith("?internal=1&after=a&col=records")


def bill(**dollars: float) -> Numbers:
    topics = tuple(TopicBill(name, value, {}) for name, value in dollars.items())
    return Numbers(bill=MeasuredBill(60.0, 1, (), topics, {}))


def test_a_topic_costs_what_the_page_of_the_cost_says() -> None:
    assert [Measured(bill(a=2.5)).dollars_of(name) for name in "ab"] == [2.5, 0.0]
    summed = bill(a=2.5, **{OTHERS: 1.0})
    assert [Measured(summed).dollars_of(name) for name in "ab"] == [2.5, None], "b may be one of the others"
    assert Measured(Numbers()).dollars_of("a") is None, "no broker has counted for long enough"
    partly = bill(a=2.5)
    partly.silent.append(2)
    assert Measured(partly).dollars_of("a") is None, "a broker did not tell its part"


async def test_the_cost_is_shown_to_those_who_may_describe_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def numbers(*_: Any) -> Numbers:
        return bill(t=1234.5)

    monkeypatch.setattr(topic_totals, "numbers_of", numbers)
    async with secured(tmp_path) as http:
        http.app.state.console.measured = AskedOnce(keeps=True, kept_s=600.0)
        await http.broker.create_topic("t")
        await http.add_user("one", "none")
        await http.allow("one", (Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME))
        for user in ("one", "none"):
            await http.allow(user, (Operation.DESCRIBE, ResourceType.TOPIC, "t"))
        assert cells((await http.ask("one", "/console/topics")).text, "$ a month") == ["1,234.50"]
        assert (await http.ask("none", "/console/topics?sort=cost")).status_code == 403
        hidden = (await http.ask("none", "/console/topics")).text
        assert re.findall(r"sort=(\w+)", hidden) == ["lag"], "which needs no right on the cluster"
        assert (await http.ask("none", "/console/topics?sort=lag")).status_code == 200
        assert "/console/topics/t" in hidden
        assert "a month" not in hidden


async def test_the_timeline_has_the_groups_at_their_offsets_in_its_partition(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await written(http, cluster, "a", 5, 4)
    await committed(application, "team/<b>", "a", 2, 4)
    await committed(application, "first", "a", 5)
    text = (await http.get("/console/topics/a?partition=0&by=offset")).text
    assert "<title>team/&lt;b&gt;: offset 2, 3 records behind</title>" in text
    assert "<title>first: offset 5, 0 records behind</title>" in text
    assert 'href="/console/groups/team%2F%3Cb%3E#a-0"' in text
    other = (await http.get("/console/topics/a?partition=1&by=offset")).text
    assert "<title>team/&lt;b&gt;: offset 4, 0 records behind</title>" in other
    assert "<title>first" not in other


async def test_a_broker_that_is_away_is_not_asked_for_lags(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(http, cluster, "a", 5)
    asked = []

    async def silent(*_: Any, **__: Any) -> TierStatusResponse:
        raise BrokerUnavailable("away")

    async def ask(*_: Any, **__: Any) -> TopicLagsResponse:
        asked.append(1)
        return TopicLagsResponse()

    monkeypatch.setattr(AdminClient, "tier_status_by", silent)
    monkeypatch.setattr(GroupClient, "topic_lags_at", ask)
    for path in ("/console/topics", "/console/live/topics", "/console/topics/a/groups", "/console/topics/a"):
        assert (await http.get(path)).status_code == 200, path
    assert asked == [], "a page would wait for it twice"


def spent(**topics: float) -> Spent:
    counts: dict[tuple[str, str], float] = {("in", OTHERS): 1e9}
    for name, value in topics.items():
        counts["in", name] = counts["stored", name] = value
    return Spent(60.0, topics=counts)


def test_topics_are_ranked_by_the_sums_of_all_brokers() -> None:
    numbers = bill(cheap=1.0, dear=2.0, **{OTHERS: 9.0})
    numbers.spent += [spent(a=5.0, b=4.0), spent(b=4.0, c=1.0)]
    found = Measured(numbers)
    assert found.ranked("written") == ["b", "a", "c"]
    assert found.ranked("bucket") == ["b", "a", "c"]
    assert found.ranked("cost") == ["dear", "cheap"]
    numbers.spent.append(spent(**{f"t{index}": 9.0 for index in range(300)}))
    assert len(Measured(numbers).ranked("written")) == topic_totals.RANKED_MAX


async def test_the_list_is_sorted_by_what_brokers_measured(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = bill(a=1.0, b=3.0, c=2.0)
    numbers.spent.append(spent(a=9.0, b=3.0, gone=5.0))

    async def told(*_: Any) -> Numbers:
        return numbers

    monkeypatch.setattr(topic_totals, "numbers_of", told)
    for name in ("a", "b", "c"):
        await written(http, cluster, name, 1)
    assert cells((await http.get("/console/topics")).text, "Topic") == ["a", "b", "c"]
    assert cells((await http.get("/console/topics?sort=cost")).text, "Topic") == ["b", "c", "a"]
    text = (await http.get("/console/topics?sort=written&col=written")).text
    assert cells(text, "Topic") == ["a", "b"], "one is deleted, and one was not measured"
    assert "The 2 topics with the most bytes written in the last hour" in text
    assert re.findall(r'<th[^>]*aria-sort="(\w+)"', text) == ["descending"]
    link = re.search(r'data-live="([^"]+)"', text)
    assert link is not None
    assert (await http.get(unescape(link[1]))).json()["counters"] == {"a": 1, "b": 1}
    assert cells((await http.get("/console/topics?sort=cost&q=c")).text, "Topic") == ["c"]
    assert (await http.get("/console/topics?sort=luck")).status_code == 400
    monkeypatch.setattr("app.http.console.pages.topics.TOPICS_A_PAGE", 2)
    first = (await http.get("/console/topics?sort=cost")).text
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    second = (await http.get(unescape(following[1]))).text
    assert (cells(first, "Topic"), cells(second, "Topic")) == (["b", "c"], ["a"])
    assert 'rel="next"' not in second


async def test_the_list_is_sorted_by_the_lags_that_its_reader_may_see(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.console.pages.topic_totals.LAG_TOPICS_MAX", 2)  # so that brokers are asked twice
    for name, records in (("a", 1), ("b", 5), ("c", 9), ("d", 1)):
        await written(http, cluster, name, records)
    await committed(application, "g", "a", 1)
    await committed(application, "g", "b", 0)
    await committed(application, "h", "c", 2)
    names = (await http.get("/console/topics")).text
    link = re.search(r'<a href="/console/topics\?([^"]*sort=lag[^"]*)"', names)
    assert link is not None
    text = (await http.get(f"/console/topics?{unescape(link[1])}")).text
    assert cells(text, "Topic") == ["c", "b", "a", "d"]
    assert re.findall(r'<th[^>]*aria-sort="(\w+)"', text) == ["descending"]
    live = re.search(r'data-live="([^"]+)"', text)
    assert live is not None
    moving = (await http.get(unescape(live[1]))).json()
    assert moving["counters"] == {"a": 1, "b": 5, "c": 9, "d": 1}
    assert moving["gauges"]["lag c"] == 7
    assert (await http.get("/console/live/topics?name=b&name=none")).json()["counters"] == {"b": 5}
    assert (await http.get("/console/live/topics", params={"name": "x" * 301})).status_code == 400

    monkeypatch.setattr("app.http.console.pages.topics.TOPICS_A_PAGE", 3)
    first = (await http.get("/console/topics?sort=lag")).text
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    assert cells((await http.get(unescape(following[1]))).text, "Topic") == ["d"]
    assert cells((await http.get("/console/topics?sort=lag&q=none")).text, "Topic") == []

    monkeypatch.setattr("app.http.console.pages.topics.SORTED_BY_LAG_MAX", 3)
    assert "sort=lag" not in (await http.get("/console/topics")).text, "nothing leads to a page that is refused"
    refused = await http.get("/console/topics?sort=lag")
    assert refused.status_code == 400
    assert "4 topics fit. The order by lag is for lists of 3 topics with 5,000 partitions at most" in refused.text
    assert cells((await http.get("/console/topics?sort=lag&q=b")).text, "Topic") == ["b"]
    monkeypatch.setattr("app.http.console.pages.topics.PARTITIONS_SUMMED_MAX", 0)
    assert (await http.get("/console/topics?sort=lag&q=b")).status_code == 400


async def test_bytes_in_write_ahead_logs_are_not_shown_as_those_of_a_disk_alone(
    http: httpx.AsyncClient, cluster: str
) -> None:
    for name in ("object", "memory"):
        configs = [{"name": "firn.durability", "value": name}]
        assert (await http.post(f"{cluster}/topics", json={"topic_name": name, "configs": configs})).is_success
        assert (await http.post(f"{cluster}/topics/{name}/records", json={"value": {"data": 1}})).is_success
        row = (await http.get(f"/console/topics?q={name}")).text.split("<tr data-row>")[1]
        told = 'class="t-wal"' in row, "in write-ahead logs, 0 B on local disks alone" in row
        assert told == (name == "object",) * 2
        timeline = (await http.get(f"/console/topics/{name}")).text
        assert ("<dt>In write-ahead logs</dt>" in timeline) is (name == "object")
