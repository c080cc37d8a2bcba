"""Resets of a group's offsets. A preview shows the new offset of each partition. The reset then sets exactly these offsets.

The group must have no member. The caller types the group's name to confirm. The reset is refused if an offset of the group has
changed since the preview. Tests: ``tests/http/console/test_resetting.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.client.cluster import EARLIEST, LATEST, ListedOffset
from app.client.groups import Committed, GroupView, ShareProgress
from app.client.offset_targets import targets
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.limits import KIB
from app.core.turns import STRIDE, Portion, Steps, ordered, run
from app.core.units import BrokerId, PartitionIndex, TopicPartition
from app.http.body_budget import bytes_of_body
from app.http.console.acts.producing import tell
from app.http.console.asking import changed_by, of_broker, soon, together
from app.http.console.forms import done_token, form_of
from app.http.console.pages.messages import OFFSET_MAX, moment_of
from app.http.console.rendering import GUARDED, ConsoleRoute, page
from app.http.console.texts.command_lines import reset_line
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.rest_v3.groups import present
from app.http.rest_v3.resources import text_of
from app.http.serving import gateway_of

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)

RESET: Final = "/console/groups/{group_id}/reset"
PARTITIONS_MAX: Final = 500
"""Of a reset."""
FORM_BYTES_MAX: Final = 512 * KIB
WHERE: Final[Mapping[str, str]] = {
    "earliest": "the earliest record",
    "latest": "the end",
    "time": "a time (UTC)",
    "offset": "an offset",
}
ASKED: Final = ("topic", "partition", "to", "at")
"""Parameters of a preview. The form that confirms it repeats them, so that a refused one shows the command of the same reset."""
ASKED_CHARS_MAX: Final = 300
_TOO_MANY: Final = f"A reset has {PARTITIONS_MAX} partitions at most. Choose a topic, or use `firn group reset`."
_HAS_MEMBERS: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP})


class Change(NamedTuple):
    """A partition of a reset. The form repeats it as the preview showed it."""

    topic: str
    partition: int
    before: int
    """-1 if the group has no offset there."""
    after: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, PartitionIndex(self.partition))

    @property
    def effect(self) -> str:
        """The effect of the change on the group, in a phrase."""
        if self.before < 0:
            return "begins there"
        if self.after == self.before:
            return "stays"
        count = abs(self.after - self.before)
        many = f"{count:,} {'offset' if count == 1 else 'offsets'}"
        return f"{many} again" if self.after < self.before else f"{many} left out"


_changes: Final = msgspec.json.Decoder(list[Change])


async def _described(gateway: Gateway, name: str) -> tuple[BrokerId, GroupView]:
    """The coordinator of a group, and the group. Raises: RequestRejected, BrokerUnavailable."""
    groups = gateway.groups
    coordinator = await soon(gateway, lambda: groups.coordinator_of(name))
    return coordinator, await of_broker(gateway, coordinator, lambda _: groups.describe(name))


async def _group(gateway: Gateway, name: str) -> tuple[BrokerId, GroupView, Mapping[TopicPartition, int]]:
    """The coordinator of a group, the group, and its offsets. Raises: RequestRejected, BrokerUnavailable."""
    groups = gateway.groups
    coordinator, view = await _described(gateway, name)
    if view.group_type == "share":
        progress = await of_broker(gateway, coordinator, lambda _: groups.share_progress(name))
        return coordinator, view, await run(_offsets_in(progress))
    found = await of_broker(gateway, coordinator, lambda _: groups.committed(name))
    return coordinator, view, await run(_offsets_in(found))


def _offsets_in(found: Mapping[TopicPartition, Committed | ShareProgress]) -> Steps[Mapping[TopicPartition, int]]:
    """The offsets alone, as work in steps: a group may have any number of partitions."""
    offsets = {}
    for place, one in found.items():
        offsets[place] = one.offset
        if len(offsets) % STRIDE == 0:
            yield
    return offsets


def topics_in(committed: Iterable[TopicPartition]) -> Steps[set[str]]:
    """The topics of a group's offsets, as work in steps."""
    topics = set()
    for number, place in enumerate(committed):
        topics.add(place.topic)
        if number % STRIDE == 0:
            yield
    return topics


