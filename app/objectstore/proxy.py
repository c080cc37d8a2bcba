"""An object store that lives in another process: ``StoreProxy`` here, ``store_handlers`` there, ``rpc.py`` between them.

The guarantees of the seam hold through it. "Undecided" gets one more cause: the store process ended. Uploads are known by their
id in the other process, and end with it: a part for a missing upload raises ObjectMissing, as after an abort.

Tests: ``tests/machine/test_rpc.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import Struct
from typing import Final, NoReturn

import msgspec

from app.core.errors import FirnError, LimitExceeded, StorageUnavailable
from app.core.limits import MIB
from app.core.units import Buffer
from app.machine.rpc import Handler, RpcClient
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing, ObjectStore, Upload, UploadInfo
from app.objectstore.health import PROBE_END_S, PROBE_S, StoreHealth
from app.objectstore.keys import LIST_LIMIT_MAX, PART_NUMBER_MAX, check_key, check_prefix, check_range
from app.objectstore.split import WAL_KEYS

CALL_TIMEOUT_S: Final = 90.0
"""Longer than the S3 adapter's own deadline, so that its more precise error arrives first."""

UPLOADS_OPEN_MAX: Final = 10_000
"""Uploads begun over the connection and neither completed nor aborted."""

_SIZE: Final = Struct(">Q")
_PAIR: Final = b"\x92"
_BIN_32: Final = Struct(">BI")
_BIN_32_CODE: Final = 0xC6
_WHOLE_BYTES_MAX: Final = 64 << 10
"""Larger objects are not copied for the way to the other process: the bytes of a message around them are written apart."""
_encode: Final = msgspec.msgpack.encode


class _Range(msgspec.Struct, array_like=True):
    key: str
    start: int
    end: int


class _Write(msgspec.Struct, array_like=True):
    key: str
    data: Buffer


class _WriteView(msgspec.Struct, array_like=True):
    """``_Write`` in decoded form. The bytes are not copied."""

    key: str
    data: memoryview


class _List(msgspec.Struct, array_like=True):
    prefix: str
    start_after: str
    limit: int


class _UploadName(msgspec.Struct, array_like=True):
    key: str
    upload_id: str


class _Part(msgspec.Struct, array_like=True):
    key: str
    upload_id: str
    number: int
    data: Buffer


class _PartView(msgspec.Struct, array_like=True):
    key: str
    upload_id: str
    number: int
    data: memoryview


