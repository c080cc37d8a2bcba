"""Avro schemas (specification 1.12): a text becomes a graph of types, and a graph becomes its canonical or its normalised text.

A named type that is used twice is one object. So the graph of a recursive schema has a circle. Canonical texts have the form in
which Avro's Java library writes a schema, because other registries store that form.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from app.registry.parsing.limits import DEPTH_MAX, StepBudget, read_json, write_json
from app.registry.refusals import SchemaInvalid, TooComplex

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED: Final = frozenset(
    {"type", "name", "namespace", "doc", "fields", "items", "values", "symbols", "size", "aliases", "default", "order"}
)
_ORDERS: Final = frozenset({"ascending", "descending", "ignore"})
_INT_END: Final = {"int": 2**31, "long": 2**63}
DEFAULT_DEPTH_MAX: Final = 60
"""Levels of a default value."""
NAME_CHARS_MAX: Final = 1_000
"""Of a name with its namespace. All types of a schema have names of their own, but inherit one namespace."""
FIELD_CHARS_MAX: Final = 4_096
"""Of the name of a field and of a symbol, in a new schema. They come with each value that is shown as JSON."""

Props: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Primitive:
    kind: str
    props: Props = field(default_factory=dict)


@dataclass(slots=True)
class Array:
    items: Type
    props: Props = field(default_factory=dict)
    kind: str = "array"


@dataclass(slots=True)
class Map:
    values: Type
    props: Props = field(default_factory=dict)
    kind: str = "map"


@dataclass(slots=True)
class Union:
    branches: tuple[Type, ...]
    kind: str = "union"
    _places: dict[str, int] | None = field(default=None, init=False, repr=False, compare=False)

    def place_of(self, name: str) -> int | None:
        """The place of the branch with a name, with or without its namespace; None if there is none, or more than one."""
        if self._places is None:
            names = [branch_name(one) for one in self.branches]
            short = Counter(map(unqualified, names))
            places = {unqualified(name): place for place, name in enumerate(names) if short[unqualified(name)] == 1}
            self._places = places | {name: place for place, name in enumerate(names)}
        return self._places.get(name)


@dataclass(slots=True, eq=False)
class Enum:
    name: str
    """With the namespace, as of all named types."""
    symbols: tuple[str, ...]
    default: str | None
    doc: str | None
    aliases: tuple[str, ...]
    props: Props
    kind: str = "enum"
    _places: dict[str, int] | None = field(default=None, init=False, repr=False)

    def place_of(self, symbol: str) -> int | None:
        """The place of a symbol; None if there is none."""
        if self._places is None:
            self._places = {one: place for place, one in enumerate(self.symbols)}
        return self._places.get(symbol)


@dataclass(slots=True, eq=False)
class Fixed:
    name: str
    size: int
    doc: str | None
    aliases: tuple[str, ...]
    props: Props
    kind: str = "fixed"


@dataclass(slots=True)
class Field:
    name: str
    type: Type
    has_default: bool
    default: Any
    doc: str | None
    order: str | None
    aliases: tuple[str, ...]
    props: Props


@dataclass(slots=True, eq=False)
class Record:
    name: str
    fields: tuple[Field, ...]
    doc: str | None
    aliases: tuple[str, ...]
    props: Props
    kind: str = "record"
    """``record`` or ``error``."""


Type: TypeAlias = Primitive | Array | Map | Union | Enum | Fixed | Record
NamedType: TypeAlias = Enum | Fixed | Record


def unqualified(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def branch_name(kind: Type) -> str:
    """The name of a branch of a union in Avro's JSON encoding."""
    return kind.name if isinstance(kind, (Record, Enum, Fixed)) else kind.kind


def parse(
    text: str, references: Iterable[str], steps: StepBudget, *, is_new: bool = True
) -> tuple[Type, frozenset[str]]:
    """The type that a text defines, and the names of the types that references define.

    Raises: SchemaInvalid.
    """
    reading = _Reading(steps, is_new=False)
    for reference in references:
        reading.type(_value(reference), "", 0)
    known = frozenset(reading.names)
    reading.is_new = is_new
    return reading.type(_value(text), "", 0), known


