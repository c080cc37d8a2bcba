"""Avro's schema resolution (specification 1.12, "Schema Resolution"): whether a reader's schema can read a writer's data.

Names of records, enums and fixed types are compared without their namespaces, and a reader's aliases count. Logical types do not
matter, as in the Java library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.registry.compatibility.findings import FINDINGS_MAX, Finding, inside, shortened
from app.registry.parsing.avro import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    NamedType,
    Primitive,
    Record,
    Type,
    Union,
    unqualified,
)
from app.registry.parsing.limits import StepBudget
from app.registry.refusals import TooComplex

PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Kinds of readers that take data of a kind of writer."""
COMPARED_DEPTH_MAX: Final = 100
"""Types inside of one another in one comparison. A named type may pass the depth of its text."""


def findings(reader: Type, writer: Type, steps: StepBudget) -> list[Finding]:
    """Why ``reader`` cannot read all data of ``writer``; empty if it can. Raises: TooComplex."""
    comparing = _Comparing(steps)
    comparing.compare(reader, writer, "")
    return comparing.found


class _Comparing:
    """One comparison. A pair of records that is compared already counts as compatible, so that a circle ends."""

    def __init__(self, steps: StepBudget, depth: int = 0, pairs: dict[tuple[int, int], None] | None = None) -> None:
        self.found: list[Finding] = []
        self._steps = steps
        self._depth = depth
        self._pairs: dict[tuple[int, int], None] = {} if pairs is None else pairs

    def _say(self, kind: str, path: str, reason: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(kind, path, reason))

    def _can_read(self, reader: Type, writer: Type) -> bool:
        """Whether a reader's branch takes a writer's type, without findings of its own."""
        trial = _Comparing(self._steps, self._depth, dict(self._pairs))
        self._steps.spend(1 + len(self._pairs) // 16)
        trial.compare(reader, writer, "")
        if trial.found:
            return False
        self._pairs = trial._pairs  # they hold as long as the pairs that were open here hold
        return True

    def compare(self, reader: Type, writer: Type, path: str) -> None:
        """Raises: TooComplex."""
        self._steps.spend()
        if self._depth > COMPARED_DEPTH_MAX:
            raise TooComplex
        self._depth += 1
        self._compare(reader, writer, path)
        self._depth -= 1

    def _compare(self, reader: Type, writer: Type, path: str) -> None:
        if isinstance(writer, Union):
            for branch in writer.branches:
                self._branch(reader, branch, path)
            return
        if isinstance(reader, Union):
            self._branch(reader, writer, path)
            return
        match reader, writer:
            case Primitive(), Primitive() if reader.kind == writer.kind:
                return
            case Primitive(), Primitive() if reader.kind in PROMOTIONS.get(writer.kind, ()):
                return
            case Array(), Array():
                self.compare(reader.items, writer.items, inside("the items of the array", path))
            case Map(), Map():
                self.compare(reader.values, writer.values, inside("the values of the map", path))
            case Enum(), Enum():
                self._enum(reader, writer, path)
            case Fixed(), Fixed():
                if self._names(reader, writer, path) and reader.size != writer.size:
                    self._say(
                        "FIXED_SIZE_MISMATCH",
                        path,
                        f"the reader's size is {reader.size}, the writer's is {writer.size}",
                    )
            case Record(), Record():
                self._record(reader, writer, path)
            case _:
                self._say(
                    "TYPE_MISMATCH", path, f"the reader's type is {_named(reader)}, the writer's is {_named(writer)}"
                )

    def _branch(self, reader: Type, branch: Type, path: str) -> None:
        if not isinstance(reader, Union):
            self.compare(reader, branch, path)
            return
        if not any(self._can_read(one, branch) for one in reader.branches):
            self._say(
                "MISSING_UNION_BRANCH", path, f"no branch of the reader's union takes the writer's {_named(branch)}"
            )

    def _names(self, reader: NamedType, writer: NamedType, path: str) -> bool:
        own = unqualified(writer.name)
        self._steps.spend(len(reader.aliases) // 16)
        if unqualified(reader.name) == own or writer.name in reader.aliases or own in map(unqualified, reader.aliases):
            return True
        self._say("NAME_MISMATCH", path, f"the reader's name is {reader.name}, the writer's is {writer.name}")
        return False

    def _enum(self, reader: Enum, writer: Enum, path: str) -> None:
        if not self._names(reader, writer, path) or reader.default is not None:
            return
        self._steps.spend(len(reader.symbols) + len(writer.symbols))
        known = frozenset(reader.symbols)
        missing = [one for one in writer.symbols if one not in known]
        if missing:
            shown = ", ".join(one[:100] for one in missing[:10])
            reason = f"the reader's enum has no default and lacks symbols that a writer may write: {shown}"
            self._say("MISSING_ENUM_SYMBOLS", path, reason)

    def _record(self, reader: Record, writer: Record, path: str) -> None:
        pair = id(reader), id(writer)
        if pair in self._pairs:
            return
        self._pairs[pair] = None
        if not self._names(reader, writer, path):
            return
        written = {one.name: one for one in writer.fields}
        self._steps.spend(len(written) + len(reader.fields) // 16)
        for one in reader.fields:
            source = _source(one, written)
            where = inside(f"field {shortened(one.name)} of record {shortened(unqualified(reader.name))}", path)
            if source is not None:
                self.compare(one.type, source.type, where)
            elif not one.has_default:
                self._say(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    where,
                    "the writer's record has no such field, and the reader's field has no default",
                )


def _source(reader: Field, written: dict[str, Field]) -> Field | None:
    """The writer's field that a reader's field takes its value from."""
    names: Iterable[str] = (reader.name, *reader.aliases)
    return next((written[name] for name in names if name in written), None)


def _named(kind: Type) -> str:
    return f"{kind.kind} {kind.name}" if isinstance(kind, (Enum, Fixed, Record)) else kind.kind
