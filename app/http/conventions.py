"""ASGI middleware: conventions of HTTP that hold for the requests of all routes.

- HEAD is GET without a body (RFC 9110, 9.3.2). Health checks of load balancers use it.
- A path with a slash at its end names the same resource as without, as in Confluent's REST proxy.
- An escaped slash (%2F) does not end a part of a path. Ids of groups and of members may have one.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ESCAPED: Final = "firn.escaped"
"""True in the scope of a request whose path has an escaped slash. Then slashes and percent signs in its parts are still escaped."""
HEAD: Final = "firn.head"
"""True in the scope of a HEAD request, which routes see as GET. A stream without an end would never respond to it."""


class Conventions:
    """Runs before everything else, so that routes and metrics see GET and one form of each path."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        changed: dict[str, Any] = {}
        path: str = scope["path"]
        if b"%2f" in (raw := scope.get("raw_path") or b"").lower():
            changed[ESCAPED] = True
            kept = raw.replace(b"%25", b"%2525").replace(b"%2F", b"%252F").replace(b"%2f", b"%252F")
            changed["path"] = path = unquote(kept.partition(b"?")[0].decode("latin-1"))
        if path.endswith("/") and path != "/":
            changed["path"] = path.rstrip("/") or "/"
            if raw:
                changed["raw_path"] = raw.rstrip(b"/") or b"/"
        if scope["method"] != "HEAD":
            await self._inner({**scope, **changed} if changed else scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
            elif not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self._inner({**scope, **changed, "method": "GET", HEAD: True}, receive, without_body)
