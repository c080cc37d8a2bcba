"""The audit log of a broker inside a test, without a file."""

from __future__ import annotations

import json
from typing import Any

from app.handlers.policy.auditing import Audit


class Heard:
    """Takes the lines of an ``Audit`` from now on."""

    def __init__(self, audit: Audit | None) -> None:
        assert audit is not None
        self._audit = audit
        self._lines: list[dict[str, Any]] = []
        audit._log = self

    def put(self, line: bytes, *, important: bool) -> None:
        del important
        self._lines.append(json.loads(line))

    def take(self) -> list[dict[str, Any]]:
        """The lines since the last time, one for each event: what was only counted is told, too."""
        self._audit.close_window()
        taken, self._lines = self._lines, []
        return taken

    def take_one(self) -> dict[str, Any]:
        """The only line, of one event."""
        lines = self.take()
        assert [line["count"] for line in lines] == [1], lines
        return lines[0]
