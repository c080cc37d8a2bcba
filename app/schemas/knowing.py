"""Whether the registry knows the schema of a record: the subject that a topic's strategy names has it (ADR 0044, SV3). Pure.

Tests: ``tests/schemas/test_knowing.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from app.configs.topic import SubjectNameStrategy
from app.registry.payloads.prefix import SchemaRef, Side
from app.registry.sources import record_name
from app.registry.subjects import DEFAULT_CONTEXT
from app.registry.view import Version, View


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
    name = None if version is None else record_name(version.stored)
    if name is None:
        return None
    of_topic = naming.strategy is SubjectNameStrategy.TOPIC_RECORD
    return view.with_id(f"{naming.topic}-{name}" if of_topic else name, number)
