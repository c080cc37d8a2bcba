"""Pages: their headers, their errors, and how they are made in portions.

Every name, key, value and header is text that others wrote. HTML is made from it by templates that escape it, and the policy of
content lets no script and no style run that is not a file of this server.

Tests: ``tests/http/console/test_pages.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from html import escape
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response

from app import __version__
from app.core.errors import BrokerUnavailable, FirnError
from app.core.extras import install_hint
from app.core.turns import each
from app.http.access import SAFE_METHODS
from app.http.console.console import Console
from app.http.console.sessions import ROOT, Session, accepts_html
from app.http.console.texts.command_lines import Reach
from app.http.errors import BROKER_NOT_AVAILABLE, KAFKA_RETRIABLE, RestAnswer, RestError, answer_of
from app.http.gateway import Gateway
from app.http.serving import caller_of, counts_no_more, gateway_of

SESSION: Final = "firn.session"
"""Where a request's scope has its session (``app/http/login.py``)."""
HTML: Final = "text/html; charset=utf-8"
GUARDED: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every response of the console."""
OPEN_TO_READERS: Final = frozenset({"/console/login", "/console/logout"})
"""Forms of a console that only shows."""
READ_ONLY: Final = "This console only shows (firn.console.read.only). Use `firn` or HTTP to change something."
STORE_AWAY: Final = 50304
"""Error code of a page whose records lie in an object store that does not respond."""
_TITLES: Final = {
    KAFKA_RETRIABLE[1]: "Not possible now",
    STORE_AWAY: "The store does not respond",
    400: "That cannot be asked",
    401: "Log in first",
    403: "You have no right to that",
    404: "That is not there",
    405: "That cannot be asked",
    413: "That is too large",
    422: "That cannot be asked",
    429: "Too many read at once",
    503: "Not available now",
}
_COMES_AGAIN: Final = frozenset({KAFKA_RETRIABLE[1], STORE_AWAY, BROKER_NOT_AVAILABLE[1]})
"""Error codes of pages that a later try may show."""


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def session_of(request: Request) -> Session | None:
    """The session of a request that has logged in by it."""
    found: Session | None = request.scope.get(SESSION)
    return found


def reach_of(gateway: Gateway | None) -> Reach:
    """How the reader's commands reach the cluster: the broker with the lowest id, at the address that brokers tell the console.
    ``gateway``: None before the login."""
    if gateway is None:
        return Reach()
    brokers = gateway.cluster.view.brokers
    secured = gateway.settings.client.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"
    if not brokers:
        return Reach(secured=secured)
    first = brokers[min(brokers)]
    return Reach(first.host, first.port, secured)


async def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> Response:
    """A page, made in portions."""
    console = console_of(request)
    session = session_of(request)
    made = (await console.environment()).get_template(f"{template}.html")
    known = {
        "version": __version__,
        "now_ms": int(console.clock.now_ms()),
        "user": session.user if session else "",
        "logs_in": request.app.state.callers is not None,
        "acts": not console.read_only,
        "form_token": console.sessions.form_token(session),
        "path": request.url.path,
        "reach": reach_of(gateway_of(request)),
    }
    pieces: list[str] = []
    await each(pieces.append, made.generate(**known, **values))
    headers = {**GUARDED, "cache-control": "no-store", "vary": "Accept, Cookie"}
    return Response("".join(pieces), status_code, headers=headers, media_type=HTML)


def not_installed() -> Response:
    """The page of a server without the extra."""
    command = escape(install_hint("console"))
    text = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Firn</title><h1>Firn</h1>"
        "<p>The console is not installed here. Install it with this command, and start the server again.</p>"
        f"<pre>{command}</pre><p>HTTP API: <a href=/docs>/docs</a>. Metrics: <a href=/metrics>/metrics</a>.</p></html>"
    )
    return Response(text, 200, headers={**GUARDED, "cache-control": "no-store", "vary": "Accept"}, media_type=HTML)


async def refused(request: Request, answer: RestAnswer, runbook: str = "") -> Response:
    """The page of a request that failed. ``runbook``: one that may help."""
    if answer.error_code == STORE_AWAY:
        runbook = "store-unreachable"
    title = _TITLES.get(answer.error_code) or _TITLES.get(answer.status, "That failed")
    url = request.url
    again = url.path + (f"?{url.query}" if url.query else "") if answer.error_code in _COMES_AGAIN else ""
    safe = request.method in SAFE_METHODS
    response = await page(
        request,
        "error",
        status_code=answer.status,
        title=title,
        message=answer.message,
        again=again if safe else "",
        runbook=runbook,
        section="",
    )
    for name, value in answer.headers().items():
        response.headers[name] = value
    return response


def to_login(request: Request) -> Response:
    """The way to the page to log in, and back. It ends the session of the request."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    headers = {
        **GUARDED,
        "cache-control": "no-store",
        "set-cookie": console_of(request).sessions.set_cookie(request.scope, None),
    }
    return RedirectResponse(f"/console/login?next={quote(asked, safe='')}", 303, headers=headers)


def once_more(request: Request) -> Response:
    """A page that asks for itself again. A browser that follows a link of another site sends no cookie of ours. It sends the cookie
    with the second request, which is this page's own."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    url = escape(quote(asked, safe="/?&=%+:,;@!$'()*~-._"))
    head = f'<meta charset=utf-8><title>Firn</title><meta http-equiv=refresh content="0;url={url}">'
    text = f"<!doctype html><html lang=en>{head}</html>"
    return Response(text, headers={**GUARDED, "cache-control": "no-store"}, media_type=HTML)


class ConsoleRoute(APIRoute):
    """A page of the console. Its errors are pages, too; a login that has ended leads to the page to log in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            console = console_of(request)
            if not console.installed and (request.url.path != ROOT or accepts_html(request.scope["headers"])):
                return not_installed()
            try:
                if console.read_only and request.method not in SAFE_METHODS and self.path not in OPEN_TO_READERS:
                    raise RestError(403, READ_ONLY)
                return await handle(request)
            except (FirnError, RestError) as error:
                caller = caller_of(request)
                if caller is not None and counts_no_more(caller, error):
                    session = session_of(request)
                    if session is None:
                        raise  # a header of this request had the credential
                    request.app.state.callers.end(caller)
                    console.sessions.end(session)
                    return to_login(request)
                if isinstance(error, FirnError):
                    gateway_of(request).tell(self.path, error)
                runbook = "broker-down" if isinstance(error, BrokerUnavailable) else ""
                return await refused(request, answer_of(error), runbook)

        return handled
