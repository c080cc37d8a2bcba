"""Uploads make exactly the bytes of the file visible, once; chunks come back exactly; bad bytes go nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import uuid
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ConflictError, CorruptionError, StorageUnavailable
from app.machine.files import PosixFileSystem
from app.objectstore.api import ObjectMissing
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.tiering.store.segment_format import ChunkCodec, SegmentFooter, decode_footer
from app.tiering.store.store_work import BatchIndex, InlineStoreWork, UploadJob
from tests.support.cycles import kept_in_cycles
from tests.support.virtual_loop import VirtualPool, run_virtual
from tests.tiering.segments import batch, segment_bytes, upload_job

T = TypeVar("T")


class _Bench:
    """A memory store, its work, and a segment file."""

    def __init__(self, tmp_path: Path, data: bytes, **changes: object) -> None:
        self.store = MemoryStore(rng=random.Random(1))
        self.work = InlineStoreWork(
            self.store,
            PosixFileSystem(),
            VirtualPool(lambda: 0.001),
            random.Random(2),
            part_bytes=2500,
            part_deadline_s=10,
        )
        self.path = tmp_path / f"{uuid.uuid4()}.log"
        self.path.write_bytes(data)
        self.cache = tmp_path
        self.job: UploadJob = upload_job(str(self.path), data, **changes)

    async def footer(self, place: tuple[int, int] | None = None) -> SegmentFooter:
        found = await self.work.read_footer(self.job.key, place)
        return decode_footer(found.tail, found.object_bytes, self.job.key)

    async def unfolded(self) -> bytes:
        """All chunks, as readers get them."""
        pieces = []
        for index, chunk in enumerate((await self.footer()).chunks):
            path = str(self.cache / f"{uuid.uuid4()}-{index}.chunk")
            location = await self.work.fetch_chunk(self.job.key, chunk, path)
            data = Path(location.path).read_bytes()
            pieces.append(data[location.position : location.position + location.length])
        return b"".join(pieces)


def _run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return run_virtual(lambda _: main())


@pytest.mark.parametrize("compression", ["none", "zstd", "auto"])
@pytest.mark.parametrize("batches", [1, 4, 60])
def test_what_is_uploaded_is_read_back_byte_for_byte(tmp_path: Path, compression: str, batches: int) -> None:
    data, end = segment_bytes(base_offset=7, batches=batches)

    async def main() -> None:
        bench = _Bench(tmp_path, data, base_offset=7, compression=compression)
        made = await bench.work.upload_segment(bench.job)
        footer = await bench.footer()
        assert (footer.base_offset, footer.end_offset) == (7, end)
        assert footer == await bench.footer((made.footer_position, made.size_bytes))
        assert (made.raw_bytes, made.record_count, made.batch_count) == (len(data), 3 * batches, batches)
        assert made.size_bytes == (await bench.store.head(bench.job.key)).size_bytes
        assert footer.producer_snapshot == b"snapshot"
        assert await bench.unfolded() == data
        assert await bench.store.list_uploads("") == []
        assert await bench.work.upload_progress() == {}

    _run(main)


def test_compressible_chunks_shrink_and_random_ones_stay_verbatim(tmp_path: Path) -> None:
    squeezable = b"".join(batch(index, 1, value_bytes=0) for index in range(50))
    packed = b"".join(batch(index, 1, value_bytes=200, codec=4) for index in range(50))

    async def main() -> None:
        bench = _Bench(tmp_path, squeezable, compression="auto")
        made = await bench.work.upload_segment(bench.job)
        assert made.footer_position < len(squeezable)
        assert {chunk.codec for chunk in (await bench.footer()).chunks} == {ChunkCodec.ZSTD}
        bench = _Bench(tmp_path, packed, compression="auto")
        made = await bench.work.upload_segment(bench.job)
        assert made.footer_position == len(packed)
        assert (await bench.store.get(bench.job.key))[: len(packed)] == packed

    _run(main)


class _ClingingUpload:
    """Its second part hangs once, and whoever was asked to put it goes on reading the bytes."""

    def __init__(self, upload: Any, clung: list[tuple[memoryview, bytes]]) -> None:
        self._upload = upload
        self._clung = clung

    async def put_part(self, number: int, data: Any) -> None:
        if number == 2 and not self._clung:
            self._clung.append((memoryview(data), bytes(data)))
            await asyncio.sleep(1e6)
        await self._upload.put_part(number, data)

    async def complete(self) -> None:
        await self._upload.complete()

    async def abort(self) -> None:
        await self._upload.abort()


def test_the_buffer_of_a_part_that_was_tried_twice_is_never_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt may still be reading it, and would write the bytes of another part in its place."""
    clung: list[tuple[memoryview, bytes]] = []

    async def main() -> None:
        bench = _Bench(tmp_path, segment_bytes(batches=60)[0])
        begin = bench.store.begin_upload

        async def begin_clinging(key: str) -> Any:
            return _ClingingUpload(await begin(key), clung)

        monkeypatch.setattr(bench.store, "begin_upload", begin_clinging)
        await bench.work.upload_segment(bench.job)
        other, _ = segment_bytes(base_offset=1000, batches=60)
        path = tmp_path / "other.log"
        path.write_bytes(other)
        await bench.work.upload_segment(upload_job(str(path), other, base_offset=1000))
        assert await bench.unfolded() == bench.path.read_bytes()

    _run(main)
    ((view, before),) = clung
    assert bytes(view) == before


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_flipped_bit_of_the_file_stops_the_upload_and_leaves_nothing(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    raw, _ = segment_bytes(batches=30)
    size = len(raw) // 30
    at = data.draw(st.integers(0, len(raw) - 1).filter(lambda at: not 12 <= at % size < 16))
    broken = bytearray(raw)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))

    async def main() -> None:
        bench = _Bench(tmp_path_factory.getbasetemp(), raw)
        bench.path.write_bytes(bytes(broken))
        with pytest.raises(CorruptionError, match=r"\.log"):
            await bench.work.upload_segment(bench.job)
        assert await bench.store.list_objects("") == []
        assert await bench.store.list_uploads("") == []

    _run(main)


