"""The object store on S3 and on servers that speak its protocol, by aiobotocore.

Conditional writes are ``If-None-Match: *`` on PutObject and on CompleteMultipartUpload. ``check.check_store`` finds servers
that ignore it; nothing here can.

**Retries are our own**, and botocore's are off: its retry modes do not know our deadlines, draw their jitter from the global
source of randomness, and the adaptive one holds requests back by a rate that all operations share, so that a burst of
refused uploads would slow down the reads of consumers. An attempt is retried after StorageUnavailable only: each
operation of the seam may be sent again with the same bytes, and a conditional write that finds its own earlier attempt is
AlreadyExists, which callers expect anyway.

**Integrity.** Every upload carries the CRC-32C of its bytes, which S3 checks before it stores them; in turn the payload is
not hashed a second time for the signature. Reads check lengths here; readers that know the format check the meaning of the
bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast
from xml.etree import ElementTree

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    InvalidRegionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)
from botocore.parsers import ResponseParserError
from botocore.utils import parse_timestamp
from crc32c import crc32c

from app import __version__
from app.core.errors import ConfigError, FirnError, StorageUnavailable, clause
from app.core.limits import MIB
from app.core.metrics import Counter, Registry
from app.core.units import Buffer, TimestampMs
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing, RangeUnsatisfiable, UploadInfo
from app.objectstore.bucket_rules import BucketRules
from app.objectstore.keys import LIST_LIMIT_MAX, PART_NUMBER_MAX, check_key, check_prefix, check_range
from app.objectstore.location import S3Location
from app.objectstore.noting import UNDER_WAY
from app.objectstore.s3_models import ServiceModels
from app.objectstore.s3_short_cut import PAGE_KEYS, PUT_BYTES_MAX, ShortCut

T = TypeVar("T")

REQUESTS_IN_FLIGHT_MAX: Final = 64
"""Concurrent requests, each on its own connection. Others wait in order. 64 parts of 8 MiB fill a 25 Gbit/s link."""

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 20.0
"""Time-out without one byte of the response."""
ATTEMPT_TIMEOUT_S: Final = 30.0
OPERATION_DEADLINE_S: Final = 60.0
"""Deadline for all attempts of an operation, including the wait for a free connection."""
ATTEMPTS_MAX: Final = 6
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0

USER_AGENT: Final = f"firn/{__version__}"
"""A fixed user agent, because botocore builds its own for every request, which is a tenth of the cost of a small request."""
SHORT_CUT_USER_AGENT: Final = f"{USER_AGENT} obstore"

UPLOADS_PER_PAGE: Final = 1000
UPLOAD_PAGES_MAX: Final = 1000
"""Limit for the list of uploads: a million."""

_SEND_BYTES: Final = MIB

_TRANSPORT_ERRORS: Final = (HTTPClientError, IncompleteReadError, aiohttp.ClientError, ResponseParserError, OSError)
"""Failures of the network; a TimeoutError is an OSError. botocore's connection errors are HTTPClientErrors or
BotoCoreErrors that derive from OSError's relatives, hence the last clause of ``_failure``."""

PERMISSIONS: Final = {
    "get": "s3:GetObject",
    "get_range": "s3:GetObject",
    "get_tail": "s3:GetObject",
    "head": "s3:GetObject",
    "put": "s3:PutObject",
    "put_if_absent": "s3:PutObject",
    "begin_upload": "s3:PutObject",
    "put_part": "s3:PutObject",
    "complete": "s3:PutObject",
    "delete": "s3:DeleteObject",
    "delete_many": "s3:DeleteObject",
    "list_objects": "s3:ListBucket",
    "list_uploads": "s3:ListBucketMultipartUploads",
    "abort": "s3:AbortMultipartUpload",
}

BUCKET_PERMISSIONS: Final = {
    "get_bucket_versioning": "s3:GetBucketVersioning",
    "get_bucket_lifecycle_configuration": "s3:GetLifecycleConfiguration",
}
"""For requests that only checks make."""

