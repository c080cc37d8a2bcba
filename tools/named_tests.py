"""The tests of each module of ``app/``: of its name, or named by its docstring.

The tests of ``app/hot/cleaning/selection.py`` lie in ``tests/hot/`` or in a folder of it, in ``test_<module>.py``. Otherwise the
module's docstring, or that of its folder, names them in a sentence ``Tests: …``. ``tests/test_names.py`` holds it, and
``tools/planted_faults.py`` runs them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tools.source_trees import tree_of

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"
NAMED: Final = re.compile(r"Tests?:\s(``tests/[\w/]+\.py``(?:,\s``tests/[\w/]+\.py``)*)")
LOOSE: Final = "app"
"""The package of modules that are in no package of ``app/``."""


def package_of(path: Path) -> str:
    inside = path.relative_to(ROOT / "app")
    return inside.parts[0] if len(inside.parts) > 1 else LOOSE


def modules() -> Iterator[tuple[str, Path]]:
    """Modules of ``app/`` with their package."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        if path.name not in ("__init__.py", "__main__.py"):
            yield package_of(path), path


@cache
def files_of(package: str) -> tuple[Path, ...]:
    """The files of tests of a package."""
    return tuple(sorted(TESTS.glob("test_*.py") if package == LOOSE else (TESTS / package).rglob("test_*.py")))


def named_in(docstring: str) -> list[str]:
    """The tests that a docstring names, in its sentence ``Tests: …``."""
    named = NAMED.search(docstring)
    return [] if named is None else re.findall(r"``(tests/[\w/]+\.py)``", named[1])


@cache
def docstring_of(path: Path) -> str:
    return ast.get_docstring(tree_of(path)) or ""


def named_tests(path: Path) -> list[str]:
    """The tests that a module names, or its folder: generated modules have no docstring of their own."""
    return named_in(docstring_of(path)) or named_in(docstring_of(path.with_name("__init__.py")))


def found_tests(path: Path) -> list[str]:
    """The tests of a module, of its name and named. Their paths begin with ``tests/``."""
    of_its_name = [
        file.relative_to(ROOT).as_posix() for file in files_of(package_of(path)) if file.stem == f"test_{path.stem}"
    ]
    return list(dict.fromkeys(of_its_name + named_tests(path)))
