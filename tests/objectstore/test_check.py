"""The doctor's checks pass on every good store and find each kind of bad one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from app.core.metrics import Registry
from app.core.units import Buffer, TimestampMs
from app.objectstore import directory_work
from app.objectstore.api import ObjectStore
from app.objectstore.check import CheckResult, check_store
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore, MemoryUpload
from app.objectstore.metered import MeteredStore
from tests.objectstore.conftest import opened_s3


class FixedClock:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)


def failed(results: list[CheckResult]) -> list[str]:
    for result in results:
        assert result.passed is (result.mend == ""), result
    return [result.name for result in results if not result.passed]


async def test_every_adapter_passes_and_nothing_is_left_behind(store: ObjectStore) -> None:
    await store.put("data/mine", b"x")
    results = await check_store(store)
    assert failed(results) == []
    assert [result.name for result in results if result.name != "hard links"] == [
        "list",
        "write",
        "read",
        "conditional write",
        "multipart upload",
        "conditional completion",
        "delete",
    ]
    assert [info.key for info in await store.list_objects("")] == ["data/mine"]
    assert await store.list_uploads("") == []
    assert failed(await check_store(store)) == []


class IgnorantUpload(MemoryUpload):
    async def complete(self) -> None:
        self._store.lose(self.key)
        await super().complete()


class IgnorantStore(MemoryStore):
    """Ignores conditions, as S3-compatible servers do that do not know ``If-None-Match``."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        await self.put(key, data)

    async def begin_upload(self, key: str) -> MemoryUpload:
        upload = await super().begin_upload(key)
        return IgnorantUpload(self, upload.key, upload.upload_id)


async def test_a_store_that_ignores_conditions_is_found() -> None:
    results = await check_store(IgnorantStore())
    assert failed(results) == ["conditional write", "conditional completion"]
    assert all("If-None-Match" in result.mend for result in results if not result.passed)


@pytest.mark.usefixtures("aws_credentials")
async def test_an_s3_server_that_ignores_if_none_match_is_found(moto_endpoint: str) -> None:
    async with opened_s3(moto_endpoint, bucket="ignorant") as store:
        assert failed(await check_store(store)) == ["conditional write", "conditional completion"]


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (Fault(FaultKind.UNAVAILABLE, "list_objects"), ["list"]),
        (Fault(FaultKind.UNAVAILABLE, "put"), ["write"]),
        (Fault(FaultKind.UNAVAILABLE, "get_range"), ["read"]),
        (Fault(FaultKind.FLIPPED_BYTE, "get", times=1), ["read"]),
        (Fault(FaultKind.UNAVAILABLE, "put_if_absent"), ["conditional write"]),
        (Fault(FaultKind.UNAVAILABLE, "begin_upload"), ["multipart upload", "conditional completion"]),
        (Fault(FaultKind.UNAVAILABLE, "complete"), ["multipart upload", "conditional completion"]),
        (Fault(FaultKind.UNAVAILABLE, "delete_many"), ["delete"]),
    ],
)
async def test_what_a_store_cannot_do_is_named(fault: Fault, names: list[str]) -> None:
    assert failed(await check_store(MemoryStore(faults=[fault]))) == names


async def test_clocks_that_differ_are_told() -> None:
    store = MemoryStore(FixedClock(1_000_000))
    assert failed(await check_store(store, clock=FixedClock(1_030_000))) == []
    for now_ms in (900_000, 1_100_000):
        results = await check_store(store, clock=FixedClock(now_ms))
        assert failed(results) == ["clock"]
        assert "differ by 100 s" in next(result.detail for result in results if not result.passed)


async def test_a_file_system_without_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    store = MeteredStore(DirectoryStore(tmp_path), Registry())
    assert (await check_store(store))[0].name == "hard links"
    monkeypatch.setattr(directory_work.os, "link", fail)
    assert failed(await check_store(store))[0] == "hard links"
