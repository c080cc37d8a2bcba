"""Consumer instances of REST v2: create, subscribe or assign, read, commit, seek, delete.

Tests: ``tests/http/rest_v2/test_consumers.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.cluster import EARLIEST, LATEST
from app.client.group_member import GroupSubscription
from app.core.turns import Portion
from app.core.units import PartitionIndex, TopicPartition
from app.http.accepting import chosen
from app.http.bodies import ClientLeft, decoded, small_body, whole_body
from app.http.consumers.instance import ConsumerInstance
from app.http.consumers.names import owner_of
from app.http.consumers.positions import Page
from app.http.consumers.settings import WAIT_MS_MAX, InstanceBody, read_settings
from app.http.consumers.table import ConsumerInstances
from app.http.conventions import HEAD, whole_part
from app.http.errors import NO_STORE, RestError
from app.http.gateway import ADMIN_BODY_BYTES_MAX
from app.http.processes.worker import PASSED
from app.http.read_budget import Held, PageBytes
from app.http.registry.record_schemas import CONVERSION_FAILED, RecordSchemas
from app.http.rest_v2.answers import V2Route, answered, responses_of
from app.http.rest_v2.forms import ReadRecord, RecordUnreadable, shown
from app.http.rest_v2.media import PLAIN_TYPES, embedded_type
from app.http.schemas import V2_TYPE, reference
from app.http.serving import caller_of, gateway_of

if TYPE_CHECKING:
    from app.http.processes.siblings import Siblings

router = APIRouter(prefix="/consumers", tags=["Consumers (v2)"], default_response_class=Response, route_class=V2Route)

Kind = TypeVar("Kind", bound=msgspec.Struct)
T = TypeVar("T")
UNLIMITED: Final = 1 << 62
GROUP_CHARS_MAX: Final = 255
TOPICS_MAX: Final = 1_000
PARTITIONS_ASKED_MAX: Final = 1_000
METADATA_CHARS_MAX: Final = 4_096
PATTERN_CHARS_MAX: Final = 1_000
FORMAT_MISMATCH: Final = 40601
INSTANCE: Final = "/{group_name}/instances/{instance}"
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class CreatedInstance(msgspec.Struct):
    """A new instance, and where it is."""

    instance_id: str
    base_uri: str


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Topics by name, or by a pattern for whole names (RE2)."""

    topics: Annotated[list[_Name], msgspec.Meta(max_length=TOPICS_MAX)] | None = None
    topic_pattern: Annotated[str, msgspec.Meta(max_length=PATTERN_CHARS_MAX)] | None = None


class SubscribedTopics(msgspec.Struct):
    """The topics of a subscription; for a pattern, those that it matches now."""

    topics: list[str]


class PartitionOf(msgspec.Struct, forbid_unknown_fields=True):
    """A partition of a topic."""

    topic: _Name
    partition: _Index


class PartitionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions."""

    partitions: Annotated[list[PartitionOf], msgspec.Meta(max_length=PARTITIONS_ASKED_MAX)]


class OffsetOf(msgspec.Struct, forbid_unknown_fields=True):
    """An offset of a partition. In a commit it is that of the last record that was processed."""

    topic: _Name
    partition: _Index
    offset: _Offset
    metadata: Annotated[str, msgspec.Meta(max_length=METADATA_CHARS_MAX)] | None = None


class OffsetsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Offsets of partitions."""

    offsets: Annotated[list[OffsetOf], msgspec.Meta(max_length=PARTITIONS_ASKED_MAX)]


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Offsets that are committed; without the field, those of all records that were read."""

    offsets: Annotated[list[OffsetOf], msgspec.Meta(max_length=PARTITIONS_ASKED_MAX)] | None = None


BODIES: Final = (
    InstanceBody,
    CreatedInstance,
    SubscriptionBody,
    SubscribedTopics,
    PartitionsBody,
    PartitionOf,
    CommitBody,
    OffsetsBody,
    OffsetOf,
    ReadRecord,
)


def _takes(kind: type[msgspec.Struct], example: Any, *, required: bool = True) -> dict[str, Any]:
    content = {V2_TYPE: {"schema": reference(kind), "example": example}}
    return {"requestBody": {"required": required, "content": content}}


def instances_of(request: Request) -> ConsumerInstances:
    """The instances of this process."""
    found: ConsumerInstances = request.app.state.consumer_instances
    return found


def _used(request: Request, group: str, instance: str) -> Any:
    return instances_of(request).using(gateway_of(request), whole_part(request, group), instance)


async def _body(request: Request, kind: type[Kind]) -> Kind:
    timeout_ms = gateway_of(request).settings.body_idle_timeout_ms
    return await small_body(request, kind, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=timeout_ms)


async def _optional_body(request: Request, kind: type[Kind]) -> Kind | None:
    """The body; None if it is empty. Raises: as ``small_body``."""
    timeout_ms = gateway_of(request).settings.body_idle_timeout_ms
    body = await whole_body(request, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=timeout_ms)
    return decoded(body, kind) if body.strip() else None


def _done(status: int = 204) -> Response:
    return Response(status_code=status, headers=NO_STORE)


# --- instances ------------------------------------------------------------------------------------------------------


@router.post(
    "/{group_name}",
    summary="Create a consumer instance",
    responses={
        **responses_of(CreatedInstance, "The id of the instance, and the URL of its resources."),
        409: {"description": "An instance of that name exists (40902)."},
        422: {"description": "A setting is wrong (42204)."},
        429: {"description": "There are too many instances (42901)."},
    },
    openapi_extra=_takes(
        InstanceBody, {"name": "my-consumer", "format": "json", "auto.offset.reset": "earliest"}, required=False
    ),
)
async def create_instance(group_name: str, request: Request) -> Response:
    """Create an instance in a group. It joins the group when it subscribes."""
    group_name = whole_part(request, group_name)
    if len(group_name) > GROUP_CHARS_MAX or not group_name.isprintable():
        raise RestError(422, f"The name of a group has at most {GROUP_CHARS_MAX} printable characters.")
    body = await _optional_body(request, InstanceBody) or InstanceBody()
    settings = read_settings(body)
    gateway = gateway_of(request)
    await gateway.groups.coordinator_of(group_name)  # refuses a caller who may not know the group
    siblings: Siblings | None = request.app.state.siblings
    if siblings is not None and body.name is not None and PASSED not in request.scope:
        from app.http.passing_on import PassedCreation, group_in

        owner = owner_of(group_in(request.scope), body.name, siblings.worker.count)
        if owner != siblings.worker.index:
            return PassedCreation(siblings, owner, msgspec.json.encode(body))
    made = instances_of(request).create(gateway, caller_of(request), group_name, body.name, settings)
    place = f"consumers/{quote(group_name, safe='')}/instances/{quote(made.instance_id, safe='')}"
    return answered(request, CreatedInstance(made.instance_id, f"{request.base_url}{place}"))


@router.delete(INSTANCE, summary="Delete a consumer instance", status_code=204)
async def delete_instance(group_name: str, instance: str, request: Request) -> Response:
    """End an instance. With auto commit, the records that were read are committed."""
    await instances_of(request).delete(gateway_of(request), whole_part(request, group_name), instance)
    return _done()


# --- subscriptions --------------------------------------------------------------------------------------------------


@router.post(
    INSTANCE + "/subscription",
    summary="Subscribe to topics",
    status_code=204,
    openapi_extra=_takes(SubscriptionBody, {"topics": ["flights"]}),
)
async def subscribe(group_name: str, instance: str, request: Request) -> Response:
    """Subscribe to topics, or to all topics that a pattern matches."""
    with _used(request, group_name, instance) as used:
        body = await _body(request, SubscriptionBody)
        if body.topics is not None and body.topic_pattern is not None:
            raise RestError(
                409, "The fields topics and topic_pattern exclude each other. Leave one out.", error_code=40903
            )
        if body.topics is None and body.topic_pattern is None:
            raise RestError(422, "The body needs the field topics or the field topic_pattern.")
        names = tuple(dict.fromkeys(body.topics or ()))
        await used.subscribe(GroupSubscription(names, body.topic_pattern))
    return _done()


@router.get(
    INSTANCE + "/subscription",
    summary="Get the subscription",
    responses=responses_of(SubscribedTopics, "The topics."),
)
async def get_subscription(group_name: str, instance: str, request: Request) -> Response:
    with _used(request, group_name, instance) as used:
        subscription = used.subscription
        if subscription is None:
            names: list[str] = []
        elif subscription.regex is None:
            names = list(subscription.names)
        else:
            names = await _matching(used, subscription.regex)
    return answered(request, SubscribedTopics(names))


async def _matching(used: ConsumerInstance, regex: str) -> list[str]:
    """The topics that a pattern matches, as the broker matches them."""
    from app.groups.consumer.subscriptions import TopicPattern

    view = await used.gateway.admin.describe_cluster()
    pattern = TopicPattern(regex)
    return sorted(await asyncio.to_thread(pattern.among, tuple(view.topics)))


@router.delete(INSTANCE + "/subscription", summary="Delete the subscription", status_code=204)
async def unsubscribe(group_name: str, instance: str, request: Request) -> Response:
    """Leave the group, or give up the assigned partitions. The instance stays."""
    with _used(request, group_name, instance) as used:
        await used.unsubscribe()
    return _done()


@router.post(
    INSTANCE + "/assignments",
    summary="Assign partitions",
    status_code=204,
    openapi_extra=_takes(PartitionsBody, {"partitions": [{"topic": "flights", "partition": 0}]}),
)
async def assign(group_name: str, instance: str, request: Request) -> Response:
    """Read partitions without a membership of the group."""
    with _used(request, group_name, instance) as used:
        await used.assign(_partitions((await _body(request, PartitionsBody)).partitions))
    return _done()


@router.get(
    INSTANCE + "/assignments",
    summary="Get the assigned partitions",
    responses=responses_of(PartitionsBody, "The partitions that the instance reads now."),
)
async def get_assignments(group_name: str, instance: str, request: Request) -> Response:
    with _used(request, group_name, instance) as used:
        if used.subscription is not None:
            await used.ready(used.settings.wait_ms_max)
        found = used.assignment
    portion = Portion()
    rows = []
    for one in found:
        rows.append({"topic": one.topic, "partition": one.partition})
        await portion.rest_if_spent()
    return answered(request, {"partitions": rows})


# --- positions ------------------------------------------------------------------------------------------------------


@router.post(
    INSTANCE + "/positions",
    summary="Set positions",
    status_code=204,
    openapi_extra=_takes(OffsetsBody, {"offsets": [{"topic": "flights", "partition": 0, "offset": 20}]}),
)
async def seek(group_name: str, instance: str, request: Request) -> Response:
    """Go on at these offsets."""
    with _used(request, group_name, instance) as used:
        body = await _body(request, OffsetsBody)
        await used.seek({_place(one): one.offset for one in body.offsets})
    return _done()


@router.post(
    INSTANCE + "/positions/beginning",
    summary="Set positions to the first records",
    status_code=204,
    openapi_extra=_takes(PartitionsBody, {"partitions": [{"topic": "flights", "partition": 0}]}),
)
async def seek_to_beginning(group_name: str, instance: str, request: Request) -> Response:
    """Go on at the first record of each partition."""
    with _used(request, group_name, instance) as used:
        await used.seek_to(_partitions((await _body(request, PartitionsBody)).partitions), EARLIEST)
    return _done()


@router.post(
    INSTANCE + "/positions/end",
    summary="Set positions behind the last records",
    status_code=204,
    openapi_extra=_takes(PartitionsBody, {"partitions": [{"topic": "flights", "partition": 0}]}),
)
async def seek_to_end(group_name: str, instance: str, request: Request) -> Response:
    """Go on behind the last record of each partition."""
    with _used(request, group_name, instance) as used:
        await used.seek_to(_partitions((await _body(request, PartitionsBody)).partitions), LATEST)
    return _done()


# --- offsets --------------------------------------------------------------------------------------------------------


@router.post(
    INSTANCE + "/offsets",
    summary="Commit offsets",
    openapi_extra=_takes(CommitBody, {"offsets": [{"topic": "flights", "partition": 0, "offset": 20}]}, required=False),
)
async def commit(group_name: str, instance: str, request: Request) -> Response:
    """Commit the offsets of the last records that were processed; without ``offsets``, all records that were read."""
    with _used(request, group_name, instance) as used:
        named = None if (body := await _optional_body(request, CommitBody)) is None else body.offsets
        await used.commit(
            named if named is None else {_place(one): (one.offset + 1, one.metadata or "") for one in named}
        )
    return answered(request, [])


@router.get(
    INSTANCE + "/offsets",
    summary="Get committed offsets",
    responses=responses_of(OffsetsBody, "The committed offsets, without partitions that have none."),
    openapi_extra=_takes(PartitionsBody, {"partitions": [{"topic": "flights", "partition": 0}]}),
)
async def get_committed(group_name: str, instance: str, request: Request) -> Response:
    """The group's committed offsets. The request has a body, which names the partitions; without one, those of the instance."""
    with _used(request, group_name, instance) as used:
        body = await _optional_body(request, PartitionsBody)
        wanted = used.assignment if body is None else _partitions(body.partitions)
        found = await used.committed(wanted)
    rows = [
        {"topic": one.topic, "partition": one.partition, "offset": offset, "metadata": metadata}
        for one, offset, metadata in found
    ]
    return answered(request, {"offsets": rows})


