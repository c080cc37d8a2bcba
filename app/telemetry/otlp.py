"""Points of metrics out of OpenTelemetry's protobuf (``opentelemetry.proto.metrics.v1.MetricsData``). Pure.

Only gauges and sums are read, because clients push no others (KIP-714, "Metrics serialization format"). Pushes repeat the
same series. So a point has the positions of its encoded attributes. The caller identifies a series by their digest
(``PushedMetrics.digest``), and decodes them once for each series (``PushedMetrics.attributes``).

A generated decoder would build every object of a message at once. This one yields after each point and after every few fields, so
that a long push is read in portions (INV-15). Every field that is read counts against one limit of the push.

Specification: https://github.com/open-telemetry/opentelemetry-proto, ``metrics.proto`` and ``common.proto`` of version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from app.core.errors import ProtocolError
from app.core.turns import Steps

FIELDS_MAX: Final = 100_000
"""Fields of a push, with those of the attributes that are decoded: about 30 ms of work, and 400 ms with the longest numbers."""
FIELDS_AT_ONCE: Final = 500
"""Fields between two steps: at most 3 ms of work."""
NAME_BYTES_MAX: Final = 256
"""Of a metric. Longer ones are skipped."""
ATTRIBUTES_MAX: Final = 12
"""Attributes of a point, with those of its client. A point with more is not read."""
ATTRIBUTES_BYTES_MAX: Final = 4096
"""Encoded bytes of the attributes of a point, with those of its client. A point with more is not read."""
DIGEST_BYTES: Final = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = Struct("<d")
_INT64: Final = Struct("<q")
_VARINT_BYTES_MAX: Final = 10
_UINT64_MAX: Final = (1 << 64) - 1
_DELTA: Final = 1
"""The temporality of a sum since the last push. Others are since the client's start."""


class Span(NamedTuple):
    """A part of a message."""

    start: int
    end: int


class Attributes:
    """Those of a client or of a point, which are decoded when they are needed."""

    __slots__ = ("size_bytes", "spans", "texts")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """The first ones. Attributes beyond the limit have no place here."""
        self.size_bytes = 0
        self.texts: list[tuple[str, str]] | None = None
        """Names and values, once they are decoded."""

    def add(self, start: int, end: int) -> None:
        """Note the place of an attribute."""
        self.size_bytes += end - start
        if len(self.spans) <= ATTRIBUTES_MAX:
            self.spans.append(Span(start, end))


class Unread(Enum):
    """A metric or a point that is not read: of another kind, without a value, or with too many or too long attributes."""

    POINT = "point"


class Point(NamedTuple):
    """One value of one time series."""

    name: bytes
    is_sum: bool
    """Whether it only rises; all others are gauges."""
    is_delta: bool
    """Whether a sum counts from the last push."""
    of_client: Attributes
    """Those of all points of the client."""
    own: Attributes
    value: float


Field = tuple[int, int, int, int]
"""Number, wire type, and start and end; of a varint its value, and 0."""


