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


def give_way_in_a_process(*, own_session: bool) -> list[int]:
    """A child's niceness and its session's, after it gave way."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return [int(part) for part in ended.stdout.split()]


@pytest.mark.skipif(not SESSION.exists(), reason="this kernel does not share its cores out among sessions")
def test_process_and_session_become_nice_together() -> None:
    niceness, of_session = give_way_in_a_process(own_session=True)

    assert niceness >= 5
    assert of_session == niceness


@pytest.mark.skipif(not SESSION.exists(), reason="this kernel does not share its cores out among sessions")
def test_a_session_that_others_lead_is_left_alone() -> None:
    before = int(SESSION.read_text().split()[-1])

    niceness, of_session = give_way_in_a_process(own_session=False)

    assert niceness >= 5
    assert of_session == int(SESSION.read_text().split()[-1]) == before
