"""A server and the requests that wait in it."""

from __future__ import annotations

import warnings
from typing import Any, cast

from tests.handlers.fakes import Bench


async def test_a_request_that_is_dropped_before_its_first_step_leaves_no_coroutine_behind() -> None:
    async def answer() -> None: ...

    async def finish(work: Any) -> None:
        await work

    bench = Bench()
    server = bench.server
    server.attach()
    inner = answer()
    server.spawn(finish(inner), cast(Any, None), inner)
    await server.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del inner  # a coroutine that was neither awaited nor closed complains here
