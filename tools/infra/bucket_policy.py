"""The required policy of a cluster's bucket, derived from the layout of its keys (docs/formats.md, "Object layout"). Pure.

``infra/terraform/modules/storage`` makes the policy; a check holds it against this one, and a test lets a broker work under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.metadata.log import layout

NAME_KEY: Final = f"{layout.CLUSTER_PREFIX}/name"
"""Written by the first boot of a cluster's first machine (infra/bootstrap)."""
WRITTEN_ONCE: Final = (
    NAME_KEY,
    layout.log_prefix(layout.CLUSTER_PREFIX),
    layout.snapshot_prefix(layout.CLUSTER_PREFIX),
    layout.TOPICS_PREFIX,
    layout.DATA_PREFIX,
    layout.WAL_PREFIX,
)
"""Keys below these are written if nothing is there, and never again. Signs of life and objects of ``firn doctor`` are not."""
CLUSTERS: Final = (f"{layout.CLUSTER_PREFIX}/", layout.TOPICS_PREFIX, layout.DATA_PREFIX, layout.WAL_PREFIX)
"""Only brokers and operators write these."""


def bucket_policy(bucket_arn: str, root: str, writers: Sequence[str]) -> dict[str, Any]:
    """The policy document of a bucket whose cluster has its keys below ``root`` and is written by the roles ``writers``."""

    def below(prefixes: Sequence[str]) -> list[str]:
        return [f"{bucket_arn}/{root}{prefix}*" for prefix in prefixes]

    deny = {"Effect": "Deny", "Principal": "*"}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                **deny,
                "Sid": "TlsOnly",
                "Action": "s3:*",
                "Resource": [bucket_arn, f"{bucket_arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            },
            {
                **deny,
                "Sid": "WriteOnce",
                "Action": "s3:PutObject",
                "Resource": below(WRITTEN_ONCE),
                "Condition": {
                    "Null": {"s3:if-none-match": "true"},
                    "Bool": {"s3:ObjectCreationOperation": "true"},
                },
            },
            {
                **deny,
                "Sid": "BrokersWrite",
                "Action": ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"],
                "Resource": below(CLUSTERS),
                "Condition": {"ArnNotEquals": {"aws:PrincipalArn": sorted(writers)}},
            },
        ],
    }
