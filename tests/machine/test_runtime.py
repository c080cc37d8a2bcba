"""What the machine's side of a broker does by itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import time
import weakref
from pathlib import Path

import pytest

from app.core.errors import StorageUnavailable
from app.core.notices import one_line
from app.machine import runtime
from app.machine.garbage import GARBAGE_THRESHOLD
from app.machine.runtime import (
    DESCRIPTORS_WANTED,
    SystemClock,
    ThreadPool,
    boot_id,
    raise_descriptor_limit,
    settle_memory,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe: 5 µs … done", "größe: 5 µs … done"),
        ("two\nlines", "two lines"),
        ("\x1b[2Jcleared\r", "\\x1b[2Jcleared\\r"),
        ("a\u2028b\x00", "a\\u2028b\\x00"),
        ("file \udcff", "file \\udcff"),
    ],
)
def test_what_a_peer_names_cannot_end_a_log_line_or_move_the_cursor(text: str, shown: str) -> None:
    assert one_line(text) == shown


class Weighty:
    """What an error's traceback holds."""


async def test_an_error_of_pool_work_is_freed_with_its_last_user_and_needs_no_garbage_collection() -> None:
    pool = ThreadPool(1)
    kept: list[weakref.ref[Weighty]] = []

    def work() -> None:
        weighty = Weighty()
        kept.append(weakref.ref(weighty))
        raise StorageUnavailable("the disk is away")

    async def ask() -> None:
        with contextlib.suppress(StorageUnavailable):
            await pool.run(work)

    gc.disable()
    try:
        await ask()
        await pool.run(lambda: None)  # the thread lets go of what it ran last
        await asyncio.sleep(0)
        assert [found() for found in kept] == [None]
    finally:
        gc.enable()
        pool.close()


def test_the_boot_is_known_by_its_id_where_the_system_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "boot_id"
    monkeypatch.setattr(runtime, "BOOT_ID", str(path))
    assert boot_id() == ""
    path.write_text("6f0c\n")
    assert boot_id() == "6f0c"


def test_the_clock_tells_milliseconds_since_1970() -> None:
    before = time.time_ns()
    now_ms = SystemClock().now_ms()
    assert before // 1_000_000 <= now_ms <= time.time_ns() // 1_000_000


async def test_pool_work_returns_its_result_and_goes_on_without_its_caller() -> None:
    pool = ThreadPool(1)
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    done: list[int] = []

    def work() -> None:
        done.append(1)
        raise StorageUnavailable("no caller reads it")

    assert await pool.run(lambda: 5) == 5
    call = asyncio.ensure_future(pool.run(work))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await pool.run(lambda: 6) == 6
    pool.close()
    assert done == [1]
    gc.collect()
    assert failed == []


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "told"),
    [
        (1024, 4096, (4096, 4096), 4096),
        (4096, 4096, None, 4096),
        (1024, 1 << 21, (DESCRIPTORS_WANTED, 1 << 21), DESCRIPTORS_WANTED),
        (1024, resource.RLIM_INFINITY, (DESCRIPTORS_WANTED, resource.RLIM_INFINITY), DESCRIPTORS_WANTED),
        (1 << 21, resource.RLIM_INFINITY, None, 1 << 21),
    ],
)
def test_as_many_open_files_are_asked_for_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: tuple[int, int] | None, told: int
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert raise_descriptor_limit() == told
    assert limits == ([] if asked is None else [asked])


def test_the_collector_looks_less_often_once_the_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "set_threshold", lambda *given: calls.append(given))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    settle_memory()
    assert calls == ["freeze", (GARBAGE_THRESHOLD, 20, 50), "enable"]
