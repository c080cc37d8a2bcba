"""``POST /v3/clusters/{cluster_id}/topics/{topic_name}/records``: one record or many, one receipt each, in order.

Two tasks share a bounded queue: one reads records and hands them to the producer, the other waits for each to be stored and
writes its receipt. A client that does not read its receipts fills the queue: then no more records are read until it does.

A body of one record is answered with the status of that record, so that ``curl --fail`` works. A stream of records is always
answered 200, and each receipt has its own ``error_code``. Records that were accepted are not taken back if the client leaves.

Tests: ``tests/http/test_application.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive

from app.client.producer import Acknowledged
from app.core.errors import ErrorCode, FirnError, LimitExceeded, ProtocolError, RequestRejected
from app.core.turns import Portion
from app.http.bodies import (
    HELD_BYTES_MAX,
    PIECE_BYTES_MAX,
    ClientLeft,
    Duplex,
    DuplexAnswer,
    IdleSender,
    Pace,
    WholeAnswer,
    body_chunks,
)
from app.http.connections import WHOLE
from app.http.errors import REFUSED, RestAnswer, RestError, answer_of
from app.http.gateway import Gateway
from app.http.json_stream import JsonSplitter
from app.http.keyed.asked import KEY, missing_for_key
from app.http.keyed.if_match import IF_MATCH
from app.http.record_json import (
    LONG_BYTES,
    NewRecord,
    PartReceipt,
    Receipt,
    RecordHeader,
    RecordRequest,
    SchemaRecord,
    decode_record,
    error_receipt,
    part_receipt,
    receipt,
    record_of,
)
from app.http.registry.record_encoding import RecordEncoding
from app.http.rest_v3.keyed_records import produce_one, stored_whole
from app.http.schemas import ETAG, IDEMPOTENCY_KEY, content_of, request_body
from app.http.schemas import IF_MATCH as IF_MATCH_PARAMETER
from app.http.serving import (
    CredentialEnded,
    caller_of,
    counts_no_more,
    gateway_of,
    records_counters,
    while_counts,
)

if TYPE_CHECKING:
    from app.http.callers import HttpCaller

router = APIRouter(tags=["Records (v3)"])

RECORDS: Final = "/v3/clusters/{cluster_id}/topics/{topic_name}/records"
RECEIPTS_JOINED_MAX: Final = 256
"""So many receipts at most are sent together."""
BODIES: Final = (RecordRequest, RecordHeader, Receipt)


class _Accepted(msgspec.Struct):
    """A record that the producer took over with its content. The receipt needs only sizes."""

    key: PartReceipt | None
    value: PartReceipt | None
    stored: asyncio.Future[Acknowledged]


_Told = _Accepted | RestAnswer
"""An accepted record, or the error that refuses it."""
_Outcome = _Told | None
"""None is the end."""


class _Outcomes:
    """The outcomes that one task of a conversation hands to the other, in order. ``asyncio.Queue`` costs several times as much."""

    def __init__(self, ahead_max: int) -> None:
        self._ahead_max = ahead_max
        self._waiting: deque[_Outcome] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None

    @property
    def empty(self) -> bool:
        return not self._waiting

    def put_at_once(self, outcome: _Outcome) -> bool:
        """Hand over an outcome if there is room for it. Returns whether there was."""
        if len(self._waiting) >= self._ahead_max:
            return False
        self._waiting.append(outcome)
        if self._taker is not None:
            _wake(self._taker)
            self._taker = None
        return True

    async def put(self, outcome: _Outcome) -> None:
        """Hand over an outcome, once there is room for it."""
        while not self.put_at_once(outcome):
            self._putter = asyncio.get_running_loop().create_future()
            await self._putter

    async def take(self) -> _Outcome:
        """The next outcome, once there is one."""
        while not self._waiting:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        return self.take_at_once()

    def take_at_once(self) -> _Outcome:
        """The next outcome, which must be there."""
        outcome = self._waiting.popleft()
        if self._putter is not None:
            _wake(self._putter)
            self._putter = None
        return outcome


def _wake(waiter: asyncio.Future[None]) -> None:
    """Wake the task that waits, unless it was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


