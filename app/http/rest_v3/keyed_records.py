"""Records with an `Idempotency-Key`, an `If-Match` or both (ADR 0043): one record, or a batch, all or none.

The first answer of a keyed request and the answer of a repeat are made by the same functions from the result and the request, so
they are the same bytes. Tests: ``tests/http/keyed/test_keyed_requests.py``, ``tests/http/keyed/test_if_match.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from fastapi import Request
from starlette.responses import Response

from app.client.conditional_appends import SeenEnd
from app.client.producer import Acknowledged
from app.core.errors import FirnError, LimitExceeded, ProtocolError, clause
from app.core.turns import Portion
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.exactly_once.records import Result
from app.http.bodies import JSON_TYPE, IdleSender, Pace, WholeAnswer, body_chunks
from app.http.body_budget import bytes_of_body, take_body
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.json_stream import JsonSplitter
from app.http.keyed.asked import KEY, KeyedRecord, KeyedRequest, keyed
from app.http.keyed.if_match import IF_MATCH, append, one_partition, seen_end
from app.http.read_budget import PageBytes
from app.http.record_json import (
    NewRecord,
    SchemaRecord,
    batch_receipts,
    batch_success,
    part_receipt,
    receipt,
    record_of,
    record_of_entry,
)
from app.http.registry.record_encoding import RecordEncoding
from app.http.serving import records_counters

ONE: Final = "A request with {} has one record. Send several with records:batch, or streams without this header."


class Whole(NamedTuple):
    """How a request is stored whole. At least one is there."""

    keyed: KeyedRequest | None
    seen: SeenEnd | None

    @property
    def header(self) -> str:
        return "an If-Match" if self.keyed is None else "an Idempotency-Key"

    def fed(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks of the body as they come; the digest of a keyed request takes them in."""
        return chunks if self.keyed is None else self.keyed.fed(chunks)


def stored_whole(request: Request) -> Whole | None:
    """The headers by which a request is stored whole; None if it has none of them. Raises: RestError 400."""
    names = {name for name, _ in request.scope["headers"]}
    if KEY not in names and IF_MATCH not in names:
        return None
    return Whole(keyed(request), seen_end(request))


async def produce_one(request: Request, gateway: Gateway, asked: Whole, cluster_id: str, topic: str) -> Response:
    """Store the only record of a body. Raises: RestError, FirnError."""
    with bytes_of_body(request) as held:
        data = await _only_record(request, gateway, asked, held)
        record = await _encoded(await record_of(data), RecordEncoding(request, topic), asked)
        (stored,), headers = await _stored(gateway, asked, topic, [record], 200)
    content = receipt(cluster_id, part_receipt(record.key), part_receipt(record.value), stored)
    answer = WholeAnswer(200, content)
    answer.headers.update(headers)
    return answer


async def produce_all(
    gateway: Gateway,
    asked: Whole,
    cluster_id: str,
    topic: str,
    entries: Mapping[str, bytes],
    encoding: RecordEncoding,
) -> Response:
    """Store all entries of a batch, or none. Raises: RestError, FirnError."""
    portion = Portion()
    records: list[NewRecord] = []
    for id, data in entries.items():
        await portion.rest_if_spent()
        try:
            records.append(await _encoded(await record_of_entry(data), encoding, asked))
        except (ProtocolError, RestError) as error:
            status = error.answer.status if isinstance(error, RestError) else 400
            raise RestError(
                status, f"The entry {id!r} is refused, and with {asked.header} the whole batch is: {clause(error)}."
            ) from None
    acknowledged, headers = await _stored(gateway, asked, topic, records, 207)
    successes = []
    for id, record, stored in zip(entries, records, acknowledged, strict=True):
        await portion.rest_if_spent()
        successes.append(batch_success(id, cluster_id, part_receipt(record.key), part_receipt(record.value), stored))
    return Response(batch_receipts(successes, []), 207, headers, media_type=JSON_TYPE)


async def _encoded(record: NewRecord | SchemaRecord, encoding: RecordEncoding, asked: Whole) -> NewRecord:
    """A record with the bytes of its key and value. Raises: RestError, FirnError."""
    if isinstance(record, NewRecord):
        return record
    if asked.keyed is not None and any(part is not None and part.id is None for part in (record.key, record.value)):
        # The newest version of a subject may be another one for a repeat, and its answer would differ.
        raise RestError(422, "With an Idempotency-Key, name each schema by its schema_id.")
    return await encoding.encoded(record)


async def _only_record(request: Request, gateway: Gateway, asked: Whole, held: PageBytes) -> bytes:
    """The record of a body that has no other. ``held`` has its bytes. Raises: RestError 400, 408, 413, 415, 429; ClientLeft."""
    splitter = JsonSplitter(gateway.settings.record_bytes_max)
    found: list[bytes] = []
    pace = Pace(gateway.settings.body_idle_timeout_ms)
    try:
        async for chunk in asked.fed(body_chunks(request.receive, request.headers, pace)):
            take_body(held, len(chunk))
            found += splitter.feed(chunk)
            if len(found) > 1:
                raise RestError(400, ONE.format(asked.header))
        splitter.end()
    except IdleSender:
        raise RestError(408, "The body did not arrive in time.") from None
    except LimitExceeded as error:
        raise RestError(413, str(error)) from None
    except ProtocolError as error:
        raise RestError(400, str(error)) from None
    if not found:
        raise RestError(400, "The body holds no record.", error_code=40002)
    return found[0]


async def _stored(
    gateway: Gateway, asked: Whole, topic: str, records: Sequence[NewRecord], status: int
) -> tuple[list[Acknowledged], dict[str, str]]:
    """Where each record is, and headers of the answer. Raises: RestError, FirnError."""
    stored_total, failed_total = records_counters(gateway.registry)
    rows = [
        KeyedRecord(one.partition, one.key.content, one.value.content, one.headers, one.timestamp) for one in records
    ]
    headers: dict[str, str] = {}
    try:
        if asked.seen is not None:
            one_partition(topic, rows)
        if asked.keyed is not None:
            key, digest = asked.keyed.key, asked.keyed.digest.digest()
            result = await gateway.keyed.produce(key, digest, topic, rows, status, asked.seen)
            acknowledged = _acknowledged(result, records)
        else:
            assert asked.seen is not None
            acknowledged, etag = await append(gateway.conditional, topic, asked.seen, rows, gateway.now_ms())
            headers["etag"] = etag
    except (RestError, FirnError):
        failed_total.value += len(rows)
        raise
    stored_total.value += len(rows)
    return acknowledged, headers


def _acknowledged(result: Result, records: Sequence[NewRecord]) -> list[Acknowledged]:
    """Where each record of a request is. The request has the digest of the result, and so the same records."""
    found = []
    for record, (part, offset) in zip(records, result.offsets(), strict=True):
        timestamp = result.filled_ms if record.timestamp is None else record.timestamp
        if part.log_append_ms >= 0:
            timestamp = part.log_append_ms
        partition = TopicPartition(part.topic, PartitionIndex(part.partition))
        found.append(Acknowledged(partition, Offset(offset), TimestampMs(timestamp)))
    return found
