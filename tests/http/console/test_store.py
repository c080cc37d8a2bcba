from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from app.client.admin import AdminClient
from app.core.units import BrokerId
from app.http.console.pages.store import StoreNumbers, store_numbers
from app.security.acls import Operation, ResourceType
from app.wire.private import ClusterResponse, MetricSample, MetricsResponse
from tests.http.secured import secured

HOUR = "firn_hour_requests"


def sample(name: str, value: float, **labels: str) -> MetricSample:
    return MetricSample(name, "gauge", "", name, [*labels.items()], value)


def counted(*samples: MetricSample, node_id: int = 1) -> StoreNumbers:
    return store_numbers({BrokerId(node_id): samples})


def test_waiting_bytes_are_added_up_by_broker_and_topic() -> None:
    numbers = store_numbers(
        {
            BrokerId(1): [
                sample("firn_tier_lag_bytes", 100, topic="a", partition="0"),
                sample("firn_tier_lag_seconds", 7, topic="a", partition="0"),
                sample("firn_tier_lag_bytes", 500, topic="b", partition="0"),
                sample("firn_tier_lag_bytes", 0, topic="c", partition="0"),
            ],
            BrokerId(2): [
                sample("firn_tier_lag_bytes", 900, topic="a", partition="1"),
                sample("firn_tier_lag_seconds", 3, topic="a", partition="1"),
            ],
        }
    )
    assert (numbers.waiting_bytes, numbers.oldest_s) == (1500, 7)
    assert numbers.waiting_topics() == [("a", 1000, 7), ("b", 500, 0)]


def test_failures_are_told_with_the_runbooks_that_there_are() -> None:
    assert counted(sample("firn_tier_failures_total", 0)).faults() == []
    names = (
        "firn_tier_failures_total",
        "firn_tier_stalled_uploads_total",
        "firn_tier_corrupt_segments_total",
        "firn_wal_take_over_failures_total",
        "firn_remote_missing_objects_total",
        "firn_remote_corruptions_total",
    )
    request = "firn_store_requests_total"
    found = counted(
        *(sample(name, 2) for name in names),
        sample(request, 3, operation="put", kind="data", outcome="unavailable"),
        sample(request, 5, operation="get", kind="data", outcome="ok"),
        sample(request, 7, operation="head", kind="data", outcome="missing"),
    ).faults()
    assert found[0].text == "2 rounds of tiering failed, to be tried again"
    assert found[-1].text == "3 requests failed"
    runbooks = {path.stem for path in (Path(__file__).parents[3] / "docs" / "runbooks").glob("*.md")}
    assert len(found) == len(names) + 1
    assert {one.runbook for one in found} <= runbooks


def test_requests_of_the_last_hour_have_their_cost_and_the_dearest_come_first() -> None:
    numbers = counted(
        sample("firn_hour_seconds", 3600),
        sample(HOUR, 1000, operation="get_range", kind="data"),
        sample(HOUR, 1000, operation="put_if_absent", kind="wal"),
        sample(HOUR, 30, operation="get", kind="wal"),
        sample(HOUR, 9, operation="delete_many", kind="wal"),
        sample("firn_store_request_seconds_sum", 4, operation="get_range"),
        sample("firn_store_request_seconds_count", 100, operation="get_range"),
    )
    rows = numbers.requests()
    assert [(one.kind, one.operation) for one in rows][:2] == [
        ("write-ahead logs", "put_if_absent"),
        ("segments", "get_range"),
    ]
    assert rows[-1].dollars == 0
    assert sum(one.dollars for one in rows) > 3
    assert numbers.wal_reads() == 30
    assert numbers.latency_ms("get_range") == 40
    assert numbers.latency_ms("put") is None
    bill = numbers.bill()
    assert bill is not None
    assert round(bill.dollars, 4) == round(sum(one.dollars for one in rows), 4)


async def test_the_page_shows_what_the_broker_counts(http: httpx.AsyncClient, cluster: str) -> None:
    page = await http.get("/console/store")
    assert page.status_code == 200
    assert "The store responds." in page.text
    assert "No broker has written a write-ahead log since its start." in page.text
    assert "No broker has counted for a minute yet." in page.text
    assert re.search(r'<td data-label="Broker"><strong>\d+</strong>', page.text)


async def test_a_store_that_is_away_has_a_short_headline_its_reason_and_its_runbook(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = AdminClient.cluster_standing

    async def standing(self: AdminClient, **given: float) -> ClusterResponse:
        return replace(await ask(self, **given), store="The object store has failed for 9 s: <no route>.")

    monkeypatch.setattr(AdminClient, "cluster_standing", standing)
    page = (await http.get("/console/store")).text
    assert '<h1 class="state hurts">The store does not respond.</h1>' in page
    assert "<span>The object store has failed for 9 s: &lt;no route&gt;.</span>" in page
    assert 'href="/console/runbooks/store-unreachable"' in page


async def test_take_overs_are_shown_beside_the_write_ahead_logs(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"overs_total": 3, "over_seconds_sum": 6.0, "over_bytes_total": 5 << 20, "over_failures_total": 4}
    samples = [sample(f"firn_wal_take_{name}", value) for name, value in names.items()]

    async def metrics(*_: object) -> MetricsResponse:
        return MetricsResponse(1, "cluster", samples)

    monkeypatch.setattr("app.client.admin.AdminClient.metrics", metrics)
    text = (await http.get("/console/store")).text
    cells = dict(
        re.findall(r'<td data-label="([^"]+)" class="n">(?:<[^>]+>)?([^<]+)<', text[text.index("Write-ahead") :])
    )
    shown = {name: cells[name] for name in ("Take-overs", "Taken over", "Mean time", "Failed attempts")}
    assert shown == {"Take-overs": "3", "Taken over": "5.0 MiB", "Mean time": "2 s", "Failed attempts": "4"}


async def test_only_those_who_may_see_the_cluster_see_its_store(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave")
        await http.allow("dave", (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
        assert (await http.ask("dave", "/console/store")).status_code == 200
        refused = await http.ask("carol", "/console/store")
        assert refused.status_code == 403
        assert "describe the cluster" in refused.text
