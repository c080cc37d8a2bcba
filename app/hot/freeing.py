"""Frees the bytes of deleted files without delaying the event loop that serves clients.

Unlinking a file costs the kernel a millisecond of a core for every 10 to 20 MiB of the file in the page cache. Nothing interrupts
this call. If the core is the event loop's, the loop waits. So the file is first dropped from the page cache piece by piece, and
other work runs between two pieces.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from functools import partial
from typing import Final

from app.core.limits import MIB
from app.core.seams import BlockingPool
from app.hot.directory import run_to_end
from app.machine.files import File, FileSystem, remove_tree, unlink_quietly

PIECE_BYTES: Final = 4 * MIB
"""Bytes dropped from the page cache at a time: less than half a millisecond of a core."""
REST_S: Final = 0.002
"""Pause between two pieces. A GB takes a second."""
PATIENT_FILES_MAX: Final = 100
"""If more bytes wait, there are no pauses: deleted bytes must not grow faster than they are freed."""


async def free_files(fs: FileSystem, pool: BlockingPool, paths: deque[str]) -> None:
    """Unlink files in order, until ``paths`` is empty. Each file leaves ``paths`` when it is unlinked. Missing files are no error,
    and active readers can finish. ``paths`` may grow meanwhile. Raises: OSError."""
    while paths:
        large = await run_to_end(pool, partial(_unlink_small, fs, paths))
        if large is not None:
            try:
                for position in range(0, large.size(), PIECE_BYTES):
                    await run_to_end(pool, partial(large.drop_cached, position, PIECE_BYTES))
                    await _rest(paths)
            finally:
                large.close()
            await run_to_end(pool, partial(unlink_quietly, fs, paths[0]))
            paths.popleft()
        elif paths:
            await _rest(paths)


async def _rest(waiting: deque[str]) -> None:
    await asyncio.sleep(REST_S if len(waiting) <= PATIENT_FILES_MAX else 0)


def _unlink_small(fs: FileSystem, paths: deque[str]) -> File | None:
    """Unlink the first files until a piece is freed. A larger file is opened instead, if possible."""
    freed_bytes = 0
    while paths and freed_bytes < PIECE_BYTES:
        try:
            size_bytes = fs.file_size(paths[0])
            if size_bytes > PIECE_BYTES:
                try:
                    return fs.open(paths[0], read_only=True)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
            fs.unlink(paths[0])
            freed_bytes += size_bytes
        except FileNotFoundError:
            pass
        paths.popleft()
    return None


async def free_tree(fs: FileSystem, pool: BlockingPool, path: str) -> None:
    """Remove a directory and its files. Missing files are no error. Raises: OSError."""

    def files() -> deque[str]:
        try:
            children = [f"{path}/{name}" for name in fs.list_dir(path)]
        except FileNotFoundError:
            return deque()
        return deque(child for child in children if not fs.is_dir(child))

    await free_files(fs, pool, await run_to_end(pool, files))
    await run_to_end(pool, partial(remove_tree, fs, path))
