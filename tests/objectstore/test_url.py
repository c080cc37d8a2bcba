"""Store addresses: what is understood, and that what is not is said in words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.core.errors import ConfigError
from app.core.metrics import Registry
from app.objectstore.directory import DirectoryStore
from app.objectstore.location import DirectoryLocation, S3Location, StoreLocation, parse_store_url
from app.objectstore.metered import MeteredStore, directory_of
from app.objectstore.opening import open_store
from app.objectstore.s3 import S3Store
from tests.objectstore.conftest import ThreadPool

GOOD: list[tuple[str, StoreLocation]] = [
    ("file:///var/lib/firn", DirectoryLocation(Path("/var/lib/firn"))),
    ("file:///a%20b/", DirectoryLocation(Path("/a b"))),
    ("file://localhost/x", DirectoryLocation(Path("/x"))),
    ("file:///x?mode=0750", DirectoryLocation(Path("/x"), 0o750)),
    ("file:///x?mode=755", DirectoryLocation(Path("/x"), 0o755)),
    ("s3://bucket", S3Location("bucket")),
    ("s3://bucket/", S3Location("bucket")),
    ("s3://my.bucket/clusters/one/", S3Location("my.bucket", "clusters/one/")),
    ("s3://bucket/p?region=eu-central-1", S3Location("bucket", "p/", region="eu-central-1")),
    (
        "s3://bucket/p?endpoint=http://127.0.0.1:9000",
        S3Location("bucket", "p/", endpoint="http://127.0.0.1:9000", path_style=True),
    ),
    (
        "s3://bucket?endpoint=https%3A%2F%2Fminio.local%2F&path_style=false",
        S3Location("bucket", endpoint="https://minio.local"),
    ),
    ("s3://bucket?sse=AES256", S3Location("bucket", sse="AES256")),
    ("s3://bucket?sse=aws:kms&kms_key_id=alias/firn", S3Location("bucket", sse="aws:kms", kms_key_id="alias/firn")),
    ("s3://bucket?kms_key_id=1234", S3Location("bucket", sse="aws:kms", kms_key_id="1234")),
]

BAD = [
    ("", "has no scheme; write file:///absolute/path or s3://bucket/prefix"),
    ("/var/lib/firn", "has no scheme"),
    ("gs://bucket", "unknown scheme 'gs'"),
    ("file://relative/path", "names a host or a relative path"),
    ("file:relative", "has no absolute path"),
    ("file:///", "cannot be the root directory"),
    ("file:///x?sse=AES256", "has options, but a directory has none"),
    ("file:///x#y", "'#' part"),
    ("s3://", "names no bucket"),
    ("s3:///prefix", "names no bucket"),
    ("s3://Bucket/x", "not a bucket name"),
    ("s3://bu/x", "not a bucket name"),
    ("s3://key:secret@bucket/x", "must not contain credentials"),
    ("s3://bucket/a//b", "parts other than"),
    ("s3://bucket/../b", "parts other than"),
    ("s3://bucket/a b", "parts other than"),
    ("s3://bucket/" + "x/" * 150, "at most 199 fit"),
    ("s3://bucket?colour=red", "'colour' is not an option"),
    ("s3://bucket?region=", "has no value"),
    ("s3://bucket?region=a&region=b", "given twice"),
    ("s3://bucket?region=eu central", "is not a region"),
    ("s3://bucket?endpoint=localhost:9000", "write endpoint=http://host:port"),
    ("s3://bucket?endpoint=ftp://x", "write endpoint=http://host:port"),
    ("s3://bucket?path_style=maybe", "must be true or false"),
    ("s3://bucket?sse=rot13", "write sse=AES256 or sse=aws:kms"),
    ("s3://bucket?sse=AES256&kms_key_id=1", "kms_key_id needs sse=aws:kms"),
    ("file://[", "cannot be read"),
    ("file:///x?mode=0650", "Write one like mode=0750"),
    ("file:///x?mode=rwx", "Write one like mode=0750"),
    ("file:///x?mode=0750&mode=0700", "Write one like mode=0750"),
]


@pytest.mark.parametrize(("url", "location"), GOOD, ids=[url for url, _ in GOOD])
def test_an_address_is_understood(url: str, location: StoreLocation) -> None:
    assert parse_store_url(url) == location
    if isinstance(location, S3Location):
        assert str(location).startswith("s3://")
    else:
        assert parse_store_url(str(location).replace(" ", "%20")) == location


@pytest.mark.parametrize(("url", "message"), BAD, ids=[url[:40] for url, _ in BAD])
def test_a_wrong_address_is_told_with_its_mend(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_store_url(url)
    assert message in str(raised.value)


async def test_a_directory_is_opened(tmp_path: Path, pool: ThreadPool) -> None:
    store = await open_store(f"file://{tmp_path}/new/store", pool=pool, rng=random.Random(1))
    assert isinstance(store, DirectoryStore)
    assert (tmp_path / "new/store").is_dir()
    metered = await open_store(f"file://{tmp_path}/new/store", pool=pool, rng=random.Random(1), registry=Registry())
    assert isinstance(metered, MeteredStore)
    assert isinstance(directory_of(metered), DirectoryStore)
    await store.close()
    await metered.close()


@pytest.mark.usefixtures("aws_credentials")
async def test_a_bucket_that_is_away_opens_all_the_same(pool: ThreadPool) -> None:
    store = await open_store("s3://bucket?endpoint=http://127.0.0.1:1", pool=pool, rng=random.Random(1))
    assert isinstance(store, S3Store)
    assert directory_of(store) is None
    await store.close()


@pytest.mark.usefixtures("aws_credentials")
async def test_an_unknown_profile_is_told(pool: ThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        await open_store("s3://bucket", pool=pool, rng=random.Random(1))
