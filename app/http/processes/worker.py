"""Which of the processes of a port a worker is. Pure.

Tests: ``tests/http/processes_of_a_port/test_worker.py``.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from typing import Final, Self

from app.core.limits import HTTP_PROCESSES_MAX

READY: Final = b"serves\n"
"""A worker says this to its supervisor when it accepts connections."""
PASSED: Final = "firn.passed"
"""True in the scope of a request that another worker has passed on. Its ``Guard`` has looked at it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes that share a port."""

    index: int
    count: int
    listening: int
    """The inherited descriptor of the socket that listens."""
    directory: str
    """Only this user may enter it. It has a Unix socket of each worker."""

    @property
    def name(self) -> str:
        """The value of the label ``process`` of its metrics."""
        return name_of(self.index)

    @property
    def others(self) -> tuple[int, ...]:
        """The indices of the other workers."""
        return tuple(index for index in range(self.count) if index != self.index)

    def path_of(self, index: int) -> str:
        """Where a worker answers the others."""
        return os.path.join(self.directory, f"{index}.sock")

    def argument(self) -> str:
        """This worker, as a flag of its command says it."""
        return f"{self.index}/{self.count}/{self.listening}/{self.directory}"

    @classmethod
    def of_argument(cls, text: str) -> Self:
        """Inverse of ``argument``. Raises: ValueError."""
        *numbers, directory = text.split("/", 3)
        if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
            index, count, listening = map(int, numbers)
            found = cls(index, count, listening, directory)
            if found.index < found.count <= HTTP_PROCESSES_MAX:
                return found
        raise ValueError(f"{text!r} names no process of a port")


def name_of(index: int) -> str:
    """The name of a worker in metrics and in sentences."""
    return f"http-{index}"
