"""The pairs of schemas that each level of compatibility compares."""

from __future__ import annotations

import pytest

from app.registry.compatibility.findings import Finding
from app.registry.compatibility.levels import Level, incompatibilities
from app.registry.parsing.schemas import ParsedSchema, SchemaType, parse

# int data can be read as long, long data as double, and nothing the other way.
INT, LONG, DOUBLE = (parse(SchemaType.AVRO, f'"{kind}"') for kind in ("int", "long", "double"))


@pytest.mark.parametrize(
    ("level", "new", "earlier", "compatible"),
    [
        (Level.NONE, INT, [DOUBLE], True),
        (Level.BACKWARD, LONG, [INT], True),
        (Level.BACKWARD, INT, [LONG], False),
        (Level.BACKWARD, LONG, [DOUBLE, INT], True),
        (Level.BACKWARD_TRANSITIVE, LONG, [DOUBLE, INT], False),
        (Level.FORWARD, INT, [LONG], True),
        (Level.FORWARD, LONG, [INT], False),
        (Level.FORWARD, LONG, [INT, DOUBLE], True),
        (Level.FORWARD_TRANSITIVE, LONG, [INT, DOUBLE], False),
        (Level.FULL, LONG, [INT], False),
        (Level.FULL, INT, [LONG], False),
        (Level.FULL, LONG, [INT, LONG], True),
        (Level.FULL_TRANSITIVE, LONG, [INT, LONG], False),
        (Level.FULL_TRANSITIVE, LONG, [LONG, LONG], True),
        (Level.FULL_TRANSITIVE, LONG, [], True),
    ],
)
def test_levels(level: Level, new: ParsedSchema, earlier: list[ParsedSchema], compatible: bool) -> None:
    named = [(f"version {place}", one) for place, one in enumerate(earlier, 1)]
    assert (incompatibilities(level, new, named) == []) is compatible


def test_a_sentence_names_path_and_kind() -> None:
    assert Finding("K", "field a", "it is wrong").sentence() == "At field a: it is wrong (K)."
    assert Finding("K", "", "it is wrong").sentence() == "At the top of the schema: it is wrong (K)."
