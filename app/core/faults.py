"""Log lines about faults: one line when a fault begins, one every so often while it lasts, one when it is over.

A fault is one kind of failure of one subject: ``("reading", "orders-3")``. Code that meets it reports it each time, on any
path; ``Faults`` counts the reports and decides which become lines. Memory and lines are bounded: of each kind so
many subjects are told one by one, and all others together.

Belongs to one event loop of one process. The broker, the store process and the HTTP process have one each.
"""

from __future__ import annotations

import asyncio
import math
import os.path
from collections import Counter
from collections.abc import Callable
from typing import Final

from app.core.errors import CorruptionError, DirectoryOffline, FirnError, StorageUnavailable
from app.core.log_events import longer, of_fault
from app.core.loop_time import loop_time_s
from app.core.seams import shared_wait_s

REPEAT_FIRST_S: Final = 60.0
"""A fault that goes on is told again after so long, and after twice as long each time, up to the most."""
REPEAT_MAX_S: Final = 600.0
QUIET_S: Final = 60.0
"""A fault is over once it was not met for so long: a store that fails every other request has one fault, not hundreds."""
LOOK_S: Final = 5.0
SUBJECTS_MAX: Final = 20
"""Subjects of one kind that are told one by one."""
OTHERS: Final = "others"
BEGINS: Final = "begins"
GOES_ON: Final = "goes on"
OVER: Final = "over"
"""The state of a fault, a field of its lines."""
LIMITED_LINES_MAX: Final = 20
LIMITED_PERIOD_S: Final = 60.0


class _Fault:
    __slots__ = ("began_s", "count", "quiet_since_s", "repeat_s", "sentence", "told", "told_s")

    def __init__(self, now_s: float, sentence: str) -> None:
        self.began_s = self.told_s = now_s
        self.quiet_since_s: float | None = now_s
        """Since when it was not met; None while it is known to last."""
        self.repeat_s = REPEAT_FIRST_S
        self.count = 1
        self.told = 1
        """How often it was told with its own sentence, or counted in a line."""
        self.sentence = sentence


