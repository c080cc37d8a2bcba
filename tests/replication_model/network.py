"""Requests and responses between brokers, and from clients to brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.links import Links
from tests.sim.timeline import Timeline

if TYPE_CHECKING:
    from tests.replication_model.process import Process

REFUSED_MS: Final = 2.0


class Refused:
    """Nobody listens at the address."""


REFUSED: Final = Refused()

Reply = Callable[[Any], None]


class Network(Links):
    """Requests and responses between processes. A connection ends with either process."""

    def __init__(self, timeline: Timeline, rng: Random, process_of: Callable[[int], Process | None]) -> None:
        super().__init__(timeline, rng)
        self._process_of = process_of

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
            self.send(to, source.node_id, lambda: source.post(arrive, response), doubles=not once)

        if target is None:
            if not self.is_cut(source.node_id, to):
                self.timeline.after(REFUSED_MS, source.post, arrive, REFUSED)
        else:
            self.send(source.node_id, to, lambda: target.post(target.serve, method, request, reply), doubles=not once)
        source.after(timeout_ms, expire)

    def client_call(self, to: int, method: str, request: Any, on_reply: Reply) -> None:
        """The same by a client, which no cut concerns. Its requests are never doubled."""
        target = self._process_of(to)
        delay_ms = self.rng.uniform(*self.delay_ms)
        if target is None:
            self.timeline.after(delay_ms, on_reply, REFUSED)
            return

        def reply(response: Any) -> None:
            self.timeline.after(self.rng.uniform(*self.delay_ms), on_reply, response)

        self.timeline.after(delay_ms, target.post, target.serve, method, request, reply)
