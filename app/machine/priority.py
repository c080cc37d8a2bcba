"""Giving way to other processes where cores are short.

A niceness alone does not do it: Linux shares the cores out among sessions first (autogroups, ``sched(7)``) and counts a niceness
only among the processes of one session, and each of the broker's children is a session of its own. So the session is made nice
as well. Where control groups share out the cores instead, as under systemd or in a container, the niceness counts and the
session's does not.

Neither says when a process that wakes takes a core from one that computes. Linux lets the latter finish its turn, several
milliseconds if the timer's tick is to end it, unless it asked for longer turns than the one that wakes has (since 6.12).
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from struct import Struct
from typing import Final

SESSION: Final = Path("/proc/self/autogroup")
NICEST: Final = 19

SESSION_WAIT_S: Final = 0.1
"""Of all sessions of a machine one becomes nice in so long, unless an administrator asks for it."""
SESSION_TRIES: Final = 10
"""Children that are started together stand in each other's way."""

TURN_NS: Final = 100_000_000
"""The longest that Linux grants."""

SYS_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""By machine: libraries have the call only since glibc 2.41."""
SCHED_ATTRIBUTES: Final = Struct("=IIQiIQQQ")
"""``struct sched_attr``: its size, policy, flags, niceness, priority; length of a turn, and two times more, in nanoseconds."""


def give_way(niceness: int) -> None:
    """Lower the priority of this process and, if it leads a session of its own, of that session: another's is not its to change.
    Who wakes up on its core does not wait for the end of its turn. For a process of one thread; those that it starts are alike."""
    os.nice(niceness)
    _ask_for_long_turns()
    if os.getsid(0) == os.getpid():
        make_session_nice(niceness)


def make_session_nice(niceness: int) -> None:
    """Make this process's session nicer than its parent's by so much.

    Not as nice as the process: a parent that was started with a niceness has a session without one, in which that niceness says
    nothing to other sessions. Its child would get a thirtieth of their share.
    """
    wanted = min(_niceness_of_session(os.getppid()) + niceness, NICEST)
    for _ in range(SESSION_TRIES):
        try:
            SESSION.write_text(str(wanted))
        except BlockingIOError:
            time.sleep(SESSION_WAIT_S)
        except OSError:
            return  # not there, or not to be written, in some containers and kernels: the process alone is nice then
        else:
            return


def _niceness_of_session(pid: int) -> int:
    """0 where it is not told."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _ask_for_long_turns() -> None:
    number = SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    attributes = SCHED_ATTRIBUTES.pack(SCHED_ATTRIBUTES.size, os.sched_getscheduler(0), 0, os.nice(0), 0, TURN_NS, 0, 0)
    # Refused in some containers, and older kernels take no notice of the length: then turns are as long as everybody's.
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
