"""Names of certificates as Java prints them, and the rules that make users' names of them. Pure.

``X500Principal.getName()`` prints RFC 2253: the most specific part first, nine keywords, every other attribute as its number and
the bytes of its value. Rules are those of ``ssl.principal.mapping.rules``.

A client chooses its name, as far as its certificate authority lets it. So names have a limit, and rules are matched by RE2, in
linear time. RE2 has no look-ahead, look-behind and references to groups within a pattern; rules that need them are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""By number. Other attributes have no keyword in RFC 2253."""
NAME_CHARS_MAX: Final = 4096
"""Of a printed name. Kafka has no limit; names of real certificates have some hundred characters."""
SUBJECT_BYTES_MAX: Final = 16_384
"""Of a name in DER: ``NAME_CHARS_MAX`` characters of four bytes each."""
NUMBER_BITS_MAX: Final = 128
"""Of one part of an attribute's number: a UUID can be one (ITU-T X.667)."""
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\$(\d)|\\(.)|\$\{?(\w+)\}?")


class Attribute(NamedTuple):
    """One attribute of a name."""

    number: str
    """Dotted."""
    value: str | None
    """None if it is no string."""
    encoded: bytes
    """The value's DER, with tag and length."""


def rfc2253(parts: Sequence[Sequence[Attribute]]) -> str:
    """A name, given as the certificate has it: relative names in their order, each with its attributes."""
    return ",".join("+".join(_printed(one) for one in part) for part in reversed(parts))


def _printed(one: Attribute) -> str:
    keyword = KEYWORDS.get(one.number)
    if keyword is None or one.value is None:
        return f"{keyword or one.number}=#{one.encoded.hex()}"
    text = "".join("\\00" if each == "\0" else f"\\{each}" if each in _ESCAPED else each for each in one.value)
    start = len(one.value) - len(one.value.lstrip(" "))
    end = len(one.value) - len(one.value.rstrip(" ")) if one.value.strip(" ") else 0
    text = "\\ " * start + text[start : len(text) - end] + "\\ " * end
    return f"{keyword}={text}"


_ESCAPED: Final = frozenset(',+"\\<>;#')


class _Rule(NamedTuple):
    pattern: Any
    """Compiled by RE2; None for DEFAULT."""
    replacement: str
    case: str


class PrincipalRules:
    """``ssl.principal.mapping.rules``."""

    def __init__(self, text: str) -> None:
        """Raises: ValueError, whose text says the fault."""
        self._rules: list[_Rule] = []
        position = 0
        text = text.strip() or "DEFAULT"
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise ValueError(f"{text[position:]!r} is not a rule; write RULE:pattern/replacement/, or DEFAULT")
            default, pattern, replacement, case = found.groups()
            if default:
                self._rules.append(_Rule(None, "", ""))
            else:
                self._rules.append(_Rule(_compiled(pattern), replacement, case))
            position = found.end()

    def apply(self, name: str) -> str | None:
        """The user's name, by the first rule that fits; None if none does, or if the name is longer than ``NAME_CHARS_MAX``."""
        if len(name) > NAME_CHARS_MAX:
            return None
        for rule in self._rules:
            if rule.pattern is None:
                return name
            found = rule.pattern.fullmatch(name)
            if found is None:
                continue
            made = _replaced(rule.replacement, found)
            return made.lower() if rule.case == "L" else made.upper() if rule.case == "U" else made
        return None


def _compiled(pattern: str) -> Any:
    """Raises: ValueError, whose text says the fault."""
    import re2  # most brokers have no rules, and the library takes long to load

    options = re2.Options()
    options.log_errors = False
    try:
        # Java's \uXXXX has another form in RE2; an escaped backslash before a u is no such character.
        return re2.compile(_UNICODE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern), options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"the pattern {pattern!r} cannot be read by RE2, which has no look-ahead, look-behind and back references: {why}"
        ) from None


_UNICODE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})|\\.", re.DOTALL)


def _replaced(replacement: str, found: Any) -> str:
    return _REFERENCE.sub(lambda reference: _referred(reference, found), replacement)


def _referred(reference: re.Match[str], found: Any) -> str:
    number, escaped, name = reference.groups()
    if escaped is not None:
        return escaped
    try:
        text: str | None = found[int(number)] if number is not None else found[name]
    except IndexError:
        return reference[0]  # as Kafka: a reference to a group that is not there is text
    return text or ""


# --- reading a certificate --------------------------------------------------------------------------------------------

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_VERSION: Final = 0xA0
_STRINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "latin-1",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Encodings by the tags of strings, as Java reads them."""
_BEFORE_SUBJECT: Final = 4
"""Fields of a certificate between its version and its subject: serial number, algorithm, issuer, validity."""


def subject_of(certificate: bytes) -> list[list[Attribute]]:
    """The subject of a certificate in DER that was verified already. Raises: ValueError if it cannot be read."""
    tag, content, _ = _element(memoryview(certificate))
    _expect(tag, _SEQUENCE)
    tag, content, _ = _element(content)
    _expect(tag, _SEQUENCE)
    tag, _, rest = _element(content)
    fields = rest if tag == _VERSION else content
    for _ in range(_BEFORE_SUBJECT):
        _, _, fields = _element(fields)
    tag, subject, _ = _element(fields)
    _expect(tag, _SEQUENCE)
    if len(subject) > SUBJECT_BYTES_MAX:
        raise ValueError("the certificate has a name that is too long")
    parts = []
    while subject:
        tag, part, subject = _element(subject)
        _expect(tag, _SET)
        attributes = []
        while part:
            tag, attribute, part = _element(part)
            _expect(tag, _SEQUENCE)
            tag, number, value = _element(attribute)
            _expect(tag, _OBJECT_ID)
            kind, text, left = _element(value)
            if left:
                raise ValueError("an attribute has two values")
            encoding = _STRINGS.get(kind)
            attributes.append(
                Attribute(
                    _dotted(bytes(number)), None if encoding is None else bytes(text).decode(encoding), bytes(value)
                )
            )
        parts.append(attributes)
    return parts


def _element(data: memoryview) -> tuple[int, memoryview, memoryview]:
    """Tag and content of the first element of some DER, and the bytes behind it. Raises: ValueError."""
    if len(data) < 2:
        raise ValueError("the certificate ends early")
    length, start = data[1], 2
    if length & 0x80:
        count = length & 0x7F
        start += count
        if not 1 <= count <= 3 or len(data) < start:
            raise ValueError("the certificate has a wrong length")
        length = int.from_bytes(data[2:start], "big")
    end = start + length
    if end > len(data):
        raise ValueError("the certificate ends early")
    return data[0], data[start:end], data[end:]


def _expect(tag: int, wanted: int) -> None:
    if tag != wanted:
        raise ValueError(f"the certificate has {tag:#x} where {wanted:#x} is due")


def _dotted(number: bytes) -> str:
    """Raises: ValueError."""
    parts, value = [], 0
    for byte in number:
        value = value << 7 | byte & 0x7F
        if value >> NUMBER_BITS_MAX:
            raise ValueError("the certificate has an attribute with a number that is too long")
        if not byte & 0x80:
            parts.append(value)
            value = 0
    if not parts:
        raise ValueError("the certificate has an attribute without a number")
    first = min(parts[0] // 40, 2)
    return ".".join(map(str, (first, parts[0] - 40 * first, *parts[1:])))
