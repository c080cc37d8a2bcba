"""A log file that its writer rotates: whole lines, bounded, and for nobody but its owner."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from app.machine.rotated_file import WRITE_BYTES_MAX, RotatedFile


def opened(path: Path, *, bytes_max: int = 100, files_max: int = 3) -> RotatedFile:
    file = RotatedFile(str(path), bytes_max=bytes_max, files_max=files_max)
    file.open()
    return file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_lines_are_added_and_old_files_go(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.log"
    file = opened(path)
    for number in range(50):
        assert file.write([b"%09d\n" % number]) == (1, None)
    file.close()
    kept = [path.with_name(name) for name in ("audit.log.2", "audit.log.1", "audit.log")]
    assert sorted(path.parent.iterdir()) == sorted(kept)
    lines = b"".join(one.read_bytes() for one in kept).split()
    assert lines == [b"%09d" % number for number in range(20, 50)]
    assert all(one.stat().st_size <= 100 for one in kept)
    assert {mode(one) for one in kept} == {0o600}
    assert mode(path.parent) == 0o700


def test_a_file_that_is_there_is_continued_and_made_private(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"old\n")
    path.chmod(0o644)
    file = opened(path)
    file.write([b"new\n"])
    file.close()
    assert path.read_bytes() == b"old\nnew\n"
    assert mode(path) == 0o600


def test_a_line_that_was_cut_off_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """By a kill in the middle of a write, or a loss of power."""
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"whole": 1}\n{"ha')
    for number in range(2):
        file = opened(path)
        file.write([b"%d\n" % number])
        file.close()
    assert path.read_bytes() == b'{"whole": 1}\n{"ha\n0\n1\n'


def test_two_writers_are_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "audit.log")
    with pytest.raises(BlockingIOError):
        opened(tmp_path / "audit.log")
    first.close()
    opened(tmp_path / "audit.log").close()


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.log"
    if kind == "link":
        (tmp_path / "victim").write_bytes(b"")
        path.symlink_to(tmp_path / "victim")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"."):
        opened(path)


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = opened(path, bytes_max=1000)
    file.write([b"one\n"])
    path.rename(tmp_path / "taken")
    assert file.write([b"two\n"]) == (1, None)
    (tmp_path / "audit.log").unlink()
    assert file.write([b"three\n"]) == (1, None)
    file.close()
    assert (tmp_path / "taken").read_bytes() == b"one\n"
    assert path.read_bytes() == b"three\n"


def test_a_write_that_fails_in_the_middle_leaves_whole_lines_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    file = opened(path, bytes_max=1 << 30)
    line = b"x" * 99_999 + b"\n"
    room, write = 450_000, os.write

    def full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", full)
    written, error = file.write([line] * 6)
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert written == 4, f"writes of {WRITE_BYTES_MAX} bytes at most, so of two lines"
    assert path.read_bytes() == line * 4
    room = 1 << 30
    assert file.write([b"again\n"]) == (1, None)
    file.close()
    assert path.read_bytes() == line * 4 + b"again\n"


def test_a_directory_that_is_gone_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.log"
    file = opened(path)
    path.unlink()
    path.parent.rmdir()
    path.parent.write_bytes(b"in the way")
    written, error = file.write([b"one\n"])
    assert written == 0
    assert error is not None
    path.parent.unlink()
    assert file.write([b"two\n"]) == (1, None)
    file.close()
    assert path.read_bytes() == b"two\n"
