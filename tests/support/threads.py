"""Work of an event loop in a thread of its own, beside a test that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class LoopThread:
    """Runs a coroutine in a loop of its own. Its failure is raised by whoever asks."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``work`` is begun at once, in the thread."""
        self._work = work
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._failed = error
            raise

    def check(self) -> None:
        """Raises: AssertionError, if the work has failed."""
        assert self._failed is None, self._failed

    def join(self, wait_s: float) -> None:
        """Wait for its end. A second call does nothing."""
        self._thread.join(wait_s)
        assert not self._thread.is_alive()
