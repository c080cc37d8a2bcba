"""A response of metrics that was packed by pieces is the same bytes' worth as one packed at once."""

from __future__ import annotations

from app.client.firn_api import MetricSample, MetricsResponse, pack_metrics, pack_sample, unpack


def test_metrics_packed_one_by_one_are_read_as_if_packed_at_once() -> None:
    samples = [
        MetricSample("f", "gauge", "Help, ä.", "f", [("topic", "t"), ("partition", str(number))], number / 2)
        for number in range(70_000)
    ]
    packed = [pack_sample(s.family, s.kind, s.help, s.name, s.labels, s.value) for s in samples]
    for count in (0, 1, 15, 16, 70_000):
        response = unpack(MetricsResponse, pack_metrics(7, "cluster", packed[:count], process_id=9))
        assert response == MetricsResponse(7, "cluster", samples[:count], 9)
