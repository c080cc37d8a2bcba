"""``docs/metrics.md`` and the program name the same metrics, with the same types and labels."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.core.metrics import Registry
from app.core.usage import show_process
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from tests.support.broker import RunningBroker
from tests.support.metric_rows import documented_metrics
from tools.source_trees import tree_of

ROOT = Path(__file__).parents[2]
FROM_WHERE = {"node_id", "process"}
"""Labels that the HTTP process adds, or that tell a broker's processes apart."""
KINDS = {"counter": "counter", "count": "counter", "gauge": "gauge", "histogram": "histogram"}


def in_program() -> dict[str, str]:
    """Type by name of every metric that the source registers, also of those that show only once something has happened."""
    found = {}
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name, second = (one.value if isinstance(one, ast.Constant) else None for one in node.args[:2])
            if not isinstance(name, str) or not re.fullmatch(r"(firn|process)_\w+", name):
                continue
            if called in KINDS:
                found[name] = KINDS[called]
            elif called in ("describe", "Sample"):
                found[name] = str(second)
    return found


@pytest.mark.ci
def test_every_metric_is_documented_with_its_type_and_every_documented_one_exists() -> None:
    assert {name: kind for name, (kind, _) in documented_metrics().items()} == in_program()


async def test_what_is_shown_has_the_labels_that_the_document_says(broker: RunningBroker) -> None:
    registry = Registry()
    show_process(registry, "1")
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),))
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3), registry=registry)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        await broker.create_topic("t", 1)
        await http.get("/metrics")
        text = (await http.get("/metrics")).text
    table = documented_metrics()
    shown = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in table else re.sub("_(bucket|sum|count)$", "", sample.name)
            kind, labels = table[name]
            assert family.type == kind, name
            assert sample.labels.keys() - FROM_WHERE - {"le"} == labels - FROM_WHERE, name
            shown += 1
    assert shown > 100
