"""What a loss of power takes from real processes in the tests: all that was not synced may be lost, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from app.machine.files import File, read_file, remove_tree, replace_file, write_file
from tests.support.power import PAGE_BYTES, SECTOR_BYTES, AccountedFileSystem, Lost, begin, lose_power

T = TypeVar("T")
SEEDS = 60
"""Losses of each story. With so many, each outcome that is asked for is among them."""


@pytest.fixture(autouse=True)
def syncs_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they make durable is in the account; the disk of the test's machine keeps its power."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


class Machine:
    """A data directory with an account, and the file system of the process that is in it."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.data = path / f"data-{seed}"
        self.data.mkdir(parents=True)
        self._account = path / f"account-{seed}"
        self._rng = random.Random(seed)
        begin(self.data, self._account)
        self.fs = AccountedFileSystem(self._account)
        self.open: list[File] = []

    def path(self, name: str) -> str:
        return str(self.data / name)

    def file(self, name: str) -> File:
        found = self.fs.open(self.path(name), create=True)
        self.open.append(found)
        return found

    def synced(self, name: str, data: bytes) -> File:
        """A file whose bytes and name are durable."""
        file = self.file(name)
        file.pwrite(data, 0)
        file.fdatasync()
        self.fs.fsync_dir(os.path.dirname(self.path(name)))
        return file

    def kill(self) -> None:
        """Kill the process, and start the next one."""
        for file in self.open:
            file.close()
        self.open.clear()
        self.fs.account.close()
        self.fs = AccountedFileSystem(self._account)

    def lose_power(self) -> Lost:
        self.kill()
        self.fs.account.close()
        lost = lose_power(self.data, self._account, self._rng)
        self.fs = AccountedFileSystem(self._account)
        return lost

    def bytes_of(self, name: str) -> bytes | None:
        """None if there is no such file."""
        try:
            return read_file(self.fs, self.path(name))
        except FileNotFoundError:
            return None

    def end(self) -> None:
        for file in self.open:
            file.close()
        self.fs.account.close()


def outcomes(path: Path, story: Callable[[Machine], None], look: Callable[[Machine], T]) -> set[T]:
    """What is found after a story and a loss of power, many times."""
    found: set[T] = set()
    for seed in range(SEEDS):
        machine = Machine(path, seed)
        story(machine)
        machine.lose_power()
        found.add(look(machine))
        machine.end()
    return found


