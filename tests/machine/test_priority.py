"""What gives way does so to other sessions, too."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.machine import priority
from app.machine.priority import SESSION, SYS_SCHED_SETATTR, TURN_NS

GIVE_WAY = """
import os
from app.machine.priority import SESSION, give_way
give_way(5)
print(os.nice(0), SESSION.read_text().split()[-1])
"""

# The script's leader is of another process than the one that gives way: both say what the session's niceness is to them.
GIVE_WAY_AS_A_MEMBER = f"""
import subprocess, sys
from app.machine.priority import SESSION
before = SESSION.read_text().split()[-1]
subprocess.run([sys.executable, "-c", {GIVE_WAY!r}], check=True)
print(before, SESSION.read_text().split()[-1])
"""

GIVE_WAY_UNDER_A_NICE_PARENT = f"""
import os, subprocess, sys
from app.machine.priority import SESSION
os.nice(7)
print(SESSION.read_text().split()[-1], flush=True)
subprocess.run([sys.executable, "-c", {GIVE_WAY!r}], check=True, start_new_session=True)
"""


def in_a_session_of_its_own(script: str) -> list[int]:
    """The numbers that a script prints which leads a session of its own, however the tests' own session came about."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return [int(part) for part in ended.stdout.split()]


def niceness_of_sessions_counts() -> bool:
    """Neither without autogroups nor within a control group that has a share of the cores of its own: nothing is told there.
    The session of the first process of a machine tells nothing either, so a new one is asked."""
    return os.access(SESSION, os.W_OK) and bool(
        in_a_session_of_its_own("from app.machine.priority import SESSION; print(len(SESSION.read_text()))")[0]
    )


needs_sessions = pytest.mark.skipif(
    not niceness_of_sessions_counts(),
    reason="this kernel does not share its cores out among sessions, or not by their will",
)


@needs_sessions
def test_process_and_session_become_nice_together() -> None:
    niceness, of_session = in_a_session_of_its_own(GIVE_WAY)
    told_of_this = SESSION.read_text().split()

    assert niceness >= 5
    assert of_session == (int(told_of_this[-1]) if told_of_this else 0) + 5


@needs_sessions
def test_a_session_is_nicer_than_its_parents_and_not_as_nice_as_the_process() -> None:
    """The parent may have been started with a niceness, which says nothing to other sessions."""
    before, niceness, of_session = in_a_session_of_its_own(GIVE_WAY_UNDER_A_NICE_PARENT)

    assert niceness >= 12
    assert of_session == before + 5


@needs_sessions
def test_a_session_that_others_lead_is_left_alone() -> None:
    niceness, seen_by_member, before, after = in_a_session_of_its_own(GIVE_WAY_AS_A_MEMBER)

    assert niceness >= 5
    assert seen_by_member == after == before


def test_a_session_becomes_nice_though_another_has_just_become_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses the second within a tenth of a second, but for an administrator."""
    written: list[str] = []

    def refuse_twice(path: Path, text: str) -> int:
        assert path == priority.SESSION
        written.append(text)
        if len(written) < 3:
            raise BlockingIOError
        return len(text)

    waited: list[float] = []
    monkeypatch.setattr(Path, "write_text", refuse_twice)
    monkeypatch.setattr(Path, "read_text", lambda path: "/autogroup-7 nice 3\n")
    monkeypatch.setattr(priority.time, "sleep", waited.append)
    priority.make_session_nice(5)
    assert written == ["8"] * 3
    assert waited == [priority.SESSION_WAIT_S] * 2


def turns_can_be_chosen() -> bool:
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return (
        os.uname().machine in SYS_SCHED_SETATTR
        and version is not None
        and (int(version[1]), int(version[2])) >= (6, 12)
    )


TURNS = """
import ctypes, os, threading
from app.machine.priority import SCHED_ATTRIBUTES, SYS_SCHED_SETATTR, give_way
give_way(5)
call = ctypes.CDLL(None).syscall
setting = SYS_SCHED_SETATTR[os.uname().machine]
attributes = ctypes.create_string_buffer(SCHED_ATTRIBUTES.size)
def look():
    refused = call(setting + 1, 0, attributes, SCHED_ATTRIBUTES.size, 0) or call(setting, 0, attributes, 0)
    fields = SCHED_ATTRIBUTES.unpack(attributes.raw)
    print(fields[3], 0 if refused else fields[5])
look()
later = threading.Thread(target=look)
later.start()
later.join()
"""
"""What is asked for is given only where both calls are allowed."""


@pytest.mark.skipif(not turns_can_be_chosen(), reason="this kernel has turns of one length")
def test_its_turns_are_long_so_that_who_wakes_does_not_wait_for_their_end() -> None:
    niceness, turn_ns, niceness_of_thread, turn_ns_of_thread = in_a_session_of_its_own(TURNS)

    if turn_ns == 0:
        pytest.skip("turns cannot be chosen here")
    assert niceness == niceness_of_thread >= 5
    assert turn_ns == turn_ns_of_thread == TURN_NS
