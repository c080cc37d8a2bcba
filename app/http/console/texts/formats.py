"""Texts of pages: sizes, counts, times, and text that others wrote. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from app.core.limits import GIB, KIB, MIB
from app.core.turns import Steps, Stepwise

_TIB: Final = 1024 * GIB
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_YEAR_MS: Final = 365.25 * 86_400_000
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Characters that show nothing, or change the order of others."""
_NAMED: Final[Mapping[int, str]] = {code: f"⟨{code:04X}⟩" for code in range(0x1_0000) if _HIDDEN.match(chr(code))}
_NAMED_AT_ONCE: Final = 32 * KIB
"""Characters that are looked at within a step: about 3 ms if each is hidden."""


def size(count: float) -> str:
    """Bytes in units of 1,024."""
    for unit, name in ((_TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 100 * unit else 0}f} {name}"
    return f"{count:.0f} B"


def number(count: float) -> str:
    """A whole number in groups of three."""
    return f"{count:,.0f}"


def many(count: int, one: str, more: str = "") -> str:
    """A number with its noun."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def duration(ms: float) -> str:
    """Milliseconds in the largest unit that fits."""
    for unit, name in _UNITS_MS:
        if ms >= unit:
            shown = ms / unit
            return f"{shown:.0f} {name}" if shown >= 10 or shown == int(shown) else f"{shown:.1f} {name}"
    return f"{ms:.0f} ms"


def instant(ms: int) -> str:
    """A timestamp in milliseconds since 1970, in UTC. Empty for a record without one."""
    if ms < 0:
        return ""
    try:
        found = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"


def ago(ms: int, now_ms: int) -> str:
    """The distance of a timestamp from now."""
    if ms < 0:
        return ""
    left = now_ms - ms
    if abs(left) < 1000:
        return "now"
    if left >= 2 * _YEAR_MS:
        return f"{left / _YEAR_MS:.0f} years ago"
    return f"{duration(left)} ago" if left > 0 else f"in {duration(-left)}"


@Stepwise
def readable(text: str) -> Steps[str]:
    """Text of others, in which each hidden character is named, so that it cannot pretend to be another text."""
    if _HIDDEN.search(text) is None:
        return text
    pieces = []
    for begin in range(0, len(text), _NAMED_AT_ONCE):
        if begin:
            yield
        pieces.append(text[begin : begin + _NAMED_AT_ONCE].translate(_NAMED))
    return "".join(pieces)


def shell(form: str, *names: str) -> str:
    """A command to copy. Each ``{}`` of ``form`` stands for one of ``names``, which is quoted for a shell. Empty if a name has a
    character that shows nothing, or would be taken for an option: a reader could not see what such a command does."""
    if any(not name.isprintable() or name.startswith("-") for name in names):
        return ""
    return form.format(*map(shlex.quote, names))


def setting(name: str, value: str | None) -> str:
    """The value of a setting for people: with its unit if the name says one. Empty if the value says all."""
    if value is None or not value.removeprefix("-").isdecimal() or len(value) > 19:
        return ""
    count = int(value)
    if name.endswith(".ms"):
        return "without a limit" if count in (-1, 2**63 - 1) else duration(count) if count >= 1_000 else ""
    if name.endswith(".bytes"):
        return "without a limit" if count in (-1, 2**63 - 1) else size(count) if count >= KIB else ""
    return ""
