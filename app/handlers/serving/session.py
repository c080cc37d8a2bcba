"""Serves the frames of one client: Produce and Fetch on fast paths, every other API by its handler.

Produce, a Fetch that has something to answer, ApiVersions and every other handler that does not wait are answered within the
callback of the socket. Further Produces are served behind a waiting Produce (they are appended in order, only their answers wait);
anything else that waits stops the parsing of this connection until it is answered, and a request that is not a Produce does not
pass waiting Produces. The steps of different keyed requests over HTTP have no order, and are served beside each other (ADR 0043,
EO20).

Tests: ``tests/broker/test_mutated_streams.py``.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, kafka_code
from app.core.log_events import Event
from app.exactly_once.transactional_ids import is_of_requests
from app.handlers.apis.passing_on import PASSED_ON, address_of, principal_of
from app.handlers.base.context import Context, PassesOn
from app.handlers.base.portions import (
    LONG_FRAME_BYTES,
    as_coroutine,
    decode_long,
    encode_long,
    free_long,
    serve_split,
)
from app.handlers.base.request import Request
from app.handlers.clients.client import SIDE_BY_SIDE_MAX, Client, software_of
from app.handlers.clients.produce_shape import PREFIX_START
from app.handlers.clients.serving import STEPS, told
from app.handlers.fetch.attempts import FETCH
from app.handlers.fetch.fetch import serve_fetch
from app.handlers.produce.conditional import APPEND, serve_append
from app.handlers.produce.keyed import KEYED, serve_keyed
from app.handlers.produce.produce import PRODUCE, serve_produce
from app.metadata.changes.internal_topics import KEYED_ID_PREFIX
from app.transport.core import FRAME_SIZE, OUT_BYTES_MAX, REQUEST_BYTES_MIN, SLOTS_MAX, Slot
from app.wire.apikeys import ApiKey
from app.wire.bounds import BYTES_MAX
from app.wire.codec import decode_request
from app.wire.framing import response_frame
from app.wire.header import FLEXIBLE_FIRST, parse_request_header
from app.wire.negotiation import is_api_versions_known, unknown_api_versions_frame
from app.wire.versions import BETWEEN_BROKERS, is_between_brokers, is_served

if TYPE_CHECKING:
    from app.handlers.base.api import Api
    from app.handlers.clients.client import Service
    from app.handlers.state.metrics import ApiMeter
    from app.transport.sending import Parts

FRAME_HEAD: Final = Struct(">ihhi")
"""Size prefix, API key, API version, correlation id: common to every request header."""
FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
unpack_head = FRAME_HEAD.unpack_from

API_VERSIONS: Final = 18
SIDE_BY_SIDE: Final = frozenset({int(ApiKey.FIRN_REQUESTS), KEYED, int(ApiKey.INIT_PRODUCER_ID)})
"""Requests of one connection that are served beside each other: those of many callers of keyed requests, which have no order. Long
ones of FirnRequests are served alone. Kafka's clients wait for their InitProducerId before they go on."""
BEGIN_BY_ID: Final = frozenset({int(ApiKey.INIT_PRODUCER_ID), int(ApiKey.END_TXN)})
"""Their first field is a transactional id. Those with the ids of keyed requests have no order either (ADR 0043, EO20)."""
_KEYED_ID_PREFIX: Final = KEYED_ID_PREFIX.encode()
WHILE_STARTING: Final = frozenset({API_VERSIONS, ApiKey.FIRN_PLACE, *BETWEEN_BROKERS})
"""The APIs that one of several brokers answers before it is registered."""


def _is_of_keyed_request(api_key: int, api_version: int, frame: memoryview) -> bool:
    """Whether a request of ``BEGIN_BY_ID`` is of a keyed request. Only Firn sends these, in versions whose strings are compact."""
    if api_version < FLEXIBLE_FIRST[api_key]:
        return False
    try:
        start = parse_request_header(frame).body_start + 1  # behind the length of the id, which is one byte
    except ProtocolError:
        return False  # it ends the connection when it is served
    return frame[start : start + len(_KEYED_ID_PREFIX)] == _KEYED_ID_PREFIX


class _Kept:
    """Bytes that a request keeps past its frame, counted until ``close``."""

    __slots__ = ("_server", "_size_bytes")

    def __init__(self, server: Service, size_bytes: int) -> None:
        self._server, self._size_bytes = server, size_bytes
        server.keep(size_bytes)

    def close(self) -> None:
        self._server.unreserve(self._size_bytes)


