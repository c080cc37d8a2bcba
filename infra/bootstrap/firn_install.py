"""Makes the venv of a release from the wheels of a wheelhouse: checked, unpacked and compiled, on every core.

    python3 -sE firn_install.py --wheelhouse DIR --release DIR

It does what ``pip install --no-index --no-deps --require-hashes`` does, without pip: nothing is resolved, because the
wheelhouse names every wheel by version and SHA-256. Before anything is written, each wheel must be named, have that SHA-256 and be
made for this machine, and each name must have its wheel. Packages' own tests are unpacked, but not compiled.

Standard library only, Python 3.11.
"""

from __future__ import annotations

import argparse
import compileall
import configparser
import hashlib
import os
import platform
import re
import shutil
import signal
import sys
import venv
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from firn_settings import Refused

COPY_BYTES: Final = 1 << 20
_PIN: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+) --hash=sha256:([0-9a-f]{64})")
_ABI: Final = f"cp{sys.version_info[0]}{sys.version_info[1]}"

_SCRIPT: Final = """\
#!{python}
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({function}())
"""


def install(wheelhouse: Path, release: Path) -> None:
    """Make the venv. What is left of one that was not finished must be gone. Raises: Refused, OSError, zipfile.BadZipFile."""
    wheels = checked(wheelhouse)
    venv.EnvBuilder(symlinks=True).create(release)
    # The largest ones first, so that no core has a long one left when the others are done.
    wheels.sort(key=lambda wheel: wheel.stat().st_size, reverse=True)
    on_every_core([partial(unpack, wheel, release) for wheel in wheels])


def checked(wheelhouse: Path) -> list[Path]:
    """The wheels of a wheelhouse, if they are those that its ``requirements.txt`` names, for this machine. Raises: Refused."""
    pins: dict[tuple[str, str], str] = {}
    for line in (wheelhouse / "requirements.txt").read_text().splitlines():
        pin = _PIN.fullmatch(line.strip())
        if pin is None:
            raise Refused(f"requirements.txt has the line {line!r}, which pins no wheel by version and SHA-256.")
        pins[_normal(pin[1]), pin[2]] = pin[3]
    wheels = sorted((wheelhouse / "wheels").glob("*.whl"))
    for wheel in wheels:
        parts = wheel.stem.split("-")
        sha256 = pins.pop((_normal(parts[0]), parts[1]), None) if len(parts) in (5, 6) else None
        if sha256 is None:
            raise Refused(f"Wheel {wheel.name} is not in requirements.txt, or is there twice.")
        with wheel.open("rb") as raw:
            found = hashlib.file_digest(raw, "sha256").hexdigest()
        if found != sha256:
            raise Refused(f"Wheel {wheel.name} has SHA-256 {found}, and requirements.txt wants {sha256}.")
        if not _runs_here(*parts[-3:]):
            raise Refused(
                f"Wheel {wheel.name} is not for {_ABI} on {platform.machine()}. Name the wheelhouse of this architecture."
            )
    if pins:
        raise Refused(
            f"requirements.txt names {', '.join('=='.join(pin) for pin in sorted(pins))}, which has no wheel."
        )
    return wheels


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _runs_here(pythons: str, abis: str, platforms: str) -> bool:
    """Whether a wheel's tags (PEP 425) are those of this Python and machine. How old its glibc may be is not looked at."""
    machine = platform.machine()
    if not any(one == "any" or re.fullmatch(rf"(many)?linux.*_{machine}", one) for one in platforms.split(".")):
        return False
    versions = [found for one in pythons.split(".") if (found := re.fullmatch(r"(?:cp|py)3(\d*)", one))]
    for abi in abis.split("."):
        for version in versions:
            minor = int(version[1] or 0)
            if abi in ("none", "abi3") and minor <= sys.version_info[1]:
                return True
            if abi == _ABI and minor == sys.version_info[1]:
                return True
    return False


def unpack(wheel: Path, release: Path) -> None:
    """Unpack a wheel into the venv and compile its modules. Raises: Refused, OSError, zipfile.BadZipFile."""
    site = release / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    made: set[Path] = set()
    modules: list[Path] = []
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            target = _target(entry.filename, wheel, site, release)
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            with archive.open(entry) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, COPY_BYTES)
            if target.parent == release / "bin":
                _make_script(target, target.read_bytes(), release)
            elif target.suffix == ".py" and site in target.parents and "tests" not in target.relative_to(site).parts:
                modules.append(target)
        for name in archive.namelist():
            if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", name):
                _make_commands(archive.read(name).decode(), release)
    for module in modules:
        compileall.compile_file(module, quiet=2)  # what is no module of this Python fails here as it does with pip


def _target(name: str, wheel: Path, site: Path, release: Path) -> Path:
    """Where a file of a wheel belongs. Raises: Refused."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "" in parts:
        raise Refused(f"Wheel {wheel.name} has the entry {name!r}, which is no file below it.")
    if not parts[0].endswith(".data"):
        return site.joinpath(*parts)
    folders = {"purelib": site, "platlib": site, "scripts": release / "bin", "data": release}
    folder = folders.get(parts[1])
    if folder is None or len(parts) < 3:
        raise Refused(f"Wheel {wheel.name} has the entry {name!r}, for which a release has no place.")
    return folder.joinpath(*parts[2:])


def _make_commands(entry_points: str, release: Path) -> None:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(entry_points)
    for command, place in parser.items("console_scripts") if parser.has_section("console_scripts") else ():
        module, _, function = place.partition("[")[0].strip().partition(":")
        text = _SCRIPT.format(
            python=release / "bin" / "python", module=module, name=function.partition(".")[0], function=function
        )
        _make_script(release / "bin" / command, text.encode(), release)


def _make_script(path: Path, text: bytes, release: Path) -> None:
    if text.startswith(b"#!python"):
        text = f"#!{release}/bin/python\n".encode() + text.partition(b"\n")[2]
    path.write_bytes(text)
    path.chmod(0o755)


def on_every_core(tasks: Sequence[Callable[[], None]]) -> None:
    """Do each task in a process of its own, as many at a time as there are cores. One that fails ends all. Raises: Refused."""
    waiting = list(reversed(tasks))
    running: set[int] = set()
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.add(_begin(waiting.pop()))
            process, status = os.wait()
            running.discard(process)
            if status != 0:
                raise Refused("")
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _begin(task: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        task()
        code = 0
    except Exception as error:  # noqa: BLE001 - it ends this process, and its exit code tells the parent
        sys.stderr.write(f"{error if isinstance(error, Refused) else f'{type(error).__name__}: {error}'}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firn_install", description="Make the venv of a release from its wheels.")
    parser.add_argument("--wheelhouse", type=Path, required=True, help="an unpacked wheelhouse")
    parser.add_argument("--release", type=Path, required=True, help="where the venv is to be")
    options = parser.parse_args(arguments)
    try:
        install(options.wheelhouse, options.release)
    except (Refused, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{error}\n" if str(error) else "")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
