"""Secrets taken out of texts that leave the machine. Pure."""

from __future__ import annotations

import re
from typing import Final

GONE: Final = "(redacted)"

_NAME: Final = (
    r"[\w.\-]{0,64}(?:passw(?:or)?d|passphrase|secret|token|credential|jaas|private[._\-]?key|access[._\-]?key|api[._\-]?key|keystore[._\-]key"
    r"|hmac|signature|authorization|cookie)[\w.\-]{0,64}"
)
"""A name of a setting, field, header or query parameter whose value is secret."""
_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S)
_JAAS: Final = re.compile(r"(?i)\b[\w.]+LoginModule\s+(?:required|requisite|sufficient|optional)\b[^;]*;?")
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+@")
_QUOTED: Final = re.compile(
    rf"""(?i)(?P<name>["']{_NAME}["']\s*[:=]\s*|\b{_NAME}\s*[:=]\s*)(?P<quote>["'])"""
    r"""(?:\\.|(?!(?P=quote)).)*(?P=quote)"""
)
_LIST: Final = re.compile(rf"""(?i)(?P<name>["']{_NAME}["']\s*:\s*)\[[^\]]*\]""")
_QUERY: Final = re.compile(rf"(?i)(?P<name>[?&]{_NAME}=)[^&\s\"']*")
_PLAIN: Final = re.compile(rf"(?im)(?P<name>\b{_NAME}[ \t]*[:=][ \t]*+)(?![\"'])[^\n]+")
_FLAG: Final = re.compile(rf"(?i)(?P<name>--{_NAME}[ =])\S+")
_BEARER: Final = re.compile(r"(?i)\b(?P<name>Bearer|Basic) [\w.~+/=\-]{8,}")
_AWS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")
_TOKEN: Final = re.compile(r"\beyJ[\w\-]{5,}\.[\w\-]{5,}\.[\w\-]*")
"""A JSON web token."""


def redacted(text: str) -> str:
    """The text with ``(redacted)`` in place of passwords, keys, tokens and logins.

    It goes by names (``…password…``, ``…secret…``), and by forms that only secrets have: private keys, JAAS logins, users in
    URLs, JSON web tokens, ids of AWS keys. A secret without a name in a line of a log stays.
    """
    text = _PEM.sub(GONE, text)
    text = _JAAS.sub(GONE, text)
    text = _USER_INFO.sub(f"{GONE}@", text)
    text = _BEARER.sub(rf"\g<name> {GONE}", text)
    text = _QUOTED.sub(rf"\g<name>\g<quote>{GONE}\g<quote>", text)
    text = _LIST.sub(rf'\g<name>["{GONE}"]', text)
    text = _QUERY.sub(rf"\g<name>{GONE}", text)
    text = _FLAG.sub(rf"\g<name>{GONE}", text)
    text = _PLAIN.sub(rf"\g<name>{GONE}", text)
    text = _AWS_KEY.sub(GONE, text)
    return _TOKEN.sub(GONE, text)
