"""The evaluator of the rules does what Prometheus does with the expressions that the rules use."""

from __future__ import annotations

import pytest

from tests.support.alerts import causes
from tests.support.promql import Scrapes

PAGES = (
    (0, {'up{node="1"}': 1, 'up{node="2"}': 0, 'n_total{node="1",of="a"}': 5, 'n_total{node="1",of="b"}': 1, "free": 10}),
    (60, {'up{node="1"}': 0, 'up{node="2"}': 0, 'n_total{node="1",of="a"}': 9, 'n_total{node="1",of="b"}': 0, "free": 4}),
    (120, {'up{node="1"}': 0, 'up{node="2"}': 1, 'n_total{node="1",of="a"}': 2, 'n_total{node="1",of="b"}': 3, "free": 2}),
)  # fmt: skip


@pytest.fixture(name="scrapes")
def _scrapes() -> Scrapes:
    scrapes = Scrapes()
    for at_s, page in PAGES:
        lines = [f"# TYPE {name} gauge" for name in ("up", "n_total", "free")]
        scrapes.add("\n".join([*lines, *(f"{sample} {value}" for sample, value in page.items())]) + "\n", at_s)
    return scrapes


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("up == 0", {"1": 0}),
        ("up != 0", {"2": 1}),
        ('up{node="2"}', {"2": 1}),
        ('up{node!="2"}', {"1": 0}),
        ('up{node=~"1|3"}', {"1": 0}),
        ("sum(up)", {"": 1}),
        ("max(up) - 3 * 2", {"": -5}),
        ("free < 2 * 1.5", {"": 2}),
        ("free < 1 or free > 1", {"": 2}),
        ("(free + 1) / 3", {"": 1}),
        ("200 - time()", {"": 80}),
        ("min_over_time(free[2m])", {"": 2}),
        ("sum by (node) (increase(n_total[3m]))", {"1": 4 + 2 + 0 + 3}),
        ('sum by (node) (rate(n_total{of="a"}[3m]))', {"1": 6 / 120}),
        ("increase(n_total[1m])", {}),
        ("absent", {}),
        ("sum(up == bool 0)", {"": 1}),
        ("topk(1, up)", {"2": 1}),
    ],
)
def test_an_expression_has_its_value(scrapes: Scrapes, expression: str, expected: dict[str, float]) -> None:
    found = scrapes.value(expression, 120)
    assert {dict(labels).get("node", ""): value for labels, value in found.items()} == expected


def test_a_sample_counts_for_five_minutes(scrapes: Scrapes) -> None:
    assert scrapes.value("free", 419) == {frozenset(): 2}
    assert scrapes.value("free", 420) == {}


def test_an_alert_fires_once_its_expression_has_held_for_its_time(scrapes: Scrapes) -> None:
    scrapes.alerts = {"Down": {"expr": "up == 0", "for": "1m"}, "Now": {"expr": "up == 0"}}
    assert scrapes.firing("Down", 60) == [{"node": "2"}]
    assert scrapes.firing("Down", 120) == [{"node": "1"}]
    assert scrapes.firing("Now", 0) == [{"node": "2"}]


def test_every_rule_is_understood() -> None:
    scrapes = Scrapes()
    for alert in scrapes.alerts.values():
        assert scrapes.value(alert["expr"], 0) == {}


@pytest.mark.parametrize(
    ("times_s", "holds"), [((0, 60, 180), True), ((0, 60), False), ((60, 180), False), ((0,), False)]
)
async def test_a_test_causes_an_alert_if_it_sees_it_silent_then_firing_then_silent(
    times_s: tuple[int, ...], holds: bool
) -> None:
    scrapes = Scrapes()
    for at_s, value in ((0, 1), (60, 0), (120, 0), (180, 1)):
        scrapes.add(f"# TYPE up gauge\nup {value}\n", at_s)
    scrapes.alerts = {"Down": {"expr": "up == 0"}}

    @causes("Down")
    async def ask() -> None:
        for at_s in times_s:
            scrapes.firing("Down", at_s)

    if holds:
        await ask()
    else:
        with pytest.raises(AssertionError, match="Down was seen to fire so"):
            await ask()
