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
from app.registry.sources import record_name
from app.registry.subjects import DEFAULT_CONTEXT
from app.registry.view import Version, View

SUBJECTS_MAX: Final = 100
"""Subjects of one Protobuf file that are looked at."""


class Naming(NamedTuple):
    """The subject in which the schemas of one part of a topic's records are looked for."""

    topic: str
    side: Side
    strategy: SubjectNameStrategy


def known(view: View, naming: Naming, ref: SchemaRef) -> Version | None:
    """The version of the subject that has a schema, if it is not deleted; None if the subject does not know the schema."""
    number = view.id_of_guid(DEFAULT_CONTEXT, ref) if isinstance(ref, str) else ref
    if number is None:
        return None
    if naming.strategy is SubjectNameStrategy.TOPIC:
        return view.with_id(f"{naming.topic}-{naming.side.value}", number)
    version = view.schema(DEFAULT_CONTEXT, number)
    if version is not None and version.stored.schema_type == SchemaType.PROTOBUF:
        return _of_message(view, naming, number, version.stored.schema)
    name = None if version is None else record_name(version.stored)
    if name is None:
        return None
    of_topic = naming.strategy is SubjectNameStrategy.TOPIC_RECORD
    return view.with_id(f"{naming.topic}-{name}" if of_topic else name, number)


def _of_message(view: View, naming: Naming, number: int, text: str) -> Version | None:
    """As ``known``, for a Protobuf file, which may define several messages: the subject is named after one of them."""
    prefix = f"{naming.topic}-" if naming.strategy is SubjectNameStrategy.TOPIC_RECORD else ""
    for subject, _ in islice(view.uses(DEFAULT_CONTEXT, number), SUBJECTS_MAX):
        name = subject.removeprefix(prefix).rpartition(".")[2]
        if subject.startswith(prefix) and re.search(rf"\bmessage\s+{re.escape(name)}\b", text) is not None:
            version = view.with_id(subject, number)
            if version is not None:
                return version
    return None
