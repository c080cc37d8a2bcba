"""Points of metrics out of OpenTelemetry's protobuf (``opentelemetry.proto.metrics.v1.MetricsData``). Pure.

Only gauges and sums are read, because clients push no others (KIP-714, "Metrics serialization format"). A push names the same
series each time, so a point comes with the raw bytes of its attributes: its owner decodes the attributes of a series once
(``attributes_of``).

A generated decoder would build every object of a message at once. This one yields after each point, so that a long push is read in
portions (INV-15).

Specification: https://github.com/open-telemetry/opentelemetry-proto, ``metrics.proto`` and ``common.proto`` of version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from app.core.errors import ProtocolError

FIELDS_MAX: Final = 100_000
"""Fields of a push: about 30 ms of work."""
NAME_BYTES_MAX: Final = 256
"""Of a metric and of an attribute. Longer ones are skipped."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = Struct("<d")
_INT64: Final = Struct("<q")
_VARINT_BYTES_MAX: Final = 10
_UINT64_MAX: Final = (1 << 64) - 1
_DELTA: Final = 1
"""The temporality of a sum since the last push. Others are since the client's start."""


class Point(NamedTuple):
    """One value of one time series."""

    name: bytes
    is_sum: bool
    """Whether it only rises; all others are gauges."""
    is_delta: bool
    """Whether a sum counts from the last push."""
    attributes: bytes
    """Those of the client and of the point, as ``KeyValue`` fields."""
    value: float


class Span(NamedTuple):
    """A part of a message."""

    start: int
    end: int


class _Fields:
    """The fields of the messages of one push, counted."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = FIELDS_MAX

    def of(self, span: Span) -> Iterator[tuple[int, int, int, int]]:
        """Number, wire type, and start and end of each field; of a varint its value, and 0. Raises: ProtocolError."""
        data = self.data
        position, end = span
        while position < end:
            self.left -= 1
            if self.left < 0:
                raise ProtocolError(f"The metrics have more than {FIELDS_MAX} fields.")
            tag, position = _varint(data, position, end)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, position = _varint(data, position, end)
                yield number, kind, value, 0
                continue
            if kind == _BYTES:
                length, position = _varint(data, position, end)
            elif kind == _FIXED64:
                length = 8
            elif kind == _FIXED32:
                length = 4
            else:
                raise ProtocolError(f"A field of the metrics has wire type {kind}.")
            if length > end - position:
                raise ProtocolError(f"A field of the metrics has {length} bytes where {end - position} are left.")
            yield number, kind, position, position + length
            position += length


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A number and the position behind it. Raises: ProtocolError."""
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    for place in range(position, min(end, position + _VARINT_BYTES_MAX)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64_MAX, place + 1
        shift += 7
    raise ProtocolError("A number in the metrics is cut off or too long.")


def points_of(data: bytes) -> Iterator[Point | None]:
    """The points of a push, in order. None is a metric or a point that is not read: of another kind, or without a value.

    Raises: ProtocolError if the bytes are no metrics, or too many fields.
    """
    fields = _Fields(data)
    for number, kind, start, end in fields.of(Span(0, len(data))):
        if (number, kind) == (1, _BYTES):
            yield from _of_resource(fields, Span(start, end))


def _of_resource(fields: _Fields, span: Span) -> Iterator[Point | None]:
    """Of a ``ResourceMetrics``: all metrics of one client."""
    data = fields.data
    shared: list[bytes] = []
    scopes: list[Span] = []
    for number, kind, start, end in fields.of(span):
        if (number, kind) == (1, _BYTES):
            for inner, inner_kind, inner_start, inner_end in fields.of(Span(start, end)):
                if (inner, inner_kind) == (1, _BYTES):
                    shared.append(_attribute(data[inner_start:inner_end]))
        elif (number, kind) == (2, _BYTES):
            scopes.append(Span(start, end))
    of_client = b"".join(shared)
    for scope in scopes:
        for number, kind, start, end in fields.of(scope):
            if (number, kind) == (2, _BYTES):
                yield from _of_metric(fields, Span(start, end), of_client)


def _of_metric(fields: _Fields, span: Span, of_client: bytes) -> Iterator[Point | None]:
    """Of a ``Metric``."""
    name = b""
    gauge: Span | None = None
    total: Span | None = None
    for number, kind, start, end in fields.of(span):
        if kind != _BYTES:
            continue
        if number == 1:
            name = fields.data[start:end]
        elif number == 5:
            gauge, total = Span(start, end), None
        elif number == 7:
            total, gauge = Span(start, end), None
    found = gauge or total
    if found is None or not 0 < len(name) <= NAME_BYTES_MAX:
        yield None
        return
    points: list[Span] = []
    is_delta = rises = False
    for number, kind, start, end in fields.of(found):
        if (number, kind) == (1, _BYTES):
            points.append(Span(start, end))
        elif (number, kind) == (2, _VARINT) and found is total:
            is_delta = start == _DELTA
        elif (number, kind) == (3, _VARINT) and found is total:
            rises = start != 0
    for point in points:
        yield _point(fields, point, name, rises, is_delta, of_client)


def _point(fields: _Fields, span: Span, name: bytes, rises: bool, is_delta: bool, of_client: bytes) -> Point | None:
    """Of a ``NumberDataPoint``."""
    data = fields.data
    attributes = [of_client]
    value: float | None = None
    for number, kind, start, end in fields.of(span):
        if kind == _BYTES and number == 7:
            attributes.append(_attribute(data[start:end]))
        elif kind == _FIXED64 and number == 4:
            (value,) = _DOUBLE.unpack_from(data, start)
        elif kind == _FIXED64 and number == 6:
            value = float(_INT64.unpack_from(data, start)[0])
    if value is None:
        return None
    return Point(name, rises, is_delta, b"".join(attributes), value)


def _attribute(body: bytes) -> bytes:
    """A ``KeyValue`` with its length before it."""
    return len(body).to_bytes(4, "big") + body


def attributes_of(raw: bytes) -> list[tuple[str, str]]:
    """Names and values of the attributes of a point. Those whose value is a list, a mapping or bytes are left out.

    Raises: ProtocolError.
    """
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(raw):
        start = position + 4
        position = start + int.from_bytes(raw[position:start], "big")
        fields = _Fields(raw)
        name, value = "", None
        for number, kind, begin, end in fields.of(Span(start, position)):
            if (number, kind) == (1, _BYTES):
                name = _text(raw[begin:end])
            elif (number, kind) == (2, _BYTES):
                value = _value(fields, Span(begin, end))
        if name and value is not None:
            found.append((name, value))
    return found


def _value(fields: _Fields, span: Span) -> str | None:
    """The text of an ``AnyValue`` that is no collection."""
    text: str | None = None
    for number, kind, start, end in fields.of(span):
        if (number, kind) == (1, _BYTES):
            text = _text(fields.data[start:end])
        elif (number, kind) == (2, _VARINT):
            text = "true" if start else "false"
        elif (number, kind) == (3, _VARINT):
            text = str(start - (1 << 64) if start >> 63 else start)
        elif (number, kind) == (4, _FIXED64):
            text = repr(_DOUBLE.unpack_from(fields.data, start)[0])
    return text


def _text(body: bytes) -> str:
    """Raises: ProtocolError."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise ProtocolError("A text in the metrics is not UTF-8.") from None
