"""The real store process: starts quickly, dies with its socket, and a killed upload is taken up again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.core.errors import CorruptionError, StorageUnavailable
from app.machine.rpc import RpcClient
from app.objectstore.api import ObjectMissing
from app.objectstore.directory import DirectoryStore
from app.objectstore.noting import NOTED, Noted
from app.objectstore.proxy import StoreProxy
from app.tiering.store.segment_format import decode_footer
from app.tiering.store.store_process import decode_samples, serve
from app.tiering.store.store_proxy import ProxyStoreWork
from app.tiering.store.store_work import UploadJob
from tests.tiering.segments import batch, segment_bytes, upload_job


class _Process:
    """A store process and a client of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rpc = RpcClient()
        self.process: asyncio.subprocess.Process

    async def start(self, *options: str) -> None:
        ours, theirs = socket.socketpair()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "app.tiering.store.store_process",
                "--store",
                f"file://{self.root}",
                "--socket",
                str(theirs.fileno()),
                *options,
            ),
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        await self.rpc.connect(ours)

    async def stop(self) -> int:
        await self.rpc.close()
        async with asyncio.timeout(60):
            return await self.process.wait()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[_Process]:
    started = _Process(tmp_path / "store")
    await started.start()
    yield started
    if started.process.returncode is None:
        await started.stop()


async def test_it_uploads_serves_and_counts(process: _Process, tmp_path: Path) -> None:
    data, end = segment_bytes(batches=60)
    (tmp_path / "0.log").write_bytes(data)
    work = ProxyStoreWork(process.rpc)
    job = upload_job(str(tmp_path / "0.log"), data, compression="zstd")
    made = await work.upload_segment(job)
    found = await work.read_footer(job.key, (made.footer_position, made.size_bytes))
    footer = decode_footer(found.tail, found.object_bytes, job.key)
    assert footer.end_offset == end
    pieces = []
    for index, chunk in enumerate(footer.chunks):
        location = await work.fetch_chunk(job.key, chunk, str(tmp_path / f"{index}.chunk"))
        raw = Path(location.path).read_bytes()
        pieces.append(raw[location.position : location.position + location.length])
    assert b"".join(pieces) == data
    assert await work.upload_progress() == {}
    names = {sample.family for sample in decode_samples(await process.rpc.call("process.metrics"))}
    assert "firn_store_requests_total" in names


async def test_errors_arrive_as_what_they_are(process: _Process, tmp_path: Path) -> None:
    data, _ = segment_bytes(batches=4)
    broken = bytearray(data)
    broken[100] ^= 1
    (tmp_path / "0.log").write_bytes(broken)
    with pytest.raises(CorruptionError, match=r"0\.log: wrong CRC"):
        await ProxyStoreWork(process.rpc).upload_segment(upload_job(str(tmp_path / "0.log"), data))


async def test_single_requests_of_traced_work_come_with_its_result_or_its_error(tmp_path: Path) -> None:
    process = _Process(tmp_path / "store")
    await process.start("--traced")
    data, _ = segment_bytes(batches=60)
    (tmp_path / "0.log").write_bytes(data)
    work = ProxyStoreWork(process.rpc)
    job = upload_job(str(tmp_path / "0.log"), data)
    noted = Noted(time.perf_counter)
    token = NOTED.set(noted)
    try:
        made = await work.upload_segment(job)
        with pytest.raises(ObjectMissing):
            await work.read_footer("data/none", None)
    finally:
        NOTED.reset(token)
    await work.read_footer(job.key, (made.footer_position, made.size_bytes))
    await process.stop()
    assert [(one.operation, one.size_bytes, one.outcome) for one in noted.requests] == [
        ("put_if_absent", made.size_bytes, "ok"),
        ("get_tail", 0, "missing"),
    ]
    assert all(0 <= one.start_s <= one.end_s < 60 for one in noted.requests)


async def test_it_exits_at_once_when_its_socket_ends(process: _Process) -> None:
    await process.rpc.call("process.ping")
    assert await process.stop() == 0


@pytest.fixture
def garbage() -> Iterator[None]:
    """The process collects it in its own way."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    if frozen == 0:
        gc.unfreeze()
    gc.set_threshold(*thresholds)


async def test_that_a_fault_is_over_is_told_without_another_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: None
) -> None:
    async def away(*_: object) -> bytes:
        raise StorageUnavailable("the store is away")

    lines: list[str] = []
    monkeypatch.setattr("app.tiering.store.store_process.log_line", lines.append)
    monkeypatch.setattr("app.tiering.store.store_process.LOOK_S", 0.001)
    monkeypatch.setattr("app.core.faults.QUIET_S", 0.01)
    monkeypatch.setattr(DirectoryStore, "get", away)
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(serve(f"file://{tmp_path}/store", theirs))
    rpc = RpcClient()
    await rpc.connect(ours)
    try:
        with pytest.raises(StorageUnavailable):
            await StoreProxy(rpc).get("k")
        async with asyncio.timeout(60):
            while len(lines) < 2:
                await asyncio.sleep(0.001)
    finally:
        await rpc.close()
        await serving
    assert lines == [
        "the object store's get fails: the store is away",
        "over after 0 s: the object store's get failed once",
    ]


async def killed_amid(process: _Process, job: UploadJob, data: bytes) -> bool:
    """Kill a process that uploads. Returns: whether the upload was not over yet. It may be, where nobody looked for a while."""
    work = ProxyStoreWork(process.rpc)
    upload = asyncio.create_task(work.upload_segment(job))
    while not upload.done() and (await work.upload_progress()).get(job.segment_id, 0) <= 3:
        await asyncio.sleep(0)
    if upload.done():
        upload.result()  # it was too quick, and did not fail by itself
    os.kill(process.process.pid, signal.SIGKILL)
    await process.process.wait()
    await asyncio.wait([upload])
    made = process.root / job.key
    if made.exists():
        assert made.read_bytes()[: len(data)] == data, "it is whole or not there"
        made.unlink()
        return False
    with pytest.raises(StorageUnavailable):
        await upload
    return True


@pytest.mark.faults
async def test_a_kill_in_the_middle_of_an_upload_leaves_no_object_and_the_next_process_makes_it(
    process: _Process, tmp_path: Path
) -> None:
    data = b"".join(batch(index, 1, value_bytes=900_000) for index in range(64))
    (tmp_path / "0.log").write_bytes(data)
    job = upload_job(str(tmp_path / "0.log"), data, chunk_bytes=4 << 20)
    killed = process
    async with asyncio.timeout(120):
        while not await killed_amid(killed, job, data):
            killed = _Process(process.root)
            await killed.start()
    again = _Process(process.root)
    await again.start()
    try:
        store = StoreProxy(again.rpc)
        assert await store.list_uploads("data/") == [], "a directory store forgets the uploads of the dead"
        made = await ProxyStoreWork(again.rpc).upload_segment(job)
        assert (await store.head(job.key)).size_bytes == made.size_bytes
        assert (process.root / job.key).read_bytes()[: len(data)] == data
    finally:
        await again.stop()


def test_it_imports_no_adapter_that_it_does_not_need() -> None:
    """What makes it start in time: aiobotocore, numba, numpy and web frameworks stay out."""
    import subprocess

    code = "import sys; import app.tiering.store.store_process; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for heavy in ("aiobotocore", "botocore", "numba", "numpy", "fastapi", "pyarrow"):
        assert heavy not in loaded
