"""Pages of the console over a real broker: each has the policy of content, and nothing inline."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from uuid import UUID

import httpx
import pytest
from msgspec.structs import replace

from app.client.cluster import PartitionView, TopicView
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId
from app.http.application import create_app
from app.http.console.console import Console
from app.http.console.pages.overview import Attention, Numbers, headline, matters
from app.http.console.pages.topics import state_of
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.wire.private import ClusterBroker, ClusterResponse
from tests.support.ports import free_port

HTML = {"accept": "text/html,application/xhtml+xml"}


class Inline(HTMLParser):
    """Finds all that a page would run or show beside its files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: set[str] = set()
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [f"{tag} {name}" for name in names if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and not names.get("src")):
            self.found.append(tag)
        for name in ("href", "src", "action"):
            value = names.get(name)
            if value is not None:
                if not value.startswith(("/", "#", "?")):
                    self.found.append(f"{tag} {name}={value}")
                if value.startswith("/") and tag != "form":
                    self.links.add(value)


async def pages_of(http: httpx.AsyncClient, start: str = "/") -> dict[str, httpx.Response]:
    """All pages that links lead to."""
    seen: dict[str, httpx.Response] = {}
    left = [start]
    while left:
        url = left.pop()
        if url in seen or not (url == "/" or url.startswith("/console")):
            continue
        seen[url] = response = await http.get(url, headers=HTML)
        if "html" in response.headers["content-type"]:
            parser = Inline()
            parser.feed(response.text)
            assert parser.found == [], url
            left += parser.links
    return seen


async def written(http: httpx.AsyncClient, cluster: str, topic: str, *values: str) -> None:
    made = await http.post(f"{cluster}/topics", json={"topic_name": topic, "partitions_count": 2})
    assert made.status_code == 201, made.text
    for value in values:
        record = {"partition_id": 0, "key": {"type": "STRING", "data": "k"}, "value": {"type": "STRING", "data": value}}
        assert (await http.post(f"{cluster}/topics/{topic}/records", json=record)).status_code == 200


async def test_each_page_has_the_policy_of_content_and_runs_nothing_inline(
    http: httpx.AsyncClient, cluster: str
) -> None:
    await written(http, cluster, "flights", "one", "two")
    seen = await pages_of(http)
    assert len(seen) > 12, seen.keys()
    for url, response in seen.items():
        assert response.status_code == 200, (url, response.text[:300])
        policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'", url
        assert "unsafe" not in response.headers["content-security-policy"]
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_program_gets_json_where_a_browser_gets_the_overview(http: httpx.AsyncClient) -> None:
    for accept in ("*/*", "application/json", ""):
        response = await http.get("/", headers={"accept": accept})
        assert response.json()["name"] == "Firn"
        assert response.headers["vary"] == "Accept"
    page = await http.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "The cluster is well, and has no topic yet." in page.text
    assert "firn topic create" in page.text
    assert page.headers["cache-control"] == "no-store"


async def test_the_overview_tells_the_state_of_brokers_and_topics(http: httpx.AsyncClient, cluster: str) -> None:
    await written(http, cluster, "flights", "x" * 1000)
    text = (await http.get("/", headers=HTML)).text
    assert "The one topic is whole." in text
    assert '<a href="/console/topics/flights">flights</a>' in text
    assert "controller" in text
    live = (await http.get("/console/live")).json()
    assert live["counters"]["records_in"] == 1
    assert live["silent"] == []


async def test_files_have_their_hash_in_the_name_and_are_kept_for_ever(http: httpx.AsyncClient) -> None:
    text = (await http.get("/", headers=HTML)).text
    urls = set(re.findall(r'"(/console/assets/[^"]+)"', text))
    assert sorted(url.rpartition(".")[2] for url in urls) == ["css", "js", "svg"]
    for url in urls:
        response = await http.get(url)
        assert "immutable" in response.headers["cache-control"], url
    assert (await http.get("/console/assets/console.css")).status_code == 404


async def test_a_server_without_the_extra_says_how_to_install_it(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "installed", False)
    response = await http.get("/", headers=HTML)
    assert "[console]" in response.text
    assert "pip install" in response.text
    assert (await http.get("/", headers={"accept": "*/*"})).json()["name"] == "Firn"


