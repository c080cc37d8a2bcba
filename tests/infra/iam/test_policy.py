"""``firn iam policy``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from app.cli import main
from app.core.units import SegmentId, TopicId
from app.iam.calls import NEEDS
from app.iam.policy import ROLES, Role, policy_of
from app.metadata.log import layout
from app.objectstore.location import S3Location
from app.objectstore.s3 import PERMISSIONS
from tools.infra.iam import allowed

KEY = "arn:aws:kms:eu-central-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
MINE, THEIRS = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))
SEGMENT = SegmentId(uuid.UUID(int=3))
WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")

KEYS = {
    "cluster log": layout.entry_key(layout.CLUSTER_PREFIX, 7),
    "cluster snapshot": layout.snapshot_key(layout.CLUSTER_PREFIX, 7),
    "heartbeat": layout.heartbeat_key(0, uuid.UUID(int=4)),
    "probe": layout.probe_key(0, uuid.UUID(int=4)),
    "manifest": layout.entry_key(layout.manifest_prefix(MINE, 5), 7),
    "manifest snapshot": layout.snapshot_key(layout.manifest_prefix(MINE, 5), 7),
    "segment": layout.segment_key(MINE, 5, 1000, SEGMENT),
    "write-ahead log": layout.wal_key(0, 4, 1),
}
"""A key of each kind that docs/formats.md has."""
READ_BY_SPARK = {"cluster log", "cluster snapshot", "manifest", "manifest snapshot", "segment"}


def may(policy: dict[str, Any], action: str, key: str, root: str = "prod/") -> bool:
    return allowed([policy], action, f"arn:aws:s3:::firn/{root}{key}")


def may_list(policy: dict[str, Any], prefix: str) -> bool:
    return allowed([policy], "s3:ListBucket", "arn:aws:s3:::firn", {"s3:prefix": f"prod/{prefix}"})


def test_brokers_write_every_key_of_the_cluster_and_nothing_beside_it() -> None:
    policy = policy_of("broker", S3Location("firn", "prod/"))
    for kind, key in KEYS.items():
        assert all(may(policy, action, key) for action in (*WRITES, "s3:GetObject")), kind
        assert may_list(policy, key.rpartition("/")[0] + "/"), kind
        assert not any(may(policy, action, key, root="") for action in (*WRITES, "s3:GetObject")), kind
    assert not may(policy, "s3:PutObject", "elsewhere/x")
    assert not may(policy, "s3:PutBucketPolicy", KEYS["segment"])
    assert not may_list(policy, "elsewhere/")


@pytest.mark.parametrize("topic_ids", [(), (MINE,)])
def test_spark_reads_what_a_read_needs_and_writes_nothing(topic_ids: tuple[TopicId, ...]) -> None:
    policy = policy_of("spark", S3Location("firn", "prod/"), topic_ids=topic_ids)
    assert {kind for kind, key in KEYS.items() if may(policy, "s3:GetObject", key)} == READ_BY_SPARK
    assert not any(may(policy, action, key) for action in WRITES for key in KEYS.values())
    theirs = (layout.entry_key(layout.manifest_prefix(THEIRS, 0), 1), layout.segment_key(THEIRS, 0, 0, SEGMENT))
    assert [may(policy, "s3:GetObject", key) for key in theirs] == [not topic_ids] * 2
    assert may_list(policy, layout.topic_prefix(MINE))
    assert may_list(policy, layout.data_prefix(MINE, 5))
    assert may_list(policy, layout.topic_prefix(THEIRS)) is not bool(topic_ids)
    assert may_list(policy, layout.data_prefix(THEIRS, 5)) is not bool(topic_ids)
    assert allowed([policy], "s3:ListBucketMultipartUploads", "arn:aws:s3:::firn") is not bool(topic_ids)


@pytest.mark.parametrize(
    ("role", "actions"),
    [("broker", {"kms:Decrypt", "kms:GenerateDataKey"}), ("spark", {"kms:Decrypt"}), ("http", set())],
)
def test_a_key_of_kms_is_used_as_far_as_the_calls_of_the_role_need_it(role: Role, actions: set[str]) -> None:
    policy = policy_of(role, S3Location("firn"), kms_key_arns=[KEY])
    wanted = {action for needs in NEEDS.values() for action in needs.kms}
    assert {action for action in wanted if allowed([policy], action, KEY)} == actions


def test_the_permissions_that_errors_name_are_those_of_the_policies() -> None:
    assert set(PERMISSIONS.values()) == {needs.action for needs in NEEDS.values()}


def test_no_policy_has_a_wildcard_for_an_action_or_a_resource_that_it_allows() -> None:
    for role in ROLES:
        for statement in policy_of(role, S3Location("firn", "prod/"), kms_key_arns=[KEY])["Statement"]:
            if statement["Effect"] == "Allow":
                assert "*" not in json.dumps(statement["Action"]), statement
                assert statement["Resource"] != "*", statement


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["iam", "policy", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_prints_the_document_with_the_partition_of_region_or_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = printed(capsys, "--role", "broker", "--store", "s3://firn/prod?region=cn-north-1")
    assert told == policy_of("broker", S3Location("firn", "prod/"), partition="aws-cn")
    key = KEY.replace("arn:aws:", "arn:aws-us-gov:")
    told = printed(capsys, "--role", "spark", "--store", "s3://firn/prod", "--kms-key", key, "--topic", str(MINE))
    location = S3Location("firn", "prod/")
    assert told == policy_of("spark", location, topic_ids=[MINE], kms_key_arns=[key], partition="aws-us-gov")
    assert printed(capsys, "--role", "http", "--store", f"s3://firn?kms_key_id={KEY}") == policy_of(
        "http", S3Location("firn")
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--role", "broker", "--store", "file:///x"),
            "but AWS policies are for S3 stores. Name an S3 store: s3://bucket/prefix.",
        ),
        (("--role", "broker", "--store", "s3://firn", "--topic", "t"), "--topic limits the topics that Spark may read"),
        (
            ("--role", "spark", "--store", "s3://firn", "--kms-key", "alias/firn"),
            "'alias/firn' is not the ARN of a KMS key",
        ),
        (("--role", "spark", "--store", "s3://firn?kms_key_id=1234"), "'1234' is not the ARN of a KMS key"),
        (("--role", "reader", "--store", "s3://firn"), "'reader' is not one of 'broker', 'spark', 'http'"),
    ],
)
def test_what_no_policy_can_be_made_of_is_refused(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["iam", "policy", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_keys_of_topics_are_named_beside_that_of_the_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    other = KEY + "0"
    told = printed(capsys, "--role", "broker", "--store", "s3://firn", "--kms-key", KEY, "--kms-key", other)
    assert [one["Resource"] for one in told["Statement"] if one["Sid"] == "Key"] == [[KEY, other]]


# --- a store of their own for write-ahead logs ------------------------------------------------------------------------


def test_write_ahead_logs_in_another_bucket_are_allowed_there_and_still_in_the_main_one() -> None:
    policy = policy_of("broker", S3Location("firn", "prod/"), wal_location=S3Location("fast", "w/"))
    for kind, key in KEYS.items():
        of_wal = kind == "write-ahead log"
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            assert may(policy, action, key), f"{kind}: running brokers have not changed their store yet"
            assert allowed([policy], action, f"arn:aws:s3:::fast/w/{key}") is of_wal, kind
    assert allowed([policy], "s3:PutObject", f"arn:aws:s3:::fast/w/{layout.WAL_STORE_KEY}")
    assert allowed([policy], "s3:PutObject", "arn:aws:s3:::fast/w/check/doctor-1/object")
    assert not allowed([policy], "s3:AbortMultipartUpload", f"arn:aws:s3:::fast/w/{KEYS['write-ahead log']}")
    for prefix, listed in (("w/wal/", True), ("w/data/", False)):
        assert allowed([policy], "s3:ListBucket", "arn:aws:s3:::fast", {"s3:prefix": prefix}) is listed
    assert len({statement["Sid"] for statement in policy["Statement"]}) == len(policy["Statement"])
    assert policy_of("spark", S3Location("firn"), wal_location=S3Location("fast")) == policy_of(
        "spark", S3Location("firn")
    )


def test_a_directory_bucket_needs_a_session_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    fast = "s3://fast--euc1-az1--x-s3/w"
    told = printed(
        capsys, "--role", "broker", "--store", "s3://firn/prod", "--wal-store", f"{fast}?region=eu-central-1"
    )
    assert told["Statement"][-1] == {
        "Sid": "WalStore",
        "Effect": "Allow",
        "Action": "s3express:CreateSession",
        "Resource": "arn:aws:s3express:eu-central-1:*:bucket/fast--euc1-az1--x-s3",
    }
    assert may(told, "s3:PutObject", KEYS["write-ahead log"])
    nothing = printed(capsys, "--role", "http", "--store", "s3://firn/prod", "--wal-store", fast)
    assert nothing["Statement"][-1] == {
        "Sid": "NotInTheWalStore",
        "Effect": "Deny",
        "Action": "s3express:*",
        "Resource": "arn:aws:s3express:*:*:bucket/fast--euc1-az1--x-s3",
    }


def test_a_shared_file_system_for_write_ahead_logs_takes_no_right_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = printed(capsys, "--role", "broker", "--store", "s3://firn/prod", "--wal-store", "file:///fast")
    assert [statement["Sid"] for statement in told["Statement"]] == ["Objects", "List", "ListUploads"]
    assert may(told, "s3:PutObject", KEYS["write-ahead log"])
    assert main(["iam", "policy", "--role", "broker", "--store", "s3://firn", "--wal-store", "s3://firn"]) == 2
    assert "is both the store and the WAL store" in capsys.readouterr().err
