"""JSON Schema (drafts 4 to 2020-12): a text becomes JSON with its references resolved by name.

The form of a schema is checked by the meta-schema of its draft, with the package `jsonschema`. A reference may name a part of the
same schema, a part of a schema that the request refers to, or a part with an ``$id``. Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from app.registry.parsing.limits import StepBudget, read_json, write_json
from app.registry.refusals import ParserMissing, SchemaInvalid

STEPS_A_NODE: Final = 5
"""The check by a meta-schema costs about 50 µs for each value in a schema."""
ADDRESS_CHARS_MAX: Final = 1_000
"""Of an ``$id`` with the one that it is relative to. Each part with an ``$id`` keeps its whole address."""
_NO_SCHEMAS: Final = frozenset({"const", "enum", "default", "examples", "required", "type"})
"""Members whose values are no schemas."""
_OF_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "items", "prefixItems"})
"""Members whose values may be arrays of schemas."""


@dataclass(slots=True)
class Document:
    """A schema and the others that it may refer to."""

    root: Any
    others: Mapping[str, Any] = field(default_factory=dict)
    """By the names of references, and by ``$id``."""
    _anchors: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the identity of a schema: its parts by their anchors."""

    def target(self, reference: str) -> Any:
        """The part that a ``$ref`` names. Raises: SchemaInvalid."""
        name, fragment = urldefrag(reference)
        base = self.root if not name else self.others.get(name, self.others.get(name.rpartition("/")[2]))
        if base is None:
            raise SchemaInvalid(f"the reference {reference[:200]!r} names no schema; send it in references")
        if not fragment:
            return base
        if not fragment.startswith("/"):
            found = self._anchors_of(base).get(fragment, self.others.get(f"#{fragment}"))
            if found is None:
                raise SchemaInvalid(f"the reference {reference[:200]!r} names no part of its schema")
            return found
        at = base
        for part in fragment[1:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and key in at:
                at = at[key]
            elif isinstance(at, list) and key.isdigit() and len(key) < 6 and int(key) < len(at):
                at = at[int(key)]
            else:
                raise SchemaInvalid(f"the reference {reference[:200]!r} names no part of its schema")
        return at

    def _anchors_of(self, base: Any) -> dict[str, Any]:
        found = self._anchors.get(id(base))
        if found is None:
            found = self._anchors[id(base)] = {}
            for part, _ in _schemas(base):
                for name in (part.get("$anchor"), part.get("$dynamicAnchor")):
                    if isinstance(name, str):
                        found.setdefault(name, part)
        return found


def parse(text: str, references: Sequence[tuple[str, str]], steps: StepBudget, *, is_new: bool = True) -> Document:
    """The schema of a text. ``references``: names and texts of other schemas. Raises: SchemaInvalid, ParserMissing."""
    root = read_json(text)
    if not isinstance(root, (dict, bool)):
        raise SchemaInvalid("a JSON schema is an object or a boolean")
    others: dict[str, Any] = {}
    for name, other in references:
        value = read_json(other)
        _name(others, value, steps)
        others[name] = value
    _name(others, root, steps)
    document = Document(root, others)
    if isinstance(root, dict) and is_new:
        _check_references(document)
        _check_form(root)
    return document


def canonical(document: Document) -> str:
    """The text without spaces, in the order in which it was sent."""
    return write_json(document.root)


def normalized(document: Document) -> str:
    """The text without spaces, with members in the order of their names."""
    return write_json(_sorted(document.root))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _schemas(root: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects in a schema that may be schemas, with the base of their references."""
    waiting: list[tuple[Any, str]] = [(root, "")]
    while waiting:
        value, base = waiting.pop()
        if isinstance(value, dict):
            own = value.get("$id", value.get("id"))
            if isinstance(own, str):
                base = _joined(base, own)
            yield value, base
            waiting += [(inner, base) for key, inner in value.items() if key not in _NO_SCHEMAS]
        elif isinstance(value, list):
            waiting += [(inner, base) for inner in value]


def _joined(base: str, name: str) -> str:
    """Raises: SchemaInvalid."""
    if len(base) + len(name) > ADDRESS_CHARS_MAX:
        raise SchemaInvalid(f"the address {name[:200]!r} has more than {ADDRESS_CHARS_MAX} characters")
    try:
        return urljoin(base, name)
    except ValueError as error:
        raise SchemaInvalid(f"{name[:200]!r} is no address: {error}") from None


def _name(others: dict[str, Any], root: Any, steps: StepBudget) -> None:
    """Add the parts of a schema that have names of their own."""
    for value, base in _schemas(root):
        steps.spend(STEPS_A_NODE)
        for member, inner in value.items():
            if isinstance(inner, list) and member not in _OF_SCHEMAS:
                steps.spend(_comparisons(inner))
        if base and isinstance(value.get("$id", value.get("id")), str):
            others[urldefrag(base)[0] or base] = value
            others.setdefault(base, value)


def _comparisons(values: list[Any]) -> int:
    """The steps in which the package `jsonschema` finds out whether values are unique. It sorts values of one type, and compares
    each with each if there are several."""
    kinds = {type(one) for one in values}
    return len(values) // 16 if kinds <= {str} or kinds <= {int, float} else len(values) ** 2 // 64


def _check_references(document: Document) -> None:
    for value, base in _schemas(document.root):
        reference = value.get("$ref")
        if isinstance(reference, str):
            resolve(document, reference, base)


def resolve(document: Document, reference: str, base: str = "") -> Any:
    """The part that a reference names, as it is or relative to a base. Raises: SchemaInvalid."""
    try:
        return document.target(reference)
    except SchemaInvalid:
        if not base or _joined(base, reference) == reference:
            raise
        return document.target(_joined(base, reference))


def type_of(value: Any) -> str:
    """The name that JSON Schema has for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _check_form(root: dict[str, Any]) -> None:
    """Raises: SchemaInvalid, ParserMissing."""
    try:
        import jsonschema
    except ImportError:
        raise ParserMissing("JSON") from None
    if not isinstance(root.get("$schema", ""), str):
        raise SchemaInvalid("the member $schema is no string")
    checker = jsonschema.validators.validator_for(root, default=jsonschema.Draft7Validator)
    try:
        checker.check_schema(root)
    except jsonschema.exceptions.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise SchemaInvalid(f"at {where[:200] or 'the top'}: {error.message[:200]}") from None
    except (RecursionError, OverflowError, jsonschema.exceptions._WrappedReferencingError) as error:
        raise SchemaInvalid(f"the schema cannot be checked: {str(error)[:200]}") from None
