"""What the audit log makes of administrative requests and their responses, whatever they hold."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.handlers.base.authorising import TABLE, Each, Special, Whole
from app.handlers.policy.audited_changes import CHANGES, COUNTED, NOT_SAMPLED, ONLY_IF, resources_of, shown_value
from app.metadata.peers.control import RegisterRequest, RegisterResponse
from app.security.acls import Operation
from app.security.noting import change
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from app.wire.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)
from app.wire.apis.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from app.wire.apis.heartbeat import HeartbeatRequest
from app.wire.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from app.wire.apis.offset_commit import OffsetCommitRequest
from app.wire.private import (
    DrainRequest,
    SchemasRequest,
    SchemasResponse,
    TierReplaceRequest,
    TierReplaceResponse,
    pack,
)
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, SERVED

CHANGES_NOTHING = {
    ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.FIRN_TOPICS, ApiKey.FIRN_TOPIC_LAGS,
    ApiKey.FIRN_METRICS, ApiKey.FIRN_CLUSTER, ApiKey.FIRN_TIER_STATUS, ApiKey.FIRN_TIER_SEGMENTS, ApiKey.FIRN_ENTRIES,
    ApiKey.FIRN_MEMBERS, ApiKey.FIRN_MANIFESTS, ApiKey.FIRN_TRANSACTIONS, ApiKey.FIRN_PULSE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY,
}  # fmt: skip
"""Those that read."""
NO_CHANGE_OF_SETTINGS = {
    "writes records, of which one in so many is sampled": {
        ApiKey.PRODUCE, ApiKey.FIRN_REQUESTS, ApiKey.FIRN_APPEND, ApiKey.FIRN_KEYED,
    },
    "a producer's transaction around records; a producer that starts and a tool that ends a transaction ask the same": {
        ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    },
    "a member says that it comes, is there, or goes": {
        ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
    },
    "a member reads, and says what it has read": {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE},
    "is told as a login": {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.FIRN_FORWARDED},
    "tells of the topics that it makes by itself": {ApiKey.METADATA},
    "makes the topics of the broker itself, once": {ApiKey.FIND_COORDINATOR},
    "what is inside is told": {ApiKey.ENVELOPE},
    "brokers at work; what a client has caused is told where the client asked for it": {
        ApiKey.ALTER_PARTITION, ApiKey.BROKER_HEARTBEAT, ApiKey.FIRN_CHANGE, ApiKey.FIRN_PLACE, ApiKey.FIRN_HOLD,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE,
    },
}  # fmt: skip
"""Why an API that writes something is not told as a change."""
READS = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION}
OF_RECORDS = {
    ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.FIRN_REQUESTS, ApiKey.FIRN_APPEND, ApiKey.FIRN_KEYED,
}  # fmt: skip
"""They write records, or a transaction around records."""


def test_of_every_api_it_is_decided_whether_it_is_told_as_a_change() -> None:
    decided = [CHANGES.keys(), CHANGES_NOTHING, *NO_CHANGE_OF_SETTINGS.values()]
    served = {*TABLE, *SERVED, *BETWEEN_BROKERS, *OPAQUE}
    assert Counter(int(key) for keys in decided for key in keys) == Counter(map(int, served))
    assert ONLY_IF.keys() <= CHANGES.keys()
    assert CHANGES.keys() >= COUNTED


def test_every_api_that_a_caller_without_a_right_to_change_may_ask_is_counted() -> None:
    free = {
        key
        for key in CHANGES
        if all(getattr(entry, "operation", Operation.READ) is Operation.READ for entry in TABLE[ApiKey(key)])
        and not any(isinstance(entry, Special) for entry in TABLE[ApiKey(key)])
    }
    assert free | {ApiKey.CREATE_DELEGATION_TOKEN} == COUNTED, "everybody may make a token of their own"


def test_every_api_that_asks_for_more_than_reading_is_told_as_a_change() -> None:
    changing = set()
    for key, entries in TABLE.items():
        for entry in entries:
            operations = {getattr(entry, "operation", Operation.READ)}
            if isinstance(entry, Special):
                operations = {operation for operation, _ in entry.asks}
            if isinstance(entry, (Whole, Each, Special)) and not operations <= READS:
                changing.add(key)
    assert changing - OF_RECORDS <= CHANGES.keys()
    assert {*CHANGES} & NOT_SAMPLED == {ApiKey.WRITE_TXN_MARKERS}, "brokers ask it all the time"


def register(error: int = 0) -> tuple[bytes, bytes]:
    uuid = UUID(int=1)
    asked = RegisterRequest("cluster", 5, uuid, uuid, -1, -1, -1, "", "", (), None, "", 0, 9)
    return pack(asked), pack(RegisterResponse(error, "why"))


def test_brokers_and_drains_and_replaced_segments_are_changes() -> None:
    (told,) = CHANGES[ApiKey.FIRN_REGISTER](*register())
    assert (told["type"], told["name"], told["action"], told["directory_id"]) == (
        "BROKER",
        "5",
        "REGISTER",
        str(UUID(int=1)),
    )
    assert CHANGES[ApiKey.FIRN_REGISTER](*register(ErrorCode.NOT_CONTROLLER)) == []
    assert CHANGES[ApiKey.FIRN_REGISTER](*register(ErrorCode.DUPLICATE_BROKER_REGISTRATION))[0]["error"]
    assert [one["step"] for one in CHANGES[ApiKey.FIRN_DRAIN](pack(DrainRequest("begin")), b"")] == ["begin"]
    assert CHANGES[ApiKey.FIRN_DRAIN](pack(DrainRequest("status")), b"") == []
    replace = pack(TierReplaceRequest("t", 3, "finish", [b"a", b"b"], bytes(16)))
    (told,) = CHANGES[ApiKey.FIRN_TIER_REPLACE](replace, pack(TierReplaceResponse()))
    assert (told["name"], told["partition"], told["step"], told["segments"]) == ("t", 3, "finish", 2)


def test_an_append_of_schemas_is_a_change_unless_the_log_had_moved_on() -> None:
    asked = pack(SchemasRequest("append", 5, "t-value", [(b"k", b"v")]))
    tell = CHANGES[ApiKey.FIRN_SCHEMAS]
    (told,) = tell(asked, pack(SchemasResponse(end=6)))
    assert (told["type"], told["name"], told["action"], told["records"]) == ("SUBJECT", "t-value", "WRITE_SCHEMAS", 1)
    assert tell(asked, pack(SchemasResponse(end=9, moved=True))) == []
    assert tell(asked, pack(SchemasResponse(wait_ms=5))) == []
    assert tell(asked, pack(SchemasResponse(ErrorCode.INVALID_RECORD, "why")))[0]["error"]
    assert tell(asked, pack(SchemasResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "why"))) == []
    assert tell(pack(SchemasRequest("read", 0)), pack(SchemasResponse(end=6))) == []


@pytest.mark.parametrize(
    "key", [ApiKey.FIRN_REGISTER, ApiKey.FIRN_DRAIN, ApiKey.FIRN_TIER_REPLACE, ApiKey.FIRN_SCHEMAS]
)
@pytest.mark.parametrize("message", [b"", b"\x90", b"\xff\xff", b"\x93\x01\x02\x03"])
@pytest.mark.parametrize("response", [None, b"", b"\x90"])
def test_what_is_no_message_is_no_change(key: int, message: bytes, response: bytes | None) -> None:
    assert CHANGES[key](message, response) == []


def test_a_move_to_a_directory_is_told_with_the_last_path_that_was_named() -> None:
    dirs = [
        AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("t", [0, 1][:count])])
        for path, count in (("/a", 2), ("/b", 1))
    ]
    parts = [AlterReplicaLogDirPartitionResult(0, ErrorCode.LOG_DIR_NOT_FOUND), AlterReplicaLogDirPartitionResult(1)]
    answer = AlterReplicaLogDirsResponse(results=[AlterReplicaLogDirTopicResult("t", parts)])
    assert CHANGES[ApiKey.ALTER_REPLICA_LOG_DIRS](AlterReplicaLogDirsRequest(dirs), answer) == [
        {"action": "MOVE_TO_DIRECTORY", "type": "TOPIC", "name": "t", "partition": 0, "directory": "/b",
         "error": "LOG_DIR_NOT_FOUND"},
        {"action": "MOVE_TO_DIRECTORY", "type": "TOPIC", "name": "t", "partition": 1, "directory": "/a"},
    ]  # fmt: skip


ADMIN_SAYS = "member was removed by an admin"


@pytest.mark.parametrize(
    ("members", "by_an_administrator"),
    [
        ([], False),
        ([MemberIdentity("m-1")], False),
        ([MemberIdentity("m-1", reason="the consumer is being closed")], False),
        ([MemberIdentity("m-1", "worker-1", "the consumer is being closed")], False),
        ([MemberIdentity("", "worker-1")], True),
        ([MemberIdentity("m-1", reason=ADMIN_SAYS)], True),
        ([MemberIdentity("m-1", reason=f"{ADMIN_SAYS}: it hangs")], True),
        ([MemberIdentity("m-1"), MemberIdentity("m-2")], True),
    ],
)
def test_members_that_are_removed_are_told_and_those_that_leave_are_not(
    members: list[MemberIdentity], by_an_administrator: bool
) -> None:
    assert ONLY_IF[ApiKey.LEAVE_GROUP](LeaveGroupRequest("g", members)) is by_an_administrator


def test_a_removed_member_is_told_with_its_ids_and_error() -> None:
    asked = LeaveGroupRequest("g", [MemberIdentity("", "worker-1"), MemberIdentity("m-2")])
    answer = LeaveGroupResponse(members=[MemberResponse("", "worker-1"), MemberResponse("m-2", None, 25)])
    assert CHANGES[ApiKey.LEAVE_GROUP](asked, answer) == [
        {"action": "REMOVE_MEMBER", "type": "GROUP", "name": "g", "member": "", "instance": "worker-1"},
        {"action": "REMOVE_MEMBER", "type": "GROUP", "name": "g", "member": "m-2", "error": "UNKNOWN_MEMBER_ID"},
    ]
    (told,) = CHANGES[ApiKey.LEAVE_GROUP](asked, LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert told["error"] == "NOT_COORDINATOR"


@pytest.mark.parametrize(
    ("generation", "member", "told"), [(-1, "", True), (-1, "anything", True), (0, "m", False), (7, "m", False)]
)
def test_commits_of_no_member_are_told_whatever_member_they_name(generation: int, member: str, told: bool) -> None:
    assert ONLY_IF[ApiKey.OFFSET_COMMIT](OffsetCommitRequest("g", generation, member)) is told


def test_what_was_refused_for_want_of_a_right_is_no_change() -> None:
    asked = CreateAclsRequest([AclCreation(2, "a"), AclCreation(2, "b")])
    codes = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST]
    told = CHANGES[ApiKey.CREATE_ACLS](asked, CreateAclsResponse(results=[AclCreationResult(code) for code in codes]))
    assert [(one["name"], one["error"]) for one in told] == [("b", "INVALID_REQUEST")]


def test_numbers_and_codes_that_nobody_knows_are_told_as_they_are() -> None:
    asked = CreateAclsRequest([AclCreation(99, "a", 98, "User:x", "*", 97, 96)])
    (told,) = CHANGES[ApiKey.CREATE_ACLS](asked, CreateAclsResponse(results=[AclCreationResult(12345)]))
    assert (told["type"], told["pattern"], told["operation"], told["permission"], told["error"]) == (
        "99", "98", "97", "96", "12345",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("retention.ms", "v"),
        ("log.cleaner.threads", "v"),
        ("ssl.keystore.key", None),
        ("listener.name.x.ssl.keystore.key", None),
        ("no.such.setting", None),
    ],
)
def test_values_are_shown_of_settings_that_are_known_and_not_secret(name: str, shown: str | None) -> None:
    assert shown_value(name, "v") == shown
    configs = [AlterableConfig(name, "v")] * 60
    asked = AlterConfigsRequest([AlterConfigsResource(4, "1", configs)])
    (told,) = CHANGES[ApiKey.ALTER_CONFIGS](
        asked, AlterConfigsResponse(responses=[AlterConfigsResourceResponse(0, "", 4, "1")])
    )
    assert told["configs"][0] == {"name": name, "operation": "SET", "value": shown}
    assert told["configs"][-1] == "and 40 more"
    assert json.dumps(told)


def test_names_are_cut() -> None:
    assert len(str(change("TOPIC", "x" * 10_000, "CREATE")["name"])) < 300


def test_a_request_that_changes_nothing_is_told_with_its_group_and_topics() -> None:
    (group,) = resources_of(HeartbeatRequest(group_id="g"))
    assert (group.type, group.name) == ("GROUP", "g")
    nothing: Any = object()
    assert resources_of(nothing) == []
