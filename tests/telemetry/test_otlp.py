"""Points are read out of every push that OpenTelemetry's protobuf allows, and no bytes raise anything but ProtocolError."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ProtocolError
from app.core.turns import whole
from app.telemetry.otlp import FIELDS_MAX, Point, PushedMetrics, Unread
from tests.support.client_metrics import Pushed, attribute, metric, metrics_data, part, varint

KINDS = descriptor_pb2.FieldDescriptorProto


def _schema() -> descriptor_pb2.FileDescriptorProto:
    """The messages of metrics.proto and common.proto (version 1) that are read, and one histogram that is not. By proto2, a value
    that is set is written even if it is 0, as those of a oneof are."""
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="otlp", syntax="proto2")
    messages: dict[str, list[tuple[str, int, int | str, bool]]] = {
        "AnyValue": [
            ("string_value", 1, KINDS.TYPE_STRING, False), ("bool_value", 2, KINDS.TYPE_BOOL, False),
            ("int_value", 3, KINDS.TYPE_INT64, False), ("double_value", 4, KINDS.TYPE_DOUBLE, False),
            ("bytes_value", 7, KINDS.TYPE_BYTES, False),
        ],
        "KeyValue": [("key", 1, KINDS.TYPE_STRING, False), ("value", 2, "AnyValue", False)],
        "Resource": [("attributes", 1, "KeyValue", True), ("dropped_attributes_count", 2, KINDS.TYPE_UINT32, False)],
        "NumberDataPoint": [
            ("attributes", 7, "KeyValue", True), ("start_time_unix_nano", 2, KINDS.TYPE_FIXED64, False),
            ("time_unix_nano", 3, KINDS.TYPE_FIXED64, False), ("as_double", 4, KINDS.TYPE_DOUBLE, False),
            ("as_int", 6, KINDS.TYPE_SFIXED64, False), ("flags", 8, KINDS.TYPE_UINT32, False),
        ],
        "Gauge": [("data_points", 1, "NumberDataPoint", True)],
        "Sum": [
            ("data_points", 1, "NumberDataPoint", True), ("aggregation_temporality", 2, KINDS.TYPE_INT32, False),
            ("is_monotonic", 3, KINDS.TYPE_BOOL, False),
        ],
        "Histogram": [("aggregation_temporality", 2, KINDS.TYPE_INT32, False)],
        "Metric": [
            ("name", 1, KINDS.TYPE_STRING, False), ("description", 2, KINDS.TYPE_STRING, False),
            ("unit", 3, KINDS.TYPE_STRING, False), ("gauge", 5, "Gauge", False), ("sum", 7, "Sum", False),
            ("histogram", 9, "Histogram", False),
        ],
        "Scope": [("name", 1, KINDS.TYPE_STRING, False)],
        "ScopeMetrics": [
            ("scope", 1, "Scope", False), ("metrics", 2, "Metric", True), ("schema_url", 3, KINDS.TYPE_STRING, False),
        ],
        "ResourceMetrics": [
            ("resource", 1, "Resource", False), ("scope_metrics", 2, "ScopeMetrics", True),
            ("schema_url", 3, KINDS.TYPE_STRING, False),
        ],
        "MetricsData": [("resource_metrics", 1, "ResourceMetrics", True)],
    }  # fmt: skip
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = KINDS.LABEL_REPEATED if repeated else KINDS.LABEL_OPTIONAL
            if isinstance(kind, str):
                message.field.add(
                    name=field, number=number, type=KINDS.TYPE_MESSAGE, type_name=f".otlp.{kind}", label=label
                )
            else:
                message.field.add(name=field, number=number, type=kind, label=label)  # type: ignore[arg-type]
    return file


def _messages() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_schema())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("otlp.MetricsData"))


MetricsData = _messages()
TEXTS = st.text(min_size=1, max_size=12)
VALUES = st.one_of(st.text(max_size=8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
ATTRIBUTES = st.dictionaries(TEXTS, VALUES, max_size=3)


def fill(attributes: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        one = attributes.add(key=name)
        kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(one.value, kind, value)


def read(data: bytes) -> list[tuple[Point, list[tuple[str, str]]]]:
    """The points of a push, with the names and values of their attributes."""
    metrics = PushedMetrics(data)
    return [(one, whole(metrics.attributes(one))) for one in metrics.points() if isinstance(one, Point)]


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(
    shared=ATTRIBUTES,
    metrics=st.lists(
        st.tuples(TEXTS, st.booleans(), st.booleans(), st.lists(st.tuples(ATTRIBUTES, VALUES), max_size=3)), max_size=4
    ),
)
def test_points_are_those_that_a_generated_encoder_writes(
    shared: dict[str, Any], metrics: list[tuple[str, bool, bool, list[tuple[dict[str, Any], Any]]]]
) -> None:
    message = MetricsData()
    resource = message.resource_metrics.add(schema_url="https://example.com")
    fill(resource.resource.attributes, shared)
    scope = resource.scope_metrics.add()
    scope.scope.name = "scope"
    expected = []
    for name, is_sum, is_delta, points in metrics:
        one = scope.metrics.add(name=name, description="what", unit="1")
        data = one.sum if is_sum else one.gauge
        data.SetInParent()
        if is_sum:
            data.aggregation_temporality, data.is_monotonic = (1 if is_delta else 2), True
        for attributes, value in points:
            number = float(value) if isinstance(value, float) else len(str(value))
            point = data.data_points.add(start_time_unix_nano=1, time_unix_nano=2, flags=1)
            fill(point.attributes, attributes)
            if isinstance(number, float):
                point.as_double = number
            else:
                point.as_int = number
            told = [(key, text_of(found)) for key, found in (*shared.items(), *attributes.items())]
            expected.append((name.encode(), is_sum, is_sum and is_delta, told, float(number)))
    found = read(message.SerializeToString())
    shown = [(one.name, one.is_sum, one.is_delta, attributes, one.value) for one, attributes in found]
    assert shown == expected


def test_histograms_and_points_without_a_value_are_not_read() -> None:
    histogram = part(1, b"latency") + part(9, b"")
    empty = part(1, b"rate") + part(5, part(1, b""))
    data = part(1, part(2, part(2, histogram) + part(2, empty) + part(2, metric(Pushed("x", 2)))))
    *unread, last = PushedMetrics(data).points()
    assert unread == [Unread.POINT, Unread.POINT]
    assert isinstance(last, Point)
    assert (last.name, last.is_sum, last.is_delta, last.value) == (b"x", False, False, 2.0)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        read(data)


@given(st.data())
def test_no_damaged_push_raises_anything_but_a_protocol_error(draw: st.DataObject) -> None:
    damaged = bytearray(metrics_data([Pushed("a.b", 1.5, {"topic": "t", "n": 3}, is_sum=True)] * 3, {"group_id": "g"}))
    place = draw.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= 1 << draw.draw(st.integers(0, 7))
    cut = draw.draw(st.integers(0, len(damaged)))
    with suppress(ProtocolError):
        read(bytes(damaged[:cut]))


def test_a_push_of_too_many_fields_is_refused() -> None:
    with pytest.raises(ProtocolError, match="more than 100000 fields"):
        read(part(1, b"") * (FIELDS_MAX + 1))


UNKNOWN = varint(15 << 3) + varint((1 << 64) - 1)
"""A field that no message has, with the longest number."""


def point_of(*attributes: bytes) -> bytes:
    """A metric with one point."""
    point = b"".join(part(7, one) for one in attributes) + varint(4 << 3 | 1) + bytes(8)
    return part(1, b"x") + part(5, part(1, point))


def test_the_fields_of_attributes_count_against_those_of_the_push() -> None:
    long = attribute("a", "b") + UNKNOWN * 300
    data = part(1, part(2, b"".join(part(2, point_of(attribute("n", n) + long)) for n in range(400))))
    with pytest.raises(ProtocolError, match="more than 100000 fields"):
        read(data)


def test_the_attributes_of_a_client_are_decoded_once_for_all_of_its_points() -> None:
    """300 fields of 500 points would be 150,000."""
    resource = part(1, part(1, attribute("rack", "r") + UNKNOWN * 300))
    data = part(1, resource + part(2, part(2, point_of()) * 500))
    assert [attributes for _, attributes in read(data)] == [[("rack", "r")]] * 500


def test_the_work_between_two_steps_is_at_most_a_thousand_fields() -> None:
    many = UNKNOWN * 2_000
    places: list[Callable[[bytes], bytes]] = [
        lambda fields: fields,
        lambda fields: part(1, fields),
        lambda fields: part(1, part(1, fields)),
        lambda fields: part(1, part(2, fields)),
        lambda fields: part(1, part(2, part(2, fields))),
        lambda fields: part(1, part(2, part(2, part(1, b"x") + part(5, fields)))),
        lambda fields: part(1, part(2, part(2, part(1, b"x") + part(5, part(1, fields))))),
        lambda _: part(1, part(1, part(1, b"") * 2_000)),
        lambda _: part(1, part(2, b"") * 2_000),
        lambda _: part(1, part(2, part(2, part(1, b"x") + part(5, part(1, b"") * 2_000)))),
        lambda _: part(1, part(2, part(2, part(1, b"x") + part(5, part(1, part(7, b"") * 2_000))))),
    ]
    for number, place in enumerate(places):
        metrics = PushedMetrics(place(many))
        before = metrics.left
        longest = 0
        for _ in metrics.points():
            longest, before = max(longest, before - metrics.left), metrics.left
        longest = max(longest, before - metrics.left)
        assert FIELDS_MAX - metrics.left >= 2_000
        assert longest <= 1_000, f"place {number}"


@pytest.mark.parametrize("depth", ["attribute", "value"])
def test_attributes_are_decoded_in_steps(depth: str) -> None:
    fields = (varint(15 << 3) + varint(1)) * 1_800
    odd = fields if depth == "attribute" else part(2, fields)
    metrics = PushedMetrics(part(1, part(2, part(2, point_of(odd)))))
    [point] = metrics.points()
    assert isinstance(point, Point)
    assert len(list(metrics.attributes(point))) >= 3


@pytest.mark.parametrize(
    "attributes",
    [
        [attribute(f"a{n}", "v") for n in range(12)] + [part(1, b"\xff")],
        [attribute("a", "v" * 4_100)],
        [attribute("a", "v"), part(1, b"list") + part(2, part(5, bytes(4_100)))],
        [attribute("a", "v") + part(9, bytes(4_100))],
    ],
    ids=["too many", "a long text", "a long list", "a long unknown field"],
)
@pytest.mark.parametrize("place", ["client", "point"])
def test_a_point_with_too_many_or_too_long_attributes_is_not_read(place: str, attributes: list[bytes]) -> None:
    resource = part(1, b"".join(part(1, one) for one in attributes)) if place == "client" else b""
    metrics = part(2, point_of(*(attributes if place == "point" else ()))) + part(2, metric(Pushed("y", 1)))
    found = list(PushedMetrics(part(1, resource + part(2, metrics))).points())
    assert [one is Unread.POINT for one in found] == [True, place == "client"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05\x00",
        b"\x0b",
        varint(1 << 3) + b"\xff" * 11,
    ],
)
def test_bytes_that_are_cut_off_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data)
