from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI

from app.client.groups import Committed, GroupMember, GroupView
from app.core.turns import STRIDE, run
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.http.console.acts import resetting
from app.http.console.acts.resetting import PARTITIONS_MAX, Change
from app.http.gateway import Gateway
from app.security.acls import Operation, ResourceType
from tests.http.secured import basic, secured
from tests.support.broker import RunningBroker
from tests.support.console_forms import HTML, token_in
from tests.support.counted_loop import TurnCounts

GROUP = "team/a <b>"
RESET = "/console/groups/team%2Fa%20%3Cb%3E/reset"
TIME = 1_700_000_000_000


def place(index: int) -> TopicPartition:
    return TopicPartition("t", PartitionIndex(index))


@pytest.fixture
async def gateway(http: httpx.AsyncClient, cluster: str, broker: RunningBroker, application: FastAPI) -> Gateway:
    await broker.create_topic("t", 3)
    for index in range(2):
        for step in range(4 + index):
            record = {"partition_id": index, "value": {"data": step}, "timestamp": TIME + step * 1000}
            assert (await http.post(f"{cluster}/topics/t/records", json=record)).json()["error_code"] == 200
    found: Gateway = application.state.gateway
    await found.groups.commit(GROUP, {place(0): 2, place(1): 5})
    return found


async def offsets(gateway: Gateway) -> dict[int, int]:
    return {one.partition: found.offset for one, found in (await gateway.groups.committed(GROUP)).items()}


def plan_in(text: str) -> str:
    found = re.search(r'name="plan" value="([^"]+)"', text)
    assert found is not None, text
    return unescape(found[1])


async def confirm(http: httpx.AsyncClient, query: str, name: str = GROUP, **more: str) -> httpx.Response:
    shown = (await http.get(f"{RESET}?{query}", headers=HTML)).text
    form = {"form_token": token_in(shown), "plan": plan_in(shown), "name": name, **more}
    return await http.post(RESET, data=form, headers=HTML)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("to=earliest", {0: 0, 1: 0}),
        ("to=latest", {0: 4, 1: 5}),
        ("to=offset&at=3", {0: 3, 1: 3}),
        ("to=offset&at=99&partition=0&topic=t", {0: 4, 1: 5}),
        ("to=time&at=2023-11-14T22:13:21", {0: 1, 1: 1}),
        ("to=time&at=2030-01-01", {0: 4, 1: 5}),
        ("to=earliest&topic=t&partition=1", {0: 2, 1: 0}),
        ("to=earliest&topic=t", {0: 0, 1: 0, 2: 0}),
    ],
)
async def test_offsets_go_where_the_preview_has_shown(
    http: httpx.AsyncClient, gateway: Gateway, query: str, expected: dict[int, int]
) -> None:
    await http.get(f"{RESET}?{query}", headers=HTML)
    assert await offsets(gateway) == {0: 2, 1: 5}, "a preview changes nothing"
    response = await confirm(http, query)
    assert response.status_code == 303, response.text
    assert await offsets(gateway) == expected
    group = await http.get(response.headers["location"], headers=HTML)
    assert re.search(r"Offsets of \d partitions? are set\.", group.text)
    for link in (RESET.removesuffix("/reset") + "?set=3", response.headers["location"].replace("set=", "set=1")):
        assert "are set." not in (await http.get(link, headers=HTML)).text, "a link claims nothing"


async def test_a_preview_says_what_the_group_reads_by_it(http: httpx.AsyncClient, gateway: Gateway) -> None:
    text = (await http.get(f"{RESET}?to=offset&at=3&topic=t", headers=HTML)).text
    cells = re.findall(r'<td class="full" data-label="The group reads">(?:<span class="quiet">)?([^<]+)<', text)
    assert cells == ["1 offset left out", "2 offsets again", "begins there"]
    assert "nothing has changed yet" in text
    assert " --topic t --to 3 " in text
    assert Change("t", 0, 7, 7).effect == "stays"


async def test_a_reset_needs_the_typed_name_and_a_page_of_this_session(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    wrong = await confirm(http, "to=earliest", "team")
    assert wrong.status_code == 400
    assert "Type the name of the group to confirm." in wrong.text
    assert plan_in(wrong.text), "the preview is shown again"
    assert (await confirm(http, "to=earliest", form_token="0" * 64)).status_code == 403
    for plan in ("", "[]", "x", '[["t",0,2,-1]]', '[["t",-1,2,1]]'):
        assert (await confirm(http, "to=earliest", plan=plan)).status_code == 400, plan
    assert await offsets(gateway) == {0: 2, 1: 5}


async def test_a_refused_reset_still_shows_the_command_of_the_same_reset(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    query = {"topic": "t", "partition": "1", "to": "offset", "at": "3"}
    shown = (await http.get(RESET, params=query, headers=HTML)).text
    fields = dict(re.findall(r'<input type="hidden" name="(topic|partition|to|at)" value="([^"]*)">', shown))
    assert fields == query
    form = {"form_token": token_in(shown), "plan": plan_in(shown), "name": "wrong", **fields}
    refused = (await http.post(RESET, data=form, headers=HTML)).text
    (command,) = re.findall(r"<code>(firn group reset [^<]*)</code>", shown)
    assert command in refused
    assert "--all-topics" not in refused
    assert '<option value="t" selected>' in refused
    long = (await http.post(RESET, data={**form, "at": "x" * 9_000}, headers=HTML)).text
    assert "x" * 301 not in long


async def test_a_group_that_has_moved_since_its_preview_stays(http: httpx.AsyncClient, gateway: Gateway) -> None:
    shown = (await http.get(f"{RESET}?to=earliest", headers=HTML)).text
    await gateway.groups.commit(GROUP, {place(0): 3})
    form = {"form_token": token_in(shown), "plan": plan_in(shown), "name": GROUP}
    response = await http.post(RESET, data=form, headers=HTML)
    assert response.status_code == 409
    assert "has moved since the preview" in response.text
    assert await offsets(gateway) == {0: 3, 1: 5}


async def test_a_group_that_moves_while_its_form_comes_in_stays(http: httpx.AsyncClient, gateway: Gateway) -> None:
    shown = (await http.get(f"{RESET}?to=earliest", headers=HTML)).text
    form = urlencode({"form_token": token_in(shown), "plan": plan_in(shown), "name": GROUP}).encode()

    async def body() -> AsyncIterator[bytes]:
        yield form[:10]
        await gateway.groups.commit(GROUP, {place(0): 3})
        yield form[10:]

    headers = {**HTML, "content-type": "application/x-www-form-urlencoded"}
    response = await http.post(RESET, content=body(), headers=headers)
    assert response.status_code == 409, response.text
    assert await offsets(gateway) == {0: 3, 1: 5}


@pytest.mark.parametrize(
    "query",
    ["to=offset&at=x", "to=time&at=soon", "to=there", "to=earliest&partition=0", "to=earliest&topic=t&partition=3"],
)
async def test_a_preview_that_is_none_says_why(http: httpx.AsyncClient, gateway: Gateway, query: str) -> None:
    response = await http.get(f"{RESET}?{query}", headers=HTML)
    assert response.status_code == 400
    assert 'role="alert"' in response.text
    assert 'name="plan"' not in response.text


async def test_a_reset_of_too_many_partitions_is_refused(
    http: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    many: dict[TopicPartition, Any] = {place(index): gateway for index in range(PARTITIONS_MAX + 1)}

    async def committed(group: str) -> dict[TopicPartition, Any]:
        return dict.fromkeys(many, await_offset)

    class One:
        offset = 1

    await_offset = One()
    monkeypatch.setattr(gateway.groups, "committed", committed)
    response = await http.get(f"{RESET}?to=earliest", headers=HTML)
    assert response.status_code == 400
    assert "Choose a topic, or use `firn group reset`." in response.text


async def test_a_group_with_members_has_no_form(
    http: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = GroupMember("m", None, "c", "/h", ())

    async def describe(group: str) -> GroupView:
        return GroupView(group, "consumer", "Stable", "", (member,))

    monkeypatch.setattr(gateway.groups, "describe", describe)
    text = (await http.get(f"{RESET}?to=earliest", headers=HTML)).text
    assert "Stop the members of the group first" in text
    assert 'name="plan"' not in text


async def test_the_broker_decides_whether_the_caller_may_reset(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave")
        await http.broker.create_topic("t")
        for user in ("carol", "dave"):
            await http.allow(user, (Operation.READ, ResourceType.TOPIC, "t"))
        await http.allow("carol", (Operation.READ, ResourceType.GROUP, "g"))
        await http.allow("dave", (Operation.DESCRIBE, ResourceType.GROUP, "g"))
        own = basic("carol", "carol-secret")
        page = "/console/groups/g/reset"
        async with http.callers.serving(*await _credential(own)) as caller:
            await caller.gateway.groups.commit("g", {place(0): 0})
        for user, status in (("dave", 403), ("carol", 303)):
            headers = basic(user, f"{user}-secret")
            shown = (await http.client.get(f"{page}?to=latest", headers=headers)).text
            form = {"form_token": token_in(shown), "plan": plan_in(shown), "name": "g"}
            response = await http.client.post(page, data=form, headers=headers)
            assert response.status_code == status, response.text


async def _credential(headers: dict[str, str]) -> tuple[Any, str]:
    from app.http.credentials import read_authorization

    return read_authorization([next(iter(headers.values())).encode()]), ""


async def test_a_reset_that_no_broker_answers_in_time_says_that_its_outcome_is_not_known(
    http: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.groups, "commit", hangs)
    shown = (await http.get(f"{RESET}?to=earliest", headers=HTML)).text
    monkeypatch.setattr("app.http.console.asking.BROKER_S", 1.0)
    form = {"form_token": token_in(shown), "plan": plan_in(shown), "name": GROUP}
    refused = await http.post(RESET, data=form, headers=HTML)
    assert refused.status_code == 503
    assert re.search(r"Broker \d+ did not respond within 1 s\.", refused.text)
    assert "It is not known whether the offsets were set." in refused.text


class Noted(dict[TopicPartition, Committed]):
    """Offsets of a group. It counts those that are looked at in a turn of the loop."""

    def __init__(self, count: int) -> None:
        super().__init__({place(index): Committed(Offset(0), -1, "") for index in range(count)})
        self.turns = TurnCounts()

    def __iter__(self) -> Iterator[TopicPartition]:
        for one in super().__iter__():
            self.turns.note()
            yield one

    def items(self) -> Any:
        for one in super().items():
            self.turns.note()
            yield one


async def test_the_offsets_of_a_large_group_are_gone_through_in_portions(
    http: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted(1_000)

    async def committed(group: str) -> Noted:
        return noted

    monkeypatch.setattr(gateway.groups, "committed", committed)
    monkeypatch.setattr("app.core.turns.PORTION_S", 0.0)  # each look at the clock ends the portion
    assert (await http.get(RESET, headers=HTML)).status_code == 200
    assert noted.turns.all == 1_000
    assert max(noted.turns.counts) <= STRIDE + 1
    again = Noted(1_000)
    assert await run(resetting.topics_in(again)) == {"t"}
    assert max(again.turns.counts) <= STRIDE + 1
