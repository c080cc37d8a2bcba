"""What the tests of packages share."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips what needs the package index that pip is configured for, if it does not answer."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
            *("--retries", "0", "--no-cache-dir", "--dest", str(tmp_path_factory.mktemp("index")), "six"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