_CREDENTIALS_MEND: Final = (
    "give this process credentials: an instance or pod role, AWS_PROFILE, "
    "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
_ADDRESS_MEND: Final = "correct endpoint or region in the store URL, or let this machine reach that address"

_MENDS: Final = {
    "InvalidAccessKeyId": "the store does not know the access key; " + _CREDENTIALS_MEND,
    "SignatureDoesNotMatch": "the secret key does not match the access key; " + _CREDENTIALS_MEND,
    "ExpiredToken": "the session token has expired; renew it",
    "InvalidToken": "the session token is not valid; renew it",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it by NTP",
    "NoSuchBucket": "create the bucket, or correct the store URL",
    "PermanentRedirect": "the bucket is in another region; add region=… to the store URL",
    "AuthorizationHeaderMalformed": "the bucket is in another region; add region=… to the store URL",
    "IllegalLocationConstraintException": "the bucket is in another region; add region=… to the store URL",
    "NotImplemented": "the server lacks a feature that Firn needs, such as conditional writes; upgrade or replace the server",
    "KMS.DisabledException": "enable the KMS key",
    "KMS.NotFoundException": "correct kms_key_id in the store URL",
}


class _Body:
    """The bytes of one request, in slices that the transport takes one after another.

    aiohttp iterates over it; botocore needs its length only. As it has no ``read``, no request asks for a
    ``100 Continue`` first, which would cost a round trip.
    """

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")

    def __len__(self) -> int:
        return len(self._view)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self._view), _SEND_BYTES):
            yield self._view[start : start + _SEND_BYTES]


class _UploadGone(FirnError):
    """NoSuchUpload: the upload was completed or aborted."""


