"""Wakes a thread once another thread has taken CPU time (``timer_create(2)`` on a thread's clock). Python has no such call.

The kernel counts. So a thread that waits for the alarm costs nothing while the other one is idle.

Tests: ``tests/broker/test_loop_watch.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
from typing import Final

SIGEV_THREAD_ID: Final = 4
"""The signal goes to one thread, which has it blocked. No other thread ever sees it."""
SI_TIMER: Final = -2


class _Event(ctypes.Structure):
    """``struct sigevent`` of Linux, 64 bytes where pointers have 8."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class CpuAlarm:
    """Is made, waited for and closed by one thread. Any thread may rouse it."""

    def __init__(self, cpu_clock: int) -> None:
        """``cpu_clock``: of the thread whose CPU time counts (``time.pthread_getcpuclockid``). Raises: OSError if the system
        has no such timers."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not (hasattr(signal, "sigtimedwait") and hasattr(self._libc, "timer_create")):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._signal = signal.SIGRTMIN
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._closed = False
        signal.pthread_sigmask(signal.SIG_BLOCK, [self._signal])
        event = _Event(signal=self._signal, notify=SIGEV_THREAD_ID, thread=threading.get_native_id())
        self._timer = ctypes.c_void_p()
        if self._libc.timer_create(cpu_clock, ctypes.byref(event), ctypes.byref(self._timer)):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def wait(self, timeout_s: float, cpu_s: float | None) -> bool:
        """Wait until the other thread has taken ``cpu_s`` from now on, or ``timeout_s`` are over. None: only for the time.

        Returns: False if it was roused. An alarm of an earlier wait may end a later one early. Raises: OSError if the other
        thread has ended.
        """
        if cpu_s is not None:
            times = _Times(0, 0, int(cpu_s), int(cpu_s % 1 * 1e9))
            if self._libc.timer_settime(self._timer, 0, ctypes.byref(times), None):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        got = signal.sigtimedwait([self._signal], timeout_s)
        return got is None or got.si_code == SI_TIMER

    def rouse(self) -> None:
        """End the wait of the thread, or its next one."""
        with self._lock:  # the thread may be about to end
            if not self._closed:
                signal.pthread_kill(self._thread, self._signal)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._libc.timer_delete(self._timer)
