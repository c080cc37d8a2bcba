"""Makes definitions from the fields that ``setting`` declares. Documentation, parsing, validation and DescribeConfigs use them.

Tests: ``tests/test_declaring.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum

from app.configs.declaring import DECLARED
from app.configs.definition import Definition
from app.configs.kinds import Synonym, Update, Value
from app.configs.values import documented


def definitions_of(settings: type, *, of_topics: bool = False) -> Iterator[Definition]:
    """The definitions of the fields that ``setting`` declares, in their order. All settings of topics can be altered."""
    for one in fields(settings):
        if DECLARED not in one.metadata:
            continue
        kind, documentation, synonyms, name, given = one.metadata[DECLARED]
        default: Value = one.default  # type: ignore[assignment]  # of any field that ``setting`` made
        name = name or one.name.replace("_", ".")
        more = dict(given)
        if isinstance(default, StrEnum):
            more.setdefault("choices", tuple(type(default)))
        if more.get("idle"):
            documentation = f"{documentation} Without effect: {more['idle']}."
        if of_topics:
            more["update"] = Update.CLUSTER_WIDE
            named = () if more.pop("of_topic_alone", False) else synonyms or (name,)
            more["synonyms"] = tuple(s if isinstance(s, Synonym) else Synonym(s) for s in named)
        yield Definition(
            name=name,
            type=kind,
            field=one.name,
            default=default,
            documentation=documented(documentation, default, more.get("kafka_default")),
            **more,
        )
