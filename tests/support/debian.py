"""A root of this machine's Debian, made by debootstrap from the mirror that apt is configured with, once."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def why_no_debian_root() -> str | None:
    """What is missing for ``debian_root``, and the mend; None if nothing is."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed: apt-get install debootstrap"
    if mirror() is None:
        return "apt on this machine is not configured with a Debian mirror (/etc/apt)"
    return None


def mirror(etc: Path = Path("/etc/apt")) -> tuple[str, str] | None:
    """Address and suite of the first Debian archive in apt's configuration; of either of its formats."""
    texts = [path.read_text() for path in sorted(etc.glob("sources.list.d/*.sources"))]
    for stanza in (part for text in texts for part in re.split(r"\n\s*\n", text)):
        fields = dict(re.findall(r"^(\w[\w-]*):[ \t]*(.+)$", stanza, re.MULTILINE))
        if "deb" in fields.get("Types", "").split() and "main" in fields.get("Components", "").split():
            return fields["URIs"].split()[0], fields["Suites"].split()[0]
    for path in (etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))):
        if path.is_file():
            found = re.search(
                r"^deb[ \t]+(?:\[[^\]]*\][ \t]+)?(\S+)[ \t]+(\S+)[ \t].*\bmain\b", path.read_text(), re.MULTILINE
            )
            if found is not None:
                return found[1], found[2]
    return None


def debian_root(target: Path, packages: Sequence[str]) -> None:
    """A minimal Debian with ``packages`` in the new folder ``target``; kept packed in .cache, for the next time."""
    found = mirror()
    assert found is not None
    address, suite = found
    what = hashlib.sha256(" ".join(sorted(packages)).encode()).hexdigest()[:12]
    packed = ROOT / ".cache" / "debian" / f"{suite}-{platform.machine()}-{what}.tar"
    if not packed.is_file():
        packed.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="debootstrap-", dir=packed.parent) as scratch:
            root = Path(scratch) / "root"
            subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(root), address],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
            shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
            partial = packed.with_name(f"{packed.name}.{os.getpid()}")
            subprocess.run(["tar", "-C", str(root), "--numeric-owner", "-cf", str(partial), "."], check=True)
            partial.rename(packed)
    target.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(target), "--numeric-owner", "-xpf", str(packed)], check=True)
