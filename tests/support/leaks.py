"""Secrets that must not be found where others can read: in command lines, in files, and in what was printed.

with Commands() as commands:
    ...  # processes are started and end
assert commands.naming(secret) == []
assert files_naming(tmp_path, secret) == []
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import psutil

LOOK_S: Final = 1.0
"""Often enough for processes that stay. To look costs some milliseconds."""
LOOKS: Final = 2
"""At each process: one that has been forked just now has its parent's command line."""


class Commands:
    """Notes the command line, and the environment, of each process that descends from this one while the block lasts.

    A process that lives for a shorter time than ``LOOK_S`` may be missed.
    """

    def __init__(self) -> None:
        self._noted: dict[tuple[int, tuple[str, ...]], str] = {}
        """Environment by process and command line."""
        self._looks: Counter[int] = Counter()
        """By process."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Commands:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_S):
            for process in psutil.Process().children(recursive=True):
                self._looks[process.pid] += 1
                if self._looks[process.pid] > LOOKS:
                    continue
                try:
                    self._noted[process.pid, tuple(process.cmdline())] = repr(process.environ())
                except psutil.Error:
                    continue  # it has ended

    def of(self, module: str) -> list[tuple[str, ...]]:
        """The command lines of all processes that have run a module of Python."""
        return [command for _, command in self._noted if module in command]

    def naming(self, *secrets: str) -> list[tuple[str, ...]]:
        """The command lines that have one of these in them."""
        return [
            command for _, command in self._noted if any(one in argument for argument in command for one in secrets)
        ]

    def handed(self, *secrets: str, but: Collection[str] = ()) -> list[tuple[str, ...]]:
        """The command lines of processes that have one of these in their environment, without those of some modules."""
        return [
            command
            for (_, command), environment in self._noted.items()
            if any(one in environment for one in secrets) and not any(module in command for module in but)
        ]


def files_naming(folder: Path, *secrets: str, but: Collection[Path] = ()) -> list[Path]:
    """The files under a folder that have one of these in them, without some that may."""
    wanted = [one.encode() for one in secrets]
    files = [path for path in folder.rglob("*") if path.is_file() and path not in but]
    assert files
    return [path for path in files if any(one in data for data in [path.read_bytes()] for one in wanted)]
