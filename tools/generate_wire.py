"""Write ``app/wire/apis`` from the message schemas that kio ships.

kio has one class per struct and version. This script merges the versions of a struct into one dataclass that is as wide as
all of them, and into rows that say which version has which field, in wire order (``app/wire/schema.py``).

    python tools/generate_wire.py            write the modules
    python tools/generate_wire.py --check    exit 1 and name the first module that differs from the generated one
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

APIS: Final = Path(__file__).resolve().parent.parent / "app" / "wire" / "apis"

KINDS: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
"""kio's kinds that are plain numbers on the wire, and to Firn."""

LINE_CHARS_MAX: Final = 120

PYTHON_TYPES: Final = {
    "bool": "bool",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | memoryview",
}
"""Everything else that is not a struct is an int."""

PRIVATE_TAG: Final = 10_000
"""Tag of the first field that Firn adds to a struct. Other programs skip tags that they do not know (KIP-482)."""


@dataclass(frozen=True)
class Spec:
    """A field as one version has it."""

    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@dataclass
class Run:
    """A field in consecutive versions that have it alike."""

    spec: Spec
    first: int
    last: int


PRIVATE_FIELDS: Final[dict[str, tuple[Run, ...]]] = {
    "WritableTxnMarkerTopic": (Run(Spec("topic_id", "uuid", False, False, PRIVATE_TAG, ""), 1, 2),),
    "WritableTxnMarker": (
        Run(Spec("decision", "bytes", False, False, PRIVATE_TAG, ""), 1, 2),
        Run(Spec("coordinator", "int32", False, False, PRIVATE_TAG + 1, -1), 1, 2),
        Run(Spec("coordinator_leads_since", "int32", False, False, PRIVATE_TAG + 2, -1), 1, 2),
    ),
    "AddPartitionsToTxnTopic": (Run(Spec("topic_id", "uuid", False, False, PRIVATE_TAG, ""), 4, 5),),
    "AddPartitionsToTxnResult": (Run(Spec("coordinator_epoch", "int32", False, False, PRIVATE_TAG, -1), 4, 5),),
    "BrokerHeartbeatRequest": (Run(Spec("wal_next", "int64", False, False, PRIVATE_TAG, 0), 0, 2),),
    "AlterPartitionRequestPartitionData": (
        Run(Spec("released_last", "int64", False, False, PRIVATE_TAG, -2), 2, 3),
        Run(Spec("released_to", "int32", False, False, PRIVATE_TAG + 1, -1), 2, 3),
        Run(Spec("dropped_ranges", "bytes", False, False, PRIVATE_TAG + 2, ""), 2, 3),
        Run(Spec("switched_first", "int64", False, False, PRIVATE_TAG + 3, -2), 2, 3),
    ),
}
"""By struct: the private fields, beyond Kafka's schema, between brokers of one cluster
(docs/adr/0026-transactions-across-brokers.md, docs/adr/0037-object-durability.md)."""


@dataclass
class Struct:
    """A struct over all versions; ``runs`` is in wire order."""

    name: str
    runs: list[Run] = field(default_factory=list)


@dataclass
class Message:
    """A request or a response: its structs, innermost first, the message itself last."""

    structs: dict[str, Struct]
    versions: tuple[int, int]
    flexible_first: int
    key: int

    @property
    def name(self) -> str:
        return list(self.structs)[-1]


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """``(element, is_array, is_nullable)`` of a kio annotation."""
    nullable = False
    if get_origin(annotation) in (Union, UnionType):
        inner = [argument for argument in get_args(annotation) if argument is not NoneType]
        assert len(inner) == 1, annotation
        annotation, nullable = inner[0], True
    if get_origin(annotation) is tuple:
        element, rest = get_args(annotation)
        assert rest is Ellipsis, annotation
        element, is_array, _ = unwrap(element)  # an element that "may be None" is the zero uuid
        assert not is_array, annotation
        return element, True, nullable
    return annotation, False, nullable


def default_of(kind: str, is_array: bool, is_nullable: bool, default: Any) -> Any:
    """The default as a constant of a row (``Field.default``)."""
    if is_array:
        return None if default is None else ""
    if default is MISSING:
        if kind == "records":
            return None
        return {"bool": False, "float64": 0.0}.get(kind, 0 if "int" in kind else "")
    if isinstance(default, timedelta):
        return round(default.total_seconds() * 1000)
    if isinstance(default, datetime):
        return round(default.timestamp() * 1000)
    if default is None:
        return -1 if kind == "int64" else "" if kind == "uuid" else None
    if is_dataclass(default):
        return ""
    if isinstance(default, bytes):
        assert default == b""
        return ""
    for plain in (bool, int, float, str):
        if isinstance(default, plain):
            return plain(default)
    raise AssertionError(default)