def test_a_file_that_ends_early_or_elsewhere_is_not_uploaded(tmp_path: Path) -> None:
    data, end = segment_bytes(batches=10)

    async def main() -> None:
        for content, job_changes in (
            (data[:-1], {}),
            (data[: len(data) // 2], {}),
            (data, {"end_offset": int(end) + 1}),
            (data, {"log_bytes": len(data) - 1}),
            (data, {"end_offset": int(end) - 1}),
        ):
            bench = _Bench(tmp_path, data, **job_changes)
            bench.path.write_bytes(content)
            with pytest.raises(CorruptionError):
                await bench.work.upload_segment(bench.job)
            assert await bench.store.list_objects("") == []

    _run(main)


@pytest.mark.parametrize("batches", [1, 60])
@pytest.mark.parametrize("operation", ["begin_upload", "put_part", "complete", "put_if_absent"])
@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.HANG, FaultKind.HANG_APPLIED])
def test_a_passing_fault_of_any_request_is_outlived(
    tmp_path: Path, kind: FaultKind, operation: str, batches: int
) -> None:
    data, _ = segment_bytes(batches=batches)

    async def main() -> None:
        bench = _Bench(tmp_path, data)
        bench.store.faults = [Fault(kind, operation, times=2)]
        await bench.work.upload_segment(bench.job)
        assert await bench.unfolded() == data

    _run(main)


def test_a_store_that_stays_away_ends_the_upload_in_bounded_time_and_leaves_no_object(tmp_path: Path) -> None:
    data, _ = segment_bytes(batches=60)

    async def main() -> float:
        bench = _Bench(tmp_path, data)
        bench.store.faults = [Fault(FaultKind.HANG, "put_part", skip=1)]
        with pytest.raises(StorageUnavailable, match="no response within 10 s"):
            await bench.work.upload_segment(bench.job)
        assert await bench.store.list_objects("") == []
        assert await bench.store.list_uploads("") == []
        return asyncio.get_running_loop().time()

    assert _run(main) < 60


