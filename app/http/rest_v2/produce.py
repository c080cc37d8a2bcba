"""``POST /topics/{topic}`` and ``POST /topics/{topic}/partitions/{partition}``: records, and one result for each.

All keys and values are converted before anything is sent to a broker. So if one record cannot be converted, none of the request is
stored. Records that the broker refuses have an error each.

Tests: ``tests/http/rest_v2/test_produce.py``, ``tests/http/rest_v2/test_produce_with_schemas.py``,
``tests/http/keyed/test_keyed_requests.py``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.producer import Acknowledged
from app.core.errors import (
    CorruptionError,
    ErrorCode,
    FirnError,
    LimitExceeded,
    ProtocolError,
    RequestRejected,
    clause,
)
from app.core.limits import MIB
from app.core.turns import Portion
from app.exactly_once.records import Result
from app.http.bodies import PIECE_BYTES_MAX, decoded, whole_body
from app.http.body_budget import bytes_of_body
from app.http.consumers.settings import Format
from app.http.errors import NO_STORE, RestAnswer, RestError
from app.http.gateway import RECORD_BYTES_MAX, Gateway
from app.http.json_stream import JsonSplitter
from app.http.keyed.asked import KeyedRecord, KeyedRequest, keyed, missing_for_key
from app.http.keyed.if_match import IF_MATCH
from app.http.read_budget import PageBytes
from app.http.registry.record_schemas import RecordSchemas
from app.http.rest_v2.answers import MEDIA, PARTITION_NOT_FOUND, V2Route, answer_v2, responses_of
from app.http.rest_v2.forms import SCHEMA_TYPES, SchemaAsked, content_of, schema_of
from app.http.rest_v2.media import embedded_type, format_of
from app.http.rest_v2.topics import found_partition
from app.http.schemas import IDEMPOTENCY_KEY, reference
from app.http.serving import caller_of, counts_no_more, gateway_of, records_counters

router = APIRouter(tags=["Records (v2)"], default_response_class=Response, route_class=V2Route)

BODY_BYTES_MAX: Final = RECORD_BYTES_MAX
RECORDS_MAX: Final = 10_000
DIGEST_BYTES_AT_ONCE: Final = MIB
"""SHA-256 takes about 2 ms for them."""
Kind = TypeVar("Kind", bound=msgspec.Struct)
_RECORDS: Final = {"type": "array", "items": {"$ref": "#/components/schemas/ProducedRecord"}, "minItems": 1}
_ANY: Final = "Any JSON of the embedded format; base64 for binary."


class PlacedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record for the partition of the path."""

    key: Annotated[msgspec.Raw, msgspec.Meta(description=_ANY)] | msgspec.UnsetType = msgspec.UNSET
    value: Annotated[msgspec.Raw, msgspec.Meta(description=_ANY)] | msgspec.UnsetType = msgspec.UNSET


class ProducedRecord(PlacedRecord, forbid_unknown_fields=True):
    """A record for a topic."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class ProduceBody(msgspec.Struct, forbid_unknown_fields=True):
    """Records, with the schemas of their keys and values for formats that have schemas."""

    records: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_RECORDS)]
    key_schema: str | None = None
    key_schema_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    value_schema: str | None = None
    value_schema_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class RecordResult(msgspec.Struct):
    """Where a record is, or why it is not stored."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class ProduceResults(msgspec.Struct):
    """One result for each record, in order."""

    offsets: list[RecordResult]
    key_schema_id: int | None
    value_schema_id: int | None


BODIES: Final = (ProduceBody, ProducedRecord, ProduceResults)
_EXAMPLES: Final = {
    Format.BINARY: {"records": [{"key": "VUE=", "value": "bGF0ZQ=="}, {"value": "b24gdGltZQ=="}]},
    Format.JSON: {"records": [{"key": "UA", "value": {"flight": 1545, "delay": 2}}]},
    Format.AVRO: {
        "value_schema": '{"type":"record","name":"Flight","fields":[{"name":"number","type":"int"}]}',
        "records": [{"value": {"number": 1545}}],
    },
    Format.JSON_SCHEMA: {
        "value_schema": '{"type":"object","properties":{"number":{"type":"integer"}}}',
        "records": [{"value": {"number": 1545}}],
    },
    Format.PROTOBUF: {
        "value_schema": 'syntax = "proto3"; message Flight { int32 number = 1; }',
        "records": [{"value": {"number": 1545}}],
    },
}


def _described(example_of: str) -> dict[str, Any]:
    content = {
        embedded_type(form): {"schema": reference(ProduceBody), "example": example}
        for form, example in _EXAMPLES.items()
    }
    body = {"required": True, "description": example_of, "content": content}
    return {"requestBody": body, "parameters": [IDEMPOTENCY_KEY]}


