"""The tables of ``docs/metrics.md``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROW: Final = re.compile(
    r"^\| `(?P<name>(?:firn|process)_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]+) \| (?P<meaning>[^|]+) \|$", re.M
)


def documented_metrics() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each metric, by name. Raises: AssertionError if one has two rows."""
    found = ROW.findall((ROOT / "docs" / "metrics.md").read_text())
    names = [name for name, *_ in found]
    assert len(names) == len(set(names)), "each is in one row"
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in found}
