"""Whether the registry knows the schema of a record: the subject that a topic's strategy names has it (ADR 0044, SV3). Pure.

Tests: ``tests/schemas/test_knowing.py``.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, NamedTuple

from app.configs.topic import SubjectNameStrategy
from app.registry.parsing.schemas import SchemaType
from app.registry.payloads.prefix import SchemaRef, Side
from app.registry.record_json import StoredSchema
from app.registry.sources import record_name
from app.registry.subjects import DEFAULT_CONTEXT
from app.registry.view import Version, View

SUBJECTS_MAX: Final = 100
"""Subjects of one Protobuf file that are looked at."""
NAMES_CHARS_MAX: Final = 4_000_000
"""Of the texts whose names are kept."""
TEXT_CHARS: Final = 200
"""That a text counts beside its own characters."""
_MESSAGE: Final = re.compile(
    r"""(?:[^m"'/]++|m(?!essage\s)|/(?![/*])|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?"""
    r"""|"(?:[^"\\\n]++|\\.)*+"?|'(?:[^'\\\n]++|\\.)*+'?)++"""
    r"""|\bmessage\s++([A-Za-z_]\w*+)""",
    re.DOTALL,
)
"""All up to the word "message", or the name of a message. A literal that is not closed ends with its line, and a comment with the
text, so no character is looked at more than a few times."""


class Naming(NamedTuple):
    """The subject in which the schemas of one part of a topic's records are looked for."""

    topic: str
    side: Side
    strategy: SubjectNameStrategy


class RecordNames:
    """The names of the records that texts of schemas define, each of which is read once. A text without a name is kept too."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], frozenset[str]] = {}
        self._chars = 0

    def of(self, stored: StoredSchema) -> frozenset[str]:
        """The name of a schema's record, or the short names of all messages of a Protobuf file. The first look at a text of
        400,000 characters may take 25 ms."""
        key = stored.schema_type, stored.schema
        found = self._found.get(key)
        if found is None:
            if stored.schema_type == SchemaType.PROTOBUF:
                found = message_names(stored.schema)
            else:
                name = record_name(stored)
                found = frozenset() if name is None else frozenset([name])
            chars = len(stored.schema) + TEXT_CHARS
            if self._chars + chars > NAMES_CHARS_MAX:
                self._found.clear()
                self._chars = 0
            self._chars += chars
            self._found[key] = found
        return found


def message_names(text: str) -> frozenset[str]:
    """The short names of the messages that a Protobuf file defines. Comments and literals define none."""
    return frozenset(_MESSAGE.findall(text)) - {""}


def known(view: View, naming: Naming, ref: SchemaRef, names: RecordNames) -> Version | None:
    """The version of the subject that has a schema, if it is not deleted; None if the subject does not know the schema.

    ``names``: of the caller, which keeps them.
    """
    number = view.id_of_guid(DEFAULT_CONTEXT, ref) if isinstance(ref, str) else ref
    if number is None:
        return None
    if naming.strategy is SubjectNameStrategy.TOPIC:
        return view.with_id(f"{naming.topic}-{naming.side.value}", number)
    version = view.schema(DEFAULT_CONTEXT, number)
    if version is not None and version.stored.schema_type == SchemaType.PROTOBUF:
        return _of_message(view, naming, number, names.of(version.stored))
    name = None if version is None else next(iter(names.of(version.stored)), None)
    if name is None:
        return None
    of_topic = naming.strategy is SubjectNameStrategy.TOPIC_RECORD
    return view.with_id(f"{naming.topic}-{name}" if of_topic else name, number)


def _of_message(view: View, naming: Naming, number: int, names: frozenset[str]) -> Version | None:
    """As ``known``, for a Protobuf file, which may define several messages: the subject is named after one of them."""
    prefix = f"{naming.topic}-" if naming.strategy is SubjectNameStrategy.TOPIC_RECORD else ""
    for subject, _ in islice(view.uses(DEFAULT_CONTEXT, number), SUBJECTS_MAX):
        if subject.startswith(prefix) and subject.removeprefix(prefix).rpartition(".")[2] in names:
            version = view.with_id(subject, number)
            if version is not None:
                return version
    return None
