"""What is installed is called ``firn-broker``: ``firn`` on PyPI is another project, which no hint of ours may install."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import app
from app.core.extras import install_hint
from tools.source_trees import tree_of

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
        for extra in re.findall(r"install_hint\(['\"](\w+)['\"]\)", text):
            seen += 1
            assert extra in PROJECT["optional-dependencies"], f"{path}: {extra}"
    assert seen > 3


def test_a_hint_names_the_checkout_that_runs_and_elsewhere_the_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_hint("security") == f"pip install '{ROOT}[security]'"
    monkeypatch.setattr("app.core.extras.__file__", str(tmp_path / "app" / "extras.py"))
    assert install_hint("security") == "pip install 'firn-broker[security]'"


def test_the_command_and_the_version_stay_as_they_were() -> None:
    assert PROJECT["scripts"] == {"firn": "firn_broker.command:main"}
    assert metadata.version("firn-broker") == PROJECT["version"] == app.__version__


def test_the_wheel_holds_every_package_that_the_command_imports() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert set(built) == {"app", "firn_broker", "pyspark_firn"}


OF_EXTRAS = {
    "console": ("app/http/console/console.py",),
    "bench": ("pyspark_firn/tour.py",),
    "demo": ("app/demo.py", "app/cli/demo_brokers.py"),
    "redis": ("app/broker/start/process.py", "app/broker/quota_tokens.py", "app/metadata/peers/redis_liveness.py"),
    "registry": (
        "app/registry/encoding/protobuf.py",
        "app/registry/parsing/json_schema.py",
        "app/registry/parsing/protobuf/",
        "app/registry/payloads/protobuf.py",
    ),
    "security": ("app/cli/tls.py", "app/machine/pkcs12.py", "app/security/tokens.py"),
    "spark": ("pyspark_firn/",),
    "tracing": ("app/machine/span_export.py",),
}
"""Which modules may import what is installed with an extra only. All others are part of the least installation."""


def _normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def _needs_of(extra: str | None) -> set[str]:
    named = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return {_normal(one) for one in named}


def _imports() -> Iterator[tuple[str, str]]:
    """Every module, and the first part of every foreign name that it imports anywhere in its text."""
    own = {"app", "firn_broker", "pyspark_firn", "llvmlite", *sys.stdlib_module_names}  # numba pins its llvmlite
    for folder in ("app", "firn_broker", "pyspark_firn"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(tree_of(path)):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                    names = [node.module]
                for name in {name.split(".")[0] for name in names} - own:
                    yield path.relative_to(ROOT).as_posix(), name


@pytest.mark.ci
def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    distributions = metadata.packages_distributions()
    least, used = _needs_of(None), {"httptools"}  # which uvicorn imports for app/http/connections.py
    for module, name in _imports():
        candidates = {_normal(one) for one in distributions.get(name, [name])}
        extras = [extra for extra, places in OF_EXTRAS.items() if module.startswith(places)]
        declared = least.union(*(_needs_of(extra) for extra in extras))
        assert candidates & declared, f"{module} imports {name}, which pyproject.toml does not name"
        if not module.startswith("pyspark_firn/"):
            used |= candidates
    assert least <= used, f"nothing of a broker imports {sorted(least - used)}: name them in an extra, or not at all"


def test_a_release_tag_names_the_version_of_its_commit_and_the_changelog_begins_with_it() -> None:
    version = PROJECT["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    first = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1].split()[0] == version
    tags = _release_tags()
    assert tags <= {f"v{version}"}
    assert not (tags and "unreleased" in first[1]), "the changelog calls a tagged version unreleased"


def test_packages_that_documents_name_have_the_version_that_is_built() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), version)
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md"), ROOT / "Dockerfile")
        for version in re.findall(r"firn[_-](?:broker|wheelhouse|spark)-(\d+\.\d+\.\d+)", path.read_text())
    }
    assert len(named) > 4
    assert {version for _, version in named} == {PROJECT["version"]}, sorted(named)


def _release_tags() -> set[str]:
    """Of the commit that is checked out; none without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "--list", "v[0-9]*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return set()
    return set(done.stdout.split())
