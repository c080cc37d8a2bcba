"""INV-15 for large groups: a classic group whose members join, take their assignments and expire, a share group, and a consumer
group whose members read many topics each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from app.wire.apis.describe_groups import DescribeGroupsRequest
from app.wire.apis.heartbeat import HeartbeatRequest
from app.wire.apis.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from app.wire.apis.share_group_describe import ShareGroupDescribeRequest
from app.wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest
from app.wire.apis.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from tests.support.crowded import (
    ASKED_AGAIN,
    LOADING,
    WIDE,
    Crowded,
    Sizes,
    await_coordinator,
    crowded,
)
from tests.support.turns import TRIES, TURN_MS_MAX, Line

FEW = Sizes(200, 1, 1, 1, 1, 1, 1)
MANY = Sizes(10_000, 1, 1, 1, 1, 1, 1)
METADATA = b"m" * 60
AT_ONCE = 50
"""Requests that are sent before the loop comes to rest: a pass of the loop over thousands of connections is nobody's request."""


@contextmanager
def measured(on: Crowded, took_ms: dict[str, float], what: str) -> Iterator[None]:
    """Note the longest turn of a block."""
    loop = on.measured.loop
    assert loop is not None
    on.measured.settle()
    loop.begin()
    yield
    on.measured.settle()
    took_ms[what] = min(took_ms.get(what, float("inf")), max(loop.longest_ns, loop.pool_ns) / 1e6)


def too_long(took_ms: dict[str, float]) -> dict[str, float]:
    return {what: ms for what, ms in took_ms.items() if ms > TURN_MS_MAX}


def answered(on: Crowded, lines: list[Line], key: ApiKey, version: int, messages: list[Any]) -> list[Any]:
    """Send a request on each connection, and read all answers."""
    for place, (line, message) in enumerate(zip(lines, messages, strict=True)):
        line.send(request_frame(key, version, 1, "crowd", message))
        if not place % AT_ONCE:
            on.measured.settle()
    on.measured.settle()
    if key == ApiKey.JOIN_GROUP:
        on.measured.hurry(10)  # a rebalance that begins waits for more members
    found = []
    for line in lines:
        answer = line.read_answer()
        assert answer is not None
        view = memoryview(answer)
        found.append(decode_response(key, version, view[parse_response_header(view, key, version).body_start :]))
    return found


def served_line(on: Crowded, stack: ExitStack) -> Line:
    """A connection that the broker has accepted: a pass of the loop accepts up to a thousand that came together."""
    line = stack.enter_context(Line(on.broker.port))
    on.ask_on(line, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    return line


def check(path: Path, sizes: Sizes, life: Callable[[Crowded, str, dict[str, float]], None]) -> None:
    """Let groups live, one after the other, until each stage of a life was short enough once."""
    took_ms: dict[str, float] = {}
    with crowded(path, sizes) as on:
        for attempt in range(TRIES):
            life(on, f"large-{attempt}", took_ms)
            if not too_long(took_ms):
                break
    assert too_long(took_ms) == {}


def classic_life(members: int, on: Crowded, group: str, took_ms: dict[str, float]) -> None:
    with ExitStack() as stack:
        await_coordinator(lambda *message: on.ask(*message), group)
        lines = [served_line(on, stack) for _ in range(members)]
        protocols = [JoinGroupRequestProtocol("range", METADATA)]
        join = JoinGroupRequest(group, 600_000, 600_000, "", None, "consumer", protocols)
        with measured(on, took_ms, "joining"):
            joined = answered(on, lines, ApiKey.JOIN_GROUP, 3, [join] * members)
        assert {one.error_code for one in joined} == {0}
        (leader,) = (one for one in joined if one.members)
        assert len(leader.members) == members
        generation = leader.generation_id
        assignments = [SyncGroupRequestAssignment(one.member_id, b"a" * 100) for one in leader.members]
        syncs = [
            SyncGroupRequest(group, generation, one.member_id, assignments=assignments if one is leader else [])
            for one in joined
        ]
        with measured(on, took_ms, "assignments"):
            synced = answered(on, lines, ApiKey.SYNC_GROUP, 3, syncs)
        assert {(one.error_code, bytes(one.assignment)) for one in synced} == {(0, b"a" * 100)}
        beats = [HeartbeatRequest(group, generation, one.member_id) for one in joined]
        with measured(on, took_ms, "heartbeats"):
            beaten = answered(on, lines, ApiKey.HEARTBEAT, 3, beats)
        assert {one.error_code for one in beaten} == {0}
        with measured(on, took_ms, "a description"):
            described = on.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group]))
        assert len(described.groups[0].members) == members
        with measured(on, took_ms, "expiry"):
            on.measured.hurry(700)
        described = on.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group]))
        assert described.groups[0].members == []