@router.post(
    RECORDS,
    summary="Produce records",
    response_class=Response,
    responses={
        200: {"description": "One receipt per record, in order.", "content": content_of(Receipt)},
        404: {"description": "Unknown cluster, topic (40403) or partition."},
        409: {
            "description": "A request with the same Idempotency-Key is being served. Retry-After says when to ask again."
        },
        412: {"description": "The partition does not end at the ETag of If-Match.", "headers": {"ETag": ETAG}},
        413: {"description": "A record is too large."},
        422: {"description": "Another request had the Idempotency-Key."},
        429: {"description": "The caller has as many keys as the brokers keep for it."},
    },
    openapi_extra=request_body(
        RecordRequest,
        {"key": {"type": "STRING", "data": "UA"}, "value": {"type": "JSON", "data": {"flight": 1545, "delay": 2}}},
        description="One record, or any number of them one after the other (Concatenated JSON).",
    )
    | {"parameters": [IDEMPOTENCY_KEY, IF_MATCH_PARAMETER]},
)
async def produce(cluster_id: str, topic_name: str, request: Request) -> Response:
    """Store records and answer each with where it is, or why it is not stored."""
    gateway = gateway_of(request)
    await gateway.check_cluster(cluster_id)
    await missing_for_key(request, gateway.topic(topic_name))
    # A sender that announces its length sends all of it before it looks at the answer.
    names = {name for name, _ in request.scope["headers"]}
    if KEY in names or IF_MATCH in names:
        asked = stored_whole(request)
        assert asked is not None
        return await produce_one(request, gateway, asked, cluster_id, topic_name)
    whole = b"content-length" in names
    encoding = RecordEncoding(request, topic_name)
    conversation = _Conversation(
        gateway, caller_of(request), cluster_id, topic_name, request.headers, encoding, whole=whole
    )
    if not whole or b"content-encoding" in names or not request.scope.get(WHOLE):
        return Duplex(conversation.talk)
    message = await request.receive()
    record = _only_record(message, min(PIECE_BYTES_MAX, gateway.settings.record_bytes_max))
    return Duplex(conversation.talk, message) if record is None else await conversation.answer(record)


def _only_record(message: Message, bytes_max: int) -> NewRecord | SchemaRecord | None:
    """The record of a body of at most ``bytes_max`` that has come as a whole, and that has no other; None for all other bodies."""
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max or message.get("more_body", False):
        return None
    try:
        return decode_record(body)
    except ProtocolError:
        return None  # the splitter finds the fault, and the records before it


