"""Whether a reader's JSON schema accepts all data that a writer's JSON schema accepts.

The rules are those of Confluent's documents for JSON Schema. Objects are open unless ``additionalProperties`` is false: a writer's
data may have properties that no schema names. So a property that is new in the reader's schema may not narrow an open object.

A construct that is compared by no rule must be equal in both schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.registry.compatibility.findings import FINDINGS_MAX, Finding, inside, shortened
from app.registry.parsing.json_schema import Document, resolve, type_of
from app.registry.parsing.limits import StepBudget
from app.registry.refusals import SchemaInvalid, TooComplex

COMPARED_DEPTH_MAX: Final = 60
_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_LEAST: Final = ("minimum", "minLength", "minItems", "minProperties", "minContains")
_MOST: Final = ("maximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_EQUAL: Final = (
    "pattern",
    "format",
    "contentEncoding",
    "contentMediaType",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "contains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
)
"""Members that narrow data and are not compared: both schemas must have equal ones, or the reader none."""
_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "$schema", "$id", "id", "definitions", "$defs"}
    | {"readOnly", "writeOnly", "deprecated", "$anchor"}
)
"""Members that narrow nothing."""


def findings(reader: Document, writer: Document, steps: StepBudget) -> list[Finding]:
    """Why ``reader`` does not accept all data of ``writer``; empty if it does. Raises: SchemaInvalid, TooComplex."""
    comparing = _Comparing(reader, writer, steps)
    comparing.compare(reader.root, writer.root, "")
    return comparing.found


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema's own keywords leave."""
    named = schema.get("type")
    found = frozenset([named] if isinstance(named, str) else _strings(named) if isinstance(named, list) else _TYPES)
    if named is None and ("enum" in schema or "const" in schema):
        found = frozenset(type_of(one) for one in _values(schema))
    return found | {"integer"} if "number" in found else found


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema with ``enum`` or ``const`` takes."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else []


