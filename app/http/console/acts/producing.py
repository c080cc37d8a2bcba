"""The tab of a topic with a form for a new message.

The broker decides whether the caller may write, as for each other Produce. After a message is stored, the response redirects to the
form, so a reload stores no second message. Tests: ``tests/http/console/test_producing.py``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.client.cluster import TopicView
from app.client.producer import Acknowledged
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, ProtocolError, RequestRejected, clause
from app.core.limits import KIB, MIB
from app.core.turns import run
from app.core.units import TimestampMs
from app.http.body_budget import bytes_of_body
from app.http.console import asking
from app.http.console.forms import done_token, form_of, is_done
from app.http.console.pages.topics import found_topic, topic_page
from app.http.console.rendering import GUARDED, ConsoleRoute
from app.http.errors import RestError, answer_of
from app.http.gateway import DELIVERY_TIMEOUT_MS, Gateway
from app.http.record_json import NewRecord, Part, SchemaPart, SchemaRecord, Strategy, base64_steps
from app.http.registry.record_encoding import RecordEncoding
from app.http.serving import caller_of, counts_no_more, records_counters
from app.records.record import Headers

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

PRODUCE: Final = "/console/topics/{topic_name}/produce"
VALUE_BYTES_MAX: Final = MIB
"""Of a key or a value that is typed."""
FORM_BYTES_MAX: Final = 4 * MIB
"""Of the form: an escape has three bytes."""
HEADERS_MAX: Final = 100
HEADERS_BYTES_MAX: Final = 64 * KIB
"""Of all headers that are typed."""
KEY_KINDS: Final[Mapping[str, str]] = {
    "none": "no key",
    "text": "text",
    "json": "JSON",
    "base64": "bytes in base64",
    "schema": "JSON, by the schema",
}
VALUE_KINDS: Final[Mapping[str, str]] = {
    "text": "text",
    "json": "JSON",
    "base64": "bytes in base64",
    "schema": "JSON, by the schema",
    "tombstone": "no value (tombstone)",
}
SHOWN_AGAIN_BYTES_MAX: Final = 64 * KIB
"""Of each typed field. HTML escapes a byte by up to five bytes."""
_FIELDS: Final = ("key_kind", "key", "value_kind", "value", "headers", "partition")
_TYPED: Final = ("key", "value", "headers")
_KEPT: Final = ("key_kind", "value_kind", "partition")
"""Fields that the form has again after a message."""
_STORED: Final = re.compile(r"(\d{1,10})-(\d{1,19})")
_NULL: Final = Part("", None)
_json: Final = msgspec.json.Decoder(msgspec.Raw)


def check_json(data: bytes, what: str) -> bytes:
    """Raises: RestError 400 if some bytes are no JSON."""
    try:
        _json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"The {what} is not JSON: {clause(error)}.") from None
    return data


async def part_of(kind: str, text: str, what: str) -> Part | SchemaPart:
    """A typed key or value. Raises: RestError 400, 413."""
    data = text.replace("\r\n", "\n").encode()  # browsers send each line break of a form as two characters
    if len(data) > VALUE_BYTES_MAX:
        raise RestError(413, f"The {what} is larger than {VALUE_BYTES_MAX} bytes. Use `firn produce`.")
    match kind:
        case "none" | "tombstone":
            if data:
                raise RestError(400, f"There is a {what}, and the form says that there is none. Choose its form.")
            return _NULL
        case "text":
            return Part("STRING", data)
        case "json":
            return Part("JSON", check_json(data, what))
        case "base64":
            try:
                return Part("BINARY", await run(base64_steps("".join(text.split()), f"The {what}")))
            except ProtocolError as error:
                raise RestError(400, str(error)) from None
        case "schema":
            return SchemaPart(None, check_json(data, what), None, Strategy.TOPIC, None, None, None)
        case _:
            raise RestError(400, f"The form of the {what} is none of the page's.")


def headers_of(text: str) -> Headers:
    """The headers of a form: a line for each, its name up to the first colon. Raises: RestError 400, 413."""
    if len(text.encode()) > HEADERS_BYTES_MAX:
        raise RestError(413, f"The headers are larger than {HEADERS_BYTES_MAX} bytes. Use `firn produce`.")
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise RestError(400, "Each line of the headers must be of the form NAME: VALUE.")
        found.append((name.strip(), value.strip().encode()))
        if len(found) > HEADERS_MAX:
            raise RestError(400, f"A form has {HEADERS_MAX} headers at most. Use `firn produce`.")
    return tuple(found)


def partition_of(text: str, topic: TopicView) -> int | None:
    """The partition of a form; None if the key decides. Raises: RestError 400."""
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 11 and int(text) < len(topic.partitions):
        return int(text)
    raise RestError(400, f"Topic {topic.name} has the partitions 0 to {len(topic.partitions) - 1}.")


async def record_of(request: Request, topic: TopicView, fields: Mapping[str, str]) -> NewRecord:
    """The record of a form. Raises: RestError 400, 408, 413, 422, 501; FirnError."""
    partition = partition_of(fields.get("partition", ""), topic)
    headers = headers_of(fields.get("headers", ""))
    key = await part_of(fields.get("key_kind", ""), fields.get("key", ""), "key")
    value = await part_of(fields.get("value_kind", ""), fields.get("value", ""), "value")
    plain = NewRecord(
        partition,
        headers,
        key if isinstance(key, Part) else _NULL,
        value if isinstance(value, Part) else _NULL,
        None,
    )
    if isinstance(key, Part) and isinstance(value, Part):
        return plain
    by_schema = SchemaRecord(
        plain, key if isinstance(key, SchemaPart) else None, value if isinstance(value, SchemaPart) else None
    )
    return await RecordEncoding(request, topic.name).encoded(by_schema)


async def stored(
    gateway: Gateway,
    topic: str,
    *,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    partition: int | None,
    timestamp: TimestampMs | None = None,
) -> Acknowledged:
    """Store a record as the caller, within ``BROKER_S``. Raises: RequestRejected, BrokerUnavailable, LimitExceeded."""
    succeeded, failed = records_counters(gateway.registry)
    sent: asyncio.Future[Acknowledged] | None = None
    try:
        try:
            async with asyncio.timeout(asking.BROKER_S):
                sent = await gateway.producer.send(
                    topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
                )
                found = await asyncio.shield(sent)
        except TimeoutError:
            if sent is None or not sent.done():
                raise BrokerUnavailable(_silence(gateway, sent)) from None
            found = sent.result()  # its response came in the turn of the deadline
    except FirnError as error:
        failed.value += 1
        if isinstance(error, RequestRejected) and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            # The broker may have been asked by the topic's id, and says that.
            raise RequestRejected(error.code, f"The user has no right to write to topic {topic}.") from None
        raise
    succeeded.value += 1
    return found


def _silence(gateway: Gateway, sent: asyncio.Future[Acknowledged] | None) -> str:
    """The sentence of a message that was not acknowledged in time. ``sent``: None if the message was not queued."""
    found = None if sent is None else gateway.producer.take_back(sent)
    leader = None if found is None else gateway.cluster.view.leader_of(found[0])
    broker = "The brokers" if leader is None else f"Broker {leader}"
    silence = f"{broker} did not respond within {asking.BROKER_S:g} s."
    if found is None or found[1]:
        return f"{silence} {asking.NOTHING_SENT}"
    return (
        f"{silence} It is not known whether the message is stored in partition {found[0].partition}: it is sent again for up to"
        f" {DELIVERY_TIMEOUT_MS // 1000} s. Look at the newest messages before you send it once more."
    )


def stored_query(request: Request, topic: str, found: Acknowledged) -> dict[str, str]:
    """The fields of a URL whose page says that a message was stored."""
    place = f"{found.partition.partition}-{found.offset}"
    return {"stored": place, "proof": done_token(request, f"stored {topic} {place}")}


def stored_in(request: Request, topic: str) -> tuple[int, int] | None:
    """The partition and the offset of the message that the caller has stored in a topic, as the URL proves."""
    found = _STORED.fullmatch(request.query_params.get("stored", ""))
    if found is None or not is_done(request, f"stored {topic} {found[0]}"):
        return None
    return int(found[1]), int(found[2])


def tell(request: Request, gateway: Gateway, error: FirnError | RestError, route: str) -> tuple[int, str]:
    """The status and the sentence of a form that is shown again. Raises: ``error`` if the caller's credential counts no more."""
    if counts_no_more(caller_of(request), error):
        raise error
    if isinstance(error, FirnError):
        gateway.tell(route, error)
    answer = answer_of(error)
    return answer.status, answer.message


