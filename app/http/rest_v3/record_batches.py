"""``POST /v3/clusters/{cluster_id}/topics/{topic_name}/records:batch``: some records, and one answer, 207, with a result for each.

The entries have ids of the sender's choice. An entry that cannot be stored does not keep the others from being stored; a body whose
entries cannot be told apart is refused before anything is stored.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.producer import Acknowledged
from app.core.errors import FirnError, LimitExceeded, ProtocolError
from app.core.turns import Portion
from app.http.bodies import JSON_TYPE, IdleSender, Pace, body_chunks
from app.http.body_budget import bytes_of_body, take_body
from app.http.errors import RestError, answer_of
from app.http.json_stream import EntriesSplitter
from app.http.keyed.asked import missing_for_key
from app.http.read_budget import PageBytes
from app.http.record_json import (
    ENTRIES_MAX,
    BatchBody,
    BatchFailure,
    BatchReceipts,
    BatchSuccess,
    PartReceipt,
    SchemaRecord,
    batch_receipts,
    batch_success,
    decode_entry_id,
    part_receipt,
    record_of_entry,
)
from app.http.registry.record_encoding import RecordEncoding
from app.http.rest_v3.keyed_records import Whole, produce_all, stored_whole
from app.http.schemas import ETAG, IDEMPOTENCY_KEY, content_of, request_body
from app.http.schemas import IF_MATCH as IF_MATCH_PARAMETER
from app.http.serving import caller_of, counts_no_more, gateway_of, records_counters

router = APIRouter(tags=["Records (v3)"])

BATCHES: Final = "/v3/clusters/{cluster_id}/topics/{topic_name}/records:batch"
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a body without its Content-Encoding."""
BODIES: Final = (BatchBody, BatchReceipts)


@router.post(
    BATCHES,
    summary="Produce a batch of records",
    status_code=207,
    response_class=Response,
    responses={
        207: {"description": "What became of each entry, by its id.", "content": content_of(BatchReceipts)},
        404: {"description": "Unknown cluster or topic (40403)."},
        409: {
            "description": "A request with the same Idempotency-Key is being served. Retry-After says when to ask again."
        },
        412: {"description": "The partition does not end at the ETag of If-Match.", "headers": {"ETag": ETAG}},
        413: {"description": "The batch is too large."},
        422: {
            "description": "An id is missing, too long or used twice, the batch is empty, or another request had the"
            " Idempotency-Key."
        },
        429: {"description": "The caller has as many keys as the brokers keep for it."},
    },
    openapi_extra=request_body(
        BatchBody,
        {
            "entries": [
                {"id": "1", "value": {"type": "JSON", "data": {"flight": 1545}}},
                {"id": "2", "key": {"type": "STRING", "data": "UA"}, "value": {"type": "STRING", "data": "late"}},
            ]
        },
    )
    | {"parameters": [IDEMPOTENCY_KEY, IF_MATCH_PARAMETER]},
)
async def produce_batch(cluster_id: str, topic_name: str, request: Request) -> Response:
    """Store the entries of a batch."""
    gateway = gateway_of(request)
    await gateway.check_cluster(cluster_id)
    await missing_for_key(request, gateway.topic(topic_name))
    with bytes_of_body(request) as held:
        return await _produce(cluster_id, topic_name, request, held)


async def _produce(cluster_id: str, topic_name: str, request: Request, held: PageBytes) -> Response:
    gateway = gateway_of(request)
    caller = caller_of(request)
    asked = stored_whole(request)
    settings = gateway.settings
    entries = await _read(request, settings.record_bytes_max, settings.body_idle_timeout_ms, held, asked)
    if asked is not None:
        return await produce_all(gateway, asked, cluster_id, topic_name, entries, RecordEncoding(request, topic_name))
    stored_total, failed_total = records_counters(gateway.registry)
    accepted: list[_Accepted] = []
    failures: list[BatchFailure] = []

    def failed(id: str, error: FirnError | RestError) -> None:
        if counts_no_more(caller, error):
            raise error  # the answer is that of a credential that has ended
        if isinstance(error, FirnError):
            gateway.tell(BATCHES, error)
        answer = answer_of(error)
        failures.append(BatchFailure(id, answer.error_code, answer.message))

    encoding = RecordEncoding(request, topic_name)
    portion = Portion()
    for id, data in entries.items():
        await portion.rest_if_spent()
        try:
            record = await record_of_entry(data)
            if isinstance(record, SchemaRecord):
                record = await encoding.encoded(record)
            stored = await gateway.producer.send(
                topic_name,
                record.value.content,
                key=record.key.content,
                headers=record.headers,
                timestamp=record.timestamp,
                partition=record.partition,
            )
        except (FirnError, RestError) as error:
            failed(id, error)
        else:
            accepted.append(_Accepted(id, part_receipt(record.key), part_receipt(record.value), stored))
    successes: list[BatchSuccess] = []
    outcomes = await asyncio.gather(*(one.stored for one in accepted), return_exceptions=True)
    for one, outcome in zip(accepted, outcomes, strict=True):
        if isinstance(outcome, FirnError):
            failed(one.id, outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            successes.append(batch_success(one.id, cluster_id, one.key, one.value, outcome))
    stored_total.value += len(successes)
    failed_total.value += len(failures)
    return Response(batch_receipts(successes, failures), 207, media_type=JSON_TYPE)


class _Accepted(NamedTuple):
    """An entry that the producer took over. The receipt needs only sizes of its content."""

    id: str
    key: PartReceipt | None
    value: PartReceipt | None
    stored: asyncio.Future[Acknowledged]


async def _read(
    request: Request, record_bytes_max: int, idle_timeout_ms: int, held: PageBytes, asked: Whole | None
) -> dict[str, bytes]:
    """The entries of the body by their ids. ``held`` has its bytes. Raises: RestError, ClientLeft."""
    chunks = body_chunks(request.receive, request.headers, Pace(idle_timeout_ms))
    splitter = EntriesSplitter(ENTRIES_MAX, record_bytes_max)
    size = 0
    try:
        async for chunk in chunks if asked is None else asked.fed(chunks):
            size += len(chunk)
            if size > BATCH_BYTES_MAX:
                raise RestError(413, f"The body is larger than {BATCH_BYTES_MAX} bytes.")
            take_body(held, len(chunk))
            splitter.feed(chunk)
        splitter.end()
    except IdleSender:
        raise RestError(408, "The body did not arrive in time.") from None
    except LimitExceeded as error:
        raise RestError(413, str(error)) from None
    except ProtocolError as error:
        raise RestError(400, str(error)) from None
    if not splitter.entries:
        raise RestError(422, "The batch has no entries.")
    entries: dict[str, bytes] = {}
    portion = Portion()
    for data in splitter.entries:
        await portion.rest_if_spent()
        try:
            id = decode_entry_id(data)
        except ProtocolError as error:
            raise RestError(422, str(error)) from None
        if id in entries:
            raise RestError(422, f"Two entries have the id {id!r}. Give each entry an id of its own.")
        entries[id] = data
    return entries
