"""Ask for known weaknesses of the packages that a broker installs: `make audit`.

    python tools/audit.py REQUIREMENTS [pip-audit's arguments]

pip-audit says "No known vulnerabilities found" for packages that it could not ask about, unless it is told to be strict. So this
runs it strictly, and tells three outcomes apart by the exit code and by the last line of the output:

- 0, ``audited: …``: advisories were had for every package, and none is weak;
- 1, ``audited: …``: some packages are weak, and pip-audit has said which;
- 2, ``not audited: …``: advisories could not be had. Nothing is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SAFE: Final = 0
WEAK: Final = 1
NOT_AUDITED: Final = 2


def main(arguments: Sequence[str]) -> int:
    requirements, *more = arguments
    with tempfile.TemporaryDirectory(prefix="firn-audit-") as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--no-deps", "--progress-spinner=off"),
            *("--requirement", requirements, "--format=json", "--output", str(report), *more),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = report.read_text() if report.exists() else ""
    code, lines = verdict(asked_for(Path(requirements).read_text()), text, done.returncode, done.stderr)
    sys.stdout.write("\n".join(lines) + "\n")
    return code


def asked_for(requirements: str) -> int:
    """How many packages a file of requirements names."""
    return sum(1 for line in requirements.splitlines() if "==" in line.split("#")[0])


def verdict(asked: int, report: str, code: int, said: str) -> tuple[int, list[str]]:
    """The outcome of an audit.

    Args:
        asked: number of packages to audit.
        report: the JSON that pip-audit wrote; empty if there was none.
        code, said: its exit code, and its standard error.

    Returns: our exit code, and the lines to print; the last line is the outcome.
    """
    why = (said.strip().splitlines() or ["pip-audit said nothing"])[-1]
    try:
        packages = json.loads(report)["dependencies"]
        skipped = [one["name"] for one in packages if "skip_reason" in one]
        weak = [(one, flaw) for one in packages for flaw in one.get("vulns", ())]
    except (ValueError, KeyError, TypeError):
        return NOT_AUDITED, [f"not audited: advisories could not be had: {why}"]
    if skipped:
        return NOT_AUDITED, [f"not audited: there are no advisories for {', '.join(skipped)}: {why}"]
    if len(packages) < asked:
        return NOT_AUDITED, [f"not audited: advisories were had for {len(packages)} of {asked} packages: {why}"]
    if code not in (SAFE, WEAK) or (code == WEAK) != bool(weak):
        return NOT_AUDITED, [f"not audited: pip-audit ended with {code}: {why}"]
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}"
        + (f", mended in {', '.join(flaw['fix_versions'])}" if flaw.get("fix_versions") else "")
        for one, flaw in weak
    ]
    if weak:
        return WEAK, [*lines, f"audited: {len(packages)} packages, {len(weak)} known weaknesses"]
    return SAFE, [f"audited: {len(packages)} packages, no known weaknesses"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