class S3Store:
    """ObjectStore in a bucket. ``open`` it before use.

    ``rng`` spreads the retries. With ``registry``, retried attempts are counted in ``firn_store_retries_total``, with the label
    ``store="wal"`` for a store of write-ahead logs alone.

    A **directory bucket** (S3 Express One Zone) lists in any order, knows no ``StartAfter``, and only prefixes that end with a
    slash. So all of a prefix is listed there and sorted here. botocore makes the sessions that it wants, and finds its address.
    """

    part_bytes_min = 5 * MIB

    def __init__(
        self,
        location: S3Location,
        *,
        rng: random.Random,
        registry: Registry | None = None,
        of_wal: bool = False,
        requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        deadline_s: float = OPERATION_DEADLINE_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> None:
        self.location = location
        self._rng = rng
        self._registry = registry
        self._labels = {"store": "wal"} if of_wal else {}
        self._retries: dict[str, Counter] = {}
        self._slots = asyncio.Semaphore(requests_in_flight_max)
        self._connections_max = requests_in_flight_max
        self._deadline_s = deadline_s
        self._attempt_timeout_s = attempt_timeout_s
        self._resources = contextlib.AsyncExitStack()
        self._client: Any = None
        self._short_cut: ShortCut | None = None
        self._encryption: dict[str, str] = {}
        if location.sse is not None:
            self._encryption["ServerSideEncryption"] = location.sse
        if location.kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = location.kms_key_id

    async def open(self) -> None:
        """Make the client and find credentials; no request is sent to the store. Raises: ConfigError."""
        location = self.location
        config = AioConfig(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=self._connections_max,
            tcp_keepalive=True,
            retries={"total_max_attempts": 1, "mode": "standard"},
            parameter_validation=False,
            user_agent=USER_AGENT,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                "addressing_style": "path" if location.path_style else "auto",
                "payload_signing_enabled": False,
            },
        )
        session = AioSession()
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        try:
            session.register_component("data_loader", ServiceModels(session.get_config_variable("data_path")))
            region = location.region or session.get_config_variable("region")
            if region is None and location.endpoint is not None:
                region = "us-east-1"  # the region of servers other than AWS; a signature must name one
            self._client = await self._resources.enter_async_context(
                session.create_client("s3", region_name=region, endpoint_url=location.endpoint, config=config)
            )
            self._client.meta.events.register("before-parse.s3.ListObjectsV2", _take_listing)
            if region is not None and not location.is_directory_bucket:
                self._short_cut = ShortCut(
                    location,
                    region,
                    partial(_frozen_credentials, session),
                    user_agent=SHORT_CUT_USER_AGENT,
                    connect_timeout_s=CONNECT_TIMEOUT_S,
                    timeout_s=self._attempt_timeout_s / 2,  # the rest of an attempt is for asking again
                    certificates=_certificates(session),
                )
        except (ProfileNotFound, ConfigParseError, InvalidRegionError, PartialCredentialsError, ValueError) as error:
            raise ConfigError(f"No S3 client can be made for {location}: {clause(error)}.") from error
        except CredentialRetrievalError as error:
            raise ConfigError(f"No credentials for {location}: {clause(error)}; {_CREDENTIALS_MEND}.") from error

    async def close(self) -> None:
        await self._resources.aclose()
        self._client = None

    # --- reads --------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> bytes:
        check_key(key)

        async def send() -> bytes:
            answer = await self._client.get_object(**self._object(key))
            async with answer["Body"] as body:
                return await _read(body, answer["ContentLength"], key)

        return await self._request("get", key, send, first=self._first(lambda short_cut: short_cut.get(key)))

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        check_key(key)
        check_range(start, end)

        async def send() -> bytes | memoryview:
            answer = await self._client.get_object(**self._object(key), Range=f"bytes={start}-{end - 1}")
            async with answer["Body"] as body:
                first, size_bytes = _content_range(answer, key)
                if first != start:
                    raise StorageUnavailable(
                        f"{key}: asked for bytes from {start}, the store returned bytes from {first}."
                    )
                return await _read(body, min(end, size_bytes) - start, key)

        first = self._first(lambda short_cut: short_cut.get_range(key, start, end))
        return await self._request("get_range", key, send, first=first)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        check_key(key)
        check_range(0, length)

        async def send() -> tuple[bytes, int]:
            try:
                answer = await self._client.get_object(**self._object(key), Range=f"bytes=-{length}")
            except ClientError as error:
                if _code_of(error) == "InvalidRange":
                    return b"", 0  # an empty object has no last byte; of any other some suffix can be had
                if _code_of(error) != "InternalError":
                    raise
                # s3s-fs (0.14) fails so if the suffix is longer than the object: a short one is asked for from its beginning.
                size_bytes = (await self._client.head_object(**self._object(key)))["ContentLength"]
                if not 0 < size_bytes < length:
                    raise
                answer = await self._client.get_object(**self._object(key), Range=f"bytes=0-{size_bytes - 1}")
            async with answer["Body"] as body:
                first, size_bytes = _content_range(answer, key)
                wanted = min(length, size_bytes)
                if first != size_bytes - wanted:
                    raise StorageUnavailable(
                        f"{key}: asked for the last {length} bytes, the store returned bytes from {first}."
                    )
                return await _read(body, wanted, key), size_bytes

        first = self._first(lambda short_cut: short_cut.get_tail(key, length))
        return await self._request("get_tail", key, send, first=first)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)

        async def send() -> ObjectInfo:
            answer = await self._client.head_object(**self._object(key))
            return ObjectInfo(key, answer["ContentLength"], _ms(answer["LastModified"]))

        return await self._request("head", key, send)

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        assert 0 < limit <= LIST_LIMIT_MAX, limit
        root = self.location.prefix
        if self.location.is_directory_bucket:
            return await self._request("list_objects", prefix, partial(self._list_all, prefix, start_after, limit))

        async def send() -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            after = {"StartAfter": root + start_after} if start_after else {}
            while True:
                # A page may be short and still not the last one.
                answer = await self._client.list_objects_v2(
                    Bucket=self.location.bucket, Prefix=root + prefix, MaxKeys=limit - len(found), **after
                )
                found += [
                    ObjectInfo(entry["Key"][len(root) :], entry["Size"], _ms(entry["LastModified"]))
                    for entry in answer.get("Contents", ())
                ]
                if not answer.get("IsTruncated") or len(found) >= limit:
                    return found
                after = {"ContinuationToken": answer["NextContinuationToken"]}

        first = None
        if limit == PAGE_KEYS and (root + prefix).endswith("/"):
            first = self._first(lambda short_cut: short_cut.list_objects(prefix, start_after))
        return await self._request("list_objects", prefix, send, first=first)

    async def _list_all(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        """As ``list_objects``, from a bucket that lists in any order: one LIST for 1,000 keys of the whole prefix."""
        root = self.location.prefix
        wanted = root + prefix
        found: list[ObjectInfo] = []
        after: dict[str, str] = {}
        while True:
            answer = await self._client.list_objects_v2(
                Bucket=self.location.bucket, Prefix=wanted[: wanted.rfind("/") + 1], MaxKeys=LIST_LIMIT_MAX, **after
            )
            found += [
                ObjectInfo(key[len(root) :], entry["Size"], _ms(entry["LastModified"]))
                for entry in answer.get("Contents", ())
                if (key := entry["Key"]).startswith(wanted) and key[len(root) :] > start_after
            ]
            found = nsmallest(limit, found)
            if not answer.get("IsTruncated"):
                return found
            after = {"ContinuationToken": answer["NextContinuationToken"]}

    async def bucket_rules(self) -> BucketRules:
        """The bucket's own rules for objects, for checks. Raises: StorageUnavailable, also without the right to know."""
        bucket = {"Bucket": self.location.bucket}

        async def versioning() -> bool:
            return bool((await self._client.get_bucket_versioning(**bucket)).get("Status") == "Enabled")

        async def lifecycle() -> list[Mapping[str, Any]]:
            try:
                found = await self._client.get_bucket_lifecycle_configuration(**bucket)
            except ClientError as error:
                if _code_of(error) == "NoSuchLifecycleConfiguration":
                    return []
                raise
            return list(found.get("Rules", ()))

        if self.location.is_directory_bucket:
            versioned = False  # it cannot be
        else:
            versioned = await self._request("get_bucket_versioning", "", versioning)
        return BucketRules(versioned, await self._request("get_bucket_lifecycle_configuration", "", lifecycle))

    # --- writes -------------------------------------------------------------------------------------------------------

    def encrypted_with(self, kms_key_id: str) -> S3Store:
        other = copy.copy(self)  # the client, its connections and its limits are shared
        other._encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id}
        return other

    async def put(self, key: str, data: Buffer) -> None:
        check_key(key)
        checksum = _checksum(data)

        async def send() -> None:
            await self._client.put_object(
                **self._object(key), **self._encryption, Body=_body(data), ChecksumCRC32C=checksum
            )

        await self._request("put", key, send)

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        check_key(key)
        checksum: str | None = None

        async def send() -> Literal[True]:
            nonlocal checksum
            if checksum is None:
                checksum = _checksum(data)
            await self._client.put_object(
                **self._object(key), **self._encryption, Body=_body(data), ChecksumCRC32C=checksum, IfNoneMatch="*"
            )
            return True

        first = None
        if len(data) <= PUT_BYTES_MAX and not self._encryption:
            first = self._first(lambda short_cut: short_cut.put_if_absent(key, data))
        await self._request("put_if_absent", key, send, first=first)

    async def delete(self, key: str) -> None:
        check_key(key)

        async def send() -> None:
            await self._client.delete_object(**self._object(key))

        await self._request("delete", key, send)

    async def delete_many(self, keys: list[str]) -> None:
        assert len(keys) <= LIST_LIMIT_MAX, len(keys)
        for key in keys:
            check_key(key)
        if not keys:
            return
        root = self.location.prefix
        objects = [{"Key": root + key} for key in keys]

        async def send() -> None:
            answer = await self._client.delete_objects(
                Bucket=self.location.bucket, Delete={"Objects": objects, "Quiet": True}
            )
            for refused in answer.get("Errors", ()):
                code = refused.get("Code", "")
                if code != "NoSuchKey":
                    raise self._refusal("delete_many", refused.get("Key", ""), code, refused.get("Message", ""), 0)

        await self._request("delete_many", keys[0], send)

    # --- uploads ------------------------------------------------------------------------------------------------------

    async def begin_upload(self, key: str) -> S3Upload:
        check_key(key)

        async def send() -> str:
            answer = await self._client.create_multipart_upload(
                **self._object(key), **self._encryption, ChecksumAlgorithm="CRC32C"
            )
            upload_id: str = answer["UploadId"]
            return upload_id

        return S3Upload(self, key, await self._request("begin_upload", key, send))

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        check_prefix(prefix)
        root = self.location.prefix

        async def send() -> list[UploadInfo]:
            found: list[UploadInfo] = []
            after: dict[str, str] = {}
            for _ in range(UPLOAD_PAGES_MAX):
                answer = await self._client.list_multipart_uploads(
                    Bucket=self.location.bucket, Prefix=root + prefix, MaxUploads=UPLOADS_PER_PAGE, **after
                )
                found += [
                    UploadInfo(entry["Key"][len(root) :], entry["UploadId"], _ms(entry["Initiated"]))
                    for entry in answer.get("Uploads", ())
                ]
                if not answer.get("IsTruncated"):
                    break
                after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
            return sorted(found)

        return await self._request("list_uploads", prefix, send)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)

        async def send() -> None:
            await self._client.abort_multipart_upload(**self._object(key), UploadId=upload_id)

        with contextlib.suppress(_UploadGone, ObjectMissing):
            await self._request("abort", key, send)

    async def _put_part(self, key: str, upload_id: str, number: int, data: Buffer) -> dict[str, Any]:
        checksum = _checksum(data)

        async def send() -> dict[str, Any]:
            answer = await self._client.upload_part(
                **self._object(key),
                UploadId=upload_id,
                PartNumber=number,
                Body=_body(data),
                ChecksumCRC32C=checksum,
            )
            part = {"PartNumber": number, "ETag": answer["ETag"]}
            if "ChecksumCRC32C" in answer:
                part["ChecksumCRC32C"] = answer["ChecksumCRC32C"]
            return part

        try:
            return await self._request("put_part", key, send)
        except _UploadGone as error:
            raise ObjectMissing(f"Upload {upload_id} of {key} is gone.") from error

    async def _complete(self, key: str, upload_id: str, parts: list[dict[str, Any]]) -> None:
        async def send() -> None:
            await self._client.complete_multipart_upload(
                **self._object(key), UploadId=upload_id, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )

        try:
            await self._request("complete", key, send)
        except _UploadGone as error:
            # Completed by an attempt whose answer was lost, or aborted: the key tells.
            try:
                await self.head(key)
            except ObjectMissing:
                raise ObjectMissing(f"Upload {upload_id} of {key} is gone.") from error
            raise AlreadyExists(f"{key} exists.") from error

    # --- how a request goes -------------------------------------------------------------------------------------------

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self.location.bucket, "Key": self.location.prefix + key}

    def _first(self, send: Callable[[ShortCut], Awaitable[T | None]]) -> Callable[[], Awaitable[T | None]] | None:
        short_cut = self._short_cut
        return None if short_cut is None or short_cut.is_paused else lambda: send(short_cut)

    async def _request(
        self,
        operation: str,
        key: str,
        send: Callable[[], Awaitable[T]],
        *,
        first: Callable[[], Awaitable[T | None]] | None = None,
    ) -> T:
        """The response of ``send``, with retries while they can help and time is left.

        ``first`` is tried once before it. If that returns None, ``send`` finds the error.
        """
        assert self._client is not None, "open() first"
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._deadline_s
        attempt = 1
        while True:
            try:
                async with asyncio.timeout_at(deadline_s), self._slots, asyncio.timeout(self._attempt_timeout_s):
                    if first is not None:
                        once, first = first, None
                        if (found := await once()) is not None:
                            return found
                        self._count_retry(operation)
                    return await send()
            except FirnError as error:
                failure: FirnError = error
                retriable = isinstance(error, StorageUnavailable)
            except ClientError as error:
                failure, retriable = self._failure_of_answer(operation, key, error)
            except (BotoCoreError, *_TRANSPORT_ERRORS) as error:
                failure, retriable = self._failure_of_transport(operation, key, error)
            pause_s = self._rng.uniform(0, min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**attempt))
            if not retriable or attempt >= ATTEMPTS_MAX or loop.time() + pause_s >= deadline_s:
                try:
                    raise failure
                finally:
                    del failure  # it holds this frame, and that what was to be sent
            attempt += 1
            self._count_retry(operation)
            await asyncio.sleep(pause_s)

    def _failure_of_answer(self, operation: str, key: str, error: ClientError) -> tuple[FirnError, bool]:
        """Convert an error response to an error, and tell whether a retry may help."""
        code = _code_of(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        match code:
            case "NoSuchUpload":
                return _UploadGone(f"Upload of {key} is gone."), False
            case "NoSuchBucket":
                pass
            case "PreconditionFailed" | "412":
                return AlreadyExists(f"{key} exists."), False
            case "InvalidRange" | "416":
                return RangeUnsatisfiable(f"{key} has no bytes there."), False
            case "EntityTooSmall":
                raise AssertionError(f"a part of {key} before the last is under {self.part_bytes_min} bytes") from error
            case _ if code == "NoSuchKey" or (status == 404 and not operation.startswith("list")):
                return ObjectMissing(f"{key} is not there."), False
            case _:
                pass
        message = error.response.get("Error", {}).get("Message", "")
        retriable = status >= 500 or status in (408, 409, 429) or code in ("SlowDown", "RequestTimeout", "BadDigest")
        return self._refusal(operation, key, code, message, status), retriable and code != "NotImplemented"

    def _refusal(self, operation: str, key: str, code: str, message: str, status: int) -> StorageUnavailable:
        mend = _MENDS.get(code)
        if mend is None and status == 404:
            mend = "this is not the response of an S3 server; correct endpoint in the store URL"
        elif mend is None and (status == 403 or code in ("AccessDenied", "403")):
            bucket, prefix = self.location.bucket, self.location.prefix
            of_bucket = operation.startswith(("list", "get_bucket"))
            resource = f"arn:aws:s3:::{bucket}" if of_bucket else f"arn:aws:s3:::{bucket}/{prefix}*"
            action = PERMISSIONS.get(operation) or BUCKET_PERMISSIONS[operation]
            mend = f"allow {action} on {resource}"
            if self.location.is_directory_bucket:
                right = "CreateSession" if operation in PERMISSIONS else "GetLifecycleConfiguration"
                mend = f"allow s3express:{right} on the directory bucket {bucket}"
            elif action == "s3:GetObject":
                mend += f", and s3:ListBucket on arn:aws:s3:::{bucket}, "
                mend += "because without it S3 does not say that an object is missing"
            if self.location.sse == "aws:kms":
                mend += ", and kms:GenerateDataKey and kms:Decrypt on its key"
        told = f"{operation} of {key or 'everything'} in {self.location}: {code or status}"
        if message and message != code:
            told += f" ({message.rstrip('.')})"
        return StorageUnavailable(f"{told}; {mend}." if mend else f"{told}.")

    def _failure_of_transport(self, operation: str, key: str, error: Exception) -> tuple[FirnError, bool]:
        """Convert a missing or unreadable response to an error, and tell whether a retry may help."""
        told = f"{operation} of {key or 'everything'} in {self.location}"
        if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)):
            return StorageUnavailable(f"{told}: {clause(error)}; {_CREDENTIALS_MEND}."), False
        if isinstance(error, TimeoutError) and not str(error):
            return StorageUnavailable(f"{told}: no response in time."), True
        if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, SSLError)):
            return StorageUnavailable(f"{told}: {str(error).rstrip('.')}; {_ADDRESS_MEND}."), True
        return StorageUnavailable(f"{told}: {clause(error)}."), True

    def _count_retry(self, operation: str) -> None:
        if (under_way := UNDER_WAY.get()) is not None:
            under_way.retried()
        if self._registry is None:
            return
        counter = self._retries.get(operation)
        if counter is None:
            counter = self._retries[operation] = self._registry.counter(
                "firn_store_retries_total",
                "Requests to the object store that were sent again.",
                operation=operation,
                **self._labels,
            )
        counter.value += 1


