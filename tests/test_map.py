"""The maps of the code are complete: each package lists its modules, ``docs/map.md`` names functions that exist, and each letter of
rules belongs to one decision."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.source_trees import tree_of

ROOT = Path(__file__).parents[1]
GENERATED = {"app/wire/apis", "app/coordinator/schemas"}
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for place in ("app", "pyspark_firn", "firn_broker")
    for path in (ROOT / place).rglob("__init__.py")
)


def docstring_of(package: str) -> str:
    return ast.get_docstring(tree_of(ROOT / package / "__init__.py")) or ""


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
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    }
    assert named - classes == set()


def names_in(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Classes, functions and variables by their name."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = node
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
    return found


PLACES = sorted(
    set(re.findall(r"`([\w/]+\.py):(\w+(?:\.\w+)*)`", (ROOT / "docs" / "map.md").read_text())),
)


def test_the_map_names_functions() -> None:
    assert len(PLACES) > 80


@pytest.mark.parametrize("place", PLACES, ids=":".join)
def test_a_function_that_the_map_names_exists(place: tuple[str, str]) -> None:
    file, dotted = place
    body = tree_of(ROOT / file).body
    for name in dotted.split("."):
        node = names_in(body).get(name)
        assert node is not None, f"{file} has no {dotted}; mend docs/map.md"
        body = node.body if isinstance(node, ast.ClassDef) else []


def test_each_letter_of_rules_belongs_to_one_decision_and_is_listed() -> None:
    stated: dict[str, set[str]] = {}
    for path in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        for letters in re.findall(r"^(?:\| |\*\*)([A-Z]{1,2})\d+[a-z]?(?: \||\. )", path.read_text(), re.MULTILINE):
            stated.setdefault(letters, set()).add(path.name[:4])
    listed: dict[str, set[str]] = {}
    table = (ROOT / "docs" / "adr" / "README.md").read_text().partition("## Letters of rules")[2]
    for letters, number in re.findall(r"^\| ([A-Z, ]+) \| \[(\d{4})\]", table, re.MULTILINE):
        for one in letters.split(", "):
            listed.setdefault(one, set()).add(number)
    assert {one: numbers for one, numbers in stated.items() if len(numbers) > 1} == {}
    assert listed == stated
