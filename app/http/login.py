"""ASGI middleware: finds the caller of each request, before a route is looked for. Only health needs no login.

It is imported only where callers log in.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.addresses import Networks
from app.core.errors import BrokerUnavailable, FirnError
from app.http.access import HEALTH_PATHS
from app.http.bodies import JSON_TYPE
from app.http.callers import TOKENS, CallerRefused, Callers
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
        callers: Callers = scope["app"].state.callers
        async with AsyncExitStack() as stack:
            try:
                credential = read_authorization([value for name, value in scope["headers"] if name == b"authorization"])
                if credential is not None:
                    peer = scope["client"][0] if scope.get("client") else ""
                    address = client_address(peer, scope["headers"], self._proxies, self._header)
                    scope[CALLER] = await stack.enter_async_context(callers.serving(credential, address))
                elif not self._anonymous:
                    raise CallerRefused(NEEDED)
            except NotACredential:
                await _refuse(scope, send, REFUSED, callers)
                return
            except CallerRefused as refusal:
                await _refuse(scope, send, refusal.answer, callers)
                return
            except FirnError as error:
                if isinstance(error, BrokerUnavailable):
                    callers.tell_unavailable(error)
                await _refuse(scope, send, answer_of(error), callers)
                return
            await self._inner(scope, receive, send)


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
