"""A schema registry, asked over HTTP by the driver and by tasks: the newest schema of a subject, and schemas by their ids.

Tests: ``tests/spark/test_registry.py``.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from app.core.errors import BrokerUnavailable, ConfigError, clause
from app.core.limits import MIB

TIMEOUT_S: Final = 10.0
ATTEMPTS: Final = 4
RETRY_BASE_S: Final = 0.2
RESPONSE_BYTES_MAX: Final = 8 * MIB
LATEST: Final = "latest"
AVRO: Final = "AVRO"
_LATER: Final = frozenset({429, 500, 502, 503, 504})
"""Statuses of requests that a later try may serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Where schemas are, and what a value that is not of its schema means."""

    url: str
    subject: str
    version: str = LATEST
    user_info: str = ""
    """``user:password``; empty: no login."""
    ca_location: str = ""
    """A file with certificates of authorities; empty: those of the machine."""
    bad_is_null: bool = False
    """A value that cannot be decoded is null; else it ends the read."""
    reader: str = ""
    """The text of the schema that gives the columns, once the driver has asked for it."""


class FoundSchema(NamedTuple):
    """A schema of the registry."""

    text: str
    kind: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A login must not go to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class RegistryClient:
    """The registry as its options name it. Its operations raise ConfigError, BrokerUnavailable."""

    def __init__(self, options: RegistryOptions) -> None:
        if urlsplit(options.url).scheme not in ("http", "https"):
            raise ConfigError(
                f"The option 'schema.registry.url' is {options.url!r}: write http://host:port or https://…."
            )
        self._options = options
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if options.ca_location:
            try:
                handlers.append(
                    urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=options.ca_location))
                )
            except OSError as error:
                raise ConfigError(
                    f"The file {options.ca_location!r} of 'schema.registry.ssl.ca.location' cannot be read: {clause(error)}."
                ) from None
        self._opener = urllib.request.build_opener(*handlers)

    def of_subject(self) -> FoundSchema:
        """The version of the subject that the options name."""
        subject, version = self._options.subject, self._options.version
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}?format=resolved")
        if found is None:
            raise ConfigError(
                f"The registry has no version {version} of subject {subject!r}. Register a schema, or name another subject with "
                "the option schema.registry.subject."
            )
        return found

    def by_id(self, schema_id: int) -> FoundSchema | None:
        """The schema with an id, in the context of the subject; None if there is none."""
        return self._get(f"/schemas/ids/{schema_id}?format=resolved&subject={quote(self._options.subject, safe='')}")

    def _get(self, path: str) -> FoundSchema | None:
        """None for 404."""
        url = self._options.url.rstrip("/") + path
        headers = {"accept": "application/vnd.schemaregistry.v1+json"}
        if self._options.user_info:
            headers["authorization"] = f"Basic {b64encode(self._options.user_info.encode()).decode()}"
        why = ""
        for attempt in range(ATTEMPTS):
            try:
                with self._opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
                    return _read(answer.read(RESPONSE_BYTES_MAX + 1), self._options.url)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code not in _LATER:
                    raise ConfigError(
                        f"The registry at {self._options.url} refuses {path}: status {error.code}."
                    ) from None
                why = f"status {error.code}"
            except (OSError, HTTPException) as error:
                why = str(getattr(error, "reason", error))
            if attempt + 1 < ATTEMPTS:
                time.sleep(RETRY_BASE_S * 2**attempt)
        raise BrokerUnavailable(f"The registry at {self._options.url} does not answer: {why}.")


def _read(body: bytes, url: str) -> FoundSchema:
    try:
        value: Any = json.loads(body) if len(body) <= RESPONSE_BYTES_MAX else None
        return FoundSchema(str(value["schema"]), str(value.get("schemaType", AVRO)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"The answer of {url} is not one of a schema registry. Check the option schema.registry.url."
        ) from None