class StoreProxy:
    """ObjectStore over an RpcClient. ``part_bytes_min`` is S3's, which is enough for every store."""

    def __init__(self, rpc: RpcClient, *, part_bytes_min: int = 5 * MIB, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.part_bytes_min = part_bytes_min
        self._rpc = rpc
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.health = StoreHealth(self._loop.time)
        self._probe_timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._is_closed = False

    async def get(self, key: str) -> bytes:
        check_key(key)
        return await self._call("store.get", key.encode(), key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        check_range(start, end)
        return await self._call("store.get_range", _encode(_Range(key, start, end)), key)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        check_key(key)
        check_range(0, length)
        answer = await self._call("store.get_tail", _encode(_Range(key, 0, length)), key)
        return answer[_SIZE.size :], _SIZE.unpack_from(answer)[0]

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return msgspec.msgpack.decode(await self._call("store.head", key.encode(), key), type=ObjectInfo)

    def encrypted_with(self, kms_key_id: str) -> NoReturn:
        raise AssertionError("segments are written by the store process itself")

    async def put(self, key: str, data: Buffer) -> None:
        check_key(key)
        await self._call("store.put", _encode(_Write(key, data)), key)

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        check_key(key)
        if len(data) < _WHOLE_BYTES_MAX:
            await self._call("store.put_if_absent", _encode(_Write(key, data)), key)
        else:
            # As msgpack has it, without a copy of the data.
            lead = _PAIR + _encode(key) + _BIN_32.pack(_BIN_32_CODE, len(data))
            await self._call("store.put_if_absent", data, key, lead=lead)

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._call("store.delete", key.encode(), key)

    async def delete_many(self, keys: list[str]) -> None:
        assert len(keys) <= LIST_LIMIT_MAX, len(keys)
        for key in keys:
            check_key(key)
        await self._call("store.delete_many", _encode(keys), min(keys, default=""))

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        assert 0 < limit <= LIST_LIMIT_MAX, limit
        answer = await self._call("store.list_objects", _encode(_List(prefix, start_after, limit)), prefix)
        return msgspec.msgpack.decode(answer, type=list[ObjectInfo])

    async def begin_upload(self, key: str) -> ProxyUpload:
        check_key(key)
        return ProxyUpload(self, key, (await self._call("store.begin_upload", key.encode(), key)).decode())

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        check_prefix(prefix)
        return msgspec.msgpack.decode(
            await self._call("store.list_uploads", prefix.encode(), prefix), type=list[UploadInfo]
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)
        await self._call("store.abort_upload", _encode(_UploadName(key, upload_id)), key)

    async def close(self) -> None:
        """Ends probes. The connection is its owner's, and the store is closed by its own process."""
        self._is_closed = True
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None
        probe = self._probe
        if probe is not None:
            probe.cancel()
            await asyncio.wait([probe])

    async def _call(self, method: str, payload: Buffer, key: str, *, lead: bytes = b"") -> bytes:
        if key.startswith(WAL_KEYS):  # perhaps in a store of their own, which says nothing of the other
            return await self._rpc.call(method, payload, self._timeout_s, lead=lead)
        health = self.health
        request = health.begin()
        self._look_later(PROBE_S, method, key)
        try:
            answer = await self._rpc.call(method, payload, self._timeout_s, lead=lead)
        except StorageUnavailable as error:
            health.failed(request, str(error))
            raise
        except asyncio.CancelledError:
            health.given_up(request)
            raise
        except BaseException:
            health.answered(request)  # it said why not
            raise
        health.answered(request)
        return answer

    def _look_later(self, wait_s: float, method: str, key: str) -> None:
        if self._probe_timer is None and not self._is_closed:
            self._probe_timer = self._loop.call_later(wait_s, self._look, method, key)

    def _look(self, method: str, key: str) -> None:
        """Send a probe if one is due, and look again when the next one may be. ``method``, ``key``: of a request of then."""
        self._probe_timer = None
        due_s = self.health.probe_in_s()
        if due_s is None:
            return  # the end of the probe, or the next request, looks again
        if due_s > 0:
            self._look_later(due_s, method, key)
            return
        self.health.probe_begins()
        self._probe = self._loop.create_task(self._ask_for_little(method, key))

    async def _ask_for_little(self, method: str, key: str) -> None:
        """A caller that may make the request may ask for this."""
        answered = False
        try:
            if method in _OF_PREFIXES or not key:
                payload = _encode(_List(key, "", 1))
                await self._rpc.call("store.list_objects", payload, PROBE_END_S)
            else:
                await self._rpc.call("store.head", key.encode(), PROBE_END_S)
            answered = True
        except StorageUnavailable:
            pass  # the request beside it says why
        except FirnError:
            answered = True
        finally:
            self._probe = None
            self.health.probe_ended(answered=answered)
            self._look_later(PROBE_S, method, key)


_OF_PREFIXES: Final = frozenset({"store.list_objects", "store.list_uploads"})


class ProxyUpload:
    """Upload of a StoreProxy."""

    def __init__(self, proxy: StoreProxy, key: str, upload_id: str) -> None:
        self.key = key
        self.upload_id = upload_id
        self._proxy = proxy

    async def put_part(self, number: int, data: Buffer) -> None:
        assert 1 <= number <= PART_NUMBER_MAX, number
        await self._proxy._call("store.put_part", _encode(_Part(self.key, self.upload_id, number, data)), self.key)

    async def complete(self) -> None:
        await self._proxy._call("store.complete", _encode(_UploadName(self.key, self.upload_id)), self.key)

    async def abort(self) -> None:
        await self._proxy.abort_upload(self.key, self.upload_id)


def store_handlers(store: ObjectStore) -> Mapping[str, Handler]:
    """The methods that a StoreProxy calls, on ``store``; for an RpcServer, beside any others."""
    return _StoreHandlers(store).methods()


class _StoreHandlers:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._uploads: dict[str, Upload] = {}

    def methods(self) -> Mapping[str, Handler]:
        return {
            "store.get": self.get,
            "store.get_range": self.get_range,
            "store.get_tail": self.get_tail,
            "store.head": self.head,
            "store.put": self.put,
            "store.put_if_absent": self.put_if_absent,
            "store.delete": self.delete,
            "store.delete_many": self.delete_many,
            "store.list_objects": self.list_objects,
            "store.begin_upload": self.begin_upload,
            "store.put_part": self.put_part,
            "store.complete": self.complete,
            "store.list_uploads": self.list_uploads,
            "store.abort_upload": self.abort_upload,
        }

    async def get(self, payload: Buffer) -> Buffer:
        return await self._store.get(str(payload, "utf-8"))

    async def get_range(self, payload: Buffer) -> Buffer:
        asked = msgspec.msgpack.decode(payload, type=_Range)
        return await self._store.get_range(asked.key, asked.start, asked.end)

    async def get_tail(self, payload: Buffer) -> Buffer:
        asked = msgspec.msgpack.decode(payload, type=_Range)
        data, size_bytes = await self._store.get_tail(asked.key, asked.end)
        return _SIZE.pack(size_bytes) + data

    async def head(self, payload: Buffer) -> Buffer:
        return _encode(await self._store.head(str(payload, "utf-8")))

    async def put(self, payload: Buffer) -> Buffer:
        write = msgspec.msgpack.decode(payload, type=_WriteView)
        await self._store.put(write.key, write.data)
        return b""

    async def put_if_absent(self, payload: Buffer) -> Buffer:
        write = msgspec.msgpack.decode(payload, type=_WriteView)
        await self._store.put_if_absent(write.key, write.data)
        return b""

    async def delete(self, payload: Buffer) -> Buffer:
        await self._store.delete(str(payload, "utf-8"))
        return b""

    async def delete_many(self, payload: Buffer) -> Buffer:
        await self._store.delete_many(msgspec.msgpack.decode(payload, type=list[str]))
        return b""

    async def list_objects(self, payload: Buffer) -> Buffer:
        asked = msgspec.msgpack.decode(payload, type=_List)
        return _encode(await self._store.list_objects(asked.prefix, start_after=asked.start_after, limit=asked.limit))

    async def begin_upload(self, payload: Buffer) -> Buffer:
        if len(self._uploads) >= UPLOADS_OPEN_MAX:
            raise LimitExceeded(f"{len(self._uploads)} uploads are under way; complete or abort some.")
        upload = await self._store.begin_upload(str(payload, "utf-8"))
        self._uploads[upload.upload_id] = upload
        return upload.upload_id.encode()

    async def put_part(self, payload: Buffer) -> Buffer:
        part = msgspec.msgpack.decode(payload, type=_PartView)
        upload = self._uploads.get(part.upload_id)
        if upload is None:
            raise ObjectMissing(f"Upload {part.upload_id} of {part.key} is gone.")
        try:
            await upload.put_part(part.number, part.data)
        except ObjectMissing:
            self._uploads.pop(part.upload_id, None)
            raise
        return b""

    async def complete(self, payload: Buffer) -> Buffer:
        name = msgspec.msgpack.decode(payload, type=_UploadName)
        upload = self._uploads.get(name.upload_id)
        if upload is None:
            # An answer may have been lost: the key tells whether the upload was completed.
            await self._store.head(name.key)
            raise AlreadyExists(f"{name.key} exists.")
        try:
            await upload.complete()
        except ObjectMissing:
            self._uploads.pop(name.upload_id, None)
            raise
        self._uploads.pop(name.upload_id, None)
        return b""

    async def list_uploads(self, payload: Buffer) -> Buffer:
        return _encode(await self._store.list_uploads(str(payload, "utf-8")))

    async def abort_upload(self, payload: Buffer) -> Buffer:
        name = msgspec.msgpack.decode(payload, type=_UploadName)
        upload = self._uploads.get(name.upload_id)
        if upload is not None and upload.key == name.key:
            await upload.abort()
            self._uploads.pop(name.upload_id, None)
        else:
            await self._store.abort_upload(name.key, name.upload_id)
        return b""
