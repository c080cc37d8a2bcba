"""Freed memory stays with the process: what the allocator is told, and that it does so."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from app.core.limits import MIB
from app.machine.allocator import keep_freed_memory
from app.machine.interpreter import python_environment

BYTES = 64 * MIB
TOLD = [(-8, 1), (-3, 32 * MIB), (-1, BYTES)]
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h."""
LARGE = """
import resource, sys
from app.machine.allocator import keep_freed_memory

def new_pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    assert keep_freed_memory(64 << 20)
bytearray(8 << 20)
before = new_pages()
for _ in range(20):
    bytearray(8 << 20)
print(new_pages() - before)
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The function remembers what it did in this process."""
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


class Library:
    """A C library that refuses one option."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int | None = None) -> None:
        self.told: list[tuple[int, int]] = []
        self._refused = refused
        monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(mallopt=self.mallopt))

    def mallopt(self, name: int, value: int) -> int:
        self.told.append((name, value))
        return int(name != self._refused)


def test_the_allocator_is_told_to_keep_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    assert keep_freed_memory(BYTES) is True
    assert library.told == TOLD


@pytest.mark.parametrize("option", [name for name, _ in TOLD])
def test_an_allocator_that_refuses_an_option_keeps_nothing(monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    Library(monkeypatch, refused=option)
    assert keep_freed_memory(BYTES) is False


def test_nothing_is_done_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory(BYTES) is False
    assert library.told == []
    keep_freed_memory.cache_clear()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    assert keep_freed_memory(BYTES) is False


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="It is not glibc's allocator.")
def test_large_buffers_take_the_pages_of_freed_ones() -> None:
    def pages(kept: str) -> int:
        command = [sys.executable, "-c", LARGE, kept]
        return int(subprocess.run(command, env=python_environment(), capture_output=True, check=True, text=True).stdout)

    assert pages("kept") < pages("freed") / 4
