"""Small checkouts that are built and packed as Firn is, with packages of the test's own in place of an index."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "app/__init__.py",
    "app/machine/__init__.py",
    "app/machine/commit.py",
    "docs/runbooks/README.md",
    "tools/build_hook.py",
    "tools/wheelhouse.py",
)
_WHO: Final = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_WHEN: Final = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}


def git(folder: Path, *arguments: str) -> str:
    """What ``git`` prints. The same steps give the same commits."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**kept, **_WHO, **_WHEN, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_checkout(root: Path) -> Path:
    """A project with what Firn builds and packs itself with, committed."""
    for name in COPIED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for package in ("firn_broker", "pyspark_firn"):
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    git(root.parent, "init", "-q", str(root))
    commit_all(root)
    return root


def commit_all(root: Path) -> str:
    """Commit everything; the first twelve characters of the commit."""
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "A state")
    return git(root, "rev-parse", "HEAD")[:12]


def make_wheel(folder: Path, name: str, tags: str = "py3-none-any", *, needs: Sequence[str] = ()) -> Path:
    """A wheel ``NAME-1.0-TAGS.whl`` of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    record = "".join(
        f"{place},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}\n"
        for place, text in files.items()
    )
    path = folder / f"{name}-1.0-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(place, text)
    return path
