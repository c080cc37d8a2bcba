"""Records of `_schemas` as registries write them."""

from __future__ import annotations

import json
from typing import Any


def schema_key(subject: str, version: int = 1, **more: Any) -> bytes:
    """The key of a version."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1} | more
    return json.dumps(key, separators=(",", ":")).encode()


def schema_value(
    subject: str, schema_id: int, text: str = '"string"', version: int = 1, *, deleted: bool = False, **more: Any
) -> bytes:
    """The value of a version."""
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": deleted} | more
    return json.dumps(value, separators=(",", ":")).encode()


def schema_record(subject: str, schema_id: int, text: str = '"string"', version: int = 1) -> tuple[bytes, bytes]:
    """The record of a version."""
    return schema_key(subject, version), schema_value(subject, schema_id, text, version)


def operator_record(keytype: str, subject: str | None, **value: Any) -> tuple[bytes, bytes]:
    """The record of a config or mode."""
    key = {"keytype": keytype, "subject": subject, "magic": 0}
    return json.dumps(key, separators=(",", ":")).encode(), json.dumps(value).encode()
