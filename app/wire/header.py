"""Request headers v1 and v2, response headers v0 and v1 (KIP-482, KIP-511).

A request of a flexible version has header v2: header v1 and a section of tagged fields, of which none is defined. The client
id keeps its old form in both. Its response has header v1, but for ApiVersions, whose response always has v0, because a
client must be able to read it before it knows the broker's versions.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, ProtocolError
from app.core.limits import CLIENT_ID_BYTES_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.primitives import TROUBLES, Buffer, explain, refuse_length, skip_tagged_fields, uvarint
from app.wire.versions import OPAQUE

REQUEST: Final = Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
RESPONSE: Final = Struct(">i")
RESPONSE_FLEXIBLE: Final = Struct(">ix")

TRACE_TAG: Final = 20_000
"""Firn's own tagged field of request headers: W3C Trace Context's ``traceparent``. Brokers ignore tags that they do not know."""
TRACE_BYTES: Final = 55
_TRACED: Final = b"\x01" + uvarint(TRACE_TAG) + uvarint(TRACE_BYTES)
"""The beginning of a section that has only this field."""

FLEXIBLE_FIRST: Final[dict[int, int]] = {key: api.flexible_first for key, api in APIS.items()} | dict.fromkeys(
    OPAQUE, 0
)


class RequestHeader(NamedTuple):
    """The header before the body of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int
    """Position of the body in the frame that was parsed."""


_new = tuple.__new__
"""Makes a named tuple in less than half the time of its class."""


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request; ``frame`` starts after the size prefix.

    The version is not checked: a version that is not served still has a correlation id to be answered.
    Raises: ProtocolError, with UNSUPPORTED_VERSION if the key is not known, since its header's version is not either.
    """
    try:
        api_key, api_version, correlation_id, client_id_bytes = REQUEST.unpack_from(frame)
        position = 10
        client_id = None
        if client_id_bytes >= 0:
            position += client_id_bytes
            if position > len(frame):
                raise refuse_length(client_id_bytes, "the client id")
            client_id = str(frame[10:position], "utf-8")
        elif client_id_bytes != -1:
            raise refuse_length(client_id_bytes, "the client id")
        flexible_first = FLEXIBLE_FIRST.get(api_key)
        if flexible_first is None:
            raise ProtocolError(f"API key {api_key} is not known.", ErrorCode.UNSUPPORTED_VERSION)
        if api_version >= flexible_first:
            position = skip_tagged_fields(frame, position) if frame[position] else position + 1
    except TROUBLES as trouble:
        raise explain(trouble, "request header") from None
    return _new(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, v1 or v2 as its key and version want.

    Raises: ValueError if the client id is longer than a STRING can be; KeyError for an unknown key.
    """
    encoded = b"" if client_id is None else client_id.encode()
    if len(encoded) > CLIENT_ID_BYTES_MAX:
        raise ValueError(f"a client id of {len(encoded)} bytes")
    fixed = REQUEST.pack(api_key, api_version, correlation_id, -1 if client_id is None else len(encoded))
    return fixed + encoded + (b"\0" if api_version >= FLEXIBLE_FIRST[api_key] else b"")


def encode_traced_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, traceparent: bytes
) -> bytes:
    """As ``encode_request_header``, with a ``traceparent`` of ``TRACE_BYTES`` if the version has tagged fields."""
    header = encode_request_header(api_key, api_version, correlation_id, client_id)
    if api_version < FLEXIBLE_FIRST[api_key]:
        return header
    assert len(traceparent) == TRACE_BYTES, traceparent
    return header[:-1] + _TRACED + traceparent


def tags_start(frame: Buffer, start: int) -> int:
    """Where the tagged fields of a flexible request's header begin. ``start``: of the frame, after its size. The frame may end
    before."""
    return start + REQUEST.size + max(int.from_bytes(frame[start + 8 : start + 10], "big", signed=True), 0)


def traceparent_of(frame: Buffer, start: int, end: int) -> bytes | None:
    """The ``traceparent`` in the header of a flexible request that lies in ``frame`` from ``start``, after its size, to ``end``.

    None if the header has none, or other tagged fields besides. The value is not checked."""
    place = tags_start(frame, start)
    value = place + len(_TRACED)
    if value + TRACE_BYTES > end or frame[place : place + 1] == b"\0" or bytes(frame[place:value]) != _TRACED:
        return None
    return bytes(frame[value : value + TRACE_BYTES])


def has_flexible_response_header(api_key: int, api_version: int) -> bool:
    """Whether a response has header v1. Raises: KeyError for an unknown key."""
    return api_key != ApiKey.API_VERSIONS and api_version >= FLEXIBLE_FIRST[api_key]


def response_header(correlation_id: int, api_key: int, api_version: int) -> bytes:
    """The header of a response, v0 or v1 as its key and version want. Raises: KeyError for an unknown key."""
    if has_flexible_response_header(api_key, api_version):
        return RESPONSE_FLEXIBLE.pack(correlation_id)
    return RESPONSE.pack(correlation_id)


class ResponseHeader(NamedTuple):
    """The header before the body of a response."""

    correlation_id: int
    body_start: int
    """Position of the body in the frame that was parsed."""


def parse_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response. By this id a client finds its request, and so the schema of the response.

    Raises: ProtocolError if the frame is too short.
    """
    if len(frame) < RESPONSE.size:
        raise ProtocolError("Response header: the message ends early.")
    correlation_id: int = RESPONSE.unpack_from(frame)[0]
    return correlation_id


def parse_response_header(frame: Buffer, api_key: int, api_version: int) -> ResponseHeader:
    """The header of the response to a request of this key and version; ``frame`` starts after the size prefix.

    Raises: ProtocolError.
    """
    correlation_id = parse_correlation_id(frame)
    position = RESPONSE.size
    if has_flexible_response_header(api_key, api_version):
        try:
            position = skip_tagged_fields(frame, position)
        except TROUBLES as trouble:
            raise explain(trouble, "response header") from None
    return ResponseHeader(correlation_id, position)
