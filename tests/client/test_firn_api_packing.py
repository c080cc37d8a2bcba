"""A response of metrics that was packed by pieces is the same bytes' worth as one packed at once."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from app.core.errors import ProtocolError
from app.core.metrics import PackedSamples
from app.core.turns import slices, whole
from app.wire.private import MetricSample, MetricsResponse, pack_metrics, pack_samples, unpack, unpack_metrics_steps


def test_metrics_packed_by_pieces_are_read_as_if_packed_at_once() -> None:
    samples = [
        MetricSample("f", "gauge", "Help, ä.", "f", [("topic", "t"), ("partition", str(number))], number / 2)
        for number in range(70_000)
    ]
    for count, together in ((0, 1), (1, 1), (15, 15), (16, 16), (40, 15), (70_000, 100)):
        packed = [pack_samples([astuple(one) for one in some]) for some in slices(samples[:count], together)]
        response = unpack(MetricsResponse, pack_metrics(7, "cluster", packed, process_id=9))
        assert response == MetricsResponse(7, "cluster", samples[:count], 9)
        assert whole(unpack_metrics_steps(pack_metrics(7, "cluster", packed, process_id=9))) == response


def test_only_the_samples_that_are_wanted_are_kept() -> None:
    packed = pack_samples([(name, "gauge", "Help.", name, [], 1.0) for name in ("a", "b", "a", "c")])
    answer = whole(unpack_metrics_steps(pack_metrics(7, "cluster", [packed], process_id=9), {"a", "c"}))
    assert [sample.name for sample in answer.samples] == ["a", "a", "c"]


def test_metrics_are_read_in_many_steps_and_checked() -> None:
    packed = [pack_samples([("f", "gauge", "Help.", "f", [], 1.0)])] * 10_000
    whole_answer = pack_metrics(7, "cluster", packed, process_id=9)
    assert len(list(unpack_metrics_steps(whole_answer))) >= 100
    wrong = pack_metrics(7, "cluster", [*packed, PackedSamples(1, b"\x01")], process_id=9)
    for bad in (whole_answer[:-5], wrong, b"\x91" * 100_000):
        with pytest.raises(ProtocolError, match=r"MetricsResponse|PackedMetrics"):
            whole(unpack_metrics_steps(bad))
