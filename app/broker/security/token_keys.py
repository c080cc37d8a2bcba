"""The public keys that tokens are verified with: of a file, or of a URL that the operator allows. Kept while they cannot be had.

No login waits for them. They are fetched when the broker starts, every ``refresh.ms``, and once more when a token names an unknown
key. ``SOONEST_S`` must have passed since the last fetch, so that clients with such tokens cannot cause more.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from app.configs.listeners import ListenerConfig
from app.core.addresses import is_loopback
from app.core.errors import ConfigError
from app.core.extras import install_hint
from app.machine.certificates import Pem, TlsSettings, new_context, read
from app.machine.web import NotFetched, fetch
from app.security.tokens import ALGORITHMS, Keys, TokenRules, read_keys

if TYPE_CHECKING:
    from app.core.faults import Faults
    from app.core.seams import BlockingPool

DOCUMENT_BYTES_MAX: Final = 1 << 20
FETCH_S: Final = 10.0
SOONEST_S: Final = 10.0
"""Least time between two fetches, also if clients send unknown keys."""
URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED: Final = "firn.sasl.oauthbearer.allowed.urls"
KIND: Final = "fetching the keys of tokens of"


def token_rules(listener: ListenerConfig) -> TokenRules:
    """The claims that the tokens of a listener's clients must have."""
    return TokenRules(
        algorithms=listener.words("firn.sasl.oauthbearer.algorithms") or ALGORITHMS,
        audiences=listener.words("sasl.oauthbearer.expected.audience"),
        issuer=listener.text("sasl.oauthbearer.expected.issuer"),
        scopes=listener.words("firn.sasl.oauthbearer.required.scope"),
        scope_claim=listener.text("sasl.oauthbearer.scope.claim.name", "scope"),
        user_claim=listener.text("sasl.oauthbearer.sub.claim.name", "sub"),
        skew_ms=listener.number("sasl.oauthbearer.clock.skew.seconds", 30) * 1000,
    )


class TokenKeys:
    """Those of one listener. Belongs to one loop."""

    def __init__(self, listener: ListenerConfig, trust: Pem | None = None) -> None:
        """A file is read now; a URL is not asked before ``run``. ``trust``: authorities of servers besides the system's.

        Raises: ConfigError.
        """
        for module, package in (("jwt", "PyJWT"), ("cryptography", "cryptography")):
            if find_spec(module) is None:
                raise ConfigError(f"OAUTHBEARER needs the package {package}: run {install_hint('security')}.")
        import_module("jwt")  # now, because it takes 100 ms of CPU, and the first login would wait for it
        self._name = listener.name
        self._url = listener.text(URL)
        self._parts = _checked(listener)
        self._tls = TlsSettings(trust=trust)
        self._refresh_s = listener.number("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000) / 1000
        self._retry_s = listener.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100) / 1000
        self._retry_max_s = listener.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000) / 1000
        self.found: Keys = {}
        self.wanted = asyncio.Event()
        """Set when a client has shown a token with an unknown key."""
        if self._parts.scheme == "file":
            self._refresh_s = SOONEST_S  # it costs nothing
            try:
                self.found = self._read()
            except (OSError, ValueError) as error:
                raise ConfigError(f"{URL} of listener {self._name} cannot be used: {_why(error)}.") from None
        else:
            self._context()

    def _read(self) -> Keys:
        """Blocks. Raises: OSError, ValueError."""
        with open(unquote(self._parts.path), "rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise ValueError("the document is too large")
        return _keys_of(data)

    def _context(self) -> ssl.SSLContext | None:
        """As the files are now. Blocks. Raises: ConfigError."""
        if self._parts.scheme != "https":
            return None
        context = new_context(self._tls, read(self._tls), server=False)
        context.load_default_certs()
        return context

    async def look(self, pool: BlockingPool) -> None:
        """Read or fetch the keys. Raises: OSError, ValueError, NotFetched, ConfigError; the old ones stay."""
        if self._parts.scheme == "file":
            self.found = await pool.run(self._read)
            return
        context = await pool.run(self._context)
        data = await fetch(self._parts, context=context, seconds=FETCH_S, bytes_max=DOCUMENT_BYTES_MAX)
        self.found = await pool.run(lambda: _keys_of(data))

    async def run(self, pool: BlockingPool, faults: Faults) -> None:
        """Keep the keys as they are where they come from, until cancelled."""
        failed = 0
        while True:
            self.wanted.clear()
            try:
                await self.look(pool)
            except (OSError, ValueError, NotFetched, ConfigError) as error:
                self._tell(faults, error)
                await asyncio.sleep(min(self._retry_s * 2 ** min(failed, 30), max(self._retry_s, self._retry_max_s)))
                failed += 1
                continue
            failed = 0
            faults.over(KIND, f"listener {self._name}")
            soonest_s = min(SOONEST_S, self._refresh_s)
            await asyncio.sleep(soonest_s)
            try:
                async with asyncio.timeout(self._refresh_s - soonest_s):
                    await self.wanted.wait()
            except TimeoutError:
                continue

    def _tell(self, faults: Faults, error: OSError | ValueError | NotFetched | ConfigError) -> None:
        name = f"listener {self._name}"
        meanwhile = "goes on with the keys that it has" if self.found else "refuses all tokens until it has keys"
        faults.met(KIND, name, f"{name} {meanwhile}: {self._url}: {_why(error)}", lasting=True)


def _checked(listener: ListenerConfig) -> SplitResult:
    """The URL of a listener's keys. Raises: ConfigError, unless keys may come from there."""
    text, what = listener.text(URL), f"{URL} of listener {listener.name}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{what} is no URL.") from None
    if parts.scheme == "file":
        return parts
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{what} must be https://… or file:///….")
    if parts.username is not None:
        raise ConfigError(f"{what} must have no user and no password: settings that are no secrets are shown.")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{what} may contain only ASCII characters, and no spaces.")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"{what} must be https://…, or http://… of this machine: whoever is in between gives himself all users."
        )
    if text not in listener.words(ALLOWED):
        raise ConfigError(f"{what} is not allowed: write the same URL into {ALLOWED}.")
    return parts


def _keys_of(data: bytes) -> Keys:
    """Raises: ValueError."""
    try:
        return read_keys(json.loads(data))
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("the document is no text") from None
    except json.JSONDecodeError:
        raise ValueError("the document is no JSON") from None


def _why(error: OSError | ValueError | NotFetched | ConfigError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).rstrip(".")[:300]