async def _offsets(gateway: Gateway, places: Sequence[TopicPartition], moment: int) -> dict[TopicPartition, int]:
    """An offset of each partition, as its leader tells it. Raises: RequestRejected, BrokerUnavailable."""
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for place in places:
        leader = gateway.cluster.view.leader_of(place)
        if leader is None:
            raise BrokerUnavailable(f"Partition {place.topic}-{place.partition} has no leader. Try again later.")
        by_leader.setdefault(leader, []).append(place)

    async def of_leader(leader: BrokerId) -> dict[TopicPartition, ListedOffset]:
        wanted = dict.fromkeys(by_leader[leader], moment)
        return await of_broker(gateway, leader, lambda _: gateway.cluster.list_offsets(wanted))

    told = await together(*map(of_leader, by_leader))
    return {place: one.offset for answer in told for place, one in answer.items()}


async def _chosen(
    gateway: Gateway, committed: Mapping[TopicPartition, int], topic: str, index: str
) -> Sequence[TopicPartition]:
    """The partitions that a preview is for. Raises: RestError 400, 404; RequestRejected, BrokerUnavailable."""
    if not topic:
        if index:
            raise RestError(400, "A partition needs its topic. Choose the topic, too.")
        if len(committed) > PARTITIONS_MAX:
            raise RestError(400, _TOO_MANY)
        return await present(gateway, await ordered(committed, Portion(), lambda place: place))
    count = len((await gateway.admin.describe_topic(topic)).partitions)
    if index:
        if not (index.isascii() and index.isdecimal() and len(index) < 11 and int(index) < count):
            raise RestError(400, f"Topic {topic} has the partitions 0 to {count - 1}.")
        return [TopicPartition(topic, PartitionIndex(int(index)))]
    if count > PARTITIONS_MAX:
        raise RestError(400, _TOO_MANY)
    return [TopicPartition(topic, PartitionIndex(one)) for one in range(count)]


async def _aims(gateway: Gateway, places: Sequence[TopicPartition], to: str, at: str) -> Mapping[TopicPartition, int]:
    """The new offset of each partition. Raises: RestError 400, RequestRejected, BrokerUnavailable."""
    match to:
        case "earliest":
            return dict.fromkeys(places, 0)
        case "latest":
            return dict.fromkeys(places, -1)
        case "offset":
            if not (at.isascii() and at.isdecimal() and len(at) < 20 and int(at) <= OFFSET_MAX):
                raise RestError(400, f"The offset must be a number from 0 to {OFFSET_MAX}.")
            return dict.fromkeys(places, int(at))
        case "time":
            return await _offsets(gateway, places, moment_of(at))
        case _:
            raise RestError(400, "The new offset is none of the page's kinds.")


async def changes_of(
    gateway: Gateway, committed: Mapping[TopicPartition, int], *, topic: str, index: str, to: str, at: str
) -> list[Change]:
    """The preview of a reset. Raises: RestError 400, 404; RequestRejected, BrokerUnavailable."""
    places = await _chosen(gateway, committed, topic, index)
    if not places:
        return []
    aims = await _aims(gateway, places, to, at)
    starts, ends = await _offsets(gateway, places, EARLIEST), await _offsets(gateway, places, LATEST)
    found = targets(aims, starts, ends)
    return [Change(place.topic, place.partition, committed.get(place, -1), found[place]) for place in places]