async def test_an_error_is_a_page_that_says_what_to_do(http: httpx.AsyncClient) -> None:
    response = await http.get("/console/topics/none", headers=HTML)
    assert response.status_code == 404
    assert "There is no topic none." in response.text
    assert "content-security-policy" in response.headers


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/console/topcis", 404, "The console has no page /console/topcis."),
        ("/console/topics/t/partitions/x/messages/1", 422, "partition_id: "),
    ],
)
async def test_a_path_that_is_no_page_is_an_error_in_the_form_that_its_reader_wants(
    http: httpx.AsyncClient, path: str, status: int, sentence: str
) -> None:
    page = await http.get(path, headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert sentence in page.text
    assert "Go to the overview" in page.text
    assert (await http.get(path)).json()["error_code"] == status


async def test_nothing_is_loaded_before_the_first_page(http: httpx.AsyncClient, application: object) -> None:
    console: Console = application.state.console  # type: ignore[attr-defined]
    await http.get("/")
    assert console._environment is None
    await http.get("/", headers=HTML)
    assert console._environment is not None


# --- what needs attention -------------------------------------------------------------------------------------------


def standing(*, state: str = "alive", offline: int = 0, under: int = 0, topics: int = 2) -> ClusterResponse:
    broker = ClusterBroker(2, "h", 9092, None, 1, state, 1, 1, 1, 1)
    names = [("t", index) for index in range(offline or under)]
    return ClusterResponse(
        1,
        "id",
        7,
        1,
        1,
        1,
        [broker],
        topics,
        topics,
        names if under else [],
        [],
        names if offline else [],
        under,
        0,
        offline,
        [],
        0,
    )


def test_a_well_cluster_is_told_in_one_sentence() -> None:
    assert matters(standing(), Numbers()) == []
    assert headline(standing(), []) == "All 2 topics are whole."
    assert headline(standing(topics=0), []) == "The cluster is well, and has no topic yet."


def test_what_hurts_now_comes_before_what_will_hurt() -> None:
    numbers = Numbers(silent=[3])
    found = matters(standing(state="fenced", offline=5, under=0), numbers)
    assert [one.hurts for one in found] == [True, True, False]
    assert found[0].text == "5 partitions without a leader."
    assert list(found[0].partitions) == [("t", 0), ("t", 1), ("t", 2)]
    assert headline(standing(), found) == "2 matters need you now."
    assert "Broker 3 did not respond" in found[2].text


def test_partitions_without_a_leader_are_told_once() -> None:
    def told(few: int) -> list[str]:
        one = replace(
            standing(offline=2), under_min_isr=[("t", index) for index in range(few)], under_min_isr_count=few
        )
        return [one.text for one in matters(one, None)]

    assert told(2) == ["2 partitions without a leader."]
    assert told(3)[1] == "3 partitions with too few replicas in sync: writes are refused."


def test_a_full_disk_hurts_and_a_nearly_full_one_will() -> None:
    def of(free: float) -> list[Attention]:
        own = {"firn_log_dir_size_bytes": 1000.0, "firn_log_dir_free_bytes": free, "firn_log_dir_free_bytes_min": 20.0}
        return matters(standing(), Numbers(brokers={2: own}))

    assert of(500) == []
    assert [one.hurts for one in of(50)] == [False]
    assert [one.hurts for one in of(10)] == [True]


def test_each_matter_names_a_runbook_that_there_is() -> None:
    from pathlib import Path

    own = dict.fromkeys(
        (
            "firn_log_offline", "firn_offline_partitions", "firn_broker_isolated", "firn_tier_coverage_faults_total",
            "firn_draining",
        ),
        1.0,
    )  # fmt: skip
    own |= {"firn_log_dir_size_bytes": 10.0, "firn_transaction_oldest_seconds": 10_000.0}
    found = [
        *matters(standing(state="fenced", offline=1), Numbers(silent=[1], brokers={2: own})),
        *matters(standing(state="stopping", under=1), None),
    ]
    assert len(found) > 9
    runbooks = {path.stem for path in (Path(__file__).parents[3] / "docs" / "runbooks").glob("*.md")}
    assert {one.runbook for one in found} <= runbooks


def test_the_state_of_a_topic_is_a_phrase() -> None:
    def topic(leader: int | None, *in_sync: int) -> TopicView:
        leads = None if leader is None else BrokerId(leader)
        replicas = (BrokerId(1), BrokerId(2))
        one = PartitionView(PartitionIndex(0), leads, LeaderEpoch(0), replicas, tuple(map(BrokerId, in_sync)))
        return TopicView("t", TopicId(UUID(int=1)), False, (one,))

    assert state_of(topic(1, 1, 2)) == ""
    assert state_of(topic(1, 1)) == "1 not in sync"
    assert state_of(topic(None)) == "1 without a leader"


async def test_without_a_broker_a_page_says_that_none_can_be_reached() -> None:
    settings = HttpSettings(bootstrap=(("127.0.0.1", free_port()),), retry_budget_ms=1)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        response = await client.get("/", headers=HTML)
    assert response.status_code == 503
    assert "<h1>Not available now</h1>" in response.text
    assert '<a href="/console/runbooks/broker-down">' in response.text
    assert "content-security-policy" in response.headers


async def test_consoles_of_one_process_share_their_compiled_templates() -> None:
    one, another = Console(SystemClock()), Console(SystemClock())
    assert await one.environment() is await another.environment()