class S3Upload:
    """Upload of an S3Store."""

    def __init__(self, store: S3Store, key: str, upload_id: str) -> None:
        self.key = key
        self.upload_id = upload_id
        self._store = store
        self._parts: dict[int, dict[str, Any]] = {}

    async def put_part(self, number: int, data: Buffer) -> None:
        assert 1 <= number <= PART_NUMBER_MAX, number
        self._parts[number] = await self._store._put_part(self.key, self.upload_id, number, data)

    async def complete(self) -> None:
        assert self._parts, "an upload has at least one part"
        parts = [self._parts[number] for number in sorted(self._parts)]
        await self._store._complete(self.key, self.upload_id, parts)

    async def abort(self) -> None:
        await self._store.abort_upload(self.key, self.upload_id)


def _body(data: Buffer) -> _Body | bytes:
    return _Body(data) if len(data) else b""


def _checksum(data: Buffer) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode("ascii")


def _code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _content_range(answer: dict[str, Any], key: str) -> tuple[int, int]:
    """First byte and size of the object, of ``Content-Range: bytes <first>-<last>/<size>``; without it, all was sent."""
    text = answer.get("ContentRange")
    if text is None:
        return 0, answer["ContentLength"]
    try:
        span, _, size = text.removeprefix("bytes ").partition("/")
        return int(span.partition("-")[0]), int(size)
    except ValueError as error:
        raise StorageUnavailable(f"{key}: the store returned the range {text!r}, which cannot be parsed.") from error


