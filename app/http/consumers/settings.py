"""The settings of an instance, as the body of ``POST /consumers/{group}`` has them: numbers and booleans may be text. Pure.

Tests: ``tests/http/consumers/test_settings.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from app.client.cluster import EARLIEST, LATEST
from app.core.limits import MIB
from app.http.consumers.names import NAME_CHARS_MAX, is_name
from app.http.errors import RestError

INVALID_SETTING: Final = 42204
WAIT_MS_DEFAULT: Final = 1_000
WAIT_MS_MAX: Final = 30_000
"""A request for records waits no longer, even if the client asks for more."""
MIN_BYTES_MAX: Final = 10 * MIB
_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_BOOLEANS: Final = {"true": True, "false": False}
_TEXT_OR_NUMBER: Final = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
_TEXT_OR_BOOLEAN: Final = {"anyOf": [{"type": "string", "enum": ["true", "false"]}, {"type": "boolean"}]}


class Format(Enum):
    """Forms of keys and values in JSON."""

    BINARY = "binary"
    JSON = "json"
    AVRO = "avro"
    JSON_SCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


class InstanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new consumer instance."""

    name: str | None = None
    """Unique in the group, for this caller. Without it an id is generated."""
    format: str | None = None
    """``binary`` (the default), ``json``, ``avro``, ``jsonschema`` or ``protobuf``."""
    reset: Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*_RESETS, None]})] = msgspec.field(
        default=None, name="auto.offset.reset"
    )
    """Where to begin without a committed offset: ``latest`` (the default), ``earliest`` or ``none``."""
    commit: Annotated[bool | str | None, msgspec.Meta(extra_json_schema=_TEXT_OR_BOOLEAN)] = msgspec.field(
        default=None, name="auto.commit.enable"
    )
    """Whether the next request for records commits the records of the one before. True by default."""
    commit_of_kafka: Annotated[bool | str | None, msgspec.Meta(extra_json_schema=_TEXT_OR_BOOLEAN)] = msgspec.field(
        default=None, name="enable.auto.commit"
    )
    """Another name of the same."""
    min_bytes: Annotated[int | str | None, msgspec.Meta(extra_json_schema=_TEXT_OR_NUMBER)] = msgspec.field(
        default=None, name="fetch.min.bytes"
    )
    """Bytes of keys and values that a response waits for; -1 (the default) for any record."""
    timeout_ms: Annotated[int | str | None, msgspec.Meta(extra_json_schema=_TEXT_OR_NUMBER)] = msgspec.field(
        default=None, name="consumer.request.timeout.ms"
    )
    """The longest wait of a request for records."""
    isolation: str | None = msgspec.field(default=None, name="isolation.level")
    """``read_uncommitted`` (the default) or ``read_committed``."""


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """How an instance reads and commits."""

    format: Format = Format.BINARY
    reset_to: int | None = LATEST
    """``EARLIEST``, ``LATEST``, or None for an error."""
    auto_commit: bool = True
    min_bytes: int = 0
    """0 for any record, also one without key and value."""
    wait_ms_max: int = WAIT_MS_DEFAULT
    read_committed: bool = False


def read_settings(body: InstanceBody) -> InstanceSettings:
    """Raises: RestError 422 with 42204, which names the field."""
    if body.name is not None and not is_name(body.name):
        raise _wrong_setting("name", body.name, f"up to {NAME_CHARS_MAX} letters, digits and characters of ._~:@+=,-")
    try:
        form = Format((body.format or "binary").lower())
    except ValueError:
        raise _wrong_setting("format", body.format, f"one of {', '.join(one.value for one in Format)}") from None
    reset = body.reset or "latest"
    if reset not in _RESETS:
        raise _wrong_setting("auto.offset.reset", reset, "earliest, latest or none")
    isolation = body.isolation or "read_uncommitted"
    if isolation not in ("read_committed", "read_uncommitted"):
        raise _wrong_setting("isolation.level", isolation, "read_committed or read_uncommitted")
    commit = body.commit if body.commit is not None else body.commit_of_kafka
    return InstanceSettings(
        form,
        _RESETS[reset],
        True if commit is None else _boolean("auto.commit.enable", commit),
        max(0, _number("fetch.min.bytes", body.min_bytes, -1, MIN_BYTES_MAX, -1)),
        min(WAIT_MS_MAX, _number("consumer.request.timeout.ms", body.timeout_ms, 0, 2**31 - 1, WAIT_MS_DEFAULT)),
        isolation == "read_committed",
    )


def _boolean(name: str, value: bool | str) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() not in _BOOLEANS:
        raise _wrong_setting(name, value, "true or false")
    return _BOOLEANS[value.lower()]


def _number(name: str, value: int | str | None, least: int, most: int, missing: int) -> int:
    if value is None:
        return missing
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 12):
            raise _wrong_setting(name, value, f"a number from {least} to {most}")
        value = int(value)
    if not least <= value <= most:
        raise _wrong_setting(name, value, f"a number from {least} to {most}")
    return value


def _wrong_setting(name: str, value: Any, wanted: str) -> RestError:
    return RestError(
        422,
        f"Invalid consumer configuration: {name} is {str(value)[:100]!r}. Send {wanted}.",
        error_code=INVALID_SETTING,
    )