class PushedMetrics:
    """The metrics of one push. Its readers share one count of fields."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = FIELDS_MAX
        """Fields that may still be read."""

    def points(self) -> Iterator[Point | Unread | None]:
        """The points of the push, in order, and None after every few fields.

        Raises: ProtocolError if the bytes are no metrics, or too many fields.
        """
        for field in self._fields(Span(0, len(self.data))):
            if field is None:
                yield None
                continue
            number, kind, start, end = field
            if (number, kind) == (1, _BYTES):
                yield from self._of_resource(Span(start, end))

    def digest(self, point: Point) -> bytes:
        """A digest of a point's name, kind and attributes, in the order in which they are written."""
        whole = [b"%d%d " % (point.is_sum, len(point.name)), point.name]
        for start, end in (*point.of_client.spans, *point.own.spans):
            whole.append(b"%d " % (end - start))
            whole.append(self.data[start:end])
        return blake2b(b"".join(whole), digest_size=DIGEST_BYTES).digest()

    def attributes(self, point: Point) -> Steps[list[tuple[str, str]]]:
        """Decode the attributes of a point, in steps. Those of its client are decoded once for all of its points.

        Returns: names and values. Those whose value is a list, a mapping or bytes are left out. Raises: ProtocolError.
        """
        return [*(yield from self._texts(point.of_client)), *(yield from self._texts(point.own))]

    def _fields(self, span: Span) -> Iterator[Field | None]:
        """The fields of a message, and None after every few fields of the push. Raises: ProtocolError."""
        data = self.data
        position, end = span
        while position < end:
            self.left -= 1
            if self.left < 0:
                raise ProtocolError(f"The metrics have more than {FIELDS_MAX} fields.")
            if self.left % FIELDS_AT_ONCE == 0:
                yield None
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

    def _of_resource(self, span: Span) -> Iterator[Point | Unread | None]:
        """Of a ``ResourceMetrics``: all metrics of one client."""
        of_client = Attributes()
        scopes: list[Span] = []
        for field in self._fields(span):
            if field is None:
                yield None
                continue
            number, kind, start, end = field
            if (number, kind) == (1, _BYTES):
                yield from self._collect(Span(start, end), of_client)
            elif (number, kind) == (2, _BYTES):
                scopes.append(Span(start, end))
        for scope in scopes:
            for field in self._fields(scope):
                if field is None:
                    yield None
                    continue
                number, kind, start, end = field
                if (number, kind) == (2, _BYTES):
                    yield from self._of_metric(Span(start, end), of_client)

    def _collect(self, span: Span, found: Attributes) -> Steps[None]:
        """Add the attributes of a ``Resource`` to ``found``."""
        for field in self._fields(span):
            if field is None:
                yield
                continue
            number, kind, start, end = field
            if (number, kind) == (1, _BYTES):
                found.add(start, end)

    def _of_metric(self, span: Span, of_client: Attributes) -> Iterator[Point | Unread | None]:
        """Yield the points of a ``Metric``."""
        named = Span(0, 0)
        gauge: Span | None = None
        total: Span | None = None
        for field in self._fields(span):
            if field is None:
                yield None
                continue
            number, kind, start, end = field
            if kind != _BYTES:
                continue
            if number == 1:
                named = Span(start, end)
            elif number == 5:
                gauge, total = Span(start, end), None
            elif number == 7:
                total, gauge = Span(start, end), None
        found = gauge or total
        if found is None or not 0 < named.end - named.start <= NAME_BYTES_MAX:
            yield Unread.POINT
            return
        points: list[Span] = []
        is_delta = rises = False
        for field in self._fields(found):
            if field is None:
                yield None
                continue
            number, kind, start, end = field
            if (number, kind) == (1, _BYTES):
                points.append(Span(start, end))
            elif (number, kind) == (2, _VARINT) and found is total:
                is_delta = start == _DELTA
            elif (number, kind) == (3, _VARINT) and found is total:
                rises = start != 0
        name = self.data[named.start : named.end]
        for point in points:
            own = Attributes()
            value = yield from self._of_point(point, own)
            if value is None or not _fit(of_client, own):
                yield Unread.POINT
            else:
                yield Point(name, rises, is_delta, of_client, own, value)

    def _of_point(self, span: Span, own: Attributes) -> Steps[float | None]:
        """Read a ``NumberDataPoint``: add its attributes to ``own``. Returns: its value, if it has one."""
        value: float | None = None
        for field in self._fields(span):
            if field is None:
                yield
                continue
            number, kind, start, end = field
            if kind == _BYTES and number == 7:
                own.add(start, end)
            elif kind == _FIXED64 and number == 4:
                (value,) = _DOUBLE.unpack_from(self.data, start)
            elif kind == _FIXED64 and number == 6:
                value = float(_INT64.unpack_from(self.data, start)[0])
        return value

    def _texts(self, attributes: Attributes) -> Steps[list[tuple[str, str]]]:
        """Names and values of attributes, decoded once. Raises: ProtocolError."""
        if attributes.texts is not None:
            return attributes.texts
        found: list[tuple[str, str]] = []
        for span in attributes.spans:
            name, value = "", None
            for field in self._fields(span):
                if field is None:
                    yield
                    continue
                number, kind, start, end = field
                if (number, kind) == (1, _BYTES):
                    name = _text(self.data[start:end])
                elif (number, kind) == (2, _BYTES):
                    value = yield from self._value(Span(start, end))
            if name and value is not None:
                found.append((name, value))
        attributes.texts = found
        return found

    def _value(self, span: Span) -> Steps[str | None]:
        """The text of an ``AnyValue`` that is no collection. Raises: ProtocolError."""
        text: str | None = None
        for field in self._fields(span):
            if field is None:
                yield
                continue
            number, kind, start, end = field
            if (number, kind) == (1, _BYTES):
                text = _text(self.data[start:end])
            elif (number, kind) == (2, _VARINT):
                text = "true" if start else "false"
            elif (number, kind) == (3, _VARINT):
                text = str(start - (1 << 64) if start >> 63 else start)
            elif (number, kind) == (4, _FIXED64):
                text = repr(_DOUBLE.unpack_from(self.data, start)[0])
        return text


def _fit(of_client: Attributes, own: Attributes) -> bool:
    """Whether the attributes of a point are few and short enough to be read."""
    return (
        of_client.size_bytes + own.size_bytes <= ATTRIBUTES_BYTES_MAX
        and len(of_client.spans) + len(own.spans) <= ATTRIBUTES_MAX
    )


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


def _text(body: bytes) -> str:
    """Raises: ProtocolError."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise ProtocolError("A text in the metrics is not UTF-8.") from None
