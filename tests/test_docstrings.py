"""Docstrings stand at what they describe, and their lists are whole."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tools.source_trees import tree_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "firn_broker", "pyspark_firn", "loadtests")
ITEM = re.compile(r"( *)(?:\d+\.|-) \S")
NEAR_FULL = 90
"""Length of a line that a formatter may have broken."""


Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def described(node: Described) -> Iterator[Described]:
    """A module, class or function, and those in it."""
    yield node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from described(inner)


@cache
def modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): tree_of(path)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def strings_behind_strings(tree: ast.Module) -> list[int]:
    """Lines of a string that follows another string: one of the two describes something else."""
    return [
        second.lineno
        for node in described(tree)
        for first, second in pairwise(node.body)
        if is_string(first) and is_string(second)
    ]


def broken_items(text: str) -> list[str]:
    """Lines of a docstring that continue a full line of a list without its indent."""
    lines = inspect.cleandoc(text).split("\n")
    return [
        following
        for line, following in pairwise(lines)
        if (item := ITEM.match(line)) is not None
        and len(line) > NEAR_FULL
        and following.strip()
        and not following.startswith(item[1] + " ")
        and ITEM.match(following) is None
    ]


def test_no_docstring_stands_behind_another_one() -> None:
    found = [f"{name}:{line}" for name, tree in modules().items() for line in strings_behind_strings(tree)]
    assert found == []


def test_no_item_of_a_list_in_a_docstring_goes_on_without_its_indent() -> None:
    found = [
        f"{name}: {line}"
        for name, tree in modules().items()
        for node in described(tree)
        for line in broken_items(ast.get_docstring(node) or "")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "lines"), [('a: int\n"""A."""\n"""B."""\n', [3]), ('a: int\n"""A."""\nb: int\n"""B."""\n', [])]
)
def test_a_string_behind_a_string_is_found(text: str, lines: list[int]) -> None:
    assert strings_behind_strings(ast.parse(text)) == lines


def test_a_broken_item_is_found() -> None:
    full = "1. " + "word " * 20 + "and"
    assert broken_items(f"Title.\n\n{full}\nmore\n   rest") == ["more"]
    assert broken_items(f"Title.\n\n{full}\n   more\n2. next\n\nText") == []
