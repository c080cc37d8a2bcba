"""What /proc says of processes: the figures to trust on a machine that others use too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def children(pid: int) -> list[int]:
    """Processes that this one has started, from any of its threads, and that still run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """A process and all its descendants that still run."""
    found = [pid]
    with suppress(FileNotFoundError):
        for child in children(pid):
            found += family(child)
    return found


def family_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants: a broker is one process or several."""
    total = 0.0
    for member in family(pid):
        with suppress(FileNotFoundError):
            total += cpu_seconds(member)
    return total


def families_cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of several processes and their descendants."""
    return sum(family_cpu_seconds(pid) for pid in pids)


def process_ids(text: str) -> tuple[int, ...]:
    """Process ids from a command line, with commas between them; none for 0."""
    return tuple(int(part) for part in text.split(",") if int(part))


def family_cpu_seconds_and_ended(pid: int) -> float:
    """The same with those descendants that have ended and been waited for."""
    total = 0
    for member in family(pid):
        with suppress(FileNotFoundError):
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(int(ticks) for ticks in fields[11:15])
    return total / CLOCK_TICKS


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """Resident memory in MB now (``VmRSS``) or at its highest (``VmHWM``)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no {what} of process {pid}")


def family_memory_mb(pid: int, what: str = "VmRSS") -> float:
    """The same of a process and its descendants, added up; pages that they share count more than once.

    A descendant that has ended holds nothing, also while nobody has waited for it (it has an entry in /proc then, without memory).
    """
    total = memory_mb(pid, what)
    for member in family(pid)[1:]:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            total += memory_mb(member, what)
    return total


def forget_peak(pid: int) -> None:
    """Let the highest memory (``VmHWM``) of a process and its descendants begin again at what they hold now."""
    for member in family(pid):
        with suppress(FileNotFoundError):
            Path(f"/proc/{member}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
