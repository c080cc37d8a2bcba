"""ASGI middleware: finds the caller of each request, before a route is looked for. Health needs no login, and the console's page to
log in needs none.

A page of the console may bring a session in place of a credential (ADR 0047, CS). It is imported only where callers log in.

Tests: ``tests/http/test_process.py``, ``tests/http/test_callers.py``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.addresses import Networks
from app.core.errors import BrokerUnavailable, FirnError
from app.http.access import HEALTH_PATHS
from app.http.bodies import JSON_TYPE
from app.http.callers import TOKENS, CallerRefused, Callers
from app.http.console.console import Console
from app.http.console.pages.logins import ADDRESS
from app.http.console.rendering import SESSION, once_more, refused, to_login
from app.http.console.sessions import Session, accepts_html, is_console, is_open
from app.http.credentials import NotACredential, read_authorization
from app.http.errors import NEEDED, REFUSED, RETRY_AFTER_S, RestAnswer, answer_of
from app.http.forwarded import client_address
from app.http.gateway import HttpSettings
from app.http.serving import CALLER

BASIC: Final = b'Basic realm="Firn", charset="UTF-8"'
BEARER: Final = b'Bearer realm="Firn"'


def challenges(offered: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """The ``WWW-Authenticate`` headers for the ways to log in. While the broker's mechanisms are unknown, both ways are named."""
    found = []
    if not offered or any(one != TOKENS for one in offered):
        found.append((b"www-authenticate", BASIC))  # first: some browsers look at the first one only
    if not offered or TOKENS in offered:
        found.append((b"www-authenticate", BEARER))
    return found


class Login:
    """Runs before every route."""

    def __init__(self, inner: ASGIApp, *, settings: HttpSettings) -> None:
        self._inner = inner
        self._anonymous = settings.anonymous
        self._proxies = Networks(settings.trusted_proxies)
        self._header = settings.forwarded_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._inner(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        address = client_address(peer, scope["headers"], self._proxies, self._header)
        session = self._session(scope)
        if is_open(scope["path"]):
            scope[ADDRESS] = address
            await self._inner(scope, receive, send)
            return
        callers: Callers = scope["app"].state.callers
        async with AsyncExitStack() as stack:
            try:
                credential = read_authorization([value for name, value in scope["headers"] if name == b"authorization"])
                if credential is not None:
                    scope.pop(SESSION, None)
                elif session is not None:
                    credential = session.credential
                if credential is not None:
                    scope[CALLER] = await stack.enter_async_context(callers.serving(credential, address))
                elif not self._anonymous:
                    raise CallerRefused(NEEDED)
            except NotACredential:
                await _refuse(scope, send, REFUSED, callers)
                return
            except CallerRefused as refusal:
                await self._refuse_caller(scope, receive, send, refusal.answer, callers)
                return
            except FirnError as error:
                if isinstance(error, BrokerUnavailable):
                    callers.tell_unavailable(error)
                await self._refuse_caller(scope, receive, send, answer_of(error), callers)
                return
            await self._inner(scope, receive, send)

    @staticmethod
    def _session(scope: Scope) -> Session | None:
        """The session of a request to a page of the console. The cookie counts nowhere else."""
        if not is_console(scope["path"]):
            return None
        console: Console = scope["app"].state.console
        session = console.sessions.find(scope)
        if session is not None:
            scope[SESSION] = session
        return session

    @staticmethod
    async def _refuse_caller(scope: Scope, receive: Receive, send: Send, answer: RestAnswer, callers: Callers) -> None:
        """A refused browser sees a page; its session ends with its credential."""
        console: Console = scope["app"].state.console
        session: Session | None = scope.get(SESSION)
        wants_page = is_console(scope["path"]) and console.installed and (session or accepts_html(scope["headers"]))
        if not wants_page or (session is None and any(name == b"authorization" for name, _ in scope["headers"])):
            await _refuse(scope, send, answer, callers)
            return
        request = Request(scope, receive)
        if answer.status == 401:
            if session is not None:
                console.sessions.end(session)
            follows_a_link = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
            response = once_more(request) if follows_a_link and session is None else to_login(request)
        else:
            response = await refused(request, answer)
        await response(scope, receive, send)


async def _refuse(scope: Scope, send: Send, answer: RestAnswer, callers: Callers) -> None:
    body = answer.body()
    headers = [(b"content-type", JSON_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if answer.status == 401:
        headers += challenges(callers.offered)
    if answer.status == 503:
        headers.append((b"retry-after", RETRY_AFTER_S.encode()))
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]):
        headers.append((b"connection", b"close"))  # the body of a refused request is not read
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
