"""Shared by all requests that change the cluster: many changes at once, one answer for each.

The controller gets the changes of a request together, so that it can make one entry of them. Then it makes them whether or not
the client still waits, as in Kafka. So the time-out of a request does not end the wait. The controller's own deadline does (30 s
for a store that does not answer).

Tests: ``tests/handlers/test_admin_topics.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from app.core.errors import ErrorCode, FencedError, FirnError, LimitExceeded, StorageUnavailable, kafka_code
from app.core.turns import STRIDE, Steps

T = TypeVar("T")
R = TypeVar("R")

CHANGES_AT_ONCE_MAX: Final = 100
"""Changes of one request that wait at the controller at a time."""


class Refusal(NamedTuple):
    """Why a change was not made, or not known to be."""

    code: ErrorCode
    sentence: str


def refusal(error: FirnError) -> Refusal:
    """How a failed change is told to its client."""
    match error:
        case FencedError():
            return Refusal(ErrorCode.NOT_CONTROLLER, str(error))
        case StorageUnavailable() | LimitExceeded():
            # It may have been made, or may be made later: the client asks again, and is then told.
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
        case _:
            return Refusal(kafka_code(error), str(error))


async def each(
    items: Sequence[T],
    change: Callable[[T], Awaitable[R]],
    *,
    refuse: Callable[[FirnError], Refusal] = refusal,
) -> list[R | Refusal]:
    """Call ``change`` for every item, many at a time. Returns the answers in order, with a refusal where a change failed."""

    async def one(item: T) -> R | Refusal:
        try:
            return await change(item)
        except FirnError as error:
            return refuse(error)

    answers: list[R | Refusal] = []
    for start in range(0, len(items), CHANGES_AT_ONCE_MAX):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items[start : start + CHANGES_AT_ONCE_MAX]]
        answers += [task.result() for task in tasks]
    return answers


def repeated(keys: Iterable[T]) -> Steps[set[T]]:
    """Keys that are there more than once, in steps."""
    seen: set[T] = set()
    twice: set[T] = set()
    for number, key in enumerate(keys, start=1):
        if key in seen:
            twice.add(key)
        else:
            seen.add(key)
        if number % STRIDE == 0:
            yield
    return twice
