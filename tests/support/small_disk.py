"""A file system of a few MiB, to be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.core.limits import MIB

DISK_BYTES = 48 * MIB


@contextmanager
def small_file_system(path: Path) -> Iterator[Path]:
    """A tmpfs of ``DISK_BYTES`` at ``path``. Skips where that takes rights that we have not."""
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def put_ballast(disk: Path, left_bytes: int) -> Path:
    """A file that leaves only that much room."""
    ballast = disk / "ballast"
    stats = os.statvfs(disk)
    with ballast.open("wb") as file:
        for _ in range((stats.f_bavail * stats.f_frsize - left_bytes) // MIB):
            file.write(bytes(MIB))
    return ballast


def fill(ballast: Path) -> None:
    """Let it grow until there is no room for a page more."""
    with ballast.open("ab", buffering=0) as file:
        while os.statvfs(ballast).f_bavail:
            file.write(bytes(os.statvfs(ballast).f_frsize))
