"""A reason why data of one schema cannot be read with another one. Tests: ``tests/registry/test_levels.py``."""

from __future__ import annotations

from typing import Final, NamedTuple

FINDINGS_MAX: Final = 100
"""Findings of one comparison."""
NAME_CHARS_MAX: Final = 100
"""Of a name in a path. Each finding has a path of its own, with as many names as the schema has levels."""


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


def shortened(name: str) -> str:
    """A name as a path shows it."""
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}..."


def inside(step: str, path: str) -> str:
    """The path of a part of the schema at ``path``."""
    return f"{step}, in {path}" if path else step
