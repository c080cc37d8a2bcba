"""Every adapter of the object store seam, for the behaviour suite."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from app.machine.rpc import RpcClient, RpcServer
from app.objectstore import s3
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.memory import MemoryStore
from app.objectstore.proxy import StoreProxy, store_handlers
from app.objectstore.s3 import S3Store
from app.objectstore.s3_models import ServiceModels
from app.objectstore.split import SplitStore

T = TypeVar("T")


class ThreadPool:
    """A BlockingPool of real threads."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPool]:
    with ThreadPoolExecutor(4) as executor:
        yield ThreadPool(executor)


@contextlib.asynccontextmanager
async def over_rpc(store: ObjectStore) -> AsyncIterator[StoreProxy]:
    """A proxy of ``store`` over a real socket pair, both ends on this loop."""
    ours, theirs = socket.socketpair()
    client = RpcClient()
    async with asyncio.TaskGroup() as group:
        group.create_task(RpcServer(store_handlers(store)).serve(theirs))
        await client.connect(ours)
        yield StoreProxy(client, part_bytes_min=store.part_bytes_min)
        await client.close()


class NoWait(random.Random):
    """Draws the shortest pause: retries follow at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """URL of an S3 server on loopback, in a process of its own that ends with its standard input."""
    script = Path(__file__).with_name("moto_server.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the S3 server did not start"
        yield f"http://127.0.0.1:{port}"
        process.stdin.close()
        process.wait()


_service_models = ServiceModels(None)


def shared_models(data_path: str | None) -> ServiceModels:
    """Reading the model of S3 takes a third of the time that a client needs to be made; once is enough for all tests."""
    return ServiceModels(data_path) if data_path else _service_models


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials for the server of the tests, and none of the machine's own."""
    monkeypatch.setattr(s3, "ServiceModels", shared_models)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


_bucket_count = itertools.count(1)


@contextlib.asynccontextmanager
async def opened_s3(endpoint: str, bucket: str = "", query: str = "") -> AsyncIterator[S3Store]:
    """A store in a new bucket of the server, under a prefix, with another key beside the prefix."""
    bucket = f"{bucket or 'firn'}-{next(_bucket_count)}"
    location = parse_store_url(f"s3://{bucket}/cluster/one?endpoint={endpoint}{query}")
    assert isinstance(location, S3Location)
    store = S3Store(location, rng=NoWait())
    await store.open()
    try:
        await store._client.create_bucket(Bucket=bucket)
        await store._client.put_object(Bucket=bucket, Key="cluster/other", Body=b"not of this store")
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["memory", "directory", "s3", "memory over rpc", "directory over rpc", "split"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, pool: ThreadPool) -> AsyncIterator[ObjectStore]:
    async with contextlib.AsyncExitStack() as stack:
        adapter: ObjectStore
        match request.param:
            case "memory":
                adapter = MemoryStore()
            case "directory":
                adapter = DirectoryStore(tmp_path / "store", pool)
            case "s3":
                request.getfixturevalue("aws_credentials")
                adapter = await stack.enter_async_context(opened_s3(request.getfixturevalue("moto_endpoint")))
            case "memory over rpc":
                adapter = await stack.enter_async_context(over_rpc(MemoryStore()))
            case "directory over rpc":
                adapter = await stack.enter_async_context(over_rpc(DirectoryStore(tmp_path / "store", pool)))
            case "split":
                adapter = SplitStore(MemoryStore(), MemoryStore())
            case other:
                raise AssertionError(other)
        yield adapter
        if request.param != "s3":  # closed by its own context
            await adapter.close()
