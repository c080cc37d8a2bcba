"""Requests about very many groups: others are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from app.groups.group import GroupType
from app.handlers import committed_offsets, consumer_groups, groups
from app.handlers.context import Request
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.delete_groups import DeleteGroupsRequest
from app.wire.apis.describe_groups import DescribeGroupsRequest
from app.wire.apis.list_groups import ListGroupsRequest
from app.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from tests.support.callers import SOMEBODY

GROUPS = [f"g{number}" for number in range(30)]


def context_where(perform: Callable[[], object]) -> Any:
    """A broker whose groups answer at once, what ``perform`` gives."""
    shards = [(number, SimpleNamespace(groups={})) for number in GROUPS]
    coordinator = SimpleNamespace(
        perform=lambda group_id, event, nameless=False: perform(),
        look=lambda group_id, read: SimpleNamespace(group_type=GroupType.CLASSIC),
        shell=SimpleNamespace(loading=False, being_read=False, shards=lambda: shards),
    )
    return SimpleNamespace(authorizer=None, groups=coordinator, image=SimpleNamespace(topics_by_id={}))


async def turns_during(work: Coroutine[Any, Any, object]) -> int:
    """How often the event loop turns while a request is served."""
    served = asyncio.ensure_future(work)
    turns = 0
    while not served.done():
        turns += 1
        await asyncio.sleep(0)
    await served
    return turns


@pytest.mark.parametrize(
    ("handle", "message", "answer", "version"),
    [
        (groups.describe, DescribeGroupsRequest(groups=GROUPS), groups.DescribedGroup(), 5),
        (
            consumer_groups.describe,
            ConsumerGroupDescribeRequest(group_ids=GROUPS),
            consumer_groups.DescribedGroup(),
            0,
        ),
        (groups.delete, DeleteGroupsRequest(groups_names=GROUPS), None, 2),
        (groups.list_groups, ListGroupsRequest(), None, 5),
        (
            committed_offsets.fetch,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=[]) for group_id in GROUPS]),
            OffsetFetchResponseGroup(),
            9,
        ),
    ],
    ids=["describe", "describe of the consumer protocol", "delete", "list", "fetch offsets"],
)
async def test_the_event_loop_turns_between_groups(handle: Any, message: Any, answer: object, version: int) -> None:
    request = Request(0, version, 1, "client", SOMEBODY, set())
    assert await turns_during(handle(context_where(lambda: answer), request, message)) >= len(GROUPS)
