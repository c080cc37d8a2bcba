"""A Fetch of many partitions is a task, served in portions (INV-15, ADR 0039).

Its decoding, its plan, each look at its partitions and its response have turns of their own. A wait begins to listen to a log in
the turn in which the log is looked at, so no record is missed that comes while others are looked at. Fetches of followers are not
here: their sessions know the partitions to look at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from app.core.errors import FirnError, ProtocolError, without_frames
from app.core.turns import Portion, slices

if TYPE_CHECKING:
    from app.handlers.clients.client import Client
    from app.handlers.state.fetch_sessions import CachedPartition, FetchPlan
    from app.hot.log import PartitionLog
    from app.hot.reads import PageMiss
    from app.transport.core import Slot
    from app.wire.fetch import FetchRequest

LONG_FRAME_BYTES: Final = 16 * 1024
"""A shorter request names 500 partitions at most, and is decoded at once."""
LONG_PARTITIONS: Final = 500
"""A Fetch of more partitions is looked at in portions."""
LOOKED_AT_ONCE: Final = 64
"""Partitions between two looks at the clock."""


class Looked(Protocol):
    """The results so far (``attempts.Attempt``)."""

    logs: list[PartitionLog]
    remote_waits: list[Callable[[Callable[[], None]], Callable[[], None]]]
    misses: list[PageMiss]
    record_bytes: int
    at_once: bool
    awaits_store: bool

    def release(self) -> None: ...


A = TypeVar("A", bound=Looked)


class _Waiting:
    """The logs and chunks that a long Fetch waits for."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self._logs: list[PartitionLog] = []
        self._cancels: list[Callable[[], None]] = []

    def wake(self) -> None:
        self.woken.set()

    def cancel(self) -> None:
        """The connection has ended."""
        self.woken.set()

    def listen(self, attempt: Looked, logs_from: int, waits_from: int) -> None:
        """Wait also for the logs and chunks that an attempt has added in this turn."""
        for log in attempt.logs[logs_from:]:
            log.add_waiter(self.wake)
            self._logs.append(log)
        self._cancels += [wait(self.wake) for wait in attempt.remote_waits[waits_from:]]

    def end(self) -> None:
        """Cancel all notices."""
        for log in self._logs:
            log.remove_waiter(self.wake)
        for cancel in self._cancels:
            cancel()
        self._logs.clear()
        self._cancels.clear()


async def serve_long(
    connection: Client,
    slot: Slot,
    request: FetchRequest,
    plan: FetchPlan,
    partitions: list[CachedPartition],
    max_bytes: int,
    look: Callable[[list[CachedPartition], A | None, bool, FirnError | None], A],
    finish: Callable[[A], Awaitable[None]],
) -> None:
    """Look until there is enough, or the time is over, and ``finish``. A client that leaves ends this at the next portion.

    ``look`` takes partitions, the attempt so far, whether its time is over, and the error of the disk, if there was one.
    """
    context = connection.context
    loop = connection.server.loop
    deadline_s = loop.time() + request.max_wait_ms / 1000
    enough = min(request.min_bytes, max_bytes)
    portion = Portion()
    out_of_time = request.max_wait_ms <= 0
    disk_error: FirnError | None = None
    awaited_store = False
    while not has_left(connection, slot):
        waiting = _Waiting()
        attempt: A | None = None
        connection.on_close.add(waiting)
        rights = connection.caller.rights
        if context.authorizer is not None:
            rights.on_end.add(waiting.wake)
        try:
            for some in slices(partitions, LOOKED_AT_ONCE):
                logs, waits = (0, 0) if attempt is None else (len(attempt.logs), len(attempt.remote_waits))
                attempt = look(list(some), attempt, out_of_time, disk_error)
                waiting.listen(attempt, logs, waits)
                if portion.spent():
                    await portion.rest()
                    if has_left(connection, slot):
                        attempt.release()
                        return
            assert attempt is not None, "a long Fetch has partitions"
            if attempt.record_bytes >= enough or attempt.at_once or (out_of_time and not attempt.misses):
                await portion.rest()
                await finish(attempt)
                return
            misses, awaits_store = attempt.misses, attempt.awaits_store
            attempt.release()
            attempt = None
            if misses:
                disk_error = await _load(connection, misses)
                continue
            if awaits_store and not awaited_store:
                awaited_store = True
                deadline_s = min(deadline_s, loop.time() + context.effective.remote_fetch_max_wait_ms / 1000)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await waiting.woken.wait()
            except TimeoutError:
                out_of_time = True
        except BaseException:
            if attempt is not None:
                attempt.release()
            raise
        finally:
            waiting.end()
            connection.on_close.discard(waiting)
            rights.on_end.discard(waiting.wake)


def has_left(connection: Client, slot: Slot) -> bool:
    """Whether the client does not wait for the response any more."""
    return connection.closed or slot.done


async def _load(connection: Client, misses: list[PageMiss]) -> FirnError | None:
    """Read the missing bytes from the disk. Returns the error, if there was one."""
    for miss in misses:
        try:
            await miss.fetch(connection.context.pool)
        except FirnError as error:
            return without_frames(error)
    return None


async def decoded(connection: Client, slot: Slot, decode: Callable[[], FetchRequest]) -> FetchRequest | None:
    """A long request, decoded in a turn of its own. None if it cannot be read: the connection ends."""
    portion = Portion()
    await portion.rest()
    try:
        request = decode()
    except ProtocolError as error:
        connection.fail(f"closing the connection of {connection.peer}: {error}")
        return None
    await portion.rest()
    return None if has_left(connection, slot) else request
