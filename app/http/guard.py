"""``Access`` decides on each request before any route sees it. Preflights of allowed origins are answered here.

Tests: ``tests/http/test_access.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.types import Scope, Send

from app.core.metrics import Registry
from app.http.access import AUTHORITIES_KEPT, HEALTH_PATHS, Access, AccessRequest
from app.http.bodies import JSON_TYPE
from app.http.errors import RestAnswer

PREFLIGHT_KEPT_S: Final = b"600"
"""How long a browser may remember the answer to a preflight. Short, because the operator may change the settings."""
ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"

REFUSED_TEXT: Final = "Requests refused because of their Host or because of the page that sent them, by rule."


Header = tuple[bytes, bytes]


class GuardAnswer(NamedTuple):
    """The response to a request that reaches no route."""

    status: int
    headers: list[Header]
    body: bytes

    async def send_by(self, send: Send) -> None:
        # 204 has no body, and says no length either (RFC 9110, 8.6).
        length = [] if self.status == 204 else [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, *length]})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


class Guard:
    """Decides on requests."""

    def __init__(self, *, access: Access, registry: Registry) -> None:
        self._access = access
        self._registry = registry
        self._served: set[tuple[bytes, str | None, str]] = set()
        """Hosts, addresses and schemes that were allowed to requests which no web page sent."""

    def serves(self, host: bytes, server: tuple[str, int | None] | None, scheme: str) -> bool:
        """Whether a request for ``host``, sent by no web page, was served before at this address. Else ``check`` decides."""
        return (host, server[0] if server else None, scheme) in self._served

    def check(self, scope: Scope) -> GuardAnswer | Sequence[Header]:
        """The response, if no route may see the request; else the headers that the route's response gets besides its own."""
        plain = _plain(scope)
        if plain in self._served:
            return ()
        asked, headers = _asked(scope)
        refusal = self._access.check(asked)
        if refusal is not None:
            self._registry.counter("firn_http_refused_total", REFUSED_TEXT, rule=refusal.rule).value += 1
            body = RestAnswer(refusal.status, refusal.status, refusal.message).body()
            # The body of a refused request is not read, so the connection cannot serve another one.
            return GuardAnswer(refusal.status, [(b"content-type", JSON_TYPE.encode()), (b"connection", b"close")], body)
        if plain is not None and len(self._served) < AUTHORITIES_KEPT:
            self._served.add(plain)
        if not self._access.allows_foreign(asked):
            return ()
        assert asked.origin is not None
        allowed = b"*" if self._access.any_origin else asked.origin.encode("latin-1")
        shared = [(b"access-control-allow-origin", allowed), (b"vary", b"Origin")]
        if asked.method == "OPTIONS" and b"access-control-request-method" in headers:
            return GuardAnswer(204, [*shared, *_preflight(headers)], b"")
        return shared


def _plain(scope: Scope) -> tuple[bytes, str | None, str] | None:
    """All that ``Access`` looks at in a request that no web page sent; None for others, and where the host does not count."""
    host: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"host":
            if host is not None:
                return None
            host = value
        elif name == b"origin" or name.startswith(b"sec-fetch-"):
            return None
    if host is None or scope["path"] in HEALTH_PATHS:
        return None
    server = scope.get("server")
    return host, server[0] if server else None, scope.get("scheme", "http")


def _asked(scope: Scope) -> tuple[AccessRequest, dict[bytes, bytes]]:
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(raw)

    def text(name: bytes) -> str | None:
        value = headers.get(name)
        return None if value is None else value.decode("latin-1")

    server = scope.get("server")
    asked = AccessRequest(
        method=scope["method"],
        path=scope["path"],
        hosts=tuple(value.decode("latin-1") for name, value in raw if name == b"host"),
        origin=text(b"origin"),
        fetch_site=text(b"sec-fetch-site"),
        fetch_mode=text(b"sec-fetch-mode"),
        fetch_dest=text(b"sec-fetch-dest"),
        local_host=server[0] if server else None,
        scheme=scope.get("scheme", "http"),
    )
    return asked, headers


def _preflight(headers: dict[bytes, bytes]) -> list[Header]:
    answer = [
        (b"access-control-allow-methods", ALLOWED_METHODS),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"content-type")),
        (b"access-control-max-age", PREFLIGHT_KEPT_S),
    ]
    if b"access-control-request-private-network" in headers:
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer
