from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.http.console.sessions import Sessions, cookie_of, is_console, is_open, set_cookie
from app.http.credentials import Basic

ALICE = Basic("alice", "secret")


def scope(name: str | None = None, *, port: int = 8080, scheme: str = "http") -> dict[str, Any]:
    found: dict[str, Any] = {"server": ("127.0.0.1", port), "scheme": scheme, "headers": []}
    if name is not None:
        prefix = "__Host-" if scheme == "https" else ""
        found["headers"] = [(b"cookie", f"a=b; {prefix}firn-{port}={name}; c=d".encode())]
    return found


async def test_a_session_is_found_by_its_cookie_until_it_ends() -> None:
    sessions = Sessions()
    name = sessions.begin(ALICE, "alice")
    session = sessions.find(scope(name))
    assert session is not None
    assert session.credential == ALICE
    assert sessions.find(scope(name + "x")) is None
    assert sessions.find(scope()) is None
    sessions.end(session)
    assert sessions.find(scope(name)) is None


async def test_a_session_ends_when_it_is_idle_and_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    sessions = Sessions(idle_s=10, lifetime_s=25)
    idle, busy = sessions.begin(ALICE, "alice"), sessions.begin(ALICE, "alice")
    for clock[0] in (9.0, 18.0, 24.0):
        assert sessions.find(scope(busy)) is not None
    assert sessions.find(scope(idle)) is None
    clock[0] = 25.0
    assert sessions.find(scope(busy)) is None
    assert len(sessions) == 0


@pytest.mark.parametrize("asks", [True, False])
async def test_the_credentials_of_ended_sessions_are_forgotten_with_the_next_request(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    sessions = Sessions(idle_s=10, lifetime_s=25)
    old, idle = sessions.begin(ALICE, "alice"), sessions.begin(ALICE, "alice")
    for clock[0] in (9.0, 18.0):
        assert sessions.find(scope(old)) is not None
    assert sessions.find(scope(idle)) is None
    assert len(sessions) == 1
    clock[0] = 25.0
    if asks:
        assert sessions.find(scope()) is None
    else:
        sessions.begin(ALICE, "alice")
    assert len(sessions) == (0 if asks else 1)


async def test_a_new_session_takes_the_place_of_the_one_that_was_unused_longest() -> None:
    sessions = Sessions(sessions_max=2)
    first, second = sessions.begin(ALICE, "alice"), sessions.begin(ALICE, "alice")
    assert sessions.find(scope(first)) is not None
    third = sessions.begin(ALICE, "alice")
    assert [sessions.find(scope(name)) is not None for name in (first, second, third)] == [True, False, True]


async def test_a_token_of_forms_belongs_to_its_session() -> None:
    sessions = Sessions()
    mine, other = (sessions.find(scope(sessions.begin(ALICE, "alice"))) for _ in range(2))
    token = sessions.form_token(mine)
    assert sessions.is_form_token(mine, token)
    assert not sessions.is_form_token(other, token)
    assert not sessions.is_form_token(None, token)
    assert not sessions.is_form_token(mine, "ä")
    assert not Sessions().is_form_token(mine, token)


def test_a_cookie_is_kept_from_scripts_and_other_sites_and_over_tls_from_other_hosts() -> None:
    assert set_cookie(scope(), "x") == "firn-8080=x; Path=/; HttpOnly; SameSite=Strict"
    assert set_cookie(scope(scheme="https"), "x") == ("__Host-firn-8080=x; Path=/; HttpOnly; SameSite=Strict; Secure")
    assert "Max-Age=0" in set_cookie(scope(), None)
    proxied = Sessions(encrypted=True).set_cookie(scope(), "x")
    assert proxied == "__Host-firn-8080=x; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert Sessions().set_cookie(scope(), "x") == set_cookie(scope(), "x")
    assert cookie_of({**scope("x"), "server": ("127.0.0.1", 8081)}) is None


def test_paths_of_the_console_are_told_from_others() -> None:
    assert [is_console(path) for path in ("/", "/console", "/console/topics", "/consoles", "/v3/clusters")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [is_open(path) for path in ("/", "/console/login", "/console/assets/x.css", "/console/topics")] == [
        False,
        True,
        True,
        False,
    ]
