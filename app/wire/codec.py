"""Messages from and to bytes, for every API and version that has a schema.

A decoder or encoder is compiled when its (API, version) is first used and kept from then on, so that start-up pays for
none of them. Produce and Fetch have faster ways of their own (``app.wire.produce``, ``app.wire.fetch``); this module reads
and writes them too.

Decoding promises that any bytes whatsoever give a message or ProtocolError, within time and memory proportional to the
bytes and the bounds of ``app/core/limits.py``. Encoding trusts its caller: a value that a field cannot hold, or null where the
version has no null, is ValueError, our own mistake. A field that the version lacks is never written, and has its default
when it is read.

Bytes behind a request are ignored, as Apache Kafka ignores them in every API: librdkafka writes the null list of a request
for the metadata of all topics (version 9 and up) in four bytes, of which one is read, so that three are left at the end.
The frame bounds the number of such bytes. Behind a response, or a message of Firn's own keys, nothing may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from importlib import import_module
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode, ProtocolError
from app.core.limits import MESSAGE_ELEMENTS_MAX
from app.wire.apis import APIS
from app.wire.bounds import elements_max
from app.wire.compiler import DecoderSource, EncoderSource, Shape
from app.wire.primitives import (
    TROUBLES,
    Buffer,
    explain,
    read_uvarint,
    refuse_length,
    refuse_null,
    refuse_rest,
    uvarint,
)
from app.wire.schema import Rows
from app.wire.versions import OPAQUE

Decoder = Callable[[Buffer], Any]
Encoder = Callable[[Any], bytes]


class Encoded(NamedTuple):
    """The body of a response that is encoded already."""

    body: bytes


_decoders: Final[dict[tuple[int, int, bool], tuple[Decoder, bool, str]]] = {}
"""(key, version, is it a request) → (decoder, whether it wants plain bytes, name for errors)."""

_encoders: Final[dict[tuple[int, int, bool], tuple[Encoder, str]]] = {}

StepDecoder = Callable[[Buffer], Generator[None, None, Any]]
StepEncoder = Callable[[Any], Generator[int, None, list[bytes]]]

_step_decoders: Final[dict[tuple[int, int, bool], tuple[StepDecoder, bool, str]]] = {}
"""(key, version, whether it is a request) → (decoder, whether it wants a view instead of plain bytes, name for errors)."""

_step_encoders: Final[dict[tuple[int, int], tuple[StepEncoder, str]]] = {}
"""(key, version) of a response → (encoder, name for errors)."""


def decode_request(key: int, version: int, view: Buffer) -> Any:
    """The request that ``view`` begins with: an object of ``app.wire.apis.<api>``'s request class. Bytes after it are ignored.

    Nothing in it refers to ``view`` but ``records``, which are slices of it. Requests of Firn's own keys are ``bytes``.
    Raises: ProtocolError, with UNSUPPORTED_VERSION if this API and version have no schema.
    """
    return _decode(key, version, view, True)


def decode_response(key: int, version: int, view: Buffer) -> Any:
    """The response that ``view`` is, without its header, to its last byte; else as ``decode_request``."""
    return _decode(key, version, view, False)


def decode_request_steps(key: int, version: int, view: Buffer) -> Generator[None, None, Any]:
    """As ``decode_request``, by a generator that yields after every few elements and returns the request.

    ``view`` must not change meanwhile. The first step raises for an unknown schema, any step for malformed bytes.
    """
    return _decode_steps(key, version, view, True)


def decode_response_steps(key: int, version: int, view: Buffer) -> Generator[None, None, Any]:
    """As ``decode_response``, by a generator; see ``decode_request_steps``."""
    return _decode_steps(key, version, view, False)


def encode_response_steps(key: int, version: int, message: Any) -> Generator[int, None, list[bytes]]:
    """As ``encode_response``, by a generator that yields after every few elements, with the bytes that were added. It returns the
    pieces of the body. The message must not change meanwhile."""
    if type(message) is Encoded:
        return [message.body]
    found = _step_encoders.get((key, version))
    if found is None:
        found = _compile_step_encoder(key, version)
    encoder, name = found
    try:
        return (yield from encoder(message))
    except (StructError, AttributeError, TypeError, ValueError) as trouble:
        raise ValueError(f"{name} cannot be written: {trouble}") from trouble


def encode_request(key: int, version: int, message: Any) -> bytes:
    """The body of a request: an object of the API's request class, or ``bytes`` for Firn's own keys.

    Raises: ValueError if the message cannot be said in this version, or the version is not known.
    """
    return _encode(key, version, message, True)


def encode_response(key: int, version: int, message: Any) -> bytes:
    """The body of a response, without header and frame; as ``encode_request``. An ``Encoded`` is taken as it is."""
    if type(message) is Encoded:
        return message.body
    return _encode(key, version, message, False)


def struct_encoder(key: int, version: int, struct: str) -> Encoder:
    """The encoder of one struct of an API's messages, which is compiled now. Raises: KeyError if there is no such struct."""
    shape = shape_of(key, version)
    assert shape is not None, (key, version)
    return EncoderSource(shape).compile(struct)


def _decode(key: int, version: int, view: Buffer, is_request: bool) -> Any:
    found = _decoders.get((key, version, is_request))
    if found is None:
        found = _compile_decoder(key, version, is_request)
    decoder, wants_bytes, name = found
    try:
        return decoder(bytes(view) if wants_bytes else view)
    except TROUBLES as trouble:
        raise explain(trouble, name) from None


