"""Forms of the console: checks of their sender, and their fields.

A form is accepted if its page belongs to the host that the request names, and if it has the token of its session (ADR 0047, CS6).
Long fields are read in portions.

Tests: ``tests/http/console/test_forms.py``.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_to_bytes

from fastapi import Request

from app.core.limits import HTTP_BODY_TIMEOUT_MS, KIB
from app.core.turns import Steps, Stepwise, run
from app.http.access import is_of_host, origin_of
from app.http.bodies import whole_body
from app.http.body_budget import BodyBudget
from app.http.console.rendering import console_of, session_of
from app.http.errors import RestError
from app.http.read_budget import PageBytes

FORM_BYTES_MAX: Final = 32 * KIB
FIELDS_MAX: Final = 20
DECODED_AT_ONCE: Final = 32 * KIB
"""Of a field's bytes in a step: about 3 ms if each is an escape."""


def check_sender(request: Request) -> None:
    """Raises: RestError 403 if the page that sent a form is not of the host that the request names.

    The page to log in has no session, so its token alone would let a page of another host log its reader in as another user. An
    origin that may use REST may not do that either.
    """
    host = request.headers.get("host", "")
    origin, referer = request.headers.get("origin"), request.headers.get("referer")
    for sender in (origin, origin_of(referer) if referer else None):
        if sender is not None and not is_of_host(sender, host):
            raise RestError(
                403, "The form comes from a page of another host. Open its page at this host, and send it from there."
            )


@Stepwise
def fields_of(body: bytes) -> Steps[dict[str, str]]:
    """The fields of a form. Raises: ValueError if there are too many, or if one is not UTF-8."""
    if body.count(b"&") >= FIELDS_MAX:
        raise ValueError("The form has too many fields.")
    fields: dict[str, str] = {}
    for part in body.replace(b"+", b" ").split(b"&"):
        name, _, value = part.partition(b"=")
        pieces = []
        for piece in _pieces(value):
            pieces.append(unquote_to_bytes(piece))
            yield
        if name:
            fields[unquote_to_bytes(name[:DECODED_AT_ONCE]).decode()] = b"".join(pieces).decode()
    return fields


def _pieces(value: bytes) -> Iterator[bytes]:
    """Pieces of an escaped text, none of which ends within an escape."""
    begin = 0
    while begin < len(value):
        end = begin + DECODED_AT_ONCE
        if (at := value.rfind(b"%", max(begin + 1, end - 2), end)) >= 0 and end < len(value):
            end = at
        yield value[begin:end]
        begin = end


def done_token(request: Request, done: str) -> str:
    """The token that proves to the page after a form that ``done`` was done."""
    return console_of(request).sessions.done_token(session_of(request), done)


def is_done(request: Request, done: str) -> bool:
    """Whether the query has the token that a form of this session got for ``done``."""
    token = request.query_params.get("proof", "")
    return hmac.compare_digest(done_token(request, done).encode(), token.encode())


async def form_of(
    request: Request, *, bytes_max: int = FORM_BYTES_MAX, held: PageBytes | None = None
) -> dict[str, str]:
    """The fields of a form of the console. ``held`` has the bytes of its body afterwards; without it they are given back.

    Raises: RestError 400, 403 if it is no form of this console, 408, 413, 429; ClientLeft.
    """
    check_sender(request)
    if held is None:
        budget: BodyBudget = request.app.state.body_budget
        with budget.whole.page() as own:  # a form to log in has no caller yet, whose part of the budget it could take
            return await form_of(request, bytes_max=bytes_max, held=own)
    body = await whole_body(request, bytes_max=bytes_max, idle_timeout_ms=HTTP_BODY_TIMEOUT_MS, held=held)
    try:
        fields = await run(fields_of.steps(bytes(body)))
    except ValueError:
        raise RestError(400, "The body is no form of the console.") from None
    if not console_of(request).sessions.is_form_token(session_of(request), fields.get("form_token", "")):
        raise RestError(403, "The form is not of this session. Open its page again, and send it from there.")
    return fields
