"""How processes end that run no event loop for it: a child with its parent, and a program by SIGTERM or SIGHUP as by an exception.

Tests: ``tests/spark/test_jobs.py``, ``tests/broker/test_process.py``.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 1
"""Exit code of a child that began after its parent had ended. It is never read."""


def end_with_parent(descriptor: int) -> None:
    """From now on Linux kills this process as soon as its parent ends, also while this process is busy.

    ``descriptor`` is this process's end of a socket pair whose other end the parent alone holds. It tells a parent that ended
    before Linux was asked: then this process ends here. A computation that leaves its event loop no turn would notice the end of
    the socket pair only afterwards, and until then hold inherited resources, such as the lock of a data directory. Elsewhere than
    on Linux the end of the socket pair stays the only sign.

    The parent's death means that of the thread that started this process, which for the broker is that of its event loop.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), *[ctypes.c_ulong(0)] * 3) != 0:
        return  # refused by a sandbox: the end of the socket pair is seen, if later
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(_ORPHANED)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, and the SIGHUP of a terminal that is closed, end the block as Ctrl-C would, by an exception: SystemExit with the
    code that shells give to such an end. More of them are ignored from then on, since a shell may send its own SIGHUP, too.

    A signal that this process ignores, as it does SIGHUP under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are for the main thread alone.
        return
    found = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in found.items() if handler is not signal.SIG_IGN}

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
