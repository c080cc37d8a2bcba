"""Every setting that a topic can carry, and the broker-wide names of each: made from the fields of ``TopicConfig``.

Tests: ``tests/test_configs.py``, ``tests/test_declaring.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.configs.defining import definitions_of
from app.configs.definition import Definition
from app.configs.kinds import Synonym
from app.configs.topic import TopicConfig

TOPIC_DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {definition.name: definition for definition in definitions_of(TopicConfig, of_topics=True)}
)
"""Every setting that a topic can carry, by name."""

TOPIC_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, definition in TOPIC_DEFINITIONS.items() if definition.idle}
)
"""Settings of topics that DescribeConfigs shows although they have no effect here, with the reason."""

TOPIC_BY_SYNONYM: Final[Mapping[str, tuple[Definition, Synonym]]] = {
    synonym.name: (definition, synonym) for definition in TOPIC_DEFINITIONS.values() for synonym in definition.synonyms
}
"""Topic settings by their broker-wide names."""

BROKER_IDLE: Final[Mapping[str, str]] = MappingProxyType(
    {name: definition.idle for name, (definition, _) in TOPIC_BY_SYNONYM.items() if definition.idle}
)
"""The same by their broker-wide names."""
