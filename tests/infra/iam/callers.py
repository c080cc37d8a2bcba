"""What the policed server and its tests have to agree on."""

from __future__ import annotations

from typing import Final

BUCKET_POLICY: Final = "bucket-policy"
"""The file in the server's folder that is the policy of the bucket."""


def role_arn(access_key: str) -> str:
    """The role that a caller is for the bucket's policy."""
    return f"arn:aws:iam::123456789012:role/{access_key}"
