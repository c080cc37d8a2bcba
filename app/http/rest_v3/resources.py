"""The shape of REST v3's responses: resources with links, and lists of them in pages.

A list has at most ``PAGE_MAX`` elements, and fewer if ``page_size`` says so. Then ``metadata.next`` links to the following page.
A page begins behind the last element of the one before, so elements that come and go between two pages neither repeat nor hide
others.

Tests: ``tests/http/rest_v3/test_pages.py``.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import Request
from starlette.responses import Response

from app.core.turns import each
from app.http.bodies import JSON_TYPE, small_body
from app.http.conventions import whole_part
from app.http.errors import NO_STORE, RestError
from app.http.gateway import ADMIN_BODY_BYTES_MAX, Gateway
from app.http.schemas import content_of, reference
from app.http.serving import gateway_of

T = TypeVar("T")

PAGE_MAX: Final = 10_000
"""Elements of one page. Few lists are longer, so most clients that do not follow ``next`` see the whole list."""
NO_CONTENT: Final = 204

_PAGING: Final = {
    "parameters": [
        {
            "name": "page_size",
            "in": "query",
            "required": False,
            "description": "Elements of a page at most.",
            "schema": {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_MAX},
        },
        {
            "name": "page_token",
            "in": "query",
            "required": False,
            "description": "Where the page begins. It is part of the link `metadata.next` of the page before.",
            "schema": {"type": "string"},
        },
    ]
}


PAGED: Final[dict[str, Any]] = _PAGING
"""``openapi_extra`` of a route that responds with pages."""


def listed(kind: type[msgspec.Struct], text: str) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route whose response is a list of such resources."""
    schema = {
        "type": "object",
        "required": ["kind", "metadata", "data"],
        "properties": {
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "required": ["self"],
                "properties": {"self": {"type": "string"}, "next": {"type": ["string", "null"]}},
            },
            "data": {"type": "array", "items": reference(kind)},
        },
    }
    return {200: {"description": text, "content": {JSON_TYPE: {"schema": schema}}}}


def described(kind: type[msgspec.Struct], text: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route whose response is one such resource."""
    return {status: {"description": text, "content": content_of(kind)}}


async def checked(request: Request, cluster_id: str) -> Gateway:
    """The gateway of a request to this cluster. Raises: RestError 404 for another cluster's id, BrokerUnavailable."""
    gateway = gateway_of(request)
    await gateway.check_cluster(cluster_id)
    return gateway


async def body_of(request: Request, gateway: Gateway, kind: type[T]) -> T:
    """The body of a request of an administrator. Raises: as ``small_body``."""
    idle_timeout_ms = gateway.settings.body_idle_timeout_ms
    return await small_body(request, kind, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=idle_timeout_ms)


SettingValue = str | int | float | bool
"""The value of a setting as clients send it. Kafka has all as texts."""


def setting_text(value: SettingValue) -> str:
    """The text of a setting's value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def text_of(request: Request, name: str) -> str:
    """As ``whole_part``, by the name of the part."""
    return whole_part(request, request.path_params[name])


# --- links ----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """A part of a path, for a link."""
    return quote(text, safe="")


def url(request: Request, path: str) -> str:
    """The URL of a path below ``/v3``, as this client reaches this server."""
    return f"{request.base_url}v3/{path}"


class Related(msgspec.Struct):
    """A link to other resources."""

    related: str


class ResourceMetadata(msgspec.Struct):
    """The link to a resource itself, and its name in words."""

    self_url: str = msgspec.field(name="self")
    resource_name: str


class RestResource(msgspec.Struct, kw_only=True):
    """The fields that all resources have. A subclass says its ``kind``."""

    kind: str
    metadata: ResourceMetadata


def related(request: Request, path: str) -> Related:
    return Related(url(request, path))


def metadata(request: Request, path: str, resource: str) -> ResourceMetadata:
    return ResourceMetadata(url(request, path), f"crn:///{resource}")


# --- lists ----------------------------------------------------------------------------------------------------------


class PageAsked(NamedTuple):
    """A part of a list."""

    size: int
    after: tuple[str | int, ...] | None
    """The place of the last element of the page before; None for the first page."""


def page_of(request: Request, size_max: int = PAGE_MAX) -> PageAsked:
    """The page that a request asks for. Raises: RestError 400."""
    size = size_max
    if (text := request.query_params.get("page_size")) is not None:
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= 1):
            raise RestError(400, f"The parameter page_size must be a number from 1 to {size_max}.")
        size = min(int(text), size_max)
    after: tuple[str | int, ...] | None = None
    if (token := request.query_params.get("page_token")) is not None:
        try:
            after = msgspec.json.decode(urlsafe_b64decode(token.encode()), type=tuple[str | int, ...])
        except (ValueError, msgspec.MsgspecError, RecursionError):
            raise RestError(
                400, "The parameter page_token is not one of this server. Take it from the link metadata.next."
            ) from None
    return PageAsked(size, after)


def part_of(
    page: PageAsked, items: Sequence[T], place: Callable[[T], tuple[str | int, ...]]
) -> tuple[Sequence[T], tuple[str | int, ...] | None]:
    """The elements of a page, out of all ``items``, which are in the order of their places.

    Returns: them, and the place of the last one if more follow. Raises: RestError 400 if the token belongs to another list.
    """
    begin = 0
    if page.after is not None:
        try:
            begin = bisect_right(items, page.after, key=place)
        except TypeError:
            raise RestError(
                400, "The parameter page_token belongs to another list. Take it from the link metadata.next."
            ) from None
    found = items[begin : begin + page.size]
    return found, place(found[-1]) if begin + page.size < len(items) else None


def next_link(request: Request, after: tuple[str | int, ...] | None) -> str | None:
    """The URL of the page behind ``after``; None if there is none."""
    if after is None:
        return None
    token = urlsafe_b64encode(msgspec.json.encode(after)).decode()
    return str(request.url.include_query_params(page_token=token))


def listing(
    request: Request, kind: str, path: str, data: Sequence[object], following: str | None = None
) -> dict[str, Any]:
    """The response of a list."""
    return {"kind": kind, "metadata": {"self": url(request, path), "next": following}, "data": data}


async def long_list(
    request: Request, kind: str, path: str, data: Iterable[object], following: str | None = None
) -> Response:
    """The response of a list whose length the cluster decides: it is made in portions."""
    return await with_elements(listing(request, kind, path, [], following), data)


async def with_elements(empty: object, elements: Iterable[object]) -> Response:
    """The response ``empty``, whose last field is an empty list, with these elements in the list. It is made in portions."""
    pieces: list[bytes] = []
    await each(lambda one: pieces.append(msgspec.json.encode(one)), elements)
    return Response(filled(empty, pieces), media_type=JSON_TYPE, headers=NO_STORE)


def filled(empty: object, elements: Sequence[bytes]) -> bytes:
    """The JSON of ``empty``, whose last field is an empty list, with these elements of JSON in the list."""
    content = msgspec.json.encode(empty)
    assert content.endswith(b"[]}")
    return b"".join((content[:-2], b",".join(elements), b"]}"))


async def page_list(
    request: Request,
    kind: str,
    path: str,
    items: Sequence[T],
    *,
    place: Callable[[T], tuple[str | int, ...]],
    shape: Callable[[T], object],
) -> Response:
    """The page that the request asks for, out of all ``items``, which are in the order of their places. Raises: RestError 400."""
    part, after = part_of(page_of(request), items, place)
    return await long_list(request, kind, path, (shape(one) for one in part), next_link(request, after))
