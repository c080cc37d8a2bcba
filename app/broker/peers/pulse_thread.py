"""The thread from which a broker sends pulses (ADR 0023, L6). Its own loop runs a ``PulseSender`` and its connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from app.metadata.peers.pulses import PulseLink, PulseSender, TurnBoard

END_S: Final = 1.0
"""How long a stop waits for the end of the thread. It is a daemon, so the interpreter ends without it."""


class PulseThread:
    """Runs from its making on. Belongs to the loop that makes it."""

    def __init__(self, board: TurnBoard, new_link: Callable[[], PulseLink], *, now_s: Callable[[], float]) -> None:
        """``new_link`` is called in the thread. ``now_s`` may be called by any thread, and is the clock of the board."""
        self._board, self._new_link, self._now_s = board, new_link, now_s
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._cancel: Callable[[], object] | None = None
        self._owner = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="firn-pulses", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            # Not uvloop: two requests a second need no fast loop, and this one costs nothing to start.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner, suppress(asyncio.CancelledError):
                runner.run(self._send())
        except Exception as error:  # noqa: BLE001 # told by the owner, who starts another one
            self.error = error
        finally:
            with suppress(RuntimeError):  # the owner's loop is closed: it did not wait
                self._owner.call_soon_threadsafe(self._ended.set)

    async def _send(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            if self._stopping:
                return
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            await PulseSender(self._board, self._new_link(), now_s=self._now_s).run()
        finally:
            with self._lock:
                self._cancel = None

    async def stop(self) -> None:
        """End the thread. Returns after ``END_S`` at the latest."""
        with self._lock:
            self._stopping = True
            if self._cancel is not None:
                self._cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._ended.wait()