def spec_of(kio_field: Any) -> Spec:
    element, is_array, is_nullable = unwrap(kio_field.type)
    name = kio_field.name
    kio_kind = kio_field.metadata.get("kafka_type")
    if kio_kind is None:
        kind = element.__name__
    else:
        kind = KINDS.get(kio_kind, kio_kind)
        if kio_kind.startswith(("timedelta", "datetime")):
            name += "_ms"  # the schema's own name, which kio shortens
    if kind in ("uuid", "int64"):
        is_nullable = is_nullable and is_array  # null is the zero uuid, and no time is -1
    default = default_of(kind, is_array, is_nullable, kio_field.default)
    return Spec(name, kind, is_array, is_nullable, kio_field.metadata.get("tag"), default)


def merge_order(orders: list[list[str]]) -> list[str]:
    """One order that agrees with each of ``orders``; newest last, and the newest decides where there is a choice."""
    names = list(dict.fromkeys(name for order in reversed(orders) for name in order))
    after: dict[str, set[str]] = {name: set() for name in names}
    for order in orders:
        for earlier, later in pairwise(order):
            after[later].add(earlier)
    merged: list[str] = []
    while len(merged) < len(names):
        merged.append(next(name for name in names if name not in merged and after[name] <= set(merged)))
    return merged


def merge(package: str, part: str, versions: list[int]) -> Message:
    """Read every version of one message."""
    per_struct: dict[str, dict[int, list[Spec]]] = {}
    flexible: dict[int, bool] = {}
    order: list[list[str]] = []
    key = -1
    for version in versions:
        module = importlib.import_module(f"kio.schema.{package}.v{version}.{part}")
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
        ]
        order.append([cls.__name__ for cls in classes])
        for cls in classes:
            specs = [spec_of(kio_field) for kio_field in fields(cls)]
            per_struct.setdefault(cls.__name__, {})[version] = specs
        top: Any = classes[-1]
        flexible[version], key = top.__flexible__, int(top.__api_key__)
    structs = {}
    for name in merge_order(order):
        by_version = per_struct[name]
        runs: list[Run] = []
        for field_name in merge_order([[spec.name for spec in specs] for specs in by_version.values()]):
            for version, specs in by_version.items():
                for spec in specs:
                    if spec.name != field_name:
                        continue
                    if runs and runs[-1].spec == spec and runs[-1].last == version - 1:
                        runs[-1].last = version
                    else:
                        runs.append(Run(spec, version, version))
        structs[name] = Struct(name, runs)
    first = next((version for version in versions if flexible[version]), versions[-1] + 1)
    assert all(flexible[version] == (version >= first) for version in versions)
    assert versions == list(range(versions[0], versions[-1] + 1))
    return Message(structs, (versions[0], versions[-1]), first, key)


def rename_collisions(request: Message, response: Message) -> None:
    """Where both messages have a struct of one name: keep one if they are alike, else put the message's name before it."""
    for name in [name for name in request.structs if name in response.structs]:
        mine, theirs = request.structs[name], response.structs[name]
        if mine.runs == theirs.runs and all(run.spec.kind[0].islower() for run in mine.runs):
            continue
        for message in (request, response):
            new = message.name + name
            assert new not in message.structs
            renamed: dict[str, Struct] = {}
            for struct in message.structs.values():
                for run in struct.runs:
                    if run.spec.kind == name:
                        run.spec = replace(run.spec, kind=new)
                struct.name = new if struct.name == name else struct.name
                renamed[struct.name] = struct
            message.structs = renamed


def add_private_fields(message: Message) -> None:
    """Add Firn's fields beyond Kafka's schema, by the final names of the structs."""
    for name, struct in message.structs.items():
        struct.runs += PRIVATE_FIELDS.get(name, ())


def python_type(spec: Spec, nullable_ever: bool) -> str:
    inner = spec.kind if spec.kind[0].isupper() else PYTHON_TYPES.get(spec.kind, "int")
    if spec.is_array:
        inner = f"list[{inner}]"
    return f"{inner} | None" if nullable_ever or (not spec.is_array and spec.kind == "records") else inner


def python_default(spec: Spec) -> str:
    if spec.default is None:
        return "None"
    if spec.is_array:
        return "field(default_factory=list)"
    if spec.kind[0].isupper():
        return f"field(default_factory={spec.kind})"
    return {"uuid": "ZERO_UUID", "bytes": 'b""'}.get(spec.kind, literal(spec.default))


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def describe(struct: Struct, uses: list[tuple[str, str]]) -> str:
    """The docstring of a struct's class: its message, or its versions."""
    if uses:
        return ", ".join(f"``{name}`` of {parent}" for name, parent in uses) + "."
    return "The request." if struct.name.endswith("Request") else "The response."


def write_struct(struct: Struct, uses: list[tuple[str, str]]) -> Iterator[str]:
    yield "@dataclass(slots=True)"
    yield f"class {struct.name}:"
    # Besides telling, a docstring spares the import: dataclass() inspects a signature to make up a missing one.
    yield f'    """{describe(struct, uses)}"""'
    if struct.runs:
        yield ""
    by_name: dict[str, list[Run]] = {}
    for run in struct.runs:
        by_name.setdefault(run.spec.name, []).append(run)
    for runs in by_name.values():
        newest = runs[-1].spec
        assert len({(run.spec.kind, run.spec.is_array, run.spec.tag, run.spec.default) for run in runs}) == 1, runs
        nullable = any(run.spec.is_nullable for run in runs)
        yield f"    {newest.name}: {python_type(newest, nullable)} = {python_default(newest)}"
    yield ""
    yield ""


