"""Which requests the HTTP interface serves, by what a browser says of them: the rules, and the application that keeps them."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from app.http.access import HEALTH_PATHS, Access, AccessRequest, parse_authority, parse_hosts, parse_origins
from tests.support.broker import RunningBroker
from tests.support.routes import served_routes

ASKED = AccessRequest(method="POST", path="/v3/clusters", hosts=("localhost:8080",), local_host="10.1.2.3")


def status(access: Access, asked: AccessRequest) -> int:
    refusal = access.check(asked)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("localhost", "", 200),
        ("LocalHost.:8080", "", 200),
        ("127.0.0.1:9", "", 200),
        ("[::1]:8080", "", 200),
        ("[0:0:0:0:0:0:0:1]", "", 200),
        ("10.1.2.3:8080", "", 200),
        ("[::ffff:10.1.2.3]", "", 200),
        ("10.1.2.4:8080", "", 421),
        ("evil.example:8080", "", 421),
        ("localhost.evil.example", "", 421),
        ("evil.example", "firn.example", 421),
        ("firn.example", "firn.example", 200),
        ("firn.example:8080", "firn.example", 200),
        ("firn.example:8081", "firn.example:8080", 421),
        ("firn.example", "firn.example:80", 200),
        ("a.firn.example:1", "*.firn.example", 200),
        ("firn.example", "*.firn.example", 421),
        ("evilfirn.example", "*.firn.example", 421),
        ("fd00::7", "fd00::7", 400),
        ("[fd00::7]", "fd00::7", 200),
        ("anything", "*", 200),
        ("", "", 400),
        ("localhost:x", "", 400),
        ("localhost/evil.example", "", 400),
        ("user@localhost", "", 400),
        ("localhost:99999", "", 400),
    ],
)
def test_only_the_servers_own_and_allowed_hosts_are_served(host: str, allowed: str, expected: int) -> None:
    assert status(Access(hosts=parse_hosts(allowed)), replace(ASKED, hosts=(host,))) == expected


def test_a_request_has_one_host() -> None:
    assert status(Access(), replace(ASKED, hosts=())) == 400
    assert status(Access(), replace(ASKED, hosts=("localhost", "localhost"))) == 400


@pytest.mark.parametrize("path", sorted(HEALTH_PATHS))
def test_health_is_told_whatever_host_is_asked_for(path: str) -> None:
    for hosts in ((), ("10.9.9.9",), ("a load balancer",)):
        assert status(Access(), replace(ASKED, method="GET", path=path, hosts=hosts)) == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("host", "origin", "allowed", "expected"),
    [
        ("localhost:8080", "http://localhost:8080", "", 200),
        ("localhost", "http://localhost", "", 200),
        ("localhost:80", "http://localhost", "", 200),
        ("localhost", "https://localhost", "", 200),
        ("localhost:8080", "http://localhost:3000", "", 403),
        ("localhost:8080", "http://127.0.0.1:8080", "", 403),
        ("localhost:8080", "http://evil.example", "", 403),
        ("localhost:8080", "null", "", 403),
        ("localhost:8080", "", "", 403),
        ("localhost:8080", "file://", "", 403),
        ("localhost:8080", "https://ui.example", "https://ui.example", 200),
        ("localhost:8080", "https://ui.example:443", "https://ui.example", 200),
        ("localhost:8080", "http://ui.example", "https://ui.example", 403),
        ("localhost:8080", "https://ui.example:444", "https://ui.example", 403),
        ("localhost:8080", "null", "*", 200),
    ],
)
def test_only_pages_of_own_and_allowed_origins_are_served(
    method: str, host: str, origin: str, allowed: str, expected: int
) -> None:
    asked = replace(ASKED, method=method, hosts=(host,), origin=origin)
    assert status(Access(origins=parse_origins(allowed)), asked) == expected


@pytest.mark.parametrize(
    ("method", "site", "mode", "dest", "expected"),
    [
        ("POST", "same-origin", "cors", "empty", 200),
        ("POST", "none", "navigate", "document", 200),
        ("POST", "cross-site", "navigate", "document", 403),
        ("POST", "same-site", "no-cors", "empty", 403),
        ("GET", "cross-site", "no-cors", "image", 403),
        ("GET", "cross-site", "navigate", "iframe", 403),
        ("GET", "cross-site", "navigate", "document", 200),
        ("GET", "same-site", "cors", "empty", 403),
    ],
)
def test_what_a_browser_says_of_a_page_counts_where_it_names_no_origin(
    method: str, site: str, mode: str, dest: str, expected: int
) -> None:
    asked = replace(ASKED, method=method, fetch_site=site, fetch_mode=mode, fetch_dest=dest)
    assert status(Access(), asked) == expected


@pytest.mark.parametrize("text", ["http://a", "a b", "a/b", "a:x", "a.*", "*.*", "a@b"])
def test_what_is_no_host_is_not_allowed_as_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["a", "null", "ftp://a", "http://a/b", "http://", "http://a b"])
def test_what_is_no_origin_is_not_allowed_as_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        parse_origins(text)


@given(st.text(max_size=60))
def test_no_host_header_breaks_the_rule(text: str) -> None:
    authority = parse_authority(text)
    served = status(Access(), replace(ASKED, hosts=(text,), local_host=None)) == 200
    assert served == (authority is not None and authority.host in ("localhost", "127.0.0.1", "::1"))


# --- the application --------------------------------------------------------------------------------------------------


async def test_no_route_serves_a_foreign_host_or_origin(http: httpx.AsyncClient, application: FastAPI) -> None:
    found = sorted(served_routes(application))
    assert len(found) > 20
    for method, path in found:
        foreign = await http.request(method, path, headers={"Host": "evil.example"})
        assert foreign.status_code == (200 if path in HEALTH_PATHS else 421), (method, path)
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            page = await http.request(method, path, headers=headers)
            assert page.status_code == 403, (method, path)
            assert not any(name.startswith("access-control") for name in page.headers)
    metrics = (await http.get("/metrics")).text
    assert f'firn_http_refused_total{{process="http",rule="origin"}} {3 * len(found)}' in metrics


async def test_a_page_elsewhere_can_neither_make_a_topic_nor_write_to_one(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    plain = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    made = await http.post(f"{cluster}/topics", content=b'{"topic_name": "evil"}', headers=plain)
    wrote = await http.post(f"{cluster}/topics/t/records", content=b'{"value": {"data": 1}}', headers=plain)
    rebound = await http.post(f"{cluster}/topics", json={"topic_name": "evil"}, headers={"Host": "evil.example"})
    assert [one.status_code for one in (made, wrote, rebound)] == [403, 403, 421]
    assert sorted(one.json()["error_code"] for one in (made, wrote, rebound)) == [403, 403, 421]
    assert "--http-allowed-origins http://evil.example" in made.json()["message"]
    assert "--http-allowed-hosts evil.example" in rebound.json()["message"]
    assert broker.node.cluster.image.topic("evil") is None
    assert broker.log("t").log_end_offset == 0


async def test_the_documentation_works_from_its_own_origin(http: httpx.AsyncClient, cluster: str) -> None:
    browser = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    assert (await http.get("/docs", headers={"Sec-Fetch-Site": "none"})).status_code == 200
    assert (await http.get("/openapi.json", headers=browser)).status_code == 200
    own = {**browser, "Origin": "http://firn"}
    assert (await http.post(f"{cluster}/topics", json={"topic_name": "x"}, headers=own)).status_code == 201


async def test_a_preflight_of_a_page_elsewhere_is_refused(http: httpx.AsyncClient) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    refused = await http.options("/v3/clusters", headers=headers)
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_pages_of_an_allowed_origin_may_ask_and_read(allowing: httpx.AsyncClient) -> None:
    page = {"Origin": "https://ui.example"}
    asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = await allowing.options("/v3/clusters", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://ui.example"
    assert preflight.headers["access-control-allow-headers"] == "content-type"
    answer = await allowing.get("/v3/clusters", headers=page)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://ui.example")
    assert answer.headers["vary"] == "Origin"
    plain = await allowing.get("/v3/clusters")
    assert "access-control-allow-origin" not in plain.headers
    assert (await allowing.get("/v3/clusters", headers={"Origin": "https://other.example"})).status_code == 403
