"""The requests that a broker sends to S3 by the thousand, sent through obstore.

aiobotocore takes up to ten times the CPU of obstore for a request, and reads bytes at a third of its rate (docs/adr, "speed"). It
does everything else, because it knows every credential of AWS's chain and reports errors precisely. This class is only a short
cut: if it fails, aiobotocore repeats the request, and its result counts.

obstore signs the SHA-256 of each payload, so S3 refuses bytes that were damaged on their way. That costs more than
aiobotocore's CRC-32C of a large object: ``PUT_BYTES_MAX`` is the largest that is put here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import obstore
from botocore.credentials import ReadOnlyCredentials
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store as Bucket

from app.core.units import Buffer, TimestampMs
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing
from app.objectstore.location import S3Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

T = TypeVar("T")

PUT_BYTES_MAX: Final = 1 << 20
"""Above this, aiobotocore puts an object at less CPU."""
PAGE_KEYS: Final = 1000
"""The size of S3's response to one LIST; obstore cannot ask for less."""
CREDENTIALS_S: Final = 60.0
"""How long a copy of the credentials is used; aiobotocore renews its own in time."""
FAILURES_MAX: Final = 3
"""Failures in a row after which the short cut pauses: it may lack a certificate or a proxy that aiobotocore has."""
PAUSE_S: Final = 60.0


class ShortCut:
    """Requests to one bucket. Belongs to one event loop. Each method returns None after any failure."""

    def __init__(
        self,
        location: S3Location,
        region: str,
        credentials: Callable[[], Awaitable[ReadOnlyCredentials]],
        *,
        user_agent: str,
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
            "user_agent": user_agent,
        }
        if certificates is not None:
            options["root_certificate"] = certificates
        self._bucket = Bucket(
            location.bucket,
            config=config,
            credential_provider=provide,
            client_options=options,
            retry_config={"max_retries": 0},  # the caller decides whether and when to retry
        )
        self._failures = 0
        self._paused_until_s = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether it has failed too often, and is not to be asked for now."""
        return asyncio.get_running_loop().time() < self._paused_until_s

    async def get(self, key: str) -> bytes | None:
        """A whole object. Raises: ObjectMissing."""

        async def send() -> bytes | None:
            found = await obstore.get_async(self._bucket, self._prefix + key)
            data = bytes(await found.bytes_async())
            return data if len(data) == found.meta["size"] else None

        return await self._try(key, send)

    async def get_range(self, key: str, start: int, end: int) -> memoryview | None:
        """Bytes [start, end) of an object, read-only. Raises: ObjectMissing."""

        async def send() -> memoryview | None:
            found = await obstore.get_range_async(self._bucket, self._prefix + key, start=start, end=end)
            # Of obstore's own memory: a copy would cost as much as all else here.
            return memoryview(found) if len(found) == end - start else None

        return await self._try(key, send)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int] | None:
        """The last bytes of an object, and its size. Raises: ObjectMissing."""

        async def send() -> tuple[bytes, int] | None:
            found = await obstore.get_async(self._bucket, self._prefix + key, options={"range": {"suffix": length}})
            size_bytes = found.meta["size"]
            data = bytes(await found.bytes_async())
            first = max(0, size_bytes - length)
            whole = found.range == (first, size_bytes) and len(data) == size_bytes - first
            return (data, size_bytes) if whole else None

        return await self._try(key, send)

    async def put_if_absent(self, key: str, data: Buffer) -> Literal[True] | None:
        """True if the object was written. Raises: AlreadyExists."""

        async def send() -> Literal[True]:
            await obstore.put_async(self._bucket, self._prefix + key, data, mode="create", use_multipart=False)
            return True

        return await self._try(key, send)

    async def list_objects(self, prefix: str, start_after: str) -> list[ObjectInfo] | None:
        """One page, of up to ``PAGE_KEYS`` objects. ``prefix`` ends with a slash, or is empty together with that of the store."""
        root = self._prefix

        async def send() -> list[ObjectInfo]:
            after = root + start_after if start_after else None
            pages = obstore.list(self._bucket, root + prefix, offset=after, chunk_size=PAGE_KEYS)
            async for page in pages:
                return [
                    ObjectInfo(each["path"][len(root) :], each["size"], _ms(each["last_modified"])) for each in page
                ]
            return []

        return await self._try(prefix, send)

    async def _try(self, key: str, send: Callable[[], Awaitable[T | None]]) -> T | None:
        try:
            found = await send()
        except FileNotFoundError as error:
            if "<Code>NoSuchKey</Code>" in str(error):
                self._failures = 0
                raise ObjectMissing(f"{key} is not there.") from error
            return None  # an answer, to be told by aiobotocore
        except AlreadyExistsError as error:
            if "status code: 412" in str(error):
                self._failures = 0
                raise AlreadyExists(f"{key} exists.") from error
            return None  # 409: another client is writing it
        except (BaseError, OSError, ValueError):
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._paused_until_s = asyncio.get_running_loop().time() + PAUSE_S
            return None
        if found is not None:
            self._failures = 0
        return found


def _ms(time: datetime) -> TimestampMs:
    return TimestampMs(int(time.timestamp() * 1000))
