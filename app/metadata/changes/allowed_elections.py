"""The topics whose partitions may get a leader because a setting allows more than before (ADR 0024, E3). Pure.

Tests: ``tests/metadata/test_allowed_elections.py``, ``tests/broker/test_allowed_elections.py``.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from app.core.turns import STRIDE, Steps
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.replicas.elections import NOBODY

_SETTING: Final = "unclean.leader.election.enable"


class AllowedElections:
    """Notes topics whose settings have changed, for one controller. A new controller notes all, since the one before may have
    ended in between."""

    def __init__(self) -> None:
        self._all = True
        self._topics: set[UUID] = set()

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Note the topics of a change that may allow unclean elections."""
        if delta.broker_configs:
            self._all = True
        for topic_id in () if self._all else delta.topics:
            topic = image.topic_by_id(topic_id)
            if topic is not None and topic.configs.get(_SETTING) == "true":
                self._topics.add(topic_id)

    @property
    def noted(self) -> bool:
        """Whether a topic is noted, so that ``due`` has work."""
        return self._all or bool(self._topics)

    def again(self) -> None:
        """The election may not have been made: look at all topics again."""
        self._all = True

    def due(self, image: ClusterImage) -> Steps[bool]:
        """Whether a partition of a noted topic has no leader, as work in steps. The notes are given up."""
        topics = image.topics_by_name.values() if self._all else map(image.topic_by_id, tuple(self._topics))
        self._all = False
        self._topics.clear()
        seen = 0
        for topic in topics:
            for partition in () if topic is None else topic.partitions:
                if partition.leader == NOBODY:
                    return True
                seen += 1
                if not seen % STRIDE:
                    yield
        return False
