"""What a run leaves: one JSON file with every figure, what it was taken on, and the conditions of each group.

A group is one run of its own: the systems that it compares took turns within it. Figures of two groups, or of two files, are
not comparable on a shared machine, so nothing here compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1
BUSY_CORES = 0.25
BUSY_LOAD = 3.0
"""Of older files, which have no other measure: the group before leaves up to so much in it."""


class Case(msgspec.Struct):
    """One workload, and what each system made of it."""

    name: str
    systems: dict[str, dict[str, Any]]
    """System or bare limit to its figures: medians of the rounds by unit-suffixed name; ``spread`` has [lowest, highest]."""
    parameters: dict[str, Any] = {}
    """What differs between the cases of a group, for plots."""


class Group(msgspec.Struct):
    """The cases of one kind, all taken in one go."""

    commit: str
    began: str
    """UTC, to the second."""
    seconds: float
    effort: str
    load_at_start: float
    """Average number of processes that wanted a core in the minute before, those of the group before this one too."""
    notes: list[str]
    """What was left out and why."""
    cases: list[Case]
    cores_busy_at_start: float | None = None
    """Cores that something else kept busy in the moment before; older files do not have it."""

    @property
    def busy(self) -> bool:
        """Whether others used the machine when this group began."""
        if self.cores_busy_at_start is not None:
            return self.cores_busy_at_start > BUSY_CORES
        return self.load_at_start > BUSY_LOAD

    @property
    def busy_text(self) -> str:
        if self.cores_busy_at_start is not None:
            return f"{self.cores_busy_at_start:.2f} cores busy"
        return f"load {self.load_at_start:g}"


class Results(msgspec.Struct):
    """The whole file."""

    format: int
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, dict[str, str]]
    groups: dict[str, Group] = {}

    def figures(self, case: str, system: str) -> dict[str, Any]:
        """Raises: KeyError if it was not measured."""
        for group in self.groups.values():
            for one in group.cases:
                if one.name == case and system in one.systems:
                    return one.systems[system]
        raise KeyError(f"{case}, {system}")


def load(path: Path) -> Results:
    """Raises: ValueError for a file of another format."""
    found = msgspec.json.decode(path.read_bytes(), type=Results)
    if found.format != FORMAT:
        raise ValueError(f"{path} has format {found.format}; this laboratory writes {FORMAT}")
    return found


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
