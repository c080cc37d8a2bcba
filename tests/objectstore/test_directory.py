"""The directory store beyond the seam: crashes, other processes, full and broken disks."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ConfigError, StorageFull, StorageUnavailable
from app.core.limits import MIB
from app.objectstore import directory_work
from app.objectstore.api import AlreadyExists, InvalidKey, ObjectMissing, RangeUnsatisfiable
from app.objectstore.directory import DirectoryStore
from tests.objectstore.conftest import ThreadPool

# Leaves a synced temporary file, an upload with a part and one that is only begun, and dies without a word.
CRASH = """
import asyncio, os, signal, sys
from app.objectstore.directory import DirectoryStore

async def main(root):
    store = DirectoryStore(root)
    await store.put_if_absent("data/kept", b"kept")
    store.work.write_temporary(root + "/data", b"half written")
    upload = await store.begin_upload("data/parts")
    await upload.put_part(1, b"x" * 1000)
    await store.begin_upload("data/begun")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


def hidden_files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def crash_in(root: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(root)], check=False, cwd=Path(__file__).parents[2])


async def test_what_a_crash_left_over_is_invisible_and_goes_at_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    crash_in(root)
    assert len(hidden_files(root)) == 5  # temporary file, two keys, one part, the lock

    store = DirectoryStore(root)
    assert [info.key for info in await store.list_objects("")] == ["data/kept"]
    assert await store.open() == 3
    assert hidden_files(root) == []
    assert await store.get("data/kept") == b"kept"
    assert await store.list_uploads("") == []
    assert await store.open() == 0


async def test_opening_leaves_the_work_of_a_living_store_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    crash_in(root)
    living = DirectoryStore(root)
    upload = await living.begin_upload("data/slow")
    await upload.put_part(1, b"first")
    half = living.work.write_temporary(f"{root}/data", b"half")

    other = DirectoryStore(root)
    assert await other.open() == 3
    assert os.path.exists(half)
    assert [info.key for info in await other.list_uploads("")] == ["data/slow"]
    await upload.put_part(2, b" second")
    await upload.complete()
    assert await other.get("data/slow") == b"first second"
    os.unlink(half)
    await living.close()
    await other.close()
    assert hidden_files(root) == []


def test_processes_race_for_a_key_and_one_wins(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from app.objectstore.directory import DirectoryStore\n"
        "from app.objectstore.api import AlreadyExists\n"
        "async def main():\n"
        "    store, won = DirectoryStore(sys.argv[1]), 0\n"
        "    for number in range(50):\n"
        "        try:\n"
        "            await store.put_if_absent(f'log/{number}', sys.argv[2].encode())\n"
        "            won += 1\n"
        "        except AlreadyExists:\n"
        "            pass\n"
        "    print(won)\n"
        "asyncio.run(main())\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "store"), name],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for name in ("one", "two")
    ]
    won = [int(racer.communicate()[0]) for racer in racers]
    assert sum(won) == 50


async def test_nothing_is_acknowledged_before_it_and_its_names_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def traced(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name in ("fsync", "fdatasync"):
                calls.append(f"{name} {os.readlink(f'/proc/self/fd/{arguments[0]}')}")
            else:
                calls.append(f"{name} {arguments[-1]}")
            return real(*arguments, **options)

        monkeypatch.setattr(directory_work.os, name, call)

    root = tmp_path / "store"
    store = DirectoryStore(root)
    await store.put("warm", b"")
    for name in ("fsync", "fdatasync", "link", "unlink", "rename"):
        traced(name)
    await store.put_if_absent("new/dir/key", b"value")

    temporary = next(call for call in calls if call.startswith("fdatasync")).split()[1]
    assert Path(temporary).parent == root / "new/dir"
    assert set(calls[:2]) == {f"fsync {root}", f"fsync {root}/new"}  # of the directories that were made, in any order
    assert calls == [
        *calls[:2],
        f"fdatasync {temporary}",
        f"link {root}/new/dir/key",
        f"unlink {temporary}",
        f"fsync {root}/new/dir",
    ]

    # The answer "exists" may be about an earlier attempt that stopped before its sync, so it syncs as well.
    calls.clear()
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("new/dir/key", b"value")
    assert calls == [f"fsync {root}/new/dir"]

    upload = await store.begin_upload("new/dir/big")
    await upload.put_part(1, b"x")
    calls.clear()
    await upload.complete()
    data = f"{root}/.uploads/{upload.upload_id}/data"
    assert calls[:3] == [f"fdatasync {data}", f"link {root}/new/dir/big", f"fsync {root}/new/dir"]


@pytest.mark.parametrize(
    ("function", "number", "kind"),
    [
        ("pwrite", errno.ENOSPC, StorageFull),
        ("pwrite", errno.EDQUOT, StorageFull),
        ("pwrite", errno.EIO, StorageUnavailable),
        ("fdatasync", errno.ENOSPC, StorageFull),
        ("fdatasync", errno.EIO, StorageUnavailable),
        ("link", errno.ENOSPC, StorageFull),
        ("link", errno.EIO, StorageUnavailable),
        ("link", errno.EPERM, StorageUnavailable),
        ("open", errno.EMFILE, StorageUnavailable),
        ("open", errno.EROFS, StorageUnavailable),
    ],
)
async def test_a_failed_write_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int, kind: type[StorageUnavailable]
) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.put("d/warm", b"")

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(directory_work.os, function, fail)
        with pytest.raises(StorageUnavailable) as raised:
            await store.put_if_absent("d/key", b"value")
    assert type(raised.value) is kind
    assert [info.key for info in await store.list_objects("")] == ["d/warm"]
    assert not [name for name in hidden_files(tmp_path / "store") if name.endswith(".tmp")]
    await store.put_if_absent("d/key", b"value")
    assert await store.get("d/key") == b"value"


