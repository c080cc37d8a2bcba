"""The settings of a topic as clients are shown them. Tests: ``tests/handlers/test_admin_configs.py``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.configs.describing import DescribedConfig, describe_topic
from app.handlers.base.views import ImageView
from app.metadata.image.records import ALL_BROKERS

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def described_topic(context: ImageView, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Every setting of a topic with these overrides."""
    said = context.image.broker_configs
    return describe_topic(
        context.config,
        overrides,
        broker_overrides=said.get(context.config.node_id, _NOTHING),
        cluster_overrides=said.get(ALL_BROKERS, _NOTHING),
    )
