"""A broker in a thread of its own, on a loop that counts the CPU time of each turn.

A turn is one pass of the loop: the callbacks that were ready when it began. What counts is the CPU time of the loop's thread, with
the garbage collections in it, so other work of the machine counts for little. Jobs of the thread pool are counted one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from struct import Struct
from typing import Any, Final, TypeVar

from app.machine import runtime

T = TypeVar("T")
SIZE: Final = Struct(">i")
RESPONSE_WAIT_S: Final = 300.0
"""A request that is not answered for so long has been lost."""
REST_WAIT_S: Final = 900.0
"""Requests may leave work behind: ten thousand logs make their files, and look for what they have to upload."""
TURN_MS_MAX: Final = 50.0
"""INV-15."""
TRIES: Final = 3
"""Other work on the machine raises CPU time through the caches, so something took too long only if it did each time."""


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Counts the CPU time of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ns = 0
        """Of the turns since ``begin``."""
        self.turns = 0
        self.all_ns = 0
        self.collected_ns = 0
        """Of garbage collections in the longest turn."""
        self.pool_ns = 0
        """Of the longest job of the thread pool."""
        self.pool_jobs = 0
        """Jobs of the pool that are running."""
        self._collecting_ns = 0
        self._collection_began_ns = 0
        self._thread = 0
        self._idle: threading.Event | None = None
        self._ahead_s = 0.0
        self._hurries_until_s = 0.0
        self._arrived: threading.Event | None = None

    def time(self) -> float:
        return super().time() + self._ahead_s

    def run_forever(self) -> None:
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collected)
        try:
            super().run_forever()
        finally:
            gc.callbacks.remove(self._collected)

    def _hurry(self) -> None:
        """Let time pass to the next timer, if there is nothing else to do."""
        if self._ready or self.pool_jobs:  # type: ignore[attr-defined]
            return
        self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if self._ready or not scheduled:  # type: ignore[attr-defined]
            return
        if self.time() >= self._hurries_until_s:
            assert self._arrived is not None
            self._arrived.set()
            self._arrived = None
        else:
            self._ahead_s += max(0.0, min(scheduled[0].when(), self._hurries_until_s) - self.time())

    def _run_once(self) -> None:
        if self._arrived is not None:
            self._hurry()
        if self._idle is not None and not self._ready and not self.pool_jobs:  # type: ignore[attr-defined]
            self._idle.set()
            self._idle = None
        collected_ns = self._collecting_ns
        began_ns = time.thread_time_ns()
        super()._run_once()  # type: ignore[misc]
        took_ns = time.thread_time_ns() - began_ns
        self.turns += 1
        self.all_ns += took_ns
        if took_ns > self.longest_ns:
            self.longest_ns = took_ns
            self.collected_ns = self._collecting_ns - collected_ns

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collection_began_ns = time.thread_time_ns()
        else:
            self._collecting_ns += time.thread_time_ns() - self._collection_began_ns

    def begin(self) -> None:
        """Count from here on."""
        self.longest_ns = self.turns = self.all_ns = self.collected_ns = self.pool_ns = 0

    def settle(self, event: threading.Event) -> None:
        """Set ``event`` once nothing is ready and no job of the pool runs."""
        self._idle = event

    def hurry(self, seconds: float, event: threading.Event) -> None:
        """Let so many seconds pass as fast as the work of their timers allows, and set ``event``."""
        self._hurries_until_s = self.time() + seconds
        self._arrived = event

    def count_job(self, work: Callable[[], T]) -> T:
        """Run a job of the pool."""
        began_ns = time.thread_time_ns()
        try:
            return work()
        finally:
            self.pool_ns = max(self.pool_ns, time.thread_time_ns() - began_ns)


class CountedPool(runtime.ThreadPool):
    """A thread pool whose jobs a ``MeasuredLoop`` counts."""

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        loop.pool_jobs += 1
        try:
            return await super().run(lambda: loop.count_job(work))
        finally:
            loop.pool_jobs -= 1


class Measured:
    """Runs an asynchronous context on a ``MeasuredLoop`` in a thread, until ``close``."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """``make`` is called in the thread. Raises: what its context raises when it is entered."""
        self._make = make
        self._entered: Future[Any] = Future()
        self._leave: asyncio.Event | None = None
        self._failed: BaseException | None = None
        self.loop: MeasuredLoop | None = None
        self._thread = threading.Thread(target=self._run, name="measured")
        self._thread.start()
        self.made = self._entered.result()
        """What the context gave."""

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            try:
                runner.run(self._live())
            except BaseException as error:  # noqa: BLE001 (raised by whoever waits)
                if not self._entered.done():
                    self._entered.set_exception(error)
                self._failed = error

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        self.loop = loop
        self._leave = asyncio.Event()
        async with self._make() as made:
            self._entered.set_result(made)
            await self._leave.wait()

    def call(self, work: Callable[[], T]) -> T:
        """Call a function in the loop's thread."""
        assert self.loop is not None
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 (raised by whoever waits)
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(RESPONSE_WAIT_S)

    def wait(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine in the loop."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(RESPONSE_WAIT_S)

    def settle(self) -> None:
        """Wait until the loop has nothing to do."""
        assert self.loop is not None
        idle = threading.Event()
        self.loop.call_soon_threadsafe(self.loop.settle, idle)
        assert idle.wait(REST_WAIT_S), "the loop does not come to rest"

    def hurry(self, seconds: float) -> None:
        """Let time pass for the loop, and wait until all timers of it were served. Work of pool threads takes its own time."""
        assert self.loop is not None
        arrived = threading.Event()
        self.loop.call_soon_threadsafe(self.loop.hurry, seconds, arrived)
        assert arrived.wait(REST_WAIT_S), "the time does not pass"

    @contextmanager
    def profiled(self) -> Iterator[cProfile.Profile]:
        """Profile the loop's thread. Times of turns mean nothing meanwhile."""
        profile = cProfile.Profile(time.thread_time)
        self.call(profile.enable)
        try:
            yield profile
        finally:
            self.call(profile.disable)

    def close(self) -> None:
        """Leave the context. Raises: what it raised."""
        if self.loop is not None and self._leave is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(RESPONSE_WAIT_S)
        assert not self._thread.is_alive()
        if self._failed is not None:
            raise self._failed


def least_ms(measured: Measured, work: Callable[[], object], tries: int = TRIES) -> float:
    """The longest turn, or job of a pool thread, while something is done: of the best of several tries.

    A job may hold the interpreter, so it may take no longer than a turn. Returns: CPU time in milliseconds.
    """
    assert measured.loop is not None
    least = float("inf")
    for _ in range(tries):
        measured.settle()
        measured.loop.begin()
        work()
        measured.settle()
        least = min(least, max(measured.loop.longest_ns, measured.loop.pool_ns) / 1e6)
        if least <= TURN_MS_MAX:
            break
    return least


class Line:
    """A connection of a test that blocks."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout=RESPONSE_WAIT_S)

    def ask(self, frame: bytes) -> bytes | None:
        """Send a frame. Returns: the response's frame without its size; None if the broker closes the connection."""
        sender = threading.Thread(target=self._send, args=(frame,)) if len(frame) > 1 << 16 else None
        if sender is None:
            self._send(frame)
        else:
            sender.start()
        try:
            return self.read_answer()
        finally:
            if sender is not None:
                sender.join(RESPONSE_WAIT_S)

    def send(self, frame: bytes) -> None:
        """Send a frame that the socket's buffers have room for."""
        self._send(frame)

    def read_answer(self) -> bytes | None:
        """The next response, as of ``ask``."""
        head = self._read(4)
        return None if head is None else self._read(SIZE.unpack(head)[0])

    def end_with(self, data: bytes) -> None:
        """Send bytes that are no frame and end the connection from this side; wait until the broker has ended it, too."""
        self._send(data)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(1 << 16):
                pass

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # told by the answer that does not come
            self._socket.sendall(data)

    def _read(self, count: int) -> bytes | None:
        data = bytearray(count)
        view, filled = memoryview(data), 0
        while filled < count:
            try:
                got = self._socket.recv_into(view[filled:])
            except ConnectionError:
                return None
            if not got:
                return None
            filled += got
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
