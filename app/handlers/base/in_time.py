"""Changes of the cluster are refused in a sentence that names the object store, if the store is away.

Each of them is an entry of the cluster log, which is in the store. Otherwise a client waits until its own time is up, and does not
learn why.

Tests: ``tests/broker/test_health.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, Final

from app.core.errors import ErrorCode, RequestRejected
from app.handlers.base.api import Api
from app.handlers.base.context import Context
from app.handlers.base.request import Request

LOOK_S: Final = 0.25
"""How often a change that is under way looks at the store's state."""


def in_time(api: Api) -> Api:
    """The same API, refused with REQUEST_TIMED_OUT while the store does not respond."""

    def handle(context: Context, request: Request, message: Any) -> Any:
        if context.store_trouble is None:
            return api.handle(context, request, message)
        trouble = context.store_trouble()
        if trouble:
            raise _refusal(f"{trouble} Nothing was changed. Try again when it responds.")
        answer = api.handle(context, request, message)
        return _watched(context, answer) if isawaitable(answer) else answer

    return api._replace(handle=handle)


async def _watched(context: Context, answer: Awaitable[Any]) -> Any:
    """Raises: RequestRejected REQUEST_TIMED_OUT once the store is away; it is not known then whether the change is made."""
    assert context.store_trouble is not None
    work = asyncio.ensure_future(answer)
    try:
        while True:
            done, _ = await asyncio.wait([work], timeout=LOOK_S)
            if done:
                return work.result()
            trouble = context.store_trouble()
            if trouble:
                raise _refusal(f"{trouble} The change may be made when it responds.")
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait([work])


def _refusal(sentence: str) -> RequestRejected:
    return RequestRejected(ErrorCode.REQUEST_TIMED_OUT, sentence)
