"""The time of the running event loop: monotonic, and virtual in the simulation."""

from __future__ import annotations

import asyncio


def loop_time_s() -> float:
    """Seconds. Raises: RuntimeError outside a running loop."""
    return asyncio.get_running_loop().time()


def loop_time_ms() -> int:
    """Whole milliseconds, for timers. Raises: RuntimeError outside a running loop."""
    # A millisecond that came by a division is not whole any more: without the addend it would be the one before for ever.
    return int(asyncio.get_running_loop().time() * 1000 + 1e-6)