class _Conversation:
    """One request."""

    def __init__(
        self,
        gateway: Gateway,
        caller: HttpCaller | None,
        cluster_id: str,
        topic: str,
        headers: Headers,
        encoding: RecordEncoding,
        *,
        whole: bool,
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._cluster_id = cluster_id
        self._topic = topic
        self._headers = headers
        self._encoding = encoding
        self._whole = whole
        self._outcomes: _Outcomes
        self._broken = False
        self._stored_total, self._failed_total = records_counters(gateway.registry)

    async def answer(self, record: NewRecord | SchemaRecord) -> Response:
        """Store the only record of a body, without the tasks that many records need."""
        return WholeAnswer(*await self._receipt(self._handed_over(record) or await self._accept(b"", record)))

    async def talk(self, receive: Receive, answer: DuplexAnswer) -> None:
        self._outcomes = _Outcomes(self._gateway.settings.receipts_ahead_max)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(receive, answer))
            try:
                await self._write(answer)
            finally:
                reader.cancel()

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read(self, receive: Receive, answer: DuplexAnswer) -> None:
        splitter = JsonSplitter(self._gateway.settings.record_bytes_max)
        pace = Pace(self._gateway.settings.body_idle_timeout_ms)
        try:
            async with while_counts(self._caller):
                async for chunk in body_chunks(receive, self._headers, pace):
                    if answer.is_full:
                        raise LimitExceeded(
                            f"A client of HTTP/1.0 gets {HELD_BYTES_MAX} bytes of receipts for one request. "
                            "Send the records that have no receipt in another request, or use HTTP/1.1."
                        )
                    try:
                        objects = splitter.feed(chunk)
                    except (ProtocolError, LimitExceeded):
                        await self._accept_all(splitter.taken)
                        raise
                    if objects:
                        await self._accept_all(objects)
                        pace.restart()  # time spent on the broker and the reader of receipts is not the sender's
                splitter.end()
        except CredentialEnded:
            self._broken = True
            await self._outcomes.put(REFUSED)
        except (ProtocolError, LimitExceeded, RestError) as error:
            # Where the next record begins is not known any more, so this is the last receipt.
            self._broken = True
            await self._outcomes.put(answer_of(error))
        except IdleSender:
            self._broken = True
            await self._outcomes.put(RestAnswer(408, 408, "No more of the body came in time."))
        except ClientLeft:
            self._broken = True
        await self._outcomes.put(None)

    async def _accept_all(self, objects: list[bytes]) -> None:
        portion = Portion()
        outcomes = self._outcomes
        for data in objects:
            outcome = self._accept_at_once(data)
            if outcome is None or isinstance(outcome, NewRecord | SchemaRecord):
                outcome = await self._accept(data, outcome)
            if not outcomes.put_at_once(outcome):
                await outcomes.put(outcome)
            if portion.spent_by() if len(data) <= PIECE_BYTES_MAX else portion.spent():
                await portion.rest()

    def _accept_at_once(self, data: bytes) -> _Told | NewRecord | SchemaRecord | None:
        """As ``_accept``, if the record need not wait. Else the record, or None if it is long to read."""
        if len(data) > LONG_BYTES:
            return None
        try:
            record = decode_record(data)
        except FirnError as error:
            return self._answer_of(error)
        return self._handed_over(record) or record

    def _handed_over(self, record: NewRecord | SchemaRecord) -> _Told | None:
        """The outcome of a record that need not wait; None for others."""
        if isinstance(record, SchemaRecord) or record.headers:
            return None
        try:
            return self._sent_at_once(record)
        except FirnError as error:
            return self._answer_of(error)

    def _sent_at_once(self, record: NewRecord) -> _Accepted | None:
        key, value = record.key, record.value
        stored = self._gateway.producer.send_at_once(
            self._topic,
            value.content,
            key=key.content,
            timestamp=record.timestamp,
            partition=record.partition,
        )
        return None if stored is None else _Accepted(part_receipt(key), part_receipt(value), stored)

    async def _accept(self, data: bytes, record: NewRecord | SchemaRecord | None) -> _Told:
        """Hand a record over to the producer. ``record``: the one that ``data`` describes, if it was read before."""
        try:
            if record is None:
                record = await record_of(data)
            if isinstance(record, SchemaRecord):
                record = await self._encoding.encoded(record)
            stored = await self._gateway.producer.send(
                self._topic,
                record.value.content,
                key=record.key.content,
                headers=record.headers,
                timestamp=record.timestamp,
                partition=record.partition,
            )
        except FirnError as error:
            return self._answer_of(error)
        except RestError as error:
            return error.answer
        return _Accepted(part_receipt(record.key), part_receipt(record.value), stored)

    # --- answering ------------------------------------------------------------------------------------------------

    async def _write(self, answer: DuplexAnswer) -> None:
        first = await self._outcomes.take()
        if first is None:
            # No record at all. A client that left will not see this.
            empty = RequestRejected(ErrorCode.INVALID_REQUEST, "The body holds no record.")
            await answer.start(400, close=self._broken)
            await answer.write(error_receipt(answer_of(empty)))
            await answer.finish()
            return
        following = await self._outcomes.take() if self._whole else _PENDING
        status, line = await self._receipt(first)
        alone = following is None
        await answer.start(status if alone else 200, close=alone and self._broken)
        await answer.write(line)
        if not alone:
            await self._write_rest(answer, following)
        await answer.finish()

    async def _write_rest(self, answer: DuplexAnswer, outcome: _Outcome | _Pending) -> None:
        outcomes = self._outcomes
        lines: list[bytes] = []
        while True:
            if isinstance(outcome, _Pending):
                if lines and (outcomes.empty or len(lines) >= RECEIPTS_JOINED_MAX):
                    await answer.write(b"".join(lines))
                    lines.clear()
                outcome = await outcomes.take() if outcomes.empty else outcomes.take_at_once()
            if outcome is None:
                break
            if lines and isinstance(outcome, _Accepted) and not outcome.stored.done():
                # Send finished receipts now: they must not wait for one that is still open.
                await answer.write(b"".join(lines))
                lines.clear()
            line = self._line_at_once(outcome)
            lines.append((await self._receipt(outcome))[1] if line is None else line)
            outcome = _PENDING
        if lines:
            await answer.write(b"".join(lines))

    def _line_at_once(self, outcome: _Told) -> bytes | None:
        """The receipt of a record that is stored; None for any other outcome."""
        if not isinstance(outcome, _Accepted) or not outcome.stored.done() or outcome.stored.exception() is not None:
            return None
        self._stored_total.value += 1
        return receipt(self._cluster_id, outcome.key, outcome.value, outcome.stored.result())

    async def _receipt(self, outcome: _Told | _Pending) -> tuple[int, bytes]:
        """HTTP status and line of an outcome."""
        if isinstance(outcome, _Accepted):
            try:
                stored = await outcome.stored
            except FirnError as error:
                outcome = self._answer_of(error)
            else:
                self._stored_total.value += 1
                return 200, receipt(self._cluster_id, outcome.key, outcome.value, stored)
        assert isinstance(outcome, RestAnswer)
        self._failed_total.value += 1
        return outcome.status, error_receipt(outcome)

    def _answer_of(self, error: FirnError) -> RestAnswer:
        """The receipt of a record that is not known to be stored."""
        if counts_no_more(self._caller, error):
            return REFUSED
        self._gateway.tell(RECORDS, error)
        return answer_of(error)


class _Pending:
    """Stands for an outcome that was not taken from the queue yet."""


_PENDING: Final = _Pending()
