"""Links between brokers, and from clients to brokers: they delay, lose, double, hold back, and are cut in one direction."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.timeline import Timeline

if TYPE_CHECKING:
    from tests.replication_model.process import Process

DELAY_MS: Final = (1.0, 8.0)
"""Of a message on a quiet link."""
LATE_MS: Final = (200.0, 6000.0)
"""Of a message that is late."""
REFUSED_MS: Final = 2.0


class Refused:
    """Nobody listens at the address."""


REFUSED: Final = Refused()

Reply = Callable[[Any], None]


class Network:
    """Requests and responses between processes. A connection ends with either process."""

    def __init__(self, timeline: Timeline, rng: Random, process_of: Callable[[int], Process | None]) -> None:
        self._timeline = timeline
        self._rng = rng
        self._process_of = process_of
        self.cut: set[tuple[int, int]] = set()
        """Pairs (from, to) that messages do not pass."""
        self.lost_share = 0.0
        self.late_share = 0.0
        self.doubled_share = 0.0
        self._held: list[tuple[tuple[int, int], Callable[[], None]]] = []

    def call(
        self,
        source: Process,
        to: int,
        method: str,
        request: Any,
        on_reply: Reply,
        *,
        timeout_ms: float = 2000.0,
        once: bool = False,
    ) -> None:
        """Call ``method`` of the process that now runs on machine ``to``.

        ``on_reply`` gets the response, ``REFUSED``, or None after the time-out. A late or a doubled response comes too, later,
        unless the caller takes each response ``once``; and a request may arrive twice.
        """
        target = self._process_of(to)
        state = {"replied": False}

        def arrive(response: Any) -> None:
            if not source.alive or (state["replied"] and once):
                return
            state["replied"] = True
            on_reply(response)

        def expire() -> None:
            if not state["replied"]:
                state["replied"] = True
                on_reply(None)

        def reply(response: Any) -> None:
            self._send(to, source.node_id, lambda: source.post(arrive, response), doubles=not once)

        if target is None:
            if (source.node_id, to) not in self.cut:
                self._timeline.after(REFUSED_MS, source.post, arrive, REFUSED)
        else:
            self._send(source.node_id, to, lambda: target.post(target.serve, method, request, reply), doubles=not once)
        source.after(timeout_ms, expire)

    def client_call(self, to: int, method: str, request: Any, on_reply: Reply) -> None:
        """The same by a client, which no cut concerns. Its requests are never doubled."""
        target = self._process_of(to)
        delay_ms = self._rng.uniform(*DELAY_MS)
        if target is None:
            self._timeline.after(delay_ms, on_reply, REFUSED)
            return

        def reply(response: Any) -> None:
            self._timeline.after(self._rng.uniform(*DELAY_MS), on_reply, response)

        self._timeline.after(delay_ms, target.post, target.serve, method, request, reply)

    def heal(self) -> None:
        """Every link works, and carries what was held back."""
        self.cut.clear()
        self.lost_share = self.late_share = self.doubled_share = 0.0
        self.release()

    def release(self) -> None:
        """Deliver what was held back by cuts that are over."""
        held, self._held = self._held, []
        for link, deliver in held:
            if link in self.cut:
                self._held.append((link, deliver))
            else:
                self._timeline.after(self._rng.uniform(*DELAY_MS), deliver)

    def _send(self, source: int, to: int, deliver: Callable[[], None], *, doubles: bool) -> None:
        rng = self._rng
        if (source, to) in self.cut:
            if rng.random() < 0.5:  # in a socket's buffer: it arrives if the connection lives so long
                self._held.append(((source, to), deliver))
            return
        if self.lost_share and rng.random() < self.lost_share:
            return
        delay_ms = rng.uniform(*DELAY_MS)
        if self.late_share and rng.random() < self.late_share:
            delay_ms = rng.uniform(*LATE_MS)
        self._timeline.after(delay_ms, deliver)
        if doubles and self.doubled_share and rng.random() < self.doubled_share:
            self._timeline.after(delay_ms + rng.uniform(*LATE_MS), deliver)
