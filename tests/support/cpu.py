"""CPU time that a call takes. It is counted, so it does not depend on what else runs on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

TURN_MS_MAX = 50.0
"""INV-15."""


def cpu_ms(call: Callable[[], object], *refusals: type[BaseException], rounds: int = 3) -> float:
    """The CPU time of this thread for one call, in milliseconds, with the garbage collections in it: the least of several rounds,
    because the first one may import or compile.

    ``refusals``: what the call may raise.
    """
    took = []
    for _ in range(rounds):
        started = time.thread_time()
        with suppress(*refusals):
            call()
        took.append(time.thread_time() - started)
    return min(took) * 1000