# --- records --------------------------------------------------------------------------------------------------------


@router.get(
    INSTANCE + "/records",
    summary="Read records",
    responses={
        **responses_of(ReadRecord, "The next records; none if none came in time.", many=True),
        406: {"description": "The instance has another format (40601)."},
        409: {"description": "Another request reads from the instance, or it has no subscription (40903)."},
        422: {"description": "A record is not of the instance's format (42203)."},
    },
    openapi_extra={
        "parameters": [
            {
                "name": "timeout",
                "in": "query",
                "required": False,
                "description": "Milliseconds to wait for records, if less than consumer.request.timeout.ms.",
                "schema": {"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX},
            },
            {
                "name": "max_bytes",
                "in": "query",
                "required": False,
                "description": "Bytes of keys and values in the response. One record may pass it.",
                "schema": {"type": "integer", "minimum": 1},
            },
        ]
    },
)
async def read_records(group_name: str, instance: str, request: Request) -> Response:
    """Read the records that come next in the partitions of the instance."""
    with _used(request, group_name, instance) as used:
        kind = embedded_type(used.settings.format)
        media = chosen(request.headers.get("accept", ""), (kind, *PLAIN_TYPES))
        if media is None:
            raise RestError(406, f"The instance reads {kind}. Accept it.", error_code=FORMAT_MISMATCH)
        if request.scope.get(HEAD):
            return Response(headers=NO_STORE, media_type=media)
        wait_ms = min(_number(request, "timeout", used.settings.wait_ms_max), used.settings.wait_ms_max)
        bytes_max = max(1, _number(request, "max_bytes", UNLIMITED))
        if used.is_reading:
            raise RestError(409, "Another request reads from the instance. Wait for its response.", error_code=40903)
        used.is_reading = True
        try:
            with used.gateway.read_budget.page() as held:
                page, content = await _while_connected(request, _page(request, used, wait_ms, bytes_max, held))
                # No await from here on: a client that is still connected gets the page that the positions say.
                used.deliver(page)
                return Held(Response(content, headers=NO_STORE, media_type=media), held)
        finally:
            used.is_reading = False


async def _page(
    request: Request, used: ConsumerInstance, wait_ms: int, bytes_max: int, held: PageBytes
) -> tuple[Page, bytes]:
    """The next page, and its JSON, whose bytes ``held`` has. Raises: RestError, FirnError."""
    with used.gateway.read_budget.page() as held_by_records:
        page = await used.read(wait_ms, bytes_max, held_by_records)
        schemas = RecordSchemas(request)
        portion = Portion()
        pieces: list[bytes] = []
        for partition, record in page.records:
            await portion.rest_if_spent()
            try:
                piece = await shown(used.settings.format, partition, record, schemas, portion)
            except RecordUnreadable as error:
                if not pieces:
                    raise RestError(422, str(error), error_code=CONVERSION_FAILED) from None
                page.cut(len(pieces))  # the next request says why
                break
            if not held.take(len(piece)):
                page.cut(len(pieces))
                break
            pieces.append(piece)
        content = b"".join((b"[", b",".join(pieces), b"]"))
        page.records.clear()
    return page, content


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves. Raises: ClientLeft; as ``work``."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise ClientLeft
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


# --- parts ----------------------------------------------------------------------------------------------------------


def _number(request: Request, name: str, missing: int) -> int:
    """A parameter; one that is negative or absent means ``missing``. Raises: RestError 400."""
    text = request.query_params.get(name)
    if text is None or text.startswith("-"):
        return missing
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise RestError(400, f"The parameter {name} must be a number.")
    return int(text)


def _place(one: PartitionOf | OffsetOf) -> TopicPartition:
    return TopicPartition(one.topic, PartitionIndex(one.partition))


def _partitions(named: Iterable[PartitionOf]) -> list[TopicPartition]:
    return [_place(one) for one in named]
