"""Which commit of the repository this Firn is.

The build writes the commit into the file ``app/COMMIT`` of every sdist and wheel (``tools/build_hook.py``). A checkout has no such
file: there git is asked. This module imports nothing of Firn's, so that the build can run it before anything is installed.

Tests: ``tests/packaging/test_commit.py``.
"""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Final

FILE: Final = "COMMIT"
HASH_CHARACTERS: Final = 12
CHANGED: Final = " and local changes"
SHIPPED: Final = ("app", "firn_broker", "pyspark_firn", "infra", "tools", "pyproject.toml", "constraints.txt")
"""The sources of packages: a change elsewhere in the checkout makes no other package."""
GIT_WAIT_S: Final = 20.0
"""git reads the state of every file; on a cold disk that takes seconds."""


def commit() -> str | None:
    """The commit, as in ``14502cf9ab12`` or ``14502cf9ab12 and local changes``; None if it is not known."""
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        return commit_of_checkout(root)
    return written_commit()


def written_commit() -> str | None:
    """The commit that the build has written into the package ``app``; None if it has not."""
    try:
        return files("app").joinpath(FILE).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def commit_of_checkout(root: Path) -> str | None:
    """The commit of the checkout ``root``; None without git, without a commit, or if ``root`` is a folder inside a checkout."""
    top = _git(root, "rev-parse", "--show-toplevel")
    head = _git(root, "rev-parse", f"--short={HASH_CHARACTERS}", "HEAD")
    if top is None or head is None or Path(top).resolve() != root.resolve():
        return None
    changes = _git(root, "status", "--porcelain", "--", *SHIPPED)
    if changes is None:
        return None
    return head + CHANGED if changes else head


def _git(root: Path, *arguments: str) -> str | None:
    # A hook of git runs with GIT_DIR and GIT_INDEX_FILE of its own repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_WAIT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
