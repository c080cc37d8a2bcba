"""What members of classic groups keep: bounded for a member, for a group and for all groups, and released with the members."""

from __future__ import annotations

import random

import pytest

from app.configs import BrokerConfig, TopicConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import TimestampMs
from app.groups.classic.classic import ClassicGroup
from app.groups.classic.embedded import encode_assignment
from app.groups.consumer.consumer import ClientInfo, ConsumerGroup
from app.groups.memory import GROUPS_BYTES_MAX, MEMBER_BYTES, PENDING_BYTES, PER_RECORD, Account, GroupMemory
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.groups.shards import RANGE, SESSION_MS, ShardBench, answered

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


def test_all_groups_together_are_bounded_and_what_adds_nothing_is_admitted() -> None:
    accounts = [Account(), Account()]
    memory = GroupMemory(lambda: accounts, bytes_max=1000)
    accounts[0].bytes, accounts[1].bytes = 500, 400
    assert memory.bytes == 900
    assert memory.admits(100)
    assert not memory.admits(101)
    accounts[1].bytes = 600
    assert not memory.admits(1)
    assert memory.admits(0)
    assert memory.admits(-50)
    accounts.pop()
    assert memory.admits(500), "a shard that has ended keeps nothing"


def bound(made: ShardBench, bytes_max: int) -> None:
    """All groups of the broker keep so much at most."""
    made.shard._memory = GroupMemory(lambda: [made.shard.groups.account], bytes_max=bytes_max)


def test_a_broker_whose_groups_keep_all_they_may_refuses_joins_until_members_leave() -> None:
    made = bench()
    bound(made, 5 * MEMBER_BYTES)
    for _ in range(4):
        made.join(rebalance_ms=REBALANCE_MS)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.advance(2 * 300_000)
    made.join()
    assert GROUPS_BYTES_MAX > 1 << 20


def test_members_that_return_with_what_they_keep_are_admitted_when_all_memory_is_in_use() -> None:
    made = bench()
    given = answered(made.join(requires_member_id=True)).member_id
    joins = [made.join(given), made.join(instance_id="i" * 200)]
    made.advance(9_000)
    member_id, static_id = (answered(one).member_id for one in joins)
    bound(made, made.group.kept_bytes)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    made.join(member_id)
    made.join(static_id, instance_id="i" * 200)
    made.join(instance_id="i" * 200)
    assert member_id in made.group.members
    assert static_id not in made.group.members, "it has a new member id"
    assert len(made.group.members) == 2
    more = ((RANGE[0][0], RANGE[0][1] + b"x"),)
    assert refused(made, member_id=member_id, protocols=more) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refused(made, instance_id="i" * 200, protocols=more) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bound(made, made.group.kept_bytes + 1)
    made.join(member_id, protocols=more)


def test_loaded_groups_count() -> None:
    made = bench()
    made.stable(3)
    made.restart()
    kept_bytes = made.group.kept_bytes
    assert made.shard.groups.account.bytes == kept_bytes > 3 * MEMBER_BYTES
    bound(made, kept_bytes + MEMBER_BYTES)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_join_looks_at_no_group_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench()
    for number in range(300):
        made.shard.groups[f"other {number}"] = ClassicGroup(
            f"other {number}", made.shard.config(), made.shard.rng, TimestampMs(0)
        )
    made.stable(1)
    looked: set[str] = set()
    kept_bytes = ClassicGroup.kept_bytes

    def counted(group: ClassicGroup) -> int:
        looked.add(group.group_id)
        size = kept_bytes.fget(group)  # type: ignore[attr-defined]
        assert isinstance(size, int)
        return size

    monkeypatch.setattr(ClassicGroup, "kept_bytes", property(counted))
    bound(made, made.shard.groups.account.bytes)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bound(made, 1 << 30)
    made.join()
    assert looked == {"g"}


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_is_exact_whatever_members_and_groups_do(seed: int) -> None:
    rng = random.Random(seed)
    made = bench()
    known: list[str] = []
    for _ in range(150):
        found = made.shard.groups.get("g")
        if isinstance(found, ClassicGroup):
            known = [*found.members, *found.pending_joins]
        member_id = rng.choice([*known, "", "", "unknown"])
        instance_id = rng.choice([None, None, "a", "b"])
        protocols = (("range", bytes(rng.randrange(500))),)
        match rng.randrange(8):
            case 0 | 1 | 2:
                made.code(
                    lambda _shard, _turn, member_id=member_id, instance_id=instance_id, protocols=protocols: made.join(  # type: ignore[misc]
                        member_id,
                        instance_id=instance_id,
                        protocols=protocols,
                        requires_member_id=rng.random() < 0.5,
                        rebalance_ms=REBALANCE_MS,
                    )
                )
            case 3 | 4:
                made.advance(rng.choice([100, 3_000, SESSION_MS]))
            case 5:
                if "g" in made.shard.groups:
                    made.leave((member_id, instance_id))
            case 6:
                made.code(lambda shard, turn: shard.delete_group(turn, "g"))
            case _:
                if rng.random() < 0.3:
                    made.restart()
        groups = [one for one in made.shard.groups.values() if isinstance(one, ClassicGroup)]
        recount = sum(
            sum(MEMBER_BYTES + member.sent_bytes for member in group.members.values())
            + sum(PENDING_BYTES + len(one) for one in group.pending_joins)
            for group in groups
        )
        assert made.shard.groups.account.bytes == recount


def test_a_group_that_is_replaced_or_deleted_counts_no_more() -> None:
    table = bench().shard.groups
    made = bench()
    made.stable(2)
    table["g"] = made.group
    assert table.account.bytes == made.group.kept_bytes > 0
    assert made.shard.groups.account.bytes == 0, "it counts in one table only"
    table["g"] = made.group
    assert table.account.bytes == made.group.kept_bytes
    table["g"] = ConsumerGroup("g", BrokerConfig())
    assert table.account.bytes == 0
    table["g"] = made.group
    del table["g"]
    assert table.account.bytes == 0


def test_classic_members_of_a_consumer_group_return_when_all_memory_is_in_use() -> None:
    made = bench()
    (member,) = made.join_all(1)
    made.sync(
        member.member_id, member.generation_id, [(member.member_id, encode_assignment(1, [("t", tuple(range(100)))]))]
    )
    upgrade = ConsumerGroupHeartbeatRequest(
        "g", "new", 0, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"], topic_partitions=[]
    )
    made.do(lambda shard, turn: shard.consumer_heartbeat(turn, upgrade, ClientInfo("client", "/127.0.0.1")))
    assert isinstance(made.shard.groups["g"], ConsumerGroup)
    assert made.shard.groups.account.bytes == 0
    bound(made, 0)
    assert refused(made) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answered(made.join(member.member_id)).error_code == ErrorCode.NONE
