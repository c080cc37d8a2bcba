"""The recording and alerting rules of infra/monitoring, held by Prometheus' own tool."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.infra.findings import Finding
from tools.infra.toolbox import REPOSITORY, promtool, run

MONITORING: Final = REPOSITORY / "infra" / "monitoring"


def check_alerts(monitoring: Path = MONITORING) -> list[Finding]:
    """The rules are valid, and each alert is silent and fires as its test says. Raises: ToolMissing."""
    tool = promtool()
    found = []
    for command in (
        ["check", "rules", monitoring / "firn.rules.yaml"],
        ["test", "rules", *sorted(monitoring.glob("tests/*.yaml"))],
    ):
        done = run([tool, *command])
        if done.code != 0:
            found.append(Finding("alerts", "infra/monitoring", done.told))
    return found
