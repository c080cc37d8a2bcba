"""Long requests are decoded, served and encoded in portions (INV-15, ADR 0039).

A short request is served within the callback that brought it, and pays nothing for this. A long one is a task. Three things take it
apart:

- its message is decoded, and its response encoded, by generators (``app.wire.compiler``);
- an API whose request is a list of things that do not depend on each other names the list in a ``Split``: the request is served as
  several short requests, one after the other. Each of them is asked for its rights and checked from the start, because other
  requests ran in between;
- other handlers are ``async``, and rest between their own portions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.limits import MIB, RESPONSE_BYTES_MAX
from app.core.turns import PORTION_S, STRIDE, Portion, run
from app.wire.codec import Encoded, decode_request, decode_request_steps, encode_response_steps
from app.wire.framing import frame, framed
from app.wire.header import response_header

if TYPE_CHECKING:
    from app.handlers.base.context import Context
    from app.handlers.base.request import Request

LONG_FRAME_BYTES: Final = 4096
"""A longer request is a task. A shorter one has 2,000 elements at most, and is decoded in 1 ms."""

WHOLE_BYTES_MAX: Final = MIB
"""A longer response is sent in pieces, since it takes long to join and to copy them."""

AT_ONCE: Final = 32
"""Elements of a request that is short."""
SLICE_FIRST: Final = 4
"""Elements of the first piece of a long request, whose names may be long, too. Its CPU time decides the size of the next piece."""
SLICE_MAX: Final = 4096
SLICE_S: Final = PORTION_S / 4
"""CPU time that a short request is to take."""


class Split(NamedTuple):
    """How a request falls into short ones. The answer of each element must not depend on the others."""

    items: str
    """Field of the request with the list."""
    into: str
    """Field of the response with the list of results."""
    inner: str = ""
    """Field of an item with a list of its own, which may be long by itself."""
    inner_into: str = ""
    """Field of a result with the results of ``inner``."""
    names: tuple[str, ...] = ()
    """Fields of an item that identify it; none if the item is its own name."""
    inner_name: str = ""
    """Field that identifies an element of ``inner``; empty if the element is its own name."""
    refuses_repeats: ErrorCode | None = None
    """The error of elements that are named more than once. Without it they are served once."""
    at_once: int = AT_ONCE
    """The most elements of a request that is served at once."""
    writes: bool = False
    """Whether it goes on when its client leaves."""
    keeps_repeats: bool = False
    """Whether elements that are named again are served again, in order."""
    first: int = SLICE_FIRST
    """Elements of the first short request, ``at_once`` at most."""
    slice_s: float = SLICE_S
    """CPU time that a short request is to take."""
    overlaps: bool = False
    """Whether the next short request begins before the last is answered. The handler has done its work when it returns, and the
    awaitable waits for the storage alone."""

    def is_long(self, message: Any) -> bool:
        """Whether a request has more elements than are served at once."""
        return self.count(message) > self.at_once

    def count(self, message: Any) -> int:
        """Elements of a request."""
        items = getattr(message, self.items) or ()
        if not self.inner:
            return len(items)
        return sum([1 + len(getattr(item, self.inner) or ()) for item in items])

    def told_apart(self, message: Any) -> Generator[None, None, tuple[list[Any], list[Any]]]:
        """The items of a request without repeats, and the repeated items, which are refused. Yields after every few elements."""
        seen: set[object] = set()
        twice: set[object] = set()
        for number, (key, element) in enumerate(self._named(message), start=1):
            name = (key, element)
            if name in seen:
                twice.add(name)
            else:
                seen.add(name)
            if number % STRIDE == 0:
                yield
        items: list[Any] = getattr(message, self.items) or []
        if not twice:
            return items, []
        once: list[Any] = []
        refused: list[Any] = []
        told: set[object] = set()
        bare: set[object] = set()
        """Names of items that ask for nothing."""
        for item in items:
            key = self._key(item)
            wanted: list[tuple[object, object]]
            if not self.inner:
                wanted = [(key, None)]
            else:
                wanted = [(key, self._inner_key(element)) for element in getattr(item, self.inner) or ()]
            if not wanted:
                if key not in bare:
                    bare.add(key)
                    once.append(item)
                continue
            kept: list[int] = []
            bad: list[int] = []
            for place, name in enumerate(wanted):
                if place % STRIDE == 0:
                    yield
                if name not in twice:
                    kept.append(place)
                elif name not in told:
                    told.add(name)
                    (kept if self.refuses_repeats is None else bad).append(place)
            for places, into in ((kept, once), (bad, refused)):
                if len(places) == len(wanted) and into is once:
                    into.append(item)
                elif places:
                    into.append(item if not self.inner else self._with(item, places))
        return once, refused

    def _with(self, item: Any, places: list[int]) -> Any:
        elements = getattr(item, self.inner)
        return replace(item, **{self.inner: [elements[place] for place in places]})

    def _named(self, message: Any) -> Iterator[tuple[object, object]]:
        for item in getattr(message, self.items) or ():
            key = self._key(item)
            if not self.inner:
                yield key, None
                continue
            for element in getattr(item, self.inner) or ():
                yield key, self._inner_key(element)

    def _key(self, item: Any) -> object:
        return item if not self.names else tuple([getattr(item, name) for name in self.names])

    def _inner_key(self, element: Any) -> object:
        return getattr(element, self.inner_name) if self.inner_name else element


class _Pieces:
    """Hands out the elements of a request, piece by piece."""

    def __init__(self, split: Split, items: list[Any]) -> None:
        self._split = split
        self._items = items
        self._item = 0
        self._element = 0
        """Elements of the inner list of this item that were handed out."""

    @property
    def left(self) -> bool:
        return self._item < len(self._items)

    def next(self, count: int) -> tuple[list[Any], bool]:
        """About ``count`` elements, at least one.

        Returns: the items, and whether the first of them goes on with the item that was the last before.
        """
        inner, items = self._split.inner, self._items
        if not inner:
            begin = self._item
            self._item = min(begin + max(count, 1), len(items))
            return items[begin : self._item], False
        found: list[Any] = []
        goes_on = self._element > 0
        while self.left and (count > 0 or not found):
            item = items[self._item]
            elements = getattr(item, inner)
            rest = 0 if elements is None else len(elements) - self._element
            taken = min(rest, max(count, 1))
            whole = taken == rest
            if whole and not self._element:
                found.append(item)
            else:
                found.append(replace(item, **{inner: elements[self._element : self._element + taken]}))
            count -= taken + 1
            if whole:
                self._item += 1
                self._element = 0
            else:
                self._element += taken
        return found, goes_on

    def rest(self) -> list[Any]:
        """The items that were not handed out."""
        found = self._items[self._item :]
        if self._element:
            item = found[0]
            found[0] = replace(item, **{self._split.inner: getattr(item, self._split.inner)[self._element :]})
        self._item = len(self._items)
        return found


class _Client:
    """Whether the client of a request has left."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = False

    def cancel(self) -> None:
        self.left = True


