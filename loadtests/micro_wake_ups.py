"""How long a process that wakes up waits for a core on which one computes that gives way, as the cleaner and store processes do.

    python -m loadtests.micro_wake_ups [--core 1] [--seconds 3] [--rounds 3]

Three ways in turns: alone; beside one that is only nice, and whose session is; beside one that asks for long turns as well
(``app/machine/priority.py``). All on one core, each in a session of its own. On a machine that others use their turns are
waited for too: there, look at ``perf record -e 'sched:*'`` of this, at wake-ups while the other one ran.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable

from app.machine.priority import SESSION, give_way

NICENESS = 10
PAUSE_S = 0.001
LATE_S = 0.001


def _only_nice() -> None:
    os.nice(NICENESS)
    if SESSION.exists():
        SESSION.write_text(str(NICENESS))


def _compute(core: int, way: Callable[[], None]) -> None:
    os.sched_setaffinity(0, {core})
    os.setsid()
    way()
    while True:
        pass


def _nice_with_long_turns() -> None:
    give_way(NICENESS)


def _late(core: int, seconds: float, answers: multiprocessing.SimpleQueue[list[float]]) -> None:
    """Pause and wake up until the time is over; answers how late each wake-up was."""
    os.sched_setaffinity(0, {core})
    os.setsid()
    late = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        time.sleep(PAUSE_S)
        late.append(time.perf_counter() - now - PAUSE_S)
    answers.put(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    processes = multiprocessing.get_context("fork")
    ways: dict[str, Callable[[], None] | None] = {
        "alone": None,
        "beside a nice one": _only_nice,
        "beside a nice one with long turns": _nice_with_long_turns,
    }
    for _ in range(options.rounds):
        for name, way in ways.items():
            other = None
            if way is not None:
                other = processes.Process(target=_compute, args=(options.core, way))
                other.start()
            answers: multiprocessing.SimpleQueue[list[float]] = processes.SimpleQueue()
            waker = processes.Process(target=_late, args=(options.core, options.seconds, answers))
            waker.start()
            late = sorted(answers.get())
            waker.join()
            if other is not None:
                other.kill()
                other.join()
            print(
                f"{name:<34} {len(late):>6,} wake-ups, late by p50 {late[len(late) // 2] * 1e3:.2f} ms, "
                f"p99 {late[len(late) * 99 // 100] * 1e3:.2f} ms, at most {late[-1] * 1e3:.2f} ms; "
                f"{sum(one > LATE_S for one in late)} by more than {LATE_S * 1e3:g} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