async def test_a_failed_sync_of_the_name_is_undecided_never_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.put("d/warm", b"")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(directory_work.os, "fsync", fail)
        with pytest.raises(StorageUnavailable) as raised:
            await store.put_if_absent("d/key", b"value")
    assert type(raised.value) is StorageUnavailable
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("d/key", b"value")


async def test_a_part_that_fails_can_be_put_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path / "store")
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"one")
    real = os.pwrite

    def short(descriptor: int, data: memoryview, position: int) -> int:
        if len(data) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) // 2], position)

    with monkeypatch.context() as broken:
        broken.setattr(directory_work.os, "pwrite", short)
        with pytest.raises(StorageFull):
            await upload.put_part(2, b"two")
    await upload.put_part(2, b"two")
    await upload.complete()
    assert await store.get("k") == b"onetwo"


async def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(directory_work.os, "pwrite", lambda fd, data, position: real(fd, data[:3], position))
    store = DirectoryStore(tmp_path / "store")
    await store.put("k", b"0123456789")
    assert await store.get("k") == b"0123456789"


async def test_parts_of_equal_size_are_written_once_and_linked(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    upload = await store.begin_upload("k")
    for number in (2, 1, 3):
        await upload.put_part(number, bytes([64 + number]) * 1000)
    await upload.put_part(4, b"end")
    data = tmp_path / "store/.uploads" / upload.upload_id / "data"
    inode = data.stat().st_ino
    assert {path.name for path in data.parent.iterdir()} == {"data", "key"}
    await upload.complete()
    assert store.local_path("k").stat().st_ino == inode
    assert await store.get("k") == b"A" * 1000 + b"B" * 1000 + b"C" * 1000 + b"end"


async def test_no_part_reaches_a_completed_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"right")
    await upload.complete()
    with pytest.raises(ObjectMissing):
        await upload.put_part(1, b"wrong")
    assert await store.get("k") == b"right"


async def test_no_part_reaches_an_object_whose_completion_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    upload = await store.begin_upload("d/k")
    await upload.put_part(1, b"right")
    await store.put("d/warm", b"")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(directory_work.os, "fsync", fail)
        with pytest.raises(StorageUnavailable):
            await upload.complete()
    assert await store.get("d/k") == b"right"
    with pytest.raises(ObjectMissing):
        await upload.put_part(1, b"wrong")
    assert await store.get("d/k") == b"right"
    with pytest.raises(AlreadyExists):
        await upload.complete()
    await upload.abort()
    assert await store.list_uploads("") == []


async def test_foreign_names_are_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    await store.put("a/b", b"x")
    for name in ("lost+found", "a/.hidden", ".DS_Store", "ä", "with space"):
        (root / name).write_bytes(b"?")
    (root / ".git").mkdir()
    (root / ".git/config").write_bytes(b"?")
    (root / "broken-link").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    assert [info.key for info in await store.list_objects("")] == ["a/b"]


