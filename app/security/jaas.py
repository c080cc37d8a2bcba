"""The text of ``sasl.jaas.config``, in Java's syntax: ``some.LoginModule required name="value" …;``. Pure.

Tests: ``tests/security/test_names.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
USER_PREFIX: Final = "user_"
"""Of the options that each name a user of PLAIN and have the password."""


class JaasEntry(NamedTuple):
    """The options of one login module."""

    module: str
    options: Mapping[str, str]

    @property
    def users(self) -> Mapping[str, str]:
        """Passwords by the names of users of PLAIN."""
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(USER_PREFIX)
        }

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, …)"  # it holds secrets


def parse_jaas(text: str) -> JaasEntry:
    """Raises: ValueError, a clause that names nothing of the text, because that is secret."""
    tokens: list[tuple[str, bool]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError("it has a quotation mark that is not closed")
        double, single, word, sign = found.groups()
        if sign is not None:
            tokens.append((sign, True))
        elif word is not None:
            tokens.append((word, False))
        else:
            tokens.append((_ESCAPE.sub(r"\1", double if double is not None else single), False))
        position = found.end()
    if not tokens or tokens[-1] != (";", True):
        raise ValueError("it must end with ;")
    if len(tokens) < 3 or any(sign for _, sign in tokens[:2]):
        raise ValueError("it must begin with the name of a login module and the word required")
    if tokens[1][0].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError("the word after the login module must be required")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise ValueError('its options must be of the form name="value"; there can be one login module')
    for start in range(0, len(rest), 3):
        (name, name_sign), equals, (value, value_sign) = rest[start : start + 3]
        if name_sign or value_sign or equals != ("=", True):
            raise ValueError('its options must be of the form name="value"; there can be one login module')
        options[name] = value
    return JaasEntry(tokens[0][0], options)