class Session(Client):
    """A connection that is served."""

    __slots__ = ()

    context: Context
    """All parts: each API takes its view of them."""

    def serve(self, view: memoryview, position: int, end: int) -> int:
        server = self.server
        server.serving = self
        if server.rouse is not None:
            server.rouse()
        slots = self._slots
        context = self.context
        buffer: bytearray = view.obj  # type: ignore[assignment]
        self.now_ms = context.clock.now_ms()
        if self.held is not None:
            self.held.forget_old(self.now_ms)
            if self.held.is_empty:
                self.held = None
        refusal, quotas = context.refusal or self.held, context.quotas
        if not self.caller.rights.valid:
            self.speak_as(context.doorkeeper.renew(self.caller))
        request_bytes_max = server.request_bytes_max
        gathering = server.gathering
        timed = quotas if quotas is not None and quotas.counts_time else None
        if timed is not None:
            timed.begin()
        produced = later = produced_bytes = answered_bytes = 0
        try:
            while end - position >= FRAME_HEAD_BYTES:
                if self._waiters or self.pieces or self._out_bytes > OUT_BYTES_MAX:
                    break
                size, api_key, api_version, correlation_id = unpack_head(buffer, position)
                if not REQUEST_BYTES_MIN <= size <= request_bytes_max:
                    self.check_size(size)
                frame_end = position + 4 + size
                if frame_end > end:
                    break
                if api_key == PRODUCE:
                    if len(slots) + self.gathered >= SLOTS_MAX:
                        break
                    produced += 1
                    produced_bytes += size
                    shape = self._shape
                    prefix_start = position + PREFIX_START
                    if shape is None or not (
                        shape.version == api_version and buffer.startswith(shape.prefix, prefix_start)
                    ):
                        shape = server.produce_shapes.find(self.caller.rights, api_version, buffer, prefix_start)
                        if shape is not None:
                            self._shape = shape
                    if shape is not None and refusal is None:
                        answer = gathering.serve(self, shape, correlation_id, buffer, view, position, frame_end, end)
                        if answer is not None:
                            if not answer:
                                later += 1
                            elif slots:
                                self.answer(answer)
                            else:
                                self.out.append(answer)
                                self._out_bytes += len(answer)
                            answered_bytes += len(answer)
                            position = frame_end
                            continue
                    elif self.gathered:
                        gathering.flush(self)
                    parts = self._serve_decoded(api_version, correlation_id, view[position + 4 : frame_end])
                    refusal = context.refusal or self.held
                    if parts is not None:
                        self.answer(parts)
                else:
                    if self.gathered:
                        gathering.flush(self)
                        refusal = context.refusal or self.held
                    if slots and not self._may_pass(api_key, api_version, view[position + 4 : frame_end]):
                        break
                    self._serve_one(api_key, api_version, correlation_id, view[position + 4 : frame_end])
                position = frame_end
                if self.ending is not None or self.logging_in:
                    break
            else:
                if end - position >= FRAME_SIZE.size:
                    (size,) = FRAME_SIZE.unpack_from(buffer, position)
                    self.check_size(size)
        except ProtocolError:
            gathering.flush(self)  # earlier requests are answered before the connection ends
            raise
        finally:
            gathering.end_of_call(self, view)
            if timed is not None:
                timed.end()
            if produced:
                meter = server.produce_meter
                meter.requests.value += produced
                meter.request_bytes.value += produced_bytes
                meter.response_bytes.value += answered_bytes
                meter.observe(server.loop.time() - self.started_s, produced - later)
        return position

    def _may_pass(self, api_key: int, api_version: int, frame: memoryview) -> bool:
        """Whether a request other than Produce may be served while others wait. An InitProducerId may end the transaction of a
        waiting Produce, and does not pass it. Ids of keyed requests are in use one request at a time."""
        slots = self._slots
        if len(slots) >= SIDE_BY_SIDE_MAX:
            return False
        if api_key in BEGIN_BY_ID and _is_of_keyed_request(api_key, api_version, frame):
            return True
        if api_key != ApiKey.INIT_PRODUCER_ID:
            return api_key in SIDE_BY_SIDE
        produces = self.server.produce_meter
        return all(slot.meter is not produces for slot in slots)

    def _serve_decoded(self, api_version: int, correlation_id: int, frame: memoryview) -> Parts:
        """Serve a Produce that is decoded in full. Returns and raises: as ``serve_produce``."""
        return serve_produce(self, api_version, correlation_id, frame)

    def _serve_one(self, api_key: int, api_version: int, correlation_id: int, frame: memoryview) -> None:
        """Serve one request other than Produce. Raises: ProtocolError."""
        server = self.server
        server.serving = self, api_key
        meter = server.metrics.meter(api_key)
        meter.requests.value += 1
        meter.request_bytes.value += len(frame)
        if len(frame) > BYTES_MAX:
            self._refuse_long(api_key, api_version, frame, meter)
            return
        if api_key == FETCH:
            answer = serve_fetch(self, api_version, correlation_id, frame)
            if answer is not None:
                self.answer(answer)
                meter.observe(server.loop.time() - self.started_s, 1)
            return
        if api_key == APPEND:
            serve_append(self, api_version, correlation_id, frame)
            return
        if api_key == KEYED:
            serve_keyed(self, api_version, correlation_id, frame)
            return
        if api_key == API_VERSIONS and not is_api_versions_known(api_version):
            self.answer(unknown_api_versions_frame(correlation_id))
            return
        api = server.apis.get(api_key)
        if api is None or not (is_served(api_key, api_version) or is_between_brokers(api_key, api_version)):
            raise ProtocolError(f"Version {api_version} of API key {api_key} is not served.")
        if self.context.starting and api_key not in WHILE_STARTING:
            self.fail(f"closing the connection of {self.peer}: the broker is not registered yet")
            return
        header = parse_request_header(frame)
        throttle_time_ms = self.charge(header.client_id, api_key, len(frame))
        request = Request(
            api_key, api_version, correlation_id, header.client_id, self.caller, self.on_close, throttle_time_ms
        )
        request.software = self.software
        server.serving = request
        if len(frame) > LONG_FRAME_BYTES:
            slot = self.open_slot(meter, stops_parsing=True)
            work = self._serve_long(slot, meter, api, request, bytes(frame), header.body_start)
            server.spawn(told(server, request, work), self, work, _Kept(server, len(frame)))
            return
        message = decode_request(api_key, api_version, frame[header.body_start :])
        if api.before is not None:
            try:
                api.before(self.context, request, message)
            except FirnError as error:
                refused = self._refused(api.refuse, request, message, error, meter)
                if self.context.audit is not None:
                    self.context.audit.answered(request, message, refused)
                self.answer(self._encode(request, refused, meter))
                return
        passes_on = self.context.passes_on
        if passes_on is not None and api_key in PASSED_ON and passes_on.needed():
            slot = self.open_slot(meter, stops_parsing=True)
            server.spawn(self._pass_on(slot, meter, passes_on, bytes(frame), api.refuse, request, message), self)
            return
        result: Any
        try:
            split = api.split
            if split is not None and split.is_long(message):
                result = serve_split(split, api.handle, api.refuse_each or api.refuse, self.context, request, message)
            else:
                result = api.handle(self.context, request, message)
        except FirnError as error:
            result = self._refused(api.refuse, request, message, error, meter)
        if api_key == API_VERSIONS and not result.error_code:
            self.software = software_of(message)
        quotas, audit = self.context.quotas, self.context.audit
        if quotas is not None:
            quotas.spent(self.caller, header.client_id)
        if isinstance(result, Coroutine):
            beside = api_key in SIDE_BY_SIDE or (api_key == ApiKey.END_TXN and is_of_requests(message.transactional_id))
            slot = self.open_slot(meter, stops_parsing=not beside)
            work = self._finish(slot, meter, result, api.refuse, request, message)
            server.spawn(told(server, request, work), self, work, result)
            return
        if audit is not None:
            audit.answered(request, message, result)
        if result is None:
            raise ProtocolError(f"API key {api_key} cannot answer what was asked.")
        self.answer(self._encode(request, result, meter))
        meter.observe(server.loop.time() - self.started_s, 1)

    def _refuse_long(self, api_key: int, api_version: int, frame: memoryview, meter: ApiMeter) -> None:
        """Raises: ProtocolError if the API has no word for it."""
        why = f"A request of API key {api_key} has {len(frame)} bytes, of {BYTES_MAX} at most."
        api = self.server.apis.get(api_key)
        if api is None or api.refuse_long is None or not is_served(api_key, api_version):
            raise ProtocolError(why)
        header = parse_request_header(frame)
        throttle_time_ms = self.charge(header.client_id, api_key, len(frame))
        request = Request(
            api_key,
            api_version,
            header.correlation_id,
            header.client_id,
            self.caller,
            self.on_close,
            throttle_time_ms,
        )
        meter.errors.value += 1
        self.context.client_line(Event.CONNECTION_CLOSED.line(f"refusing what {self.peer} sent: {why}"))
        self.answer(self._encode(request, api.refuse_long(request), meter))

    async def _finish(
        self, slot: Slot, meter: ApiMeter, work: Coroutine[Any, Any, Any], refuse: Any, request: Request, message: Any
    ) -> None:
        """Wait for a handler and put its answer into its slot."""
        audit = self.context.audit
        try:
            result = await work
        except FirnError as error:
            result = self._refused(refuse, request, message, error, meter)
        except CancelledError:
            if audit is not None:
                audit.cut_off(request, message)
            raise
        if audit is not None:
            audit.answered(request, message, result)
        if result is None:
            self.fail(f"closing the connection of {self.peer}: API key {request.api_key} cannot answer what was asked")
        elif not self.closed:
            await self._complete(slot, meter, refuse, request, message, result)

    async def _serve_long(
        self, slot: Slot, meter: ApiMeter, api: Api, request: Request, frame: bytes, body_start: int
    ) -> None:
        """Serve a request that may take longer than one portion to decode. Its bytes are counted until it is answered, for its
        message; the frame itself is not kept unless it is passed on."""
        context = self.context
        try:
            message = await decode_long(request.api_key, request.api_version, frame[body_start:])
        except ProtocolError as error:
            self.fail(f"closing the connection of {self.peer}: {error}")
            return
        if self.closed:
            return
        passes_on = context.passes_on
        if passes_on is None or request.api_key not in PASSED_ON or not passes_on.needed():
            passes_on, frame = None, b""
        result: Any
        try:
            if api.before is not None:
                api.before(context, request, message)
            if passes_on is not None:
                await self._pass_on(slot, meter, passes_on, frame, api.refuse, request, message)
                return
            split = api.split
            if split is not None:
                result = serve_split(split, api.handle, api.refuse_each or api.refuse, context, request, message)
            else:
                result = api.handle(context, request, message)
        except FirnError as error:
            result = self._refused(api.refuse, request, message, error, meter)
        await self._finish(slot, meter, as_coroutine(result), api.refuse, request, message)

    async def _complete(
        self, slot: Slot, meter: ApiMeter, refuse: Any, request: Request, message: Any, result: Any
    ) -> None:
        """Encode a response and put it into its slot."""
        if request.throttle_time_ms and hasattr(result, "throttle_time_ms"):
            result.throttle_time_ms = request.throttle_time_ms
        try:
            answer = await encode_long(request, result)
        except RequestRejected as error:
            refused = self._refused(refuse, request, message, error, meter)
            if refused is None:
                self.fail(f"closing the connection of {self.peer}: {error}")
                return
            answer = await encode_long(request, refused)
        if self.closed:
            return
        if isinstance(answer, bytes):
            meter.response_bytes.value += len(answer)
            self.complete(slot, answer)
            return
        meter.response_bytes.value += sum(map(len, answer))
        self.complete(slot, [*answer])
        await free_long(result)

    async def _pass_on(
        self,
        slot: Slot,
        meter: ApiMeter,
        passes_on: PassesOn,
        frame: bytes,
        refuse: Any,
        request: Request,
        message: Any,
    ) -> None:
        """Have the controller answer a request, and put its answer into the slot."""
        try:
            answer = await passes_on.pass_on(frame, principal_of(request), address_of(request))
        except FirnError as error:
            refused = self._refused(refuse, request, message, error, meter)
            if refused is None:
                self.fail(f"closing the connection of {self.peer}: API key {request.api_key} cannot be refused")
            elif not self.closed:
                self.complete(slot, self._encode(request, refused, meter))
            return
        if not self.closed:
            meter.response_bytes.value += len(answer) + FRAME_SIZE.size
            self.complete(slot, FRAME_SIZE.pack(len(answer)) + answer)

    def _refused(self, refuse: Any, request: Request, message: Any, error: FirnError, meter: ApiMeter) -> Any:
        meter.errors.value += 1
        code = kafka_code(error)
        faults = self.context.faults
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            faults.met(
                f"API key {request.api_key}",
                "without a code",
                Event.REQUEST_FAILED.line(f"API key {request.api_key} for {self.peer}: {error}"),
            )
        else:
            faults.met_error("serving", f"API key {request.api_key}", error)
        return refuse(request, message, code, str(error))

    def _encode(self, request: Request, message: Any, meter: ApiMeter) -> bytes:
        if request.throttle_time_ms and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = request.throttle_time_ms
        frame = response_frame(request.api_key, request.api_version, request.correlation_id, message)
        meter.response_bytes.value += len(frame)
        return frame


SERVING: Final = frozenset({Session.serve.__code__, Session._serve_one.__code__, STEPS})
"""Functions that are being run while a request is being served."""
