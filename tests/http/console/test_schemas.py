"""Pages of schemas over a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import running_broker
from tests.support.callers import Everybody
from tests.support.console import served_by


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL) as broker, served_by(broker) as http:
        yield http


async def register(http: httpx.AsyncClient, subject: str, *fields: str, doc: str = "", **more: object) -> None:
    record = {
        "type": "record",
        "name": "Flight",
        **({"doc": doc} if doc else {}),
        "fields": [{"name": name, "type": "string", "default": ""} for name in fields],
    }
    body = {"schema": json.dumps(record), **more}
    made = await http.post(f"/subjects/{subject}/versions", json=body, headers={"accept": "*/*"})
    assert made.status_code == 200, made.text


async def test_the_list_has_pages_that_together_have_each_subject_once(
    registry: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = (await registry.get("/console/schemas")).text
    assert "There is no subject that you may see." in empty
    assert "firn schema register" in empty
    monkeypatch.setattr("app.http.console.pages.schemas.SUBJECTS_A_PAGE", 2)
    wanted = ["a-value", "b-value", "c-value", "other-value", "other.two-value"]
    for name in wanted:
        await register(registry, name, "origin")
    found: list[str] = []
    url: str | None = "/console/schemas"
    while url is not None:
        text = (await registry.get(url)).text
        found += re.findall(r'<a href="/console/schemas/([^"/?]+)">', text)
        link = re.search(r'rel="next" href="([^"]+)"', text)
        url = link[1].replace("&amp;", "&") if link else None
    assert found == wanted
    filtered = (await registry.get("/console/schemas?q=other")).text
    assert "2 subjects of 5" in filtered.replace(' <span class="quiet">', "").replace("</span>", "")
    assert "a-value" not in filtered


async def test_a_subject_has_its_versions_with_their_references_and_its_level(registry: httpx.AsyncClient) -> None:
    await register(registry, "flights-value", "origin")
    await register(registry, "flights-value", "origin", "target")
    user = {"name": "Flight", "subject": "flights-value", "version": 2}
    trip = {"schema": json.dumps({"type": "record", "name": "Trip", "fields": [{"name": "leg", "type": "Flight"}]})}
    made = await registry.post("/subjects/trips-value/versions", json={**trip, "references": [user]})
    assert made.status_code == 200, made.text
    set_ = await registry.put("/config/flights-value", json={"compatibility": "FULL"})
    assert set_.status_code == 200, set_.text
    flights = (await registry.get("/console/schemas/flights-value")).text
    assert "<dd>FULL</dd>" in flights
    assert flights.index("/versions/2") < flights.index("/versions/1")
    assert '<td data-label="Referred to by" class="n">1</td>' in flights
    trips = (await registry.get("/console/schemas/trips-value")).text
    assert 'BACKWARD <span class="quiet">not its own</span>' in trips
    one = (await registry.get("/console/schemas/trips-value/versions/1")).text
    assert '<a href="/console/schemas/flights-value/versions/2">2</a>' in one
    assert "This is the first version" in one
    referred = (await registry.get("/console/schemas/flights-value/versions/2")).text
    assert '<a href="/console/schemas/trips-value/versions/1">' in referred


async def test_a_version_shows_its_text_and_what_changed_since_another_one(registry: httpx.AsyncClient) -> None:
    await register(registry, "flights-value", "origin")
    await register(registry, "flights-value", "origin", "target")
    await register(registry, "flights-value", "origin", "target", "seats")
    third = (await registry.get("/console/schemas/flights-value/versions/3")).text
    assert "From version 2 to version 3" in third
    added = re.findall(r"<ins>([^<]*)</ins>", third)
    assert any("seats" in line for line in added)
    assert not any("target" in line for line in added)
    assert "\n  &#34;fields&#34;: [\n" in third
    compared = (await registry.get("/console/schemas/flights-value/versions/3?against=1")).text
    assert any("target" in line for line in re.findall(r"<ins>([^<]*)</ins>", compared))
    back = (await registry.get("/console/schemas/flights-value/versions/1?against=3")).text
    assert any("seats" in line for line in re.findall(r"<del>([^<]*)</del>", back))
    for path, status in (
        ("flights-value/versions/9", 404), ("flights-value/versions/x", 422), ("none", 404),
        ("flights-value/versions/3?against=9", 404),
    ):  # fmt: skip
        refused = await registry.get(f"/console/schemas/{path}")
        assert refused.status_code == status, path
        assert "content-security-policy" in refused.headers


async def test_hostile_names_and_texts_are_text(registry: httpx.AsyncClient) -> None:
    await register(registry, "a%2F%3Cb%3E-value", "origin", doc="</pre><script>alert(1)</script>")
    await register(registry, "a%2F%3Cb%3E-value", "origin", "target", doc="</ins><script>alert(2)</script>")
    listed = (await registry.get("/console/schemas")).text
    assert '"/console/schemas/a%2F%3Cb%3E-value"' in listed
    for path in ("", "/versions/1", "/versions/2"):
        shown = await registry.get(f"/console/schemas/a%2F%3Cb%3E-value{path}")
        assert shown.status_code == 200, shown.text
        assert "<script>alert" not in shown.text
        assert "&lt;script&gt;alert" in shown.text


async def test_an_older_cluster_has_a_page_with_the_command_that_raises_its_level(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=REGISTRY_LEVEL - 1) as broker, served_by(broker) as http:
        page = await http.get("/console/schemas")
        assert page.status_code == 200
        assert f"firn cluster features --upgrade firn.version={REGISTRY_LEVEL}" in page.text


async def test_a_caller_sees_the_subjects_of_its_topics_alone(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path,
        new_level=REGISTRY_LEVEL,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:admin",
    ) as broker:
        doorkeeper = broker.node.context.doorkeeper = Everybody(broker.node.context.rights, "User:admin")
        async with served_by(broker) as admin:
            await register(admin, "secret-value", "origin")
            assert "secret-value" in (await admin.get("/console/schemas")).text
        doorkeeper.principal = "User:nobody"
        async with served_by(broker) as nobody:
            assert "secret" not in (await nobody.get("/console/schemas")).text
            assert (await nobody.get("/console/schemas/secret-value")).status_code == 404
            assert (await nobody.get("/console/schemas/secret-value/versions/1")).status_code == 404


async def test_pages_build_no_list_of_all_referrers(
    registry: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(registry, "base", "origin")
    for name in ("int", "long", "string"):
        body = {"schema": f'"{name}"', "references": [{"name": "base", "subject": "base", "version": 1}]}
        sent = await registry.post(f"/subjects/{name}/versions", json=body, headers={"accept": "*/*"})
        assert sent.status_code == 200, sent.text

    def referrers(*_: object) -> None:
        raise AssertionError("A list of all referrers was built.")

    monkeypatch.setattr("app.registry.view.View.referrers", referrers)
    monkeypatch.setattr("app.http.console.pages.schemas.NAMED_MAX", 2)
    assert '<td data-label="Referred to by" class="n">3</td>' in (await registry.get("/console/schemas/base")).text
    version = (await registry.get("/console/schemas/base/versions/1")).text
    assert "1 more." in version
