"""What of a file is in the page cache."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from app.machine import files, page_cache
from app.machine.files import PosixFileSystem
from app.machine.page_cache import all_pages_cached


@pytest.fixture
def descriptor(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.pwrite(descriptor, bytes(100_000), 0)
    try:
        all_pages_cached(descriptor, 0, 1)
    except OSError as error:
        pytest.skip(f"this system has no cachestat: {error}")
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("position", "length"), [(0, 1), (0, 4096), (4095, 2), (1, 99_999), (99_999, 1)])
def test_what_was_just_written_is_cached(descriptor, position, length):
    assert all_pages_cached(descriptor, position, length)


def test_a_range_past_the_end_is_not_all_cached(descriptor):
    assert not all_pages_cached(descriptor, 0, 1_000_000)
    assert not all_pages_cached(descriptor, 90_000, 4096 * 8)


def test_what_was_dropped_is_missed(descriptor):
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if all_pages_cached(descriptor, 0, 100_000):
        pytest.skip("this file system keeps what it is asked to drop")
    os.pread(descriptor, 1, 0)
    assert all_pages_cached(descriptor, 0, 1)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_where_the_system_cannot_tell_nothing_is_taken_to_be_cached(tmp_path, monkeypatch, code):
    asked = []

    def refused(*arguments: int) -> bool:
        asked.append(arguments)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "all_pages_cached", refused)
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"x" * 10, 0)
    assert not file.is_cached(0, 10)
    assert not file.is_cached(0, 10)
    assert len(asked) == (2 if code == errno.EPERM else 1)
    file.close()


def test_what_is_written_back_early_is_what_was_written(tmp_path):
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"x" * 10_000, 0)
    file.start_write_back(0, 4096)
    file.finish_write_back(0, 0)
    assert file.pread(10_000, 0) == b"x" * 10_000
    file.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ESPIPE, errno.EIO, errno.ENOSPC])
def test_an_early_write_back_fails_where_the_disk_does_and_not_where_there_is_none(tmp_path, monkeypatch, code):
    def refused(*_: int) -> int:
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(page_cache, "sync_file_range", refused)
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    for write_back in (file.start_write_back, file.finish_write_back):
        if code in (errno.EIO, errno.ENOSPC):
            with pytest.raises(OSError, match=os.strerror(code)):
                write_back(0, 0)
        else:
            write_back(0, 0)
    file.close()
