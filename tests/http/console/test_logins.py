"""Sessions of the console, on a broker with logins and rules."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.http.callers import CallerLimits
from app.http.console.pages.logins import UNAVAILABLE, UNCHECKED, credential_of, next_of
from app.http.credentials import Basic, Bearer
from app.security.acls import Operation, ResourceType
from tests.http.secured import Secured, basic, secured

HTML = {"accept": "text/html"}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path, limits=CallerLimits(check_again_s=0.0)) as running:
        await running.add_user("carol", "dave")
        for name in ("hers", "his"):
            await running.broker.create_topic(name)
        await running.allow("carol", (Operation.READ, ResourceType.TOPIC, "hers"))
        await running.allow("dave", (Operation.READ, ResourceType.TOPIC, "his"))
        yield running


def token_in(text: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', text)
    assert found is not None, text
    return found[1]


async def log_in(http: Secured, user: str = "carol", password: str = "", **more: str) -> httpx.Response:
    page = await http.client.get("/console/login", headers=HTML)
    form = {"form_token": token_in(page.text), "user": user, "password": password or f"{user}-secret", **more}
    return await http.client.post("/console/login", data=form)


async def test_a_browser_is_led_to_the_login_and_back_to_its_page(http: Secured) -> None:
    asked = await http.client.get("/console/topics?q=h", headers=HTML)
    assert asked.status_code == 303
    assert asked.headers["location"] == "/console/login?next=%2Fconsole%2Ftopics%3Fq%3Dh"
    response = await log_in(http, next="/console/topics?q=h")
    assert (response.status_code, response.headers["location"]) == (303, "/console/topics?q=h")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    page = await http.client.get("/console/topics", headers=HTML)
    assert page.status_code == 200
    assert "hers" in page.text
    assert "his<" not in page.text
    assert (await http.client.get("/console/topics/his", headers=HTML)).status_code == 403
    settings = await http.client.get("/console/topics/hers/settings", headers=HTML)
    assert settings.status_code == 403
    assert "Your user needs the right DESCRIBE_CONFIGS on topic hers to see its settings." in settings.text
    assert (await http.client.get("/console/topics/hers/messages", headers=HTML)).status_code == 200


async def test_a_session_counts_for_the_console_alone(http: Secured) -> None:
    assert (await log_in(http)).status_code == 303
    for path in ("/v3/clusters", "/topics", "/metrics", "/docs", "/subjects", "/consoles"):
        assert (await http.client.get(path)).status_code == 401, path
        assert (await http.client.get(path, headers=HTML)).status_code == 401, path


async def test_a_link_of_another_site_leads_to_the_page_and_not_to_the_login(http: Secured) -> None:
    followed = {**HTML, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    page = await http.client.get('/console/topics?q="><b>', headers=followed)  # a browser leaves out the cookie
    assert page.status_code == 200
    assert 'content="0;url=/console/topics?q=%22%3E%3Cb%3E"' in page.text
    again = await http.client.get("/console/topics?q=x", headers={**HTML, "sec-fetch-site": "same-origin"})
    assert again.status_code == 303
    assert (await log_in(http)).status_code == 303
    assert "hers" in (await http.client.get("/console/topics", headers=followed)).text


async def test_programs_are_asked_for_a_credential_as_before(http: Secured) -> None:
    for path in ("/", "/console/topics"):
        response = await http.client.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Basic")
        assert (await http.client.get(path, headers=basic("carol", "carol-secret"))).status_code == 200


async def test_a_wrong_password_and_an_unknown_user_get_the_same_page(http: Secured) -> None:
    wrong = await log_in(http, "carol", "wrong")
    unknown = await log_in(http, "nobody", "wrong")
    odd = await log_in(http, "a:b", "wrong")
    assert wrong.status_code == unknown.status_code == odd.status_code == 401
    assert "set-cookie" not in wrong.headers
    assert "www-authenticate" not in wrong.headers
    for response, user in ((wrong, "carol"), (unknown, "nobody"), (odd, "a:b")):
        assert f'name="user" value="{user}"' in response.text, "so that only the password is typed again"
    texts = [wrong.text.replace("carol", ""), unknown.text.replace("nobody", ""), odd.text.replace("a:b", "")]
    assert texts[0] == texts[1] == texts[2]
    hostile = await log_in(http, '"><script>x</script>', "wrong")
    assert "<script>x" not in hostile.text
    assert len((await log_in(http, "u" * 9_000, "wrong")).text) < 8_000
    assert (await http.client.get("/console/topics", headers=HTML)).status_code == 303


async def test_a_form_without_the_token_of_its_session_changes_nothing(http: Secured) -> None:
    form = {"user": "carol", "password": "carol-secret"}
    for token in ({}, {"form_token": "0" * 64}):
        assert (await http.client.post("/console/login", data={**form, **token})).status_code == 403
    before = token_in((await http.client.get("/console/login", headers=HTML)).text)
    assert (await log_in(http)).status_code == 303
    for token in ({}, {"form_token": before}):
        assert (await http.client.post("/console/logout", data=token)).status_code == 403
    assert (await http.client.get("/console/topics", headers=HTML)).status_code == 200


async def test_a_form_of_another_origin_is_refused(http: Secured) -> None:
    page = await http.client.get("/console/login", headers=HTML)
    form = {"form_token": token_in(page.text), "user": "carol", "password": "carol-secret"}
    for origin in ("https://evil.example", "http://localhost:3000", "null"):
        response = await http.client.post("/console/login", data=form, headers={"origin": origin})
        assert response.status_code == 403, origin
    same = await http.client.post("/console/login", data=form, headers={"origin": "http://localhost"})
    assert same.status_code == 303


FOREIGN = ("https://evil.example/console/login", "http://localhost:3000/", "http://localhost@evil.example/", "about:x")


async def test_a_form_to_log_in_or_out_comes_from_a_page_of_this_host(http: Secured) -> None:
    page = await http.client.get("/console/login", headers=HTML)
    form = {"form_token": token_in(page.text), "user": "carol", "password": "carol-secret"}
    for referer in FOREIGN:
        response = await http.client.post("/console/login", data=form, headers={"referer": referer})
        assert response.status_code == 403, referer
    own = {"referer": "https://localhost/console/login?next=/"}
    assert (await http.client.post("/console/login", data=form, headers=own)).status_code == 303
    form = {"form_token": token_in((await http.client.get("/console/topics", headers=HTML)).text)}
    for referer in FOREIGN:
        response = await http.client.post("/console/logout", data=form, headers={"referer": referer})
        assert response.status_code == 403, referer
    assert (await http.client.post("/console/logout", data=form, headers=own)).status_code == 303


async def test_an_origin_that_may_use_rest_logs_no_browser_in(tmp_path: Path) -> None:
    origin = "https://ui.example"
    async with secured(tmp_path, allowed_origins=(origin,)) as http:
        await http.add_user("carol")
        page = await http.client.get("/console/login", headers=HTML)
        form = {"form_token": token_in(page.text), "user": "carol", "password": "carol-secret"}
        assert (await http.client.post("/console/login", data=form, headers={"origin": origin})).status_code == 403
        assert (await http.client.post("/console/login", data=form)).status_code == 303


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BrokerUnavailable("Broker 1 is away."), UNAVAILABLE),
        (RequestRejected(ErrorCode.UNSUPPORTED_VERSION, "The broker is of another version."), UNCHECKED),
    ],
)
@pytest.mark.parametrize("asked", ["serving", "mechanisms"])
async def test_a_login_that_no_broker_checks_is_a_page_that_says_so(
    http: Secured, monkeypatch: pytest.MonkeyPatch, error: FirnError, sentence: str, asked: str
) -> None:
    page = await http.client.get("/console/login", headers=HTML)
    form = {"form_token": token_in(page.text), "user": "carol", "password": "carol-secret"}

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(http.callers, {"serving": "_admit", "mechanisms": "mechanisms"}[asked], fail)
    response = await http.client.post("/console/login", data=form)
    assert response.status_code == 503
    assert sentence in response.text
    assert "set-cookie" not in response.headers


async def test_behind_a_proxy_that_encrypts_the_cookie_is_kept_from_other_hosts(tmp_path: Path) -> None:
    async with secured(tmp_path, plain_credentials=True) as http:
        await http.add_user("carol")
        cookie = (await log_in(http)).headers["set-cookie"]
        assert cookie.startswith("__Host-firn-")
        assert cookie.endswith("; Secure")
        http.client.cookies.clear()
        name, _, value = cookie.partition(";")[0].partition("=")
        page = await http.client.get("/console/topics", headers={**HTML, "cookie": f"{name}={value}"})
        assert page.status_code == 200
        out = await http.client.post(
            "/console/logout", data={"form_token": token_in(page.text)}, headers={"cookie": f"{name}={value}"}
        )
        assert out.headers["set-cookie"].startswith(f"{name}=; Path=/")


async def test_a_user_who_logs_out_is_out(http: Secured) -> None:
    assert (await log_in(http)).status_code == 303
    stolen = dict(http.client.cookies)
    page = await http.client.get("/console/topics", headers=HTML)
    assert "carol" in page.text
    out = await http.client.post("/console/logout", data={"form_token": token_in(page.text)})
    assert out.headers["location"] == "/console/login"
    http.client.cookies.update(stolen)
    assert (await http.client.get("/console/topics", headers=HTML)).status_code == 303


async def test_a_session_ends_with_its_credential(http: Secured) -> None:
    assert (await log_in(http)).status_code == 303
    assert (await http.client.get("/console/topics", headers=HTML)).status_code == 200
    await http.remove_user("carol")
    response = await http.client.get("/console/topics", headers=HTML)
    assert response.status_code == 303
    assert len(http.app.state.console.sessions) == 0


async def test_two_sessions_have_the_rights_of_their_own_users(http: Secured) -> None:
    assert (await log_in(http, "carol")).status_code == 303
    carols = dict(http.client.cookies)
    http.client.cookies.clear()
    assert (await log_in(http, "dave")).status_code == 303
    assert (await http.client.get("/console/topics/his", headers=HTML)).status_code == 200
    http.client.cookies.clear()
    http.client.cookies.update(carols)
    assert (await http.client.get("/console/topics/his", headers=HTML)).status_code == 403


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/", "/"),
        ("/console/topics?q=x&after=y", "/console/topics?q=x&after=y"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/console", "/"),
        ("/v1/drain", "/"),
        ("/console//evil.example", "/"),
        ("/console/x\r\nset-cookie: a=b", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_pages_of_the_console_alone(text: str, path: str) -> None:
    assert next_of(text) == path


def test_a_form_has_a_password_or_a_token() -> None:
    assert credential_of({"user": "carol", "password": "a:b"}) == Basic("carol", "a:b")
    assert credential_of({"token": " a.b.c "}) == Bearer("a.b.c")
    assert credential_of({"user": "carol", "password": ""}) is None
    assert credential_of({"user": "a:b", "password": "c"}) is None
    assert credential_of({"user": "a\0b", "password": "c"}) is None
    assert credential_of({}) is None
