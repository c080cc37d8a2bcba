"""What members of classic groups keep: bounded for a member, for a group and for all groups, and released with the members."""

from __future__ import annotations

import pytest

from app.configs import BrokerConfig, TopicConfig
from app.errors import ErrorCode, RequestRejected
from app.groups.classic import ClassicGroup
from app.groups.memory import GROUPS_BYTES_MAX, MEMBER_BYTES, PER_RECORD, GroupMemory
from tests.groups.shards import SESSION_MS, ShardBench, answered

RECORD_BYTES_MAX = 10_000
REBALANCE_MS = 20_000


def bench() -> ShardBench:
    defaults = TopicConfig(max_message_bytes=RECORD_BYTES_MAX)
    return ShardBench(BrokerConfig(group_initial_rebalance_delay_ms=3000, topic_defaults=defaults))


def refused(made: ShardBench, **join: object) -> ErrorCode:
    with pytest.raises(RequestRejected) as error:
        made.join(**join)  # type: ignore[arg-type]
    return error.value.code


def test_a_member_brings_no_more_than_a_record_may_have() -> None:
    made = bench()
    assert refused(made, protocols=(("range", bytes(RECORD_BYTES_MAX)),)) == ErrorCode.MESSAGE_TOO_LARGE
    many = tuple((f"p{number}", bytes(2_000)) for number in range(5))
    assert refused(made, protocols=many) == ErrorCode.MESSAGE_TOO_LARGE
    assert made.shard.groups.get("g") is None, "nothing is kept of it"
    made.join(protocols=(("range", bytes(RECORD_BYTES_MAX - 5)),))
    assert made.group.sent_bytes > RECORD_BYTES_MAX - 100


def test_the_topics_own_limit_counts() -> None:
    made = ShardBench()
    made.join(protocols=(("range", bytes(900_000)),))
    assert refused(made, protocols=(("range", bytes(1_100_000)),)) == ErrorCode.MESSAGE_TOO_LARGE


def test_the_members_of_a_group_keep_a_few_records_at_most() -> None:
    made = bench()
    protocols = (("range", bytes(RECORD_BYTES_MAX // 2)),)
    joined = []
    while made.shard.groups.get("g") is None or made.group.sent_bytes < (PER_RECORD - 0.6) * RECORD_BYTES_MAX:
        joined.append(made.join(protocols=protocols, rebalance_ms=REBALANCE_MS))
    assert refused(made, protocols=protocols) == ErrorCode.GROUP_MAX_SIZE_REACHED
    before = made.group.sent_bytes
    assert before <= PER_RECORD * RECORD_BYTES_MAX
    made.join(protocols=(("range", b"small"),), rebalance_ms=REBALANCE_MS)
    made.advance(3_000 * (len(joined) + 2))
    member_id = answered(joined[0]).member_id
    made.join(member_id, protocols=protocols, rebalance_ms=REBALANCE_MS)  # with what it keeps already
    assert made.group.sent_bytes < before + 200


def test_member_ids_that_were_only_given_out_count_too() -> None:
    made = bench()
    for _ in range(PER_RECORD * RECORD_BYTES_MAX // 3_100):
        made.join(requires_member_id=True, client_id="x" * 3_000)
    assert refused(made, requires_member_id=True, client_id="x" * 3_000) == ErrorCode.GROUP_MAX_SIZE_REACHED
    made.advance(SESSION_MS)
    assert "g" not in made.shard.groups or made.group.kept_bytes == 0


def test_what_silent_members_kept_is_released_when_their_sessions_end() -> None:
    made = bench()
    for _ in range(4):
        made.join(protocols=(("range", bytes(5_000)),), rebalance_ms=REBALANCE_MS)
    assert made.group.kept_bytes > 20_000
    made.advance(2 * 300_000)
    assert "g" not in made.shard.groups or made.group.kept_bytes == 0


class Group:
    def __init__(self, kept_bytes: int) -> None:
        self.kept_bytes = kept_bytes


def test_all_groups_together_are_bounded_and_room_that_was_made_is_found() -> None:
    groups: list[Group] = []
    memory = GroupMemory(lambda: groups, bytes_max=1000)
    for _ in range(10):
        assert memory.admits(100)
        groups.append(Group(100))
    assert not memory.admits(1)
    groups.pop()
    assert memory.admits(100)
    groups.clear()
    for _ in range(30):
        assert memory.admits(100), "members that come and go fill nothing"


def test_a_broker_whose_groups_keep_all_they_may_refuses_joins_until_members_leave() -> None:
    made = bench()
    made.shard._memory = GroupMemory(
        lambda: [one for one in made.shard.groups.values() if isinstance(one, ClassicGroup)], bytes_max=5 * MEMBER_BYTES
    )
    for _ in range(4):
        made.join(rebalance_ms=REBALANCE_MS)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.advance(2 * 300_000)
    made.join()
    assert GROUPS_BYTES_MAX > 1 << 20
