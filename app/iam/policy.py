"""Least-privilege policies of the bucket by role, out of the layout of its keys (docs/formats.md, "Object layout"). Pure.

Only brokers write. Spark jobs read the cluster log, and manifests and segments of the topics that they are for. An http process
asks brokers and has no business in the bucket, which its policy says: an Allow elsewhere does not outweigh a Deny.

Tests: ``tests/infra/iam/test_policy.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, TypeAlias

from app.core.units import TopicId
from app.iam.calls import NEEDS
from app.metadata.log import layout
from app.objectstore.check import CHECK_PREFIX
from app.objectstore.location import S3Location, StoreLocation

Role: TypeAlias = Literal["broker", "spark", "http"]
Policy: TypeAlias = dict[str, Any]

ROLES: Final[tuple[Role, ...]] = ("broker", "spark", "http")

VERSION: Final = "2012-10-17"
"""Of the language of policies, not of this document."""

BROKER_PREFIXES: Final = (
    f"{layout.CLUSTER_PREFIX}/",
    layout.TOPICS_PREFIX,
    layout.DATA_PREFIX,
    layout.WAL_PREFIX,
    CHECK_PREFIX,
)
"""Where brokers read and write; the last is that of ``firn doctor``."""

WAL_STORE_PREFIXES: Final = (layout.WAL_PREFIX, CHECK_PREFIX)
"""The same in a store of their own for write-ahead logs."""

_SESSION: Final = "s3express:CreateSession"
_WAL_WRITING: Final = ("DeleteObject", "PutObject")
_WRITING: Final = ("AbortMultipartUpload", "DeleteObject", "PutObject", "UploadPart")
_READING: Final = ("GetObject", "HeadObject")


def policy_of(
    role: Role,
    location: S3Location,
    *,
    wal_location: StoreLocation | None = None,
    topic_ids: Sequence[TopicId] = (),
    kms_key_arns: Sequence[str] = (),
    partition: str = "aws",
) -> Policy:
    """The policy document of a role for one cluster's bucket and prefix.

    Brokers keep their right to write-ahead logs in the main store beside ``wal_location``: running brokers write them there until
    they are started with the other store, and a policy changes at once.

    Args:
        wal_location: the store of write-ahead logs, if they have their own. A file system is nothing of AWS's policies.
        topic_ids: for ``spark``, the topics that may be read; none means all of them.
        kms_key_arns: of the keys that encrypt the bucket and topics; none: S3's own keys.
        partition: of AWS, as in an ARN: ``aws``, ``aws-cn``, ``aws-us-gov``.
    """
    bucket_arn = f"arn:{partition}:s3:::{location.bucket}"
    if role == "http":
        nothing = [_nothing(bucket_arn)]
        if isinstance(wal_location, S3Location) and wal_location.bucket != location.bucket:
            nothing.append(_nothing_of_wal(wal_location, partition))
        return _document(nothing)
    if role == "broker":
        statements = _broker(bucket_arn, location.prefix, BROKER_PREFIXES)
        if isinstance(wal_location, S3Location):
            statements += _wal_store(wal_location, partition)
    else:
        statements = _spark(bucket_arn, location.prefix, topic_ids)
    if kms_key_arns:
        calls = _READING + _WRITING if role == "broker" else _READING
        actions = {action for call in calls for action in NEEDS[call].kms}
        resource = _one_or_many(kms_key_arns)
        statements.append({"Sid": "Key", "Effect": "Allow", "Action": _one_or_many(actions), "Resource": resource})
    return _document(statements)


def _broker(bucket_arn: str, root: str, prefixes: Sequence[str]) -> list[Policy]:
    return [
        _objects(bucket_arn, _READING + _WRITING, [f"{root}{prefix}*" for prefix in prefixes]),
        _list(bucket_arn, [f"{root}{prefix}*" for prefix in prefixes]),
        _list_uploads(bucket_arn),
    ]


def _wal_store(location: S3Location, partition: str) -> list[Policy]:
    """Read and write write-ahead logs in a store of their own, which has no multipart uploads."""
    if location.is_directory_bucket:
        # A session may read and write everything in the bucket: S3 Express knows no right to a prefix.
        return [
            {"Sid": "WalStore", "Effect": "Allow", "Action": _SESSION, "Resource": _express_arn(location, partition)}
        ]
    bucket_arn = f"arn:{partition}:s3:::{location.bucket}"
    keys = [f"{location.prefix}{prefix}*" for prefix in WAL_STORE_PREFIXES]
    return [
        {**_objects(bucket_arn, _READING + _WAL_WRITING, keys), "Sid": "WalObjects"},
        {**_list(bucket_arn, keys), "Sid": "WalList"},
    ]


def _nothing_of_wal(location: S3Location, partition: str) -> Policy:
    if location.is_directory_bucket:
        denied: Policy = {"Action": "s3express:*", "Resource": _express_arn(location, partition)}
    else:
        bucket_arn = f"arn:{partition}:s3:::{location.bucket}"
        denied = {"Action": "s3:*", "Resource": [bucket_arn, f"{bucket_arn}/*"]}
    return {"Sid": "NotInTheWalStore", "Effect": "Deny", **denied}


def _express_arn(location: S3Location, partition: str) -> str:
    """Of a directory bucket in any account, because a store URL does not name the account."""
    return f"arn:{partition}:s3express:{location.region or '*'}:*:bucket/{location.bucket}"


def _spark(bucket_arn: str, root: str, topic_ids: Sequence[TopicId]) -> list[Policy]:
    cluster = layout.CLUSTER_PREFIX
    known = [layout.log_prefix(cluster), layout.snapshot_prefix(cluster)]
    history = [layout.TOPICS_PREFIX, layout.DATA_PREFIX]
    if topic_ids:
        named = sorted(set(topic_ids), key=str)
        # The two hexadecimal digits of a segment's key depend on the partition, so that all 256 have to be meant.
        history = [prefix for one in named for prefix in (layout.topic_prefix(one), f"{layout.DATA_PREFIX}*/{one}/")]
    statements = [
        _objects(bucket_arn, _READING, [f"{root}{prefix}*" for prefix in (*known, *history)]),
        _list(bucket_arn, [f"{root}{prefix}*" for prefix in (f"{cluster}/", *history)]),
    ]
    # An audit holds the whole bucket against all manifests, and reports leftovers of uploads.
    return statements if topic_ids else [*statements, _list_uploads(bucket_arn)]


def _nothing(bucket_arn: str) -> Policy:
    return {"Sid": "NotInTheBucket", "Effect": "Deny", "Action": "s3:*", "Resource": [bucket_arn, f"{bucket_arn}/*"]}


def _objects(bucket_arn: str, calls: Sequence[str], keys: Sequence[str]) -> Policy:
    actions = {NEEDS[call].action for call in calls}
    resources = [f"{bucket_arn}/{key}" for key in keys]
    return {"Sid": "Objects", "Effect": "Allow", "Action": _one_or_many(actions), "Resource": resources}


def _list(bucket_arn: str, keys: Sequence[str]) -> Policy:
    """LIST below prefixes.

    ``IfExists``, because S3 says 404 for a missing object only to a caller that may list the bucket, and a GET carries no prefix
    that a condition could be held against. Without it a missing object would be a 403.
    """
    condition = {"StringLikeIfExists": {"s3:prefix": list(keys)}}
    action = NEEDS["ListObjectsV2"].action
    return {"Sid": "List", "Effect": "Allow", "Action": action, "Resource": bucket_arn, "Condition": condition}


def _list_uploads(bucket_arn: str) -> Policy:
    """S3 knows no condition on the prefix of this call."""
    action = NEEDS["ListMultipartUploads"].action
    return {"Sid": "ListUploads", "Effect": "Allow", "Action": action, "Resource": bucket_arn}


def _document(statements: Sequence[Policy]) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _one_or_many(names: Collection[str]) -> str | list[str]:
    return next(iter(names)) if len(names) == 1 else sorted(set(names))
