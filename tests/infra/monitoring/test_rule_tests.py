"""The tests of the alerting rules (``infra/monitoring/tests``) hold, by our evaluator and by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.metric_rows import documented_metrics
from tests.support.promql import Scrapes
from tools.infra.alert_checks import check_alerts
from tools.infra.toolbox import ToolMissing

FILE: Final = Path(__file__).parents[3] / "infra" / "monitoring" / "tests" / "firn.test.yaml"
TESTS: Final[list[dict[str, Any]]] = yaml.safe_load(FILE.read_text())["tests"]
OF_EACH: Final = {"node_id", "process", "store"}
PIECE: Final = re.compile(r"(?P<first>\d+)(?:\+(?P<step>\d+))?x(?P<count>\d+)")


def values_of(text: str) -> Iterator[float]:
    """The values of a series, in promtool's notation: ``1+2x3`` is 1 3 5 7, and ``4x2`` is 4 4 4."""
    for piece in text.split():
        found = PIECE.fullmatch(piece)
        assert found is not None, piece
        for place in range(int(found["count"]) + 1):
            yield int(found["first"]) + place * int(found["step"] or 0)


def scrapes_of(test: dict[str, Any]) -> Scrapes:
    """The series of a test, scraped once a minute."""
    scrapes = Scrapes()
    series = {one["series"]: list(values_of(one["values"])) for one in test["input_series"]}
    for minute in range(max(map(len, series.values()))):
        lines = []
        for name, values in series.items():
            if minute < len(values):
                lines += [f"# TYPE {name.split('{')[0]} unknown", f"{name} {values[minute]}"]
        scrapes.add("\n".join(lines) + "\n", minute * 60)
    return scrapes


def test_each_alert_has_a_test_in_which_it_is_silent_and_fires() -> None:
    tested = {}
    for test in TESTS:
        silent, fires = test["alert_rule_test"]
        assert silent["alertname"] == fires["alertname"] == test["name"]
        assert "exp_alerts" not in silent
        tested[test["name"]] = fires["exp_alerts"]
    assert list(tested) == list(Scrapes().alerts)
    assert all(tested.values())


@pytest.mark.parametrize("test", TESTS, ids=lambda one: one["name"])
def test_a_series_of_a_test_is_one_that_the_program_shows(test: dict[str, Any]) -> None:
    known = documented_metrics()
    for one in test["input_series"]:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", one["series"]).groups()  # type: ignore[union-attr]
        assert set(re.findall(r"(\w+)=", labels)) <= known[name][1] | OF_EACH, one


@pytest.mark.parametrize("test", TESTS, ids=lambda one: one["name"])
def test_an_alert_is_silent_and_fires_when_its_test_says_so(test: dict[str, Any]) -> None:
    scrapes = scrapes_of(test)
    severity = scrapes.alerts[test["name"]]["labels"]["severity"]
    for case in test["alert_rule_test"]:
        firing = scrapes.firing(case["alertname"], int(case["eval_time"].removesuffix("m")) * 60)
        expected = [one["exp_labels"] for one in case.get("exp_alerts", [])]
        assert [{"severity": severity, **labels} for labels in firing] == expected, case["eval_time"]


@pytest.mark.slow
def test_promtool_agrees() -> None:
    try:
        assert [str(one) for one in check_alerts()] == []
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
def test_promtool_finds_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    shutil.copytree(FILE.parent.parent, tmp_path / "monitoring")
    rules = tmp_path / "monitoring" / "firn.rules.yaml"
    rules.write_text(rules.read_text().replace("expr: firn_broker_isolated == 1", "expr: firn_broker_isolated == 2"))
    try:
        (found,) = check_alerts(tmp_path / "monitoring")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    assert "FirnBrokerIsolated" in found.what
