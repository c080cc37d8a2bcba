"""What a run leaves: one small JSON file with every figure, what it was taken on, and the conditions of each group.

The file has a line for each case. A figure is ``[median, lowest, highest]`` of its rounds, or one number if there was one round
or all were the same; four digits of each are kept. A group is one run of its own: the systems that it compares took turns within
it. Figures of two groups, or of two files, are not comparable on a shared machine, so nothing here compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 2
OLD_FORMAT = 1
"""With the lowest and highest rounds in a table of their own. It is still read."""
DIGITS = 4
UNKNOWN_COMMIT = "unknown"
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
    whole: bool = True
    """Whether the group came to its end. What was measured of one that did not is kept."""

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

    @property
    def one_commit(self) -> str | None:
        """The commit of all groups, if it is one, and nothing that is not committed had a part in it."""
        commits = {group.commit for group in self.groups.values()}
        [commit, *others] = commits or {UNKNOWN_COMMIT}
        return None if others or commit == UNKNOWN_COMMIT or commit.endswith("+") else commit

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
    if found.format not in (FORMAT, OLD_FORMAT):
        raise ValueError(f"{path} has format {found.format}; this laboratory writes {FORMAT}")
    found.format = FORMAT
    for group in found.groups.values():
        for case in group.cases:
            case.systems = {system: _spread_out(report) for system, report in case.systems.items()}
    return found


def save(results: Results, path: Path) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = msgspec.to_builtins(results)
    groups: dict[str, dict[str, Any]] = whole.pop("groups")
    blocks = []
    for name, group in groups.items():
        cases = group.pop("cases")
        for case in cases:
            case["systems"] = {system: _compact(report) for system, report in case["systems"].items()}
        lines = ",\n".join("   " + _line(case) for case in cases)
        blocks.append(f'  {_line(name)}: {_line(group)[:-1]}, "cases": [\n{lines}\n  ]}}')
    head = ",\n".join(f" {_line(name)}: {_line(value)}" for name, value in whole.items())
    new = path.with_suffix(".new")
    new.write_text("{\n" + head + ',\n "groups": {\n' + ",\n".join(blocks) + "\n }\n}\n")
    new.replace(path)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _compact(report: dict[str, Any]) -> dict[str, Any]:
    spread = report.get("spread", {})
    found: dict[str, Any] = {}
    for name, value in report.items():
        if name != "spread":
            lowest, highest = spread.get(name, (value, value))
            figures = [_rounded(one) for one in (value, lowest, highest)]
            found[name] = figures[0] if figures[0] == figures[1] == figures[2] else figures
    return found


def _spread_out(report: dict[str, Any]) -> dict[str, Any]:
    if "spread" in report:
        return report
    found = {name: value[0] if isinstance(value, list) else value for name, value in report.items()}
    spread = {name: value[1:] for name, value in report.items() if isinstance(value, list)}
    return found | ({"spread": spread} if spread else {})
