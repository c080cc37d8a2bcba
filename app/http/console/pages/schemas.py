"""Pages of schemas: subjects, the versions of one, and the text of a version with its difference to another one.

Tests: ``tests/http/console/test_schemas.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.limits import MIB
from app.core.turns import Portion, ordered, run
from app.http.console.asking import in_time, soon
from app.http.console.pages.topics import QUERY_CHARS_MAX, number_in
from app.http.console.records.reading import Text, text_of
from app.http.console.rendering import ConsoleRoute, page
from app.http.console.texts.differences import EDITS_MAX, difference
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.registry.requests import service_of, version_in
from app.http.rest_v3 import resources
from app.http.serving import gateway_of
from app.metadata.image.records import REGISTRY_LEVEL
from app.registry.refusals import RegistryRefusal
from app.registry.subjects import Subject, read_subject
from app.registry.view import Version, View

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

SUBJECTS_A_PAGE: Final = 50
VERSIONS_A_PAGE: Final = 100
NAMED_MAX: Final = 50
"""References of a version, and versions that refer to it."""
_ENDS: Final = ("-key", "-value")
"""Of a subject that is named after a topic, as clients do without other settings."""


@router.get("/console/schemas")
async def list_subjects(request: Request) -> Response:
    query = request.query_params
    wanted, after = query.get("q", ""), query.get("after", "")
    if len(wanted) > QUERY_CHARS_MAX or len(after) > QUERY_CHARS_MAX:
        raise RestError(400, f"A filter has {QUERY_CHARS_MAX} characters at most.")
    try:
        view = await _now(request)
    except RequestRejected as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return await page(request, "schemas", section="schemas", level=REGISTRY_LEVEL)
    portion = Portion()
    names = view.subjects()
    fitting: list[str] = []
    for name in names:
        if name.startswith(wanted):
            fitting.append(name)
        if portion.spent_by():
            await portion.rest()
    fitting = await ordered(fitting, portion, str)
    begin = bisect_right(fitting, after) if after else 0
    shown = fitting[begin : begin + SUBJECTS_A_PAGE]
    rows = []
    for name in shown:
        newest = view.newest(name)
        if newest is not None:  # another request may have read of its deletion
            rows.append({"newest": newest.stored, "level": view.level(read_subject(name)).value})
        await portion.rest_if_spent()
    return await page(
        request,
        "schemas",
        section="schemas",
        level=0,
        rows=rows,
        count=len(fitting),
        total=len(names),
        first=begin + 1,
        query=wanted,
        after=shown[-1] if begin + SUBJECTS_A_PAGE < len(fitting) else "",
        begun=begin > 0,
    )


@router.get("/console/schemas/{subject}")
async def show_subject(subject: str, request: Request) -> Response:
    del subject  # as the path has it
    begin = number_in(request, "from", 0, 10_000_000)
    view, named = await _view_of(request)
    with refusals_shown():
        newest = version_in(view, named, "latest")
    found = view.versions(named.qualified)[::-1]
    shown = found[begin : begin + VERSIONS_A_PAGE]
    portion = Portion()
    rows = []
    for one in shown:
        count, _ = await run(view.count_referrers(named.qualified, one.stored.version, 0), portion)
        rows.append({"version": one, "referrers": count})
    own = (view.config(named.qualified) or {}).get("compatibilityLevel")
    return await page(
        request,
        "subject",
        section="schemas",
        subject=named.qualified,
        newest=newest.stored,
        text=await _text_of(newest),
        level=view.level(named).value,
        inherited=own is None,
        mode=view.mode(named).value,
        topic=await _topic_of(gateway_of(request), named),
        rows=rows,
        count=len(found),
        begin=begin,
        following=begin + VERSIONS_A_PAGE if begin + VERSIONS_A_PAGE < len(found) else 0,
    )


@router.get("/console/schemas/{subject}/versions/{version}")
async def show_version(subject: str, version: str, request: Request) -> Response:
    del subject
    view, named = await _view_of(request)
    against = request.query_params.get("against", "")
    with refusals_shown():
        found = version_in(view, named, version)
        other = version_in(view, named, against) if against else _before(view, named, found)
    text = await _text_of(found)
    lines = None
    old = None
    if other is not None:
        old = await _text_of(other)
        lines = await run(difference.steps(old.text, text.text))
    count, referrers = await run(view.count_referrers(named.qualified, found.stored.version, NAMED_MAX))
    numbers = [one.stored.version for one in view.versions(named.qualified)]
    return await page(
        request,
        "schema",
        section="schemas",
        subject=named.qualified,
        found=found,
        stored=found.stored,
        text=text,
        other=None if other is None else other.stored,
        old=old,
        lines=lines,
        edits_max=EDITS_MAX,
        versions=_nearest(numbers, found.stored.version),
        references=_read(found, named)[:NAMED_MAX],
        references_left=max(0, len(found.stored.references) - NAMED_MAX),
        referrers=[one.stored for one in referrers],
        referrers_left=count - len(referrers),
    )


@contextmanager
def refusals_shown() -> Iterator[None]:
    """Raises: RestError, for a refusal of the registry."""
    try:
        yield
    except RegistryRefusal as error:
        raise RestError(error.status, error.message) from None


async def _now(request: Request) -> View:
    """The registry as it is now. Raises: FirnError."""
    gateway = gateway_of(request)
    await soon(gateway, gateway.admin.describe_brokers)  # so that the read asks a broker that responds
    return await in_time(service_of(request).view(), "The registry")


async def _view_of(request: Request) -> tuple[View, Subject]:
    """The registry as it is now, and the subject that the path names. Raises: FirnError."""
    view = await _now(request)
    return view, read_subject(resources.text_of(request, "subject"))


async def _text_of(version: Version) -> Text:
    """The text of a version, JSON with line breaks."""
    return await run(text_of.steps(version.stored.schema.encode(errors="replace"), MIB, pretty=True))


async def _topic_of(gateway: Gateway, subject: Subject) -> str:
    """The topic that a subject is named after; empty if the caller sees no such topic."""
    name = next((subject.name.removesuffix(end) for end in _ENDS if subject.name.endswith(end)), "")
    if not name:
        return ""
    try:
        return (await soon(gateway, lambda: gateway.admin.describe_topic(name))).name
    except (RequestRejected, BrokerUnavailable):
        return ""


def _before(view: View, subject: Subject, version: Version) -> Version | None:
    """The version that came before one."""
    before = None
    for one in view.versions(subject.qualified):
        if one.stored.version >= version.stored.version:
            break
        before = one
    return before


def _nearest(numbers: Sequence[int], own: int) -> list[int]:
    """The numbers of versions to choose from, the newest first."""
    place = numbers.index(own) if own in numbers else len(numbers)
    begin = max(0, min(place - VERSIONS_A_PAGE // 2, len(numbers) - VERSIONS_A_PAGE))
    return [*numbers[begin : begin + VERSIONS_A_PAGE]][::-1]


def _read(version: Version, subject: Subject) -> list[tuple[str, str, int]]:
    """The references of a version: name, subject, version."""
    found = version.stored.references
    return [(one.name, read_subject(one.subject, subject.context).qualified, one.version) for one in found]
