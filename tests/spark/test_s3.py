"""The same reads from S3, with the address, credentials and endpoint that the broker takes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import pyspark_firn
from app.core.errors import ConfigError, StorageUnavailable
from app.core.units import Offset, TopicId
from app.objectstore import s3
from app.records.builder import build_batch
from pyspark_firn.batch import plan
from pyspark_firn.columns import struct_type
from pyspark_firn.options import parse_read_options
from pyspark_firn.streaming import FirnStreamReader
from tests.objectstore.conftest import aws_credentials, moto_endpoint, opened_s3
from tests.objectstore.scripted_server import ScriptedServer, refusal
from tests.spark.conftest import rows_of
from tests.spark.s3 import NOW_MS, read
from tests.support.buckets import BucketBuilder

__all__ = ["aws_credentials", "moto_endpoint"]

T = TypeVar("T")


class Bucket(NamedTuple):
    """A cluster in S3 with a topic t of one partition; a record's time is NOW_MS plus its offset."""

    builder: BucketBuilder
    topic_id: TopicId
    url: str

    async def grow(self, first: int) -> None:
        """Add a segment of 40 records in four chunks."""
        made = [
            build_batch(
                [(NOW_MS + n, b"k", b"%d" % n, ()) for n in range(start, start + 10)], base_offset=Offset(start)
            )
            for start in range(first, first + 40, 10)
        ]
        await self.builder.add_segment(self.topic_id, 0, made, chunk_bytes=300, compression="zstd")


@contextlib.asynccontextmanager
async def opened_bucket(path: Path, endpoint: str) -> AsyncIterator[Bucket]:
    async with opened_s3(endpoint) as store:
        builder = await BucketBuilder.open(path, store=store)
        location = store.location
        url = f"s3://{location.bucket}/{location.prefix.rstrip('/')}?endpoint={location.endpoint}"
        bucket = Bucket(builder, await builder.create_topic("t"), url)
        for first in (0, 40):
            await bucket.grow(first)
        yield bucket


def values(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % n) for n in range(start, end)]


@pytest.mark.ci
async def test_a_bucket_in_s3_reads_as_a_directory_does(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str
) -> None:
    async with opened_bucket(tmp_path, moto_endpoint) as bucket:

        def check() -> None:
            assert read(bucket.url) == values(0, 80)
            assert read(bucket.url, startingOffsets='{"t": {"0": 15}}', endingOffsets='{"t": {"0": 61}}') == values(
                15, 61
            )
            assert read(bucket.url, startingTimestamp=str(NOW_MS + 33), endingTimestamp=str(NOW_MS + 44)) == values(
                33, 44
            )
            assert pyspark_firn.count(bucket.url, "t") == 80
            with pytest.raises(ConfigError, match=r"There is no topic 'u' in s3://firn-\d+/cluster/one"):
                read(bucket.url, subscribe="u")

        await asyncio.to_thread(check)


@pytest.mark.ci
async def test_a_stream_over_s3_reads_history_and_goes_on_where_it_was(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str
) -> None:
    async with opened_bucket(tmp_path, moto_endpoint) as bucket:
        given = {"store": bucket.url, "subscribe": "t", "columns": "offset,value"}

        def started() -> FirnStreamReader:
            return FirnStreamReader(given, struct_type(("offset", "value")))

        def batch(reader: FirnStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, bytes]]:
            splits = reader.partitions(start, end)
            rows = rows_of([one for split in splits for one in reader.read(split)])
            return [(row["offset"], row["value"]) for row in rows]

        def history(reader: FirnStreamReader) -> list[dict[str, Any]]:
            places = [reader.initialOffset()]
            while (place := reader.latestOffset(places[-1], ReadMaxRows(30))) != places[-1]:
                places.append(place)
            return places

        def follow(reader: FirnStreamReader, places: list[dict[str, Any]]) -> list[tuple[int, bytes]]:
            return [row for start, end in itertools.pairwise(places) for row in batch(reader, start, end)]

        first, second = started(), started()
        places = await asyncio.to_thread(history, first)
        assert len(places) == 4
        assert await asyncio.to_thread(follow, first, places) == values(0, 80)
        await bucket.grow(80)
        # A reader that keeps its manifests, and one that starts anew from the checkpoint.
        for reader in (first, second):
            end = await asyncio.to_thread(reader.latestOffset, places[-1], ReadMaxRows(1000))
            assert await asyncio.to_thread(batch, reader, places[-1], end) == values(80, 120)
            assert await asyncio.to_thread(batch, reader, places[1], places[2]) == values(30, 60)
            await asyncio.to_thread(reader.stop)


async def refused(url: str, kind: type[Exception] = StorageUnavailable) -> str:
    """What planning says of a store that it cannot read."""

    def check() -> str:
        with pytest.raises(kind) as caught:
            read(url)
        return str(caught.value)

    told = await asyncio.to_thread(check)
    assert "\n" not in told
    return told


@pytest.mark.parametrize(
    ("query", "scope"),
    [
        ("", "us-east-1"),
        ("&region=eu-central-1&path_style=true", "eu-central-1"),
    ],
)
async def test_the_options_of_a_store_and_the_usual_credentials_are_used(
    aws_credentials: None, query: str, scope: str
) -> None:
    async with ScriptedServer([refusal(403, "AccessDenied")]) as server:
        told = await refused(f"s3://bucket/cluster?endpoint={server.endpoint}{query}")
        assert "in s3://bucket/cluster: AccessDenied" in told
        assert told.endswith("allow s3:ListBucket on arn:aws:s3:::bucket.")
        [request] = server.requests
        assert request.target.startswith("/bucket?list-type=2")
        assert "Credential=test/" in request.headers["authorization"]
        assert f"/{scope}/s3/aws4_request" in request.headers["authorization"]


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_credentials_that_are_not_there_are_asked_for(
    aws_credentials: None, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    async with ScriptedServer([refusal(403, "AccessDenied")]) as server:
        given = {"store": f"s3://bucket/cluster?endpoint={server.endpoint}", "subscribe": "t"}
        with pytest.raises(
            (ConfigError, StorageUnavailable), match=r"give this process credentials|Partial credentials"
        ):
            await asyncio.to_thread(plan, parse_read_options(given, streaming=False))
        assert server.requests == []


async def test_a_bucket_that_is_not_there_is_named(aws_credentials: None, moto_endpoint: str) -> None:
    told = await refused(f"s3://no-such-bucket/cluster?endpoint={moto_endpoint}")
    assert "in s3://no-such-bucket/cluster: NoSuchBucket" in told
    assert told.endswith("create the bucket, or correct the store URL.")


async def test_a_server_that_is_not_there_is_named(aws_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "BACKOFF_FIRST_S", 0.001)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        told = await refused(f"s3://bucket/cluster?endpoint=http://127.0.0.1:{bound.getsockname()[1]}")
    assert "in s3://bucket/cluster: " in told


@pytest.mark.ci
async def test_a_bucket_without_a_cluster_is_named(aws_credentials: None, moto_endpoint: str) -> None:
    async with opened_s3(moto_endpoint) as store:
        told = await refused(f"s3://{store.location.bucket}/elsewhere?endpoint={moto_endpoint}", ConfigError)
        assert told.startswith(f"There is no Firn cluster in s3://{store.location.bucket}/elsewhere")
