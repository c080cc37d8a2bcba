"""New messages for the script of the tab of messages: server-sent events, each with rows of the page's table.

A stream takes one of its caller's places for endless reads (``Lanes``). It ends with the session or the credential, or after
``rows`` rows. A stream that would show more than ``ROWS_A_SECOND``, or filter more than ``BYTES_A_SECOND``, skips to near the
partition's end. It then says how many records it has skipped.

Tests: ``tests/http/console/test_following.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import TopicView
from app.client.consumer import Consumer
from app.core.errors import FirnError
from app.core.limits import KIB, MIB
from app.core.turns import Portion
from app.core.units import Offset
from app.http.bodies import Streamed, Write
from app.http.console.pages.messages import OFFSET_MAX, asked_in
from app.http.console.pages.topics import found_topic, number_in
from app.http.console.records.decoding import Decoding
from app.http.console.records.reading import FILTERED_HEADERS_MAX, MANY_HEADERS, Browse, shown_if_fits
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of, session_of
from app.http.conventions import HEAD
from app.http.errors import REFUSED, RestError, answer_of
from app.http.gateway import Gateway
from app.http.pages import FETCH_WAIT_MS_MAX, batch_records, reader
from app.http.serving import CredentialEnded, caller_of, counts_no_more, while_counts
from app.records.record import Record

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

FOLLOW: Final = "/console/topics/{topic_name}/follow"
EVENTS_TYPE: Final = "text/event-stream"
WINDOW_S: Final = 1.0
ROWS_A_SECOND: Final = 200
"""Rows within ``WINDOW_S``."""
BYTES_A_SECOND: Final = 8 * MIB
"""Bytes of records that are looked at within ``WINDOW_S``. One record may pass them."""
RECORD_BYTES: Final = 100
"""Added to the bytes of each record and header: the work for an empty one."""
NEAR_THE_END: Final = 50
"""Offsets before the end at which a stream that has fallen behind goes on."""
ROWS_MAX: Final = 100_000
"""Of a stream that says how many it wants."""
ALIVE_S: Final = 15.0
SILENT_S: Final = 30.0
"""A registry that did not respond is not asked for so long."""
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
    after = request.headers.get("last-event-id") or request.query_params.get("after", "")
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


class Pace:
    """The rows and bytes of a stream within the present window of ``WINDOW_S``. Pure."""

    def __init__(self) -> None:
        self._since_s = -WINDOW_S
        self._rows = 0
        self._bytes = 0

    def begin(self, now_s: float) -> None:
        """Begin another window, if the present one is over."""
        if now_s - self._since_s >= WINDOW_S:
            self._since_s, self._rows, self._bytes = now_s, 0, 0

    @property
    def is_full(self) -> bool:
        """Whether the window has room for no more records."""
        return self._rows >= ROWS_A_SECOND or self._bytes >= BYTES_A_SECOND

    def looked_at(self, record: Record) -> None:
        headers = islice(record.headers, FILTERED_HEADERS_MAX)
        content = len(record.key or b"") + len(record.value or b"") + sum(len(value or b"") for _, value in headers)
        self._bytes += content + RECORD_BYTES * (1 + len(record.headers))

    def shown(self) -> None:
        self._rows += 1

    def left_s(self, now_s: float) -> float:
        """Seconds until the window is over."""
        return max(0.0, self._since_s + WINDOW_S - now_s)


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
        self._decoding = Decoding(request)
        self._pace = Pace()

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
        """Whether the session of the stream is still live. This check does not count as a use of the session."""
        session = session_of(self._request)
        return session is None or console_of(self._request).sessions.is_live(session)

    async def _send(self, write: Write) -> bool:
        """Send rows until the session ends, or until all requested rows are sent. Returns: whether all were sent.

        Raises: RequestRejected, BrokerUnavailable, CorruptionError.
        """
        row = (await console_of(self._request).environment()).get_template("message_row.html")
        loop = asyncio.get_running_loop()
        partition = self._wanted.partition
        said_s = loop.time()
        sent = 0
        await write(b":\n\n")
        while self._counts():
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
                await asyncio.sleep(self._pace.left_s(loop.time()))
            elif loop.time() - said_s >= ALIVE_S:
                await write(b":\n\n")
                said_s = loop.time()
        return False

    def _decoding_at(self, now_s: float) -> Decoding:
        """For the next rows. After the registry was silent, it is not asked again for ``SILENT_S``."""
        silent_since_s = self._decoding.silent_since_s
        if silent_since_s is None or now_s - silent_since_s >= SILENT_S:
            self._decoding = Decoding(self._request)
        return self._decoding

    async def _round(self, row: Any) -> tuple[list[str], int | None, int | None]:
        """The rows of one request to the broker, the offset of the last one, and of the first record that is too much."""
        partition = self._wanted.partition
        decoding = self._decoding_at(asyncio.get_running_loop().time())
        rows: list[str] = []
        last = None
        batches = await self._consumer.fetch_once(partition, max_wait_ms=FETCH_WAIT_MS_MAX)
        self._pace.begin(asyncio.get_running_loop().time())
        for batch in batches:
            for record in await batch_records(batch, self._portion):
                if self._pace.is_full:
                    return rows, last, int(record.offset)
                self._pace.looked_at(record)
                shown = await shown_if_fits(record, self._wanted, decoding, self._portion)
                if shown is not None:
                    self._pace.shown()
                    rows.append(row.render(one=shown, topic=self._topic, partition=partition.partition))
                    last = int(record.offset)
                is_long = len(record.value or b"") > KIB or len(record.headers) > MANY_HEADERS
                if self._portion.spent() if shown is not None or is_long else self._portion.spent_by():
                    await self._portion.rest()
        return rows, last, None
