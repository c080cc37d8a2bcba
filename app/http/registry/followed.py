"""One caller's view of the log of schemas, read on by each request. Tests: ``tests/http/registry/test_service.py``.

The broker shows each caller the records that it may see, so views of two callers differ and are never shared. A view is read anew
after ``KEPT_S`` or longer, because the caller's rights may have changed.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from app.core.limits import MIB
from app.core.turns import Portion
from app.http.gateway import Gateway
from app.registry.schema_log import SchemaLog
from app.registry.view import View

KEPT_S: Final = 30.0
"""Time after which a view is read from the start, at least."""
KEPT_READS: Final = 20
"""A view is kept as long as so many reads from the start take. So reading a large log takes a twentieth of the time at most."""
KEPT_MAX_S: Final = 300.0
VIEWS_BYTES_MAX: Final = 512 * MIB
"""Memory of all views. The one that was used last is kept at any size."""
IDLE_MAX_S: Final = KEPT_MAX_S
"""A view that was not used for so long is dropped, once a further request comes to the registry. It would be read from the start
anyway."""
VIEWS_MAX: Final = 400
"""Views at a time, twice the callers. Those of callers that have ended are among them until they are idle."""
LOOK_S: Final = 1.0
"""Time between two looks at the memory of all views, while no new one comes."""
ANSWERS_BYTES_MAX: Final = 4 * MIB
"""Of the answers that one caller's view keeps."""
ANSWER_BYTES: Final = 300
"""Memory of an answer beside its text and its request."""
Asked = tuple[str, str, bytes]
"""Context, path and query of a request."""
VERSION_BYTES: Final = 1_300
"""Memory of a version beside its text."""


class KnownAnswers:
    """Answers that a view gave, by request. A further entry of the log ends them all."""

    def __init__(self) -> None:
        self._of: tuple[View, int] | None = None
        """The view that gave them, and its end."""
        self._kept: dict[Asked, bytes] = {}
        self.bytes = 0
        """Memory of all, roughly."""

    def get(self, view: View, asked: Asked) -> bytes | None:
        """The answer to a request, if this view has given it at its present end."""
        self._look_at(view)
        return self._kept.get(asked)

    def keep(self, view: View, end: int, asked: Asked, answer: bytes) -> None:
        """Keep an answer that ``view`` gave at ``end``, if that is still its end. Others are dropped if all take too much."""
        self._look_at(view)
        size = sum(map(len, asked)) + len(answer) + ANSWER_BYTES
        if view.end != end or size > ANSWERS_BYTES_MAX or asked in self._kept:
            return
        if self.bytes + size > ANSWERS_BYTES_MAX:
            self._drop()
        self._kept[asked] = answer
        self.bytes += size

    def _look_at(self, view: View) -> None:
        if self._of is None or self._of[0] is not view or self._of[1] != view.end:
            self._of = view, view.end
            self._drop()

    def _drop(self) -> None:
        self._kept, self.bytes = {}, 0


class FollowedLog:
    """A log and its view."""

    def __init__(self, log: SchemaLog) -> None:
        self.log: Final = log
        self.view = View()
        self.answers: Final = KnownAnswers()
        self._since_s = self.used_s = asyncio.get_running_loop().time()
        """``used_s``: when a request took it last."""
        self._kept_s = KEPT_S
        self._lock = asyncio.Lock()
        self._begun = 0
        """Reads that have begun."""
        self._whole = 0
        """The newest read that came to the end of the log."""
        self._whole_s = -math.inf
        """Loop time of its end."""
        self._begun_before_append = 0
        """Reads that began before this caller's last append, and may not have its records."""

    @property
    def bytes(self) -> int:
        """Memory of the view and its answers, roughly."""
        return self.view.chars + self.view.version_count * VERSION_BYTES + self.answers.bytes

    async def refreshed(self) -> View:
        """The view at an end that was learned after this call. Callers that wait at the same time share one read.

        Raises: FirnError, as ``SchemaLog.read``.
        """
        before = self._begun
        async with self._lock:
            if self._whole > before:
                return self.view
            self._begun += 1
            reading = self._begun
            await self._read()
            self._whole = reading
            if reading > self._begun_before_append:
                self._whole_s = asyncio.get_running_loop().time()
            return self.view

    async def recent(self, seconds: float = KEPT_S) -> View:
        """The view as it was so many seconds ago, or later, with all records of this caller. Raises: as ``refreshed``."""
        return self.view if self.is_recent(seconds) else await self.refreshed()

    def is_recent(self, seconds: float) -> bool:
        """Whether ``recent`` gives the view without a read."""
        return asyncio.get_running_loop().time() - self._whole_s < seconds

    def appended(self) -> None:
        """The caller has appended records, which its next ``recent`` view must have."""
        self._whole_s = -math.inf
        self._begun_before_append = self._begun

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        view = self.view
        if now_s - self._since_s > self._kept_s:
            view = View()
        portion = Portion()
        while True:
            entries, end = await self.log.read(view.end)
            if end < view.end:  # the log has lost its end
                view = View()
                continue
            moved = end > view.end
            for entry in entries:
                view.take(entry)
                await portion.rest_if_spent()
            view.reached(end)
            if not moved:
                break
        if view is not self.view:
            self.view, self._since_s = view, now_s
            self._kept_s = min(max(KEPT_S, KEPT_READS * (loop.time() - now_s)), KEPT_MAX_S)


class FollowedLogs:
    """The views of all callers of a process, by their clients."""

    def __init__(self, open_log: Callable[[Gateway], SchemaLog]) -> None:
        self._open_log = open_log
        self._logs: OrderedDict[Gateway, FollowedLog] = OrderedDict()
        """Those that were used longest ago first."""
        self._looked_s = -math.inf

    def of(self, owner: Gateway) -> FollowedLog:
        """The log of the caller whose clients are ``owner``; opened if it is new, or if it was idle while others were not."""
        now_s = asyncio.get_running_loop().time()
        found = self._logs.get(owner)
        if found is not None:
            self._logs.move_to_end(owner)
            found.used_s = now_s
        else:
            found = self._logs[owner] = FollowedLog(self._open_log(owner))
            self._looked_s = -math.inf
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._drop(now_s)
        return found

    def _drop(self, now_s: float) -> None:
        """Drop idle views, and while all together are too large or too many, those that were used longest ago."""
        kept = sum(one.bytes for one in self._logs.values())
        while len(self._logs) > 1:
            owner, oldest = next(iter(self._logs.items()))
            if kept <= VIEWS_BYTES_MAX and len(self._logs) <= VIEWS_MAX and now_s - oldest.used_s <= IDLE_MAX_S:
                break
            del self._logs[owner]
            kept -= oldest.bytes