_RESPONSES: Final = {
    **responses_of(ProduceResults, "What became of each record, in order."),
    400: {"description": "The request has an If-Match, or an Idempotency-Key that is not of the right form."},
    404: {"description": "The topic (40401) or the partition (40402) does not exist."},
    408: {"description": "A schema cannot be found or registered (40801)."},
    409: {
        "description": "A request with the same Idempotency-Key is being served. Retry-After says when to ask again."
    },
    415: {"description": "The Content-Type names no format of REST v2."},
    422: {"description": "A schema is missing (42201, 42202) or wrong (42205), or a record does not fit it (42203)."},
}


@router.post(
    "/topics/{topic_name}",
    summary="Produce records to a topic",
    responses=_RESPONSES,
    openapi_extra=_described("Records for partitions by their keys, or as each says."),
)
async def produce(topic_name: str, request: Request) -> Response:
    """Store records in the partitions of their keys, or in those that they name."""
    _refuse_condition(request)
    gateway = gateway_of(request)
    missing = await missing_for_key(request, gateway.topic(topic_name))
    return await _produce(request, gateway, topic_name, None, missing)


@router.post(
    "/topics/{topic_name}/partitions/{partition_id}",
    summary="Produce records to a partition",
    responses=_RESPONSES,
    openapi_extra=_described("Records for the partition of the path."),
)
async def produce_to_partition(topic_name: str, partition_id: int, request: Request) -> Response:
    """Store records in one partition."""
    _refuse_condition(request)
    gateway = gateway_of(request)
    missing = await missing_for_key(request, found_partition(gateway, topic_name, partition_id))
    return await _produce(request, gateway, topic_name, partition_id, missing)


def _refuse_condition(request: Request) -> None:
    """Raises: RestError 400 for a request with an If-Match. No answer of REST v2 has an ETag, and records must not be stored
    without their condition."""
    if any(name == IF_MATCH for name, _ in request.scope["headers"]):
        raise RestError(
            400, "REST v2 takes no If-Match, and nothing was stored. Produce with REST v3 to set a condition."
        )


class _Converted(NamedTuple):
    partition: int | None
    key: bytes | None
    value: bytes | None


async def _produce(
    request: Request,
    gateway: Gateway,
    topic: str,
    partition: int | None,
    missing: RequestRejected | RestError | None,
) -> Response:
    """``missing``: the error of a request with a key whose topic or partition does not exist."""
    with bytes_of_body(request) as held:
        return await _produce_body(request, gateway, topic, partition, missing, held)


async def _produce_body(
    request: Request,
    gateway: Gateway,
    topic: str,
    partition: int | None,
    missing: RequestRejected | RestError | None,
    held: PageBytes,
) -> Response:
    form = format_of(request.headers.get("content-type", "")) or Format.BINARY
    timeout_ms = gateway.settings.body_idle_timeout_ms
    asked = keyed(request)
    raw = await whole_body(request, bytes_max=BODY_BYTES_MAX, idle_timeout_ms=timeout_ms, held=held)
    portion = Portion()
    if asked is not None:
        for start in range(0, len(raw), DIGEST_BYTES_AT_ONCE):
            asked.digest.feed(bytes(raw[start : start + DIGEST_BYTES_AT_ONCE]))
            await portion.rest_if_spent()
        if missing is not None or form in SCHEMA_TYPES:  # before a schema is looked for or registered
            known = await gateway.keyed.known(asked.key, asked.digest.digest())
            if known is None and missing is not None:
                raise missing
            if known is not None and known.answer:
                return _answered(request, _results_of(known), *_ids_of(known.answer))
    body = decoded(raw, ProduceBody)
    await portion.rest()
    objects = await _split(bytes(body.records), portion)
    schemas = RecordSchemas(request)
    key_schema = value_schema = None
    if form in SCHEMA_TYPES:
        key_schema = await schema_of(schemas, topic, form, SchemaAsked("key", body.key_schema_id, body.key_schema))
        value_schema = await schema_of(
            schemas, topic, form, SchemaAsked("value", body.value_schema_id, body.value_schema)
        )
    converted: list[_Converted] = []
    for index, data in enumerate(objects):
        await portion.rest_if_spent()
        record = _record(data, index, placed=partition is not None)
        key, value = (b"null" if raw is msgspec.UNSET else bytes(raw) for raw in (record.key, record.value))
        named = record.partition if isinstance(record, ProducedRecord) else partition
        converted.append(
            _Converted(
                named,
                await content_of(form, "key", index, key, key_schema, schemas, portion),
                await content_of(form, "value", index, value, value_schema, schemas, portion),
            )
        )
    ids = [None if schema is None else schema.id for schema in (key_schema, value_schema)]
    if asked is None:
        results, status = await _send(request, gateway, topic, converted, portion)
        return _answered(request, results, *ids, status=status)
    answer = msgspec.msgpack.encode(ids) if form in SCHEMA_TYPES else b""
    return _answered(request, await _send_keyed(gateway, asked, topic, converted, answer), *ids)


