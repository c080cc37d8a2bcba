"""Archives in S3: every option of a store's address holds for every object that an archive writes."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli import main
from app.core.errors import CorruptionError, StorageUnavailable
from app.core.units import Offset
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.s3 import S3Store
from app.records.builder import build_batch
from pyspark_firn.jobs.iceberg import local_catalog, opened_table, warehouse_at
from pyspark_firn.jobs.targets import CREDENTIALS_MEND, BucketPrefix, bucket_config
from pyspark_firn.reading import SplitReader
from tests.objectstore.conftest import aws_credentials, moto_endpoint, opened_s3
from tests.objectstore.scripted_server import ScriptedServer, refusal
from tests.support.buckets import BucketBuilder

__all__ = ["aws_credentials", "moto_endpoint"]

KEY_ID = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
ENCRYPTION = f"&sse=aws:kms&kms_key_id={KEY_ID}"


async def make_topic(path: Path, store: S3Store) -> BucketBuilder:
    bucket = await BucketBuilder.open(path, store=store)
    topic_id = await bucket.create_topic("t")
    for first in (0, 40):
        made = [
            build_batch([(1_700_000_000_000, b"k", b"%d" % n, ())], base_offset=Offset(n))
            for n in range(first, first + 40)
        ]
        await bucket.add_segment(topic_id, 0, made)
    return bucket


async def objects_below(store: S3Store, prefix: str) -> dict[str, str]:
    """Key of each object of the bucket below ``prefix``, and the key that it is encrypted with."""
    bucket = store.location.bucket
    listed = await store._client.list_objects_v2(Bucket=bucket, Prefix=prefix)
    heads = {
        found["Key"]: await store._client.head_object(Bucket=bucket, Key=found["Key"]) for found in listed["Contents"]
    }
    return {
        key: head["SSEKMSKeyId"] if head.get("ServerSideEncryption") == "aws:kms" else "" for key, head in heads.items()
    }


def archive(*arguments: str) -> int:
    return main(["job", "archive", "t", "-w", "1", "--json", *arguments])


async def archive_into_lake(tmp_path: Path, store: S3Store, endpoint: str, more: str = "") -> int:
    """Archive the topic, which is made, to ``lake`` in the store's bucket; ``more``: options of that address."""
    await make_topic(tmp_path, store)
    at, options = f"s3://{store.location.bucket}", f"?endpoint={endpoint}"
    source, target = f"{at}/cluster/one{options}", f"{at}/lake{options}{more}"
    return await asyncio.to_thread(archive, "--store", source, "--to", target)


