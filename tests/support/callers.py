"""A caller for handlers that a test calls without a connection."""

from __future__ import annotations

from typing import Final

from app.handlers.callers import ANONYMOUS, Caller, Rights

RIGHTS: Final = Rights(ANONYMOUS)
SOMEBODY: Final = Caller(RIGHTS, host="127.0.0.1", port=50_000)
