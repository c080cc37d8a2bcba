"""Who may read what the broker writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.machine.files import PosixFileSystem, make_private


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        fs = PosixFileSystem()
        fs.make_dirs(str(tmp_path / "data"))
        fs.open(str(tmp_path / "data" / "log"), create=True).close()
        fs.lock(str(tmp_path / "data" / ".lock")).close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "data") == 0o700
    assert mode(tmp_path / "data" / "log") == mode(tmp_path / "data" / ".lock") == 0o600


@pytest.mark.parametrize(("is_now", "is_then"), [(0o755, 0o700), (0o750, 0o700), (0o700, 0o700), (0o500, 0o500)])
def test_a_directory_of_an_older_version_is_closed_to_others(tmp_path: Path, is_now: int, is_then: int) -> None:
    tmp_path.chmod(is_now)
    try:
        assert make_private(str(tmp_path)) is None
        assert mode(tmp_path) == is_then
    finally:
        tmp_path.chmod(0o700)


def test_a_directory_of_somebody_else_stays_open_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o775)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chmod", refuse)
    told = make_private(str(tmp_path))
    assert told is not None
    assert "mode 775" in told
