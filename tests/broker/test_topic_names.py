"""FirnTopics: pages of names of topics, filtered and sorted by the broker (ADR 0047)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.turns import whole
from app.metadata.image.records import REQUESTS_LEVEL
from app.security.acls import Operation
from app.security.authorizer import Authorizer
from app.wire.apikeys import ApiKey
from app.wire.private import TopicsRequest, TopicsResponse, pack, topics_page_steps, unpack
from tests.broker.guarded import TOPIC, guarded
from tests.handlers.conversation import talk
from tests.support.broker import running_broker
from tests.support.rights import SEEN


async def paged(admin: AdminClient, limit: int, **asked: Any) -> tuple[list[str], list[tuple[int, int, int]]]:
    """All names, page by page, and the counts of each page."""
    names: list[str] = []
    counts: list[tuple[int, int, int]] = []
    while True:
        page = await admin.topic_names(after=names[-1] if names else "", limit=limit, **asked)
        names += page.names
        counts.append((page.before, page.fitting, page.total))
        if page.before + len(page.names) >= page.fitting:
            return names, counts


@pytest.mark.parametrize("level", [REQUESTS_LEVEL, REQUESTS_LEVEL - 1], ids=["this release", "the one before"])
async def test_names_come_in_pages_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    monkeypatch.setattr("app.handlers.apis.handshakes.LEVEL_MAX", level)
    async with running_broker(tmp_path, new_level=level) as broker:
        for name in ("orders.us", "flights", "orders.eu", "Orders", "orders"):
            await broker.create_topic(name)
        await broker.node.membership.controller.create_topic("__consumer_offsets", 1)
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            admin = AdminClient(cluster)
            names, counts = await paged(admin, 2)
            assert names == ["Orders", "flights", "orders", "orders.eu", "orders.us"]
            assert counts == [(0, 5, 6), (2, 5, 6), (4, 5, 6)]
            assert await paged(admin, 10, contains="orders.") == (["orders.eu", "orders.us"], [(0, 2, 6)])
            assert (await admin.topic_names(internal=True)).names[1] == "__consumer_offsets"
            asked = (await cluster.any_broker()).supported
            assert asked["firn.version"] == level


async def test_no_right_is_decided_by_a_look_at_the_rules_for_each_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.DESCRIBE, TOPIC, SEEN))
        decided: list[str] = []
        allows = Authorizer.allows

        def counted(self: Authorizer, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
            if kind == TOPIC:
                decided.append(name)
            return allows(self, principal, host, operation, kind, name)

        monkeypatch.setattr(Authorizer, "allows", counted)
        async with broker.as_user("User:alice") as alice:
            raw = await alice.ask(ApiKey.FIRN_TOPICS, 0, pack(TopicsRequest(internal=True)))
        assert unpack(TopicsResponse, raw).names == [SEEN]
        assert decided == []


async def test_only_topics_that_the_caller_may_describe_are_listed_and_counted(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.DESCRIBE, TOPIC, SEEN))
        async with broker.as_user("User:alice") as alice:
            raw = await alice.ask(ApiKey.FIRN_TOPICS, 0, pack(TopicsRequest(internal=True)))
            assert unpack(TopicsResponse, raw) == TopicsResponse([SEEN], 0, 1, 1)


async def test_a_text_that_no_name_can_have_ends_the_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        client.send(ApiKey.FIRN_TOPICS, 0, pack(TopicsRequest("x" * 301)))
        assert await client.closed()


def test_a_page_of_many_names_is_that_of_all_names_sorted() -> None:
    names = [f"t{number:05}" for number in range(7_000)]
    shuffled = random.Random(1).sample(names, len(names))
    steps = topics_page_steps(TopicsRequest(after="t00999"), ((name, False) for name in shuffled), lambda _: True)
    assert whole(steps) == TopicsResponse(names[1_000:2_000], 1_000, 7_000, 7_000)
    steps = topics_page_steps(TopicsRequest(limit=-5), ((name, False) for name in shuffled), lambda _: True)
    assert whole(steps).names == ["t00000"]