async def test_listing_enters_only_directories_that_can_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    for topic in range(5):
        for partition in range(3):
            await store.put(f"topics/{topic}/{partition}/log/1", b"x")
    entered: list[str] = []
    real = os.scandir

    def scandir(path: str) -> Any:
        entered.append(os.path.relpath(path, root))
        return real(path)

    monkeypatch.setattr(directory_work.os, "scandir", scandir)
    await store.list_objects("topics/3/1/log/")
    assert entered == ["topics/3/1/log"]
    entered.clear()
    page = await store.list_objects("topics/", start_after="topics/3/2/log/0", limit=2)
    assert [info.key for info in page] == ["topics/3/2/log/1", "topics/4/0/log/1"]
    assert entered == ["topics", "topics/3", "topics/3/2", "topics/3/2/log", "topics/4", "topics/4/0", "topics/4/0/log"]


async def test_deletion_removes_directories_that_are_left_empty(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    await store.put("a/b/c/1", b"x")
    await store.put("a/2", b"x")
    await store.delete("a/b/c/1")
    assert sorted(path.name for path in (root / "a").iterdir()) == ["2"]
    await store.delete("a/2")
    assert root.is_dir()
    await store.put("a/b/c/1", b"again")
    assert await store.get("a/b/c/1") == b"again"


async def test_writers_and_deleters_of_one_directory_do_not_trip_over_each_other(
    tmp_path: Path, pool: ThreadPool
) -> None:
    store = DirectoryStore(tmp_path / "store", pool)
    rng = random.Random(7)

    async def work(worker: int) -> None:
        for turn in range(40):
            key = f"x/y/{worker}-{turn}"
            await store.put_if_absent(key, b"v")
            assert await store.get(key) == b"v"
            if rng.random() < 0.9:
                await store.delete(key)

    await asyncio.gather(*(work(worker) for worker in range(4)))


async def test_a_directory_that_vanishes_while_makedirs_finds_it_there_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.put("warm", b"")
    real = os.makedirs

    def found_and_gone(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(directory_work.os, "makedirs", real)
        raise FileExistsError(errno.EEXIST, "another process made it, and removed it")

    monkeypatch.setattr(directory_work.os, "makedirs", found_and_gone)
    await store.put("x/y/1", b"v")
    assert await store.get("x/y/1") == b"v"


@pytest.mark.parametrize("function", ["mkdir", "fsync", "link", "open"])
async def test_a_directory_that_vanishes_under_a_writer_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root)
    await store.put("warm", b"")
    real = getattr(os, function)

    def vanishing(*arguments: Any, **options: Any) -> Any:
        """Before the call, another process removes what it finds empty; once."""
        for directory in (root / "x/y", root / "x"):
            if directory.is_dir() and not os.listdir(directory):
                directory.rmdir()
                monkeypatch.setattr(directory_work.os, function, real)
        return real(*arguments, **options)

    monkeypatch.setattr(directory_work.os, function, vanishing)
    await store.put_if_absent("x/y/k", b"v")
    assert await store.get("x/y/k") == b"v"

    await store.delete("x/y/k")
    upload = await store.begin_upload("x/y/upload")
    await upload.put_part(1, b"v")
    monkeypatch.setattr(directory_work.os, function, vanishing)
    await upload.complete()
    assert await store.get("x/y/upload") == b"v"


async def test_a_file_in_the_place_of_a_directory_is_told(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.put("data", b"x")
    with pytest.raises(StorageUnavailable, match="a file is in the place of a directory"):
        await store.put("data/key", b"x")
    with pytest.raises(StorageUnavailable, match="a file is in the place of a directory"):
        await DirectoryStore(tmp_path / "store/data").put("key", b"x")


async def test_a_file_system_without_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.check()

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(directory_work.os, "link", fail)
    with pytest.raises(ConfigError, match="cannot make the hard links that conditional writes need"):
        await store.check()
    assert [name for name in os.listdir(tmp_path / "store") if name.endswith(".tmp")] == []


async def test_the_local_path_is_where_the_bytes_are(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    await store.put("data/aa/1.seg", b"bytes")
    assert store.local_path("data/aa/1.seg").read_bytes() == b"bytes"
    with pytest.raises(InvalidKey):
        store.local_path("../../etc/passwd")


async def test_a_range_is_read_on_the_callers_thread_and_expecting_it_promises_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put("data/a", b"0123456789")
    for key in ("data/a", "data/missing"):
        store.expect_range(key, 2, 5)
    assert store.get_range_now("data/a", 2, 5) == b"234"
    assert store.get_range_now("data/a", 8, 50) == b"89"
    with pytest.raises(RangeUnsatisfiable):
        store.get_range_now("data/a", 10, 12)
    with pytest.raises(ObjectMissing):
        store.get_range_now("data/missing", 2, 5)


@pytest.mark.parametrize("length", [2 * MIB, 2 * MIB + 1, 2 * MIB + 4096, MIB - 1])
async def test_parts_written_past_the_page_cache_are_what_was_put(tmp_path: Path, length: int) -> None:
    store = DirectoryStore(tmp_path / "store")
    content = random.Random(length).randbytes(2 * length + 5000)
    aligned = mmap(-1, len(content))
    for memory in (aligned, bytearray(len(content) + 1)):
        view = memoryview(memory)[-len(content) :] if memory is not aligned else memoryview(memory)
        view[:] = content
        key = f"data/{len(memory)}"
        upload = await store.begin_upload(key)
        for number, start in enumerate(range(0, len(content), length), 1):
            await upload.put_part(number, view[start : start + length])
        await upload.complete()
        assert await store.get(key) == content


async def test_a_file_system_without_unbuffered_writes_takes_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such thing here")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    store = DirectoryStore(tmp_path / "store")
    content = memoryview(mmap(-1, 2 * MIB))
    content[:] = random.Random(1).randbytes(2 * MIB)
    upload = await store.begin_upload("data/one")
    await upload.put_part(1, content)
    await upload.complete()
    assert await store.get("data/one") == content


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the kernel cannot be asked what it has")
@pytest.mark.parametrize("missing", [None, 0, 2 * MIB, 3 * MIB - 1])
async def test_the_kernel_is_told_of_what_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int | None
) -> None:
    advised: list[tuple[int, int, int]] = []

    def preadv(descriptor: int, buffers: list[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if position == missing:
            raise BlockingIOError(errno.EAGAIN, "it would have to wait")
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *advice: advised.append(advice))
    store = DirectoryStore(tmp_path)
    await store.put("data/a", bytes(3 * MIB))
    store.expect_range("data/a", 0, 3 * MIB)
    assert advised == ([] if missing is None else [(0, 3 * MIB, os.POSIX_FADV_WILLNEED)])


# --- a root that goes away -----------------------------------------------------------------------------------------------


def is_untouched(root: Path) -> bool:
    """Whether nothing was written where the store was."""
    return not root.exists() or not os.listdir(root)


async def check_that_all_is_refused(store: DirectoryStore, upload: Any) -> None:
    for attempt in (
        lambda: store.put("data/new", b"new"),
        lambda: store.put_if_absent("data/new", b"new"),
        lambda: store.delete("data/kept"),
        lambda: store.begin_upload("data/new"),
        lambda: upload.put_part(2, b"x" * 10),
        lambda: upload.complete(),
        # Nothing may be called missing that is only out of reach.
        lambda: store.get("data/kept"),
        lambda: store.get_tail("data/kept", 1),
        lambda: store.head("data/kept"),
        lambda: store.list_objects(""),
        lambda: store.list_uploads(""),
    ):
        with pytest.raises(StorageUnavailable, match="Mount it again"):
            await attempt()
    assert is_untouched(store.root)


@pytest.mark.parametrize("left", ["nothing", "an empty directory", "another store"])
async def test_a_root_that_was_renamed_away_takes_no_write_and_calls_nothing_missing(tmp_path: Path, left: str) -> None:
    root, away = tmp_path / "store", tmp_path / "away"
    store = DirectoryStore(root)
    await store.put("data/kept", b"kept")
    upload = await store.begin_upload("data/parts")
    await upload.put_part(1, b"x" * 10)
    root.rename(away)
    if left == "another store":
        other = DirectoryStore(root)
        await other.put("data/kept", b"of another store")
        for attempt in (
            lambda: store.put("data/new", b""),
            lambda: store.delete("data/kept"),
            lambda: store.list_objects(""),
        ):
            with pytest.raises(StorageUnavailable, match="is another directory"):
                await attempt()
        with pytest.raises(StorageUnavailable, match="is another directory"):
            await store.get("data/other")
        await other.close()
        assert (root / "data/kept").read_bytes() == b"of another store"
        root.rename(tmp_path / "other")
    elif left == "an empty directory":
        root.mkdir()
        await check_that_all_is_refused(store, upload)
        root.rmdir()
    else:
        await check_that_all_is_refused(store, upload)
    away.rename(root)
    assert await store.get("data/kept") == b"kept"
    await store.put_if_absent("data/new", b"new")
    with pytest.raises(ObjectMissing):
        await store.get("data/none")


async def test_a_store_that_comes_back_as_another_directory_is_known_by_its_lock_file(tmp_path: Path) -> None:
    root, away = tmp_path / "store", tmp_path / "away"
    store = DirectoryStore(root)
    await store.put("data/kept", b"kept")
    root.rename(away)
    root.mkdir()
    for name in os.listdir(away):
        (away / name).rename(root / name)  # as a file system that has another device number after it was mounted again
    await store.put("data/new", b"new")
    assert await store.get("data/kept") == b"kept"
    assert len(os.listdir(root / directory_work.INSTANCES)) == 1


def mounted(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


def unmount(root: Path) -> None:
    """Take the mount away, though files of it are open. Nothing, if there is none."""
    subprocess.run(["umount", "--lazy", str(root)], check=False, stderr=subprocess.DEVNULL)


async def test_a_store_whose_file_system_was_unmounted_takes_no_write_until_it_is_back(tmp_path: Path) -> None:
    disk, root = tmp_path / "disk", tmp_path / "store"
    disk.mkdir()
    root.mkdir()
    mounted("--bind", disk, root)
    try:
        store = DirectoryStore(root)
        await store.open()
        await store.put("data/kept", b"kept")
        upload = await store.begin_upload("data/parts")
        await upload.put_part(1, b"x" * 10)
        unmount(root)
        await check_that_all_is_refused(store, upload)
        mounted("--bind", disk, root)
        assert await store.get("data/kept") == b"kept"
        await store.put("data/new", b"new")
        assert (disk / "data/new").read_bytes() == b"new"
        await upload.complete()
        await store.close()
    finally:
        unmount(root)
    assert is_untouched(root)


async def test_a_missing_or_empty_root_becomes_a_store_only_where_it_may(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for _ in range(2):
        with pytest.raises(directory_work.StoreNotThere, match="firn store init"):
            await DirectoryStore(root).open(create=False)
        assert is_untouched(root)
        root.mkdir(exist_ok=True)
    (root / "lost+found").mkdir()  # of a new file system
    with pytest.raises(directory_work.StoreNotThere):
        await DirectoryStore(root).open(create=False)
    store = DirectoryStore(root)
    await store.open()
    await store.put("data/kept", b"kept")
    await store.close()
    again = DirectoryStore(root)
    await again.open(create=False)
    assert await again.get("data/kept") == b"kept"


async def test_a_look_at_a_missing_store_does_not_make_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    with pytest.raises(ObjectMissing):
        await store.get("data/none")
    assert await store.list_objects("") == []
    await store.delete("data/none")
    assert not store.root.exists()


# --- permissions -----------------------------------------------------------------------------------------------------------


def modes(root: Path) -> set[tuple[bool, int]]:
    """(is a directory, permissions) of everything in a store."""
    return {(path.is_dir(), path.stat().st_mode & 0o777) for path in [root, *root.rglob("*")]}


async def fill(root: Path, mode: int | None = None) -> None:
    store = DirectoryStore(root, mode=mode)
    await store.open()
    await store.put("data/a/one", b"1")
    await store.put_if_absent("data/b/two", b"2")
    upload = await store.begin_upload("data/c/three")
    await upload.put_part(2, b"x")
    await upload.put_part(1, b"xyz")
    await upload.complete()
    await store.begin_upload("data/c/begun")


async def test_files_of_a_new_store_are_for_its_user_alone(tmp_path: Path) -> None:
    await fill(tmp_path / "store")
    assert modes(tmp_path / "store") == {(True, 0o700), (False, 0o600)}


async def test_a_store_that_is_shared_by_its_address_lets_the_group_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        await fill(tmp_path / "store", 0o750)
        assert modes(tmp_path / "store") == {(True, 0o750), (False, 0o640)}
        again = DirectoryStore(tmp_path / "store")
        await again.open()
        await again.put("other/four", b"4")
        await again.begin_upload("other/five")
        assert modes(tmp_path / "store") == {(True, 0o750), (False, 0o640)}, "as it was made"
    finally:
        os.umask(before)


async def test_new_directories_of_a_shared_store_keep_the_group_of_their_parent(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o2770)
    await fill(root, 0o770)
    again = DirectoryStore(root)
    await again.open()
    await again.put("other/four", b"4")
    assert {path.stat().st_mode & 0o7777 for path in [root, *root.rglob("*")] if path.is_dir()} == {0o2770}


async def test_an_existing_store_keeps_its_permissions(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for name in ("data", directory_work.INSTANCES):
        (root / name).mkdir(parents=True)
        (root / name).chmod(0o755)
    (root / "data" / "old").write_bytes(b"old")
    before = os.umask(0o022)
    try:
        root.chmod(0o755)
        (root / "data" / "old").chmod(0o644)
        await fill(root)
        assert modes(root) == {(True, 0o755), (False, 0o644)}
    finally:
        os.umask(before)
