"""Giving way to other processes where cores are short.

A niceness alone does not do it: Linux shares the cores out among sessions first (autogroups, ``sched(7)``) and counts a niceness
only among the processes of one session, and each of the broker's children is a session of its own. So the session is made nice
as well. Where control groups share out the cores instead, as under systemd or in a container, the niceness counts and the
session's does not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

SESSION: Final = Path("/proc/self/autogroup")


def give_way(niceness: int) -> None:
    """Lower the priority of this process and, if it leads a session of its own, of that session: another's is not its to change."""
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        # Not there, or not to be written, in some containers and kernels: then there is nothing to be made nice but the process.
        with contextlib.suppress(OSError):
            SESSION.write_text(str(os.nice(0)))
