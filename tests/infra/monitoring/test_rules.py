"""The rules of Prometheus name metrics and labels that there are. Each alert is caused by a test, and has a runbook whose commands
exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.cli.commands import UsageError, application
from tests.support.metric_rows import documented_metrics
from tests.support.promql import labels_read, metrics_read

ROOT: Final = Path(__file__).parents[3]
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
RULES: Final = [
    rule
    for group in yaml.safe_load((ROOT / "infra" / "monitoring" / "firn.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS: Final = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED: Final = {rule["record"] for rule in RULES if "record" in rule}
OF_EACH: Final = {"node_id", "process", "le", "store"}
"""Labels that a sample of any metric may have."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_reads_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    known = documented_metrics()
    read = metrics_read(rule["expr"])
    assert read <= known.keys()
    assert set(re.findall(r"\w+:\w+:\w+", rule["expr"])) <= RECORDED
    if read:
        assert labels_read(rule["expr"]) <= OF_EACH.union(
            *(labels for name, (_, labels) in known.items() if name in read)
        )


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_names_a_page_that_names_it(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"]["summary"].endswith(".")
    page = ROOT / alert["annotations"]["runbook"]
    assert page.parent == RUNBOOKS
    assert f"`{name}`" in page.read_text().splitlines()[2]
    assert re.search(rf"`{name}`.*\({page.name}\)", (RUNBOOKS / "README.md").read_text())


def test_every_page_belongs_to_an_alert() -> None:
    pages = {path.name for path in RUNBOOKS.glob("*.md")} - {"README.md"}
    assert pages == {Path(alert["annotations"]["runbook"]).name for alert in ALERTS.values()}


def alarms() -> dict[str, str]:
    """The metrics that alarms of CloudWatch watch, by the name of the alarm."""
    text = (ROOT / "infra" / "terraform" / "modules" / "observability" / "main.tf").read_text()
    return dict(re.findall(r'^ +"([a-z-]+)"\s+= \{ metric = "(\w+)"', text, re.M))


def test_an_alarm_of_terraform_watches_a_metric_of_the_alert_that_it_is_named_after() -> None:
    found = alarms()
    assert len(found) >= 17
    of_pages: dict[str, set[str]] = {}
    for alert in ALERTS.values():
        of_pages.setdefault(Path(alert["annotations"]["runbook"]).stem, set()).update(metrics_read(alert["expr"]))
    assert {name: metric for name, metric in found.items() if metric not in of_pages.get(name, ())} == {}


def test_the_readme_says_why_each_other_alert_has_no_alarm() -> None:
    told = re.findall(
        r"^\| `(Firn\w+)` \| [^|]+\.? \|$", (ROOT / "infra" / "monitoring" / "README.md").read_text(), re.M
    )
    found = alarms()
    assert told == [name for name, alert in ALERTS.items() if Path(alert["annotations"]["runbook"]).stem not in found]


def caused() -> Iterator[str]:
    """The alerts of ``causes`` in the tests beside this one."""
    for path in Path(__file__).parent.glob("test_*_alerts.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "causes":
                yield from (ast.literal_eval(argument) for argument in node.args)


def test_each_alert_is_caused_on_running_brokers() -> None:
    assert set(caused()) == ALERTS.keys()


PLACES: Final = {
    "N": "1",
    "ID": "1",
    "OFFSET": "20",
    "FILE": str(Path(__file__)),
    "HOST:PORT": "b1:9092",
    "TOPIC:N": "t:1",
}
"""An example for each place of a command that a page leaves open, where its name is none."""


@cache
def commands() -> Any:
    """All commands of the program."""
    return application()


def parse(words: list[str]) -> None:
    """Read a command line as the program does, without running it. Raises: KeyError, UsageError."""
    command: Any = commands()
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    if words:  # without any, the page speaks of the command
        command.make_context("firn", [PLACES.get(word, word) for word in words if word != "…"])


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_names_command_lines_and_metrics_that_there_are(page: Path) -> None:
    text = page.read_text()
    for line in re.findall(r"`firn ([^`]+)`", text):
        parse(line.split())
    known = documented_metrics()
    for name in re.findall(r"(?<![:\w])firn_\w+", text):
        recorded = any(f":{name}:" in one or one.split(":")[1] == name for one in RECORDED)
        assert recorded or re.sub("_(bucket|sum|count)$", "", name) in known, name


@pytest.mark.parametrize(
    "line", ["tier adapt TOPIC", "tier adopt TOPIC --partitions N --store URL", "tier adopt TOPIC"]
)
def test_a_command_line_that_the_program_does_not_take_is_found(line: str) -> None:
    with pytest.raises((KeyError, UsageError)):
        parse(line.split())
