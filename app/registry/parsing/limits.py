"""Bounds of schemas: bytes, depth and steps of work. Tests: ``tests/registry/test_schemas.py``."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from app.registry.refusals import SchemaInvalid, TooComplex

SCHEMA_BYTES_MAX: Final = 400_000
"""Of one schema's text. Its record must fit in a batch of `_schemas` with quotes escaped."""
DEPTH_MAX: Final = 150
"""Levels of arrays and objects in a schema's JSON, or of types in its model."""
STEPS_MAX: Final = 100_000
"""Types that one request may look at. Each costs a few microseconds."""


class StepBudget:
    """Counts the work of one request."""

    __slots__ = ("left",)

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self.left = steps_max

    def spend(self, count: int = 1) -> None:
        """Raises: TooComplex."""
        self.left -= count
        if self.left < 0:
            raise TooComplex


def read_json(text: str) -> Any:
    """The value of a JSON text within the limits. Raises: SchemaInvalid."""
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SchemaInvalid(f"the text is not JSON: {error}") from None
    except RecursionError:
        raise SchemaInvalid(f"the schema has more than {DEPTH_MAX} levels") from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Check the levels of a JSON value. Raises: SchemaInvalid."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEPTH_MAX):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise SchemaInvalid(f"the schema has more than {DEPTH_MAX} levels")


def write_json(value: Any) -> str:
    """The shortest JSON text of a value."""
    return msgspec.json.encode(value).decode()
