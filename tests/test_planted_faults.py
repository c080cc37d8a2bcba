"""A planted fault makes a test of the module fail (``tools/planted_faults.py``).

``tests/modules_without_found_faults.toml`` lists the modules where no planted fault does. That list may only shrink. The slow check
measures a sample, with a seed that it prints.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib.util
import os
import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools import planted_faults
from tools.fault_server import ENTERED, live_functions, marked, replace_code
from tools.named_tests import found_tests
from tools.planted_faults import (
    FAULTS_MAX,
    Copy,
    Fault,
    Measuring,
    Outcome,
    Report,
    add_to_list,
    drawn,
    faults_of,
    measure,
    read_list,
)

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "modules_without_found_faults.toml"
SAMPLE = 6
"""Modules that the slow check measures. Each takes seconds to a minute."""
SOURCE = '''"""A module."""


def larger(one: int, other: int) -> int:
    """The larger number."""
    if not isinstance(one, int):
        raise TypeError(1 < 2)
    assert other < 100
    return one if one > other else other


LIMIT: int = 10
'''
TEST = """from app.small import larger


def test_the_larger_number_is_returned() -> None:
    assert larger(1, 2) == 2
    assert larger(4, 3) == 4
"""
EMPTY_TEST = """import app.small


def test_nothing() -> None:
    assert app.small
