"""What gives way does so to other sessions, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.priority import SESSION

GIVE_WAY = """
import os
from app.priority import SESSION, give_way
give_way(5)
print(os.nice(0), SESSION.read_text().split()[-1])
"""

# The script's leader is of another process than the one that gives way: both say what the session's niceness is to them.
GIVE_WAY_AS_A_MEMBER = f"""
import subprocess, sys
from app.priority import SESSION
before = SESSION.read_text().split()[-1]
subprocess.run([sys.executable, "-c", {GIVE_WAY!r}], check=True)
print(before, SESSION.read_text().split()[-1])
"""

needs_sessions = pytest.mark.skipif(
    not SESSION.exists(), reason="this kernel does not share its cores out among sessions"
)


def in_a_session_of_its_own(script: str) -> list[int]:
    """The numbers that a script prints which leads a session of its own, however the tests' own session came about."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return [int(part) for part in ended.stdout.split()]


@needs_sessions
def test_process_and_session_become_nice_together() -> None:
    niceness, of_session = in_a_session_of_its_own(GIVE_WAY)

    assert niceness >= 5
    assert of_session == niceness


@needs_sessions
def test_a_session_that_others_lead_is_left_alone() -> None:
    niceness, seen_by_member, before, after = in_a_session_of_its_own(GIVE_WAY_AS_A_MEMBER)

    assert niceness >= 5
    assert seen_by_member == after == before
