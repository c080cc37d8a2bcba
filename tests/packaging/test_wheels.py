"""Every package that a broker needs has a wheel for both architectures and each Python: nothing is compiled on a machine."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.support.checkouts import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("index")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [
    found
    for one in PROJECT["classifiers"]
    if (found := one.removeprefix("Programming Language :: Python :: ")) != one and found.startswith("3.")
]
GLIBC_MINOR_MIN = 28
"""docs/compatibility.md"""


def pack(arch: str, folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/wheelhouse.py", "--uncommitted", "--arch", arch, "--out", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digest, path = done.stdout.strip().split("  ")
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
    return Path(path)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_package_of_a_broker_has_a_wheel(arch: str, tmp_path: Path) -> None:
    with tarfile.open(pack(arch, tmp_path)) as archive:
        wheels = {name for name in archive.getnames() if name.startswith("wheels/")}
        text = archive.extractfile("requirements.txt")
        assert text is not None
        pins = [line.split()[0] for line in text.read().decode().splitlines() if not line.startswith("firn-broker")]
        archive.extractall(tmp_path / "unpacked", filter="data")
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[arch]
    assert not [name for name in wheels if other in name]
    assert len(wheels) == len(pins) + 1
    own = f"firn-broker[redis,security] @ {next((tmp_path / 'unpacked/wheels').glob('firn_broker-*.whl')).as_uri()}"
    tags = [f"manylinux_2_{minor}_{arch}" for minor in range(GLIBC_MINOR_MIN, 4 if arch == "x86_64" else 16, -1)]
    old = ("2014", "2010", "1") if arch == "x86_64" else ("2014",)
    for python in PYTHONS:
        asked = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet"),
                *("--only-binary", ":all:", "--python-version", python, "--implementation", "cp"),
                *("--abi", f"cp{python.replace('.', '')}", "--ignore-installed", "--target", str(tmp_path / "none")),
                *(f"--platform={tag}" for tag in [*tags, *(f"manylinux{name}_{arch}" for name in old)]),
                *("--constraint", str(ROOT / "constraints.txt"), own),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, f"Python {python} on {arch}: {asked.stderr}"
