"""Decides whether responses may leave. Responses are held back while another broker may have replaced this one.

A produced record is acknowledged when the local disk has it. No write to the store is part of that, so the seal of a successor
does not stop it. A broker that may have been replaced without noticing therefore reads the cluster log first (ADR 0018). There are
two reasons to suspect a replacement: the event loop stood still (by a clock that counts suspended time), or a request said so.

The check comes just before a connection writes its responses. The records that they acknowledge were appended before it. A pause
after the check delays an acknowledgement as a slow network would.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from app.core.errors import CorruptionError, StorageUnavailable
from app.core.log_events import Event
from app.core.seams import shared_wait_s
from app.metadata.peers.place import STOOD_STILL_S

TICK_S: Final = STOOD_STILL_S / 6
LOOK_AGAIN_S: Final = 0.5
TOLD_INTERVAL_S: Final = 2.0
"""Least time between two such messages that this broker heeds. A forged one costs it a LIST, and time."""


class AcknowledgementGate:
    """The gate of one broker. ``run`` must be running. Writers of responses first ask ``boot_s() > sure_until_s and holds(…)``."""

    __slots__ = (
        "_doubts",
        "_lets_out",
        "_log_line",
        "_open_calls",
        "_ticked_s",
        "_told_s",
        "_wake",
        "boot_s",
        "sure_until_s",
    )

    def __init__(
        self, boot_s: Callable[[], float] = lambda: 0.0, log_line: Callable[[str], None] = lambda line: None
    ) -> None:
        """``boot_s``: seconds since any moment, suspended time included. The default is for a broker that cannot be replaced."""
        self.boot_s = boot_s
        self.sure_until_s = boot_s() + STOOD_STILL_S
        """Responses may leave until this time. In doubt it is minus infinity."""
        self._ticked_s = boot_s()
        self._log_line = log_line
        self._wake = asyncio.Event()
        self._doubts = 0
        """Reasons for doubt so far: a look counts only if none came while it was made."""
        self._told_s = -math.inf
        self._lets_out: object = None
        self._open_calls: list[Callable[[], None]] = []

    @property
    def shut(self) -> bool:
        """Whether responses are held back."""
        return self.sure_until_s == -math.inf

    def on_open(self, call: Callable[[], None]) -> None:
        """Call it whenever responses may leave again."""
        self._open_calls.append(call)

    def holds(self, connection: object) -> bool:
        """Whether responses must wait, once ``boot_s() > sure_until_s``. ``connection`` identifies the caller."""
        if not self.shut:
            self._note_stall(self.boot_s())
        if self._lets_out is connection:
            self._lets_out = None
            return False
        return True

    def tick(self) -> None:
        """The loop runs."""
        now_s = self.boot_s()
        if now_s - self._ticked_s > STOOD_STILL_S:
            self._note_stall(now_s)
        self._ticked_s = now_s
        if not self.shut:
            self.sure_until_s = now_s + STOOD_STILL_S

    def be_told(self, connection: object) -> bool:
        """A request says that this broker was replaced. Returns whether the broker reads the cluster log before its next response.

        The response to this message itself may leave. The caller sends it within the same callback of ``connection``.
        """
        now_s = self.boot_s()
        if now_s - self._told_s < TOLD_INTERVAL_S:
            return False
        self._told_s = now_s
        self._doubt()
        self._lets_out = connection
        return True

    def _note_stall(self, now_s: float) -> None:
        self._log_line(
            Event.BROKER_STANDSTILL.line(
                f"this broker stood still for {now_s - self._ticked_s:.1f} s: it answers when the cluster log says that nobody has"
                " taken its place"
            )
        )
        self._ticked_s = now_s
        self._doubt()

    def _doubt(self) -> None:
        self._doubts += 1
        self.sure_until_s = -math.inf
        self._wake.set()

    async def run(self, look: Callable[[], Awaitable[None]]) -> None:
        """Watch the time. In doubt, ``look`` whether this broker still has its place. Raises: FencedError, as ``look``."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.keep_ticking())
            group.create_task(self._look_forever(look))

    async def keep_ticking(self) -> None:
        """Only watch the time, for a broker that serves nothing yet. Runs until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(shared_wait_s(asyncio.get_running_loop().time(), TICK_S))

    async def _look_forever(self, look: Callable[[], Awaitable[None]]) -> None:
        told = False
        while True:
            await self._wake.wait()
            doubts = self._doubts
            try:
                await look()
            except (StorageUnavailable, CorruptionError) as error:
                if not told:
                    self._log_line(
                        Event.BROKER_ANSWERS_HELD.line(
                            f"answers are held back, because the cluster log cannot be read: {error}"
                        )
                    )
                told = True
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if self.boot_s() - self._ticked_s > STOOD_STILL_S:
                self._note_stall(self.boot_s())  # during the look: the log may have been read before the stall
            if doubts == self._doubts:
                if told:
                    self._log_line(
                        Event.BROKER_ANSWERS_RESUMED.line(
                            "the cluster log can be read again; this broker has its place, and answers"
                        )
                    )
                told = False
                self._open()

    def _open(self) -> None:
        self._wake.clear()
        self._lets_out = None
        self._ticked_s = self.boot_s()
        self.sure_until_s = self._ticked_s + STOOD_STILL_S
        for call in self._open_calls:
            call()