def _value(text: str) -> Any:
    stripped = text.strip()
    # The Java library reads a bare word as the name of a primitive type.
    return stripped if stripped in PRIMITIVES else read_json(text)


class _Reading:
    """One text and the texts that it refers to."""

    def __init__(self, steps: StepBudget, *, is_new: bool) -> None:
        self.names: dict[str, NamedType] = {}
        self.is_new = is_new
        self._steps = steps

    def type(self, value: Any, namespace: str, depth: int) -> Type:
        """Raises: SchemaInvalid."""
        self._steps.spend()
        if depth > DEPTH_MAX:
            raise SchemaInvalid(f"the schema has more than {DEPTH_MAX} levels")
        match value:
            case str():
                return self._named(value, namespace)
            case list():
                return self._union(value, namespace, depth)
            case dict():
                return self._complex(value, namespace, depth)
        raise SchemaInvalid(f"{_shown(value)} is no type")

    def _named(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        found = self.names.get(name if "." in name or not namespace else f"{namespace}.{name}")
        if found is None:
            raise SchemaInvalid(f"the type {_shown(name)} is not defined")
        return found

    def _union(self, value: list[Any], namespace: str, depth: int) -> Type:
        branches = tuple(self.type(one, namespace, depth + 1) for one in value)
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise SchemaInvalid("a union is directly inside of a union")
            name = branch_name(branch)
            if name in seen:
                raise SchemaInvalid(f"a union has the type {_shown(name)} twice")
            seen.add(name)
        return Union(branches)

    def _complex(self, value: dict[str, Any], namespace: str, depth: int) -> Type:
        kind = value.get("type")
        match kind:
            case "array":
                return Array(self.type(_member(value, "items", "array"), namespace, depth + 1), _props(value))
            case "map":
                return Map(self.type(_member(value, "values", "map"), namespace, depth + 1), _props(value))
            case "record" | "error":
                return self._record(value, kind, namespace, depth)
            case "enum":
                return self._enum(value, namespace)
            case "fixed":
                return self._fixed(value, namespace)
            case str() if kind in PRIMITIVES:
                return Primitive(kind, _props(value))
            case None:
                raise SchemaInvalid(f"the object {_shown(value)} has no type")
        return self.type(kind, namespace, depth + 1)

    def _record(self, value: dict[str, Any], kind: str, namespace: str, depth: int) -> Type:
        name, inner = _full_name(value, namespace)
        record = Record(name, (), _doc(value), _aliases(value, inner, named=True), _props(value), kind)
        self._define(record)
        listed = _member(value, "fields", f"record {name}")
        if not isinstance(listed, list):
            raise SchemaInvalid(f"the fields of record {name} are no array")
        fields: list[Field] = []
        seen: set[str] = set()
        for one in listed:
            if not isinstance(one, dict):
                raise SchemaInvalid(f"a field of record {name} is no object")
            made = self._field(one, name, inner, depth)
            if made.name in seen:
                raise SchemaInvalid(f"record {name} has the field {made.name} twice")
            seen.add(made.name)
            fields.append(made)
        record.fields = tuple(fields)
        if self.is_new:
            for made in fields:
                if made.has_default and not _fits(made.default, made.type, self._steps, 0):
                    raise SchemaInvalid(
                        f"the default {_shown(made.default)} of field {made.name} of record {name} is no value of its type"
                    )
        return record

    def _field(self, value: dict[str, Any], record: str, namespace: str, depth: int) -> Field:
        name = value.get("name")
        if not isinstance(name, str) or _NAME.match(name) is None:
            raise SchemaInvalid(f"{_shown(name)} is no name of a field, in record {record}")
        if self.is_new and len(name) > FIELD_CHARS_MAX:
            raise SchemaInvalid(
                f"the name {_shown(name)} of a field of record {record} has more than {FIELD_CHARS_MAX} characters"
            )
        order = value.get("order")
        if order is not None and (not isinstance(order, str) or order.lower() not in _ORDERS):
            raise SchemaInvalid(f"{_shown(order)} is no order, in field {name} of record {record}")
        return Field(
            name,
            self.type(_member(value, "type", f"field {name} of record {record}"), namespace, depth + 1),
            "default" in value,
            value.get("default"),
            _doc(value),
            order.lower() if order is not None and order.lower() != "ascending" else None,
            _aliases(value, "", named=False),
            {key: one for key, one in value.items() if key not in _FIELD_MEMBERS},
        )

    def _enum(self, value: dict[str, Any], namespace: str) -> Type:
        name, inner = _full_name(value, namespace)
        symbols = _member(value, "symbols", f"enum {name}")
        if not isinstance(symbols, list) or not all(
            isinstance(one, str) and _NAME.match(one) is not None for one in symbols
        ):
            raise SchemaInvalid(f"the symbols of enum {name} are no array of names")
        self._steps.spend(len(symbols))
        if self.is_new and max(map(len, symbols), default=0) > FIELD_CHARS_MAX:
            raise SchemaInvalid(f"enum {name} has a symbol of more than {FIELD_CHARS_MAX} characters")
        if len(set(symbols)) < len(symbols):
            raise SchemaInvalid(f"enum {name} has a symbol twice")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise SchemaInvalid(f"the default {_shown(default)} of enum {name} is none of its symbols")
        made = Enum(name, tuple(symbols), default, _doc(value), _aliases(value, inner, named=True), _props(value))
        return self._define(made)

    def _fixed(self, value: dict[str, Any], namespace: str) -> Type:
        name, inner = _full_name(value, namespace)
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaInvalid(f"fixed {name} has no size of 0 or more bytes")
        return self._define(Fixed(name, size, _doc(value), _aliases(value, inner, named=True), _props(value)))

    def _define(self, made: NamedType) -> NamedType:
        if made.name in self.names:
            raise SchemaInvalid(f"the type {_shown(made.name)} is defined twice")
        self.names[made.name] = made
        return made


_FIELD_MEMBERS: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})


