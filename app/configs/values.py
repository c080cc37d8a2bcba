"""Values of settings as Kafka writes them, read and written. Tests: ``tests/test_configs.py``."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from app.configs.definition import Definition
from app.configs.kinds import ConfigType, Value
from app.configs.numbers import INT_MAX, LONG_MAX, SHORT_MAX
from app.core.errors import ErrorCode, RequestRejected

_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_NUMBER_RANGE: Final = {
    ConfigType.SHORT: (-SHORT_MAX - 1, SHORT_MAX),
    ConfigType.INT: (-INT_MAX - 1, INT_MAX),
    ConfigType.LONG: (-LONG_MAX - 1, LONG_MAX),
}


def format_value(value: Value) -> str | None:
    """A value as Kafka writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case frozenset():
            return ",".join(sorted(value))
        case tuple():
            return ",".join(value)
        case float():
            return str(value).replace("e+", "E")
        case _:
            return str(value)


def documented(documentation: str, default: Value, kafka_default: str | None) -> str:
    """The description of a setting; with both defaults where Firn's is not Kafka's."""
    if kafka_default is None:
        return documentation
    return f"{documentation} Firn's own default is {format_value(default)}; Kafka's is {kafka_default}."


def parse_value(definition: Definition, text: str, *, name: str | None = None) -> Value:
    """The value that ``text`` stands for; ``name`` is the synonym it was given under.

    Raises: RequestRejected INVALID_CONFIG in Kafka's words.
    """
    name = name or definition.name
    trimmed = text.strip()
    match definition.type:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise invalid_value(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            low, high = _NUMBER_RANGE[definition.type]
            if not re.fullmatch(r"[+-]?[0-9]{1,20}", trimmed) or not low <= int(trimmed) <= high:
                raise invalid_value(name, text, f"Not a number of type {definition.type.name}")
            return _in_range(definition, name, int(trimmed))
        case ConfigType.DOUBLE:
            if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", trimmed):
                raise invalid_value(name, text, "Not a number of type DOUBLE")
            return _in_range(definition, name, float(trimmed))
        case ConfigType.LIST:
            parts = [part.strip() for part in trimmed.split(",")] if trimmed else []
            for part in parts:
                _check_choice(definition, name, part)
            if definition.replicas and parts != ["*"] and not all(_REPLICA.fullmatch(part) for part in parts):
                raise invalid_value(
                    name,
                    text,
                    f"{name} must be the literal '*' or a list of replicas in the following format: "
                    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
                )
            if len(set(parts)) != len(parts):
                raise invalid_value(name, text, f"Configuration '{name}' values must not be duplicated.")
            if definition.ordered:
                if not parts:
                    raise invalid_value(name, text, f"Configuration '{name}' must not be empty.")
                return tuple(parts)
            return frozenset(parts)
        case _:
            trimmed = trimmed.lower() if definition.any_case else trimmed
            _check_choice(definition, name, trimmed)
            return type(definition.default)(trimmed) if isinstance(definition.default, StrEnum) else trimmed


def _in_range(definition: Definition, name: str, number: float) -> float:
    if definition.minimum is not None and number < definition.minimum:
        raise invalid_value(name, number, f"Value must be at least {definition.minimum}")
    if definition.maximum is not None and number > definition.maximum:
        raise invalid_value(name, number, f"Value must be no more than {definition.maximum}")
    return number


def _check_choice(definition: Definition, name: str, text: str) -> None:
    if definition.choices and text not in definition.choices:
        raise invalid_value(name, text, f"String must be one of: {', '.join(definition.choices)}")


def invalid_value(name: str, value: object, why: str) -> RequestRejected:
    return RequestRejected(
        ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {why.removesuffix('.')}."
    )