def _decode_steps(key: int, version: int, view: Buffer, is_request: bool) -> Generator[None, None, Any]:
    found = _step_decoders.get((key, version, is_request))
    if found is None:
        found = _compile_step_decoder(key, version, is_request)
    decoder, has_records, name = found
    try:
        return (yield from decoder(view if has_records else bytes(view)))
    except TROUBLES as trouble:
        raise explain(trouble, name) from None


def _encode(key: int, version: int, message: Any, is_request: bool) -> bytes:
    found = _encoders.get((key, version, is_request))
    if found is None:
        found = _compile_encoder(key, version, is_request)
    encoder, name = found
    try:
        return encoder(message)
    except (StructError, AttributeError, TypeError, ValueError) as trouble:
        raise ValueError(f"{name} cannot be written: {trouble}") from trouble


def _compile_decoder(key: int, version: int, is_request: bool) -> tuple[Decoder, bool, str]:
    name = message_name(key, version, is_request)
    made: tuple[Decoder, bool, str]
    if key in OPAQUE and version == 0:
        made = (decode_opaque, True, name)
    else:
        shape = shape_of(key, version)
        if shape is None:
            raise ProtocolError(f"{name} is not known.", ErrorCode.UNSUPPORTED_VERSION)
        struct = struct_name(key, is_request)
        has_records = any(row[1] == "records" for rows in shape.rows.values() for row in rows)
        writer = DecoderSource(
            shape,
            from_bytes=not has_records,
            is_request=is_request,
            elements_max=elements_max(key) if is_request else MESSAGE_ELEMENTS_MAX,
        )
        made = (writer.compile(struct), not has_records, name)
    _decoders[key, version, is_request] = made
    return made


def _compile_encoder(key: int, version: int, is_request: bool) -> tuple[Encoder, str]:
    name = message_name(key, version, is_request)
    made: tuple[Encoder, str]
    if key in OPAQUE and version == 0:
        made = (encode_opaque, name)
    else:
        shape = shape_of(key, version)
        if shape is None:
            raise ValueError(f"{name} is not known")
        made = (EncoderSource(shape).compile(struct_name(key, is_request)), name)
    _encoders[key, version, is_request] = made
    return made


def _compile_step_decoder(key: int, version: int, is_request: bool) -> tuple[StepDecoder, bool, str]:
    name = message_name(key, version, is_request)
    made: tuple[StepDecoder, bool, str]
    if key in OPAQUE and version == 0:
        made = (_opaque_steps, False, name)
    else:
        shape = shape_of(key, version)
        if shape is None:
            raise ProtocolError(f"{name} is not known.", ErrorCode.UNSUPPORTED_VERSION)
        has_records = any(row[1] == "records" for rows in shape.rows.values() for row in rows)
        writer = DecoderSource(
            shape,
            from_bytes=not has_records,
            is_request=is_request,
            in_steps=True,
            elements_max=elements_max(key) if is_request else MESSAGE_ELEMENTS_MAX,
        )
        made = (writer.compile(struct_name(key, is_request)), has_records, name)
    _step_decoders[key, version, is_request] = made
    return made


def _opaque_steps(buffer: Buffer) -> Generator[None, None, bytes]:
    yield
    return decode_opaque(buffer)


def _compile_step_encoder(key: int, version: int) -> tuple[StepEncoder, str]:
    name = message_name(key, version, False)
    encoder: StepEncoder
    if key in OPAQUE and version == 0:
        encoder = _opaque_encoding_steps
    else:
        shape = shape_of(key, version)
        if shape is None:
            raise ValueError(f"{name} is not known")
        encoder = EncoderSource(shape, in_steps=True).compile_steps(struct_name(key, False))
    _step_encoders[key, version] = (encoder, name)
    return encoder, name


def _opaque_encoding_steps(body: bytes) -> Generator[int, None, list[bytes]]:
    yield 0
    return [encode_opaque(body)]


def shape_of(key: int, version: int) -> Shape | None:
    """The fields of an API's messages in a version; None if there is no schema for it."""
    api = APIS.get(key)
    if api is None or not api.version_first <= version <= api.version_last:
        return None
    module = import_module(f"app.wire.apis.{api.module}")
    rows: Rows = module.FIELDS
    return Shape(rows, {name: getattr(module, name) for name in rows}, version, version >= api.flexible_first)


def struct_name(key: int, is_request: bool) -> str:
    """The class name of an API's request or response."""
    return APIS[key].name + ("Request" if is_request else "Response")


def message_name(key: int, version: int, is_request: bool) -> str:
    """How errors call a message, whether or not there is a schema for it."""
    kind = "request" if is_request else "response"
    return f"{APIS[key].name} v{version} {kind}" if key in APIS else f"{kind} of API {key} v{version}"


# --- Firn's own keys --------------------------------------------------------------------------------------------------


def decode_opaque(buffer: Buffer) -> bytes:
    """The only field of a private message: compact bytes, with nothing behind them."""
    size, position = read_uvarint(buffer, 0)
    if size == 0:
        raise refuse_null("the body")
    end = position + size - 1
    if end > len(buffer):
        raise refuse_length(size - 1, "the body")
    if end < len(buffer):
        raise refuse_rest(len(buffer) - end)
    return bytes(buffer[position:end])


def encode_opaque(body: bytes) -> bytes:
    """A private message whose only field is ``body``."""
    return uvarint(len(body) + 1) + body
