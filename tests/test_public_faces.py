"""Tests use the public face of what they test: no call, replacement or import of a private name of Firn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.source_trees import parse

TESTS = Path(__file__).parent
NOT_PRIVATE = frozenset({"_replace", "_make", "_asdict", "_exit"})
"""Public methods of named tuples, and ``os._exit``."""
OURS = ("app", "firn_broker", "pyspark_firn")
FREE = frozenset({"cluster_simulation", "simulation"})
"""Planted faults replace what is inside, and the simulations are a part of the loop that they drive."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_PRIVATE


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each private name that is called on another object, replaced by its name, or imported from Firn."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if is_private(name):
                match owner:
                    case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
                        pass
                    case _:
                        yield node.lineno, ast.unparse(node.func)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=arguments):
                for one in arguments:
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        name = one.value.rpartition(".")[2]
                        if is_private(name):
                            yield node.lineno, f"setattr of {name}"
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in OURS:
                for alias in names:
                    if is_private(alias.name):
                        yield node.lineno, f"import of {module}.{alias.name}"
            case _:
                pass


def test_tests_call_and_replace_no_private_names() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {what}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] not in FREE
        for line, what in private_uses(parse(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("log._roll()", ["log._roll"]),
        ("a.b()._close(1)", ["a.b()._close"]),
        ("patch.setattr(Log, '_roll', None)", ["setattr of _roll"]),
        ("patch.setattr('app.hot.log._roll', None)", ["setattr of _roll"]),
        ("from app.hot.log import _roll", ["import of app.hot.log._roll"]),
        ("self._roll(); super()._roll(); header._replace(a=1); log.__init__(); log.roll()", []),
        ("from json.decoder import _x", []),
    ],
)
def test_a_private_use_is_seen(source: str, what: list[str]) -> None:
    assert [one for _, one in private_uses(ast.parse(source))] == what
