"""The pages to log in and out. They exist only if callers must log in.

Tests: ``tests/http/console/test_logins.py``.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.core.errors import BrokerUnavailable, FirnError
from app.http.console.console import ASSETS
from app.http.console.forms import form_of
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of, page, session_of
from app.http.console.sessions import is_console
from app.http.credentials import Credential, NotACredential, read_authorization
from app.http.errors import RestAnswer, RestError

if TYPE_CHECKING:
    from app.http.callers import Callers

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

ADDRESS: Final = "firn.address"
"""Where a request's scope has the address of its client, where callers log in (``app/http/login.py``)."""
WRONG: Final = "The user, the password or the token is wrong."
UNAVAILABLE: Final = "No broker can be reached, so nobody can log in. The log of this server and /readyz say why."
UNCHECKED: Final = "No broker could check this login. Try again later."
USER_CHARS_MAX: Final = 256
"""Of the user that the page of a failed login keeps."""
IMMUTABLE: Final = "public, max-age=31536000, immutable"


def next_of(text: str) -> str:
    """The path after a login: a page of the console, or the first page."""
    path = text.partition("?")[0].partition("#")[0]
    safe = text.startswith("/") and "\\" not in text and text.isprintable() and is_console(path) and "//" not in path
    return text if safe else "/"


def credential_of(fields: dict[str, str]) -> Credential | None:
    """The credential of a form; None if its fields cannot be a credential."""
    if token := fields.get("token", "").strip():
        header = b"Bearer " + token.encode()
    else:
        user = fields.get("user", "")
        if ":" in user:
            return None
        header = b"Basic " + b64encode(f"{user}:{fields.get('password', '')}".encode())
    try:
        return read_authorization([header])
    except NotACredential:
        return None


@router.get("/console/login")
async def show_login(request: Request) -> Response:
    wanted = next_of(request.query_params.get("next", "/"))
    if request.app.state.callers is None or session_of(request) is not None:
        return RedirectResponse(wanted, 303, headers=dict(GUARDED))
    return await _login_page(request, wanted)


def _unavailable(callers: Callers, error: FirnError) -> str:
    """The sentence of a login that no broker could check."""
    callers.tell_unavailable(error)
    return UNAVAILABLE if isinstance(error, BrokerUnavailable) else UNCHECKED


async def _login_page(request: Request, wanted: str, status: int = 200, message: str = "", tried: str = "") -> Response:
    """``tried``: the user of a login that failed, so that only the password is typed again."""
    callers: Callers = request.app.state.callers
    try:
        offered = await callers.mechanisms()
    except FirnError as error:
        offered, message, status = (), _unavailable(callers, error), 503
    tokens = "OAUTHBEARER" in offered
    return await page(
        request, "login", status_code=status, next=wanted, message=message, tried=tried, tokens=tokens, section=""
    )


@router.post("/console/login")
async def log_in(request: Request) -> Response:
    if request.app.state.callers is None:
        return RedirectResponse("/", 303, headers=dict(GUARDED))
    from app.http.callers import CallerRefused

    fields = await form_of(request)
    wanted = next_of(fields.get("next", "/"))
    callers: Callers = request.app.state.callers
    credential = credential_of(fields)
    user = fields.get("user", "")[:USER_CHARS_MAX]
    if credential is None:
        return await _login_page(request, wanted, 401, WRONG, user)
    try:
        async with callers.serving(credential, request.scope.get(ADDRESS, "")):
            pass
    except CallerRefused as refusal:
        refused: RestAnswer = refusal.answer
        message = WRONG if refused.status == 401 else refused.message
        return await _login_page(request, wanted, refused.status, message, user)
    except FirnError as error:
        return await _login_page(request, wanted, 503, _unavailable(callers, error), user)
    console = console_of(request)
    if (before := session_of(request)) is not None:
        console.sessions.end(before)
    name = console.sessions.begin(credential, fields.get("user", "") or "token")
    headers = {**GUARDED, "cache-control": "no-store", "set-cookie": console.sessions.set_cookie(request.scope, name)}
    return RedirectResponse(wanted, 303, headers=headers)


@router.post("/console/logout")
async def log_out(request: Request) -> Response:
    await form_of(request)
    session = session_of(request)
    if session is not None:
        console_of(request).sessions.end(session)
    headers = {
        **GUARDED,
        "cache-control": "no-store",
        "set-cookie": console_of(request).sessions.set_cookie(request.scope, None),
    }
    return RedirectResponse("/console/login", 303, headers=headers)


@router.get(ASSETS + "{name}")
async def asset(name: str, request: Request) -> Response:
    found = await console_of(request).asset(name)
    if found is None:
        raise RestError(404, "There is no such file.")
    return Response(found.content, headers={**GUARDED, "cache-control": IMMUTABLE}, media_type=found.kind)
