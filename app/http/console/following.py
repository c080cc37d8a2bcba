"""Messages as they come, for the script of the tab of messages: server-sent events, each with rows of the page's table.

A stream has one of the places for endless reads of its caller (``Lanes``). It ends with the session or the credential, and with
``rows`` after so many rows. A partition that is written faster than ``ROWS_A_SECOND`` is not shown whole: the stream goes on near
the end, and says how much it has left out.

Tests: ``tests/http/console/test_following.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import TopicView
from app.client.consumer import Consumer
from app.core.errors import FirnError
from app.core.limits import KIB
from app.core.turns import Portion
from app.core.units import Offset
from app.http.bodies import Streamed, Write
from app.http.console.decoding import Decoding
from app.http.console.messages import OFFSET_MAX, asked_in
from app.http.console.reading import MANY_HEADERS, Browse, shown_if_fits
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of, session_of
from app.http.console.topics import found_topic, number_in
from app.http.conventions import HEAD
from app.http.errors import REFUSED, RestError, answer_of
from app.http.gateway import Gateway
from app.http.pages import FETCH_WAIT_MS_MAX, batch_records, reader
from app.http.serving import CredentialEnded, caller_of, counts_no_more, while_counts

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

FOLLOW: Final = "/console/topics/{topic_name}/follow"
EVENTS_TYPE: Final = "text/event-stream"
ROWS_A_SECOND: Final = 200
NEAR_THE_END: Final = 50
"""Offsets before the end at which a stream that has fallen behind goes on."""
ROWS_MAX: Final = 100_000
"""Of a stream that says how many it wants."""
ALIVE_S: Final = 15.0
_DONE: Final = "These are all rows that were asked for."
_SESSION_ENDED: Final = "Your session has ended. Log in again."


@router.get(FOLLOW)
async def follow(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    asked = await asked_in(request, gateway, topic)
    rows_max = number_in(request, "rows", 0, ROWS_MAX)
    headers = {**GUARDED, "cache-control": "no-store"}
    if request.scope.get(HEAD):
        return Response(headers=headers, media_type=EVENTS_TYPE)
    offset = asked.offset
    after = request.headers.get("last-event-id", "")
    if after.isascii() and after.isdecimal() and len(after) < 20 and int(after) < OFFSET_MAX:
        offset = min(max(int(after) + 1, asked.first), asked.end)
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(reader(gateway, read_committed=True, endless=True))
        consumer.assign({asked.partition: Offset(offset)})
        held = stack.pop_all()
    following = _Following(request, gateway, topic, consumer, asked.wanted, rows_max)
    return Streamed(following.talk, held, headers=headers, media_type=EVENTS_TYPE)


def event(text: str, *, name: str = "", offset: int | None = None) -> bytes:
    """A server-sent event. ``offset``: of the last record in it."""
    pieces = [f"event: {name}\n" if name else "", f"id: {offset}\n" if offset is not None else ""]
    pieces += [f"data: {line}\n" for line in text.replace("\r", "\n").split("\n")]
    return "".join((*pieces, "\n")).encode()


class _Following:
    """One stream."""

    def __init__(
        self, request: Request, gateway: Gateway, topic: TopicView, consumer: Consumer, wanted: Browse, rows_max: int
    ) -> None:
        self._request = request
        self._gateway = gateway
        self._topic = topic
        self._consumer = consumer
        self._wanted = wanted
        self._rows_max = rows_max
        """0 for a stream without an end."""
        self._portion = Portion()

    @property
    def talk(self) -> Callable[[Write], Awaitable[None]]:
        return self._talk

    async def _talk(self, write: Write) -> None:
        caller = caller_of(self._request)
        try:
            async with while_counts(caller):
                done = await self._send(write)
            message = _DONE if done else _SESSION_ENDED
        except CredentialEnded:
            message = REFUSED.message
        except (FirnError, RestError) as error:
            if counts_no_more(caller, error):
                message = REFUSED.message
            else:
                if isinstance(error, FirnError):
                    self._gateway.tell(FOLLOW, error)
                message = answer_of(error).message
        await write(event(message, name="ended"))

    def _counts(self) -> bool:
        """Whether the session of the stream is still there. A stream is no use of it."""
        session = session_of(self._request)
        return session is None or console_of(self._request).sessions.is_live(session)

    async def _send(self, write: Write) -> bool:
        """Send rows until the session has ended, or until all are sent that were wanted. Returns: whether they were.

        Raises: RequestRejected, BrokerUnavailable, CorruptionError.
        """
        row = (await console_of(self._request).environment()).get_template("message_row.html")
        loop = asyncio.get_running_loop()
        partition = self._wanted.partition
        said_s = loop.time()
        sent = 0
        await write(b":\n\n")
        while self._counts():
            began_s = loop.time()
            rows, last, unshown = await self._round(row)
            if not self._counts():
                return False
            if rows:
                await write(event("".join(rows), offset=last))
                said_s = loop.time()
                sent += len(rows)
                if self._rows_max and sent >= self._rows_max:
                    return True
            if unshown is not None:
                end = self._consumer.visible_end(partition)
                goes_on = unshown if end is None else max(unshown, int(end) - NEAR_THE_END)
                self._consumer.seek(partition, Offset(goes_on))
                if goes_on > unshown:
                    await write(event(f"{goes_on - unshown:,}", name="left-out"))
                await asyncio.sleep(max(0.0, began_s + 1.0 - loop.time()))
            elif loop.time() - said_s >= ALIVE_S:
                await write(b":\n\n")
                said_s = loop.time()
        return False

    async def _round(self, row: Any) -> tuple[list[str], int | None, int | None]:
        """The rows of one request to the broker, the offset of the last one, and the first one that is too many."""
        partition = self._wanted.partition
        decoding = Decoding(self._request)
        rows: list[str] = []
        last = None
        for batch in await self._consumer.fetch_once(partition, max_wait_ms=FETCH_WAIT_MS_MAX):
            for record in await batch_records(batch, self._portion):
                shown = await shown_if_fits(record, self._wanted, decoding, self._portion)
                if shown is not None:
                    if len(rows) >= ROWS_A_SECOND:
                        return rows, last, int(record.offset)
                    rows.append(row.render(one=shown, topic=self._topic, partition=partition.partition))
                    last = int(record.offset)
                is_long = len(record.value or b"") > KIB or len(record.headers) > MANY_HEADERS
                if self._portion.spent() if shown is not None or is_long else self._portion.spent_by():
                    await self._portion.rest()
        return rows, last, None
