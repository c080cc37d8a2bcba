"""A Fetch that waits. It has no task: it has a waiter on each partition's log and on each remote chunk that was asked for, and one
timer. Each of them causes a new attempt, at most one per turn of the loop.

A request waits for chunks at most ``remote.fetch.max.wait.ms`` after it first asked for them (KIP-1018).

Tests: ``tests/handlers/test_fetch.py``, ``tests/handlers/test_followers.py``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from app.core.errors import FirnError, without_frames
from app.core.seams import shared_wait_s
from app.handlers.fetch.answers import complete
from app.handlers.fetch.consumers import ConsumerAttempt
from app.handlers.fetch.followers import moves_wait_ms
from app.handlers.fetch.following import FollowerAttempt
from app.handlers.state.parked_followers import RESTLESS_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.handlers.clients.client import Client, RequestFields
    from app.handlers.fetch.attempts import Attempt
    from app.handlers.state.fetch_sessions import CachedPartition, FetchPlan
    from app.hot.log import PartitionLog
    from app.hot.reads import PageMiss
    from app.transport.core import Slot

MISS_WAIT_MS: Final = 500
"""How long a Fetch waits for its own disk even if it does not want to wait for new records."""


class ParkedFetch(ABC):
    """A Fetch that waits for more bytes or for its time to be up. ``ParkedConsumer`` and ``ParkedFollower`` are its two kinds."""

    __slots__ = (
        "_asked",
        "_awaited_store",
        "_client_id",
        "_connection",
        "_disk_error",
        "_ends_s",
        "_logs",
        "_max_bytes",
        "_partitions",
        "_plan",
        "_remote_cancels",
        "_request",
        "_rights",
        "_slot",
        "_timer",
        "_woken",
    )

    def __init__(
        self,
        connection: Client,
        slot: Slot,
        asked: RequestFields,
        client_id: str | None,
        plan: FetchPlan,
        partitions: list[CachedPartition],
        attempt: Attempt,
    ) -> None:
        """``attempt``: the look that has found too little."""
        request = attempt.request
        self._connection = connection
        self._slot = slot
        self._asked = asked
        self._client_id = client_id
        self._request = request
        self._plan = plan
        self._partitions = partitions
        self._max_bytes = attempt.max_bytes
        self._woken: asyncio.Handle | None = None
        self._disk_error: FirnError | None = None
        wait_ms = max(request.max_wait_ms, MISS_WAIT_MS) if attempt.misses else request.max_wait_ms
        loop = connection.server.loop
        wait_s = self._wait_s(wait_ms)
        self._ends_s = loop.time() + wait_s
        """When the timer is due. The handle does not know it: for a wait that rounds to 0 ms uvloop's handle has no time."""
        self._timer: asyncio.Handle = loop.call_later(wait_s, self._out_of_time)
        self._logs: list[PartitionLog] = []
        self._remote_cancels: list[Callable[[], None]] = []
        self._awaited_store = False
        connection.on_close.add(self)
        self._rights = connection.caller.rights
        if connection.context.authorizer is not None:
            self._rights.on_end.add(self._wake)
        self._park(attempt)

    def _park(self, attempt: Attempt) -> None:
        """Wait for the logs and chunks that could give the next attempt more records."""
        attempt.release()
        self._listen(attempt.logs)
        if attempt.awaits_store and not self._awaited_store:
            self._awaited_store = True
            self._hurry(self._connection.context.effective.remote_fetch_max_wait_ms)
        self._remote_cancels = [wait(self._connection.follow(self._wake)) for wait in attempt.remote_waits]
        for miss in attempt.misses:
            self._connection.server.spawn(self._load(miss), self._connection)

    def _hurry(self, wait_ms: int) -> None:
        """Wait at most ``wait_ms`` from now on."""
        loop = self._connection.server.loop
        until_s = loop.time() + wait_ms / 1000
        if until_s < self._ends_s:
            self._timer.cancel()
            self._ends_s = until_s
            self._timer = loop.call_at(until_s, self._out_of_time)

    async def _load(self, miss: PageMiss) -> None:
        """Read missing bytes from the disk, and look again. The next attempt sees an error, if there is one."""
        try:
            await miss.fetch(self._connection.context.pool)
        except FirnError as error:
            self._disk_error = without_frames(error)
        if not self._slot.done and not self._connection.closed:
            self._wake()

    def _unpark(self) -> None:
        self._end_listening()
        self._logs = []
        for cancel in self._remote_cancels:
            cancel()
        self._remote_cancels = []

    def _wake(self) -> None:
        if self._woken is None:
            self._woken = self._connection.server.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        replays = self._connection.context.replays
        began_s = replays.elapsed_s()
        self._woken = None
        self._unpark()
        attempt = self._look()
        if attempt.is_enough():
            self._finish(attempt)
        else:
            self._park(attempt)
        replays.account(began_s, self._connection.replaying)

    def _out_of_time(self) -> None:
        self._unpark()
        self._finish(self._look(out_of_time=True))

    def _finish(self, attempt: Attempt) -> None:
        self.cancel()
        complete(self._connection, self._slot, self._asked, self._client_id, self._plan, attempt)

    @abstractmethod
    def _wait_s(self, wait_ms: int) -> float:
        """Seconds until the request is answered with what there is. Its client waits for ``wait_ms``."""

    @abstractmethod
    def _listen(self, logs: list[PartitionLog]) -> None:
        """Have ``_wake`` called when there may be more. ``logs``: whose next appends could add to the answer."""

    @abstractmethod
    def _end_listening(self) -> None: ...

    @abstractmethod
    def _look(self, *, out_of_time: bool = False) -> Attempt: ...

    def cancel(self) -> None:
        """Stop waiting. Reads from the object store go on, because they fill a cache that others share."""
        self._timer.cancel()
        if self._woken is not None:
            self._woken.cancel()
            self._woken = None
        self._unpark()
        self._rights.on_end.discard(self._wake)
        self._connection.on_close.discard(self)


