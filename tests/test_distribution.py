"""What is installed is called ``firn-broker``: ``firn`` on PyPI is another project, which no hint of ours may install."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HINT = re.compile(r"(?:pip|pipx) install (?:-\S+ )*['\"]?(?P<name>[A-Za-z][\w.-]*)(?:\[(?P<extras>[\w,]+)\])?")


def _texts() -> list[Path]:
    folders = ("app", "firn_broker", "pyspark_firn", "loadtests", "tools", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".sh")]
    return [*found, *ROOT.glob("*.md"), ROOT / "Makefile"]


def test_every_hint_to_install_firn_names_its_distribution_and_an_extra_that_it_has() -> None:
    seen = 0
    for path in _texts():
        text = path.read_text()
        assert not re.search(r"\bfirn\[", text), f"{path} names another project's distribution"
        for hint in HINT.finditer(text):
            if not hint["name"].startswith("firn"):
                continue
            seen += 1
            assert hint["name"] == PROJECT["name"] == "firn-broker", f"{path}: {hint[0]}"
            extras = set((hint["extras"] or "").split(",")) - {""}
            assert extras <= set(PROJECT["optional-dependencies"]), f"{path}: {hint[0]}"
    assert seen > 3


def test_the_command_and_the_version_stay_as_they_were() -> None:
    assert PROJECT["scripts"] == {"firn": "firn_broker.command:main"}
    assert metadata.version("firn-broker") == PROJECT["version"] == app.__version__


def test_the_wheel_holds_every_package_that_the_command_imports() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert set(built) == {"app", "firn_broker", "pyspark_firn"}
