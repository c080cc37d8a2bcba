"""A reason why data of one schema cannot be read with another one. Tests: ``tests/registry/test_levels.py``."""

from __future__ import annotations

from typing import Final, NamedTuple

FINDINGS_MAX: Final = 100
"""Findings of one comparison."""


class Finding(NamedTuple):
    """One incompatibility."""

    kind: str
    """A word in capitals, as other registries name it."""
    path: str
    """Where it is in the reader's schema, in words: ``field address of record User``."""
    reason: str
    """The rest of the sentence."""

    def sentence(self) -> str:
        where = f"At {self.path}: " if self.path else "At the top of the schema: "
        return f"{where}{self.reason} ({self.kind})."
