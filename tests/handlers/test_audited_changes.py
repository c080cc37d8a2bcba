"""What the audit log makes of administrative requests and their responses, whatever they hold."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from app.client.firn_api import DrainRequest, TierReplaceRequest, TierReplaceResponse, pack
from app.errors import ErrorCode
from app.handlers.audited_changes import CHANGES, NOT_SAMPLED, resources_of, shown_value
from app.handlers.authorising import TABLE, Each, Special, Whole
from app.metadata.control import RegisterRequest, RegisterResponse
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
from app.wire.apis.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from app.wire.apis.heartbeat import HeartbeatRequest

READS = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION}
OF_RECORDS = {
    ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
}  # fmt: skip
"""They write records, or a transaction around records."""


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
    assert not {*CHANGES} & NOT_SAMPLED


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


@pytest.mark.parametrize("key", [ApiKey.FIRN_REGISTER, ApiKey.FIRN_DRAIN, ApiKey.FIRN_TIER_REPLACE])
@pytest.mark.parametrize("message", [b"", b"\x90", b"\xff\xff", b"\x93\x01\x02\x03"])
@pytest.mark.parametrize("response", [None, b"", b"\x90"])
def test_what_is_no_message_is_no_change(key: int, message: bytes, response: bytes | None) -> None:
    assert CHANGES[key](message, response) == []


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
