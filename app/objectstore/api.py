"""The seam to an object store: the part of S3 that Firn needs.

Guarantees of every adapter (tests/objectstore checks all adapters):

- a read sees every write that was acknowledged before it began, LIST included (strong consistency);
- ``put_if_absent`` and ``Upload.complete`` decide atomically: of any number of writers of one key, one succeeds;
- an operation that raises ``StorageUnavailable`` is *undecided*: it may or may not have been applied;
- keys are relative to the store's root, made of ``[A-Za-z0-9._-]`` and ``/``, never absolute, never with a part that is
  empty or begins with a dot (such names are hidden and belong to the adapter), and no key is the directory of another
  (``a`` and ``a/b``); LIST answers in byte order of the keys. Any other key is ``InvalidKey``, and nothing is touched.

Tests: ``tests/objectstore/test_behaviour.py``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from app.core.errors import FirnError
from app.core.units import Buffer, TimestampMs


class ObjectMissing(FirnError):
    """There is no object with that key."""


class AlreadyExists(FirnError):
    """A conditional write failed, because an object with that key exists. It may be our own earlier attempt: read it to find
    out."""


class RangeUnsatisfiable(FirnError):
    """The range starts at or past the end of the object."""


class InvalidKey(FirnError):
    """The seam does not allow this key or prefix. Nothing was touched."""


class ObjectInfo(NamedTuple):
    key: str
    size_bytes: int
    modified_ms: TimestampMs


class UploadInfo(NamedTuple):
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    started_ms: TimestampMs


class Upload(Protocol):
    """A multipart upload under way. Parts may be put in any order and concurrently. A repeated part replaces the earlier one."""

    key: str
    upload_id: str

    async def put_part(self, number: int, data: Buffer) -> None:
        """Store part ``number`` (from 1). Every part but the last is at least ``part_bytes_min`` long.

        ``data`` must not change until this returns.
        Raises: ObjectMissing (the upload is gone: begin another), StorageUnavailable (undecided; put the same bytes again).
        """
        ...

    async def complete(self) -> None:
        """Make the object visible, made of the parts in number order, unless its key exists. Durable when this returns.

        A repeated completion either succeeds or raises AlreadyExists.

        Raises: AlreadyExists (not written by this call; it may have been by an earlier undecided attempt; parts stay until
        ``abort``), ObjectMissing (the upload is gone and so is the key: begin another), StorageUnavailable (undecided).
        """
        ...

    async def abort(self) -> None:
        """Delete the parts. Aborting a missing upload succeeds. Raises: StorageUnavailable."""
        ...


class ObjectStore(Protocol):
    """One bucket prefix of a cluster."""

    part_bytes_min: int

    async def get(self, key: str) -> bytes:
        """The whole object. Raises: ObjectMissing, StorageUnavailable."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Bytes [start, min(end, size)) of the object, which do not change; ``0 <= start < end``.

        Raises: ObjectMissing, RangeUnsatisfiable (``start`` >= size), StorageUnavailable (also for a short response).
        """
        ...

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """The last ``length`` bytes (or all, if it is shorter) and the object's size. Raises: as ``get``."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises: ObjectMissing, StorageUnavailable."""
        ...

    async def put(self, key: str, data: Buffer) -> None:
        """Write or overwrite. Durable when this returns. Raises: StorageUnavailable (undecided)."""
        ...

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """Write if there is no object of that key. Durable when this returns.

        Raises: AlreadyExists (not written by this call; it may have been by an earlier undecided attempt),
        StorageUnavailable (undecided: offer the same bytes again).
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object. Deleting a missing object succeeds. Raises: StorageUnavailable (undecided)."""
        ...

    async def delete_many(self, keys: list[str]) -> None:
        """Delete up to 1,000 keys in as few requests as the store allows. Raises: StorageUnavailable (some may be gone)."""
        ...

    async def list_objects(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """Up to ``limit`` (<= 1,000) objects whose key starts with ``prefix`` and is greater than ``start_after``.

        Fewer than ``limit`` means there are no more. Raises: StorageUnavailable.
        """
        ...

    def encrypted_with(self, kms_key_id: str) -> ObjectStore:
        """The same store, whose new objects are encrypted with another key than that of the store (AWS KMS).

        Raises: StorageUnavailable: this store encrypts nothing.
        """
        ...

    async def begin_upload(self, key: str) -> Upload:
        """Start a multipart upload. Raises: StorageUnavailable."""
        ...

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        """Every upload under ``prefix`` that is under way, of any writer. Raises: StorageUnavailable."""
        ...

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload by its id. Aborting a missing upload succeeds. Raises: StorageUnavailable."""
        ...

    async def close(self) -> None:
        """Release connections. Nothing may be under way."""
        ...
