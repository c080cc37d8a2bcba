"""The tab of a topic with its messages, and the page of one of them.

The broker decides whether the caller may read, as for each other Fetch. Tests: ``tests/http/console/test_messages.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import EARLIEST, LATEST, TopicView
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.turns import Portion
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.http.console.asking import of_broker, together
from app.http.console.pages.topics import found_topic, number_in, topic_page
from app.http.console.records.decoding import Decoding
from app.http.console.records.reading import Browse, Browsed, Header, browse
from app.http.console.rendering import GUARDED, STORE_AWAY, ConsoleRoute, console_of, reach_of, session_of
from app.http.console.texts.command_lines import Line, producing, reading
from app.http.console.texts.formats import shell
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.pages import batch_records, reader
from app.http.read_budget import Held
from app.records.record import Record
from app.wire.private import PartitionTierStatus

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

COUNT_DEFAULT: Final = 50
COUNT_MAX: Final = 200
OFFSET_MAX: Final = 2**63 - 1
FILTER_CHARS_MAX: Final = 1_000
RAW_ROUNDS_MAX: Final = 20
"""Requests for one record. Its batch may be compacted away, or come slowly from the bucket."""


def moment_of(text: str) -> int:
    """Milliseconds since 1970 of a time in UTC: ``2024-05-06T07:08:09``, ``2024-05-06``, or a number. Raises: RestError 400."""
    if text.isascii() and text.isdecimal() and len(text) < 17:
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
        moment = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise RestError(
            400, "The time must be of the form 2024-05-06T07:08:09 (UTC), or milliseconds since 1970."
        ) from None
    if moment < 0:  # ListOffsets takes a negative time for a place, such as the end
        raise RestError(400, "The time is before 1970. Choose a later one.")
    return moment


def header_in(text: str) -> Header | None:
    """The header that ``name:part`` asks for; without a colon, the header with that name. None for an empty text."""
    name, _, part = text.partition(":")
    return Header(name.strip(), part.strip().encode()) if text.strip() else None


async def ends_of(gateway: Gateway, partition: TopicPartition) -> tuple[int, int]:
    """The first offset, and one past the last that readers of committed records see."""
    leader = await gateway.cluster.leader_id(partition)
    ask = gateway.cluster.list_offsets
    first, last = await together(
        of_broker(gateway, leader, lambda _: ask({partition: EARLIEST})),
        of_broker(gateway, leader, lambda _: ask({partition: LATEST}, read_committed=True)),
    )
    return first[partition].offset, last[partition].offset


def _partition(request: Request, topic_name: str, count: int) -> TopicPartition:
    index = number_in(request, "partition", 0, 2**31 - 1)
    if index >= count:
        raise RestError(404, f"Topic {topic_name} has no partition {index}.")
    return TopicPartition(topic_name, PartitionIndex(index))


@dataclass(frozen=True, slots=True)
class Asked:
    """A search of messages, as a URL says it."""

    wanted: Browse
    first: int
    end: int
    time: str
    key: str
    contains: str
    header: str

    @property
    def partition(self) -> TopicPartition:
        return self.wanted.partition

    @property
    def offset(self) -> int:
        return self.wanted.offset


async def asked_in(request: Request, gateway: Gateway, topic: TopicView) -> Asked:
    """The search of a request. Raises: RestError 400, 404; RequestRejected, BrokerUnavailable."""
    query = request.query_params
    partition = _partition(request, topic.name, len(topic.partitions))
    count = max(1, number_in(request, "count", COUNT_DEFAULT, COUNT_MAX))
    key, contains, header = query.get("key", ""), query.get("contains", ""), query.get("header", "")
    if max(len(key), len(contains), len(header)) > FILTER_CHARS_MAX:
        raise RestError(400, f"A filter has {FILTER_CHARS_MAX} characters at most.")
    first, end = await ends_of(gateway, partition)
    time_text = query.get("time", "").strip()
    if time_text:
        found = await gateway.cluster.list_offsets({partition: moment_of(time_text)}, read_committed=True)
        at = found[partition].offset
        offset = end if at < 0 else at
    else:
        offset = number_in(request, "offset", max(first, end - count), OFFSET_MAX)
    wanted = Browse(
        partition=partition,
        offset=min(max(offset, first), end),
        count=count,
        key=key.encode() if key else None,
        contains=contains.encode() if contains else None,
        header=header_in(header),
        mask=console_of(request).masks.of(topic.name),
    )
    return Asked(wanted, first, end, time_text, key, contains, header)


@router.get("/console/topics/{topic_name}/messages")
async def list_messages(topic_name: str, request: Request) -> Response:
    gateway, topic = await found_topic(request)
    asked = await asked_in(request, gateway, topic)
    partition, offset, count = asked.partition, asked.offset, asked.wanted.count
    read = await _browsed(gateway, asked.wanted, Decoding(request))
    return await topic_page(
        request,
        "messages",
        topic,
        partition=partition.partition,
        offset=offset,
        first=asked.first,
        end=asked.end,
        count=count,
        key=asked.key,
        contains=asked.contains,
        header=asked.header,
        time=asked.time,
        read=read,
        masked=asked.wanted.mask is not None,
        follows=request.query_params.get("follow") == "1",
        tier=await _tier_of(gateway, partition, offset),
        before=max(asked.first, offset - count) if offset > asked.first else None,
        command=shell(
            f"firn consume {{}} --partition {partition.partition} --from {offset} --count {count}", topic_name
        ),
        address=f"/v3/clusters/{await gateway.cluster_id()}/topics/{quote(topic_name, safe='')}"
        f"/partitions/{partition.partition}/records?offset={offset}&count={count}",
    )


async def _browsed(gateway: Gateway, wanted: Browse, decoding: Decoding) -> Browsed:
    """The records of a page. Raises: RestError 503 if they lie in a store that does not respond; else as ``browse``."""
    try:
        return await browse(gateway, wanted, decoding)
    except RequestRejected as error:
        status = await _status_of(gateway, wanted.partition) if error.code is ErrorCode.KAFKA_STORAGE_ERROR else None
        if status is None or wanted.offset >= status.local_start_offset:
            raise
        message = "These records lie in the bucket, and the object store does not respond to the broker."
        if status.local_start_offset < status.high_watermark:
            message += f" Records from offset {status.local_start_offset} on lie on its local disk and can be read."
        raise RestError(503, message, error_code=STORE_AWAY) from None


async def _tier_of(gateway: Gateway, partition: TopicPartition, offset: int) -> str:
    """Where the records at an offset lie: ``bucket`` or ``local``; empty if no broker says it."""
    status = await _status_of(gateway, partition)
    if status is None:
        return ""
    return "bucket" if offset < status.local_start_offset else "local"


async def _status_of(gateway: Gateway, partition: TopicPartition) -> PartitionTierStatus | None:
    """The state of the tiers of a partition; None if no broker says it."""
    try:
        answer = await of_broker(
            gateway,
            await gateway.cluster.leader_id(partition),
            lambda connection: gateway.admin.tier_status_by(connection, [partition.topic]),
        )
    except (BrokerUnavailable, RequestRejected):
        return None
    return next((one for one in answer.partitions if one.partition == partition.partition), None)


async def found_message(
    request: Request, topic_name: str, partition_id: int
) -> tuple[Gateway, TopicView, TopicPartition]:
    """The partition of a message that the path names. Raises: RestError 404, RequestRejected, BrokerUnavailable."""
    gateway, topic = await found_topic(request)
    if not 0 <= partition_id < len(topic.partitions):
        raise RestError(404, f"Topic {topic_name} has no partition {partition_id}.")
    return gateway, topic, TopicPartition(topic_name, PartitionIndex(partition_id))


@router.get("/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}")
async def show_message(topic_name: str, partition_id: int, offset: int, request: Request) -> Response:
    gateway, topic, partition = await found_message(request, topic_name, partition_id)
    first, end = await ends_of(gateway, partition)
    mask = console_of(request).masks.of(topic_name)
    read = None
    if first <= offset < end:
        wanted = Browse(partition=partition, offset=offset, count=1, mask=mask, whole=True)
        read = await _browsed(gateway, wanted, Decoding(request, whole=True))
    if read is None or not read.records or read.raw is None:
        raise RestError(404, f"Partition {partition_id} of topic {topic_name} has no record at offset {offset}.")
    (record,) = read.records
    return await topic_page(
        request,
        "message",
        topic,
        partition=partition_id,
        record=record,
        exact=record.offset == offset,
        following=record.offset + 1 if record.offset + 1 < end else None,
        tier=await _tier_of(gateway, partition, record.offset),
        masked=mask is not None,
        lines=await _lines_of(request, gateway, partition, read.raw, masked=mask is not None),
    )


async def _lines_of(
    request: Request, gateway: Gateway, partition: TopicPartition, record: Record, *, masked: bool
) -> list[Line]:
    """The command lines of a message. A masked one has none that produces it."""
    session = session_of(request)
    cluster_id, base = await gateway.cluster_id(), str(request.base_url)
    user = session.user if session else ""
    lines = reading(
        partition.topic,
        partition.partition,
        record.offset,
        base=base,
        cluster_id=cluster_id,
        reach=reach_of(gateway),
        user=user,
    )
    if not masked:
        lines.append(
            producing(partition.topic, partition.partition, record, base=base, cluster_id=cluster_id, user=user)
        )
    return lines


@router.get("/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/value")
async def save_value(topic_name: str, partition_id: int, offset: int, request: Request) -> Response:
    gateway, _, partition = await found_message(request, topic_name, partition_id)
    if console_of(request).masks.of(topic_name) is not None:
        raise RestError(
            403, f"Fields of topic {topic_name} are masked here (firn.console.mask), so no value of it can be saved."
        )
    first, end = await ends_of(gateway, partition)
    if not first <= offset < end:
        raise RestError(404, f"Partition {partition_id} of topic {topic_name} has no record at offset {offset}.")
    with gateway.read_budget.page() as held:
        record = await record_at(gateway, partition, Offset(offset))
        if record is None:
            raise RestError(404, f"Partition {partition_id} of topic {topic_name} has no record at offset {offset}.")
        value = record.value or b""
        if gateway.read_budget.taken and not gateway.read_budget.has(len(value)):
            raise RestError(429, "Other responses hold the memory for records. Try again later.", error_code=42901)
        held.take(len(value))
        headers = {
            **GUARDED,
            "cache-control": "no-store",
            "content-disposition": f'attachment; filename="offset-{offset}.bin"',
        }
        return Held(Response(value, headers=headers, media_type="application/octet-stream"), held)


async def record_at(gateway: Gateway, partition: TopicPartition, offset: Offset) -> Record | None:
    """The record at an offset; None if there is none."""
    async with reader(gateway, read_committed=True) as consumer:
        consumer.assign({partition: offset})
        portion = Portion()
        for _ in range(RAW_ROUNDS_MAX):
            for batch in await consumer.fetch_once(partition, max_wait_ms=500):
                for record in await batch_records(batch, portion):
                    if record.offset == offset:
                        return record
                    break
            if consumer.position(partition) > offset:
                break
    return None