"""


def listed() -> Mapping[str, list[str]]:
    return tomllib.loads(LIST.read_text())


def test_every_kind_of_fault_is_planted_once_at_each_place() -> None:
    found = [(fault.line, fault.kind, fault.function) for fault in faults_of(SOURCE)]
    assert found == [
        (6, "a condition negated", 0),
        (9, "a return left out", 0),
        (9, "a comparison turned", 0),
        (12, "a constant shifted", None),
    ]


def test_a_fault_changes_one_place_and_leaves_a_module_that_compiles() -> None:
    lines = SOURCE.splitlines()
    for fault in faults_of(SOURCE):
        ast.parse(fault.text)
        changed = fault.text.splitlines()
        assert [n for n, (old, new) in enumerate(zip(lines, changed, strict=True), 1) if old != new] == [fault.line]


def test_faults_are_planted_behind_characters_of_several_bytes() -> None:
    (fault,) = faults_of('name = "äöü…"; limit = 3\n')
    assert fault.text == 'name = "äöü…"; limit = (4)\n'


def test_no_fault_is_planted_in_texts_assertions_errors_and_annotations() -> None:
    source = 'def f(a: "Literal[1]") -> "Literal[2]":\n    assert a < 3, f"{a + 4}"\n    raise ValueError(5)\n'
    assert faults_of(source) == []


def test_no_fault_is_planted_in_patterns() -> None:
    source = 'def f(a: int) -> str:\n    match a:\n        case 1 | 2 if a > 1:\n            return "few"\n    return "many"\n'
    found = faults_of(source)
    assert [(fault.line, fault.kind) for fault in found] == [
        (3, "a comparison turned"),
        (3, "a constant shifted"),
        (4, "a return left out"),
        (5, "a return left out"),
    ]
    for fault in found:
        ast.parse(fault.text)


def test_of_the_fields_of_messages_only_first_versions_are_shifted() -> None:
    source = 'FIELDS = {\n    "R": (\n        ("name", "int8", False, 1, 3, False, 2, 5),\n    ),\n}\n'
    source += 'OTHER = ("name", "int8", False, 1, 3)\n'
    found = faults_of(source)
    assert [fault.line for fault in found] == [3, 6, 6]
    assert '"int8", False, (2), 3, False, 2, 5)' in found[0].text


def test_no_fault_is_planted_in_methods_of_protocols() -> None:
    source = 'class P:\n    def a(self, b: int = 1) -> int:\n        """B."""\n        ...\n    async def c(self, d=2): ...\n'
    assert faults_of(source) == []
    assert [fault.line for fault in faults_of(f"{source}    def e(self, f=3):\n        f()\n")] == [6]


NESTED = '''
if True:
    class Outer:
        limit = 1

        def method(self, least=2):
            """Documented."""
            return [self.inner() for _ in range(3)]

        async def other(self):
            def inner():
                return 4
            return inner

later = lambda: 5
'''


def test_a_fault_knows_the_outermost_function_that_runs_it() -> None:
    shifted = [fault for fault in faults_of(NESTED) if fault.kind == "a constant shifted"]
    assert [(fault.line, fault.function) for fault in shifted] == [(4, None), (6, None), (8, 0), (12, 1), (15, None)]


def test_marked_functions_tell_their_number_and_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    monkeypatch.setattr(builtins, ENTERED, entered.append, raising=False)
    names: dict[str, Any] = {}
    exec(compile(marked(NESTED), "nested.py", "exec"), names)
    outer = names["Outer"]()
    outer.inner = lambda: 7
    assert entered == []
    assert outer.method() == [7, 7, 7]
    assert outer.method.__doc__ == "Documented."
    assert entered == [0]
    assert asyncio.run(outer.other())() == 4
    assert entered == [0, 1, 1]


def test_the_same_seed_draws_the_same_faults_and_each_kind_before_a_second_of_one() -> None:
    faults = faults_of(SOURCE * 3)
    first = drawn(faults, 8, 1, "app/small.py")
    assert drawn(faults, 8, 1, "app/small.py") == first
    assert len({fault.kind for fault in first[:4]}) == 4
    assert drawn(faults, 100, 2, "app/small.py") != drawn(faults, 100, 1, "app/small.py")


def small_tree(folder: Path, test: str, source: str = SOURCE) -> Copy:
    root = folder / "tree"
    (root / "app").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "app" / "__init__.py").touch()
    (root / "app" / "small.py").write_text(source)
    (root / "tests" / "test_small.py").write_text(test)
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["slow: s", "interop: i", "faults: f"]\n'
    )
    return Copy(root, folder / "copy")


def test_a_fault_may_leave_inner_code_out(tmp_path: Path) -> None:
    path = tmp_path / "looped.py"
    source = "def first():\n    while True:\n        return [one for one in (1, 2)]\n\n\ndef second():\n    return 2\n"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("looped", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fault = source.replace("while True", "while not True").replace("return 2", "return 3")
    replace_code(live_functions(tmp_path), path, source, ast.parse(fault))
    assert module.first() is None
    assert module.second() == 3


@pytest.mark.ci
@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        (TEST, Outcome.FOUND),
        (EMPTY_TEST, Outcome.NOT_FOUND),
        (TEST.replace("== 4", "== 5"), Outcome.BROKEN),
        (f"import pytest\n\npytestmark = pytest.mark.slow\n{TEST}", Outcome.LEFT_OUT),
    ],
)
def test_a_module_is_judged_by_its_tests_and_the_tree_is_left_alone(
    tmp_path: Path, test: str, outcome: Outcome
) -> None:
    with small_tree(tmp_path, test) as copy:
        report = measure(copy, "app/small.py", ["tests/test_small.py"], count=FAULTS_MAX, seed=1)
    assert report.outcome is outcome, report
    assert (tmp_path / "tree" / "app" / "small.py").read_text() == SOURCE
    assert (copy.root / "app" / "small.py").read_text() == SOURCE


COUNTING = """import subprocess
import sys
import threading

LIMIT = 3


def count() -> int:
    return LIMIT


def unused() -> int:
    return 1


def wait() -> None:
    "Nothing to wait for."
"""
COUNTING_TEST = """import subprocess
import sys

import pytest

from app.small import LIMIT, count, wait


@pytest.mark.parametrize("name", ["-", "small"])
def test_the_limit(name: str) -> None:
    assert LIMIT == 3


def test_counting() -> None:
    assert count() == 3


def test_counting_elsewhere() -> None:
    assert subprocess.check_output([sys.executable, "-c", "from app.small import unused; print(unused())"]) == b"1\\n"


def test_waiting() -> None:
    wait()
