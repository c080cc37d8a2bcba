"""A package or program named ``app`` of the user's: where Firn can do without a look at it, and how Firn tells of it where not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import __version__
from app.machine.interpreter import environment_for_children, python_command, python_environment
from tests.faults.served import HTTP_PROCESS, STORE_PROCESS, Served
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
RAN = "raise SystemExit('the user\\'s program was run')"
COMMAND = "import sys; from firn_broker.command import main; sys.exit(main())"


def as_program(folder: Path) -> Path:
    (folder / "app.py").write_text(RAN)
    return folder / "app.py"


def as_package(folder: Path) -> Path:
    (folder / "app").mkdir()
    (folder / "app" / "__init__.py").write_text(RAN)
    return folder / "app" / "__init__.py"


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIRN_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=cwd, env={**kept, **environment}, check=False
    )


@pytest.mark.parametrize("make", [as_program, as_package])
@pytest.mark.parametrize("arguments", ["--version", "serve", "demo", "job archive t", "topic list"])
def test_a_foreign_app_on_pythonpath_is_told_in_one_sentence_and_not_run(tmp_path: Path, make, arguments: str) -> None:  # type: ignore[no-untyped-def]
    place = make(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run("-P", "-c", COMMAND, *arguments.split(), cwd=ROOT, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"firn: The package 'app' is {place}, and Firn's modules live in a package of that name."
        f" Take {str(tmp_path)!r} out of PYTHONPATH, or run `env -u PYTHONPATH firn …`.\n"
    )


def test_a_foreign_app_in_the_current_folder_is_told_of_where_python_looks_there(tmp_path: Path) -> None:
    place = as_program(tmp_path)
    done = run("-m", "firn_broker", "--version", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The package 'app' is {place}," in done.stderr
    assert "python -P -m firn_broker" in done.stderr
    assert run("-P", "-m", "firn_broker", "--version", cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout.startswith(
        f"firn {__version__} ("
    )


def test_an_installed_app_that_is_found_before_firns_is_told_of(tmp_path: Path) -> None:
    """As with a checkout that is installed to be edited: its folder comes behind site-packages."""
    place = as_package(tmp_path)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; {COMMAND}"
    done = run("-P", "-c", code, "--version", cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The package 'app' is {place}," in done.stderr
    assert "Install firn-broker into a virtual environment of its own" in done.stderr


def test_another_distribution_that_wrote_over_firns_app_is_told_of(tmp_path: Path) -> None:
    place = as_package(tmp_path)
    (tmp_path / "firn_broker").mkdir()
    for module in (ROOT / "firn_broker").glob("*.py"):
        (tmp_path / "firn_broker" / module.name).write_bytes(module.read_bytes())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {COMMAND}"
    done = run("-P", "-c", code, "--version", cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The package 'app' is {place}," in done.stderr


@pytest.mark.ci
def test_a_broker_serves_in_a_folder_with_an_app_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    served = Served(tmp_path / "broker", http="127.0.0.1:0", program=(sys.executable, "-P", "-m", "firn_broker"))
    try:
        served.start()
        children = [
            block_until(lambda name=name: _child(served, name), f"{name} runs")
            for name in (STORE_PROCESS, HTTP_PROCESS)
        ]
        assert [child.cmdline()[1] for child in children] == ["-P", "-P"]
        served.stop()
        assert "the user's program" not in served.text
        assert "starting it again" not in served.text
        served.check_no_bug()
    finally:
        served.end()


def _child(served: Served, module: str):  # type: ignore[no-untyped-def]
    try:
        return served.child(module)
    except LookupError:
        return None


def test_a_child_finds_the_modules_of_its_parent_and_none_of_its_folder(tmp_path: Path) -> None:
    as_program(tmp_path)
    command = python_command("app.cli", "--version")
    done = subprocess.run(command, cwd=tmp_path, env=python_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition("(")[0], done.stderr) == (0, f"firn {__version__} ", "")


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_what_a_library_starts_finds_them_too_and_the_environment_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    as_program(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    kept = dict(os.environ)
    with environment_for_children():
        done = subprocess.run(
            [sys.executable, "-c", "import app; print(app.__file__)"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == f"{ROOT}/app/__init__.py\n"
    assert dict(os.environ) == kept
