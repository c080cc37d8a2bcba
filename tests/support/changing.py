"""Usual changes of the cluster, as handlers submit them to the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.metadata.changes import topic_changes
from app.metadata.changes.features import FeatureAsked
from app.metadata.changes.features import update_features as plan_features
from app.metadata.changes.scram_changes import ScramAnswer, ScramAsked
from app.metadata.changes.scram_changes import alter_scram_users as plan_scram_users
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.controller.controller import Controller
from app.metadata.image.image import TopicImage


async def delete_topic(controller: Controller, name: str | None = None, *, topic_id: UUID | None = None) -> TopicImage:
    """Delete a topic by name or id. Returns: the deleted topic. Raises: as ``Controller.submit``."""
    return await controller.submit(
        lambda draft, _: topic_changes.delete_topic.steps(draft, name=name, topic_id=topic_id)
    )


async def finish_topic_deletion(controller: Controller, topic_id: UUID) -> None:
    """Let the cluster forget a deleted topic. Raises: as ``Controller.submit``."""
    await controller.submit(lambda draft, _: topic_changes.finish_topic_deletion(draft, topic_id))


async def alter_configs(
    controller: Controller,
    resource_type: int,
    resource_name: str,
    operations: Sequence[ConfigChange],
    *,
    validate_only: bool = False,
) -> Mapping[str, str]:
    """Change settings of a topic, a broker or a group. Returns: the overrides afterwards. Raises: as ``Controller.submit``."""
    return await controller.submit(
        lambda draft, around: topic_changes.alter_configs.steps(
            draft, around, resource_type=resource_type, resource_name=resource_name, changes=operations
        ),
        validate_only=validate_only,
    )


async def replace_configs(
    controller: Controller, resource_type: int, resource_name: str, configs: Mapping[str, str | None]
) -> Mapping[str, str]:
    """Set exactly these overrides. Returns: the overrides afterwards. Raises: as ``Controller.submit``."""
    return await controller.submit(
        lambda draft, around: topic_changes.replace_configs.steps(
            draft, around, resource_type=resource_type, resource_name=resource_name, configs=configs
        )
    )


async def update_features(controller: Controller, asked: Sequence[FeatureAsked]) -> None:
    """Change the levels of features. Raises: as ``Controller.submit``."""
    await controller.submit(lambda draft, around: plan_features.steps(draft, around, asked))


async def alter_scram_users(
    controller: Controller, asked: Sequence[ScramAsked], secret: bytes
) -> Sequence[ScramAnswer]:
    """Add, change and remove SCRAM credentials. Raises: as ``Controller.submit``."""
    return await controller.submit(lambda draft, _: plan_scram_users(draft, asked, secret))
