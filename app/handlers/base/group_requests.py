"""Shared by the requests of groups of every type.

Tests: ``tests/handlers/test_many_groups.py``, ``tests/groups/test_broker.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from app.core.errors import RequestRejected
from app.core.turns import Portion
from app.groups.shard import GroupShard
from app.handlers.base.request import Request
from app.handlers.base.views import MembersView

D = TypeVar("D")
E = TypeVar("E")


def client_host(request: Request) -> str:
    """The client's address as Kafka shows it in groups: ``/127.0.0.1``."""
    return "/" + request.caller.host


async def describe_each(
    context: MembersView,
    group_ids: Iterable[str],
    describe_one: Callable[[GroupShard, str], D],
    refused: Callable[[str, RequestRejected], E],
    *,
    nameless: bool = False,
) -> list[D | E]:
    """Describe each group by itself, once.

    ``refused`` makes the answer for a group whose ``describe_one`` raises RequestRejected, or that this broker cannot look up.
    ``nameless`` as in ``GroupCoordinator.perform``.
    """
    answers: list[D | E] = []
    portion = Portion()
    for group_id in dict.fromkeys(group_ids):
        try:
            found = context.groups.perform(
                group_id,
                lambda shard, _, name=group_id: describe_one(shard, name),  # type: ignore[misc]
                nameless=nameless,
            )
            answers.append(await found if isinstance(found, Awaitable) else found)
        except RequestRejected as error:
            answers.append(refused(group_id, error))
        await portion.rest_if_spent()  # a tool asks for all groups at once
    return answers
