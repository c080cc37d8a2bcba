"""Pages in Chromium: none reports anything to the browser's console, and no record runs as a script.

They are skipped where Chromium is not installed (`apt-get install chromium`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

from tests.support.broker import running_broker
from tests.support.walked_routes import http_server
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
    "/console/topics/flights",
    "/console/topics/flights?by=offset&partition=1",
    "/console/topics/flights/messages",
    "/console/topics/flights/messages?partition=0&offset=0&contains=script",
    "/console/topics/flights/partitions/0/messages/0",
    "/console/topics/flights/partitions",
    "/console/topics/flights/settings",
    "/console/groups",
    "/console/access",
    "/console/cost",
)


class Shown(NamedTuple):
    """A server, and a browser in front of it."""

    base: str
    tab: Tab
    client: httpx.AsyncClient
    cluster: str


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with (
        running_broker(tmp_path / "broker", num_partitions=2) as broker,
        http_server(("127.0.0.1", broker.port)) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client,
        browsing(tmp_path / "chromium") as tab,
    ):
        (one,) = (await client.get("/v3/clusters")).json()["data"]
        yield Shown(str(client.base_url).rstrip("/"), tab, client, f"/v3/clusters/{one['cluster_id']}")


async def write(shown: Shown, *values: str) -> None:
    await shown.client.post(f"{shown.cluster}/topics", json={"topic_name": "flights", "partitions_count": 2})
    for value in values:
        text = {"type": "STRING", "data": value}
        record = {"partition_id": 0, "key": text, "value": text}
        assert (await shown.client.post(f"{shown.cluster}/topics/flights/records", json=record)).is_success


async def test_no_page_reports_anything_to_the_browsers_console_and_no_record_runs(shown: Shown) -> None:
    await write(shown, HOSTILE, "x" * 400_000)
    for path in PAGES:
        for screen in (Screen(), Screen(390, 844, dark=True)):
            await shown.tab.show_as(screen)
            await shown.tab.go(shown.base + path)
            assert shown.tab.reports == [], path
            assert "Firn" in await shown.tab.value("document.title"), path
            overflow = await shown.tab.value("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{path} is wider than a screen of {screen.width}"


async def test_an_empty_cluster_has_pages_that_say_what_to_do(shown: Shown) -> None:
    for path in ("/", "/console/topics", "/console/groups"):
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
    assert tab.reports == []


async def test_the_first_page_shows_rates_that_move(shown: Shown) -> None:
    await write(shown, "one")
    await shown.tab.go(f"{shown.base}/")
    await shown.tab.until("document.querySelector('[data-rate=bytes_in]').textContent.endsWith('B/s')")
    assert shown.tab.reports == []


async def test_the_policy_stops_a_script_that_a_page_has_inline(shown: Shown) -> None:
    await shown.tab.go(f"{shown.base}/")
    inline = "const one = document.createElement('script'); one.textContent = 'document.title = 1'; document.body.append(one)"
    await shown.tab.value(inline)
    assert await shown.tab.value("document.title") == "Overview · Firn"
    assert any("Content Security Policy" in one for one in shown.tab.reports)
