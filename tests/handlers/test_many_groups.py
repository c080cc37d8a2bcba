"""Requests about very many groups: others are served in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import BrokerConfig
from app.core.turns import PORTION_S
from app.groups.classic.classic import ClassicGroup
from app.groups.group import GroupType
from app.handlers.apis import committed_offsets, consumer_groups, groups
from app.handlers.base.request import Request
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.delete_groups import DeleteGroupsRequest
from app.wire.apis.describe_groups import DescribeGroupsRequest
from app.wire.apis.list_groups import ListGroupsRequest
from app.wire.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.support.callers import SOMEBODY
from tests.support.counted_loop import count_turns, on_counted_loop, work

CONFIG = BrokerConfig()
RNG = random.Random(1)
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
        (
            committed_offsets.fetch,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=[]) for group_id in GROUPS]),
            True,
            9,
        ),
    ],
    ids=["describe", "describe of the consumer protocol", "delete", "fetch offsets"],
)
@on_counted_loop
async def test_the_event_loop_turns_between_groups_that_take_a_portion_each(
    handle: Any, message: Any, answer: object, version: int
) -> None:
    request = Request(0, version, 1, "client", SOMEBODY, set())

    def describe() -> object:
        work(PORTION_S)
        return answer

    assert await count_turns(handle(context_where(describe), request, message)) >= len(GROUPS)


@on_counted_loop
async def test_groups_that_take_little_are_listed_in_one_portion() -> None:
    request = Request(0, 5, 1, "client", SOMEBODY, set())
    shards = [
        (number, SimpleNamespace(groups={f"g{number}": ClassicGroup(f"g{number}", CONFIG, RNG, 0)}))
        for number in range(50)
    ]
    context = context_where(lambda: None)
    context.groups.shell.shards = lambda: shards
    assert await count_turns(groups.list_groups(context, request, ListGroupsRequest())) == 1
    assert len((await groups.list_groups(context, request, ListGroupsRequest())).groups) == 50
