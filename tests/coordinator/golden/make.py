"""Write ``records.json``: keys and values of coordinator records, in every version, as Apache Kafka's own classes write them.

    python tests/coordinator/golden/make.py        needs a JDK, and Kafka's jars (make kafka-libs)

Each row is [name, number or version, fields as JSON, bytes in hexadecimal]. The fields are made up here: one row with everything
at its default, some with all fields filled.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT))

from app.coordinator.record_type import RecordType  # noqa: E402
from app.coordinator.records import GROUP_RECORDS, SHARE_STATE_RECORDS, TRANSACTION_RECORDS  # noqa: E402
from app.wire.schema import Field, Rows, fields_of  # noqa: E402

FILLED_ROWS = 3
PACKAGES = {
    GROUP_RECORDS: "org.apache.kafka.coordinator.group.generated",
    TRANSACTION_RECORDS: "org.apache.kafka.coordinator.transaction.generated",
    SHARE_STATE_RECORDS: "org.apache.kafka.coordinator.share.generated",
}
TEXTS = ("a", "group-1", "grüße", "\U0001f9ca", "x" * 200)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def value_of(item: Field, rows: Rows, version: int, rng: random.Random | None) -> Any:
    """What a field holds: made up, or its default without ``rng``."""
    if item.is_array:
        if rng is None:
            return None if item.default is None else []
        if item.is_nullable and rng.random() < 0.3:
            return None
        return [
            value_of(item._replace(is_array=False, is_nullable=False), rows, version, rng)
            for _ in range(rng.randrange(4))
        ]
    if item.kind in rows:
        if rng is None or (item.is_nullable and rng.random() < 0.3):
            return None if item.is_nullable else struct_of(item.kind, rows, version, rng)
        return struct_of(item.kind, rows, version, rng)
    if item.kind in BITS:
        return item.default if rng is None else rng.getrandbits(BITS[item.kind] - 1) - rng.choice((0, 1, 5))
    if item.kind == "string":
        if item.is_nullable and rng is not None and rng.random() < 0.3:
            return None
        return item.default if rng is None else rng.choice(TEXTS)
    raw = (
        (bytes(16) if item.kind == "uuid" else b"") if rng is None else rng.randbytes(16 if item.kind == "uuid" else 40)
    )
    if item.kind == "uuid":
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert item.kind == "bytes", item
    return base64.b64encode(raw).decode()


def struct_of(struct: str, rows: Rows, version: int, rng: random.Random | None) -> dict[str, Any]:
    return {camel(item.name): value_of(item, rows, version, rng) for item in fields_of(rows, struct, version)}


def main() -> None:
    rng = random.Random(5)
    asked: list[tuple[str, str, int, int, dict[str, Any]]] = []
    for family, package in PACKAGES.items():
        for kind in family.types().values():
            rows = sys.modules[kind.key.__module__].FIELDS
            for source in (None, *([rng] * FILLED_ROWS)):
                asked.append(
                    (package, kind.key.__name__, kind.number, 0, struct_of(kind.key.__name__, rows, 0, source))
                )
            asked += values(package, kind, rows, rng)
    lines = [
        f"{package}.{name} {prefix} {version} {json.dumps(fields)}" for package, name, prefix, version, fields in asked
    ]
    libs = f"{ROOT}/.cache/kafka/libs/*"
    with tempfile.TemporaryDirectory() as classes:
        subprocess.run(["javac", "-cp", libs, "-d", classes, str(HERE / "Records.java")], check=True)
        found = subprocess.run(
            ["java", "-Dfile.encoding=UTF-8", "-cp", f"{classes}:{libs}", "Records"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    assert len(found) == len(asked), (len(found), len(asked))
    golden = [[name, prefix, fields, raw] for (_, name, prefix, _, fields), raw in zip(asked, found, strict=True)]
    (HERE / "records.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in golden) + "\n]\n")


def values(
    package: str, kind: RecordType, rows: Rows, rng: random.Random
) -> list[tuple[str, str, int, int, dict[str, Any]]]:
    name = kind.value.__name__
    return [
        (package, name, version, version, struct_of(name, rows, version, source))
        for version in range(kind.version_first, kind.version_last + 1)
        for source in (None, *([rng] * FILLED_ROWS))
    ]


if __name__ == "__main__":
    main()
