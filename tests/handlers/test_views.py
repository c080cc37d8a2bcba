"""Views of the broker's parts: a handler can reach the parts that it uses, and no others."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from app.handlers.base import views
from app.handlers.base.context import Context
from tools.source_trees import tree_of

HANDLERS = Path(views.__file__).parents[1]
VIEWS = {name: one for name, one in vars(views).items() if name.endswith("View")}


def own_parts(view: type) -> set[str]:
    """The parts that a view adds to those of its bases."""
    named = {name for name, one in vars(view).items() if isinstance(one, property) or inspect.isfunction(one)}
    return {name for name in named | set(inspect.get_annotations(view)) if not name.startswith("_")}


def used_parts(tree: ast.Module) -> Iterator[str]:
    """Each ``context.part`` and ``….context.part`` of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            if (isinstance(of, ast.Name) and of.id == "context") or (
                isinstance(of, ast.Attribute) and of.attr in ("context", "_context")
            ):
                yield node.attr


def names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@cache
def uses(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The names of a module, and the parts of a context that it uses."""
    tree = tree_of(path)
    return frozenset(names(tree)), frozenset(used_parts(tree))


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_each_part_of_a_view_is_used_where_the_view_is(name: str) -> None:
    view = VIEWS[name]
    below = {other for other, one in VIEWS.items() if view in one.__mro__}
    found = [uses(path) for path in HANDLERS.rglob("*.py") if uses(path)[0] & below]
    if "ClientView" in below:  # the fast paths reach it by their connection
        found += [uses(path) for name in ("produce", "fetch", "clients") for path in (HANDLERS / name).glob("*.py")]
    used = {part for _, parts in found for part in parts}
    assert own_parts(view) - used == set()


def test_the_context_has_the_parts_of_all_views() -> None:
    parts = {one.name for one in fields(Context)} | {
        name for name, one in vars(Context).items() if isinstance(one, property)
    }
    assert {part for view in VIEWS.values() for part in own_parts(view)} <= parts


def test_the_list_of_views_names_all_of_them() -> None:
    assert set(re.findall(r"``(\w+View)``", views.__doc__ or "")) == set(VIEWS)