async def _read(body: Any, length: int, key: str) -> bytes:
    data: bytes = await body.read()
    if len(data) != length:
        raise StorageUnavailable(f"{key}: expected {length} bytes, got {len(data)}.")
    return data


def _certificates(session: AioSession) -> bytes | None:
    """The certificates of AWS_CA_BUNDLE or of the profile's ``ca_bundle``. Raises: ConfigError."""
    path = session.get_config_variable("ca_bundle")
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The certificates that AWS_CA_BUNDLE or the profile's ca_bundle names cannot be read: {clause(error)}."
        ) from error


async def _frozen_credentials(session: AioSession) -> ReadOnlyCredentials:
    """Raises: ValueError where there are none; aiobotocore's error names the repair."""
    found = await session.get_credentials()
    if found is None:
        raise ValueError("no credentials")
    frozen: ReadOnlyCredentials = await found.get_frozen_credentials()
    return frozen


def _take_listing(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Extract the entries of a LIST's page from its body, in a quarter of botocore's time.

    botocore parses the rest of the body, or the whole body if it has an unexpected form.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])
        space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
        entries = root.findall(f"{space}Contents")
        key, size, modified = f"{space}Key", f"{space}Size", f"{space}LastModified"
        contents = [
            {
                "Key": entry.findtext(key, ""),
                "Size": int(entry.findtext(size, "")),
                "LastModified": _parse_time(entry.findtext(modified, "")),
            }
            for entry in entries
        ]
    except (ElementTree.ParseError, ValueError):
        return
    for entry in entries:
        root.remove(entry)
    response_dict["body"] = ElementTree.tostring(root)
    customized_response_dict["Contents"] = contents


def _parse_time(text: str) -> datetime:
    """A time in an answer: botocore's own parser takes most of the time of a page of a LIST."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time
    except ValueError:
        pass  # as it stands in headers
    return cast(datetime, parse_timestamp(text))


def _ms(time: datetime) -> TimestampMs:
    return TimestampMs(int(time.timestamp() * 1000))
