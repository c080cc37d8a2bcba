"""The hashes of what is installed, and what is said of known weaknesses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.audit import NOT_AUDITED, SAFE, WEAK, asked_for, verdict
from tools.hashes import Refused, check, formatted, read_hashes, read_pins, wanted

ROOT = Path(__file__).parents[2]


def test_every_pinned_version_has_its_hashes_and_no_host_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "tools/hashes.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = (ROOT / "hashes.txt").read_text()
    assert "://" not in text
    assert "-index" not in text.replace("antlr4-python3", "")


def test_what_is_written_is_read_again() -> None:
    files = {("b", "2"): ["22", "11", "22"], ("A.x", "1.0"): ["33"]}
    text = formatted(files)
    assert text == ("A.x==1.0 \\\n    --hash=sha256:33\nb==2 \\\n    --hash=sha256:11 \\\n    --hash=sha256:22\n")
    assert read_hashes("# head\n" + text) == {("A.x", "1.0"): ["sha256:33"], ("b", "2"): ["sha256:11", "sha256:22"]}


@pytest.mark.parametrize("text", ["a==1 --hash=sha256:1\n", "a==1\nb==2 --hash=sha256:1\n", "a==2 --hash=sha256:1\n"])
def test_hashes_of_other_versions_do_not_fit(text: str) -> None:
    with pytest.raises(Refused, match="make hashes"):
        check(read_pins("# pins\na==1\nb==2 # why\n"), read_hashes(text))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("a_b-1.0-py3-none-any.whl", True),
        ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a_b-1.0-cp313-cp313-macosx_11_0_arm64.whl", True),
        ("a_b-1.0-cp38-abi3-manylinux2014_aarch64.whl", True),
        ("a_b-1.0.tar.gz", True),
        ("a_b-1.0.0-py3-none-any.whl", True),
        ("a_b-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp39-cp39-win32.whl", False),
        ("a_b-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.1-py3-none-any.whl", False),
        ("a_b-1.0.egg", False),
    ],
)
def test_files_of_the_version_for_interpreters_that_firn_runs_on_are_taken(name: str, taken: bool) -> None:
    assert wanted(name, "A.b", "1.0") is taken


def report(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


GOOD = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("text", "code", "expected", "last"),
    [
        (report(GOOD), 0, SAFE, "audited: 1 packages, no known weaknesses"),
        (report(BAD), 1, WEAK, "audited: 1 packages, 1 known weaknesses"),
        (report(UNKNOWN), 0, NOT_AUDITED, "not audited: there are no advisories for unknown: x"),
        (report(GOOD, UNKNOWN), 1, NOT_AUDITED, "not audited: there are no advisories for unknown: x"),
        (report(), 0, NOT_AUDITED, "not audited: advisories were had for 0 of 1 packages: x"),
        ("", 1, NOT_AUDITED, "not audited: advisories could not be had: x"),
        ("", 0, NOT_AUDITED, "not audited: advisories could not be had: x"),
        ("{}", 0, NOT_AUDITED, "not audited: advisories could not be had: x"),
        (report(GOOD), 1, NOT_AUDITED, "not audited: pip-audit ended with 1: x"),
    ],
)
def test_only_what_was_looked_at_counts_as_audited(text: str, code: int, expected: int, last: str) -> None:
    ended, lines = verdict(1, text, code, "warning\nx\n")
    assert (ended, lines[-1]) == (expected, last)


def test_packages_that_are_asked_for_are_counted() -> None:
    assert asked_for("# a==1\na==1 --hash=sha256:1\n\nb==2\n") == 2


def test_weaknesses_are_named_with_their_mend() -> None:
    assert verdict(1, report(BAD), 1, "")[1][0] == "bad 2: CVE-1, mended in 3"
