"""FirnMetrics: the samples that are asked for by name, without work for the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.metrics import Labels, Registry
from app.wire.private import MetricSample
from tests.support.broker import running_broker


def told(samples: list[MetricSample]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    return sorted((one.name, tuple(sorted(map(tuple, one.labels)))) for one in samples)  # type: ignore[misc]


async def test_each_metric_is_told_by_its_name_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            admin, connection = AdminClient(cluster), await cluster.any_broker()
            await admin.metrics(connection)  # counts itself from now on
            everything = (await admin.metrics(connection)).samples
            for name in {one.name for one in everything}:
                found = (await admin.metrics(connection, [name])).samples
                assert told(found) == told([one for one in everything if one.name == name]), name


def test_readers_of_other_metrics_are_not_asked() -> None:
    registry, asked = Registry(), []

    def read(name: str) -> Iterator[tuple[str, Labels, float]]:
        asked.append(name)
        yield name, (), 1.0

    for name in ("a", "b"):
        registry.describe(name, "gauge", "")
        registry.source(lambda name=name: read(name), (name,))  # type: ignore[misc]
        registry.gauge(f"{name}_gauge", "", lambda name=name: asked.append(f"{name}_gauge") or [((), 1.0)])  # type: ignore[misc, func-returns-value]
    assert [one.name for one in registry.steps({"b", "b_gauge"}) if one is not None] == ["b_gauge", "b"]
    assert asked == ["b_gauge", "b"]
    assert len(registry.samples()) == 4
