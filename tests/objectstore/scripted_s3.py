"""A store over a scripted S3 server."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from app.core.metrics import Registry
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.s3 import S3Store
from tests.objectstore.conftest import NoWait
from tests.objectstore.scripted_server import ScriptedServer, answer

OK = answer(200, ETag='"e"')


@contextlib.asynccontextmanager
async def scripted(
    *answers: bytes,
    query: str = "",
    deadline_s: float = 20.0,
    attempt_timeout_s: float = 10.0,
    in_flight_max: int = 8,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[ScriptedServer, S3Store, Registry]]:
    async with ScriptedServer(list(answers), tls=tls) as server:
        location = parse_store_url(f"s3://bucket/cluster?endpoint={server.endpoint}{query}")
        assert isinstance(location, S3Location)
        registry = Registry()
        store = S3Store(
            location,
            rng=NoWait(),
            registry=registry,
            deadline_s=deadline_s,
            attempt_timeout_s=attempt_timeout_s,
            requests_in_flight_max=in_flight_max,
        )
        await store.open()
        try:
            yield server, store, registry
        finally:
            await store.close()


def page(*keys: str, more: str = "", space: str = "") -> bytes:
    entries = "".join(
        f"<Contents><Key>cluster/{key}</Key><Size>1</Size><LastModified>2025-11-21T08:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    rest = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return answer(200, f"<?xml version='1.0'?><ListBucketResult{space}>{entries}{rest}</ListBucketResult>".encode())
