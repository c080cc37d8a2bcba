"""Decides which requests are served: by the host that they name, and by the web page that sent them. Pure.

A web page may send requests to any address that its reader's machine can reach, this server included. Two rules stop that:

- **Host.** A page of ``evil.example`` may have its own name resolve to this server's address (DNS rebinding). The browser then
  treats both as one origin, but the request still says ``Host: evil.example``. Only known names are served.
- **Origin.** A page that asks another origin says so (``Origin``, ``Sec-Fetch-Site``). Only pages of this server, or of origins
  that the operator allows, are served. The rule is that of Fetch Metadata, with ``Origin`` beside ``Host`` for older browsers.

The type of a body does not matter: `curl --data` calls every body a form, and today's browsers send the origin with a form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from app.core.addresses import is_loopback, plain_address
from app.core.errors import ConfigError

ANY: Final = "*"
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Load balancers ask for these by address, or without any host."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

AUTHORITY_CHARS_MAX: Final = 261
"""A name of 253 characters, its last dot, a colon and a port."""
AUTHORITIES_KEPT: Final = 256
"""How many parsed hosts are kept: clients name the same few again and again."""

_AUTHORITY: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/@\s,]+))(?::(?P<port>\d{1,5}))?")
_ORIGIN: Final = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#@]+)", re.IGNORECASE)
_PATH: Final = re.compile(r"[/?#\\]")


class Authority(NamedTuple):
    """A host in lower case, addresses in their shortest form, and the port if one was written."""

    host: str
    port: int | None


class AccessRefusal(NamedTuple):
    """Why a request is not served."""

    status: int
    rule: str
    """``host`` or ``origin``."""
    message: str


def parse_authority(text: str) -> Authority | None:
    """``host``, ``host:port``, ``[address]`` or ``[address]:port``; None for anything else."""
    return _parse_authority(text) if len(text) <= AUTHORITY_CHARS_MAX else None


@lru_cache(AUTHORITIES_KEPT)
def _parse_authority(text: str) -> Authority | None:
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > 65535:
        return None
    return Authority(plain_host(match["six"] or match["host"]), port)


@lru_cache(AUTHORITIES_KEPT)
def plain_host(text: str) -> str:
    """A host as it is compared: lower case, no last dot, an address in its shortest form, IPv4 inside IPv6 as IPv4."""
    return plain_address(text.lower().removesuffix(".").strip("[]").partition("%")[0])


def parse_hosts(text: str) -> tuple[str, ...]:
    """The entries of a list of hosts: ``name``, ``name:port``, ``*.name`` or ``*``. Raises: ValueError."""
    entries = _entries(text)
    for entry in entries:
        if entry != ANY and (_host_entry(entry) is None or ANY in entry.removeprefix("*.")):
            raise ValueError(f"{entry!r} is not a host; write NAME, NAME:PORT, *.NAME, or * for all")
    return entries


def parse_origins(text: str) -> tuple[str, ...]:
    """The entries of a list of origins: ``https://name``, ``http://name:port`` or ``*``. Raises: ValueError."""
    entries = _entries(text)
    for entry in entries:
        if entry != ANY and _parse_origin(entry) is None:
            raise ValueError(f"{entry!r} is not an origin; write http://NAME, https://NAME:PORT, or * for all")
    return entries


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry for part in text.split(",") if (entry := part.strip()))


def _host_entry(entry: str) -> Authority | None:
    # A bare IPv6 address has colons of its own.
    return parse_authority(f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry)


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


def _parse_origin(text: str) -> _Origin | None:
    match = _ORIGIN.fullmatch(text)
    authority = None if match is None else parse_authority(match["authority"])
    if match is None or authority is None:
        return None
    scheme = match["scheme"].lower()
    return _Origin(scheme, authority.host, DEFAULT_PORTS[scheme] if authority.port is None else authority.port)


def check_rights(*, by_certificate: bool, anonymous: bool) -> None:
    """``by_certificate``: brokers know their clients by certificates, and not by logins. Raises: ConfigError, if callers would have
    rights that are not theirs."""
    if by_certificate and not anonymous:
        raise ConfigError(
            "HTTP cannot ask its callers who they are where clients show certificates and do not log in, and would give all of "
            "them the rights of its own certificate. Use a listener with SASL_SSL, allow this with firn.http.anonymous.enable=true "
            "(--anonymous), or do not serve HTTP (firn.http.listen=off)."
        )


def check_origins(origins: Iterable[str]) -> None:
    """``origins`` that are allowed where callers log in. Raises: ConfigError."""
    if ANY in origins:
        raise ConfigError(
            "firn.http.allowed.origins=* is refused where callers log in: a browser would send the password that it remembers with "
            "requests of any page. Name the origins."
        )