@pytest.mark.ci
async def test_files_are_encrypted_as_the_address_says(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened_s3(moto_endpoint) as store:
        assert await archive_into_lake(tmp_path, store, moto_endpoint, ENCRYPTION) == 0
        assert json.loads(capsys.readouterr().out)["records"] == 80
        found = await objects_below(store, "lake/")
        assert set(found.values()) == {KEY_ID}
        [key] = (key for key in found if key.endswith(".parquet"))
        assert key.startswith("lake/t/date=2023-11-14/")
        answer = await store._client.get_object(Bucket=store.location.bucket, Key=key)
        async with answer["Body"] as body:
            table = pq.read_table(pa.BufferReader(await body.read()))
        assert table["value"].to_pylist() == [b"%d" % n for n in range(80)]


async def test_what_an_ended_attempt_has_left_of_a_part_is_removed_and_nothing_else(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a day that compaction has emptied since."""
    async with opened_s3(moto_endpoint) as store:
        day, part = "lake/t/date=2023-11-13", f"00000-{0:020d}-{80:020d}"
        kept = {f"{day}/by-hand.parquet", f"{day}/00000-{0:020d}-{79:020d}.parquet"}
        for key in {f"{day}/{part}.parquet", f"{day}/{part}-1.parquet", *kept}:
            await store._client.put_object(Bucket=store.location.bucket, Key=key, Body=b"")
        assert await archive_into_lake(tmp_path, store, moto_endpoint) == 0
        assert json.loads(capsys.readouterr().out)["records"] == 80
        found = await objects_below(store, "lake/t/date=")
        [made] = set(found) - kept
        assert set(found) >= kept
        assert re.fullmatch(rf"lake/t/date=2023-11-14/{part}-[0-9a-f]{{32}}\.parquet", made)


@pytest.mark.ci
async def test_an_iceberg_table_is_written_and_read_by_the_same_address(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened_s3(moto_endpoint) as store:
        await make_topic(tmp_path, store)
        at = f"s3://{store.location.bucket}"
        options = f"?endpoint={moto_endpoint}"
        to = f"{at}/house{options}{ENCRYPTION}"
        folder = tmp_path / "catalog"
        said = ["--store", f"{at}/cluster/one{options}", "--iceberg", "lake.t", "--warehouse", str(folder), "--to", to]
        for records in (80, 0):
            assert await asyncio.to_thread(archive, *said) == 0
            assert json.loads(capsys.readouterr().out)["records"] == records
        found = await objects_below(store, "house/")
        assert {key.rpartition(".")[2] for key in found} == {"parquet", "json", "avro"}
        assert set(found.values()) == {KEY_ID}

        def held() -> list[bytes]:
            table = opened_table("lake.t", local_catalog(folder) | warehouse_at(to))
            assert table is not None
            return sorted(table.scan().to_arrow()["value"].to_pylist(), key=int)

        assert await asyncio.to_thread(held) == [b"%d" % n for n in range(80)]


@pytest.mark.parametrize(
    ("options", "endpoint", "virtual"),
    [
        ("", None, True),
        ("?path_style=true", None, False),
        ("?endpoint=http://s3.lan:9000", "http://s3.lan:9000", False),
        ("?endpoint=http://s3.lan:9000&path_style=false", "http://lake.s3.lan:9000", True),
    ],
)
def test_buckets_are_addressed_as_the_address_says(
    aws_credentials: None, options: str, endpoint: str | None, virtual: bool
) -> None:
    location = parse_store_url(f"s3://lake/topics{options}")
    assert isinstance(location, S3Location)
    config = bucket_config(location)
    assert (config.get("endpoint"), config["virtual_hosted_style_request"]) == (endpoint, virtual)
    BucketPrefix(location)


@pytest.mark.parametrize(
    ("code", "mends"),
    [
        (
            "AccessDenied",
            [
                f"; allow s3:{action} on arn:aws:s3:::{resource}."
                for action, resource in (
                    ("PutObject", "lake/topics/*"),
                    ("ListBucket", "lake"),
                    ("DeleteObject", "lake/topics/*"),
                )
            ],
        ),
        ("SignatureDoesNotMatch", [f"; {CREDENTIALS_MEND}."] * 3),
    ],
)
async def test_a_right_that_is_missing_is_named_in_a_sentence(
    aws_credentials: None, code: str, mends: list[str]
) -> None:
    async with ScriptedServer([refusal(403, code)] * 3) as server:
        location = parse_store_url(f"s3://lake/topics?endpoint={server.endpoint}")
        assert isinstance(location, S3Location)
        target = BucketPrefix(location)
        for step, mend in zip(
            (
                lambda: target.create("t/x.parquet").publish(),
                lambda: list(target.files_below("t")),
                lambda: target.remove_files("t", ["x.parquet"]),
            ),
            mends,
            strict=True,
        ):
            with pytest.raises(StorageUnavailable) as raised:
                await asyncio.to_thread(step)
            told = str(raised.value)
            assert told.startswith("s3://lake/topics/t")
            assert f": {code}; " in told
            assert told.endswith(mend)
            assert "\n" not in told


@pytest.mark.ci
async def test_of_a_part_that_fails_nothing_is_sent(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_s3(moto_endpoint) as store:
        await make_topic(tmp_path, store)
        at = f"s3://{store.location.bucket}"
        options = f"?endpoint={moto_endpoint}"
        read = SplitReader.read

        def failing(self: SplitReader, split: Any) -> Iterator[pa.RecordBatch]:
            yield from read(self, split)
            raise CorruptionError("damaged")

        monkeypatch.setattr(SplitReader, "read", failing)
        assert (
            await asyncio.to_thread(archive, "--store", f"{at}/cluster/one{options}", "--to", f"{at}/lake{options}")
            == 1
        )
        assert [key.rpartition(".")[2] for key in await objects_below(store, "lake/")] == ["plan"]
        gc.collect()
