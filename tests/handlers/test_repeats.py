"""A request that names one thing again and again is served once for it, and lets others have the loop (INV-15)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.core.errors import ErrorCode
from app.handlers.apis import committed_offsets, scram_users, transaction_listing
from app.handlers.base.request import Request
from app.wire.apis.describe_transactions import DescribeTransactionsRequest
from app.wire.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.support.callers import SOMEBODY
from tests.support.counted_loop import count_turns, on_looked_at_loop

REQUEST = Request(0, 9, 1, "client", SOMEBODY, set())


@on_looked_at_loop
async def test_users_that_are_named_twice_are_refused_once_and_many_names_take_many_turns() -> None:
    context: Any = SimpleNamespace(image=SimpleNamespace(scram_users={"u1": {}}))
    names = [f"u{number}" for number in range(20_000)]
    message = DescribeUserScramCredentialsRequest([UserName(name) for name in [*names, "u1", "u5", "u5"]])
    answer = await scram_users.describe(context, REQUEST, message)
    codes = {result.user: result.error_code for result in answer.results}
    assert len(answer.results) == len(names)
    assert codes["u1"] == codes["u5"] == ErrorCode.DUPLICATE_RESOURCE
    assert codes["u7"] == ErrorCode.RESOURCE_NOT_FOUND
    assert await count_turns(scram_users.describe(context, REQUEST, message)) > 100


class Groups:
    """Counts how often a group is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        offsets = SimpleNamespace(get=lambda group, topic, partition: None, is_pending=lambda *place: False)
        self._shard: Any = SimpleNamespace(groups={}, offsets=offsets)

    def perform(self, group_id: str, event: Any, *, nameless: bool = False) -> Any:
        self.asked.append(group_id)
        return event(self._shard, None)


@on_looked_at_loop
async def test_a_group_and_a_partition_whose_offsets_are_asked_for_again_and_again_are_answered_once() -> None:
    groups = Groups()
    context: Any = SimpleNamespace(authorizer=None, groups=groups, image=SimpleNamespace(topic=lambda name: None))
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 0]) for _ in range(3)]
    message = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics) for _ in range(1_000)])
    answer = await committed_offsets.fetch(context, REQUEST, message)
    assert groups.asked == ["g"]
    found = [(topic.name, [one.partition_index for one in topic.partitions]) for topic in answer.groups[0].topics]
    assert len(answer.groups) == 1
    assert found == [("t", [0, 1])]


@on_looked_at_loop
async def test_offsets_of_many_partitions_are_read_in_portions_and_a_response_has_a_limit(monkeypatch: Any) -> None:
    groups = Groups()
    context: Any = SimpleNamespace(authorizer=None, groups=groups, image=SimpleNamespace(topic=lambda name: None))
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(10_000)))]
    message = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=topics) for name in ("g1", "g2", "g3")])
    monkeypatch.setattr(committed_offsets, "OFFSETS_ANSWERED_MAX", 15_000)
    answer = await committed_offsets.fetch(context, REQUEST, message)
    assert [len(group.topics[0].partitions) for group in answer.groups[:2]] == [10_000, 10_000]
    assert answer.groups[2].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups.asked.count("g1") > 20


@on_looked_at_loop
async def test_a_transactional_id_that_is_named_again_and_again_is_described_once() -> None:
    asked = []

    async def describe(transactional_id: str) -> Any:
        asked.append(transactional_id)
        raise transaction_listing.RequestRejected(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "no")

    context: Any = SimpleNamespace(transactions=SimpleNamespace(describe=describe))
    message = DescribeTransactionsRequest(transactional_ids=["t"] * 1_000)
    answer = await transaction_listing.handle_describe(context, REQUEST, message)
    assert asked == ["t"]
    assert len(answer.transaction_states) == 1
