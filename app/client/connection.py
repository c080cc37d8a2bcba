"""One connection to one broker. Requests go out as they come, and answers are matched in order.

Kafka answers the requests of a connection in the order in which they were sent. So the requests in flight are a queue: the next
frame answers the oldest one, and must have its correlation id. If that order breaks (a time-out, another id, bytes that do not
decode), the next answer cannot be matched to a request. So the connection ends, and all requests in flight fail.

Limits: requests in flight (``in_flight_max``), the size of one answer, the socket's send buffer (senders wait until it has room),
and the time to each answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol, TypeVar, cast

from app.core.errors import BrokerUnavailable, ErrorCode, NotTrusted, ProtocolError, RequestRejected, clause
from app.core.limits import KIB, MIB
from app.core.turns import run
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from app.wire.header import encode_request_header, parse_response_header
from app.wire.versions import PRIVATE, SERVED

T = TypeVar("T")

_FRAME_BYTES: Final = Struct(">i")
_RECEIVE_BYTES: Final = 64 * KIB
RESPONSE_BYTES_MAX: Final = 256 * MIB
"""Largest answer that is accepted. A Fetch may exceed the size asked for by one batch."""
LONG_ANSWER_BYTES: Final = 16 * KIB
"""A longer answer is decoded in portions, so that those of other requests are not held up."""
IN_FLIGHT_MAX: Final = 64
CLOSE_TIMEOUT_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 10_000
REQUEST_TIMEOUT_MS: Final = 30_000
LOGIN_PART: Final = 0.85
"""Of the time of a login after which a new one is made, as Kafka's clients do (KIP-368)."""


