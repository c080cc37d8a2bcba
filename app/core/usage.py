"""Resource usage of a process, as Linux reports it, under the names that every Prometheus client library uses."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from app.core.metrics import Labels, Registry

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _RSS_PAGES = 11, 12, 19, 21
"""Fields of ``/proc/PID/stat`` behind the name (proc(5): 14, 15, 22 and 24)."""


class Usage(NamedTuple):
    """Of one process."""

    cpu_s: float
    """User and system time since it started."""
    resident_bytes: int
    started_s: float
    """Unix time."""
    descriptors: int
    """0 if the kernel is too old to say it cheaply."""


def read_usage(process_id: int) -> Usage | None:
    """The usage of a process; None if it is gone, or the system does not tell."""
    path = f"/proc/{process_id}"
    try:
        with open(f"{path}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        # Since Linux 6.2; to list them would take milliseconds in a process with many.
        descriptors = os.stat(f"{path}/fd").st_size
        return Usage(
            (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_S,
            int(fields[_RSS_PAGES]) * _PAGE_BYTES,
            boot_s + int(fields[_START_TICKS]) / _TICKS_PER_S,
            descriptors,
        )
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def show_process(
    registry: Registry, version: str, *, others: Callable[[], Sequence[tuple[str, int]]] = lambda: ()
) -> None:
    """Have the registry show the usage of this process, and which program it is.

    ``others``: name and process id of further processes whose registries are not read; of one name, their sums are shown.
    """
    process_id = os.getpid()
    registry.describe("process_cpu_seconds_total", "counter", "CPU time of the process, user and system.")
    registry.describe("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM.")
    registry.describe("process_start_time_seconds", "gauge", "When the process started, in Unix time.")
    registry.describe("process_open_fds", "gauge", "Open files and sockets of the process.")
    registry.describe("firn_build_info", "gauge", "1; the labels say which version of Firn and Python runs.")
    build = (("version", version), ("python", platform.python_version()))

    def read() -> Iterator[tuple[str, Labels, float] | None]:
        yield "firn_build_info", build, 1.0
        yield from _shown((), [process_id])
        by_name: dict[str, list[int]] = {}
        for name, other in others():
            by_name.setdefault(name, []).append(other)
        for name, process_ids in by_name.items():
            yield from _shown((("process", name),), process_ids)

    registry.source(read)


def _shown(labels: Labels, process_ids: Iterable[int]) -> Iterator[tuple[str, Labels, float]]:
    found = [usage for process_id in process_ids if (usage := read_usage(process_id)) is not None]
    if found:
        yield "process_cpu_seconds_total", labels, sum(usage.cpu_s for usage in found)
        yield "process_resident_memory_bytes", labels, float(sum(usage.resident_bytes for usage in found))
        yield "process_start_time_seconds", labels, min(usage.started_s for usage in found)
        descriptors = sum(usage.descriptors for usage in found)
        if descriptors:
            yield "process_open_fds", labels, float(descriptors)
