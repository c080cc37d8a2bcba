"""Records with an `Idempotency-Key`, an `If-Match` or both (ADR 0043): one record, or a batch, all or none.

The first answer of a keyed request and the answer of a repeat are made by the same functions from the result and the request, so
they are the same bytes. Tests: ``tests/http/keyed/test_keyed_requests.py``, ``tests/http/keyed/test_if_match.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from fastapi import Request
from starlette.responses import Response

from app.client.conditional_appends import SeenEnd
from app.client.producer import Acknowledged
from app.core.errors import CorruptionError, FirnError, LimitExceeded, ProtocolError, clause
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
    Part,
    PartReceipt,
    SchemaPart,
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
    encoding = RecordEncoding(request, topic)
    with bytes_of_body(request) as held:
        original = await record_of(await _only_record(request, gateway, asked, held))

        async def encode() -> list[NewRecord]:
            return [await _encoded(original, encoding, asked)]

        stored, headers = await _stored(gateway, asked, topic, [original], encode, 200)
    ((where, key, value),) = stored
    answer = WholeAnswer(200, receipt(cluster_id, key, value, where))
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
    originals: list[NewRecord | SchemaRecord] = []
    for id, data in entries.items():
        await portion.rest_if_spent()
        try:
            originals.append(await record_of_entry(data))
        except ProtocolError as error:
            raise _refused(id, asked, error, 400) from None

    async def encode() -> list[NewRecord]:
        records = []
        for id, original in zip(entries, originals, strict=True):
            await portion.rest_if_spent()
            try:
                records.append(await _encoded(original, encoding, asked))
            except RestError as error:
                raise _refused(id, asked, error, error.answer.status) from None
        return records

    stored, headers = await _stored(gateway, asked, topic, originals, encode, 207)
    successes = []
    for id, (where, key, value) in zip(entries, stored, strict=True):
        await portion.rest_if_spent()
        successes.append(batch_success(id, cluster_id, key, value, where))
    return Response(batch_receipts(successes, []), 207, headers, media_type=JSON_TYPE)


def _refused(id: str, asked: Whole, error: Exception, status: int) -> RestError:
    return RestError(
        status, f"The entry {id!r} is refused, and with {asked.header} the whole batch is: {clause(error)}."
    )


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


class _StoredRecord(NamedTuple):
    """A record of a request, as its receipt names it."""

    where: Acknowledged
    key: PartReceipt | None
    value: PartReceipt | None


async def _stored(
    gateway: Gateway,
    asked: Whole,
    topic: str,
    originals: Sequence[NewRecord | SchemaRecord],
    encode: Callable[[], Awaitable[list[NewRecord]]],
    status: int,
) -> tuple[list[_StoredRecord], dict[str, str]]:
    """Where each record is, and headers of the answer. A repeat whose records cannot be encoded any more, because a schema was
    deleted, gets its stored answer, too. Raises: RestError, FirnError."""
    try:
        records = await encode()
    except (RestError, FirnError):
        result = await _known(gateway, asked, originals)
        if result is None:
            raise
        plain = [one if isinstance(one, NewRecord) else one.record for one in originals]
        return _with_receipts(originals, plain, _acknowledged(result, plain), result.answer), {}
    stored_total, failed_total = records_counters(gateway.registry)
    rows = [
        KeyedRecord(one.partition, one.key.content, one.value.content, one.headers, one.timestamp) for one in records
    ]
    headers: dict[str, str] = {}
    answer = b""
    try:
        if asked.seen is not None:
            one_partition(topic, rows)
        if asked.keyed is not None:
            key, digest = asked.keyed.key, asked.keyed.digest.digest()
            schemas = packed_schemas(originals, records)
            result = await gateway.keyed.produce(key, digest, topic, rows, status, asked.seen, schemas)
            acknowledged, answer = _acknowledged(result, records), result.answer
        else:
            assert asked.seen is not None
            acknowledged, headers["etag"] = await append(gateway.conditional, topic, asked.seen, rows, gateway.now_ms())
    except (RestError, FirnError):
        failed_total.value += len(rows)
        raise
    stored_total.value += len(rows)
    return _with_receipts(originals, records, acknowledged, answer), headers


async def _known(gateway: Gateway, asked: Whole, originals: Sequence[NewRecord | SchemaRecord]) -> Result | None:
    """The stored result of a request with schemas, if it suffices for the answer."""
    if asked.keyed is None or all(isinstance(one, NewRecord) for one in originals):
        return None
    result = await gateway.keyed.known(asked.keyed.key, asked.keyed.digest.digest())
    return result if result is not None and result.answer else None


def packed_schemas(originals: Sequence[NewRecord | SchemaRecord], records: Sequence[NewRecord]) -> bytes:
    """Type, schema and size of each part that a schema encodes, as ``Result.answer`` has them.

    They are a list of types and schemas, and for each part, in order and keys first, its place in the list and its size. Empty if
    there is no such part.
    """
    places: dict[tuple[str, str | None, int, int | None], int] = {}
    parts: list[tuple[int, int]] = []
    for original, record in zip(originals, records, strict=True):
        if isinstance(original, SchemaRecord):
            for wanted, part in ((original.key, record.key), (original.value, record.value)):
                if wanted is not None:
                    assert part.schema is not None
                    assert part.content is not None
                    named = (part.type, part.schema.subject, part.schema.id, part.schema.version)
                    parts.append((places.setdefault(named, len(places)), len(part.content)))
    return msgspec.msgpack.encode(([*places], parts)) if parts else b""


_SCHEMAS: Final = msgspec.msgpack.Decoder(tuple[list[tuple[str, str | None, int, int | None]], list[tuple[int, int]]])


def _part_receipt(kind: str, subject: str | None, schema_id: int, version: int | None, size: int) -> PartReceipt:
    return PartReceipt(kind, size, subject, schema_id, version)


def _with_receipts(
    originals: Sequence[NewRecord | SchemaRecord],
    records: Sequence[NewRecord],
    acknowledged: Sequence[Acknowledged],
    answer: bytes,
) -> list[_StoredRecord]:
    """Parts with a schema as ``answer`` has them, so that each repeat names the same schemas; without it, as they are now."""
    try:
        named, parts = _SCHEMAS.decode(answer) if answer else ([], [])
        receipts = [_part_receipt(*named[place], size) for place, size in parts]
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptionError(f"The stored result of the key cannot be read: {clause(error)}.") from None
    left = iter(receipts)

    def of(wanted: SchemaPart | None, part: Part) -> PartReceipt | None:
        if wanted is None or not answer:
            return part_receipt(part)
        found = next(left, None)
        if found is None:
            raise CorruptionError("The stored result of the key has too few schemas.")
        return found

    stored = []
    for original, record, where in zip(originals, records, acknowledged, strict=True):
        key, value = (original.key, original.value) if isinstance(original, SchemaRecord) else (None, None)
        stored.append(_StoredRecord(where, of(key, record.key), of(value, record.value)))
    return stored


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