def _member(value: dict[str, Any], name: str, owner: str) -> Any:
    if name not in value:
        raise SchemaInvalid(f"{owner} has no {name}")
    return value[name]


def full_name_of(value: dict[str, Any]) -> str | None:
    """The full name of the type that an object of JSON defines; None if it defines none."""
    try:
        return _full_name(value, "")[0] if value.get("type") in ("record", "error", "enum", "fixed") else None
    except SchemaInvalid:
        return None


def _full_name(value: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The full name of a definition, and the namespace in which its parts are. Raises: SchemaInvalid."""
    name = value.get("name")
    if not isinstance(name, str):
        raise SchemaInvalid(f"a type of kind {value['type']} has no name")
    own = value.get("namespace")
    if own is not None and not isinstance(own, str):
        raise SchemaInvalid(f"the namespace of {_shown(name)} is no string")
    if "." in name:
        own, _, name = name.rpartition(".")
    elif own is None:
        own = namespace
    if len(name) + len(own) > NAME_CHARS_MAX:
        raise SchemaInvalid(f"the name {_shown(name)} has more than {NAME_CHARS_MAX} characters with its namespace")
    if name in PRIMITIVES:
        raise SchemaInvalid(f"{name} is the name of a primitive type")
    for part in (*(own.split(".") if own else ()), name):
        if _NAME.match(part) is None:
            raise SchemaInvalid(f"{_shown(part)} is no name")
    return f"{own}.{name}" if own else name, own


def _doc(value: dict[str, Any]) -> str | None:
    doc = value.get("doc")
    return doc if isinstance(doc, str) else None


def _aliases(value: dict[str, Any], namespace: str, *, named: bool) -> tuple[str, ...]:
    aliases = value.get("aliases")
    if aliases is None:
        return ()
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
        raise SchemaInvalid("the aliases of a type are no array of strings")
    if not named or not namespace:
        return tuple(aliases)
    return tuple(one if "." in one else f"{namespace}.{one}" for one in aliases)


def _props(value: dict[str, Any]) -> dict[str, Any]:
    """The members that the specification does not define for a type, and its logical type."""
    return {key: one for key, one in value.items() if key not in _RESERVED}


def _shown(value: Any) -> str:
    """A value in an error, at most 100 characters."""
    text = value if isinstance(value, str) else write_json(value)
    return repr(text if len(text) <= 100 else f"{text[:97]}...")


def _fits(value: Any, kind: Type, steps: StepBudget, depth: int) -> bool:
    """Whether a JSON value is a default value of a type. A union takes a value of any of its branches (1.12).

    Raises: TooComplex.
    """
    steps.spend()
    if depth > DEFAULT_DEPTH_MAX:
        raise TooComplex
    match kind:
        case Union():
            return any(_fits(value, one, steps, depth + 1) for one in kind.branches)
        case Array():
            return isinstance(value, list) and all(_fits(one, kind.items, steps, depth + 1) for one in value)
        case Map():
            return isinstance(value, dict) and all(_fits(one, kind.values, steps, depth + 1) for one in value.values())
        case Enum():
            steps.spend(len(kind.symbols) // 64)
            return value in kind.symbols
        case Fixed():
            return isinstance(value, str) and len(value) == kind.size and _is_bytes(value)
        case Record():
            steps.spend(len(kind.fields) // 16)
            return isinstance(value, dict) and all(
                _fits(value[one.name], one.type, steps, depth + 1) if one.name in value else one.has_default
                for one in kind.fields
            )
    match kind.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            end = _INT_END[kind.kind]
            return isinstance(value, int) and not isinstance(value, bool) and -end <= value < end
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "bytes":
            return isinstance(value, str) and _is_bytes(value)
    return isinstance(value, str)


def _is_bytes(value: str) -> bool:
    return all(ord(one) < 256 for one in value)


# --- texts ------------------------------------------------------------------------------------------------------------


def canonical(schema: Type, known: frozenset[str] = frozenset()) -> str:
    """The text as the Java library writes it. Types whose names are in ``known`` are written as names."""
    return write_json(_Writing(known, normal=False).value(schema, ""))


def normalized(schema: Type, known: frozenset[str] = frozenset()) -> str:
    """As ``canonical``, with full names and with properties in the order of their names."""
    return write_json(_Writing(known, normal=True).value(schema, ""))


class _Writing:
    """One text. A type is defined where it comes first, and named after that."""

    def __init__(self, known: frozenset[str], *, normal: bool) -> None:
        self._written = set(known)
        self._normal = normal

    def value(self, kind: Type, namespace: str) -> Any:
        match kind:
            case Primitive():
                return {"type": kind.kind, **self._sorted(kind.props)} if kind.props else kind.kind
            case Array():
                return {"type": "array", "items": self.value(kind.items, namespace), **self._sorted(kind.props)}
            case Map():
                return {"type": "map", "values": self.value(kind.values, namespace), **self._sorted(kind.props)}
            case Union():
                return [self.value(one, namespace) for one in kind.branches]
        if kind.name in self._written:
            return self._reference(kind.name, namespace)
        self._written.add(kind.name)
        own, _, name = kind.name.rpartition(".")
        made: dict[str, Any] = {"type": kind.kind}
        if self._normal:
            made["name"] = kind.name
        else:
            made["name"] = name
            if own != namespace:
                made["namespace"] = own
        if kind.doc is not None:
            made["doc"] = kind.doc
        match kind:
            case Record():
                made["fields"] = [self._field(one, own) for one in kind.fields]
            case Enum():
                made["symbols"] = list(kind.symbols)
                if kind.default is not None:
                    made["default"] = kind.default
            case Fixed():
                made["size"] = kind.size
        made.update(self._sorted(kind.props))
        if kind.aliases:
            made["aliases"] = [self._reference(one, own) for one in kind.aliases]
        return made

    def _field(self, one: Field, namespace: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": one.name, "type": self.value(one.type, namespace)}
        if one.doc is not None:
            made["doc"] = one.doc
        if one.has_default:
            made["default"] = one.default
        if one.order is not None:
            made["order"] = one.order
        if one.aliases:
            made["aliases"] = list(one.aliases)
        made.update(self._sorted(one.props))
        return made

    def _reference(self, name: str, namespace: str) -> str:
        own, _, short = name.rpartition(".")
        return short if own == namespace and not self._normal else name

    def _sorted(self, props: Props) -> Props:
        return dict(sorted(props.items())) if self._normal else props
