"""Requests of pages to brokers: sent side by side, each with a time limit.

A request that changes something has the same limit. If it may have been sent, the page says that its outcome is not known.

A broker may accept connections and never respond. A page then leaves out the part that only this broker knows, and names the
broker. ``PATIENCE_S`` and ``BROKER_S`` together are less than 2 s.

Tests: ``tests/http/console/test_silent_brokers.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, clause
from app.core.units import BrokerId
from app.http import gateway as gateways
from app.http.gateway import Gateway

T = TypeVar("T")

BROKER_S: Final = 1.5
"""How long a page waits for a broker."""
MARGIN_S: Final = 0.02
"""Added to ``PATIENCE_S``, so that ``ClusterClient`` counts the first question as late."""
ANY_S: Final = 5.0
"""How long a page waits for any broker at all."""
NOTHING_SENT: Final = "Nothing was sent, so nothing has changed."
_going_on: Final[set[asyncio.Future[Any]]] = set()
"""Work that no page waits for any more."""


@dataclass(slots=True)
class Told(Generic[T]):
    """The responses of some brokers."""

    answers: dict[BrokerId, T] = field(default_factory=dict)
    silent: list[BrokerId] = field(default_factory=list)
    """Brokers that did not respond in time, or cannot be reached."""


async def of_broker(
    gateway: Gateway, node_id: BrokerId, ask: Callable[[KafkaConnection], Awaitable[T]], *, within_s: float = 0.0
) -> T:
    """The response of one broker, within ``BROKER_S`` unless there is another limit. Raises: BrokerUnavailable, which names the
    broker; as ``ask``."""
    limit_s = within_s or BROKER_S
    try:
        async with asyncio.timeout(limit_s):
            return await ask(await gateway.cluster.broker(node_id))
    except TimeoutError:
        raise BrokerUnavailable(
            f"Broker {node_id} did not respond within {limit_s:g} s. Look at it with `firn cluster brokers`."
        ) from None


async def changed_by(
    gateway: Gateway, node_id: BrokerId, ask: Callable[[KafkaConnection], Awaitable[T]], *, unknown: str
) -> T:
    """As ``of_broker``, for a request that changes something. The error says whether the change may have been made; ``unknown`` is
    its sentence if the request may have been sent. Raises: as ``of_broker``."""
    began = False

    async def asked(connection: KafkaConnection) -> T:
        nonlocal began
        began = True
        return await ask(connection)

    try:
        return await of_broker(gateway, node_id, asked)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(_and(error, unknown if began else NOTHING_SENT)) from None


def _and(error: BrokerUnavailable, sentence: str) -> str:
    return f"{clause(error)}. {sentence}"


async def side_by_side(
    gateway: Gateway, brokers: Collection[BrokerId], ask: Callable[[BrokerId, KafkaConnection], Awaitable[T]]
) -> Told[T]:
    """The responses of some brokers, which are asked at the same time. Raises: as ``ask``, without BrokerUnavailable."""
    told: Told[T] = Told()

    async def one(node_id: BrokerId) -> None:
        try:
            told.answers[node_id] = await of_broker(gateway, node_id, lambda connection: ask(node_id, connection))
        except BrokerUnavailable:
            told.silent.append(node_id)

    await together(*map(one, brokers))
    told.silent.sort()
    return told


async def together(*work: Awaitable[T]) -> list[T]:
    """The results of some work that is done at the same time. The first error cancels the rest. Raises: as the work that failed
    first."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _ended(tasks)


async def soon(gateway: Gateway, ask: Callable[[], Awaitable[T]]) -> T:
    """The response to a short question that any broker can answer.

    If there is none within ``PATIENCE_S``, the question is put once more, and ``ClusterClient`` puts it to another broker. Later
    questions to any broker go there, too. Raises: BrokerUnavailable; as ``ask``.
    """
    tasks = [asyncio.ensure_future(ask())]
    try:
        async with asyncio.timeout(ANY_S):
            done, _ = await asyncio.wait(tasks, timeout=gateways.PATIENCE_S + MARGIN_S)
            if not done:
                tasks.append(asyncio.ensure_future(ask()))
            return await _first_success(tasks)
    except TimeoutError:
        raise BrokerUnavailable(f"No broker responded within {ANY_S:g} s. Try again later.") from None
    finally:
        await _ended(tasks)


async def in_time(work: Awaitable[T], name: str) -> T:
    """The result of some work, within ``ANY_S``. Work that takes longer goes on for the next page, because it may be most of a long
    read. ``name``: of the work's subject, with a capital letter. Raises: BrokerUnavailable; as ``work``."""
    task = asyncio.ensure_future(work)
    _going_on.add(task)
    task.add_done_callback(_ended_alone)
    done, _ = await asyncio.wait([task], timeout=ANY_S)
    if not done:
        raise BrokerUnavailable(f"{name} was not read within {ANY_S:g} s. Try again later.")
    return task.result()


def _ended_alone(task: asyncio.Future[Any]) -> None:
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()  # the next page meets it, too


async def _first_success(tasks: Sequence[asyncio.Future[T]]) -> T:
    """Raises: as the first task, if all fail."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task.result()
    return tasks[0].result()


async def _ended(tasks: Sequence[asyncio.Future[T]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
