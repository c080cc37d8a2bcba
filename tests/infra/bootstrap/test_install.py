"""How a release gets its packages, and the process that runs its commands."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import firn_machine
import pytest
from firn_install import checked, unpack
from firn_machine import Machine
from firn_settings import Refused

BOOTSTRAP = Path(__file__).parents[3] / "infra" / "bootstrap"
TOOL = {
    "tool/__init__.py": "def main():\n    print('it runs')\n    return 3\n",
    "tool/tests/test_it.py": "def test(): ...\n",
    "tool/template.py": "this is no Python {{ at all }}\n",
    "tool-1.0.dist-info/METADATA": "Name: tool\nVersion: 1.0\n",
    "tool-1.0.dist-info/entry_points.txt": "[console_scripts]\nrun-it = tool:main\n\n[other]\nx = y:z\n",
    "tool-1.0.data/scripts/old": "#!python\nprint('old')\n",
    "tool-1.0.data/purelib/pure.py": "PURE = 1\n",
    "tool-1.0.data/data/share/tool/example.py": "EXAMPLE = 1\n",
}


def wheel(house: Path, name: str, files: dict[str, str]) -> Path:
    path = house / "wheels" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, text in files.items():
            archive.writestr(place, text)
    return path


def pin(house: Path, *lines: str) -> None:
    """requirements.txt: what the wheels of the house are, and these lines."""
    known = []
    for path in sorted((house / "wheels").glob("*.whl")):
        name, version = path.name.split("-")[:2]
        known.append(
            f"{name.replace('_', '-')}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        )
    (house / "requirements.txt").write_text("".join(f"{line}\n" for line in (*known, *lines)))


@pytest.fixture
def house(tmp_path: Path) -> Path:
    folder = tmp_path / "house"
    wheel(folder, "tool-1.0-py3-none-any.whl", TOOL)
    machine = platform.machine()
    wheel(folder, f"fast_one-2.0-1-cp311-cp311-manylinux_2_28_{machine}.whl", {"fast_one/__init__.py": "FAST = 2\n"})
    pin(folder)
    return folder


def test_a_release_has_its_packages_and_their_commands(house: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    program = [sys.executable, "-sE", str(BOOTSTRAP / "firn_install.py")]
    done = subprocess.run(
        [*program, "--wheelhouse", house, "--release", release], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    ran = subprocess.run([release / "bin/run-it"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "it runs\n")
    text = "import tool, fast_one, pure; from importlib.metadata import version; print(fast_one.FAST, version('tool'))"
    says = subprocess.run([release / "bin/python", "-c", text], capture_output=True, text=True, check=True)
    assert says.stdout == "2 1.0\n"
    assert subprocess.run([release / "bin/old"], capture_output=True, text=True, check=True).stdout == "old\n"
    assert (release / "share/tool/example.py").exists()
    assert not list(release.glob("**/pip")), "nothing is ever installed into it again"
    compiled = {path.name.partition(".")[0] for path in release.glob("lib/**/__pycache__/*.pyc")}
    assert compiled == {"__init__", "pure"}, "tests are not imported, and a template is no module"


def test_a_wheel_that_cannot_be_unpacked_is_told_with_its_reason_alone(house: Path, tmp_path: Path) -> None:
    (house / "wheels/tool-1.0-py3-none-any.whl").write_bytes(b"no archive")
    pin(house)
    program = [sys.executable, "-sE", str(BOOTSTRAP / "firn_install.py")]
    done = subprocess.run(
        [*program, "--wheelhouse", house, "--release", tmp_path / "release"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "BadZipFile: File is not a zip file\n")


def test_a_wheel_with_other_bytes_is_refused(house: Path) -> None:
    with (house / "wheels/tool-1.0-py3-none-any.whl").open("ab") as out:
        out.write(b"x")
    with pytest.raises(Refused, match=r"tool-1\.0-py3-none-any\.whl has SHA-256"):
        checked(house)


def test_a_wheel_that_nobody_names_is_refused(house: Path) -> None:
    wheel(house, "stranger-1.0-py3-none-any.whl", {"stranger.py": ""})
    with pytest.raises(Refused, match=r"stranger-1\.0-py3-none-any\.whl is not in requirements"):
        checked(house)


def test_a_wheel_that_is_missing_is_named(house: Path) -> None:
    pin(house, f"lost==3.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(Refused, match=r"lost==3\.0, which has no wheel"):
        checked(house)


@pytest.mark.parametrize("line", ["tool", "tool==1.0", "tool>=1.0 --hash=sha256:" + "0" * 64, "-r other.txt"])
def test_a_requirement_without_version_and_hash_is_refused(house: Path, line: str) -> None:
    (house / "requirements.txt").write_text(f"{line}\n")
    with pytest.raises(Refused, match="pins no wheel by version and SHA-256"):
        checked(house)


OTHER = "aarch64" if platform.machine() != "aarch64" else "x86_64"


@pytest.mark.parametrize(
    ("tags", "runs"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp39-abi3-manylinux_2_17_MACHINE.manylinux2014_MACHINE", True),
        ("cp311-cp311-manylinux_2_28_MACHINE", True),
        ("cp311-cp311-manylinux_2_28_OTHER", False),
        ("cp312-cp312-manylinux_2_28_MACHINE", False),
        ("cp312-abi3-manylinux_2_28_MACHINE", False),
        ("py2-none-any", False),
        ("cp311-cp311-macosx_11_0_MACHINE", False),
        ("cp311-cp311-musllinux_1_2_MACHINE", False),
    ],
)
def test_a_wheel_for_another_machine_or_python_is_refused(tmp_path: Path, tags: str, runs: bool) -> None:
    name = f"x-1.0-{tags.replace('MACHINE', platform.machine()).replace('OTHER', OTHER)}.whl"
    wheel(tmp_path, name, {"x.py": ""})
    pin(tmp_path)
    if runs:
        assert [path.name for path in checked(tmp_path)] == [name]
    else:
        with pytest.raises(Refused, match="Name the wheelhouse of this architecture"):
            checked(tmp_path)


@pytest.mark.parametrize("place", ["../x.py", "/x.py", "a//x.py", "x-1.0.data/headers/x.h", "x-1.0.data/x.h"])
def test_a_wheel_with_an_entry_outside_of_its_place_is_refused(tmp_path: Path, place: str) -> None:
    path = wheel(tmp_path, "x-1.0-py3-none-any.whl", {place: ""})
    with pytest.raises(Refused, match="has the entry"):
        unpack(path, tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_one_process_runs_commands_one_after_another_as_each_would_run_alone(tmp_path: Path) -> None:
    store = ("--store", tmp_path.as_uri(), "--node-id", "0", "--json")
    commands = Machine(tmp_path).commands(Path(sys.prefix), None, {})
    try:
        nobody = commands.run("cluster", "place", *store)
        assert nobody.code == 4
        assert json.loads(nobody.out)["directory_id"] is None
        missing = commands.run("cluster", "place", "--store", (tmp_path / "none").as_uri(), "--node-id", "0")
        assert missing.code == 2
        assert "none" in missing.last_words
        wrong = commands.run("cluster", "place", "--what")
        assert (wrong.code, wrong.out) == (2, "")
        assert commands.run("cluster", "place", *store) == nobody
    finally:
        commands.close()


def test_a_process_that_cannot_run_commands_has_failed_with_its_own_words(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named app >&2\nexit 1\n")
    python.chmod(0o755)
    commands = Machine(tmp_path).commands(tmp_path, None, {})
    done = commands.run("doctor")
    assert done.code != 0
    assert done.last_words == "ModuleNotFoundError: No module named app"
    commands.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More are open than ``select`` can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as opened:
        null = os.open(os.devnull, os.O_RDONLY)
        opened.callback(os.close, null)
        while (copy := os.dup(null)) < 1100:
            opened.callback(os.close, copy)
        opened.callback(os.close, copy)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_command_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firn_machine, "COMMAND_TIMEOUT_S", 0.05)
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    commands = Machine(tmp_path).commands(tmp_path, None, {})
    assert "firn doctor did not end" in commands.run("doctor").last_words
    commands.close()