def write_rows(struct: Struct) -> Iterator[str]:
    rows = []
    for run in struct.runs:
        spec = run.spec
        row = (spec.name, spec.kind, spec.is_array, run.first, run.last, spec.is_nullable, spec.tag, spec.default)
        rows.append(f"({', '.join(map(literal, row))})")
    one_line = f'    "{struct.name}": ({"".join(row + "," for row in rows)}),'
    if len(rows) < 2 and len(one_line) <= LINE_CHARS_MAX:
        yield one_line
        return
    yield f'    "{struct.name}": ('
    for text in rows:
        yield f"        {text},"
    yield "    ),"


def title(package: str) -> str:
    return "".join(part.capitalize() for part in package.split("_"))


def write_module(package: str, request: Message, response: Message) -> str:
    structs = {**request.structs, **response.structs}
    body: list[str] = []
    for struct in structs.values():
        parents = [
            (run.spec.name, parent.name)
            for parent in structs.values()
            for run in parent.runs
            if run.spec.kind == struct.name
        ]
        body += write_struct(struct, list(dict.fromkeys(parents)))
    text = "\n".join(body)
    first, last = request.versions
    versions = f"version {first}" if first == last else f"versions {first} to {last}"
    lines = [
        f'"""{title(package)}, key {request.key}, {versions}. Written by tools/generate_wire.py; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        f"from dataclasses import dataclass{', field' if 'field(' in text else ''}",
        "from typing import Final",
    ]
    if "UUID" in text:
        lines.append("from uuid import UUID")
    names = (["ZERO_UUID"] if "ZERO_UUID" in text else []) + ["Rows"]
    lines += ["", f"from app.wire.schema import {', '.join(names)}", "", "", text.rstrip("\n"), "", ""]
    lines.append("FIELDS: Final[Rows] = {")
    for struct in structs.values():
        lines += write_rows(struct)
    lines += ["}", ""]
    return "\n".join(lines)


def write_index(messages: dict[str, tuple[Message, Message]]) -> str:
    lines = [
        '"""Typed messages of every API. Tests: ``tests/wire/test_codec.py``. Written by tools/generate_wire.py; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final, NamedTuple",
        "",
        "",
        "class Api(NamedTuple):",
        '    """Where an API\'s messages are (``name`` + ``Request``, ``Response``) and which versions have a schema."""',
        "",
        "    module: str",
        "    name: str",
        "    version_first: int",
        "    version_last: int",
        "    flexible_first: int",
        '    """First version with compact lengths and tagged fields; ``version_last + 1`` if there is none (KIP-482)."""',
        "",
        "",
        "APIS: Final[dict[int, Api]] = {",
    ]
    for package, (request, response) in sorted(messages.items(), key=lambda item: item[1][0].key):
        first, last = request.versions
        name = title(package)
        assert (request.name, response.name) == (f"{name}Request", f"{name}Response")
        names = f'"{package}", "{name}"'
        lines.append(f"    {request.key}: Api({names}, {first}, {last}, {request.flexible_first}),")
    lines += ["}", ""]
    return "\n".join(lines)


def generate() -> dict[str, str]:
    """Text of every file, by name."""
    import kio.schema

    files: dict[str, str] = {}
    messages: dict[str, tuple[Message, Message]] = {}
    for module in pkgutil.iter_modules(kio.schema.__path__):
        if not module.ispkg:
            continue
        package = importlib.import_module(f"kio.schema.{module.name}")
        versions = sorted(
            int(version.name[1:])
            for version in pkgutil.iter_modules(package.__path__)
            if re.fullmatch(r"v\d+", version.name)
        )
        newest = importlib.import_module(f"kio.schema.{module.name}.v{versions[-1]}")
        if not {"request", "response"} <= {part.name for part in pkgutil.iter_modules(newest.__path__)}:
            continue
        request = merge(module.name, "request", versions)
        response = merge(module.name, "response", versions)
        assert (request.key, request.versions, request.flexible_first) == (
            response.key,
            response.versions,
            response.flexible_first,
        )
        rename_collisions(request, response)
        add_private_fields(request)
        add_private_fields(response)
        messages[module.name] = (request, response)
        files[f"{module.name}.py"] = write_module(module.name, request, response)
    files["__init__.py"] = write_index(messages)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    files = generate()
    present = {path.name for path in APIS.glob("*.py")}
    for name, text in files.items():
        path = APIS / name
        if check:
            if not path.exists() or path.read_text() != text:
                sys.stderr.write(f"{path} differs from kio's schemas. Generate it again.\n")
                return 1
        else:
            path.write_text(text)
    for name in sorted(present - set(files)):
        if check:
            sys.stderr.write(f"{name} is not written by this script. Remove it.\n")
            return 1
        (APIS / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
