"""Replaces segments by the segment that compaction wrote from them. A kill at any point loses nothing.

    <base>.log.cleaned   being written                  recovery removes it
    <base>.log.swap      complete, synced, named        recovery puts it in place
    <base>.log           in place

1. ``commit``: the side files are renamed first, and ``.log.cleaned`` to ``.log.swap`` last. Then the directory is synced. From
   here on the new segment counts, even after a crash.
2. ``put_in_place``: the old files are moved away, and the new files get their names. The log does this in one step of the event
   loop, so that no reader opens the wrong file by its name.
3. The directory is synced before the next group is swapped.

From the first rename to the end of step 3 the log is not truncated, and a log that was truncated while ``.cleaned`` was written is
not swapped. So a ``.swap`` file never has records that were cut away.

``complete`` does steps 2 and 3 in recovery. A ``.swap`` file replaces the segments that begin in its range. The range begins at
the file's base offset, and ends with its last batch, which compaction keeps even if it is empty. Kafka names and completes
these files in the same way.

Tests: ``tests/hot/test_cleaner.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.core.errors import CorruptionError
from app.core.units import Offset
from app.hot.segments import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
    walk,
)
from app.machine.files import FileSystem, unlink_quietly

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

SIDE_SUFFIXES: Final = tuple(suffix for suffix in SEGMENT_SUFFIXES if suffix != LOG_SUFFIX)


def _path(directory: str, base_offset: int, suffix: str, more: str = "") -> str:
    return f"{directory}/{file_name(Offset(base_offset), suffix)}{more}"


def commit(fs: FileSystem, directory: str, base_offset: int, *, has_aborted: bool) -> None:
    """Commit the ``.cleaned`` segment durably. Blocks. Raises: OSError; then the segment may be committed or not."""
    for suffix in SIDE_SUFFIXES:
        if suffix != TRANSACTION_INDEX_SUFFIX or has_aborted:
            fs.rename(
                _path(directory, base_offset, suffix, CLEANED_SUFFIX),
                _path(directory, base_offset, suffix, SWAP_SUFFIX),
            )
    fs.rename(
        _path(directory, base_offset, LOG_SUFFIX, CLEANED_SUFFIX),
        _path(directory, base_offset, LOG_SUFFIX, SWAP_SUFFIX),
    )
    fs.fsync_dir(directory)


def remove_cleaned(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove a segment that was not committed. Raises: OSError; missing files are no error."""
    for suffix in SEGMENT_SUFFIXES:
        unlink_quietly(fs, _path(directory, base_offset, suffix, CLEANED_SUFFIX))


def put_in_place(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Give the ``.swap`` segment its final names. The old files are already moved away. Raises: OSError."""
    for suffix in SIDE_SUFFIXES:
        try:
            fs.rename(_path(directory, base_offset, suffix, SWAP_SUFFIX), _path(directory, base_offset, suffix))
        except FileNotFoundError:
            continue  # no aborted transactions, or lost with the power and rebuilt from the log
    fs.rename(_path(directory, base_offset, LOG_SUFFIX, SWAP_SUFFIX), _path(directory, base_offset, LOG_SUFFIX))


def complete(fs: FileSystem, directory: str, names: Sequence[str]) -> list[str]:
    """Put every ``.swap`` segment among ``names``, the files of a partition's directory, in place. This completes a killed swap.

    A damaged ``.swap`` segment is dropped if the first segment that it replaces still exists: then all of them exist. Otherwise
    it is the only copy, and the loader cuts it off at the damage.

    Returns: sentences for the operator. Raises: OSError.
    """
    said = []
    segments = _bases(names, LOG_SUFFIX)
    for base in sorted(_bases(names, LOG_SUFFIX + SWAP_SUFFIX)):
        path = _path(directory, base, LOG_SUFFIX, SWAP_SUFFIX)
        end, damage = _sound_end(fs, path)
        if damage is not None and base in segments:
            said.append(f"{path}: {damage}; it is deleted, and the segments that it was made from stay")
            unlink_quietly(fs, path)
            continue
        for old in segments:
            if base <= old < end:
                for suffix in SEGMENT_SUFFIXES if old != base else SIDE_SUFFIXES:
                    unlink_quietly(fs, _path(directory, old, suffix))
                if old != base:
                    unlink_quietly(fs, _path(directory, old, SNAPSHOT_SUFFIX))
        # Old indexes must be gone before the new segment has the name that they belong to.
        fs.fsync_dir(directory)
        put_in_place(fs, directory, base)
        fs.fsync_dir(directory)
        said.append(f"{path} replaces offsets [{base}, {end}) now: their compaction was interrupted")
    return said


def _bases(names: Sequence[str], suffix: str) -> list[int]:
    return [int(name[: -len(suffix)]) for name in names if name.endswith(suffix) and name[: -len(suffix)].isdigit()]


def _sound_end(fs: FileSystem, path: str) -> tuple[int, CorruptionError | None]:
    """Returns: one past the last sound offset of a segment file; its first damage, or None."""
    file = fs.open(path, read_only=True)
    end = 0
    try:
        for _, header, _ in walk(file, 0, file.size(), verify=True):
            end = header.end_offset
    except CorruptionError as error:
        return end, error
    finally:
        file.close()
    return end, None
