"""Each module of ``app/`` has a test of its name, or its docstring names its tests.

Folders inside of a package do not matter: the tests of ``app/hot/cleaning/selection.py`` may lie in ``tests/hot/`` or
``tests/hot/cleaning/``.
"""

from __future__ import annotations

import re

import pytest

from tools.named_tests import ROOT, TESTS, docstring_of, found_tests, modules, named_in


def test_each_module_has_a_test_of_its_name_or_names_its_tests() -> None:
    assert [str(path.relative_to(ROOT)) for _, path in modules() if not found_tests(path)] == [], (
        "name the test as the module, or write `Tests: ``tests/…/test_….py``.` into the module's docstring"
    )


def test_tests_that_a_docstring_names_are_there() -> None:
    paths = [path for _, path in modules()] + sorted((ROOT / "app").rglob("__init__.py"))
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in named_in(docstring_of(path))
        if not (ROOT / name).is_file()
    ]
    assert missing == []


def test_the_readme_names_every_folder_of_tests_and_no_other() -> None:
    text = (TESTS / "README.md").read_text()
    folders = {
        path.name
        for path in TESTS.iterdir()
        if path.is_dir() and any(path.rglob("*.py")) and path.name != "__pycache__"
    }
    assert {name.split("/")[0] for name in re.findall(r"`([a-z_]+)/(?:[\w/]+(?:\.py)?)?`", text)} == folders
    named = [name for name in re.findall(r"`([a-z_]+/[\w/]+\.py)`", text) if not (TESTS / name).is_file()]
    assert named == []


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Does it. Tests: ``tests/hot/test_append.py``.", ["tests/hot/test_append.py"]),
        (
            "Does it.\n\nTests: ``tests/hot/test_append.py``, ``tests/core/test_turns.py``.",
            ["tests/hot/test_append.py", "tests/core/test_turns.py"],
        ),
        ("Does it. Tests:\n``tests/hot/test_append.py``.", ["tests/hot/test_append.py"]),
        ("See ``tests/hot/test_append.py``.", []),
    ],
)
def test_named_tests_are_read_from_their_sentence_only(docstring: str, names: list[str]) -> None:
    assert named_in(docstring) == names
