"""Write ``app/coordinator/schemas`` from the record schemas inside Apache Kafka's own jars (``make kafka-libs``).

The jars of Kafka's coordinators have JSON files that describe the records of internal topics. This script turns them
into dataclasses and rows as ``generate_wire.py`` does for the APIs, so that the same compiler reads and writes them.

    python tools/generate_coordinator_records.py            write the modules
    python tools/generate_coordinator_records.py --check    exit 1 and name the first module that differs from the generated one
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

from generate_wire import LINE_CHARS_MAX, Run, Spec, Struct, write_rows, write_struct

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMAS: Final = ROOT / "app" / "coordinator" / "schemas"
LIBS: Final = ROOT / ".cache" / "kafka" / "libs"

FAMILIES: Final = {
    "classic_group": (
        "kafka-group-coordinator",
        ("LegacyOffsetCommit", "OffsetCommit", "GroupMetadata"),
        "Committed offsets and groups of the classic protocol",
    ),
    "consumer_group": (
        "kafka-group-coordinator",
        (
            "ConsumerGroupMetadata",
            "ConsumerGroupPartitionMetadata",
            "ConsumerGroupMemberMetadata",
            "ConsumerGroupTargetAssignmentMetadata",
            "ConsumerGroupTargetAssignmentMember",
            "ConsumerGroupCurrentMemberAssignment",
            "ConsumerGroupRegularExpression",
        ),
        "Groups of the consumer protocol (KIP-848)",
    ),
    "share_group": (
        "kafka-group-coordinator",
        (
            "ShareGroupMemberMetadata",
            "ShareGroupMetadata",
            "ShareGroupTargetAssignmentMetadata",
            "ShareGroupTargetAssignmentMember",
            "ShareGroupCurrentMemberAssignment",
            "ShareGroupStatePartitionMetadata",
        ),
        "Share groups (KIP-932)",
    ),
    "share_state": ("kafka-share-coordinator", ("ShareSnapshot", "ShareUpdate"), "State of share-partitions (KIP-932)"),
    "transaction": ("kafka-transaction-coordinator", ("TransactionLog",), "Transactions by transactional id (KIP-98)"),
}
"""By module: the jar, the records in it, and their subject. Records of streams groups (KIP-1071) are not served."""
TESTS = {
    "classic_group": ("tests/coordinator/test_records.py", "tests/groups/test_classic.py"),
    "consumer_group": ("tests/coordinator/test_records.py", "tests/groups/test_consumer.py"),
    "share_group": ("tests/coordinator/test_records.py", "tests/groups/test_share.py"),
    "share_state": ("tests/coordinator/test_records.py", "tests/groups/test_share_state.py"),
    "transaction": ("tests/transactions/test_records.py",),
}
"""By module: its tests."""


def read_schema(jar: str, name: str) -> dict[str, Any]:
    """One schema. Raises: SystemExit if the jars are not there."""
    found = sorted(path for path in LIBS.glob(f"{jar}-[0-9]*.jar"))
    if not found:
        raise SystemExit(f"{jar} is not in {LIBS}: run make kafka-libs")
    with zipfile.ZipFile(found[-1]) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    schema: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return schema


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def version_range(text: str, last: int) -> tuple[int, int]:
    """First and last version of ``3+``, ``1-2``, ``0`` or ``none``, which is beyond the last."""
    if text == "none":
        return last + 1, last
    first, _, rest = text.partition("-")
    if first.endswith("+"):
        return int(first[:-1]), last
    return int(first), int(rest or first)


def default_of(kind: str, is_array: bool, default: Any) -> Any:
    if default == "null":
        return None
    if is_array:
        return ""
    if "int" in kind:
        return int(default)
    return default


def spec_of(item: dict[str, Any], versions: tuple[int, int]) -> Spec:
    kind = item["type"]
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    nullable = version_range(item.get("nullableVersions", "none"), versions[1])[0] <= versions[1]
    if item.get("default") is not None:  # a null that is no string means nothing to Kafka's own generator
        default = default_of(kind, is_array, item["default"])
    else:
        default = "" if is_array or kind in ("string", "bytes", "uuid") or kind[0].isupper() else 0
    return Spec(snake(item["name"]), kind, is_array, nullable, item.get("tag"), default)


def read_structs(schema: dict[str, Any], last: int) -> list[Struct]:
    """A record's structs, innermost first."""
    structs: dict[str, Struct] = {}

    def take(name: str, items: list[dict[str, Any]]) -> None:
        struct = Struct(name)
        for item in items:
            if "fields" in item:
                take(item["type"].removeprefix("[]"), item["fields"])
            first, end = version_range(item.get("versions", item.get("taggedVersions")), last)
            struct.runs.append(Run(spec_of(item, (first, end)), first, end))
        structs[name] = struct

    for common in schema.get("commonStructs", ()):
        take(common["name"], common["fields"])
    take(schema["name"], schema["fields"])
    return list(structs.values())


def _tests(family: str) -> str:
    """The end of a module's docstring, which names its tests."""
    named = ", ".join(f"``{path}``" for path in TESTS.get(family, ()))
    return f"\n\nTests: {named}.\n" if named else ""


def write_module(family: str) -> str:
    jar, names, title = FAMILIES[family]
    structs: dict[str, Struct] = {}
    records = []
    for name in names:
        for part in ("Key", "Value"):
            schema = read_schema(jar, f"{name}{part}")
            first, last = version_range(schema["validVersions"], 0)
            for struct in read_structs(schema, last):
                known = structs.setdefault(struct.name, struct)
                assert known.runs == struct.runs, struct.name
        flexible = version_range(schema["flexibleVersions"], last)[0]
        records.append(f"    RecordType({schema['apiKey']}, {name}Key, {name}Value, {first}, {last}, {flexible}),")
    body: list[str] = []
    for struct in structs.values():
        parents = [
            (run.spec.name, parent.name)
            for parent in structs.values()
            for run in parent.runs
            if run.spec.kind == struct.name
        ]
        lines = list(write_struct(struct, list(dict.fromkeys(parents))))
        if not parents:
            part = "key" if struct.name.endswith("Key") else "value"
            lines[2] = f'    """A record\'s {part}."""'
        elif len(lines[2]) > LINE_CHARS_MAX:
            lines[2] = f'    """Part of {" and ".join(dict.fromkeys(parent for _, parent in parents))}."""'
        body += lines
    text = "\n".join(body)
    lines = [
        f'"""{title}. Written by tools/generate_coordinator_records.py; do not edit.{_tests(family)}"""',
        "",
        "from __future__ import annotations",
        "",
        f"from dataclasses import dataclass{', field' if 'field(' in text else ''}",
        "from typing import Final",
    ]
    if "UUID" in text:
        lines.append("from uuid import UUID")
    zero = "ZERO_UUID, " if "ZERO_UUID" in text else ""
    lines += ["", "from app.coordinator.record_type import RecordType", f"from app.wire.schema import {zero}Rows"]
    lines += ["", "", text.rstrip("\n"), "", "", "FIELDS: Final[Rows] = {"]
    for struct in structs.values():
        lines += write_rows(struct)
    lines += ["}", ""]
    if len(records) == 1:
        lines += [f"RECORDS: Final = ({records[0].strip()})", ""]
    else:
        lines += ["RECORDS: Final = (", *records, ")", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    for family in FAMILIES:
        path = SCHEMAS / f"{family}.py"
        text = write_module(family)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(f"{path} differs from Kafka's schemas. Generate it again.\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
