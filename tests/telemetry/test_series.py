"""Names and labels of clients' series, and what is dropped."""

from __future__ import annotations

import pytest

from app.core.metrics import Sample
from app.telemetry.otlp import points_of
from app.telemetry.series import HELP, Known, Taken, take
from tests.support.client_metrics import Pushed, metrics_data


def taken(
    *pushed: Pushed, known: Known | None = None, prefixes: tuple[bytes, ...] | None = None, series_max: int = 100
) -> Taken:
    *_, last = take(points_of(metrics_data(pushed)), known or {}, prefixes, series_max)
    assert last is not None
    return last


def shown(result: Taken) -> list[tuple[str, str, dict[str, str], float]]:
    samples = [one.sample(()) for one in result.series.values()]
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
    [series] = taken(Pushed("x", 2.5, {"topic": "t"})).series.values()
    labels = (("client_id", "c"), ("topic", "t"))
    assert series.sample((("client_id", "c"),)) == Sample(
        "kafka_client_x", "gauge", HELP, "kafka_client_x", labels, 2.5
    )


@pytest.mark.parametrize(
    "attributes", [{f"a{n}": "v" for n in range(13)}, {"topic": "t" * 257}, {"t" * 257: "topic"}], ids=str
)
def test_a_point_with_too_many_or_too_long_attributes_is_dropped(attributes: dict[str, str]) -> None:
    assert taken(Pushed("x", 1, attributes), Pushed("y", 1)).dropped == 1


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
