"""Names of subjects and contexts: ``orders-value`` is in the default context, ``:.sales:orders-value`` in the context ``.sales``.

Tests: ``tests/registry/test_registering.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.registry.refusals import Code, RegistryRefusal

DEFAULT_CONTEXT: Final = "."
SUBJECT_CHARS_MAX: Final = 1_000


class Subject(NamedTuple):
    """A subject's name in its parts."""

    context: str
    """``.`` is the default context."""
    name: str
    """Empty for the context itself, to which settings may belong."""

    @property
    def qualified(self) -> str:
        """The form in which names are stored: without the default context."""
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


def read_subject(text: str, base: str = DEFAULT_CONTEXT) -> Subject:
    """A subject as a request names it. ``base`` is the context of names without one, as in the URL ``/contexts/.sales``."""
    if text.startswith(":.") and (end := text.find(":", 2)) > 0:
        return Subject(text[1:end], text[end + 1 :])
    return Subject(base, text)


def read_context(text: str) -> str:
    """A context as a request names it: ``sales``, ``.sales`` or ``:.sales:``. Raises: RegistryRefusal."""
    name = text.strip(":")
    name = name if name.startswith(".") else f".{name}"
    if ":" in name or not name.isprintable() or len(name) > SUBJECT_CHARS_MAX:
        raise RegistryRefusal(
            Code.INVALID_SUBJECT, f"The name {text[:100]!r} is no context. Send a name without colons."
        )
    return name


def check_subject(subject: Subject) -> Subject:
    """The subject, if schemas may be registered under it. Raises: RegistryRefusal."""
    text = subject.qualified
    if not subject.name or not text.isprintable() or len(text) > SUBJECT_CHARS_MAX or subject.name == "__GLOBAL":
        raise RegistryRefusal(
            Code.INVALID_SUBJECT,
            f"The name {text[:100]!r} is no subject. Send 1 to {SUBJECT_CHARS_MAX} printable characters.",
        )
    return subject