def test_another_object_of_the_key_is_never_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        for batches in (1, 60):
            data, _ = segment_bytes(batches=batches)
            bench = _Bench(tmp_path, data)
            await bench.store.put(bench.job.key, b"somebody else's")
            with pytest.raises(ConflictError):
                await bench.work.upload_segment(bench.job)
            assert await bench.store.get(bench.job.key) == b"somebody else's"

    _run(main)


def test_an_upload_that_is_given_up_leaves_no_parts_and_counts_progress_while_it_runs(tmp_path: Path) -> None:
    data, _ = segment_bytes(batches=60)

    async def main() -> None:
        bench = _Bench(tmp_path, data)
        bench.store.faults = [Fault(FaultKind.HANG, "put_part", skip=2)]
        upload = asyncio.create_task(bench.work.upload_segment(bench.job))
        await asyncio.sleep(1)
        progress = await bench.work.upload_progress()
        assert progress[bench.job.segment_id] > 2
        await asyncio.sleep(1)
        assert await bench.work.upload_progress() == progress, "a store that hangs is seen as standing still"
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert await bench.store.list_uploads("") == []

    _run(main)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_flipped_or_missing_byte_of_an_object_never_reaches_a_cache_file(
    tmp_path_factory: Any, data: st.DataObject
) -> None:
    raw, _ = segment_bytes(batches=20)
    compression = data.draw(st.sampled_from(["none", "zstd"]))

    async def main() -> None:
        bench = _Bench(tmp_path_factory.getbasetemp(), raw, compression=compression)
        await bench.work.upload_segment(bench.job)
        chunk = (await bench.footer()).chunks[data.draw(st.integers(0, 1))]
        kind = data.draw(st.sampled_from([FaultKind.FLIPPED_BYTE, FaultKind.TORN_READ]))
        bench.store.faults = [Fault(kind, "get_range")]
        target = bench.cache / f"{uuid.uuid4()}.chunk"
        with pytest.raises(CorruptionError, match=f"position {chunk.position}|bytes of the"):
            await bench.work.fetch_chunk(bench.job.key, chunk, str(target))
        assert not target.exists()

    _run(main)


def test_a_cache_file_that_is_there_is_written_over_to_its_end(tmp_path: Path) -> None:
    data, _ = segment_bytes()

    async def main() -> None:
        bench = _Bench(tmp_path, data)
        await bench.work.upload_segment(bench.job)
        chunk = (await bench.footer()).chunks[0]
        for before in (b"short", bytes(chunk.raw_bytes + 5_000)):
            target = tmp_path / "spare.chunk"
            target.write_bytes(before)
            file_number = target.stat().st_ino
            await bench.work.fetch_chunk(bench.job.key, chunk, str(target))
            assert target.read_bytes() == data[: chunk.raw_bytes]
            assert target.stat().st_ino == file_number

    _run(main)


def test_a_missing_object_says_so(tmp_path: Path) -> None:
    data, _ = segment_bytes()

    async def main() -> None:
        bench = _Bench(tmp_path, data)
        await bench.work.upload_segment(bench.job)
        chunk = (await bench.footer()).chunks[0]
        await bench.store.delete(bench.job.key)
        with pytest.raises(ObjectMissing):
            await bench.work.fetch_chunk(bench.job.key, chunk, str(tmp_path / "x.chunk"))
        with pytest.raises(ObjectMissing):
            await bench.work.read_footer(bench.job.key, None)

    _run(main)


