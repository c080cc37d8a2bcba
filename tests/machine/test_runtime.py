"""What the machine's side of a broker does by itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

from app.core.errors import StorageUnavailable
from app.core.notices import one_line
from app.machine.runtime import ThreadPool


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
