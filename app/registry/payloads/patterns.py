"""``pattern``, ``patternProperties`` and ``format`` of JSON Schema, in time that is linear in the text. Pure.

Patterns are run by RE2. It has no look-ahead, look-behind and back references; a pattern that needs them is not checked, and
neither is one that RE2 compiles into a large program. As JSON Schema says, a pattern may match anywhere in a text.

Formats are checked by their form alone, in every draft. A format that is not in ``FORMATS`` is not checked.

Tests: ``tests/registry/test_patterns.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, time
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from app.core.limits import KIB
from app.registry.parsing.limits import StepBudget
from app.registry.payloads.faults import PayloadUnchecked

PATTERN_CHARS_MAX: Final = 1_000
PROGRAM_BYTES_MAX: Final = 64 * KIB
"""Memory of RE2 for one pattern. Compiling it takes up to a millisecond."""
PATTERNS_KEPT: Final = 256
COMPILE_STEPS: Final = 50
"""Steps of a pattern that may have to be compiled."""
WORK_A_STEP: Final = 256
"""Characters of a text, times instructions of a program, that cost one step."""
WORK_MAX: Final = 2_000_000
"""Of one match. RE2 needs up to 20 ns for each, and other threads wait."""
TEXT_CHARS_MAX: Final = 4_000
"""Of a text with a format."""
_UNICODE: Final = re.compile(r"\\\\|\\u([0-9A-Fa-f]{4})")


def matches(pattern: str, text: str, steps: StepBudget) -> bool | None:
    """Whether a pattern matches in a text; None if the pattern is not checked. Raises: PayloadUnchecked, TooComplex."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return None
    kept = _compiled.cache_info().misses
    program = _compiled(pattern)
    if _compiled.cache_info().misses != kept:
        steps.spend(COMPILE_STEPS)
    if program is None:
        return None
    work = program.programsize * (len(text) + 1)
    if work > WORK_MAX:
        raise PayloadUnchecked(f"a text of {len(text)} characters is too long for the pattern {pattern[:100]!r}")
    steps.spend(1 + work // WORK_A_STEP)
    return program.search(text) is not None


@lru_cache(PATTERNS_KEPT)
def _compiled(pattern: str) -> Any:
    """The program of a pattern; None if RE2 cannot read it."""
    import re2  # most brokers never see a pattern, and the library takes long to load

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    # \uXXXX of ECMAScript has another form in RE2; an escaped backslash before a u is no such character.
    text = _UNICODE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern)
    try:
        return re2.compile(text, options)
    except re2.error:
        return None


# --- formats ----------------------------------------------------------------------------------------------------------

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"(\d\d:\d\d:\d\d)(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*")
_REFERENCE: Final = re.compile(r"[^\s<>\"{}|\\^`]*")
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
"""Each of these looks at a character a bounded number of times: no part can take the place of the part before it."""


def has_format(name: str, text: str, steps: StepBudget) -> bool:
    """Whether a text has a format; True for a format that is not known. Raises: TooComplex."""
    check = FORMATS.get(name)
    if check is None:
        return True
    steps.spend(2 + min(len(text), TEXT_CHARS_MAX) // 16)
    return len(text) <= TEXT_CHARS_MAX and check(text)


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _reads(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if found is None:
        return False
    # A leap second is a time, and no time of Python's.
    return _reads(time.fromisoformat, found[1].removesuffix(":60") + ":00" if found[1].endswith(":60") else found[1])


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t", " ") and _is_date(text[:10]) and _is_time(text[11:])


def _is_host(text: str) -> bool:
    return len(text) <= 253 and all(_LABEL.fullmatch(one) is not None for one in text.removesuffix(".").split("."))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _as(form: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: form.fullmatch(text) is not None


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
    "email": _as(_EMAIL),
    "hostname": _is_host,
    "ipv4": lambda text: _reads(IPv4Address, text),
    "ipv6": lambda text: "%" not in text and _reads(IPv6Address, text),
    "uri": _as(_URI),
    "uri-reference": _as(_REFERENCE),
    "uuid": _as(_UUID),
    "json-pointer": _as(_POINTER),
}
"""By the names in JSON Schema."""
