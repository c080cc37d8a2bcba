"""Each line for the operator has a name that stays: in the code, in the table of faults and in docs/log-events.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from app.core.faults import Faults, Limited
from app.core.log_events import EVENT_OF_FAULT, Event, Level, Line, longer, of_fault
from app.objectstore.metered import STORE, WAL_STORE
from tools.source_trees import tree_of

ROOT: Final = Path(__file__).parents[2]
ROW: Final = re.compile(r"^\| `(?P<name>[a-z_.]+)` \| (?P<level>\w+) \| (?P<meaning>.+) \|$", re.M)
WRITERS: Final = {"log_line", "_log_line", "client_line"}
KINDS_OF_EXPRESSIONS: Final = {
    "self._name": [STORE, WAL_STORE],
    "kind": ["expiring results of", "deciding results of", "deciding a result of"],
}
"""Kinds that are no constants where a fault is reported."""
FAULTY: Final = ("met", "met_error")


@cache
def calls() -> list[tuple[Path, ast.Call, str]]:
    """Each call that writes a line or reports a fault: its file and name."""
    return list(_calls())


def _calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for path in sorted((ROOT / "app").rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                last = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if last in WRITERS or last in FAULTY:
                    yield path.relative_to(ROOT), node, ast.unparse(node.func)


def is_named(node: ast.expr) -> bool:
    """Whether an argument has a name of its own, or passes a line on."""
    match node:
        case ast.Constant() | ast.JoinedStr() | ast.BinOp():
            return False
        case ast.IfExp():
            return is_named(node.body) and is_named(node.orelse)
    return True


def kinds_of(path: Path, node: ast.expr) -> list[str]:
    """The kinds of faults that an argument may be."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.Name) and node.id.isupper():
        return [getattr(import_module(".".join(path.with_suffix("").parts)), node.id)]
    return KINDS_OF_EXPRESSIONS[ast.unparse(node)]


def test_every_line_for_the_operator_has_a_name() -> None:
    unnamed = [
        f"{path}:{node.lineno}"
        for path, node, name in calls()
        if name.split(".")[-1] in WRITERS and node.args and not is_named(node.args[0])
    ]
    assert unnamed == []


def test_every_kind_of_fault_has_a_name_and_every_name_of_a_kind_is_used() -> None:
    found = set()
    for path, node, name in calls():
        of_faults = name.split(".")[-1] in FAULTY and "fault" in name.lower()
        if not of_faults or (path.name == "faults.py" and name != "faults.met"):
            continue
        if len(node.args) > 2 and ast.unparse(node.args[2]).startswith("Event."):
            continue
        kinds = kinds_of(path, node.args[0])
        assert EVENT_OF_FAULT.keys() >= set(kinds), f"{path}:{node.lineno}"
        found.update(kinds)
    assert found == EVENT_OF_FAULT.keys()


def test_every_name_is_written_by_some_line() -> None:
    text = "\n".join(
        path.read_text() for path in sorted((ROOT / "app").rglob("*.py")) if path.name not in ("log_events.py",)
    )
    of_faults = set(EVENT_OF_FAULT.values())
    unused = [one.label for one in Event if one not in of_faults and f"Event.{one.name}" not in text]
    assert unused == []


def test_the_names_are_those_of_the_document() -> None:
    rows = [
        (row["name"], row["level"], row["meaning"]) for row in ROW.finditer((ROOT / "docs/log-events.md").read_text())
    ]
    assert rows == [(one.label, str(one.level), one.meaning) for one in Event]
    assert len({one.label for one in Event}) == len(rows)


def test_a_line_is_its_text() -> None:
    line = Event.BROKER_READY.line("broker 1 serves", broker_id=1)
    assert line == "broker 1 serves"
    assert (line.event, line.level, line.fields) == (Event.BROKER_READY, Level.INFO, {"broker_id": 1})


def test_a_line_that_goes_on_keeps_its_name_and_a_text_stays_a_text() -> None:
    line = longer(Event.DISK_FULL.line("full", bytes=3), "full (2 more)")
    assert isinstance(line, Line)
    assert (line, line.event, line.fields) == ("full (2 more)", Event.DISK_FULL, {"bytes": 3})
    assert not isinstance(longer("full", "full (2 more)"), Line)


def test_a_sentence_with_a_name_names_its_fault() -> None:
    sentence = Event.CLUSTER_LOG_FAILED.line("cannot read it", sequence=7)
    line = of_fault(sentence, sentence, "reading", subject="the cluster log", state="begins")
    assert line.event is Event.CLUSTER_LOG_FAILED
    assert line.fields == {"kind": "reading", "subject": "the cluster log", "state": "begins", "sequence": 7}


@pytest.fixture
def lines() -> list[str]:
    return []


def told(lines: list[str]) -> list[tuple[str, Level, object, object]]:
    found = []
    for line in lines:
        assert isinstance(line, Line)
        found.append((line.event.label, line.level, line.fields["state"], line.fields.get("times")))
    return found


def test_a_fault_has_one_name_from_its_begin_to_its_end(lines: list[str]) -> None:
    now_s = [0.0]
    faults = Faults(lines.append, lambda: now_s[0])
    for now_s[0] in (0.0, 30.0, 61.0):
        faults.met("tiering", "orders-0", "orders-0 cannot be tiered", burst=2)
    now_s[0] = 200.0
    faults.look()
    assert told(lines) == [
        ("tiering.failed", Level.ERROR, "begins", None),
        ("tiering.failed", Level.ERROR, "goes on", 2),
        ("tiering.failed", Level.INFO, "over", 3),
    ]
    assert lines[-1] == "over after 61 s: tiering orders-0 failed 3 times"


def test_further_subjects_of_a_fault_keep_the_name(lines: list[str]) -> None:
    faults = Faults(lines.append, lambda: 0.0)
    for number in range(22):
        faults.met("x", f"{number}", Event.DISK_FULL.line("full"))
    assert {name for name, *_ in told(lines)} == {"disk.full"}
    assert lines[-1] == "full (further subjects are counted together)"


def test_a_limit_of_lines_keeps_the_name(lines: list[str]) -> None:
    now_s = [0.0]
    limited = Limited(lines.append, lambda: now_s[0], lines_max=1)
    for now_s[0] in (0.0, 1.0, 100.0):
        limited(Event.CONNECTION_CLOSED.line("closed", host="h"))
    assert isinstance(lines[1], Line)
    assert (lines[1].event, lines[1].fields) == (Event.CONNECTION_CLOSED, {"host": "h"})
    assert "1 lines like this were left out" in lines[1]
