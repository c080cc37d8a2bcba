"""``firn --version`` names the commit: written into what is built, asked of git in a checkout, unknown without either."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from app.machine.commit import CHANGED, commit_of_checkout
from tests.support.checkouts import git, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


def build(root: Path, target: str, out: Path, **environment: str) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -e '.[test]' brings it")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=root,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},  # bytecode would count as local changes
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("will not know its commit" in done.stdout + done.stderr) == ("PATH" in environment)
    return next(out.glob("*.whl" if target == "wheel" else "*.tar.gz"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def written(wheel: Path) -> str | None:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("app/COMMIT").decode() if "app/COMMIT" in archive.namelist() else None


def test_a_checkout_is_its_commit_and_says_that_something_was_changed(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")[:12]
    assert commit_of_checkout(checkout) == head
    (checkout / "notes.txt").write_text("not shipped")
    assert commit_of_checkout(checkout) == head
    (checkout / "app" / "more.py").touch()
    assert commit_of_checkout(checkout) == f"{head}{CHANGED}"


def test_no_git_no_commit_and_another_projects_repository_are_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unpacked = checkout / "vendor" / "firn"
    unpacked.mkdir(parents=True)
    assert commit_of_checkout(unpacked) is None
    git(tmp_path, "init", "-q", str(tmp_path / "empty"))
    assert commit_of_checkout(tmp_path / "empty") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of_checkout(checkout) is None


def test_the_repository_of_a_hook_that_runs_is_not_taken_for_the_checkout(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))
    assert commit_of_checkout(checkout) is not None


def test_wheel_and_sdist_carry_the_commit_and_a_wheel_from_the_sdist_the_same(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")[:12]
    wheel = build(checkout, "wheel", tmp_path / "dist")
    assert written(wheel) == f"{head}\n"
    with tarfile.open(build(checkout, "sdist", tmp_path / "dist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    again = build(next((tmp_path / "unpacked").iterdir()), "wheel", tmp_path / "again")
    assert contents(again) == contents(wheel)
    assert git(checkout, "status", "--porcelain", "--ignored") == ""
    shown = subprocess.run(
        [sys.executable, "-c", "from app.machine.commit import commit; print(commit())"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(wheel)},  # as Spark reads --py-files: packed
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"{head}\n"


def test_a_wheel_that_is_built_without_git_is_whole_but_for_its_commit(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel", tmp_path / "dist", PATH=str(tmp_path))
    assert written(wheel) is None


def test_a_wheel_of_a_changed_checkout_says_so(checkout: Path, tmp_path: Path) -> None:
    (checkout / "app" / "more.py").touch()
    assert (written(build(checkout, "wheel", tmp_path / "dist")) or "").endswith(" and local changes\n")