class _Comparing:
    """One comparison. A pair of parts that is compared already counts as compatible, so that a circle ends."""

    def __init__(
        self,
        reader: Document,
        writer: Document,
        steps: StepBudget,
        depth: int = 0,
        pairs: dict[tuple[int, int], tuple[Any, Any]] | None = None,
    ) -> None:
        self.found: list[Finding] = []
        self._reader = reader
        self._writer = writer
        self._steps = steps
        self._depth = depth
        self._pairs: dict[tuple[int, int], tuple[Any, Any]] = {} if pairs is None else pairs

    def _say(self, kind: str, path: str, reason: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(kind, path, reason))

    def _same(self, one: Any, other: Any) -> bool:
        """Whether two JSON values are equal: 1 and true are not. Raises: TooComplex."""
        return one is other or bool(self._frozen(one) == self._frozen(other))

    def _frozen(self, value: Any) -> Any:
        """Raises: TooComplex."""
        if isinstance(value, dict):
            self._steps.spend(1 + len(value) // 8)
            return frozenset([(key, self._frozen(inner)) for key, inner in value.items()])
        if isinstance(value, list):
            self._steps.spend(1 + len(value) // 8)
            return tuple([self._frozen(one) for one in value])
        return (isinstance(value, bool), value)

    def _merged(self, schema: Any, more: Mapping[str, Any]) -> Any:
        """As ``_merged``. Raises: TooComplex."""
        for part in (schema, more):
            if isinstance(part, dict):
                self._steps.spend(sum(len(one) for one in part.values() if isinstance(one, (dict, list))))
        return _merged(schema, more)

    def _accepts(self, reader: Any, writer: Any) -> bool:
        """Whether a part of the reader accepts a part of the writer, without findings of its own."""
        trial = _Comparing(self._reader, self._writer, self._steps, self._depth, dict(self._pairs))
        self._steps.spend(1 + len(self._pairs) // 16)
        trial.compare(reader, writer, "")
        return not trial.found

    def compare(self, reader: Any, writer: Any, path: str) -> None:
        """Raises: SchemaInvalid, TooComplex."""
        self._steps.spend()
        if self._depth > COMPARED_DEPTH_MAX:
            raise TooComplex
        self._depth += 1
        self._compare(reader, writer, path)
        self._depth -= 1

    def _compare(self, reader: Any, writer: Any, path: str) -> None:
        reader, writer = self._resolved(self._reader, reader), self._resolved(self._writer, writer)
        pair = id(reader), id(writer)
        if pair in self._pairs or writer is False or reader is True:
            return
        if reader is False:
            self._say("TYPE_NARROWED", path, "the reader takes no data")
            return
        self._pairs[pair] = reader, writer  # kept, so that no other part gets the same id
        writer = {} if writer is True else writer
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            raise SchemaInvalid("a part of a schema is no schema")
        for kind in ("anyOf", "oneOf"):
            # A writer's data fits one of the branches, so that each of them is compared by itself.
            branches = writer.get(kind)
            if isinstance(branches, list) and not (kind in reader and self._same(reader[kind], branches)):
                rest = {key: value for key, value in writer.items() if key != kind}
                for place, branch in enumerate(branches):
                    whole = self._merged(self._resolved(self._writer, branch), rest)
                    self.compare(reader, whole, inside(f"branch {place + 1} of the writer's {kind}", path))
                return
        self._branches(reader, writer, path)
        self._own(reader, writer, path)

    def _resolved(self, document: Document, schema: Any) -> Any:
        """The schema that references lead to. Its siblings count, too."""
        for _ in range(COMPARED_DEPTH_MAX):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            self._steps.spend()
            target = resolve(document, schema["$ref"], _base(document))
            rest = {key: value for key, value in schema.items() if key not in ("$ref", *_NOTES)}
            schema = self._merged(target, rest) if rest else target
        raise TooComplex

    def _branches(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> None:
        for kind in ("anyOf", "oneOf"):
            branches = reader.get(kind)
            if not isinstance(branches, list) or (kind in writer and self._same(branches, writer[kind])):
                continue
            if not any(self._accepts(one, writer) for one in branches):
                self._say("SUM_TYPE_NARROWED", path, f"no branch of the reader's {kind} takes all of the writer's data")
        both = reader.get("allOf")
        if isinstance(both, list):
            parts = writer.get("allOf")
            parts = parts if isinstance(parts, list) else []
            for place, one in enumerate(both):
                if not any(self._accepts(one, part) for part in (*parts, writer)):
                    where = inside(f"part {place + 1} of allOf", path)
                    self._say("PRODUCT_TYPE_EXTENDED", where, "the writer's data need not fit this part")
        if "not" in reader and not (
            "not" in writer
            and _Comparing(self._writer, self._reader, self._steps, self._depth)._accepts(writer["not"], reader["not"])
        ):
            self._say("NOT_TYPE_NARROWED", path, "the reader's not excludes data of the writer")

    def _own(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> None:
        if "allOf" in writer and isinstance(writer["allOf"], list):
            whole: Any = {key: value for key, value in writer.items() if key != "allOf"}
            for part in writer["allOf"]:
                whole = self._merged(self._resolved(self._writer, part), whole)
                if whole is False:
                    return  # the writer has no data
            writer = whole if isinstance(whole, dict) else {}
        own, other = _types(reader), _types(writer)
        if not other <= own:
            shown = ", ".join(sorted(other - own))
            self._say("TYPE_NARROWED", path, f"the reader does not take the writer's types {shown}")
            return
        if "enum" in reader or "const" in reader:
            known = {self._frozen(one) for one in _values(reader)}
            values = _values(writer)
            self._steps.spend(len(known) + len(values))
            if not values or not all(self._frozen(one) in known for one in values):
                self._say("ENUM_ARRAY_NARROWED", path, "the reader's values do not include all of the writer's")
        elif "enum" in writer or "const" in writer:
            return  # single values: keywords of ranges are not compared
        self._ranges(reader, writer, path)
        for kind in _EQUAL:
            if kind in reader and not (kind in writer and self._same(reader[kind], writer[kind])):
                self._say(f"{kind.upper()}_CHANGED", path, f"the reader has another {kind} than the writer")
        if "propertyNames" in reader and not self._accepts(reader["propertyNames"], writer.get("propertyNames", True)):
            self._say("PROPERTY_NAMES_NARROWED", path, "the reader takes fewer names of properties")
        if "object" in other:
            self._object(reader, writer, path)
        if "array" in other:
            self._array(reader, writer, path)

    def _ranges(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> None:
        for kind in (*_LEAST, "exclusiveMinimum"):
            own, other = _number(reader, kind), _number(writer, kind)
            if own is not None and (other is None or other < own):
                self._say(
                    f"{_words(kind)}_INCREASED", path, f"the reader's {kind} is {own}, the writer's {_shown(other)}"
                )
        for kind in (*_MOST, "exclusiveMaximum"):
            own, other = _number(reader, kind), _number(writer, kind)
            if own is not None and (other is None or other > own):
                self._say(
                    f"{_words(kind)}_DECREASED", path, f"the reader's {kind} is {own}, the writer's {_shown(other)}"
                )
        own, other = _number(reader, "multipleOf"), _number(writer, "multipleOf")
        if own and (not other or (other / own) % 1):
            self._say("MULTIPLE_OF_CHANGED", path, f"the reader's multipleOf is {own}, the writer's {_shown(other)}")
        for kind in ("exclusiveMinimum", "exclusiveMaximum", "uniqueItems"):
            if reader.get(kind) is True and writer.get(kind) is not True:
                self._say(f"{_words(kind)}_ADDED", path, f"the reader's {kind} is true, the writer's is not")

    # --- objects ------------------------------------------------------------------------------------------------------

    def _object(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> None:
        own, other = _members(reader, "properties"), _members(writer, "properties")
        own_rest, other_rest = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        for name, schema in own.items():
            where = inside(f"property {shortened(name)}", path)
            if name in other:
                self.compare(schema, other[name], where)
            elif not self._is_free(schema) and other_rest is not False and not self._covers(schema, other_rest):
                reason = "the writer's object is open, so its data may have this property with another type"
                self._say("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", where, reason)
        for name, schema in other.items():
            if name in own or schema is False or _matches(_members(reader, "patternProperties"), name):
                continue
            where = inside(f"property {shortened(name)}", path)
            if own_rest is False:
                reason = "the reader has no such property, and its object takes no others"
                self._say("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", where, reason)
            else:
                self.compare(own_rest, schema, where)
        if other_rest is not False and not self._same(own_rest, other_rest):
            if own_rest is False:
                self._say("ADDITIONAL_PROPERTIES_REMOVED", path, "the writer's object is open, the reader's is not")
            else:
                self.compare(own_rest, other_rest, inside("additional properties", path))
        needed = frozenset(_strings(writer.get("required")))
        for name in _strings(reader.get("required")):
            schema = own.get(name)
            if name not in needed and not (isinstance(schema, dict) and "default" in schema):
                where = inside(f"property {shortened(name)}", path)
                self._say("REQUIRED_ATTRIBUTE_ADDED", where, "the reader needs it, and the writer's data may lack it")

    def _is_free(self, schema: Any) -> bool:
        return schema is True or (isinstance(schema, dict) and not schema.keys() - _NOTES)

    def _covers(self, schema: Any, rest: Any) -> bool:
        """Whether a property takes all that a writer's additional properties may be. An open object's may be anything."""
        return rest is not True and rest != {} and self._accepts(schema, rest)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def _array(self, reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> None:
        own, own_rest = _items(reader)
        other, other_rest = _items(writer)
        for place in range(max(len(own), len(other))):
            first = own[place] if place < len(own) else own_rest
            second = other[place] if place < len(other) else other_rest
            self.compare(first, second, inside(f"item {place + 1}", path))
        if own_rest is not True and not self._same(own_rest, other_rest):
            self.compare(own_rest, other_rest, inside("the items", path))


def _base(document: Document) -> str:
    root = document.root
    found = root.get("$id", root.get("id")) if isinstance(root, dict) else None
    return found if isinstance(found, str) else ""


def _merged(schema: Any, more: Mapping[str, Any]) -> Any:
    """A schema with the members of another one beside it."""
    if schema is True:
        return dict(more)
    if not isinstance(schema, dict) or not more.keys() - _NOTES:
        return schema  # the same object, by which a circle is known
    made = {**more, **schema}
    for kind in ("properties", "patternProperties"):
        if isinstance(schema.get(kind), dict) and isinstance(more.get(kind), dict):
            made[kind] = {**more[kind], **schema[kind]}
    if isinstance(schema.get("required"), list) and isinstance(more.get("required"), list):
        made["required"] = [*more["required"], *schema["required"]]
    return made


def _items(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Schemas of the first items, and of all others, in the forms of all drafts."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    first = schema.get("prefixItems")
    return (first if isinstance(first, list) else []), items


def _members(schema: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = schema.get(kind)
    return found if isinstance(found, dict) else {}


def _matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern is a plain beginning of the name. Other patterns are not run: they come from the request."""
    return any(re.fullmatch(r"\^[A-Za-z0-9_-]+", one) is not None and name.startswith(one[1:]) for one in patterns)


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _number(schema: Mapping[str, Any], kind: str) -> float | None:
    found = schema.get(kind)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _words(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()


def _shown(value: float | None) -> str:
    return "is not set" if value is None else f"is {value}"
