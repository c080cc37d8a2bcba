"""Whether a topic can be the source of a job at all."""

from __future__ import annotations

from collections.abc import Iterable

from app.configs import BrokerConfig
from app.configs.resolving import resolve_topic_config
from app.core.errors import ConfigError
from app.metadata.image.image import TopicImage
from app.metadata.manifest.manifest_state import ManifestState


def check_has_history(topic: TopicImage, states: Iterable[ManifestState]) -> None:
    """``states``: of the topic's partitions. Raises: ConfigError if nothing of it is in the store, and nothing will be.

    Only settings of the topic itself are seen: those of brokers are not in the bucket.
    """
    config = resolve_topic_config(BrokerConfig(), topic.configs)
    if config.tiered or any(state.finished for state in states):
        return
    setting = "cleanup.policy=compact" if config.compacted else "remote.storage.enable=false"
    raise ConfigError(
        f"Nothing of topic {topic.name!r} is in the store: its setting {setting} keeps it only on the brokers' disks."
    )