async def test_a_verbatim_chunk_of_a_directory_store_is_served_from_the_object_itself(tmp_path: Path) -> None:
    data, _ = segment_bytes(batches=60)
    (tmp_path / "0.log").write_bytes(data)
    store = DirectoryStore(tmp_path / "store")
    work = InlineStoreWork(
        store,
        PosixFileSystem(),
        VirtualPool(lambda: 0),
        random.Random(0),
        part_bytes=2500,
        object_path=lambda key: str(store.local_path(key)),
    )
    job = upload_job(str(tmp_path / "0.log"), data)
    await work.upload_segment(job)
    found = await work.read_footer(job.key, None)
    chunk = decode_footer(found.tail, found.object_bytes, job.key).chunks[1]
    location = await work.fetch_chunk(job.key, chunk, str(tmp_path / "unused.chunk"))
    assert (location.path, location.position, location.in_cache) == (
        str(store.local_path(job.key)),
        chunk.position,
        False,
    )
    assert not (tmp_path / "unused.chunk").exists()
    spoiled = bytearray(Path(location.path).read_bytes())
    spoiled[chunk.position + 100 : chunk.position + 103] = b"\xff\x00\xff"
    Path(location.path).write_bytes(spoiled)
    with pytest.raises(CorruptionError, match=f"position {chunk.position}"):
        await work.fetch_chunk(job.key, chunk, str(tmp_path / "unused.chunk"))
    await store.delete(job.key)
    with pytest.raises(ObjectMissing):
        await work.fetch_chunk(job.key, chunk, str(tmp_path / "unused.chunk"))
    await store.close()


def test_a_batch_index_names_every_so_many_bytes_a_batch_start() -> None:
    data, _ = segment_bytes(base_offset=5, batches=500, value_bytes=300)
    index = BatchIndex(BatchIndex.encode(memoryview(data)))
    size = len(data) // 500
    assert index.positions[0] == 0
    assert index.offsets[0] == 5
    assert all(position % size == 0 for position in index.positions)
    assert [5 + position // size * 3 for position in index.positions] == list(index.offsets)
    gaps = [after - before for before, after in zip(index.positions, index.positions[1:], strict=False)]
    assert all(16384 <= gap < 16384 + size for gap in gaps)


async def test_a_request_that_is_given_up_keeps_nothing_of_what_it_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tiering.store.store_work.RETRY_BASE_S", 0.0)
    store = MemoryStore()
    work = InlineStoreWork(store, PosixFileSystem(), VirtualPool(lambda: 0), random.Random(0))

    class Part:
        pass

    part = Part()
    kept = weakref.ref(part)

    async def send(carried: Part) -> None:
        raise StorageUnavailable("the store is away")

    gc.disable()
    try:
        with contextlib.suppress(StorageUnavailable):
            await work.attempt("a part", partial(send, part))
        del part
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.ci
@pytest.mark.parametrize("key_prefix", ["", "data/"])
def test_an_upload_that_fails_keeps_no_buffer_until_a_garbage_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_prefix: str
) -> None:
    """While the store is away every segment is tried again and again, each time with buffers of many megabytes."""
    monkeypatch.setattr("app.tiering.store.store_work.RETRY_BASE_S", 0.0)

    async def main() -> None:
        bench = _Bench(tmp_path, segment_bytes(batches=60)[0])
        bench.store.faults.append(Fault(FaultKind.UNAVAILABLE, key_prefix=key_prefix))

        async def upload() -> None:
            try:
                await bench.work.upload_segment(bench.job)
            except StorageUnavailable:
                return
            raise AssertionError("the store is away")

        assert await kept_in_cycles(upload) == []

    _run(main)


@pytest.mark.ci
def test_a_read_in_pieces_that_fails_keeps_none_of_them_until_a_garbage_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tiering.store.store_work.RANGE_BYTES", 100)

    async def main() -> None:
        bench = _Bench(tmp_path, segment_bytes(batches=4)[0])
        await bench.work.upload_segment(bench.job)
        chunk = (await bench.footer()).chunks[0]
        bench.store.faults.append(Fault(FaultKind.UNAVAILABLE))

        async def read() -> None:
            try:
                await bench.work.fetch_chunk(bench.job.key, chunk, str(tmp_path / "x.chunk"))
            except StorageUnavailable:
                return
            raise AssertionError("the store is away")

        assert await kept_in_cycles(read) == []

    _run(main)
