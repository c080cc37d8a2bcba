"""``GET /v3/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/records``: history and new records.

A page is a JSON object, or with ``Accept: application/x-ndjson`` a line for each record. A stream of records ends when its client
leaves. Streams are lines with ``follow=true``, and all responses to ``Accept: text/event-stream``. The id of an event is its
offset. A client that connects again sends this id as ``Last-Event-ID``, and the stream goes on behind it.

**Caches.** A response is ``no-store``, except at the URL that a page names as ``permanent``. A page has such a URL if it ended by
count or bytes, has all records between two offsets, lies wholly below the last stable offset, and belongs to a topic that is not
compacted. The URL has the topic's id, both offsets, the leader epoch of the last record, isolation and rendering. So it never shows
other records: if the topic was made anew, or its end was lost and written again, the response is 404. The response is private to
its caller, and is kept for ``MAX_AGE_S`` at most, because rights are revoked and records are deleted.

Tests: ``tests/http/rest_v3/test_record_reads.py``.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import EARLIEST, LATEST, TopicView
from app.client.conditional_appends import SeenEnd
from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.http.accepting import ACCEPT_CHARS_MAX, chosen, plain
from app.http.bodies import JSON_TYPE, Streamed, Write
from app.http.conventions import HEAD
from app.http.errors import NO_STORE, REFUSED, RestError, answer_of
from app.http.gateway import Gateway
from app.http.keyed.if_match import etag_of
from app.http.pages import (
    BYTES_DEFAULT,
    BYTES_MAX,
    COUNT_DEFAULT,
    COUNT_MAX,
    WAIT_MS_MAX,
    EndedBy,
    RecordPage,
    ShownAt,
    WantedRecords,
    follow,
    read_page,
    reader,
)
from app.http.read_budget import Held
from app.http.record_json import read_timestamp
from app.http.record_rendering import Rendering, ShownRecord
from app.http.rest_v3.resources import checked, filled
from app.http.rest_v3.topics import found_partition
from app.http.schemas import reference
from app.http.serving import CredentialEnded, caller_of, counts_no_more, while_counts
from app.wire.config_resources import ConfigResourceType

router = APIRouter(default_response_class=Response, tags=["Records (v3)"])

READS: Final = "/v3/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/records"
LINES_TYPE: Final = "application/x-ndjson"
EVENTS_TYPE: Final = "text/event-stream"
_READ_TYPES: Final = {
    JSON_TYPE: JSON_TYPE,
    LINES_TYPE: LINES_TYPE,
    EVENTS_TYPE: EVENTS_TYPE,
    "application/ndjson": LINES_TYPE,
}
"""Types in `Accept`, and those of the responses."""
MAX_AGE_S: Final = 600
ALIVE_S: Final = 15.0
"""Between two signs of life of a stream without records. Proxies close connections that are silent for a minute."""
VARY: Final = {"vary": "Authorization, Cookie, Accept"}
WITHOUT_END: Final = 1 << 62
OFFSET_MAX: Final = (1 << 63) - 1
PERMANENT: Final = frozenset({"topic_id", "offset", "end", "epoch", "isolation", "rendering"})
"""The parameters of a permanent URL. A response to a URL without one of them must not be cached."""

BODIES: Final = (ShownRecord,)

_BOOLEANS: Final = {"true": True, "false": False}
_PARAMETERS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    (
        "offset",
        {"type": "string", "default": "earliest"},
        "Where to begin: an offset, `earliest` or `latest`.",
    ),
    (
        "timestamp",
        {"type": "string"},
        "Begin at the first record of this time or later: ISO 8601, or milliseconds since 1970. It excludes `offset`.",
    ),
    (
        "count",
        {"type": "integer", "minimum": 1, "maximum": COUNT_MAX, "default": COUNT_DEFAULT},
        "The most records of a page. A stream ends after so many records; without `count` it does not end.",
    ),
    (
        "bytes",
        {"type": "integer", "minimum": 1, "maximum": BYTES_MAX, "default": BYTES_DEFAULT},
        "Bytes of keys, values and headers of a page. The last record may pass it. Records that `key` skips count.",
    ),
    (
        "max_wait_ms",
        {"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX, "default": 0},
        "How long to wait for a first record at the end of the partition.",
    ),
    (
        "isolation",
        {"type": "string", "enum": ["read_committed", "read_uncommitted"], "default": "read_committed"},
        "Whether to leave out records of open and of aborted transactions.",
    ),
    ("key", {"type": "string"}, "Only records with this key."),
    ("key_base64", {"type": "string"}, "The same, for a key that is not text."),
    (
        "rendering",
        {"type": "string", "enum": [one.value for one in Rendering], "default": Rendering.AUTO.value},
        "How keys and values are shown: as JSON, STRING or BINARY, whichever fits first; without JSON; or as BINARY alone.",
    ),
    ("follow", {"type": "boolean", "default": False}, "Whether lines go on with the records that come later."),
    ("end", {"type": "integer"}, "The offset before which to stop. Part of a permanent URL."),
    ("topic_id", {"type": "string", "format": "uuid"}, "Part of a permanent URL."),
    ("epoch", {"type": "integer"}, "Part of a permanent URL: the leader epoch of its last record."),
)


@router.get(
    READS,
    summary="Read records",
    responses={
        200: {
            "description": "The records, in order.",
            "content": {
                JSON_TYPE: {
                    "schema": {
                        "type": "object",
                        "required": ["kind", "metadata", "data"],
                        "properties": {
                            "kind": {"type": "string"},
                            "metadata": {"type": "object"},
                            "data": {"type": "array", "items": reference(ShownRecord)},
                        },
                    }
                },
                LINES_TYPE: {"schema": reference(ShownRecord)},
                EVENTS_TYPE: {"schema": {"type": "string"}},
            },
        },
        400: {"description": "A parameter is wrong, or the offset is outside of the partition (40002)."},
        404: {"description": "Unknown cluster, topic or partition (40403), or a permanent page that is no more."},
        429: {"description": "Too many requests are reading. Try again after the time of Retry-After."},
    },
    openapi_extra={
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
            for name, schema, text in _PARAMETERS
        ]
    },
)
async def read_records(cluster_id: str, topic_name: str, partition_id: int, request: Request) -> Response:
    """Read records of one partition."""
    gateway = await checked(request, cluster_id)
    topic, found = await found_partition(gateway, topic_name, partition_id)
    asked = _read_asked(request, TopicPartition(topic_name, PartitionIndex(found.index)))
    accepted = _accepted(request)
    events = accepted == EVENTS_TYPE
    following = events or asked.follow
    if asked.follow and accepted == JSON_TYPE:
        raise RestError(
            400, f"The parameter follow needs Accept: {LINES_TYPE} or {EVENTS_TYPE}. A page of JSON has an end."
        )
    if asked.topic_id is not None and asked.topic_id != topic.topic_id:
        raise RestError(404, f"Topic {topic_name} is not the one of this URL any more. Read it from the beginning.")
    if events and (after := request.headers.get("last-event-id")) is not None:
        offset = Offset(_number(after, "Last-Event-ID", 0, OFFSET_MAX) + 1)
    else:
        offset = await _start(gateway, asked)
    wanted = asked.wanted(offset, following)
    if following:
        return await _stream(request, gateway, wanted, events=events)
    with gateway.read_budget.page() as held:
        async with reader(gateway, read_committed=wanted.read_committed) as consumer:
            page = await read_page(consumer, wanted, held)
        response = await _page_response(request, gateway, topic, asked, wanted, page, lines=accepted == LINES_TYPE)
        return Held(response, held)


# --- parameters --------------------------------------------------------------------------------------------------


class _ReadAsked(msgspec.Struct, frozen=True):
    """The parameters of a request."""

    partition: TopicPartition
    offset: int
    """Or ``EARLIEST`` or ``LATEST``."""
    timestamp: int | None
    count: int | None
    bytes_max: int | None
    max_wait_ms: int
    read_committed: bool
    key: bytes | None
    rendering: Rendering
    follow: bool
    end: int | None
    topic_id: UUID | None
    epoch: int | None

    def wanted(self, offset: Offset, following: bool) -> WantedRecords:
        """The read of these parameters, from ``offset`` on."""
        whole = self.end is not None
        count = self.count or (WITHOUT_END if following else COUNT_MAX if whole else COUNT_DEFAULT)
        bytes_max = WITHOUT_END if following else self.bytes_max or (BYTES_MAX if whole else BYTES_DEFAULT)
        return WantedRecords(
            partition=self.partition,
            offset=offset,
            end=None if self.end is None else Offset(self.end),
            count=count,
            bytes_max=bytes_max,
            max_wait_ms=self.max_wait_ms,
            read_committed=self.read_committed,
            key=self.key,
            rendering=self.rendering,
        )


def _read_asked(request: Request, partition: TopicPartition) -> _ReadAsked:
    """Raises: RestError 400, which names the parameter."""
    query = request.query_params
    if "offset" in query and "timestamp" in query:
        raise RestError(400, "The parameters offset and timestamp exclude each other. Leave one out.")
    if "key" in query and "key_base64" in query:
        raise RestError(400, "The parameters key and key_base64 exclude each other. Leave one out.")
    match query.get("offset", "earliest").lower():
        case "earliest":
            offset = EARLIEST
        case "latest":
            offset = LATEST
        case text:
            offset = _number(text, "offset", 0, OFFSET_MAX)
    isolation = query.get("isolation", "read_committed").lower()
    if isolation not in ("read_committed", "read_uncommitted"):
        raise RestError(400, "The parameter isolation must be read_committed or read_uncommitted.")
    follow = _BOOLEANS.get(query.get("follow", "false").lower())
    if follow is None:
        raise RestError(400, "The parameter follow must be true or false.")
    try:
        rendering = Rendering(query.get("rendering", Rendering.AUTO.value).lower())
    except ValueError:
        raise RestError(
            400, f"The parameter rendering must be one of {', '.join(one.value for one in Rendering)}."
        ) from None
    timestamp = topic_id = None
    if (text_of_time := query.get("timestamp")) is not None:
        try:
            timestamp = read_timestamp(int(text_of_time) if text_of_time.isdecimal() else text_of_time)
        except (ProtocolError, ValueError):
            raise RestError(
                400, "The parameter timestamp must be of the form 2024-05-06T07:08:09.123Z, or milliseconds since 1970."
            ) from None
    if (text_of_id := query.get("topic_id")) is not None:
        try:
            topic_id = UUID(text_of_id)
        except ValueError:
            raise RestError(400, "The parameter topic_id must be a UUID.") from None
    end = _optional(query, "end", 0, OFFSET_MAX)
    if end is not None and not 0 <= offset < end:
        raise RestError(400, "The parameter end needs an offset below it.")
    return _ReadAsked(
        partition,
        offset,
        timestamp,
        _optional(query, "count", 1, COUNT_MAX),
        _optional(query, "bytes", 1, BYTES_MAX),
        _optional(query, "max_wait_ms", 0, WAIT_MS_MAX) or 0,
        isolation == "read_committed",
        _key(query),
        rendering,
        follow,
        end,
        topic_id,
        _optional(query, "epoch", 0, 2**31 - 1),
    )


def _key(query: Mapping[str, str]) -> bytes | None:
    if (text := query.get("key")) is not None:
        return text.encode()
    if (coded := query.get("key_base64")) is None:
        return None
    try:
        return b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        raise RestError(400, "The parameter key_base64 is not base64.") from None


def _optional(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = query.get(name)
    return None if text is None else _number(text, name, least, most)


def _number(text: str, name: str, least: int, most: int) -> int:
    """Raises: RestError 400."""
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise RestError(400, f"The parameter {name} must be a number from {least} to {most}.")


def _accepted(request: Request) -> str:
    """The media type of the response: of those that the client likes best, the one that it names first. JSON if it takes none."""
    accept = request.headers.get("accept", "")[:ACCEPT_CHARS_MAX]
    named = [kind for one in accept.split(",") if (kind := plain(one)) in _READ_TYPES]
    found = chosen(accept, [*dict.fromkeys([*named, *_READ_TYPES])])
    return _READ_TYPES.get(found or JSON_TYPE, JSON_TYPE)


async def _start(gateway: Gateway, asked: _ReadAsked) -> Offset:
    """The offset at which to begin. Raises: RequestRejected, BrokerUnavailable."""
    if asked.timestamp is None and asked.offset >= 0:
        return Offset(asked.offset)
    moment = asked.offset if asked.timestamp is None else asked.timestamp
    offset = await _offset_at(gateway, asked, moment)
    if offset < 0:  # all records are older: begin at the end
        offset = await _offset_at(gateway, asked, LATEST)
    return Offset(offset)


async def _offset_at(gateway: Gateway, asked: _ReadAsked, moment: int) -> int:
    found = await gateway.cluster.list_offsets({asked.partition: moment}, read_committed=asked.read_committed)
    return found[asked.partition].offset


# --- pages ----------------------------------------------------------------------------------------------------------


async def _page_response(
    request: Request,
    gateway: Gateway,
    topic: TopicView,
    asked: _ReadAsked,
    wanted: WantedRecords,
    page: RecordPage,
    *,
    lines: bool,
) -> Response:
    permanent = await _permanent(request, gateway, topic, wanted, page)
    headers = {**VARY, **NO_STORE}
    whole = page.next_offset == wanted.end
    if whole and asked.topic_id is not None and asked.epoch not in (None, page.epoch):
        raise RestError(404, "The records of this URL are no more: its last one was lost, and another one written.")
    if whole and permanent is not None and request.query_params.keys() >= PERMANENT:
        headers["cache-control"] = f"private, max-age={MAX_AGE_S}, immutable"
    without = ["timestamp", "page_token", "end", "topic_id", "epoch"]
    following = str(request.url.remove_query_params(without).include_query_params(offset=page.next_offset))
    links = [f'<{following}>; rel="next"', *((f'<{permanent}>; rel="bookmark"',) if permanent else ())]
    headers["link"] = ", ".join(links)
    if page.epoch_below is not None:
        headers["etag"] = etag_of(SeenEnd(topic.topic_id, page.next_offset, page.epoch_below))
    if lines:
        return Response(b"\n".join([*page.records, b""]), headers=headers, media_type=LINES_TYPE)
    content = filled(
        {
            "kind": "KafkaRecordList",
            "metadata": {"self": str(request.url), "next": following, "permanent": permanent},
            "topic_name": topic.name,
            "topic_id": str(topic.topic_id),
            "partition_id": wanted.partition.partition,
            "offset": wanted.offset,
            "next_offset": page.next_offset,
            "ended_by": page.ended_by.value,
            "data": [],
        },
        page.records,
    )
    return Response(content, headers=headers, media_type=JSON_TYPE)


async def _permanent(
    request: Request, gateway: Gateway, topic: TopicView, wanted: WantedRecords, page: RecordPage
) -> str | None:
    """The URL under which the records of a page will always be found, if they cannot change."""
    whole = page.ended_by in (EndedBy.COUNT, EndedBy.BYTES)
    if not whole or not page.stable or page.epoch is None or wanted.key is not None:
        return None
    if await _compacted(gateway, topic.name):
        return None
    url = request.url.replace(query="")
    return str(
        url.include_query_params(
            topic_id=str(topic.topic_id),
            offset=wanted.offset,
            end=page.next_offset,
            epoch=page.epoch,
            isolation="read_committed" if wanted.read_committed else "read_uncommitted",
            rendering=wanted.rendering.value,
        )
    )


async def _compacted(gateway: Gateway, topic: str) -> bool:
    """Whether compaction may remove records of a topic, as far as the caller may know."""
    try:
        entries = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic, names=["cleanup.policy"])
    except RequestRejected as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return True
        raise
    return any("compact" in (entry.value or "") for entry in entries)


# --- streams --------------------------------------------------------------------------------------------------------


async def _stream(request: Request, gateway: Gateway, wanted: WantedRecords, *, events: bool) -> Response:
    headers = {**VARY, **NO_STORE}
    kind = EVENTS_TYPE if events else LINES_TYPE
    if request.scope.get(HEAD):
        return Response(headers=headers, media_type=kind)
    # The lane is taken, and the first batches are asked for, before the status is sent, so that errors have their own.
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(reader(gateway, read_committed=wanted.read_committed, endless=True))
        records = await stack.enter_async_context(aclosing(follow(consumer, wanted)))
        first: list[ShownAt] = await anext(records, [])
        held = stack.pop_all()
    talk = _talk(request, gateway, records, first, events=events)
    return Streamed(talk, held, headers=headers, media_type=kind)


def _talk(
    request: Request,
    gateway: Gateway,
    records: AsyncIterator[list[ShownAt]],
    first: list[ShownAt],
    *,
    events: bool,
) -> Callable[[Write], Awaitable[None]]:
    """Writes a stream, until its client leaves or its credential counts no more."""
    caller = caller_of(request)

    async def send_all(write: Write) -> None:
        loop = asyncio.get_running_loop()
        said_s = loop.time()
        if first:
            await write(_piece(first, events=events))
        async for shown in records:
            if shown:
                await write(_piece(shown, events=events))
                said_s = loop.time()
            elif loop.time() - said_s >= ALIVE_S:
                await write(b":\n\n" if events else b"\n")
                said_s = loop.time()

    async def talk(write: Write) -> None:
        try:
            async with while_counts(caller):
                await send_all(write)
            return
        except CredentialEnded:
            answer = REFUSED
        except FirnError as error:
            if counts_no_more(caller, error):
                answer = REFUSED
            else:
                gateway.tell(READS, error)
                answer = answer_of(error)
        await write(b"event: error\ndata: " + answer.body() + b"\n\n" if events else answer.body() + b"\n")

    return talk


def _piece(shown: list[ShownAt], *, events: bool) -> bytes:
    if not events:
        return b"\n".join([*(content for _, content in shown), b""])
    return b"".join([b"id: %d\ndata: %s\n\n" % one for one in shown])
