"""The schema of Terraform's AWS provider, read out of a Python package.

The provider itself cannot be had everywhere that this repository's checks run, but ``cdktf-cdktf-provider-aws`` can: it carries,
for every resource and data source, TypeScript that was generated from the provider's schema. The source maps in it hold the
generated text with its comments, and each member has one that says ``name - computed: …, optional: …, required: …``. So names,
types and blocks are as in the provider, and so are the flags required, optional and computed. The package lacks, and
``terraform validate`` does not check here: refusals by the provider's own code (a malformed ARN, two arguments that exclude
each other), ``max_items`` above 1, and which values are sensitive or deprecated.

The result is JSON: ``{"version", "provider", "resources": {type: block}, "data": {type: block}}``. A block is
``{"attributes": {name: [type, flags]}, "blocks": {name: [nesting, min, max, block]}}``: a type is Terraform's own JSON form of a
type constraint, flags are some of ``roc`` (required, optional, computed), nesting is ``list``, ``set``, ``single`` or ``map``.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DISTRIBUTION: Final = "cdktf-cdktf-provider-aws"
DISTRIBUTION_VERSION: Final = "21.22.1"
PROVIDER_VERSION: Final = "6.25.0"

BLOCK_DEPTH_MAX: Final = 12
"""Some blocks of WAF contain themselves; the provider ends them too."""

_META: Final = frozenset({"count", "for_each", "provider", "lifecycle", "depends_on", "provisioner", "connection"})

_CLASS: Final = re.compile(
    r"^export class (\w+) extends cdktf\.(ComplexObject|TerraformResource|TerraformDataSource)\b.*?(?=^export |\Z)",
    re.MULTILINE | re.DOTALL,
)
_MEMBER: Final = re.compile(r"^  // (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n", re.MULTILINE)
_TYPE_NAME: Final = re.compile(r'tfResourceType = "(aws_\w+)"')
_NESTED: Final = re.compile(r"private _\w+ = new (\w+?)(OutputReference|List|Map)\(this, \"\w+\"(?:, (true|false))?\)")
_STORED: Final = re.compile(r"private _\w+\?: (.+?); ?$", re.MULTILINE)
_GETTER: Final = re.compile(r"public get \w+\(\) \{\n    return (.+?);\n")
_SUPER: Final = re.compile(r"super\(terraformResource, terraformAttribute(?:, (\w+))?(?:, (\w+))?\)")
_LIST_OF: Final = re.compile(r"^export class (\w+)(List|Map) extends", re.MULTILINE)

_PLAIN: Final[dict[str, Any]] = {
    "string": "string",
    "number": "number",
    "boolean | cdktf.IResolvable": "bool",
    "string[]": ["list", "string"],
    "number[]": ["list", "number"],
    "Array<boolean | cdktf.IResolvable> | cdktf.IResolvable": ["list", "bool"],
    "{ [key: string]: string }": ["map", "string"],
    "{ [key: string]: number }": ["map", "number"],
    "{ [key: string]: (boolean | cdktf.IResolvable) }": ["map", "bool"],
    "{ [key: string]: any }": "dynamic",
    "any": "dynamic",
    "string[][] | cdktf.IResolvable": ["list", ["list", "string"]],
    "number[][] | cdktf.IResolvable": ["list", ["list", "number"]],
    "{ [key: string]: string[] } | cdktf.IResolvable": ["map", ["list", "string"]],
    "{ [key: string]: string }[] | cdktf.IResolvable": ["list", ["map", "string"]],
}

_BY_GETTER: Final[dict[str, Any]] = {
    "getStringAttribute": "string",
    "getNumberAttribute": "number",
    "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"],
    "getNumberListAttribute": ["list", "number"],
    "getStringMapAttribute": ["map", "string"],
    "getNumberMapAttribute": ["map", "number"],
    "getBooleanMapAttribute": ["map", "bool"],
    "getAnyMapAttribute": "dynamic",
    "interpolationForAttribute": "dynamic",
    "StringMap": ["map", "string"],
    "NumberMap": ["map", "number"],
    "BooleanMap": ["map", "bool"],
    "StringMapList": ["list", ["map", "string"]],
    "StringListMap": ["map", ["list", "string"]],
    "StringListList": ["list", ["list", "string"]],
}


class SchemaUnreadable(Exception):
    """A member of a type has a form that this reader does not know."""


@dataclass(slots=True)
class _Member:
    name: str
    computed: bool
    optional: bool
    required: bool
    text: str

    @property
    def flags(self) -> str:
        return "r" * self.required + "o" * self.optional + "c" * self.computed


@dataclass(slots=True)
class _Class:
    members: list[_Member]
    base: str
    is_set: bool
    """Of an object: whether the collection that it is alone in (``max_items = 1``) is a set."""
    is_alone_in_collection: bool


@dataclass(slots=True)
class _Source:
    """The classes of one resource or data source."""

    classes: dict[str, _Class] = field(default_factory=dict)

    def block(self, name: str, depth: int = 0) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        for member in self.classes[name].members:
            if depth == 0 and member.name in _META:
                continue
            nested = _NESTED.search(member.text)
            if nested is None or member.computed:
                attributes[member.name] = [self._type(member, depth), member.flags]
            elif depth < BLOCK_DEPTH_MAX:
                kind, form, is_set = nested.groups()
                nesting, most = self._nesting(kind, form, is_set)
                least = 1 if member.required else 0
                inner = self.block(f"{kind}OutputReference", depth + 1)
                if nesting == "set" and _holds_dynamic(inner):
                    nesting = "list"  # Terraform has no sets whose elements have any type
                blocks[member.name] = [nesting, least, most, inner]
        return {"attributes": attributes, "blocks": blocks}

    def _nesting(self, kind: str, form: str, is_set: str | None) -> tuple[str, int]:
        """How a block nests, and how many there may be (0: no limit is known)."""
        if form == "Map":
            return "map", 0
        if form == "List":
            return "set" if is_set == "true" else "list", 0
        target = self.classes[f"{kind}OutputReference"]
        if not target.is_alone_in_collection:
            return "single", 1
        return "set" if target.is_set else "list", 1

    def _type(self, member: _Member, depth: int) -> Any:
        nested = _NESTED.search(member.text)
        if nested is not None and f"{nested[1]}OutputReference" in self.classes:
            kind, form, is_set = nested.groups()
            nesting, _ = self._nesting(kind, form, is_set)
            of = self._object(f"{kind}OutputReference", depth + 1)
            return of if nesting == "single" else [nesting, of]
        getter = _GETTER.search(member.text)
        is_set = getter is not None and "Fn.tolist(" in getter[1]
        stored = _STORED.search(member.text)
        if stored is not None and stored[1] in _PLAIN:
            found = _PLAIN[stored[1]]
        else:
            written = getter[1] if getter is not None else member.text
            plain = re.search(r"private _\w+ = new cdktf\.(\w+)\(", member.text)
            named = [plain[1]] if plain is not None else re.findall(r"\b(\w+)\(", written)
            known = [_BY_GETTER[name] for name in named if name in _BY_GETTER]
            if not known:
                raise SchemaUnreadable(f"{member.name}: {member.text[:200]}")
            found = known[0]
        return ["set", found[1]] if is_set and isinstance(found, list) and found[0] == "list" else found

    def _object(self, name: str, depth: int) -> Any:
        if depth >= BLOCK_DEPTH_MAX:
            return "dynamic"
        return ["object", {each.name: self._type(each, depth) for each in self.classes[name].members}]


def _holds_dynamic(block: dict[str, Any]) -> bool:
    return any("dynamic" in json.dumps(form) for form, _ in block["attributes"].values()) or any(
        _holds_dynamic(nested[3]) for nested in block["blocks"].values()
    )


def _members(text: str) -> list[_Member]:
    marks = list(_MEMBER.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]
    found = []
    for mark, end in zip(marks, ends, strict=True):
        name, computed, optional, required = mark.groups()
        body = text[mark.end() : end].split("\n  // ====")[0]
        found.append(_Member(name, computed == "true", optional == "true", required == "true", body))
    return found


def read_type(text: str) -> tuple[str, str, dict[str, Any]]:
    """Of the TypeScript of one type: ``resource`` or ``data``, its name and its block. Raises: SchemaUnreadable."""
    source = _Source()
    main = ""
    for match in _CLASS.finditer(text):
        name, base = match.groups()
        body = match[0]
        made = _SUPER.search(body)
        alone = made is not None and made[2] == "0"
        source.classes[name] = _Class(_members(body), base, alone and made is not None and made[1] == "true", alone)
        if base != "ComplexObject":
            main = name
    named = _TYPE_NAME.search(text)
    if not main or named is None:
        raise SchemaUnreadable("no resource and no data source")
    kind = "data" if source.classes[main].base == "TerraformDataSource" else "resource"
    try:
        return kind, named[1], source.block(main)
    except KeyError as error:
        raise SchemaUnreadable(f"the class {error} is missing") from error


def read_provider(text: str) -> dict[str, Any]:
    """The block of the provider itself; its nested blocks have interfaces only."""
    interfaces: dict[str, list[tuple[str, bool, str]]] = {}
    for match in re.finditer(r"^export interface (\w+)[^{]*\{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        interfaces[match[1]] = [
            (each[1], each[2] == "?", each[3])
            for each in re.finditer(r"#(\w+)\}\n  \*/\n  readonly \w+(\??): (.+?);\n", match[2])
        ]

    def block(name: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        for member, optional, form in interfaces[name]:
            if member == "alias":
                continue
            nested = re.match(r"(\w+)(\[\])? \| cdktf\.IResolvable$|(\w+)$", form)
            kind = (nested[1] or nested[3]) if nested is not None else ""
            if kind in interfaces:
                many = nested is not None and nested[2]
                blocks[member] = ["list", 0 if optional else 1, 0 if many else 1, block(kind)]
            elif form in _PLAIN:
                attributes[member] = [_PLAIN[form], "o" if optional else "r"]
            else:
                raise SchemaUnreadable(f"provider, {member}: {form}")
        return {"attributes": attributes, "blocks": blocks}

    return block("AwsProviderConfig")


def _sources(wheel: Path) -> dict[str, str]:
    """The TypeScript of every type in the wheel, by folder; long types are spread over several files."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            for entry in package:
                parts = entry.name.removeprefix("package/lib/").split("/")
                if len(parts) < 2 or not parts[-1].endswith(".js"):
                    continue
                stream = package.extractfile(entry)
                assert stream is not None, entry.name
                _, _, encoded = stream.read().rpartition(b"base64,")
                found[parts[0]].append(json.loads(base64.b64decode(encoded.strip()))["sourcesContent"][0])
    return {folder: "\n".join(texts) for folder, texts in found.items()}


def read_wheel(wheel: Path) -> dict[str, Any]:
    """The whole schema. Takes ten seconds. Raises: SchemaUnreadable."""
    found: dict[str, Any] = {"version": "", "provider": {}, "resources": {}, "data": {}}
    for folder, text in _sources(wheel).items():
        if folder == "provider":
            found["provider"] = read_provider(text)
        elif _TYPE_NAME.search(text) is not None:
            try:
                kind, name, block = read_type(text)
            except SchemaUnreadable as error:
                raise SchemaUnreadable(f"{folder}: {error}") from error
            found["data" if kind == "data" else "resources"][name] = block
            if not found["version"]:
                version = re.search(r"providerVersion: '([0-9.]+)'", text)
                found["version"] = version[1] if version is not None else ""
    return found
