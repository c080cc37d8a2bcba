"""Levels of compatibility: the pairs of schemas that each level compares."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

from app.registry.compatibility import avro, json_schema, protobuf
from app.registry.compatibility.findings import Finding
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType


class Level(StrEnum):
    """Levels, by their names in requests."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all earlier schemas count; else only the newest one."""
        return self.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema must read data of earlier ones."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether earlier schemas must read data of the new one."""
        return self.startswith(("FORWARD", "FULL"))


def incompatibilities(
    level: Level, new: ParsedSchema, earlier: Sequence[tuple[str, ParsedSchema]], steps: StepBudget | None = None
) -> list[str]:
    """Sentences that say why a new schema is not compatible; empty if it is.

    ``earlier`` are names and schemas, the oldest one first. The newest one that is not compatible is described, and no other.

    Raises: TooComplex.
    """
    steps = StepBudget() if steps is None else steps
    compared = earlier if level.transitive else earlier[-1:]
    for name, old in reversed(compared):
        sentences: list[str] = []
        if level.new_reads_old:
            found = findings(new, old, steps)
            sentences += [f"The new schema cannot read data of {name}. {one.sentence()}" for one in found]
        if level.old_reads_new:
            found = findings(old, new, steps)
            sentences += [f"The schema of {name} cannot read data of the new one. {one.sentence()}" for one in found]
        if sentences:
            return sentences
    return []


def findings(reader: ParsedSchema, writer: ParsedSchema, steps: StepBudget) -> list[Finding]:
    """Why ``reader`` cannot read all data of ``writer``. Raises: TooComplex."""
    if reader.kind is not writer.kind:
        return [
            Finding(
                "SCHEMA_TYPE_CHANGED",
                "",
                f"the reader's schema is of type {reader.kind}, the writer's of {writer.kind}",
            )
        ]
    match reader.kind:
        case SchemaType.AVRO:
            return avro.findings(reader.model, writer.model, steps)
        case SchemaType.JSON:
            return json_schema.findings(reader.model, writer.model, steps)
        case SchemaType.PROTOBUF:
            return protobuf.findings(reader.model.file, writer.model.file, steps)
        case _:
            assert_never(reader.kind)
