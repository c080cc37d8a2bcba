"""The disk of a simulated machine, and a process's view of it.

``SimDisk`` adds to the simulated file system of the tests: files remember when they were written, and a hook is told of every
call that changes or syncs something, after it took effect: that is where a machine is made to die in the middle of a step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.sim.loop import Process
from tests.support.simfs import PAGE_BYTES, SimFileSystem, _Directory, _Inode

SECTOR_BYTES = 512


class SimDisk(SimFileSystem):
    """See the module."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int]) -> None:
        super().__init__(rng)
        self._now_ms = now_ms
        self._written_ms: dict[str, int] = {}
        self.on_change: Callable[[str, str], None] = lambda _call, _path: None

    def note(self, call: str, path: str) -> None:
        super().note(call, path)
        if call == "write":
            self._written_ms[path] = self._now_ms()
        if call not in ("read", "open", "close"):
            self.on_change(call, path)

    def _crash_file(self, inode: _Inode) -> None:
        """Half of the time sectors survive one by one, so that a batch may lose its middle and keep its ends."""
        if not inode.dirty_pages or self.rng.random() < 0.5:
            super()._crash_file(inode)
            return
        keep_rate = self.rng.choice((0.3, 0.8, 0.95))
        content = bytearray(inode.durable)
        for page in sorted(inode.dirty_pages):
            for start in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SECTOR_BYTES):
                data = inode.current[start : start + SECTOR_BYTES]
                if data and self.rng.random() < keep_rate:
                    if len(content) < start:
                        content.extend(bytes(start - len(content)))
                    content[start : start + len(data)] = data
        if len(inode.current) < len(content):
            del content[len(inode.current) :]
        inode.current = content
        inode.durable = bytes(content)
        inode.dirty_pages.clear()
        self.used += len(content)

    def modified_ms(self, path: str) -> int:
        self._file(path)
        return self._written_ms.get(path, 0)

    def durable_bytes(self, path: str) -> bytes | None:
        """What a loss of power now would leave of a file at the least; None if not even its name."""
        directory: Any = self._root
        for part in [part for part in path.split("/") if part]:
            if not isinstance(directory, _Directory):
                return None
            directory = directory.durable.get(part)
        return directory.durable if isinstance(directory, _Inode) else None

    def segment_files(self, data_dir: str) -> list[str]:
        """Every ``.log`` file of a partition, in order."""
        found = []
        if self.is_dir(data_dir):
            for name in self.list_dir(data_dir):
                if "-" in name and not name.endswith("-delete") and self.is_dir(f"{data_dir}/{name}"):
                    files = self.list_dir(f"{data_dir}/{name}")
                    found += [f"{data_dir}/{name}/{file}" for file in files if file.endswith(".log")]
        return found


class ProcessFiles:
    """A file system as one process has it: after its death it has none."""

    def __init__(self, process: Process, disk: SimDisk) -> None:
        self._process = process
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        self._process.check()
        return getattr(self._disk, name)
