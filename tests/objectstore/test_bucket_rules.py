"""Which lifecycle rules touch the objects of write-ahead logs."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.doctor import bucket_checks
from app.objectstore.bucket_rules import BucketRules, rules_that_touch
from tests.objectstore.conftest import opened_s3

GONE = {"Expiration": {"Days": 30}}


def touching(**rule: Any) -> bool:
    rules = BucketRules(False, [{"ID": "r", "Status": "Enabled", **rule}])
    return rules_that_touch(rules, "firn/wal/") == ["r"]


@pytest.mark.parametrize(
    "where", [{"Prefix": ""}, {"Filter": {}}, {"Filter": {"Prefix": "firn/"}}, {"Prefix": "firn/wal/7"}]
)
def test_a_rule_over_the_logs_touches_them(where: dict[str, Any]) -> None:
    assert touching(**GONE, **where)
    assert touching(Transitions=[{"Days": 1, "StorageClass": "GLACIER"}], **where)


@pytest.mark.parametrize(
    "rule",
    [
        {**GONE, "Filter": {"Prefix": "other/"}},
        {**GONE, "Status": "Disabled", "Prefix": ""},
        {**GONE, "Filter": {"Tag": {"Key": "a", "Value": "b"}}},
        {**GONE, "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}},
        {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}, "Prefix": ""},
        {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}, "Prefix": ""},
        {"Expiration": {"ExpiredObjectDeleteMarker": True}, "Prefix": ""},
    ],
)
def test_rules_for_other_objects_and_for_what_is_gone_do_not(rule: dict[str, Any]) -> None:
    assert not touching(**rule)


@pytest.mark.usefixtures("aws_credentials")
async def test_the_doctor_refuses_a_versioned_bucket_and_rules_that_take_logs_away(moto_endpoint: str) -> None:
    async with opened_s3(moto_endpoint) as store:
        assert await bucket_checks(store, write_ahead=False) == []
        assert [one.passed for one in await bucket_checks(store, write_ahead=True)] == [True, True]
        await store.put("wal/1/2/3", b"")
        assert [one.passed for one in await bucket_checks(store, write_ahead=False)] == [True, True]
        bucket = store.location.bucket
        await store._client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        await store._client.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={
                "Rules": [{"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}]
            },
        )
        versioning, lifecycle = await bucket_checks(store, write_ahead=False)
        assert not versioning.passed
        assert not lifecycle.passed
        assert "old" in lifecycle.detail
