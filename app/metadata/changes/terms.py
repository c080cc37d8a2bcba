"""The terms on which partitions get leaders, as one draft has them (``replica_changes.Terms``). Pure.

Tests: ``tests/metadata/test_features.py``, ``tests/metadata/test_reassignments.py``.
"""

from __future__ import annotations

from typing import Final

from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.metadata.changes.topic_changes import MIN_IN_SYNC, PlanInputs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import TopicImage
from app.metadata.image.records import ALL_BROKERS
from app.metadata.replicas.replica_changes import Terms

_DECIDING: Final = (MIN_IN_SYNC, "unclean.leader.election.enable")


class TermsOfTopics:
    """Terms by topic. There are few different ones, so few configs are resolved."""

    def __init__(self, draft: ImageDraft, around: PlanInputs) -> None:
        self.active = frozenset([each.broker_id for each in draft.brokers.values() if each.active])
        self._unfenced = frozenset([each.broker_id for each in draft.brokers.values() if not each.fenced])
        # One broker's own settings must not decide for the cluster, so only those of all brokers count.
        self._config = apply_broker_overrides(around.config, draft.broker_configs.get(ALL_BROKERS, {}))
        self._terms: dict[tuple[str | None, ...], Terms] = {}

    def of(self, topic: TopicImage) -> Terms:
        """The terms of one topic."""
        key = tuple([topic.configs.get(name) for name in _DECIDING])
        terms = self._terms.get(key)
        if terms is None:
            deciding = {name: text for name, text in zip(_DECIDING, key, strict=True) if text is not None}
            config = resolve_topic_config(self._config, deciding)
            terms = self._terms[key] = Terms(
                self.active.__contains__,
                self._unfenced.__contains__,
                config.min_insync_replicas,
                config.unclean_leader_election_enable,
            )
        return terms
