"""Requests to other brokers, one at a time to each. Items that come meanwhile go together in the next request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, copy_of

if TYPE_CHECKING:
    from app.metadata.image.image import BrokerImage, ClusterImage

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 1_000
"""Items of one request."""
WAITING_MAX: Final = 100_000
"""Items that wait for one broker."""


class _Box(Generic[T, R]):
    """The items of the request under way to one broker, and those that wait for the next."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.sent: list[tuple[T, asyncio.Future[R]]] = []
        self.waiting: deque[tuple[T, asyncio.Future[R]]] = deque()


class Outbox(Generic[T, R]):
    """Belongs to one event loop. Keep ``run`` running."""

    def __init__(
        self,
        send: Callable[[BrokerImage, Sequence[T]], Awaitable[Sequence[R]]],
        image: Callable[[], ClusterImage],
    ) -> None:
        """``send`` returns one answer for each item, in order. It raises FirnError if there are none."""
        self._send = send
        self._image = image
        self._boxes: dict[int, _Box[T, R]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def put(self, to: int, item: T) -> asyncio.Future[R]:
        """Send an item to a broker. The future raises FirnError if there is no answer; the item may have been carried out.

        Raises: RequestRejected COORDINATOR_NOT_AVAILABLE, with nothing sent.
        """
        if self._tasks is None:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, "This broker is starting or stopping.")
        box = self._boxes.get(to)
        if box is None:
            box = self._boxes[to] = _Box()
            self._tasks.create_task(self._serve(to, box))
        if len(box.waiting) >= WAITING_MAX:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Too much waits for broker {to}.")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        box.waiting.append((item, answer))
        return answer

    def follow(self, image: ClusterImage) -> None:
        """Fail the items for brokers that are fenced or gone: other brokers have their partitions, or will have them."""
        for to, box in self._boxes.items():
            broker = image.brokers.get(to)
            if broker is None or broker.fenced:
                error = BrokerUnavailable(f"Broker {to} is not alive.")
                _refuse(box.sent, error)
                _refuse(box.waiting, error)
                box.waiting.clear()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    async def _serve(self, to: int, box: _Box[T, R]) -> None:
        try:
            while box.waiting:
                await self._exchange(to, box)
        finally:
            del self._boxes[to]
            _refuse((*box.sent, *box.waiting), BrokerUnavailable(f"Broker {to} is not asked any more."))

    async def _exchange(self, to: int, box: _Box[T, R]) -> None:
        box.sent = some = [box.waiting.popleft() for _ in range(min(len(box.waiting), AT_ONCE))]
        broker = self._image().brokers.get(to)
        if broker is None:
            _refuse(some, BrokerUnavailable(f"Broker {to} is not registered."))
            return
        try:
            answers = await self._send(broker, [item for item, _ in some])
        except FirnError as error:
            _refuse(some, error)
            return
        for (_, future), answer in zip(some, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _refuse(some: Sequence[tuple[T, asyncio.Future[R]]] | deque[tuple[T, asyncio.Future[R]]], error: FirnError) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(copy_of(error))
            future.exception()  # a caller that was cancelled will not look at it
