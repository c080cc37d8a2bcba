"""The public keys that tokens are verified with: of a file, or of a URL that the operator allows. Kept while they cannot be had."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from http.client import HTTPMessage
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

from app.configs.listeners import ListenerConfig
from app.errors import ConfigError
from app.security.tokens import ALGORITHMS, Keys, TokenRules, read_keys

if TYPE_CHECKING:
    from app.faults import Faults
    from app.seams import BlockingPool

DOCUMENT_BYTES_MAX: Final = 1 << 20
FETCH_S: Final = 5.0
SOONEST_S: Final = 10.0
"""Between two looks, whatever clients send."""
URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED: Final = "firn.sasl.oauthbearer.allowed.urls"


def token_rules(listener: ListenerConfig) -> TokenRules:
    """What the tokens of a listener's clients must say."""
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

    def __init__(self, listener: ListenerConfig) -> None:
        """A file is read now. Raises: ConfigError."""
        for module, package in (("jwt", "PyJWT"), ("cryptography", "cryptography")):
            if find_spec(module) is None:
                raise ConfigError(f"OAUTHBEARER needs the package {package}: run pip install 'firn-broker[security]'.")
        self._name = listener.name
        self._url = listener.text(URL)
        self._refresh_s = listener.number("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000) / 1000
        self.found: Keys = {}
        self.wanted = asyncio.Event()
        """Somebody has shown a token with a key that is not known."""
        parts = urlsplit(self._url)
        if parts.scheme == "file":
            self._refresh_s = 0.001  # it costs nothing to look at each turn
            try:
                self.look()
            except (OSError, ValueError) as error:
                raise ConfigError(f"{URL} of listener {self._name} cannot be used: {_why(error)}.") from None
        elif parts.scheme != "https":
            raise ConfigError(f"{URL} of listener {self._name} must be https://… or file:///….")
        elif self._url not in listener.words(ALLOWED):
            raise ConfigError(f"{URL} of listener {self._name} is not allowed: write the same URL into {ALLOWED}.")

    def look(self) -> None:
        """Read or fetch the keys. Blocks. Raises: OSError, ValueError."""
        parts = urlsplit(self._url)
        if parts.scheme == "file":
            with open(unquote(parts.path), "rb") as file:
                data = file.read(DOCUMENT_BYTES_MAX + 1)
        else:
            opener = urllib.request.build_opener(_NoRedirects())
            with opener.open(self._url, timeout=FETCH_S) as answer:
                data = answer.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise ValueError("the document is too large")
        self.found = read_keys(json.loads(data))

    async def run(self, pool: BlockingPool, faults: Faults) -> None:
        """Keep the keys as they are where they come from, until cancelled."""
        while True:
            self.wanted.clear()
            name = f"listener {self._name}"
            try:
                await pool.run(self.look)
            except (OSError, ValueError) as error:
                sentence = f"{name} goes on with the keys that it has: {self._url}: {_why(error)}"
                faults.met("fetching the keys of tokens of", name, sentence, lasting=True)
            else:
                faults.over("fetching the keys of tokens of", name)
            await asyncio.sleep(SOONEST_S)
            try:
                async with asyncio.timeout(self._refresh_s if self.found else 0.001):
                    await self.wanted.wait()
            except TimeoutError:
                continue


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> NoReturn:
        raise ValueError(f"it redirects to {newurl[:200]}, and redirects are not followed")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).rstrip(".")[:300]
