"""The releases of a rehearsal: this tree's wheelhouse, and one of the next version to upgrade to."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_FILE = "wheelhouses.json"


@dataclass
class Wheelhouses:
    archive: Path
    sha256: str
    next_archive: Path
    next_sha256: str
    next_version: str
    image: Path = field(default_factory=Path)
    """A Debian root."""
    baked_image: Path = field(default_factory=Path)
    """The same with ``archive`` baked in."""

    def write(self, folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def read(cls, folder: Path) -> Wheelhouses:
        return cls.of(folder / _FILE)

    @classmethod
    def of(cls, note: Path) -> Wheelhouses:
        raw: dict[str, Any] = json.loads(note.read_text())
        paths = {name: Path(raw[name]) for name in ("archive", "next_archive", "image", "baked_image")}
        return cls(**{**raw, **paths})


def build_wheelhouses(root: Path, cache: Path) -> Wheelhouses:
    """Both archives, built anew only if the tree has changed. Raises: subprocess.CalledProcessError."""
    tree = _digest_of(root)
    folder = cache / "wheelhouses"
    note = folder / f"{tree}.json"
    if note.is_file():
        return Wheelhouses.of(note)
    shutil.rmtree(folder, ignore_errors=True)
    this = _build(root, folder / "this")
    copy = folder / "tree"
    for name in _files_of(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy / name)
    project = copy / "pyproject.toml"
    text = project.read_text()
    version = re.search(r'(?m)^version = "(\d+)\.(\d+)\.(\d+)"$', text)
    assert version is not None, "pyproject.toml has a version of three numbers"
    now, later = ".".join(version.groups()), f"{version[1]}.{version[2]}.{int(version[3]) + 1}"
    project.write_text(text.replace(version[0], f'version = "{later}"'))
    told = copy / "app" / "__init__.py"
    told.write_text(told.read_text().replace(f'__version__ = "{now}"', f'__version__ = "{later}"'))
    following = _build(copy, folder / "next")
    shutil.rmtree(copy)
    houses = Wheelhouses(this, _sha256(this), following, _sha256(following), later)
    note.write_text(json.dumps(asdict(houses), default=str))
    return houses


def _build(tree: Path, out: Path) -> Path:
    command = [sys.executable, "tools/wheelhouse.py", "--uncommitted", "--out", str(out)]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("*.tar.gz"))


def _files_of(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    return [name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]


def _digest_of(root: Path) -> str:
    """Of all that goes into a wheelhouse."""
    packed = ("app/", "firn_broker/", "pyspark_firn/", "infra/bootstrap/", "infra/systemd/", "tools/")
    digest = hashlib.sha256()
    for name in sorted(_files_of(root)):
        if name.startswith(packed) or name in ("pyproject.toml", "constraints.txt"):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def _sha256(path: Path) -> str:
    with path.open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()
