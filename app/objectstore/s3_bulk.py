"""Ranges of objects in S3, read through obstore.

aiobotocore takes seven times the CPU of obstore for a request, and moves bytes at a third of its rate (docs/adr, "speed"). All
other requests use aiobotocore, because it knows every credential of AWS's chain and reports errors precisely. This reader is
only a short cut: if it fails, aiobotocore repeats the request, and its result counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import obstore
from botocore.credentials import ReadOnlyCredentials
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from app.objectstore.location import S3Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

CREDENTIALS_S: Final = 60.0
"""How long a copy of the credentials is used; aiobotocore renews its own in time."""
FAILURES_MAX: Final = 3
"""Failures in a row after which the short cut pauses: it may lack a certificate or a proxy that aiobotocore has."""
PAUSE_S: Final = 60.0


class BulkReader:
    """Ranged GETs of one bucket. Belongs to one event loop."""

    def __init__(
        self,
        location: S3Location,
        region: str,
        credentials: Callable[[], Awaitable[ReadOnlyCredentials]],
        *,
        connect_timeout_s: float,
        timeout_s: float,
        certificates: bytes | None = None,
    ) -> None:
        """
        Args:
            credentials: answers those that are valid now, for at least ``CREDENTIALS_S`` more.
            certificates: PEM of further authorities whose servers are believed. obstore cannot be told to believe no others.
        """

        async def provide() -> S3Credential:
            found = await credentials()
            return {
                "access_key_id": found.access_key,
                "secret_access_key": found.secret_key,
                "token": found.token,
                "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_S),  # noqa: TID251 # obstore compares it with its own
            }

        self._prefix = location.prefix
        config: S3Config = {
            "region": region,
            "virtual_hosted_style_request": location.endpoint is None and not location.path_style,
        }
        if location.endpoint is not None:
            config["endpoint"] = location.endpoint
        options: ClientConfig = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=connect_timeout_s),
            "timeout": timedelta(seconds=timeout_s),
        }
        if certificates is not None:
            options["root_certificate"] = certificates
        self._bucket = Bucket(
            location.bucket,
            config=config,
            credential_provider=provide,
            client_options=options,
            retry_config={"max_retries": 0},  # whoever asks knows better whether and when
        )
        self._failures = 0
        self._paused_until_s = 0.0

    async def read(self, key: str, start: int, end: int) -> memoryview | None:
        """Bytes [start, end) of an object, read-only; None if this reader failed, for whatever reason."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._paused_until_s:
            return None
        try:
            found = await obstore.get_range_async(self._bucket, self._prefix + key, start=start, end=end)
        except FileNotFoundError:
            return None  # an answer, to be told by aiobotocore
        except (BaseError, OSError, ValueError):
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._paused_until_s = loop.time() + PAUSE_S
            return None
        if len(found) != end - start:
            return None
        self._failures = 0
        return memoryview(found)  # of obstore's own memory: a copy would cost as much as all else here
