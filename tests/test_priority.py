"""What gives way does so to other sessions, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.priority import SESSION

SCRIPT = """
import os, pathlib
from app.priority import SESSION, give_way
give_way(5)
print(os.nice(0), SESSION.read_text().split()[-1] if SESSION.exists() else "")
"""


@pytest.mark.skipif(not SESSION.exists(), reason="this kernel does not share its cores out among sessions")
def test_process_and_session_become_nice_together() -> None:
    before = int(SESSION.read_text().split()[-1])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )

    niceness, of_session = map(int, ended.stdout.split())

    assert niceness >= 5
    assert of_session == niceness
    assert int(SESSION.read_text().split()[-1]) == before