class ParkedConsumer(ParkedFetch):
    """A consumer's Fetch that waits for committed records, or for chunks from the object store."""

    __slots__ = ()

    def _wait_s(self, wait_ms: int) -> float:
        return wait_ms / 1000

    def _listen(self, logs: list[PartitionLog]) -> None:
        self._logs = logs
        for log in logs:
            log.add_waiter(self._wake)

    def _end_listening(self) -> None:
        for log in self._logs:
            log.remove_waiter(self._wake)

    def _look(self, *, out_of_time: bool = False) -> ConsumerAttempt:
        attempt = ConsumerAttempt(
            self._connection,
            self._asked.version,
            self._request,
            self._max_bytes,
            out_of_time=out_of_time,
            disk_error=self._disk_error,
        )
        attempt.look_at(self._partitions)
        return attempt


class ParkedFollower(ParkedFetch):
    """A follower's Fetch that waits for appended records. With a session, the session's watches wake it."""

    __slots__ = ()

    def _wait_s(self, wait_ms: int) -> float:
        session = self._plan.followed
        if session is None:
            return wait_ms / 1000
        wait_ms = self._connection.context.parked_followers.wait_ms(wait_ms, restless=session.restless)
        return shared_wait_s(self._connection.server.loop.time(), wait_ms / 1000)

    def _listen(self, logs: list[PartitionLog]) -> None:
        session = self._plan.followed
        if session is None:
            self._logs = logs
            for log in logs:
                log.add_tail_waiter(self._wake)
            return
        session.on_due = self._wake
        session.on_moved = self._hurry_session
        self._connection.context.parked_followers.waiting[self._hurry] = None
        if session.restless:
            self._hurry_session()
        if session.moving:
            self._hurry(moves_wait_ms(session))

    def _end_listening(self) -> None:
        session = self._plan.followed
        if session is None:
            for log in self._logs:
                log.remove_tail_waiter(self._wake)
            return
        if session.on_due == self._wake:  # else a later request of the session waits
            session.on_due = session.on_moved = None
        self._connection.context.parked_followers.waiting.pop(self._hurry, None)

    def _hurry_session(self) -> None:
        self._hurry(RESTLESS_MS)

    def _look(self, *, out_of_time: bool = False) -> FollowerAttempt:
        attempt = FollowerAttempt(
            self._connection, self._request, self._max_bytes, self._plan.followed, disk_error=self._disk_error
        )
        attempt.look_at_due(self._partitions)
        return attempt