def check_encrypted(host: str, *, encrypted: bool) -> None:
    """``host``: where is listened. ``encrypted``: by a certificate, or by a proxy in front. Raises: ConfigError, if credentials of
    callers would cross the network in the clear."""
    if not encrypted and not is_loopback(host):
        raise ConfigError(
            f"HTTP at {host} would take passwords and tokens without encryption: give it a certificate with "
            "firn.http.ssl.keystore.location (--tls-certificate), listen on 127.0.0.1, or say that a proxy in front encrypts with "
            "firn.http.plain.credentials.enable (--plain-credentials)."
        )


def origin_of(url: str) -> str:
    """The origin of the page at ``url``."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{_PATH.split(rest, maxsplit=1)[0]}"


def is_of_host(origin: str, host: str) -> bool:
    """Whether ``origin`` is that of ``host``, a ``Host`` header. The scheme does not count: a proxy in front may speak TLS."""
    parsed = _parse_origin(origin)
    authority = parse_authority(host)
    if parsed is None or authority is None or parsed.host != authority.host:
        return False
    return parsed.port == (DEFAULT_PORTS[parsed.scheme] if authority.port is None else authority.port)


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """The parts of one request that the rules read."""

    method: str
    path: str
    hosts: tuple[str, ...]
    """Every ``Host`` header."""
    origin: str | None = None
    fetch_site: str | None = None
    fetch_mode: str | None = None
    fetch_dest: str | None = None
    local_host: str | None = None
    """The address of this machine that the connection came in at."""
    scheme: str = "http"


class Access:
    """The rules of one server."""

    def __init__(self, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """Always served are the loopback names, the address that a request came in at, and pages of this server.

        ``hosts`` are further names, as ``parse_hosts`` returns them. ``origins`` are further origins whose pages are served, as
        ``parse_origins`` returns them.
        """
        hosts, origins = tuple(hosts), tuple(origins)
        self.any_host = ANY in hosts
        self.any_origin = ANY in origins
        self._suffixes: tuple[tuple[str, int | None], ...] = ()
        self._hosts: set[Authority] = {Authority(name, None) for name in LOOPBACK_NAMES}
        for entry in hosts:
            authority = None if entry == ANY else _host_entry(entry)
            if authority is None:
                continue
            if authority.host.startswith("*."):
                self._suffixes = (*self._suffixes, (authority.host[1:], authority.port))
            else:
                self._hosts.add(authority)
        self._origins = {found for entry in origins if (found := _parse_origin(entry)) is not None}

    def check(self, asked: AccessRequest) -> AccessRefusal | None:
        """Why the request is not served; None if it is."""
        refusal = None
        if asked.path not in HEALTH_PATHS:
            refusal = self._check_host(asked)
        return refusal or self._check_origin(asked)

    def allows_foreign(self, asked: AccessRequest) -> bool:
        """Whether a page of another, allowed origin sent the request. The answer then tells the browser so."""
        if asked.origin is None or self._is_own(asked):
            return False
        return self.any_origin or _parse_origin(asked.origin) in self._origins

    def _check_host(self, asked: AccessRequest) -> AccessRefusal | None:
        if len(asked.hosts) != 1:
            return AccessRefusal(400, "host", "The request must have one Host header.")
        if self.any_host:
            return None
        text = asked.hosts[0]
        authority = parse_authority(text)
        if authority is None:
            return AccessRefusal(400, "host", "The Host header is not HOST or HOST:PORT.")
        port = DEFAULT_PORTS.get(asked.scheme, 80) if authority.port is None else authority.port
        for known in (authority, Authority(authority.host, port), Authority(authority.host, None)):
            if known in self._hosts:
                return None
        if asked.local_host is not None and authority.host == plain_host(asked.local_host):
            return None
        for suffix, wanted in self._suffixes:
            if authority.host.endswith(suffix) and wanted in (None, port):
                return None
        return AccessRefusal(
            421,
            "host",
            f"The host {text[:260]!r} is not one of this server's. Ask for it by its address, or start it with "
            f"--http-allowed-hosts {authority.host[:260]}.",
        )

    def _check_origin(self, asked: AccessRequest) -> AccessRefusal | None:
        if self.any_origin:
            return None
        if asked.origin is not None:
            if self._is_own(asked) or _parse_origin(asked.origin) in self._origins:
                return None
            return self._foreign(f"Pages of {asked.origin[:260]!r}", asked.origin)
        if asked.fetch_site in (None, "same-origin", "none"):
            return None
        if asked.method in SAFE_METHODS and asked.fetch_mode == "navigate" and asked.fetch_dest == "document":
            return None  # a reader follows a link to here; the page that it was on sees nothing of the answer
        return self._foreign("Pages of other origins", "ORIGIN")

    @staticmethod
    def _foreign(whose: str, origin: str) -> AccessRefusal:
        return AccessRefusal(
            403,
            "origin",
            f"{whose} may not use this server. To allow them, start it with --http-allowed-origins {origin[:260]}.",
        )

    def _is_own(self, asked: AccessRequest) -> bool:
        """Whether the origin is the host of the request."""
        return asked.origin is not None and len(asked.hosts) == 1 and is_of_host(asked.origin, asked.hosts[0])
