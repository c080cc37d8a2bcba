"""Reads a JSON payload, and checks it by a JSON schema (drafts 4 to 2020-12). Tests: ``tests/registry/test_payloads.py``.

``pattern``, ``patternProperties`` and ``format`` are checked as ``patterns`` says. Where one of ``patternProperties`` cannot be
checked, properties that only it could name are not judged. Neither are ``unevaluatedProperties`` and ``unevaluatedItems``. Payload
and schema decide how many steps are needed, so steps are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from app.registry.parsing.json_schema import Document, resolve, type_of
from app.registry.parsing.limits import DEPTH_MAX, StepBudget
from app.registry.payloads.faults import PayloadInvalid, PayloadUnchecked
from app.registry.payloads.patterns import has_format, matches
from app.registry.refusals import SchemaInvalid

CHEAP_A_STEP: Final = 16
"""Members, items or characters that are passed over at the cost of one step."""
_BASE_CHARS_MAX: Final = 1_000
"""Of the ``$id`` to which references are relative."""


def read_payload(document: Document, data: bytes, start: int, steps: StepBudget) -> Any:
    """The JSON value that ``data`` holds from ``start`` on, if the schema accepts it. Raises: PayloadInvalid, TooComplex."""
    try:
        value = msgspec.json.decode(memoryview(data)[start:])
    except (msgspec.DecodeError, UnicodeError):
        raise PayloadInvalid("the payload is not JSON") from None
    except RecursionError:
        raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels") from None
    try:
        _Checking(document, steps).check(document.root, value, "", "", 0)
    except ReferenceBroken as error:
        raise PayloadInvalid(str(error)) from None
    except RecursionError:
        raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels") from None
    return value


class ReferenceBroken(ValueError):
    """A reference of the schema leads nowhere, or in a circle."""


class _Checking:
    """One payload. Each check raises PayloadInvalid or TooComplex."""

    def __init__(self, document: Document, steps: StepBudget) -> None:
        self._document = document
        self._steps = steps

    def check(self, schema: Any, value: Any, path: str, base: str, depth: int) -> None:
        """``path`` leads to the value. References are relative to ``base``. Checks in circles end at a depth."""
        self._steps.spend()
        if depth > DEPTH_MAX:
            raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels")
        if schema is False:
            raise _fault(path, "no value is allowed")
        if not isinstance(schema, dict):
            return
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str) and len(own) <= _BASE_CHARS_MAX:
            base = own if ":" in own or not base else base.rpartition("/")[0] + "/" + own
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._steps.spend(len(reference) // CHEAP_A_STEP)
            try:
                target = resolve(self._document, reference, base)
            except SchemaInvalid as error:
                raise ReferenceBroken(str(error)) from None
            self.check(target, value, path, base, depth + 1)
        self._check_type(schema, value, path)
        match value:
            case dict():
                self._check_object(schema, value, path, base, depth)
            case list():
                self._check_array(schema, value, path, base, depth)
            case str():
                _check_size(schema, len(value), "minLength", "maxLength", "characters", path)
                self._check_text(schema, value, path)
            case bool():
                pass
            case int() | float():
                _check_number(schema, value, path)
        self._check_combined(schema, value, path, base, depth)

    def _passes(self, schema: Any, value: Any, path: str, base: str, depth: int) -> bool:
        try:
            self.check(schema, value, path, base, depth + 1)
        except PayloadUnchecked:
            raise
        except PayloadInvalid:
            return False
        return True

    def _check_text(self, schema: Mapping[str, Any], value: str, path: str) -> None:
        pattern, form = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str) and matches(pattern, value, self._steps) is False:
            raise _fault(path, f"the text does not match the pattern {pattern[:100]!r}")
        if isinstance(form, str) and not has_format(form, value, self._steps):
            raise _fault(path, f"the text has not the format {form[:100]!r}")

    def _of_patterns(self, patterns: Mapping[str, Any], name: str) -> tuple[list[Any], bool]:
        """The schemas whose patterns match the name of a property, and whether all patterns could be checked."""
        found: list[Any] = []
        complete = True
        for pattern, schema in patterns.items():
            self._steps.spend()
            matching = matches(pattern, name, self._steps)
            if matching:
                found.append(schema)
            complete = complete and matching is not None
        return found, complete

    def _check_type(self, schema: Mapping[str, Any], value: Any, path: str) -> None:
        named = schema.get("type")
        if named is not None:
            names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
            self._steps.spend(len(names) // CHEAP_A_STEP)
            found = type_of(value)
            if found not in names and not (found == "integer" and "number" in names):
                shown = [one[:100] if isinstance(one, str) else "unknown" for one in names[:8]]
                raise _fault(path, f"the value is of type {found}, not {', '.join(shown)}")
        listed = schema.get("enum")
        if isinstance(listed, list) and not self._has(listed, value):
            raise _fault(path, "the value is none of the enum")
        if "const" in schema and not self._has([schema["const"]], value):
            raise _fault(path, "the value is not the constant of the schema")

    def _check_object(
        self, schema: Mapping[str, Any], value: Mapping[str, Any], path: str, base: str, depth: int
    ) -> None:
        _check_size(schema, len(value), "minProperties", "maxProperties", "properties", path)
        required = schema.get("required")
        for name in required if isinstance(required, list) else ():
            self._steps.spend()
            if not isinstance(name, str) or name not in value:
                raise _fault(path, f"the property {_shown(name)} is missing")
        properties = _object(schema, "properties")
        others = schema.get("additionalProperties")
        names = schema.get("propertyNames")
        patterns = _object(schema, "patternProperties")
        self._steps.spend(len(value) // CHEAP_A_STEP)
        for name, inner in value.items():
            here = f"{path}/{name[:100]}"
            named, complete = self._of_patterns(patterns, name) if patterns else ([], True)
            for one in named:
                self.check(one, inner, here, base, depth + 1)
            if name in properties:
                self.check(properties[name], inner, here, base, depth + 1)
            elif named or not complete or others is None:
                pass
            elif others is False:
                raise _fault(path, f"the property {name[:100]!r} is not allowed")
            else:
                self.check(others, inner, here, base, depth + 1)
            if names is not None:
                self.check(names, name, here, base, depth + 1)
        for member in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in _object(schema, member).items():
                self._steps.spend()
                if name not in value:
                    continue
                if not isinstance(needed, list):
                    self.check(needed, value, path, base, depth + 1)
                    continue
                for one in needed:
                    self._steps.spend()
                    if not isinstance(one, str) or one not in value:
                        raise _fault(path, f"the property {name[:100]!r} needs {_shown(one)}")

    def _check_array(self, schema: Mapping[str, Any], value: list[Any], path: str, base: str, depth: int) -> None:
        _check_size(schema, len(value), "minItems", "maxItems", "items", path)
        items, first = schema.get("items"), schema.get("prefixItems")
        others = items
        if isinstance(items, list):
            first, others = items, schema.get("additionalItems")
        begin = first if isinstance(first, list) else []
        self._steps.spend(len(value) // CHEAP_A_STEP)
        for place, inner in enumerate(value):
            one = begin[place] if place < len(begin) else others
            if one is not None:
                self.check(one, inner, f"{path}/{place}", base, depth + 1)
        if schema.get("uniqueItems") is True:
            seen = [self.frozen(one, 0) for one in value]
            if len(set(seen)) < len(seen):
                raise _fault(path, "an item comes twice")
        if "contains" in schema:
            count = sum(self._passes(schema["contains"], one, path, base, depth) for one in value)
            least, most = _number(schema, "minContains"), _number(schema, "maxContains")
            if count < (1 if least is None else least) or (most is not None and count > most):
                raise _fault(path, f"{count} items are as the schema says in contains")

    def _check_combined(self, schema: Mapping[str, Any], value: Any, path: str, base: str, depth: int) -> None:
        for one in _list(schema, "allOf"):
            self.check(one, value, path, base, depth + 1)
        passes: Callable[[Any], bool] = lambda one: self._passes(one, value, path, base, depth)  # noqa: E731
        any_of, one_of = _list(schema, "anyOf"), _list(schema, "oneOf")
        if any_of and not any(map(passes, any_of)):
            raise _fault(path, "the value is as none of anyOf says")
        if one_of and (count := sum(map(passes, one_of))) != 1:
            raise _fault(path, f"the value is as {count} of oneOf say")
        if "not" in schema and passes(schema["not"]):
            raise _fault(path, "the value is as the schema forbids")
        if "if" in schema:
            branch = schema.get("then" if passes(schema["if"]) else "else")
            if branch is not None:
                self.check(branch, value, path, base, depth + 1)

    def _has(self, values: Iterable[Any], value: Any) -> bool:
        wanted = self.frozen(value, 0)
        return any(self.frozen(one, 0) == wanted for one in values)

    def frozen(self, value: Any, depth: int) -> Any:
        """A form in which equal JSON values are equal, and 1 is not true."""
        self._steps.spend()
        if depth > DEPTH_MAX:
            raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels")
        if isinstance(value, dict):
            return frozenset([(key, self.frozen(inner, depth + 1)) for key, inner in value.items()])
        if isinstance(value, list):
            return tuple([self.frozen(one, depth + 1) for one in value])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = _text_of(value)
            self._steps.spend(len(text) // CHEAP_A_STEP)
            return "number", text
        return (isinstance(value, bool), value)


def _text_of(number: float) -> str:
    """The text that equal numbers have in common. A caller can choose numbers whose hashes are equal, and sets of them take
    quadratic time. Hashes of texts have a secret of the process."""
    return str(int(number)) if isinstance(number, int) or number.is_integer() else repr(number)


def _shown(name: Any) -> str:
    """A name as messages say it. A part of a schema that only a reference makes a schema may have any value in its place."""
    return repr(name[:100]) if isinstance(name, str) else f"that a value of type {type_of(name)} names"


def _fault(path: str, why: str) -> PayloadInvalid:
    return PayloadInvalid(f"at {path[-200:]}: {why}" if path else why)


def _check_size(schema: Mapping[str, Any], size: int, least: str, most: str, unit: str, path: str) -> None:
    low, high = _number(schema, least), _number(schema, most)
    if low is not None and size < low:
        raise _fault(path, f"the value has {size} {unit}, and {least} is {low}")
    if high is not None and size > high:
        raise _fault(path, f"the value has {size} {unit}, and {most} is {high}")


def _check_number(schema: Mapping[str, Any], value: float, path: str) -> None:
    low, high = _number(schema, "minimum"), _number(schema, "maximum")
    above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
    if schema.get("exclusiveMinimum") is True:  # draft 4
        above = low
    if schema.get("exclusiveMaximum") is True:
        below = high
    step = _number(schema, "multipleOf")
    if (low is not None and value < low) or (above is not None and value <= above):
        raise _fault(path, f"{value} is too small")
    if (high is not None and value > high) or (below is not None and value >= below):
        raise _fault(path, f"{value} is too great")
    if step and not _is_multiple(value, step):
        raise _fault(path, f"{value} is no multiple of {step}")


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        ratio = value / step
    except OverflowError:
        return True  # beyond numbers of 64 bits
    return abs(ratio - round(ratio)) < 1e-9 if abs(ratio) < 1e15 else True


def _number(schema: Mapping[str, Any], name: str) -> float | None:
    found = schema.get(name)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _object(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []
