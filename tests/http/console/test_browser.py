"""Pages in Chromium: none reports anything to the browser's console, and no record runs as a script.

They are skipped where Chromium is not installed (`apt-get install chromium`), and those of axe-core where `make axe` was not run.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from app.client.cluster import ClusterClient
from app.client.groups import GroupClient
from app.client.transactional_batches import write_batches
from app.client.transactions import begin_transaction
from app.core.units import PartitionIndex, TimestampMs, TopicPartition
from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import running_broker
from tests.support.walked_routes import http_server
from tools.axe import axe, violations
from tools.chromium import Screen, Tab, browsing, chromium

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed"),
]

HOSTILE: Final = "</pre><script>document.title='taken'</script><img src=x onerror=\"alert('taken')\">"
PAGES: Final = (
    "/",
    "/console/topics",
    "/console/topics?q=<script>alert(1)</script>",
    "/console/topics?internal=1&col=records&col=upload&col=lag",
    "/console/topics/flights",
    "/console/topics/flights?by=offset&partition=1",
    "/console/topics/flights/messages",
    "/console/topics/flights/messages?partition=0&offset=0&contains=script",
    "/console/topics/flights/partitions/0/messages/0",
    "/console/topics/flights/partitions/0/messages/0/resend",
    "/console/topics/flights/partitions",
    "/console/topics/flights/groups",
    "/console/topics/flights/settings",
    "/console/topics/flights/produce",
    "/console/topics/flights/partitions/0/producers",
    "/console/groups",
    "/console/groups/team",
    "/console/brokers",
    "/console/brokers/1",
    "/console/store",
    "/console/schemas",
    "/console/schemas/flights-value",
    "/console/schemas/flights-value/versions/2",
    "/console/transactions",
    "/console/runbooks",
    "/console/runbooks/unclean-election",
    "/console/transactions/settlement",
    "/console/access",
    "/console/users",
    "/console/quotas",
    "/console/cost",
)


CUT_ROWS: Final = """[...document.querySelectorAll(".rows tbody tr")]
    .filter((row) => getComputedStyle(row).display === "grid" && row.scrollWidth > row.clientWidth + 1)
    .map((row) => row.textContent.trim().slice(0, 80))"""
"""Rows that are cards on a phone, and whose text goes beyond them."""


class Shown(NamedTuple):
    """A server, and a browser in front of it."""

    base: str
    tab: Tab
    client: httpx.AsyncClient
    cluster: str
    broker: tuple[str, int]


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with (
        running_broker(tmp_path / "broker", num_partitions=2, new_level=REGISTRY_LEVEL) as broker,
        http_server(("127.0.0.1", broker.port)) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client,
        browsing(tmp_path / "chromium") as tab,
    ):
        (one,) = (await client.get("/v3/clusters")).json()["data"]
        address = ("127.0.0.1", broker.port)
        yield Shown(str(client.base_url).rstrip("/"), tab, client, f"/v3/clusters/{one['cluster_id']}", address)


async def write(shown: Shown, *values: str) -> None:
    await shown.client.post(f"{shown.cluster}/topics", json={"topic_name": "flights", "partitions_count": 2})
    for value in values:
        text = {"type": "STRING", "data": value}
        record = {"partition_id": 0, "key": text, "value": text}
        assert (await shown.client.post(f"{shown.cluster}/topics/flights/records", json=record)).is_success


async def fill(shown: Shown) -> None:
    """Hostile and long records, schemas with hostile names and texts, and an open transaction."""
    await write(shown, HOSTILE, "x" * 400_000)
    for fields in (["a"], ["a", "b"]):
        listed = [{"name": name, "type": "string", "default": HOSTILE} for name in fields]
        schema = json.dumps({"type": "record", "name": "R", "doc": HOSTILE, "fields": listed})
        for subject in ("flights-value", quote(HOSTILE, safe="")):
            made = await shown.client.post(f"/subjects/{subject}/versions", json={"schema": schema})
            assert made.is_success, made.text
    async with ClusterClient((shown.broker,), rng=random.Random(1)) as cluster:
        transaction = await begin_transaction(cluster, "settlement", timeout_ms=900_000)
        partition = TopicPartition("flights", PartitionIndex(0))
        await write_batches(cluster, transaction, {partition: [(TimestampMs(1), None, HOSTILE.encode(), ())]})
        await GroupClient(cluster).commit("team", {partition: 1})


@pytest.mark.skipif(axe() is None, reason="axe-core is not there (make axe)")
async def test_each_page_can_be_used_by_those_who_see_little_or_have_no_mouse(shown: Shown) -> None:
    await fill(shown)
    found = {}
    for path in PAGES:
        for screen in (Screen(), Screen(dark=True), Screen(390, 844)):
            await shown.tab.show_as(screen)
            await shown.tab.go(shown.base + path)
            if broken := await violations(shown.tab):
                found[path, screen] = broken
    assert found == {}


@pytest.mark.skipif(axe() is None, reason="axe-core is not there (make axe)")
async def test_a_page_whose_text_can_hardly_be_read_is_found(shown: Shown) -> None:
    await shown.tab.go(f"{shown.base}/console/topics")
    await shown.tab.value("document.querySelector('h1').style.color = 'rgb(240, 240, 240)'")
    assert "color-contrast" in {one.rule for one in await violations(shown.tab)}


async def test_no_page_reports_anything_to_the_browsers_console_and_no_record_runs(shown: Shown) -> None:
    await fill(shown)
    for path in PAGES:
        for screen in (Screen(), Screen(390, 844, dark=True)):
            await shown.tab.show_as(screen)
            await shown.tab.go(shown.base + path)
            assert shown.tab.reports == [], path
            assert "Firn" in await shown.tab.value("document.title"), path
            overflow = await shown.tab.value("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{path} is wider than a screen of {screen.width}"
            cut = await shown.tab.value(CUT_ROWS)
            assert cut == [], f"rows of {path} are wider than their card on a screen of {screen.width}"


async def test_an_empty_cluster_has_pages_that_say_what_to_do(shown: Shown) -> None:
    for path in (
        "/",
        "/console/topics",
        "/console/groups",
        "/console/schemas",
        "/console/transactions",
        "/console/quotas",
    ):
        await shown.tab.go(shown.base + path)
        assert shown.tab.reports == [], path
        assert await shown.tab.value("document.querySelectorAll('.lead').length") >= 1, path


async def test_keys_lead_to_pages_and_rows(shown: Shown) -> None:
    await write(shown, "one")
    tab = shown.tab
    await tab.go(f"{shown.base}/")
    await tab.press("g", "t")
    await tab.until("location.pathname == '/console/topics'")
    await tab.until("document.readyState == 'complete'")
    await tab.press("/")
    assert await tab.value("document.activeElement.name") == "q"
    await tab.press("Escape", "j")
    assert await tab.value("document.activeElement.textContent") == "flights"
    await tab.press("?")
    assert await tab.value("document.querySelector('#keys').open") is True
    await tab.go(f"{shown.base}/console/cost")
    await tab.press("/")
    await tab.until("location.pathname == '/console/topics'")
    await tab.until("document.readyState == 'complete' && document.activeElement.name == 'q'")
    assert tab.reports == []


async def test_the_first_page_shows_rates_that_move(shown: Shown) -> None:
    await write(shown, "one")
    await shown.tab.go(f"{shown.base}/")
    await shown.tab.until("document.querySelector('[data-rate=bytes_in]').textContent.endsWith('B/s')")
    assert shown.tab.reports == []


async def test_the_list_of_topics_shows_rates_of_any_name(shown: Shown) -> None:
    await write(shown, "one")
    await shown.client.post(f"{shown.cluster}/topics", json={"topic_name": "__proto__"})
    await shown.tab.go(f"{shown.base}/console/topics")
    for name in ("flights", "__proto__"):
        await shown.tab.until(f"document.querySelector('[data-rate={name}]').textContent == '0/s'")
    assert shown.tab.reports == []


async def responses(tab: Tab, *bodies: object) -> None:
    """Let the script of the open page get these bodies, the last one again and again, and wait until it has shown each. None is a
    status of 503."""
    await tab.value(f"""
        window.bodies = {json.dumps(bodies)}
        window.taken = 0
        window.fetch = async () => {{
          const body = bodies[Math.min(taken++, bodies.length - 1)]
          return new Response(JSON.stringify(body), {{ status: body ? 200 : 503 }})
        }}
    """)
    await tab.until("taken > bodies.length")


RISING: Final = ({"counters": {"flights": 0}, "at_s": 1e9}, {"counters": {"flights": 9000}, "at_s": 1e9 + 1})


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, ["9.0 k/s", True]),
        ({"counters": {}, "at_s": 1e9 + 2}, ["–", False]),
        ({"counters": {"flights": 10_000}, "at_s": 1e9 + 2}, ["1.0 k/s", False]),
        ({"counters": {"flights": 10_000}, "at_s": 1e9 + 2, "summed": [2]}, ["–", False]),
    ],
)
async def test_a_rate_is_marked_as_old_after_an_error_and_not_shown_once_it_is_not_known(
    shown: Shown, last: object, expected: list[object]
) -> None:
    await write(shown, "one")
    await shown.tab.go(f"{shown.base}/console/topics")
    await responses(shown.tab, *RISING, last)
    rate = "document.querySelector('[data-rate=flights]')"
    assert await shown.tab.value(f"[{rate}.textContent, {rate}.classList.contains('old')]") == expected
    line = await shown.tab.value("document.querySelector('[data-stale]').innerText")
    assert ("The brokers give no numbers now." in line) is expected[1], "in words, for a phone shows no title"


async def test_a_page_says_that_its_server_is_gone(shown: Shown) -> None:
    await write(shown, "one")
    await shown.tab.go(f"{shown.base}/console/topics")
    line = "document.querySelector('[data-stale]')"
    assert await shown.tab.value(f"{line}.hidden")
    await shown.tab.value("window.fetch = async () => { throw new TypeError('Failed to fetch') }")
    await shown.tab.until(f"{line}.innerText.startsWith('The server of this console does not respond.')")
    login = "window.fetch = async () => ({ type: 'opaqueredirect', status: 0, ok: false })"
    await shown.tab.value(login)
    await shown.tab.until(f"{line}.innerText == 'Your login has ended. Load the page again.'")


async def test_the_lag_of_a_group_moves_and_says_when_the_group_has_caught_up(shown: Shown) -> None:
    await write(shown, "one", "two", "three")
    partition = TopicPartition("flights", PartitionIndex(0))
    async with ClusterClient((shown.broker,), rng=random.Random(1)) as cluster:
        groups = GroupClient(cluster)
        await groups.commit("team", {partition: 1})
        tab = shown.tab
        await tab.go(f"{shown.base}/console/groups/team")
        lag, pace = (f"document.querySelector('[data-{name}]').textContent" for name in ("gauge", "pace"))
        assert await tab.value(lag) == "2"
        await tab.until("document.querySelector('[data-rate=written]').textContent.endsWith('records/s')")
        await write(shown, "four")
        await tab.until(f"{lag} == '3'")
        await groups.commit("team", {partition: 4})
        await tab.until(f"{lag} == '0' && {pace} == 'caught up'")
        assert tab.reports == []


async def test_new_messages_appear_below_those_of_the_page_and_none_runs(shown: Shown) -> None:
    await write(shown, "one")
    tab = shown.tab
    await tab.show_as(Screen(1280, 1600))  # the end of the page shows: rows that come do not wait for a click
    await tab.go(f"{shown.base}/console/topics/flights/messages?partition=0&follow=1")
    await tab.until("document.querySelector('[data-state]').textContent.startsWith('New records')")
    await write(shown, HOSTILE, "three")
    await tab.until("document.querySelectorAll('table.messages tbody tr').length == 3")
    assert await tab.value("document.querySelector('tbody tr:last-child .value').textContent.trim()") == "three"
    assert await tab.value("document.querySelectorAll('table.messages script, table.messages img').length") == 0
    assert "Firn" in await tab.value("document.title")
    assert tab.reports == []


async def test_the_policy_stops_a_script_that_a_page_has_inline(shown: Shown) -> None:
    await shown.tab.go(f"{shown.base}/")
    inline = "const one = document.createElement('script'); one.textContent = 'document.title = 1'; document.body.append(one)"
    await shown.tab.value(inline)
    assert await shown.tab.value("document.title") == "Overview · Firn"
    assert any("Content Security Policy" in one for one in shown.tab.reports)
