"""Install Firn into an environment of its own, as a user would, and say how much that is.

    python tools/install_size.py [--extra redis]… [--from sdist] [--into FOLDER]

The wheel (or sdist) is built from this checkout, and its dependencies are those of ``constraints.txt``, brought by pip from the
index that it is configured for. pip and setuptools, which Python puts into every environment, are not counted. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
OF_PYTHON: Final = frozenset({"pip", "setuptools"})
LARGEST_SHOWN: Final = 8
MB: Final = 1_000_000


class Failed(Exception):
    """The user's error: the event and the repair."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="install_size.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="of pyproject.toml; may be repeated"
    )
    parser.add_argument("--from", dest="target", choices=("wheel", "sdist"), default="wheel", help="[wheel]")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="keep the environment here [it is removed]")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="firn-install-") as scratch:
        environment = Path(scratch) / "environment" if options.into is None else options.into.absolute()
        try:
            if environment.exists():
                raise Failed(f"{environment} exists already. Name a new folder.")
            package = build(options.target, Path(scratch) / "dist")
            seconds = install(package, options.extra, environment)
        except Failed as error:
            sys.stderr.write(f"install_size: {error}\n")
            return 1
        sizes = measure(environment)
    shown = sorted(sizes.items(), key=lambda pair: -pair[1])
    for name, size_bytes in shown[:LARGEST_SHOWN]:
        sys.stdout.write(f"{size_bytes / MB:8.1f} MB  {name}\n")
    rest = shown[LARGEST_SHOWN:]
    sys.stdout.write(f"{sum(size for _, size in rest) / MB:8.1f} MB  {len(rest)} others\n")
    total = {"packages": len(sizes), "megabytes": round(sum(sizes.values()) / MB), "seconds": round(seconds, 1)}
    sys.stdout.write(f"{json.dumps(total)}\n")
    return 0


def build(target: str, folder: Path) -> Path:
    """A wheel or an sdist of this checkout. Raises: Failed."""
    if find_spec("hatchling") is None:
        raise Failed(f"{sys.executable} has no hatchling. Run `make install-size`, or `pip install hatchling`.")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"The {target} cannot be built:\n{done.stderr}")
    return next(folder.iterdir())


def install(package: Path, extras: Sequence[str], environment: Path) -> float:
    """Make the environment and install ``package`` there; how many seconds that took. Raises: Failed."""
    begin_s = time.monotonic()
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    what = f"{package}[{','.join(extras)}]" if extras else str(package)
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [
            *(str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--constraint", str(ROOT / "constraints.txt"), what),
        ],
    ):
        done = subprocess.run(command, cwd="/", env=outside, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - begin_s


def measure(environment: Path) -> dict[str, int]:
    """Name to bytes on the disk, for each installed package."""
    places = [str(place) for place in environment.glob("lib/python*/site-packages")]
    found = {}
    for one in metadata.distributions(path=places):
        name = one.metadata["Name"]
        if name not in OF_PYTHON:
            files = (Path(str(file.locate())) for file in one.files or ())
            found[name] = sum(file.stat().st_size for file in files if file.is_file())
    return found


if __name__ == "__main__":
    sys.exit(main())
