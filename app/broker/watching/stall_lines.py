"""Joins the watch over the event loop to a broker: its metrics, its log lines, and the request that the server serves.

Tests: ``tests/broker/test_loop_watch.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from app.broker.watching.loop_watch import LoopWatch, Serving, Stall, sentence_of
from app.core.faults import Faults
from app.core.metrics import Registry
from app.handlers.clients.serving import in_words
from app.handlers.serving.server import KafkaServer
from app.handlers.serving.session import SERVING


def watch_stalls(limit_ms: int, registry: Registry, faults: Faults, server: KafkaServer) -> LoopWatch | None:
    """Watch the running loop until the watch is stopped. ``limit_ms``: a shorter stall is not told; without a limit (0) there is
    no watch."""
    if not limit_ms:
        return None
    stalls = registry.counter(
        "firn_loop_stalls_total", "Times that the event loop stood still for longer than firn.loop.stall.ms."
    )
    seconds = registry.counter("firn_loop_stalled_seconds_total", "Time of these stalls together.")

    def tell(stall: Stall) -> None:
        stalls.value += 1
        seconds.value += stall.wall_s
        faults.met("a turn of the event loop with", stall.api, sentence_of(stall))

    def serving() -> Serving | None:
        found = in_words(server.serving)
        return None if found is None else Serving(*found)

    def rests(rouse: Callable[[], None] | None) -> None:
        server.rouse = rouse

    watch = LoopWatch(limit_ms / 1000, serving=serving, codes=SERVING, tell=tell, rests=rests)
    watch.start()
    return watch
