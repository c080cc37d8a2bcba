"""What a broker tells of requests, and how often: nobody without a right can fill the audit log (ADR 0033)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.core.metrics import Registry
from app.handlers.base.request import Request
from app.handlers.policy.auditing import Audit
from app.handlers.policy.callers import Caller, Rights
from app.machine.runtime import SystemClock
from app.security.audit import COARSE_PER_CALLER_MAX, EVENTS_PER_CALLER_MAX
from app.security.noting import change
from app.wire.apikeys import ApiKey
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from app.wire.apis.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from app.wire.apis.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from app.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from app.wire.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ALICE = Caller(Rights("User:alice"), host="10.0.0.1")
BOB = Caller(Rights("User:bob"), host="10.0.0.1")
BROKER = Caller(Rights("User:broker"), host="10.0.0.2")
REQUESTS = 2_000


class Kept:
    """Takes lines, and how important each is."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.important: list[bool] = []

    def put(self, line: bytes, *, important: bool) -> None:
        self.lines.append(json.loads(line))
        self.important.append(important)


def auditing(one_in: int = 0) -> tuple[Audit, Kept]:
    kept = Kept()
    return Audit(Registry(), SystemClock(), 1, kept, one_in, is_broker=lambda caller: caller is BROKER), kept


def asking(key: ApiKey, number: int = 1, caller: Caller = ALICE) -> Request:
    return Request(key, 0, number, f"client-{number}", caller)


def delete_by_id(number: int) -> tuple[ApiKey, Any, Any]:
    answer = DeletableTopicResult(None, UUID(int=number), ErrorCode.UNKNOWN_TOPIC_ID)
    return ApiKey.DELETE_TOPICS, DeleteTopicsRequest(), DeleteTopicsResponse(responses=[answer])


def expire_token(number: int) -> tuple[ApiKey, Any, Any]:
    asked = ExpireDelegationTokenRequest(number.to_bytes(32, "big"))
    return ApiKey.EXPIRE_DELEGATION_TOKEN, asked, ExpireDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def alter_configs(number: int) -> tuple[ApiKey, Any, Any]:
    asked = IncrementalAlterConfigsRequest([AlterConfigsResource(99, f"name-{number}")])
    refused = AlterConfigsResourceResponse(ErrorCode.INVALID_REQUEST, "", 99, f"name-{number}")
    return ApiKey.INCREMENTAL_ALTER_CONFIGS, asked, IncrementalAlterConfigsResponse(responses=[refused])


@pytest.mark.parametrize("flood", [delete_by_id, expire_token, alter_configs])
async def test_changes_that_fail_are_counted_and_leave_the_log_to_what_is_changed(
    flood: Callable[[int], tuple[ApiKey, Any, Any]],
) -> None:
    audit, kept = auditing()
    for number in range(REQUESTS):
        key, message, response = flood(number)
        audit.answered(asking(key, number), message, response)
    await asyncio.sleep(0)
    assert len(kept.lines) == EVENTS_PER_CALLER_MAX
    audit.close_window()
    assert len(kept.lines) <= EVENTS_PER_CALLER_MAX + COARSE_PER_CALLER_MAX + 1
    assert sum(line["count"] for line in kept.lines) == REQUESTS
    assert {line["outcome"] for line in kept.lines} == {"failed"}
    assert {line["principal"] for line in kept.lines} == {"User:alice"}
    assert not any(kept.important)


async def test_a_caller_that_fails_all_the_time_hides_no_change_and_no_failure_of_another() -> None:
    audit, kept = auditing()
    for number in range(REQUESTS):
        key, message, response = delete_by_id(number)
        audit.answered(asking(key, number), message, response)
    await asyncio.sleep(0)
    del kept.lines[:], kept.important[:]
    topics = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
    done = CreateTopicsResponse(topics=[CreatableTopicResult("t")])
    failed = CreateTopicsResponse(topics=[CreatableTopicResult("t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)])
    for answer in (done, done, failed):
        audit.answered(asking(ApiKey.CREATE_TOPICS), topics, answer)
    audit.answered(asking(ApiKey.CREATE_TOPICS, caller=BOB), topics, failed)
    await asyncio.sleep(0)
    assert [(line["principal"], line["outcome"], line["count"]) for line in kept.lines] == [
        ("User:alice", "done", 1),
        ("User:alice", "done", 1),
        ("User:bob", "failed", 1),
    ]
    assert kept.important == [True, True, False]


async def test_changes_for_which_nobody_needs_a_right_are_counted_and_leave_room_for_others() -> None:
    audit, kept = auditing()
    for number in range(REQUESTS):
        made = CreateDelegationTokenResponse(0, "User", "alice", token_id=f"token-{number}")
        audit.answered(asking(ApiKey.CREATE_DELEGATION_TOKEN, number), CreateDelegationTokenRequest(), made)
    await asyncio.sleep(0)
    audit.close_window()
    assert len(kept.lines) <= EVENTS_PER_CALLER_MAX + COARSE_PER_CALLER_MAX + 1
    assert sum(line["count"] for line in kept.lines) == REQUESTS
    assert {line["outcome"] for line in kept.lines} == {"done"}
    assert not any(kept.important)


def markers(topic_id: UUID) -> tuple[WriteTxnMarkersRequest, WriteTxnMarkersResponse]:
    asked = WritableTxnMarker(5, 2, False, [WritableTxnMarkerTopic("t", [3], topic_id)])
    result = WritableTxnMarkerTopicResult("t", [WritableTxnMarkerPartitionResult(3)])
    return WriteTxnMarkersRequest([asked]), WriteTxnMarkersResponse([WritableTxnMarkerResult(5, [result])])


@pytest.mark.parametrize(
    ("caller", "topic_id", "told"),
    [
        (BROKER, UUID(int=1), False),
        (BROKER, UUID(int=0), True),
        (ALICE, UUID(int=1), True),
        (ALICE, UUID(int=0), True),
    ],
)
async def test_markers_of_an_operator_are_told_and_those_of_brokers_are_not(
    caller: Caller, topic_id: UUID, told: bool
) -> None:
    audit, kept = auditing(one_in=1)
    audit.answered(asking(ApiKey.WRITE_TXN_MARKERS, caller=caller), *markers(topic_id))
    await asyncio.sleep(0)
    assert len(kept.lines) == told, "what brokers ask among themselves is no sample of the allowed either"
    if told:
        assert kept.lines[0]["changes"] == [
            change("TOPIC", "t", "ABORT_TRANSACTION", partition=3, producer_id=5, producer_epoch=2)
        ]


def test_of_what_a_stop_cuts_off_changes_are_told_and_members_that_leave_are_not() -> None:
    audit, kept = auditing()
    audit.cut_off(asking(ApiKey.LEAVE_GROUP), LeaveGroupRequest("g", [MemberIdentity("m-1")]))
    assert kept.lines == []
    audit.cut_off(asking(ApiKey.LEAVE_GROUP), LeaveGroupRequest("g", [MemberIdentity("", "worker-1")]))
    audit.cut_off(asking(ApiKey.CREATE_TOPICS), CreateTopicsRequest())
    assert [(line["request"], line["outcome"]) for line in kept.lines] == [
        ("LEAVE_GROUP", "unknown"),
        ("CREATE_TOPICS", "unknown"),
    ]
