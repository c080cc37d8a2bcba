"""No file imports from a test module. What several tests need lives in ``tests/support``, or in a helper module of the folder.

A change of one suite must not break another one, and a reader finds shared helpers in few places.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("tests", "tools", "loadtests", "infra", "app", "firn_broker", "pyspark_firn")
MENTIONS = re.compile(r"\b(?:import|from) tests[\w.]*\btest_|\bfrom tests[\w.]* import (?:\([^)]*|[^\n]*)\btest_")
"""Other files need not be parsed."""


def is_test_module(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "tests" and any(part.startswith("test_") for part in rest)


def imported(source: str) -> Iterator[str]:
    """Test modules that a source imports, also in a program that it holds as a text for another process."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [f"{module}.{alias.name}" for alias in names]
            case ast.Constant(value=str(text)) if "import" in text and "\n" in text:
                found = []
                try:
                    yield from imported(text)
                except SyntaxError:
                    continue  # a text that is no program
            case _:
                continue
        yield from (name for name in found if is_test_module(name))


def test_no_file_imports_from_a_test_module() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        if path != Path(__file__) and MENTIONS.search(source := path.read_text())
        for name in imported(source)
    ]
    assert found == [], "move the helper to tests/support, or to a module of the folder that is no test file"


@pytest.mark.parametrize(
    "source",
    [
        "from tests.broker.test_node import produce",
        "from tests.broker import test_node",
        "from tests.broker import (\n    conftest,\n    test_node,\n)",
        "import tests.broker.test_node as node",
        "def late():\n    from tests.broker.test_node import produce",
        "PROGRAM = '''\nfrom tests.broker.test_node import produce\n'''",
    ],
)
def test_each_way_to_import_a_test_module_is_found(source: str) -> None:
    assert MENTIONS.search(source)
    assert [name for name in imported(source) if name.startswith("tests.broker.test_node")]


def test_imports_of_helpers_and_texts_that_are_no_programs_are_left_alone() -> None:
    sources = (
        "from tests.support.waiting import until",
        "import test_of_another_project",
        "'''how to\nimport from tests.broker.test_node'''",
    )
    assert [name for source in sources for name in imported(source)] == []