def test_what_was_synced_is_kept(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        machine.fs.make_dirs(machine.path("logs/t-0"))
        machine.fs.fsync_dir(machine.path("logs"))
        machine.fs.fsync_dir(machine.path("."))
        file = machine.synced("logs/t-0/log", b"old" * 1000)
        file.pwritev([b"n", b"ew" * 500], 300)
        file.truncate(2000)
        file.fdatasync()
        replace_file(machine.fs, machine.path("checkpoint"), b"1", durable=True)

    def look(machine: Machine) -> object:
        return machine.bytes_of("logs/t-0/log"), machine.bytes_of("checkpoint"), tuple(sorted(os.listdir(machine.data)))

    kept = bytearray(b"old" * 1000)[:2000]
    kept[300:1301] = b"n" + b"ew" * 500
    assert outcomes(tmp_path, story, look) == {(bytes(kept), b"1", ("checkpoint", "logs"))}


def test_bytes_that_were_not_synced_are_lost_or_kept_or_torn(tmp_path: Path) -> None:
    first, second = b"a" * PAGE_BYTES, b"b" * 3 * PAGE_BYTES

    def story(machine: Machine) -> None:
        machine.synced("log", first).pwrite(second, len(first))

    found = outcomes(tmp_path, story, lambda machine: machine.bytes_of("log"))
    left = {data[len(first) :] for data in found if data is not None and data.startswith(first)}
    assert len(left) == len(found), "what was synced is there"
    assert {b"", second} <= left
    assert any(set(data) == {0, ord("b")} for data in left), "the middle is lost, and the end kept"
    assert any(data and len(data) % SECTOR_BYTES for data in left), "a sector is torn"
    assert any(data and set(data) == {0} for data in left), "the size is kept, and no bytes"


def test_what_was_overwritten_or_cut_off_comes_back(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40

    def story(machine: Machine) -> None:
        file = machine.synced("index", data)
        for position in (100, 90, 110):
            file.pwrite(b"x" * 30, position)
        file.truncate(5000)
        file.truncate(20_000)

    found = outcomes(tmp_path, story, lambda machine: machine.bytes_of("index"))
    now = data[:90] + b"x" * 50 + data[140:5000] + bytes(15_000)
    assert {data, now} <= found
    for one in found:
        assert one is not None
        assert one[:90] + one[140:5000] == data[:90] + data[140:5000]


def test_what_is_written_during_a_sync_is_not_synced(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        file = machine.synced("log", b"")
        file.pwrite(b"before", 0)
        inode = os.fstat(file.fileno()).st_ino
        number = machine.fs.account.begin_sync(inode)
        file.pwrite(b" during", 6)
        machine.fs.account.end_sync(inode, number)

    found = outcomes(tmp_path, story, lambda machine: machine.bytes_of("log"))
    assert {b"before", b"before during"} <= found
    assert all(one is not None and one.startswith(b"before") for one in found)


def test_a_sync_that_did_not_return_has_synced_nothing(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        file = machine.synced("log", b"")
        file.pwrite(b"data", 0)
        machine.fs.account.begin_sync(os.fstat(file.fileno()).st_ino)

    assert {b"", b"data"} <= outcomes(tmp_path, story, lambda machine: machine.bytes_of("log"))


def test_a_kill_makes_nothing_durable(tmp_path: Path) -> None:
    """The page cache is the kernel's: the next process sees all of it, and loses it with the power."""

    def story(machine: Machine) -> None:
        machine.synced("log", b"").pwrite(b"data", 0)
        write_file(machine.fs, machine.path("new"), b"whole", durable=True)
        machine.kill()
        assert machine.bytes_of("log") == b"data"
        machine.synced("other", b"")  # that syncs the name of "new", too
        machine.kill()

    found = outcomes(tmp_path, story, lambda machine: (machine.bytes_of("log"), machine.bytes_of("new")))
    assert {(b"", b"whole"), (b"data", b"whole")} <= found
    assert {new for _, new in found} == {b"whole"}


def test_names_that_were_not_synced_are_lost_from_the_last_one_on(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        for name in "abc":
            write_file(machine.fs, machine.path(name), b"data", durable=True)

    found = outcomes(tmp_path, story, lambda machine: "".join(sorted(os.listdir(machine.data))))
    assert found == {"", "a", "ab", "abc"}


def test_a_renamed_file_is_the_old_one_or_the_new(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        machine.synced("checkpoint", b"old")
        replace_file(machine.fs, machine.path("checkpoint"), b"new", durable=True, sync_name=False)

    def look(machine: Machine) -> object:
        return machine.bytes_of("checkpoint"), machine.bytes_of("checkpoint.tmp")

    assert outcomes(tmp_path, story, look) == {(b"old", None), (b"old", b"new"), (b"new", None)}


def test_removed_files_and_directories_come_back_with_their_bytes(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        machine.fs.make_dirs(machine.path("t-0"))
        machine.fs.fsync_dir(machine.path("."))
        machine.synced("t-0/log", b"data")
        machine.fs.rename(machine.path("t-0"), machine.path("t-0-delete"))
        remove_tree(machine.fs, machine.path("t-0-delete"))
        # They may get the inodes of what was removed.
        machine.fs.make_dirs(machine.path("u-0"))
        machine.synced("u-0/log", b"other")

    def look(machine: Machine) -> object:
        names = tuple(sorted(os.listdir(machine.data)))
        return names, *(machine.bytes_of(f"{name}/log") for name in names)

    assert outcomes(tmp_path, story, look) == {
        *((("t-0",), data) for data in (b"data", None)),
        *((("t-0-delete",), data) for data in (b"data", None)),
        ((),),
        (("u-0",), b"other"),
    }


def test_a_removal_that_was_synced_is_for_good_and_frees_the_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.synced("log", b"data")
    machine.fs.unlink(machine.path("log"))
    kept = Path(machine.fs.account.path) / "removed"
    assert len(os.listdir(kept)) == 1
    machine.fs.fsync_dir(str(machine.data))
    assert os.listdir(kept) == []
    machine.lose_power()
    assert os.listdir(machine.data) == []
    machine.end()


def test_what_is_made_past_the_file_system_stays(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        Path(machine.path("audit.log")).write_text("line\n")
        Path(machine.path("folder")).mkdir()
        Path(machine.path("folder/file")).write_text("line\n")
        machine.fs.lock(machine.path(".lock")).close()

    def look(machine: Machine) -> object:
        return machine.bytes_of("audit.log"), machine.bytes_of("folder/file"), machine.bytes_of(".lock")

    assert outcomes(tmp_path, story, look) == {(b"line\n", b"line\n", b"")}


def test_a_change_that_was_noted_and_not_made_or_made_and_not_noted_does_no_harm(tmp_path: Path) -> None:
    """A process is killed between its note and the change."""

    def story(machine: Machine) -> None:
        file = machine.synced("log", b"data")
        inode = os.fstat(file.fileno()).st_ino
        account = machine.fs.account
        account.note_change(file.fileno(), inode, 2, 10)
        account.note_change(file.fileno(), inode, 1, -1)
        machine.synced("gone", b"data")
        account.keep(machine.path("gone"))
        os.unlink(machine.path("gone"))
        os.rename(machine.path("log"), machine.path("moved"))
        with open(f"{account.path}/life-0", "ab") as notes:
            notes.write(b"half a note")

    def look(machine: Machine) -> object:
        return tuple((name, machine.bytes_of(name)) for name in sorted(os.listdir(machine.data)))

    found = outcomes(tmp_path, story, look)
    assert found == {(("gone", b"data"), ("log", b"data")), (("moved", b"data"),)}


def test_the_next_process_may_name_what_a_killed_one_has_made_and_not_noted(tmp_path: Path) -> None:
    def story(machine: Machine) -> None:
        os.mkdir(machine.path("made"))
        Path(machine.path("made/file")).write_bytes(b"data")
        machine.kill()
        machine.fs.rename(machine.path("made/file"), machine.path("made/moved"))
        machine.fs.fsync_dir(machine.path("made"))
        machine.fs.rename(machine.path("made"), machine.path("left"))
        machine.fs.fsync_dir(machine.path("."))
        machine.synced("left/more", b"more")

    def look(machine: Machine) -> object:
        return machine.bytes_of("left/moved"), machine.bytes_of("left/more"), *os.listdir(machine.data)

    assert outcomes(tmp_path, story, look) == {(b"data", b"more", "left")}


def test_power_is_lost_again_and_again(tmp_path: Path) -> None:
    """After each loss all that is there is durable. Files are changed, moved and removed by several processes between losses."""
    machine = Machine(tmp_path)
    rng = random.Random(1)
    lost_files = lost_names = 0
    names = [f"{directory}/{name}" for directory in ("x", "y") for name in "abcd"]
    machine.fs.make_dirs(machine.path("x"))
    machine.fs.make_dirs(machine.path("y"))
    machine.fs.fsync_dir(machine.path("."))
    for _ in range(40):
        sure: dict[str, bytes] = {}
        """Files whose names and bytes were synced, and that were not touched since."""
        for _ in range(rng.randrange(60)):
            name = rng.choice(names)
            there = machine.fs.exists(machine.path(name))
            match rng.choice(("write", "write", "truncate", "rename", "unlink", "sync", "sync", "kill")):
                case "write":
                    size = rng.randrange(1, 3 * PAGE_BYTES)
                    machine.file(name).pwrite(rng.randbytes(size), rng.randrange(2 * PAGE_BYTES))
                    sure.pop(name, None)
                case "truncate":
                    machine.file(name).truncate(rng.randrange(PAGE_BYTES))
                    sure.pop(name, None)
                case "rename" if there:
                    target = rng.choice([other for other in names if other[0] == name[0]])
                    machine.fs.rename(machine.path(name), machine.path(target))
                    sure.pop(name, None)
                    sure.pop(target, None)
                case "unlink" if there:
                    machine.fs.unlink(machine.path(name))
                    sure.pop(name, None)
                case "sync" if there:
                    file = machine.file(name)
                    file.fdatasync()
                    machine.fs.fsync_dir(os.path.dirname(machine.path(name)))
                    sure[name] = file.pread(file.size(), 0)
                case "kill":
                    machine.kill()
        lost = machine.lose_power()
        lost_files += lost.changed_files
        lost_names += lost.lost_names
        assert {name: machine.bytes_of(name) for name in sure} == sure
        if rng.random() < 0.5:  # at once once more
            left = {name: machine.bytes_of(name) for name in names}
            assert machine.lose_power() == Lost(0, 0, 0, 0)
            assert {name: machine.bytes_of(name) for name in names} == left
    assert lost_files > 20
    assert lost_names > 20
    machine.end()


@pytest.mark.parametrize("name", ["pwrite", "truncate"])
def test_reads_see_what_was_written(tmp_path: Path, name: str) -> None:
    machine = Machine(tmp_path)
    file = machine.synced("log", b"data" * 100)
    file.truncate(200) if name == "truncate" else file.pwrite(b"x" * 10, 190)
    view = memoryview(bytearray(10))
    assert file.pread_into(view, 190) == 10
    assert bytes(view) == os.pread(file.fileno(), 10, 190) == file.pread(10, 190)
    assert file.size() == os.fstat(file.fileno()).st_size
    machine.end()
