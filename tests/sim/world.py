"""The frame of a world of whole brokers: its trace, its numbers, the first failure, and the run of a seed.

All of a run follows from the seed. Each line of the trace must be the same in every run of the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Set
from contextvars import copy_context
from typing import Any, ClassVar, Protocol, TypeVar

from app.configs import TopicConfig
from app.core.errors import ErrorCode
from app.metadata.log.numbered_log import NumberedLog
from tests.sim.bucket import Bucket
from tests.sim.loop import Process, ProcessDied, SimLoop
from tests.sim.violation import Violation
from tests.support.virtual_loop import Deadlock

LINES_KEPT = 400


class OffersWitness(Protocol):
    """Told of each object that a broker offers to the bucket."""

    def offered(self, key: str, data: bytes) -> None: ...


class WorldOfBrokers:
    """See the module."""

    bucket: Bucket
    one_writer: OffersWitness
    topic_defaults: TopicConfig
    """Of all brokers."""

    found_by_itself: ClassVar[Set[ErrorCode]] = frozenset()
    """Errors that a client may be told at any time."""

    def __init__(self, seed: int, loop: SimLoop, rngs: str, keep: Callable[[str], None]) -> None:
        """``rngs``: the name of the seed's sequence of generators. ``keep`` is told every line of the trace."""
        self.seed = seed
        self.loop = loop
        self.outside = copy_context()
        """The context of what belongs to no process."""
        self.processes: list[Process] = []
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        """The end of the trace."""
        self.failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._rngs = random.Random(f"{rngs} {seed}")
        self._pool_latency_s = (0.0001, 0.002)
        self._numbers = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._keep = keep

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def new_rng(self) -> random.Random:
        return random.Random(self._rngs.getrandbits(64))

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def pool_latency_s(self, rng: random.Random) -> float:
        return rng.uniform(*self._pool_latency_s)

    def trace(self, *parts: object) -> None:
        """Write down what happened. Everything that is written must be the same in every run of the seed."""
        line = f"{self.loop.time():.6f} {parts}"
        self._hash.update(line.encode())
        self.lines.append(line)
        self._keep(line)

    def fail(self, error: BaseException) -> None:
        """The run has failed; the first failure counts."""
        if self.failure is None:
            self.failure = error
            self.trace("failed", type(error).__name__, str(error))
        self._failed.set()

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """Where a check is made that must not disturb the broker that is watched."""
        try:
            yield
        except Violation as violation:
            self.fail(violation)

    def expect(self, code: int, allowed: Set[ErrorCode], what: str) -> None:
        """Raises: Violation for an answer that nobody should get."""
        if ErrorCode(code) not in allowed and ErrorCode(code) not in self.found_by_itself:
            raise Violation("errors", f"{what} was answered with {ErrorCode(code).name}")


W = TypeVar("W", bound=WorldOfBrokers)


def run_world(
    seed: int, make: Callable[[SimLoop], W], run: Callable[[W], Awaitable[None]], *, stuck: str
) -> tuple[W, Violation | None, float]:
    """Run one seed to its end, or to the first violation.

    Args:
        make: makes the world, on the running loop.
        stuck: the name of the violation when nothing more would ever happen.

    Returns: the world, its violation, and the virtual time in seconds.

    Raises: all that is no violation, but a bug of the broker or of the simulation.
    """
    loop = SimLoop(seconds_max=3000)
    asyncio.set_event_loop(loop)
    violation: Violation | None = None
    world: W | None = None

    async def start() -> None:
        nonlocal world
        world = make(loop)
        await run(world)

    def complain(_loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ProcessDied) or world is None:
            return
        if isinstance(error, BaseException):
            world.fail(error)

    loop.set_exception_handler(complain)
    gc.disable()
    try:
        with _short_logs() if seed % 2 else contextlib.nullcontext():
            loop.run_until_complete(start())
    except Violation as found:
        violation = found
    except Deadlock as found:
        violation = Violation(stuck, str(found))
    finally:
        virtual_s = loop.time()
        if world is not None:
            loop.bury(world.processes)
        asyncio.set_event_loop(None)
        loop.close()
        gc.enable()
    assert world is not None
    return world, violation, virtual_s


@contextlib.contextmanager
def _short_logs() -> Iterator[None]:
    """Snapshots and compaction are for long logs; here they come after a few entries."""
    usual = NumberedLog.snapshot_due
    NumberedLog.snapshot_due = property(  # type: ignore[assignment,method-assign]
        lambda log: log._at.applied - log._at.snapshot_sequence >= 5
    )
    try:
        yield
    finally:
        NumberedLog.snapshot_due = usual  # type: ignore[method-assign]