Handle = Callable[["Context", "Request", Any], Any]
Refuse = Callable[["Request", Any, ErrorCode, str], Any]


class _Steps:
    """An awaitable that counts the CPU time of its own steps."""

    def __init__(self, inner: Awaitable[Any], now_s: Callable[[], float]) -> None:
        self._inner = inner
        self._now_s = now_s
        self.used_s = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._inner.__await__()
        step: Callable[[Any], Any] = inner.send
        value: Any = None
        while True:
            waits_for = None
            began_s = self._now_s()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value
            finally:
                value = None  # an error holds this frame
                self.used_s += self._now_s() - began_s
            try:
                value = yield waits_for
                step = inner.send
            except BaseException as error:  # noqa: BLE001 (it is the inner one's)
                step, value = inner.throw, error


async def serve_split(
    split: Split, handle: Handle, refuse: Refuse, context: Context, request: Request, message: Any
) -> Any:
    """Serve a long request as several short ones.

    An error of a later piece is told for that piece and all behind it. Raises: FirnError of the first piece, or of a later one if
    the API tells errors only for a request as a whole.
    """
    portion = Portion()
    items: list[Any] = getattr(message, split.items) or []
    repeats: list[Any] = []
    if not split.keeps_repeats:
        items, repeats = await run(split.told_apart(message), portion)
    pieces = _Pieces(split, items)
    response: Any = None
    count = min(split.first, split.at_once)
    later: list[tuple[list[Any], Any, bool]] = []
    """Of a request that overlaps: the items of each piece, its answer or an awaitable of it, whether it continues the last item."""
    client = _Client()
    if not split.writes:
        request.on_close.add(client)
    try:
        while True:
            began_s = portion.now_s()
            items, goes_on = pieces.next(count)
            try:
                answer = handle(context, request, replace(message, **{split.items: items}))
                if split.overlaps:
                    if isinstance(answer, Awaitable):
                        answer = asyncio.ensure_future(answer)
                        answer.add_done_callback(look_at_error)
                elif isinstance(answer, Awaitable):
                    steps = _Steps(answer, portion.now_s)
                    called_s = portion.now_s() - began_s
                    answer = await steps
                    # The time of other work meanwhile is not the cost of this piece.
                    began_s = portion.now_s() - called_s - steps.used_s
            except FirnError as error:
                if response is None and not later:
                    raise
                left = items + pieces.rest()
                answer = refuse(request, replace(message, **{split.items: left}), kafka_code(error), str(error))
                if not getattr(answer, split.into):
                    raise
            if split.overlaps:
                later.append((items, answer, goes_on))
            elif response is None:
                response = answer
                if getattr(response, "error_code", 0):
                    return response
            else:
                _join(split, getattr(response, split.into), getattr(answer, split.into), goes_on)
            if not pieces.left or client.left:
                break
            used_s = portion.now_s() - began_s
            count = SLICE_MAX if used_s <= 0 else max(1, min(SLICE_MAX, 2 * count, int(count * split.slice_s / used_s)))
            if portion.spent():
                await portion.rest()
    finally:
        request.on_close.discard(client)
    for items, answer, goes_on in later:
        try:
            answer = await answer if isinstance(answer, Awaitable) else answer
        except FirnError as error:
            answer = refuse(request, replace(message, **{split.items: items}), kafka_code(error), str(error))
            if not getattr(answer, split.into):
                raise
        if response is None:
            response = answer
        else:
            _join(split, getattr(response, split.into), getattr(answer, split.into), goes_on)
        if portion.spent():
            await portion.rest()
    if repeats:
        code = split.refuses_repeats
        assert code is not None
        sentence = "Each of these is named more than once."
        refused = refuse(request, replace(message, **{split.items: repeats}), code, sentence)
        getattr(response, split.into).extend(getattr(refused, split.into))
    return response


