"""Errors of uvloop's TLS that are no bug of ours, for exception handlers of event loops.

Tests: ``tests/broker/test_faults.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from traceback import walk_tb
from typing import Any, Final

from app.core.faults import place_of

UVLOOP_TLS_FAILED: Final = frozenset(("Fatal error on SSL protocol", "Error occurred during shutdown"))
"""The messages of uvloop for errors of its TLS: of an open connection, and of one that is being closed."""
UVLOOP_TLS: Final = "(sslproto.pyx:"
"""A part of ``place_of`` for these errors."""
UVLOOP_CLOSED: Final = "UVHandle._ensure_alive (handle.pyx:"
"""A part of ``place_of`` for the error of an operation on a closed connection."""
UVLOOP_FILES: Final = "uvloop/"


def came_too_late(context: Mapping[str, Any]) -> bool:
    """Whether TLS failed in uvloop (0.23) after its owner has given the connection up: such an error is no bug of ours.

    There are two cases. Bytes are left for a connection that has ended; its owner is told of the end in any case. Or a handshake
    fails that the client has given up. ``context`` is that of an exception handler.
    """
    error = context.get("exception")
    if context.get("message") in UVLOOP_TLS_FAILED:
        transport = context.get("transport")
        return isinstance(error, RuntimeError) and transport is not None and (transport.is_closing() or _closed(error))
    nobody_waits = isinstance(context.get("future"), asyncio.Future)
    return nobody_waits and isinstance(error, OSError) and UVLOOP_TLS in place_of(error)


def _closed(error: RuntimeError) -> bool:
    """Whether uvloop itself wrote to a connection that it had closed.

    A busy process may meet the end of a handshake and the time limit of the attempt in one turn of its loop. Then uvloop closes the
    connection at once, without ever calling it closing, and after that writes the last bytes of the handshake.
    """
    ours = any(not frame.f_code.co_filename.startswith(UVLOOP_FILES) for frame, _ in walk_tb(error.__traceback__))
    return UVLOOP_CLOSED in place_of(error) and not ours