class Dialer(Protocol):
    """How a connection is opened; tests and the simulation bring their own network."""

    async def __call__(self, protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        """Connect a protocol to a broker. Raises: OSError."""
        ...


async def dial_tcp(protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
    await asyncio.get_running_loop().create_connection(protocol, host, port)


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    key: int
    version: int
    answer: asyncio.Future[memoryview]
    sent_s: float
    """Loop time."""


class KafkaConnection:
    """A connection on which ApiVersions has been exchanged. Made by ``open_connection``; belongs to one event loop.

    A caller that is cancelled leaves its request in flight; the answer is read and dropped. If there is none until the caller's
    limit of time, the connection is closed, as if the caller still waited.
    """

    def __init__(self, host: str, port: int, *, client_id: str, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self.host = host
        self.port = port
        self._client_id = client_id
        self._wire = _Wire(self)
        self._in_flight: deque[_InFlight] = deque()
        self._slots = asyncio.Semaphore(in_flight_max)
        self._next_correlation_id = 0
        self._versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        """The levels of the cluster's features, as the broker told them last."""
        self.supported: Mapping[str, int] = {}
        """The highest level of each feature that the broker's program knows."""
        self._software_version = "0"
        self._failure: BrokerUnavailable | None = None
        self._expires_s: float | None = None
        """Loop time after which the connection is not used any more."""
        self._end_timer: asyncio.TimerHandle | None = None
        self._login_over = False
        self._closed = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def usable(self) -> bool:
        """Whether requests can still be sent."""
        return self._failure is None and (
            self._expires_s is None or asyncio.get_running_loop().time() < self._expires_s
        )

    def lasts(self, seconds: float | None) -> None:
        """The login ends by itself, and the connection with it. A new one is made in time before that, so that no request meets
        its end."""
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._expires_s = loop.time() + seconds * LOGIN_PART
            self._end_timer = loop.call_later(seconds, self._login_ended)

    def _login_ended(self) -> None:
        """Close the connection after the answers to all earlier requests."""
        self._end_timer = None
        self._login_over = True
        if not self._in_flight:
            self._fail(BrokerUnavailable(f"The login at {self} has ended."))

    @property
    def waits_since_s(self) -> float | None:
        """Loop time at which the oldest request without an answer was sent; None if there is no such request."""
        return self._in_flight[0].sent_s if self._in_flight else None

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    def version_of(self, key: int) -> int:
        """The newest version of an API that both sides speak.

        Raises: RequestRejected UNSUPPORTED_VERSION if there is none.
        """
        if key in PRIVATE:
            return 0
        ours, theirs = SERVED.get(ApiKey(key)), self._versions.get(key)
        if ours is None or theirs is None:
            raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, f"{self} does not serve {ApiKey(key).name}.")
        version = min(ours[1], theirs[1])
        if version < max(ours[0], theirs[0]):
            raise RequestRejected(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self} serves {ApiKey(key).name} {theirs[0]} to {theirs[1]}, this client speaks {ours[0]} to {ours[1]}.",
            )
        return version

    async def request(
        self, key: ApiKey, message: Any, *, version: int | None = None, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Any:
        """Send ``message`` and return the decoded answer. Error codes in it are left to the caller.

        Raises:
            BrokerUnavailable: no answer; it is not known whether the request was carried out. After a time-out the
                connection is closed.
            RequestRejected: no common version, or INVALID_REQUEST: it cannot be said, as a string of more than 32,767 bytes.
            ProtocolError: the answer does not decode; the connection is closed.
        """
        if version is None:
            version = self.version_of(key)
        try:
            body = codec.encode_request(key, version, message)
        except ValueError as error:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, str(error)) from error
        payload = await self._answer_to(key, version, body, timeout_ms)
        try:
            if len(payload) <= LONG_ANSWER_BYTES:
                return codec.decode_response(key, version, payload)
            return await run(codec.decode_response_steps(key, version, payload))
        except ProtocolError as error:
            self._unreadable(key, error)
            raise

    async def exchange(
        self, key: int, version: int, body: bytes, decode: Callable[[memoryview], T], *, timeout_ms: int
    ) -> T:
        """Send an encoded request body and return its decoded answer. Raises: as ``request``."""
        payload = await self._answer_to(key, version, body, timeout_ms)
        try:
            return decode(payload)
        except ProtocolError as error:
            self._unreadable(key, error)
            raise

    def _unreadable(self, key: int, error: ProtocolError) -> None:
        self._fail(BrokerUnavailable(f"{self} sent an answer to {api_name(key)} that cannot be read: {clause(error)}."))

    async def _answer_to(self, key: int, version: int, body: bytes, timeout_ms: int) -> memoryview:
        """The answer to an encoded request body. Raises: BrokerUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            if not self._slots.locked():
                await self._slots.acquire()  # at once
            else:
                async with asyncio.timeout_at(deadline):
                    await self._slots.acquire()
        except TimeoutError:
            raise BrokerUnavailable(f"{self} is too far behind to be asked: {IN_FLIGHT_MAX} requests wait.") from None
        entry = self._send(key, version, body)
        try:
            async with asyncio.timeout_at(deadline):
                await self._wire.drained()
                return await entry.answer
        except TimeoutError:
            failure = BrokerUnavailable(f"{self} did not answer {api_name(key)} within {timeout_ms} ms.")
            self._fail(failure)
            if entry.answer.cancelled():
                raise BrokerUnavailable(str(failure)) from None
            return entry.answer.result()  # it came in this very turn
        except asyncio.CancelledError:
            loop.call_at(deadline, self._check_answered, entry.correlation_id, key, timeout_ms)
            raise
        finally:
            del entry  # An error holds this frame and the request's body, and the future in it holds the error.

    def _check_answered(self, correlation_id: int, key: int, timeout_ms: int) -> None:
        """Close the connection if a request still has no answer."""
        if any(entry.correlation_id == correlation_id for entry in self._in_flight):
            self._fail(BrokerUnavailable(f"{self} did not answer {api_name(key)} within {timeout_ms} ms."))

    async def send_only(self, key: int, version: int, body: bytes) -> None:
        """Send a request that is never answered (Produce with acks=0). Raises: BrokerUnavailable."""
        self._write(key, version, body)
        await self._wire.drained()

    async def negotiate(self, software_version: str, *, timeout_ms: int) -> None:
        """Learn which versions the broker serves (KIP-511). Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        self._software_version = software_version
        message = ApiVersionsRequest(client_software_name="firn", client_software_version=software_version)
        version = SERVED[ApiKey.API_VERSIONS][1]
        answer = await self._ask_versions(message, version, timeout_ms)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
            answer = await self._ask_versions(message, 0, timeout_ms)
        if answer.error_code:
            raise RequestRejected(ErrorCode(answer.error_code), f"{self} refused to say which versions it serves.")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self.features = {one.name: one.max_version_level for one in answer.finalized_features}
        self.supported = {one.name: one.max_version for one in answer.supported_features}

    async def learn_features(self, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Ask for the levels of features again, because they may have risen. Raises: as ``negotiate``."""
        await self.negotiate(self._software_version, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with BrokerUnavailable. Bytes already written still go out, if the peer
        reads."""
        self._fail(BrokerUnavailable(f"The connection to {self} was closed."), flush=True)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self._wire.end(flush=False)
            await asyncio.shield(self._closed)

    async def _ask_versions(self, message: ApiVersionsRequest, version: int, timeout_ms: int) -> ApiVersionsResponse:
        def decode(view: memoryview) -> ApiVersionsResponse:
            # A broker that does not know the version answers in version 0, which begins with the error code.
            refused = int.from_bytes(view[:2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
            answer: ApiVersionsResponse = codec.decode_response(ApiKey.API_VERSIONS, 0 if refused else version, view)
            return answer

        body = codec.encode_request(ApiKey.API_VERSIONS, version, message)
        return await self.exchange(ApiKey.API_VERSIONS, version, body, decode, timeout_ms=timeout_ms)

    # --- between the callers and the wire; all of it synchronous --------------------------------------------------

    def _send(self, key: int, version: int, body: bytes) -> _InFlight:
        try:
            correlation_id = self._write(key, version, body)
        except BrokerUnavailable:
            self._slots.release()
            raise
        loop = asyncio.get_running_loop()
        entry = _InFlight(correlation_id, key, version, loop.create_future(), loop.time())
        self._in_flight.append(entry)
        return entry

    def _write(self, key: int, version: int, body: bytes) -> int:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        header = self._header(key, version, correlation_id)
        self._wire.write(_FRAME_BYTES.pack(len(header) + len(body)) + header, body)
        return correlation_id

    def _header(self, key: int, version: int, correlation_id: int) -> bytes:
        return encode_request_header(key, version, correlation_id, self._client_id)

    def _frame_received(self, frame: memoryview) -> None:
        if not self._in_flight:
            self._fail(BrokerUnavailable(f"{self} sent an answer that nobody asked for."))
            return
        entry = self._in_flight[0]
        try:
            correlation_id, body_start = parse_response_header(frame, entry.key, entry.version)
        except ProtocolError as error:
            self._fail(BrokerUnavailable(f"{self} sent an answer that cannot be read: {clause(error)}."))
            return
        if correlation_id != entry.correlation_id:
            self._fail(
                BrokerUnavailable(f"{self} answered request {correlation_id} where {entry.correlation_id} was due.")
            )
            return
        self._in_flight.popleft()
        self._slots.release()
        if not entry.answer.done():
            entry.answer.set_result(frame[body_start:])
        if self._login_over and not self._in_flight:
            self._login_ended()

    def _connection_lost(self, error: Exception | None) -> None:
        why = f": {clause(error)}" if error is not None else ""
        kind = NotTrusted if isinstance(error, ssl.SSLError) else BrokerUnavailable
        self._fail(kind(f"{self} closed the connection{why}."))
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, failure: BrokerUnavailable, *, flush: bool = False) -> None:
        """End the connection. All requests in flight fail with the first error."""
        if self._failure is not None:
            return
        self._failure = failure
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._wire.end(flush=flush)
        while self._in_flight:
            entry = self._in_flight.popleft()
            self._slots.release()
            if not entry.answer.done():
                entry.answer.set_exception(type(failure)(str(failure)))
                # A caller that was cancelled will not look at it.
                entry.answer.exception()


class _Wire(asyncio.BufferedProtocol):
    """Cuts the stream into frames. A frame that is not whole yet gets a buffer of its own, which the socket then fills."""

    def __init__(self, owner: KafkaConnection) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(_RECEIVE_BYTES)
        self._scratch_end = 0
        self._frame: bytearray | None = None
        self._frame_end = 0
        self._writable = asyncio.Event()
        self._writable.set()

    def write(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._transport.writelines((head, body))

    async def drained(self) -> None:
        await self._writable.wait()

    def end(self, *, flush: bool) -> None:
        """Close the transport. With ``flush`` it first sends the bytes already written."""
        self._writable.set()
        if self._transport is not None and flush:
            self._transport.close()
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        self._owner._connection_lost(exc)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_end :]
        return memoryview(self._scratch)[self._scratch_end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_end += nbytes
            if self._frame_end == len(self._frame):
                frame, self._frame = self._frame, None
                self._owner._frame_received(memoryview(frame))
            return
        self._scratch_end += nbytes
        position = 0
        scratch = self._scratch
        while self._scratch_end - position >= 4:
            (size,) = _FRAME_BYTES.unpack_from(scratch, position)
            if not 4 <= size <= RESPONSE_BYTES_MAX:
                self._owner._fail(
                    BrokerUnavailable(f"{self._owner} sent a frame of {size} bytes; is it a Kafka broker?")
                )
                return
            start, end = position + 4, min(position + 4 + size, self._scratch_end)
            if end - start < size:
                frame = bytearray(size)
                frame[: end - start] = scratch[start:end]
                self._frame, self._frame_end = frame, end - start
                position = end
                break
            self._owner._frame_received(memoryview(bytes(memoryview(scratch)[start:end])))
            position = end
        scratch[: self._scratch_end - position] = scratch[position : self._scratch_end]
        self._scratch_end -= position


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str = "firn",
    software_version: str = "0",
    in_flight_max: int = IN_FLIGHT_MAX,
    timeout_ms: int = CONNECT_TIMEOUT_MS,
    dial: Dialer = dial_tcp,
    new: type[KafkaConnection] = KafkaConnection,
) -> KafkaConnection:
    """Connect and negotiate versions. ``new``: the class of the connection.

    Raises: BrokerUnavailable (nothing listens there, or it does not speak Kafka in time), NotTrusted, RequestRejected.
    """
    connection = new(host, port, client_id=client_id, in_flight_max=in_flight_max)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await dial(lambda: connection._wire, host, port)
    except TimeoutError:
        raise BrokerUnavailable(f"{connection} did not accept a connection within {timeout_ms} ms.") from None
    except OSError as error:
        kind = NotTrusted if isinstance(error, ssl.SSLError) else BrokerUnavailable
        raise kind(f"{connection} cannot be reached: {_reason(error)}.") from None
    try:
        await connection.negotiate(software_version, timeout_ms=timeout_ms)
        login = getattr(dial, "login", None)
        if login is not None:
            connection.lasts(await login(connection))
    except BaseException as error:
        await connection.close()
        if isinstance(error, ProtocolError):
            raise BrokerUnavailable(f"{connection} does not speak Kafka's protocol: {clause(error)}.") from None
        raise
    return connection


def api_name(key: int) -> str:
    """The name of an API as Kafka writes it."""
    return ApiKey(key).name.replace("_", " ").title().replace(" ", "")


def _reason(error: OSError) -> str:
    """The system's text for an error, without asyncio's additions."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message.lower().rstrip('.')})"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({(error.reason or str(error)).lower().replace('_', ' ')})"
    if isinstance(error, socket.gaierror):
        return error.strerror.lower() if error.strerror else "the name is not known"
    return os.strerror(error.errno).lower() if error.errno else str(error).rstrip(".")
