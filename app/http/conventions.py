"""Conventions of HTTP that hold for the requests of all routes. ``Front`` applies them before all else.

- HEAD is GET without a body (RFC 9110, 9.3.2). Health checks of load balancers use it.
- A path with a slash at its end names the same resource as without, as in Confluent's REST proxy.
- An escaped slash (%2F) does not end a part of a path. Ids of groups and of members may have one.
- REST v3 is below ``/kafka``, too, as in Confluent's servers. The links of an answer then begin so.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import Message, Scope, Send

KAFKA: Final = "/kafka"
_V3_BELOW: Final = "/kafka/v3/"
ESCAPED: Final = "firn.escaped"
"""True in the scope of a request whose path has an escaped slash. Then slashes and percent signs in its parts are still escaped."""
HEAD: Final = "firn.head"
"""True in the scope of a HEAD request, which routes see as GET. A stream without an end would never respond to it."""


def in_one_form(scope: Scope) -> Scope:
    """The scope of a request as routes and metrics see it: GET for HEAD, and one form of each path."""
    changed: dict[str, Any] = {}
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if path.startswith(_V3_BELOW):
        path, raw = path.removeprefix(KAFKA), raw.removeprefix(KAFKA.encode())
        changed |= {"path": path, "raw_path": raw, "root_path": KAFKA}
    if b"%2f" in raw.lower():
        changed[ESCAPED] = True
        kept = raw.replace(b"%25", b"%2525").replace(b"%2F", b"%252F").replace(b"%2f", b"%252F")
        changed["path"] = path = unquote(kept.partition(b"?")[0].decode("latin-1"))
    if path.endswith("/") and path != "/":
        changed["path"] = path.rstrip("/") or "/"
        if raw:
            changed["raw_path"] = raw.rstrip(b"/") or b"/"
    if scope["method"] == "HEAD":
        changed |= {"method": "GET", HEAD: True}
    return {**scope, **changed} if changed else scope


def whole_part(request: Request, part: str) -> str:
    """A part of the path that may have any characters, slashes included: the id of a group or of a member."""
    return part.replace("%2F", "/").replace("%25", "%") if request.scope.get(ESCAPED) else part


def without_body(send: Send) -> Send:
    """Sends a response to GET as the response to HEAD."""

    async def sending(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
        elif not message.get("more_body", False):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sending
