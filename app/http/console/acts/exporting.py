"""The results of a search of messages, as a file of lines of JSON (NDJSON). REST accepts each line as a record.

A file ends at the end offset that the partition had at the request, or at a limit. At a limit, its last line names the next offset
and the reason.
Tests: ``tests/http/console/test_exporting.py``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.consumer import Consumer
from app.core.errors import FirnError
from app.core.limits import KIB, MIB
from app.core.turns import Portion, run
from app.core.units import Offset
from app.http.bodies import Streamed, Write
from app.http.console.pages.messages import asked_in
from app.http.console.pages.topics import found_topic
from app.http.console.records.masks import masked
from app.http.console.records.reading import Browse, fits
from app.http.console.rendering import GUARDED, ConsoleRoute
from app.http.conventions import HEAD
from app.http.errors import REFUSED, RestError, answer_of
from app.http.gateway import Gateway
from app.http.pages import COLD_WAIT_MS, FETCH_WAIT_MS_MAX, batch_records, reader
from app.http.record_rendering import Rendering, shown_steps
from app.http.serving import CredentialEnded, caller_of, counts_no_more, while_counts

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

EXPORT: Final = "/console/topics/{topic_name}/export"
LINES_TYPE: Final = "application/x-ndjson"
EXPORTED_MAX: Final = 100_000
EXPORTED_BYTES_MAX: Final = 64 * MIB
SCANNED_BYTES_MAX: Final = 256 * MIB
PIECE_BYTES: Final = 64 * KIB
"""So many bytes are sent together. One line may pass them."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@router.get(EXPORT)
async def export(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    asked = await asked_in(request, gateway, topic)
    place = f"{asked.partition.partition}-from-{asked.offset}"
    headers = {
        **GUARDED,
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{_UNSAFE.sub("_", topic_name)}-{place}.ndjson"',
    }
    if request.scope.get(HEAD):
        return Response(headers=headers, media_type=LINES_TYPE)
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(reader(gateway, read_committed=True, endless=True))
        consumer.assign({asked.partition: Offset(asked.offset)})
        held = stack.pop_all()
    talk = _talk(request, gateway, consumer, asked.wanted, asked.end)
    return Streamed(talk, held, headers=headers, media_type=LINES_TYPE)


def _last(why: str, offset: int) -> bytes:
    text = f"The file ends before offset {offset}, {why}. Go on from there."
    return msgspec.json.encode({"next_offset": offset, "message": text})


def _talk(
    request: Request, gateway: Gateway, consumer: Consumer, wanted: Browse, end: int
) -> Callable[[Write], Awaitable[None]]:
    caller = caller_of(request)

    async def talk(write: Write) -> None:
        try:
            async with while_counts(caller):
                await _send(gateway, lines(consumer, wanted, end), write)
            return
        except CredentialEnded:
            answer = REFUSED
        except (FirnError, RestError) as error:
            if counts_no_more(caller, error):
                answer = REFUSED
            else:
                if isinstance(error, FirnError):
                    gateway.tell(EXPORT, error)
                answer = answer_of(error)
        await write(answer.body() + b"\n")

    return talk


async def _send(gateway: Gateway, found: AsyncIterator[bytes], write: Write) -> None:
    """Send lines in pieces. The bytes of a piece count until the piece is sent. Raises: RestError 429."""
    budget = gateway.read_budget

    async def send(piece: list[bytes], size: int) -> None:
        if budget.taken and not budget.has(size):
            raise RestError(429, "Other responses hold the memory for records. Try again later.", error_code=42901)
        with budget.page() as held:
            held.take(size)
            await write(b"".join(piece))

    piece: list[bytes] = []
    size = 0
    async for line in found:
        piece += (line, b"\n")
        size += len(line) + 1
        if size >= PIECE_BYTES:
            await send(piece, size)
            piece, size = [], 0
    if piece:
        await send(piece, size)


async def lines(consumer: Consumer, wanted: Browse, end: int) -> AsyncIterator[bytes]:
    """The records of a search below ``end``, as JSON. Raises: RequestRejected, BrokerUnavailable, CorruptionError."""
    loop = asyncio.get_running_loop()
    portion = Portion()
    cold_since_s = loop.time()
    count = exported = scanned = 0
    position = wanted.offset
    wait_ms = 0
    while position < end:
        for batch in await consumer.fetch_once(wanted.partition, max_wait_ms=wait_ms):
            for record in await batch_records(batch, portion):
                if record.offset >= end:
                    return
                position = record.offset
                if count >= EXPORTED_MAX or exported >= EXPORTED_BYTES_MAX or scanned >= SCANNED_BYTES_MAX:
                    yield _last("because a file has a limit of records and bytes", position)
                    return
                size = len(record.key or b"") + len(record.value or b"")
                scanned += size
                shown = record if wanted.mask is None else await run(masked.steps(wanted.mask, record), portion)
                if fits(shown, wanted):
                    steps = shown_steps(shown, wanted.partition.partition, Rendering.AUTO)
                    line = await run(steps, portion)
                    count += 1
                    exported += len(line)
                    yield line
                position = record.offset + 1
                if portion.spent_by() or (size > KIB and portion.spent()):
                    await portion.rest()
        reached = int(consumer.position(wanted.partition))
        if reached > position:
            cold_since_s = loop.time()
        position = max(position, reached)
        visible = consumer.visible_end(wanted.partition)
        if visible is not None and position >= visible:
            return
        if loop.time() - cold_since_s >= COLD_WAIT_MS / 1000:
            yield _last("because its records did not come in time", position)
            return
        wait_ms = FETCH_WAIT_MS_MAX
