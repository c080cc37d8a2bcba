"""``firn`` on macOS and Windows: one sentence that names the container, before any module that only Linux has is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from firn_broker.other_systems import why_not_here

ROOT = Path(__file__).parents[2]

# What Windows lacks, and all packages that are no part of Python: an import of one of these is a traceback there.
PLANTED = """
import os, select, sys

LACKS = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "uvloop", "app"}


class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in LACKS:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Lacking())
for module, name in ((os, "pidfd_open"), (os, "sched_getaffinity"), (os, "posix_fadvise"), (os, "geteuid"), (select, "epoll")):
    delattr(module, name)
sys.platform = sys.argv.pop(1)
from firn_broker.command import main

sys.exit(main())
"""


def firn_on(platform: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIRN_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-P", "-c", PLANTED, platform, *arguments],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.mark.parametrize("arguments", ["--version", "serve", "topic list"])
@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")])
def test_on_another_system_the_command_ends_with_one_sentence_that_names_the_container(
    platform: str, name: str, arguments: str
) -> None:
    done = firn_on(platform, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"firn: Firn runs on Linux, and this is {name}: run its container, as README.md says under 'Container'"
        " (`docker run … firn`).\n"
    )


def test_the_planted_system_has_none_of_the_modules_that_the_command_needs() -> None:
    done = firn_on("linux", "--version")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'app" in done.stderr


def test_linux_is_told_nothing() -> None:
    assert why_not_here("linux") is None


def test_the_first_screen_of_the_readme_names_the_container_and_the_page_has_the_section() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    first_screen = " ".join(lines[:24])
    assert "On macOS and Windows" in first_screen
    assert "[container](#container)" in first_screen
    assert "### Container" in lines or "## Container" in lines


def test_a_package_without_a_wheel_for_windows_is_not_asked_for_there() -> None:
    from packaging.requirements import Requirement

    needs = [
        Requirement(one) for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    (uvloop,) = (one for one in needs if one.name == "uvloop")
    assert uvloop.marker is not None
    assert not uvloop.marker.evaluate({"sys_platform": "win32"})
    assert uvloop.marker.evaluate({"sys_platform": "linux"})
