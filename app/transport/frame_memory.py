"""The memory of request frames that are still arriving, over all connections. Pure: it is told when a second has passed.

A client announces how long its frame is, and may then send nothing. So a frame claims memory as it arrives: ``AHEAD`` times the
bytes that are here, and at least ``CLAIM_BYTES_MIN``, never more than it is long. A mere announcement delays no other client.

**If the memory is full**, connections that want more are not read until some is free, in the order in which they asked. The frame
that has been arriving for longest always gets the memory that it needs. So frames come to their end even if all memory is in
unfinished ones.

**A client that stops in the middle of its frame** keeps memory from others. While one waits, ``ended_after_a_second`` names the
connections that have not received a byte for two seconds, and the longest arriving one if it is slow.

**A connection that is not read**, because it is throttled or its answers have to leave first, may hold back the bytes of one read.
That delays no other client either: each connection has one read at most, and many throttled clients would shut out all others.
What is held back of a longer frame counts as the frame did.

**Before a login** frames have memory of their own, which is small. If it is full, no connection waits: the connection whose frame
has been arriving for longest is ended, as with too many connections of unknown clients (``arrivals.py``).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from app.core.limits import KIB, MIB

AHEAD: Final = 4
CLAIM_BYTES_MIN: Final = 64 * KIB
UNPROVEN_BYTES_MAX: Final = 16 * MIB
"""Of frames before a login, over all connections. A login of up to 16 KiB takes none of it."""
SECOND_BYTES_MIN: Final = 64 * KIB
"""Bytes that the longest arriving frame has to receive in a second while others wait."""
SILENT_SECONDS: Final = 2
WOKEN_AT_ONCE_MAX: Final = 32


class Arriving(Protocol):
    """A connection whose frame is arriving."""

    @property
    def is_proven(self) -> bool:
        """Whether its client is known, or need not be."""
        ...

    @property
    def arrived_bytes(self) -> int:
        """Of the frame that is arriving."""
        ...

    @property
    def reads(self) -> bool: ...

    def memory_freed(self) -> None:
        """Claim again: there may be memory."""
        ...


C = TypeVar("C", bound=Arriving)


def claim_bytes(arrived: int, total: int, claimed: int = 0) -> int:
    """The claim of a frame of ``total`` bytes of which so many are here. It claims more once half of what it has ``claimed`` is."""
    return claimed if 2 * arrived < claimed else min(total, max(AHEAD * arrived, CLAIM_BYTES_MIN))


class _Claim:
    """Of one connection."""

    __slots__ = ("seen_bytes", "silent_seconds", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.seen_bytes = -1
        """Bytes that had arrived when the last second ended; -1 if the connection has not been read ever since."""
        self.silent_seconds = 0


class FrameMemory(Generic[C]):
    """Belongs to one loop."""

    def __init__(self, bytes_max: int, unproven_bytes_max: int = UNPROVEN_BYTES_MAX) -> None:
        """``bytes_max``: of all frames of clients that are known, beside the longest arriving one; negative for no limit."""
        self._max = bytes_max
        self._unproven_max = unproven_bytes_max
        self.bytes = 0
        """Claimed bytes, and bytes that requests keep past their frames."""
        self.unproven_bytes = 0
        self.held_bytes = 0
        """Bytes that connections hold back which are not read."""
        self._claims: dict[C, _Claim] = {}
        """The longest arriving first."""
        self._unproven: dict[C, int] = {}
        self._waiting: deque[C] = deque()

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection is not read for want of memory."""
        return bool(self._waiting)

    def claim(self, connection: C, size_bytes: int) -> bool:
        """The frame of a connection needs so many bytes in all. Returns: False if it must not be read until ``memory_freed``."""
        claim = self._claims.get(connection)
        held = 0 if claim is None else claim.size_bytes
        more = size_bytes - held
        if more > 0 and 0 <= self._max < self.bytes + more and next(iter(self._claims), connection) is not connection:
            if claim is not None:
                claim.seen_bytes = -1
            self._waiting.append(connection)
            return False
        if claim is None:
            claim = self._claims[connection] = _Claim()
        claim.size_bytes = size_bytes
        self.bytes += more
        return True

    def claim_unproven(self, connection: C, size_bytes: int) -> list[C]:
        """As ``claim``, before the login: it is always granted. Returns: connections to be ended for it."""
        self.unproven_bytes += size_bytes - self._unproven.pop(connection, 0)
        ended = []
        while self._unproven and self.unproven_bytes > self._unproven_max:
            oldest = next(iter(self._unproven))
            self.unproven_bytes -= self._unproven.pop(oldest)
            ended.append(oldest)
        self._unproven[connection] = size_bytes
        return ended

    def release(self, connection: C) -> None:
        """Its frame is here, or it has ended."""
        self.unproven_bytes -= self._unproven.pop(connection, 0)
        claim = self._claims.pop(connection, None)
        if claim is not None:
            self.bytes -= claim.size_bytes

    def forget(self, connection: C) -> None:
        """The connection has ended."""
        self.release(connection)
        if connection in self._waiting:
            self._waiting.remove(connection)

    def keep(self, size_bytes: int) -> None:
        """A request keeps so many bytes past its frame; negative if it keeps them no longer. Arriving frames wait for them."""
        self.bytes += size_bytes
        assert self.bytes >= 0

    def hold(self, size_bytes: int) -> None:
        """A connection that is not read holds back so many bytes; negative if it no longer does. No frame waits for them."""
        self.held_bytes += size_bytes
        assert self.held_bytes >= 0

    def wake(self) -> bool:
        """Memory has been freed: let connections that wait claim again, the longest arriving one first. Returns: whether others may
        be woken, in another turn."""
        waiting = self._waiting
        oldest = next(iter(self._claims), None)
        if oldest is not None and oldest in waiting:
            waiting.remove(oldest)
            oldest.memory_freed()
        for _ in range(min(len(waiting), WOKEN_AT_ONCE_MAX)):
            if 0 <= self._max <= self.bytes and self._claims:
                return False
            if not waiting:
                return False
            one = waiting.popleft()
            one.memory_freed()
            if waiting and waiting[-1] is one:
                waiting.rotate(1)  # there was not enough for it: it keeps its place
                return False
        return bool(waiting)

    def ended_after_a_second(self) -> list[C]:
        """A second has passed in which a connection waited. Returns: connections to be ended, because their clients have stopped
        or are too slow. A connection that was not read for all of the second is none of them."""
        ended = []
        for place, (connection, claim) in enumerate(self._claims.items()):
            arrived, seen = connection.arrived_bytes, claim.seen_bytes
            claim.seen_bytes = arrived if connection.reads else -1
            if seen < 0 or not connection.reads:
                # Only a second in which it was read throughout says something about its client.
                claim.silent_seconds = 0
                continue
            claim.silent_seconds = claim.silent_seconds + 1 if arrived == seen else 0
            is_slow = place == 0 and 0 <= arrived - seen < SECOND_BYTES_MIN
            if is_slow or claim.silent_seconds >= SILENT_SECONDS:
                ended.append(connection)
        return ended
