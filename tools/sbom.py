"""Write the software bill of materials of a wheelhouse, in CycloneDX's JSON: ``firn-sbom-VERSION-ARCH.cdx.json`` beside it.

    python tools/sbom.py dist/firn-wheelhouse-VERSION-ARCH.tar.gz

It names Firn and every package of the archive, with version and SHA-256. The same archive gives the same bytes: there is no time
and no serial number in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str]) -> int:
    archive = Path(arguments[0])
    named = re.fullmatch(r"firn-wheelhouse-(.+)\.tar\.gz", archive.name)
    if named is None or not archive.is_file():
        sys.stderr.write(f"sbom: {archive} is no wheelhouse. Make one with `make wheelhouse`.\n")
        return 1
    with tarfile.open(archive) as packed:
        member = packed.extractfile("requirements.txt")
        assert member is not None
        lines = member.read().decode().splitlines(keepends=True)
    out = archive.with_name(f"firn-sbom-{named[1]}.cdx.json")
    with tempfile.TemporaryDirectory(prefix="firn-sbom-") as folder:
        requirements = Path(folder) / "requirements.txt"
        # Firn itself is the subject of the bill.
        requirements.write_text("".join(line for line in lines if not line.startswith("firn-broker")))
        command = [
            *(sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--of", "JSON"),
            *("--pyproject", str(ROOT / "pyproject.toml"), "-o", str(out), str(requirements)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"sbom: cyclonedx-py cannot write {out}:\n{done.stderr}")
        return 1
    sys.stdout.write(f"{out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