def look_at_error(awaited: asyncio.Future[Any]) -> None:
    """Mark the error of a future as seen. Its caller looks at it, or has left."""
    if not awaited.cancelled():
        awaited.exception()


def _join(split: Split, results: list[Any], more: list[Any], goes_on: bool) -> None:
    if goes_on and more and results and split.inner_into:
        last, first = results[-1], more[0]
        inner = getattr(last, split.inner_into)
        if inner is not None and _same_name(last, first):
            inner.extend(getattr(first, split.inner_into))
            more = more[1:]
    results.extend(more)


def _same_name(one: Any, other: Any) -> bool:
    """Whether two results are of one thing: all their fields but lists are alike."""
    return type(one) is type(other) and all(
        mine == getattr(other, name) for name in one.__slots__ if not isinstance(mine := getattr(one, name), list)
    )


async def decode_long(key: int, version: int, body: bytes) -> Any:
    """As ``decode_request``, in portions. Raises: ProtocolError."""
    if len(body) <= LONG_FRAME_BYTES:
        return decode_request(key, version, body)
    return await run(decode_request_steps(key, version, body))


async def encode_long(request: Request, message: Any) -> bytes | list[bytes]:
    """The frame of a response, encoded in portions; in pieces if it is longer than ``WHOLE_BYTES_MAX``.

    Raises: RequestRejected INVALID_REQUEST if it would be longer than ``RESPONSE_BYTES_MAX``.
    """
    key, version = request.api_key, request.api_version
    header = response_header(request.correlation_id, key, version)
    if type(message) is Encoded:
        pieces = [message.body]
    else:
        pieces = await run(_bounded(encode_response_steps(key, version, message)))
    if sum(map(len, pieces)) <= WHOLE_BYTES_MAX:
        return frame(header, *pieces)
    return framed(header, *pieces)


async def free_long(message: Any) -> None:
    """Free what a long response names, in portions: to free 200,000 objects at once takes 100 ms. The response is empty then."""
    portion = Portion()
    for name in getattr(message, "__slots__", ()):
        if isinstance(value := getattr(message, name), list):
            items = list(value)  # the list itself may be another's
            setattr(message, name, [])
            del value
            while items:
                items.pop()
                if portion.spent_by():
                    await portion.rest()


def _bounded(steps: Generator[int, None, list[bytes]]) -> Generator[None, None, list[bytes]]:
    """Count the bytes of a response that is being encoded. Raises: RequestRejected."""
    size = 0
    try:
        while True:
            try:
                size += next(steps)
            except StopIteration as end:
                pieces: list[bytes] = end.value
                return pieces
            if size > RESPONSE_BYTES_MAX:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"The response would have more than {RESPONSE_BYTES_MAX} bytes. Ask for less at a time.",
                )
            yield
    finally:
        steps.close()


async def as_coroutine(answer: Any) -> Any:
    """The response of a handler, which is awaited if it is not there yet."""
    return await answer if isinstance(answer, Awaitable) else answer