def _answered(
    request: Request, results: list[RecordResult], key_id: int | None, value_id: int | None, *, status: int = 200
) -> Response:
    content = msgspec.json.encode(ProduceResults(results, key_id, value_id))
    return Response(content, status, headers=NO_STORE, media_type=request.scope[MEDIA])


def _results_of(stored: Result) -> list[RecordResult]:
    return [RecordResult(part.partition, offset) for part, offset in stored.offsets()]


def _ids_of(answer: bytes) -> tuple[int | None, int | None]:
    """The ids of the schemas of keys and values that ``Result.answer`` has, so that each repeat tells the same ones."""
    try:
        return msgspec.msgpack.decode(answer, type=tuple[int | None, int | None])
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"The stored result of the key cannot be read: {clause(error)}.") from None


async def _split(records: bytes, portion: Portion) -> list[bytes]:
    """The objects of an array. Raises: RestError 413, 422."""
    if not records.startswith(b"["):
        raise RestError(422, "The field records must be an array with at least one record.")
    splitter = JsonSplitter(RECORD_BYTES_MAX, separated=True)
    found: list[bytes] = []
    try:
        for start in range(1, len(records), PIECE_BYTES_MAX):
            found += splitter.feed(records[start : start + PIECE_BYTES_MAX])
            if len(found) > RECORDS_MAX:
                raise RestError(413, f"A request has at most {RECORDS_MAX} records. Send more requests.")
            await portion.rest_if_spent()
        splitter.end()
    except (ProtocolError, LimitExceeded) as error:
        raise RestError(422, str(error)) from None
    if not found:
        raise RestError(422, "The field records is empty. Send at least one record.")
    return found


def _record(data: bytes, index: int, *, placed: bool) -> PlacedRecord:
    """Raises: RestError 422."""
    kind = PlacedRecord if placed else ProducedRecord
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(422, f"Record {index} is not of the right form: {str(error)[:300]}.") from None


async def _send(
    request: Request, gateway: Gateway, topic: str, records: list[_Converted], portion: Portion
) -> tuple[list[RecordResult], int]:
    """Send records. Returns: their results, and the HTTP status. Raises: FirnError, if the caller's credential counts no more."""
    caller = caller_of(request)
    outcomes: list[asyncio.Future[Acknowledged] | FirnError] = []
    for record in records:
        await portion.rest_if_spent()
        try:
            outcomes.append(
                await gateway.producer.send(topic, record.value, key=record.key, partition=record.partition)
            )
        except FirnError as error:
            outcomes.append(error)
    stored_total, failed_total = records_counters(gateway.registry)
    results: list[RecordResult] = []
    statuses = set()
    for record, outcome in zip(records, outcomes, strict=True):
        await portion.rest_if_spent()
        try:
            if isinstance(outcome, FirnError):
                raise outcome
            stored = await outcome
        except FirnError as error:
            if counts_no_more(caller, error):
                raise
            gateway.tell("/topics/{topic_name}", error)
            answer = _of_record(error, record.partition)
            failed_total.value += 1
            statuses.add(answer.status)
            results.append(RecordResult(None, None, answer.error_code, answer.message))
        else:
            stored_total.value += 1
            statuses.add(200)
            results.append(RecordResult(stored.partition.partition, stored.offset))
    return results, next((status for status in (401, 403) if status in statuses), 200)


async def _send_keyed(
    gateway: Gateway, asked: KeyedRequest, topic: str, records: list[_Converted], answer: bytes
) -> list[RecordResult]:
    """Store all records of a request, once for its key, or none (ADR 0043). Raises: RestError, FirnError."""
    stored_total, failed_total = records_counters(gateway.registry)
    rows = [KeyedRecord(one.partition, one.key, one.value) for one in records]
    try:
        result = await gateway.keyed.produce(asked.key, asked.digest.digest(), topic, rows, 200, answer=answer)
    except (RestError, RequestRejected) as error:
        failed_total.value += len(rows)
        unknown = isinstance(error, RequestRejected) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if unknown and any(one.partition is not None for one in records):
            raise RestError(404, str(error), error_code=PARTITION_NOT_FOUND) from None
        raise
    stored_total.value += len(rows)
    return _results_of(result)


def _of_record(error: FirnError, partition: int | None) -> RestAnswer:
    answer = answer_v2(error)
    if (
        isinstance(error, RequestRejected)
        and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        and partition is not None
    ):
        return RestAnswer(404, PARTITION_NOT_FOUND, answer.message)
    return answer