@router.get(PRODUCE)
async def show_form(topic_name: str, request: Request) -> Response:
    _, topic = await found_topic(request)
    query = request.query_params
    fields = {name: query[name] for name in _KEPT if name in query}
    return await _page(request, topic, fields, stored=stored_in(request, topic.name))


async def _page(
    request: Request,
    topic: TopicView,
    fields: Mapping[str, str],
    *,
    stored: tuple[int, int] | None = None,
    message: str = "",
    status: int = 200,
) -> Response:
    shown: dict[str, Any] = {"key_kind": "none", "value_kind": "text"} | dict.fromkeys((*_TYPED, "partition"), "")
    shown |= {name: fields[name] for name in _FIELDS if name in fields}
    for name in _TYPED:
        if len(shown[name].encode()) > SHOWN_AGAIN_BYTES_MAX:
            shown[name] = ""
            message += f" The field “{name}” is empty now, because its text is too long to be shown again."
    response = await topic_page(
        request,
        "produce",
        topic,
        fields=shown,
        key_kinds=KEY_KINDS,
        value_kinds=VALUE_KINDS,
        stored=stored,
        message=message,
    )
    response.status_code = status
    return response


@router.post(PRODUCE)
async def produce(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    with bytes_of_body(request) as held:
        fields = await form_of(request, bytes_max=FORM_BYTES_MAX, held=held)
        try:
            record = await record_of(request, topic, fields)
            found = await stored(
                gateway,
                topic.name,
                key=record.key.content,
                value=record.value.content,
                headers=record.headers,
                partition=record.partition,
            )
        except (FirnError, RestError) as error:
            status, message = tell(request, gateway, error, PRODUCE)
            return await _page(request, topic, fields, message=message, status=status)
    kept = {name: fields[name] for name in _KEPT if fields.get(name)}
    kept |= stored_query(request, topic.name, found)
    where = f"/console/topics/{quote(topic.name, safe='')}/produce?{urlencode(kept)}"
    return RedirectResponse(where, 303, headers={**GUARDED, "cache-control": "no-store"})