class Faults:
    """See the module."""

    def __init__(self, log_line: Callable[[str], None], now_s: Callable[[], float] = loop_time_s) -> None:
        """``now_s``: seconds from any moment on, which never step back."""
        self._log_line = log_line
        self._now_s = now_s
        self._faults: dict[tuple[str, str], _Fault] = {}
        self._subjects: Counter[str] = Counter()

    @property
    def active(self) -> int:
        """Faults that are not over."""
        return len(self._faults)

    def met(self, kind: str, subject: str, sentence: str, *, burst: int = 1, lasting: bool = False) -> bool:
        """The fault was met again, or for the first time. Returns: whether a line was written.

        ``kind``: one of few, as a noun: "reading". ``sentence``: the event, its subject and the mend. ``burst``: the first so
        many times have a line each. ``lasting``: it goes on until ``over`` says otherwise, whether or not it is met again.
        """
        now_s = self._now_s()
        fault = self._faults.get((kind, subject))
        if fault is None:
            if subject != OTHERS and self._subjects[kind] >= SUBJECTS_MAX:
                return self.met(kind, OTHERS, longer(sentence, f"{sentence} (further subjects are counted together)"))
            self._subjects[kind] += subject != OTHERS
            fault = self._faults[kind, subject] = _Fault(now_s, sentence)
            self._tell(sentence, sentence, kind, subject, BEGINS)
            told = True
        else:
            fault.count += 1
            fault.sentence = sentence
            if fault.told < burst:
                fault.told += 1
                fault.told_s = now_s
                self._tell(sentence, sentence, kind, subject, GOES_ON, times=fault.count)
                told = True
            else:
                told = self._repeat(kind, subject, fault, now_s)
        fault.quiet_since_s = None if lasting else now_s
        return told

    def met_error(self, kind: str, subject: str, error: FirnError) -> None:
        """As ``met``, if the error is a fault of a disk, of the object store or of stored bytes, and not a refusal.

        That a directory is offline was told once for all that it holds.
        """
        if isinstance(error, (StorageUnavailable, CorruptionError)) and not isinstance(error, DirectoryOffline):
            self.met(kind, subject, f"{kind} {subject} fails: {error}")

    def over(self, kind: str, subject: str) -> None:
        """The failed work has succeeded. A line says that the fault is over once it stays so. Cheap if there is no such fault."""
        fault = self._faults.get((kind, subject)) if self._faults else None
        if fault is not None and fault.quiet_since_s is None:
            fault.quiet_since_s = self._now_s()

    async def run(self) -> None:
        """``look`` every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), LOOK_S))
            self.look()

    def look(self) -> None:
        """Write lines of faults that go on and that are over. To be called every few seconds."""
        now_s = self._now_s()
        for (kind, subject), fault in list(self._faults.items()):
            if fault.quiet_since_s is None:
                self._repeat(kind, subject, fault, now_s)
            elif now_s - fault.quiet_since_s >= QUIET_S:
                del self._faults[kind, subject]
                if subject != OTHERS:
                    self._subjects[kind] -= 1
                    if not self._subjects[kind]:
                        del self._subjects[kind]
                if fault.count == 1 or fault.count > fault.told or fault.told_s > fault.began_s:
                    lasted_s = fault.quiet_since_s - fault.began_s
                    text = f"over after {lasted_s:.0f} s: {kind} {subject} failed {_times(fault.count)}"
                    facts = {"times": fault.count, "lasted_s": round(lasted_s, 1)}
                    self._tell(text, fault.sentence, kind, subject, OVER, **facts)

    def _tell(self, text: str, sentence: str, kind: str, subject: str, state: str, **facts: float) -> None:
        over = state == OVER
        self._log_line(of_fault(text, sentence, kind, over=over, subject=subject, state=state, **facts))

    def _repeat(self, kind: str, subject: str, fault: _Fault, now_s: float) -> bool:
        if now_s - fault.told_s < fault.repeat_s:
            return False
        lasted_s = now_s - fault.began_s
        text = f"{fault.sentence} ({_times(fault.count)} in {lasted_s:.0f} s; it goes on)"
        facts = {"times": fault.count, "lasted_s": round(lasted_s, 1)}
        self._tell(text, fault.sentence, kind, subject, GOES_ON, **facts)
        fault.told = fault.count
        fault.told_s = now_s
        fault.repeat_s = min(2 * fault.repeat_s, REPEAT_MAX_S)
        return True


class Limited:
    """``log_line`` for lines that clients can cause: at most so many in a while. The next line says how many were left out."""

    def __init__(
        self,
        log_line: Callable[[str], None],
        now_s: Callable[[], float] = loop_time_s,
        *,
        lines_max: int = LIMITED_LINES_MAX,
        period_s: float = LIMITED_PERIOD_S,
    ) -> None:
        self._log_line = log_line
        self._now_s = now_s
        self._lines_max = lines_max
        self._period_s = period_s
        self._began_s = -math.inf
        self._lines = self._left_out = 0

    def __call__(self, line: str) -> None:
        now_s = self._now_s()
        if now_s - self._began_s >= self._period_s:
            self._began_s, self._lines = now_s, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            line = longer(line, f"{line} ({self._left_out} lines like this were left out before it)")
            self._left_out = 0
        self._log_line(line)


BUG: Final = "internal errors:"


def met_bug(faults: Faults, message: str, error: BaseException | None) -> bool:
    """A callback or a task raised an error that it must not raise. Returns: whether it was told, so that its traceback is to be
    shown."""
    place = message if error is None else place_of(error)
    return faults.met(BUG, place, f"internal error, please report it: {message}: {error!r}" if error else message)


def place_of(error: BaseException) -> str:
    """Kind of an error and where it was raised: all errors of one bug have the same."""
    step = error.__traceback__
    if step is None:
        return type(error).__name__
    while step.tb_next is not None:
        step = step.tb_next
    code = step.tb_frame.f_code
    return f"{type(error).__name__} in {code.co_qualname} ({os.path.basename(code.co_filename)}:{step.tb_lineno})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
