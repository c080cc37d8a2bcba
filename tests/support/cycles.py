"""What only a garbage collection takes away: errors that hold frames that hold them."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

from app.core.errors import FirnError


async def kept_in_cycles(work: Callable[[], Awaitable[object]]) -> list[str]:
    """Errors of Firn's tree that ``work`` leaves in cycles with frames that they hold.

    It is done twice: what the first time makes may stay.
    """
    await work()
    gc.collect()
    enabled, debug = gc.isenabled(), gc.get_debug()
    gc.disable()
    try:
        await work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [repr(one) for one in gc.garbage if isinstance(one, FirnError) and one.__traceback__]
    finally:
        gc.set_debug(debug)
        gc.garbage.clear()
        if enabled:
            gc.enable()
