"""The numbers for the script of the first page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.client.admin import AdminClient
from app.http.asked_once import AskedOnce
from app.security.acls import CLUSTER_NAME, Operation, ResourceType
from tests.http.secured import secured

HTML = {"accept": "text/html"}


class Asked:
    """Counts how often brokers are asked for metrics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        metrics = AdminClient.metrics

        async def counted(*given: object) -> object:
            self.count += 1
            return await metrics(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(AdminClient, "metrics", counted)


async def test_callers_share_the_numbers_and_each_needs_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    async with secured(tmp_path) as http:
        http.app.state.console.live = AskedOnce(keeps=True, kept_s=600.0)
        await http.add_user("one", "two", "none")
        for user in ("one", "two"):
            await http.allow(user, (Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME))
        answers = [(await http.ask(user, "/console/live")) for user in ("one", "two", "one")]
        assert [one.status_code for one in answers] == [200, 200, 200]
        assert len({one.text for one in answers}) == 1
        assert asked.count == 1
        assert (await http.ask("none", "/console/live")).status_code == 403


async def test_a_cluster_with_too_many_partitions_says_that_its_rates_are_not_shown(
    http: httpx.AsyncClient, application: FastAPI, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.console.pages.overview.PARTITIONS_SUMMED_MAX", 1)
    asked = Asked(monkeypatch)
    made = await http.post(f"{cluster}/topics", json={"topic_name": "t", "partitions_count": 2})
    assert made.status_code == 201
    assert (await http.get("/console/live")).json()["counters"] is None
    page = (await http.get("/", headers=HTML)).text
    assert "Rates, bytes and free disks are not shown" in page
    assert "at most 1 partition, and the cluster has 2" in page
    assert 'data-live=""' in page
    assert asked.count == 0
