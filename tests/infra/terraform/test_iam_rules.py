"""The small IAM of the checks decides as AWS documents it."""

from __future__ import annotations

from typing import Any

import pytest

from tools.infra.iam import allowed, normal

ARN = "arn:aws:s3:::b/data/x"


def document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": ARN, **one} for one in statements],
    }


def condition(operator: str, value: Any) -> dict[str, Any]:
    return {"Condition": {operator: {"k": value}}}


@pytest.mark.parametrize(
    ("statement", "context", "decided"),
    [
        ({}, {}, True),
        ({"Action": "s3:getobject"}, {}, True),
        ({"Action": "s3:Get*"}, {}, True),
        ({"Action": "s3:PutObject"}, {}, False),
        ({"Resource": "arn:aws:s3:::b/*"}, {}, True),
        ({"Resource": "arn:aws:s3:::b/data/?"}, {}, True),
        ({"Resource": ["arn:aws:s3:::b/DATA/x", "arn:aws:s3:::c/*"]}, {}, False),
        (condition("StringEquals", "v"), {"k": "v"}, True),
        (condition("StringEquals", ["u", "v"]), {"k": "v"}, True),
        (condition("StringEquals", "v"), {}, False),
        (condition("StringLike", "d/*"), {"k": "d/x"}, True),
        (condition("StringLike", "d/*"), {"k": "e/x"}, False),
        (condition("StringLike", "d/*"), {}, False),
        (condition("StringLikeIfExists", "d/*"), {}, True),
        (condition("StringLikeIfExists", "d/*"), {"k": "e/x"}, False),
        (condition("StringNotEquals", "v"), {}, True),
        (condition("ArnNotEquals", "arn:x"), {"k": "arn:x"}, False),
        (condition("Bool", False), {"k": "false"}, True),
        (condition("Null", "true"), {}, True),
        (condition("Null", "true"), {"k": "v"}, False),
        (condition("Null", False), {"k": "v"}, True),
    ],
)  # fmt: skip
def test_a_statement_applies_as_aws_says(statement: dict[str, Any], context: dict[str, str], decided: bool) -> None:
    assert allowed([document(statement)], "s3:GetObject", ARN, context) is decided
    assert allowed([document({}, {"Effect": "Deny", **statement})], "s3:GetObject", ARN, context) is not decided


def test_nothing_is_allowed_without_a_statement_and_an_unknown_operator_is_no_guess() -> None:
    assert not allowed([], "s3:GetObject", ARN)
    with pytest.raises(ValueError, match="DateLessThan is not understood"):
        allowed([document(condition("DateLessThan", "2026-01-01"))], "s3:GetObject", ARN, {"k": "x"})


def test_documents_that_say_the_same_are_equal_whatever_their_order_and_names() -> None:
    allow = {"Sid": "A", "Effect": "Allow", "Action": ["a:B", "a:C"], "Resource": "x"}
    deny = {"Effect": "Deny", "Action": "a:D", "Resource": ["y"]}
    one = {"Statement": [allow, deny]}
    other = {"Sid": "Z", "Effect": "Allow", "Action": ["a:C", "a:B"], "Resource": ["x"]}
    two = {"Statement": [{**deny, "Action": ["a:D"], "Resource": "y"}, other]}
    assert normal(one) == normal(two)
    other["Action"] = ["a:C"]
    assert normal(one) != normal(two)
