"""Which IAM actions the calls of Firn's S3 clients need. Pure.

S3's actions are not its calls: a HEAD is allowed by ``s3:GetObject``, a LIST by ``s3:ListBucket``, every request of a multipart
upload but its abort by ``s3:PutObject``. With a key of KMS, S3 asks for a data key on behalf of the caller: to write it makes one,
to read it decrypts one, and it decrypts the one that an upload began with for each part and for the completion.

Tests: ``tests/infra/iam/test_policy.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Needs:
    """The rights for a call: ``action`` on the bucket or on the object, and ``kms`` on the key that encrypts the object."""

    action: str
    on_bucket: bool = False
    kms: tuple[str, ...] = ()


_WRITE: Final = ("kms:GenerateDataKey",)
_PART: Final = ("kms:Decrypt", "kms:GenerateDataKey")
_READ: Final = ("kms:Decrypt",)

NEEDS: Final[dict[str, Needs]] = {
    "GetObject": Needs("s3:GetObject", kms=_READ),
    "HeadObject": Needs("s3:GetObject", kms=_READ),
    "PutObject": Needs("s3:PutObject", kms=_WRITE),
    "CreateMultipartUpload": Needs("s3:PutObject", kms=_WRITE),
    "UploadPart": Needs("s3:PutObject", kms=_PART),
    "CompleteMultipartUpload": Needs("s3:PutObject", kms=_PART),
    "AbortMultipartUpload": Needs("s3:AbortMultipartUpload"),
    "DeleteObject": Needs("s3:DeleteObject"),
    "DeleteObjects": Needs("s3:DeleteObject"),
    "ListObjectsV2": Needs("s3:ListBucket", on_bucket=True),
    "ListMultipartUploads": Needs("s3:ListBucketMultipartUploads", on_bucket=True),
}
"""Every call that ``app/objectstore/s3.py`` and ``s3_short_cut.py`` make for a broker, by its name in S3's interface."""

DOCTOR_NEEDS: Final[dict[str, Needs]] = {
    "GetBucketVersioning": Needs("s3:GetBucketVersioning", on_bucket=True),
    "GetBucketLifecycleConfiguration": Needs("s3:GetLifecycleConfiguration", on_bucket=True),
}
"""The calls by which ``firn doctor`` reads the bucket's own rules. No role needs them: without the right the doctor says that it
could not look."""

TARGET_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "put": ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"),
    "list": ("ListObjectsV2",),
    "delete": ("DeleteObjects",),
    "copy": ("GetObject", "PutObject"),
    "head": ("HeadObject",),
}
"""The functions of obstore that ``pyspark_firn/jobs/targets.py`` calls on the bucket of an archive, which is not the cluster's,
and the calls whose actions they need. A large file is sent in parts; a copy reads one object and writes another."""
