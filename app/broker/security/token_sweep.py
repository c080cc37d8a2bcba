"""Removes delegation tokens that have ended, on the active controller (ADR 0035). Before that, they are refused already.

Tests: ``tests/broker/test_delegation_tokens.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.core.errors import FirnError
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import Clock
from app.metadata.changes import token_changes
from app.metadata.controller.controller import Controller
from app.metadata.view.view import ClusterView

MS_PER_S = 1000


async def sweep_tokens(
    view: ClusterView,
    controller: Controller,
    *,
    interval_ms: int,
    clock: Clock,
    faults: Faults,
    log_line: Callable[[str], None],
) -> None:
    """Sweep every ``interval_ms`` until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / MS_PER_S)
        if not controller.active or not any(one.has_ended(clock.now_ms()) for one in view.image.tokens.values()):
            continue
        count = 0
        try:
            while swept := await controller.submit(token_changes.sweep_tokens):
                count += len(swept)
        except FirnError as error:
            faults.met_error("sweeping", "delegation tokens", error)  # the next sweep finds the remaining ones
            continue
        faults.over("sweeping", "delegation tokens")
        if count:
            log_line(Event.TOKENS_REMOVED.line(f"{count} delegation tokens had ended and were removed", tokens=count))
