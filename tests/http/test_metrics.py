"""Prometheus' text, checked by prometheus_client's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from app.core.metrics import Registry, Sample
from app.core.turns import whole
from app.http.metrics import labelled, render_steps


def render(samples: list[Sample]) -> str:
    return b"".join(whole(render_steps(samples))).decode()


def test_samples_of_every_kind_are_read_back_by_prometheus() -> None:
    registry = Registry()
    registry.counter("firn_things_total", 'Things, "quoted"\nand \\ more.', topic='a"\\\nb').value += 3
    registry.histogram("firn_wait_seconds", "Waits.", api="Fetch").observe(0.003)
    registry.gauge("firn_size_bytes", "Sizes.", lambda: [((("tier", "local"),), 12.5), ((("tier", "remote"),), 1e18)])
    families = {family.name: family for family in text_string_to_metric_families(render(registry.samples()))}
    assert families["firn_things"].type == "counter"
    (sample,) = families["firn_things"].samples
    assert (sample.labels, sample.value) == ({"topic": 'a"\\\nb'}, 3.0)
    assert families["firn_things"].documentation == 'Things, "quoted"\nand \\ more.'
    wait = families["firn_wait_seconds"]
    assert wait.type == "histogram"
    assert {s.labels["le"]: s.value for s in wait.samples if s.name.endswith("_bucket")}["0.005"] == 1
    assert [s.value for s in wait.samples if s.name.endswith("_sum")] == [0.003]
    assert [s.value for s in families["firn_size_bytes"].samples] == [12.5, 1e18]


def test_a_family_of_several_processes_has_one_head() -> None:
    registry = Registry()
    registry.counter("firn_x_total", "X.").value += 1
    text = render([*labelled(registry.samples(), node_id="1"), *labelled(registry.samples(), node_id="2")])
    assert text.count("# TYPE firn_x_total counter") == 1
    assert 'firn_x_total{node_id="1"} 1\nfirn_x_total{node_id="2"} 1\n' in text


def test_metrics_of_many_partitions_are_written_in_many_steps() -> None:
    registry = Registry()
    registry.gauge("firn_size_bytes", "Sizes.", lambda: [((("partition", str(n)),), 1.0) for n in range(10_000)])
    samples = registry.samples()
    assert len(list(render_steps(samples))) > 10_000 / 200
    assert not samples, "samples that are written are freed in steps, too"
    assert render(registry.samples()).count("firn_size_bytes{") == 10_000
