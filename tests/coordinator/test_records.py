"""Keys and values of coordinator records against the bytes that Apache Kafka's own classes wrote (``golden/make.py``)."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.coordinator.records import GROUP_RECORDS, NUMBER, SHARE_STATE_RECORDS, TRANSACTION_RECORDS, Family
from app.coordinator.schemas.classic_group import OffsetCommitKey, OffsetCommitValue
from app.core.errors import CorruptionError
from app.wire.schema import fields_of
from loadtests.kafka_peer import PeerMissing, kafka_libs

HERE = Path(__file__).parent
ROWS = json.loads((HERE / "golden" / "records.json").read_text())
FAMILIES = (GROUP_RECORDS, TRANSACTION_RECORDS, SHARE_STATE_RECORDS)
VALUES: dict[str, tuple[Family, Any]] = {
    kind.value.__name__: (family, kind) for family in FAMILIES for kind in family.types().values()
}
KEYS: dict[str, tuple[Family, Any]] = {
    kind.key.__name__: (family, kind) for family in FAMILIES for kind in family.types().values()
}


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def as_json(value: Any, version: int) -> Any:
    """A message as Kafka's JSON has it, with the fields of one version."""
    if is_dataclass(value):
        rows = sys.modules[type(value).__module__].FIELDS
        names = {item.name for item in fields_of(rows, type(value).__name__, version)}
        return {
            camel(item.name): as_json(getattr(value, item.name), version)
            for item in dataclass_fields(value)
            if item.name in names
        }
    if isinstance(value, list):
        return [as_json(item, version) for item in value]
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def decode(family: Family, kind: Any, name: str, raw: bytes) -> Any:
    return family.decode_key(raw) if name in KEYS else family.decode_value(kind.key(), raw)


def test_every_kind_of_record_is_there_in_every_version() -> None:
    seen = {(name, prefix) for name, prefix, _, _ in ROWS}
    expected = {(name, kind.number) for name, (_, kind) in KEYS.items()} | {
        (name, version)
        for name, (_, kind) in VALUES.items()
        for version in range(kind.version_first, kind.version_last + 1)
    }
    assert seen == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_bytes_are_kafkas(row: list[Any]) -> None:
    name, prefix, expected, raw = row[0], row[1], row[2], bytes.fromhex(row[3])
    if name in KEYS:
        family, kind = KEYS[name]
        found = family.decode_key(raw)
        assert type(found) is kind.key
        assert as_json(found, 0) == expected
        assert family.encode_key(found) == raw
    else:
        family, kind = VALUES[name]
        found = family.decode_value(kind.key(), raw)
        assert as_json(found, prefix) == expected
        assert family.encode_value(found, prefix) == raw


@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_record_that_is_cut_off_is_corrupt_and_nothing_else(row: list[Any]) -> None:
    name, raw = row[0], bytes.fromhex(row[3])
    family, kind = (KEYS if name in KEYS else VALUES)[name]
    for length in range(len(raw)):
        with pytest.raises(CorruptionError):
            decode(family, kind, name, raw[:length])


@given(st.sampled_from([row for row in ROWS if row[0] in VALUES]), st.randoms(use_true_random=False))
def test_a_damaged_value_is_corrupt_or_another_value_but_nothing_else(row: list[Any], random: Any) -> None:
    family, kind = VALUES[row[0]]
    raw = bytearray.fromhex(row[3])
    for _ in range(random.randrange(1, 4)):
        raw[random.randrange(len(raw))] = random.randrange(256)
    with contextlib.suppress(CorruptionError):
        assert type(family.decode_value(kind.key(), bytes(raw))) is kind.value


def test_a_key_of_an_unknown_kind_is_passed_over() -> None:
    assert GROUP_RECORDS.decode_key(NUMBER.pack(999) + b"whatever") is None


def test_a_value_of_an_unknown_version_is_not_taken_for_nothing() -> None:
    raw = GROUP_RECORDS.encode_value(OffsetCommitValue(5), 3)
    with pytest.raises(CorruptionError, match="version 9"):
        GROUP_RECORDS.decode_value(OffsetCommitKey(), NUMBER.pack(9) + raw[2:])


def test_the_schemas_are_those_in_kafkas_jars() -> None:
    try:
        kafka_libs()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    root = HERE.parent.parent
    checked = subprocess.run(
        [sys.executable, str(root / "tools" / "generate_coordinator_records.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert checked.returncode == 0, checked.stderr
