"""A copy of a message in another topic, with the same key, value, headers and time, after a preview.

Tests: ``tests/http/console/test_resending.py``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.client.cluster import TopicView
from app.core.errors import FirnError
from app.core.turns import run
from app.core.units import Offset, TopicPartition
from app.http.console.acts.producing import stored, stored_in, stored_query, tell
from app.http.console.forms import form_of
from app.http.console.pages.messages import ends_of, found_message, record_at
from app.http.console.pages.topics import topic_page
from app.http.console.records.reading import shown_of
from app.http.console.rendering import GUARDED, ConsoleRoute, console_of
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.read_budget import PageBytes
from app.records.record import Record

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

RESEND: Final = "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/resend"
NAME_CHARS_MAX: Final = 249
"""Of a topic."""


async def _held_record(gateway: Gateway, partition: TopicPartition, offset: int, held: PageBytes) -> Record:
    """The message. ``held`` counts its bytes. Raises: RestError 404, 429; RequestRejected, BrokerUnavailable."""
    first, end = await ends_of(gateway, partition)
    record = await record_at(gateway, partition, Offset(offset)) if first <= offset < end else None
    if record is None:
        raise RestError(
            404, f"Partition {partition.partition} of topic {partition.topic} has no record at offset {offset}."
        )
    size = len(record.key or b"") + len(record.value or b"")
    if gateway.read_budget.taken and not gateway.read_budget.has(size):
        raise RestError(429, "Other responses hold the memory for records. Try again later.", error_code=42901)
    held.take(size)
    return record


def _check_shown(request: Request, topic: str) -> None:
    """Raises: RestError 403 if parts of the topic are masked: another topic would show them."""
    if console_of(request).masks.of(topic) is not None:
        raise RestError(
            403,
            f"Fields of topic {topic} are masked here (firn.console.mask), so the console sends none of its messages on. Use "
            "`firn`.",
        )


@router.get(RESEND)
async def preview(topic_name: str, partition_id: int, offset: int, request: Request) -> Response:
    gateway, topic, partition = await found_message(request, topic_name, partition_id)
    _check_shown(request, topic_name)
    with gateway.read_budget.page() as held:
        record = await _held_record(gateway, partition, offset, held)
        wanted = request.query_params.get("to", "")
        target, message, status = None, "", 200
        if wanted:
            try:
                target = await _target(gateway, wanted)
            except (FirnError, RestError) as error:
                status, message = tell(request, gateway, error, RESEND)
        return await _page(request, topic, partition, record, wanted, target, message, status)


async def _target(gateway: Gateway, name: str) -> TopicView:
    """Raises: RestError 400, RequestRejected, BrokerUnavailable."""
    if len(name) > NAME_CHARS_MAX:
        raise RestError(400, f"The name of a topic has {NAME_CHARS_MAX} characters at most.")
    return await gateway.admin.describe_topic(name)


async def _page(
    request: Request,
    topic: TopicView,
    partition: TopicPartition,
    record: Record,
    wanted: str,
    target: TopicView | None,
    message: str,
    status: int,
) -> Response:
    response = await topic_page(
        request,
        "resend",
        topic,
        partition=partition.partition,
        record=await run(shown_of.steps(record, whole=False)),
        headers=len(record.headers),
        wanted=wanted,
        target=target,
        message=message,
        stored=stored_in(request, wanted),
    )
    response.status_code = status
    return response


@router.post(RESEND)
async def resend(topic_name: str, partition_id: int, offset: int, request: Request) -> Response:
    gateway, topic, partition = await found_message(request, topic_name, partition_id)
    _check_shown(request, topic_name)
    fields = await form_of(request)
    wanted = fields.get("to", "")
    with gateway.read_budget.page() as held:
        record = await _held_record(gateway, partition, offset, held)
        try:
            target = await _target(gateway, wanted)
            found = await stored(
                gateway,
                target.name,
                key=record.key,
                value=record.value,
                headers=record.headers,
                partition=None,
                timestamp=record.timestamp if record.timestamp >= 0 else None,
            )
        except (FirnError, RestError) as error:
            status, message = tell(request, gateway, error, RESEND)
            return await _page(request, topic, partition, record, wanted, None, message, status)
    query = urlencode({"to": target.name} | stored_query(request, target.name, found))
    where = f"/console/topics/{quote(topic_name, safe='')}/partitions/{partition_id}/messages/{offset}/resend?{query}"
    return RedirectResponse(where, 303, headers={**GUARDED, "cache-control": "no-store"})