"""
ENDLESS = 'while True: "Nothing ends it."'
LEFT_BEHIND = """left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open("left", "w").write(str(left.pid))
    return 4"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("line", "changed", "function", "detail"),
    [
        ("    return LIMIT", "    return 4", 0, "test_counting: "),
        ("    return LIMIT", f"    {LEFT_BEHIND}", 0, "test_counting: "),
        ("    return LIMIT", "    import os; os._exit(3)", 0, "test_counting: its process ended with 3"),
        ("    return LIMIT", f"    {ENDLESS}", 0, "s of CPU"),
        ('    "Nothing to wait for."', "    threading.Event().wait()", 2, "test_waiting: it waits without an end"),
        ("    return 1", "    return 2", 1, "::test_counting_elsewhere"),
        ("LIMIT = 3", "LIMIT = 4", None, "::test_the_limit[small]"),
        ("LIMIT = 3", "LIMIT", None, "ERROR tests/test_small.py"),
    ],
)
def test_faults_are_found_that_end_a_process_or_never_end_or_act_at_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, changed: str, function: int | None, detail: str
) -> None:
    monkeypatch.setattr(planted_faults, "CPU_S_MIN", 0.6)
    monkeypatch.setattr(planted_faults, "IDLE_S_MAX", 3.0)
    fault = Fault(1, "a fault", COUNTING.replace(line, changed), function)
    with small_tree(tmp_path, COUNTING_TEST, COUNTING) as copy:
        copy.collect(["tests/test_small.py"])
        report = Measuring(copy, "app/small.py", ["tests/test_small.py"], [fault], 1).report()
    assert report.outcome is Outcome.FOUND, report
    assert detail in report.detail
    assert (copy.root / "app" / "small.py").read_text() == COUNTING
    left = copy.root / "left"
    if left.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(left.read_text()), 0)


def test_results_are_added_to_the_list_and_broken_modules_stay_to_be_measured(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('# A list.\nmeasured = [\n  "app/b.py",\n]\nnothing_fails = []\nunmeasured = []\n')
    for name, outcome in (
        ("app/c.py", Outcome.NOT_FOUND),
        ("app/a.py", Outcome.FOUND),
        ("app/d.py", Outcome.LEFT_OUT),
        ("app/e.py", Outcome.BROKEN),
    ):
        add_to_list(path, Report(name, outcome))
    assert read_list(path) == {
        "measured": ["app/a.py", "app/b.py", "app/c.py"],
        "nothing_fails": ["app/c.py"],
        "unmeasured": ["app/d.py"],
    }
    assert path.read_text().startswith("# A list.\nmeasured = [\n")
    add_to_list(path, Report("app/c.py", Outcome.FOUND))
    assert read_list(path)["nothing_fails"] == []


def test_a_text_of_the_same_size_and_second_is_compiled_anew(tmp_path: Path) -> None:
    copy = small_tree(tmp_path, TEST)
    cached = Path(importlib.util.cache_from_source(str(copy.root / "app" / "small.py")))
    cached.parent.mkdir()
    cached.touch()
    copy.write("app/small.py", SOURCE.replace("one > other", "one < other"))
    assert not cached.exists()


def test_listed_modules_are_there_and_name_tests() -> None:
    known = listed()
    assert set(known["nothing_fails"]) <= set(known["measured"])
    assert not set(known["unmeasured"]) & set(known["measured"])
    gone = [name for name in [*known["measured"], *known["unmeasured"]] if not (ROOT / name).is_file()]
    assert gone == [], f"take these out of {LIST.name}, or follow their new names"
    assert [name for name in known["measured"] if not found_tests(ROOT / name)] == []


@pytest.mark.slow
def test_planted_faults_are_found_in_a_sample_of_modules_and_in_no_listed_one(tmp_path: Path) -> None:
    known = listed()
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    fine = sorted(set(known["measured"]) - set(known["nothing_fails"]))
    sample = rng.sample(fine, min(SAMPLE, len(fine)))
    nothing_fails = rng.sample(known["nothing_fails"], min(1, len(known["nothing_fails"])))
    with Copy(ROOT, tmp_path / "copy") as copy:
        copy.collect(sorted({test for name in sample + nothing_fails for test in found_tests(ROOT / name)}))
        for name in sample:
            report = measure(copy, name, found_tests(ROOT / name), count=3 * FAULTS_MAX, seed=seed)
            assert report.outcome is Outcome.FOUND, report
        for name in nothing_fails:
            report = measure(copy, name, found_tests(ROOT / name), count=FAULTS_MAX, seed=1)
            assert report.outcome is Outcome.NOT_FOUND, f"take it out of {LIST.name}: {report}"
