"""Logins of browsers: a cookie names a session, and the session has the credential that its user typed (ADR 0047, CS4 to CS7).

The cookie is accepted for pages of the console alone, so no other page and no other program can use it for REST.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from app.http.credentials import Credential

SESSIONS_MAX: Final = 200
"""As many as callers. A new one takes the place of the one that was unused longest."""
IDLE_S: Final = 3_600.0
LIFETIME_S: Final = 12 * 3_600.0
ROOT: Final = "/"
BELOW: Final = "/console"
OPEN: Final = ("/console/login", "/console/assets/")
"""Beginnings of paths that need no caller: the page to log in, and static files."""
_COOKIE_CHARS_MAX: Final = 4_096


@dataclass(slots=True)
class Session:
    """The login of one browser."""

    key: bytes
    """The digest of its name."""
    credential: Credential = field(repr=False)
    user: str
    began_s: float
    used_s: float


def is_console(path: str) -> bool:
    """Whether a page of the console may be at this path. ``/`` is both: the console's for a browser."""
    return path in (ROOT, BELOW) or path.startswith(BELOW + "/")


def is_open(path: str) -> bool:
    """Whether the console serves this path without a login."""
    return path.startswith(OPEN)


def accepts_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for HTML by name, as browsers do when their user goes to a page."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in headers)


def is_encrypted(scope: Any, encrypted: bool) -> bool:
    """Whether the browser of a request speaks TLS: with this server, or with a proxy in front."""
    return encrypted or scope.get("scheme") == "https"


def cookie_name(scope: Any, *, encrypted: bool = False) -> str:
    """Browsers share cookies between the ports of a host, so the name has the port. With TLS its prefix makes browsers refuse the
    cookie of any other host. ``encrypted``: whether a proxy in front encrypts."""
    server = scope.get("server")
    port = server[1] if server else 0
    return f"__Host-firn-{port}" if is_encrypted(scope, encrypted) else f"firn-{port}"


def cookie_of(scope: Any, *, encrypted: bool = False) -> str | None:
    """The name of the session in the cookie of a request."""
    wanted = cookie_name(scope, encrypted=encrypted)
    for name, value in scope["headers"]:
        if name == b"cookie" and len(value) <= _COOKIE_CHARS_MAX:
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key == wanted and text:
                    return str(text)
    return None


def set_cookie(scope: Any, name: str | None, *, encrypted: bool = False) -> str:
    """The ``Set-Cookie`` header that begins a session, or ends it if ``name`` is None. It lives as long as the browser runs."""
    secure = "; Secure" if is_encrypted(scope, encrypted) else ""
    ends = "; Max-Age=0" if name is None else ""
    return f"{cookie_name(scope, encrypted=encrypted)}={name or ''}; Path=/; HttpOnly; SameSite=Strict{secure}{ends}"


class Sessions:
    """All sessions of a process, in memory: a restart ends them."""

    def __init__(
        self,
        *,
        sessions_max: int = SESSIONS_MAX,
        idle_s: float = IDLE_S,
        lifetime_s: float = LIFETIME_S,
        encrypted: bool = False,
    ) -> None:
        """``encrypted``: whether a proxy in front encrypts."""
        self._encrypted = encrypted
        self._sessions_max = sessions_max
        self._idle_s = idle_s
        self._lifetime_s = lifetime_s
        self._known: OrderedDict[bytes, Session] = OrderedDict()
        """The one that was used longest ago first."""
        self._forms = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, credential: Credential, user: str) -> str:
        """A new session for a credential that a broker has accepted. Returns: its name, for the cookie."""
        name = secrets.token_urlsafe(32)
        now_s = asyncio.get_running_loop().time()
        key = sha256(name.encode()).digest()
        self._drop_ended(now_s)
        while len(self._known) >= self._sessions_max:
            self._known.popitem(last=False)
        self._known[key] = Session(key, credential, user, now_s, now_s)
        return name

    def find(self, scope: Any) -> Session | None:
        """The session of a request to the console, which counts as a use of it; None without one, or if it has ended."""
        now_s = asyncio.get_running_loop().time()
        self._drop_ended(now_s)
        name = cookie_of(scope, encrypted=self._encrypted)
        if name is None:
            return None
        key = sha256(name.encode("latin-1")).digest()
        session = self._known.get(key)
        if session is None:
            return None
        session.used_s = now_s
        self._known.move_to_end(key)
        return session

    def is_live(self, session: Session) -> bool:
        """Whether a session is still live. This check does not count as a use of the session."""
        now_s = asyncio.get_running_loop().time()
        return self._known.get(session.key) is session and not self._has_ended(session, now_s)

    def _has_ended(self, session: Session, now_s: float) -> bool:
        return now_s - session.used_s >= self._idle_s or now_s - session.began_s >= self._lifetime_s

    def set_cookie(self, scope: Any, name: str | None) -> str:
        """The ``Set-Cookie`` header that begins the session of that name, or ends it if ``name`` is None."""
        return set_cookie(scope, name, encrypted=self._encrypted)

    def _drop_ended(self, now_s: float) -> None:
        """Forget the credentials of sessions that have ended. There are ``sessions_max`` to look at."""
        for session in tuple(self._known.values()):
            if self._has_ended(session, now_s):
                self.end(session)

    def end(self, session: Session) -> None:
        """End a session: its credential was refused, or its user has logged out."""
        self._known.pop(session.key, None)

    # --- forms ----------------------------------------------------------------------------------------------------------

    def form_token(self, session: Session | None) -> str:
        """A token in each form of the console, so that a form of no other page counts. It belongs to the session."""
        return hmac.new(self._forms, session.key if session else b"", "sha256").hexdigest()

    def done_token(self, session: Session | None, done: str) -> str:
        """A token in the URL of the page after a form, so that no link of another page can claim that something was done."""
        key = b"done\0" + (session.key if session else b"") + b"\0" + done.encode()
        return hmac.new(self._forms, key, "sha256").hexdigest()

    def is_form_token(self, session: Session | None, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), token.encode())
