"""ASGI middleware: a request for a consumer instance goes to the process that has it, if several share the port. The first one has
all sessions of browsers.

The instance's process logs the caller in itself, with the request's own credential. A process that does not run has lost its
instances: then this one responds, which has none of that name (404). So does a process that ended before its response began. A form
of the console that such a process may have done is 503: this process cannot tell.

Tests: ``tests/http/processes_of_a_port/test_passing_on.py``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.access import SAFE_METHODS
from app.http.bodies import JSON_TYPE
from app.http.console.sessions import is_console
from app.http.consumers.names import owner_of
from app.http.errors import NO_STORE, RestAnswer, RestError
from app.http.processes.siblings import SiblingAway, Siblings, with_body
from app.http.processes.worker import PASSED

OF_BROWSERS: Final = 0
"""The process that has the sessions of browsers."""
AWAY: Final = RestAnswer(503, 50302, "The process for instances of this name starts again. Try again in a second.")
MAYBE_DONE: Final = RestAnswer(
    503,
    50302,
    "The process that took this form ended before it answered. It may have been done. Look before you send it again.",
)


class _PassedOn:
    """Stands for the route of a request in the metrics of the process that passed it on."""

    path: Final = "passed on"


def group_in(scope: Scope) -> str:
    """The group that the path of a request for consumers names, the same for all spellings of the path."""
    return _parts(scope)[2]


def owner_in(scope: Scope, processes: int) -> int | None:
    """The process that has the consumer instance or the browser's session that a request is for; None for all other requests."""
    if is_console(scope["path"]):
        return OF_BROWSERS
    if not scope["path"].startswith("/consumers/"):
        return None
    parts = _parts(scope)
    if len(parts) < 5 or parts[3] != "instances":
        return None
    return owner_of(parts[2], parts[4], processes)


def _parts(scope: Scope) -> list[str]:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return [unquote(part) for part in raw.decode("latin-1").split("/")]


class PassingOn:
    """Runs before callers are looked for."""

    def __init__(self, inner: ASGIApp, *, siblings: Siblings) -> None:
        self._inner = inner
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = None
        worker = self._siblings.worker
        if scope["type"] == "http" and PASSED not in scope:
            owner = owner_in(scope, worker.count)
        if owner is None or owner == worker.index:
            await self._inner(scope, receive, send)
            return
        scope["route"] = _PassedOn
        console = is_console(scope["path"])
        try:
            await self._siblings.pass_on(owner, scope, receive, send, console=console)
        except SiblingAway as away:
            if console and not away.untouched and scope["method"] not in SAFE_METHODS:
                # Without the time of a next try, because no program may repeat it.
                await Response(MAYBE_DONE.body(), MAYBE_DONE.status, NO_STORE, JSON_TYPE)(scope, receive, send)
                return
            del scope["route"]
            await self._inner(scope, receive if away.untouched else _nothing_more(receive), send)
        except RestError as error:
            await _refuse(error.answer)(scope, receive, send)


class PassedCreation(Response):
    """The response of the process that has the instances of a name that a client has chosen."""

    def __init__(self, siblings: Siblings, owner: int, body: bytes) -> None:
        super().__init__()
        self._siblings = siblings
        self._owner = owner
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope, receive = with_body(scope, self._body, receive)
        try:
            await self._siblings.pass_on(self._owner, scope, receive, send)
        except SiblingAway:
            await _refuse(AWAY)(scope, receive, send)
        except RestError as error:
            await _refuse(error.answer)(scope, receive, send)


def _nothing_more(receive: Receive) -> Receive:
    """The channel of a request whose body may be read already: no body, and then the client's end. The instance is looked for
    before any body is."""
    told = False

    async def receiving() -> Message:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] != "http.disconnect":
            pass
        return message

    return receiving


def _refuse(answer: RestAnswer) -> Response:
    return Response(answer.body(), answer.status, headers=answer.headers(), media_type=JSON_TYPE)
