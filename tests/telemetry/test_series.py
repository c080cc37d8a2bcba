"""Names and labels of clients' series, and what is dropped."""

from __future__ import annotations

import tracemalloc

import pytest

from app.core.metrics import Sample
from app.telemetry.series import HELP, Known, Taken, block_of, take
from tests.support.client_metrics import Pushed, metric, metrics_data, part


def taken(
    *pushed: Pushed, known: Known | None = None, prefixes: tuple[bytes, ...] | None = None, series_max: int = 100
) -> Taken:
    *_, last = take(metrics_data(pushed), known or {}, prefixes, series_max)
    assert last is not None
    return last


def shown(result: Taken) -> list[tuple[str, str, dict[str, str], float]]:
    samples = block_of(result.series, ()).samples()
    return [(one.family, one.kind, dict(one.labels), one.value) for one in samples]


@pytest.mark.parametrize(
    ("pushed", "family", "kind"),
    [
        (Pushed("org.apache.kafka.producer.record.send.rate", 1), "kafka_client_producer_record_send_rate", "gauge"),
        (Pushed("org.apache.kafka.consumer.polls", 1, is_sum=True), "kafka_client_consumer_polls_total", "counter"),
        (Pushed("org.apache.kafka.a.total", 1, is_sum=True), "kafka_client_a_total", "counter"),
        (Pushed("org.apache.kafka.a.total", 1), "kafka_client_a_total_value", "gauge"),
        (Pushed("firn_offline_partitions", 1), "kafka_client_firn_offline_partitions", "gauge"),
        (Pushed('x{le="1"} 5\n', 1), "kafka_client_x_le__1___5_", "gauge"),
    ],
)
def test_a_name_is_one_of_prometheus_behind_the_prefix(pushed: Pushed, family: str, kind: str) -> None:
    assert shown(taken(pushed)) == [(family, kind, {}, 1.0)]


def test_attributes_are_labels_and_those_of_the_broker_stay_the_brokers() -> None:
    attributes = {"topic": "t", "node.id": 3, "node_id": 4, "client_id": "other", "job": "j", "__name__": "n", "0": "z"}
    assert shown(taken(Pushed("x", 1, attributes))) == [
        (
            "kafka_client_x",
            "gauge",
            {"kafka_node_id": "3", "topic": "t", "kafka_job": "j", "kafka___name__": "n", "kafka_0": "z"},
            1.0,
        )
    ]


def test_a_series_has_the_labels_of_its_client_too() -> None:
    series = taken(Pushed("x", 2.5, {"topic": "t"}), Pushed("x", 3.5, {"topic": "u"})).series
    labels = [(("client_id", "c"), ("topic", name)) for name in "tu"]
    assert list(block_of(series, (("client_id", "c"),)).samples()) == [
        Sample("kafka_client_x", "gauge", HELP, "kafka_client_x", labels[0], 2.5),
        Sample("kafka_client_x", "gauge", "", "kafka_client_x", labels[1], 3.5),
    ]


@pytest.mark.parametrize(
    "attributes", [{f"a{n}": "v" for n in range(13)}, {"topic": "t" * 257}, {"t" * 257: "topic"}], ids=str
)
def test_a_point_with_too_many_or_too_long_attributes_is_dropped(attributes: dict[str, str]) -> None:
    assert taken(Pushed("x", 1, attributes), Pushed("y", 1)).dropped == 1


@pytest.mark.parametrize(
    ("size", "kept"), [(3_000, 500), (100_000, 0)], ids=["short enough for a series", "too long for one"]
)
def test_attributes_that_are_no_labels_take_no_memory(size: int, kept: int) -> None:
    """An attribute of the client is bytes. 500 series would be 1.5 MB and 50 MB if each kept it."""
    resource = part(1, part(1, part(1, b"payload") + part(2, part(7, bytes(size)))))
    data = part(1, resource + part(2, b"".join(part(2, metric(Pushed(f"m{n}", 1))) for n in range(500))))
    tracemalloc.start()
    try:
        *_, last = take(data, {}, None, 500)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last is not None
    assert (len(last.series), last.dropped) == (kept, 500 - kept)
    assert (used < 500 * 600, peak < 500 * 1_000) == (True, True), (used, peak)


def test_series_whose_attributes_differ_only_in_their_place_or_kind_are_kept_apart() -> None:
    pushed = [
        Pushed("x", 1, {"a": "b"}),
        Pushed("x", 2, {"a": "c"}),
        Pushed("x", 3, {"b": "b"}),
        Pushed("xa", 4),
        Pushed("x", 5, {"a": "b"}, is_sum=True),
    ]
    first = taken(*pushed)
    second = taken(*reversed(pushed), known=first.series)
    assert [value for *_, value in shown(first)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(second.series) == list(reversed(first.series))
    assert {len(key) for key in first.series} == {16}


def test_a_series_beyond_the_limit_is_not_decoded() -> None:
    odd = part(1, b"y") + part(5, part(1, part(7, part(1, b"\xff")) + b"\x21" + bytes(8)))
    data = part(1, part(2, part(2, metric(Pushed("x", 1))) + part(2, odd)))
    *_, last = take(data, {}, None, 1)
    assert last is not None
    assert (len(last.series), last.dropped) == (1, 1)


def test_points_that_are_not_wanted_and_those_beyond_the_limit_are_dropped() -> None:
    pushed = [Pushed(name, 1) for name in ("a.x", "b.x", "b.y", "c.x")]
    result = taken(*pushed, prefixes=(b"b.", b"c."), series_max=2)
    assert [one.family for one in result.series.values()] == ["kafka_client_b_x", "kafka_client_b_y"]
    assert result.dropped == 2


def test_two_series_with_one_name_and_the_same_labels_are_shown_once() -> None:
    result = taken(Pushed("a.b", 1), Pushed("a_b", 2), Pushed("org.apache.kafka.a.b", 3))
    assert (shown(result), result.dropped) == ([("kafka_client_a_b", "gauge", {}, 1.0)], 2)


def test_a_push_replaces_the_one_before_and_deltas_add_up() -> None:
    first = taken(Pushed("a", 5, is_sum=True, is_delta=True), Pushed("b", 7, is_sum=True), Pushed("c", 1))
    second = taken(Pushed("a", 2, is_sum=True, is_delta=True), Pushed("b", 9, is_sum=True), known=first.series)
    assert [(name, value) for name, _, _, value in shown(second)] == [
        ("kafka_client_a_total", 7.0),
        ("kafka_client_b_total", 9.0),
    ]
    assert [value for *_, value in shown(first)] == [5.0, 7.0, 1.0], (
        "readers of the earlier push see no part of a later one"
    )