def share_life(members: int, on: Crowded, group: str, took_ms: dict[str, float]) -> None:
    with Line(on.broker.port) as line:
        await_coordinator(lambda *message: on.ask(*message), group)
        with measured(on, took_ms, "joining"):
            for index in range(members):
                beat = ShareGroupHeartbeatRequest(group, str(UUID(int=index + 1)), 0, None, [WIDE])
                for _ in range(ASKED_AGAIN):
                    answer = on.ask_on(line, ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)
                    if answer.error_code not in LOADING:
                        break
                assert answer.error_code == 0, answer
        with measured(on, took_ms, "a description"):
            described = on.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest([group], False))
        assert len(described.groups[0].members) == members
        with measured(on, took_ms, "expiry"):
            on.measured.hurry(120)
        described = on.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest([group], False))
        assert described.groups[0].members == []


def consumer_life(members: int, topics: int, assignor: str, on: Crowded, group: str, took_ms: dict[str, float]) -> None:
    """Each member has a list of its own, and reads ``topics``."""
    known = on.names["topic"]
    epochs = dict.fromkeys([str(UUID(int=index + 1)) for index in range(members)], 0)
    owned: dict[str, list[TopicPartitions]] = {member_id: [] for member_id in epochs}

    def beat(line: Line, index: int, member_id: str) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epochs[member_id], topic_partitions=owned[member_id]
        )
        if not epochs[member_id]:
            first = index % (len(known) - topics + 1)
            request.rebalance_timeout_ms = 600_000
            request.subscribed_topic_names = known[first : first + topics]
            request.server_assignor = assignor
        for _ in range(ASKED_AGAIN):
            answer = on.ask_on(line, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            if answer.error_code not in LOADING:
                break
        assert answer.error_code == 0, answer
        epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            owned[member_id] = [
                TopicPartitions(each.topic_id, each.partitions) for each in answer.assignment.topic_partitions
            ]

    with Line(on.broker.port) as line:
        await_coordinator(lambda *message: on.ask(*message), group)
        with measured(on, took_ms, "joining"):
            for index, member_id in enumerate(epochs):
                beat(line, index, member_id)
        with measured(on, took_ms, "a new target"):
            for _ in range(ASKED_AGAIN):
                on.measured.hurry(2)  # past group.consumer.assignment.interval.ms
                for index, member_id in enumerate(epochs):
                    beat(line, index, member_id)
                if sum(len(each.partitions) for parts in owned.values() for each in parts) >= topics + members - 1:
                    break
        read = [(each.topic_id, one) for parts in owned.values() for each in parts for one in each.partitions]
        assert len(read) == len(set(read)) >= min(len(known), topics + members - 1)
        with measured(on, took_ms, "a description"):
            described = on.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest([group], False))
        assert len(described.groups[0].members) == members
        with measured(on, took_ms, "expiry"):
            on.measured.hurry(700)
        described = on.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest([group], False))
        assert described.groups[0].members == []


@pytest.mark.ci
def test_no_event_of_a_consumer_group_with_many_lists_holds_the_loop(tmp_path: Path) -> None:
    check(tmp_path, Sizes(1, 500, 1, 1, 1, 1, 1), partial(consumer_life, 40, 300, "range"))


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_no_event_of_a_large_consumer_group_with_many_lists_holds_the_loop(tmp_path: Path, assignor: str) -> None:
    check(tmp_path, Sizes(1, 1_500, 1, 1, 1, 1, 1), partial(consumer_life, 200, 1_200, assignor))


@pytest.mark.ci
def test_no_event_of_a_classic_group_holds_the_loop(tmp_path: Path) -> None:
    check(tmp_path, FEW, partial(classic_life, 300))


@pytest.mark.ci
def test_no_event_of_a_share_group_holds_the_loop(tmp_path: Path) -> None:
    check(tmp_path, FEW, partial(share_life, 100))


@pytest.mark.slow
def test_no_event_of_a_classic_group_of_3_000_members_holds_the_loop(tmp_path: Path) -> None:
    check(tmp_path, FEW, partial(classic_life, 3_000))


@pytest.mark.slow
def test_no_event_of_a_share_group_of_1_000_members_holds_the_loop(tmp_path: Path) -> None:
    check(tmp_path, MANY, partial(share_life, 1_000))