@router.get(RESET)
async def preview(group_id: str, request: Request) -> Response:
    gateway = gateway_of(request)
    _, view, committed = await _group(gateway, text_of(request, "group_id"))
    query = request.query_params
    asked = {name: query.get(name, "").strip() for name in ASKED}
    changes, message, status = None, "", 200
    if asked["to"] and not view.members:
        try:
            changes = await changes_of(
                gateway, committed, topic=asked["topic"], index=asked["partition"], to=asked["to"], at=asked["at"]
            )
        except (FirnError, RestError) as error:
            status, message = tell(request, gateway, error, RESET)
    return await _page(request, view, committed, asked, changes, message, status)


async def _page(
    request: Request,
    view: GroupView,
    committed: Mapping[TopicPartition, int],
    asked: Mapping[str, str],
    changes: Sequence[Change] | None,
    message: str,
    status: int,
) -> Response:
    topics = (await ordered(await run(topics_in(committed)), Portion(), str))[:PARTITIONS_MAX]
    values: dict[str, Any] = {
        "group": view,
        "topics": topics,
        "asked": asked,
        "where": WHERE,
        "changes": changes,
        "plan": msgspec.json.encode(changes or []).decode(),
        "message": message,
        "command": reset_line(view.group_id, **asked),
    }
    return await page(request, "group_reset", status_code=status, section="groups", **values)


@router.post(RESET)
async def reset(group_id: str, request: Request) -> Response:
    gateway = gateway_of(request)
    await _described(
        gateway, text_of(request, "group_id")
    )  # a caller without a right to the group sends no form for it
    with bytes_of_body(request) as held:
        fields = await form_of(request, bytes_max=FORM_BYTES_MAX, held=held)
    # Read after the form, which may take minutes to come: members of the group may commit meanwhile.
    coordinator, view, committed = await _group(gateway, text_of(request, "group_id"))
    name = view.group_id
    changes: Sequence[Change] | None = None
    try:
        changes = _read_plan(fields.get("plan", ""))
        if fields.get("name", "") != name:
            raise RestError(400, "The name that was typed is not the group's. Type the name of the group to confirm.")
        if any(committed.get(one.place, -1) != one.before for one in changes):
            raise RestError(409, f"Group {name} has moved since the preview. Look at a new preview.")
        await _apply(gateway, coordinator, view, changes)
    except (FirnError, RestError) as error:
        status, message = tell(request, gateway, error, RESET)
        shown = changes if status == 400 else None
        asked = {name: fields.get(name, "")[:ASKED_CHARS_MAX] for name in ASKED}
        return await _page(request, view, committed, asked, shown, message, status)
    proof = done_token(request, f"set {name} {len(changes)}")
    where = f"/console/groups/{quote(name, safe='')}?set={len(changes)}&proof={proof}"
    return RedirectResponse(where, 303, headers={**GUARDED, "cache-control": "no-store"})


def _read_plan(text: str) -> list[Change]:
    """The changes that a form has. Raises: RestError 400."""
    try:
        changes = _changes.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        changes = []
    in_range = all(0 <= one.after <= OFFSET_MAX and 0 <= one.partition < 2**31 for one in changes)
    if not changes or not in_range or len(changes) > PARTITIONS_MAX:
        raise RestError(400, "The form has no preview. Look at a preview first.")
    return changes


async def _apply(gateway: Gateway, coordinator: BrokerId, view: GroupView, changes: Sequence[Change]) -> None:
    """Raises: RequestRejected, BrokerUnavailable."""
    groups = gateway.groups
    write = groups.alter_share_progress if view.group_type == "share" else groups.commit
    offsets = {one.place: one.after for one in changes}
    unknown = "It is not known whether the offsets were set. Look at the group before you reset it again."
    try:
        await changed_by(gateway, coordinator, lambda _: write(view.group_id, offsets), unknown=unknown)
    except RequestRejected as error:
        if error.code not in _HAS_MEMBERS:
            raise
        raise RequestRejected(
            ErrorCode.NON_EMPTY_GROUP, f"Group {view.group_id} has members: stop them before you reset the group."
        ) from error
