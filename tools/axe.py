"""axe-core in a page of Chromium: whether people can use it who see little, or have no mouse.

``make axe`` fetches it from npm. It is a tool of the tests and no part of Firn (MPL-2.0).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from tools.chromium import Tab

FILE: Final = Path(__file__).parents[1] / ".cache" / "axe" / "package" / "axe.min.js"
RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""Tags of the rules that pages are held to."""


class Violation(NamedTuple):
    """A rule that a page breaks."""

    rule: str
    help: str
    places: tuple[str, ...]
    """The first few elements."""


def axe() -> Path | None:
    """The script; None if it was not fetched."""
    found = Path(os.environ.get("FIRN_AXE", FILE))
    return found if found.is_file() else None


async def violations(tab: Tab) -> list[Violation]:
    """The rules that the page of a tab breaks, in the colours that it has now."""
    path = axe()
    assert path is not None, "axe-core was not fetched: run `make axe`"
    await tab.value(f"(() => {{ {path.read_text(encoding='utf-8')}\n }})()")
    asked = json.dumps({"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]})
    shown = "({id, help, nodes}) => [id, help, nodes.slice(0, 4).map((one) => one.html.slice(0, 200))]"
    told = await tab.value(f"axe.run(document, {asked}).then((found) => found.violations.map({shown}))")
    return [Violation(rule, text, tuple(places)) for rule, text, places in told]
