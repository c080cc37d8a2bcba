"""Features and their levels (KIP-584, KIP-1022). Pure.

``firn.version`` is the only one that can be changed, and it only rises: records of a higher level mean nothing to programs of a
lower one. The others belong to Kafka's protocol, and are always at the one level that is served here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from app.configs.broker import NEWEST_LEVEL
from app.core.errors import ConfigError, ErrorCode, RequestRejected
from app.core.turns import Steps, Stepwise
from app.core.units import BrokerId
from app.metadata.changes.terms import TermsOfTopics
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import (
    LEVEL_FEATURE,
    LEVEL_MAX,
    ClusterRecord,
    broker_change,
    cluster_change,
    feature_change,
    partition_change,
)
from app.metadata.log.log_format import KeyValue
from app.metadata.replicas.replica_changes import fenced

OF_PROTOCOL: Final[Mapping[str, int]] = MappingProxyType(
    {"group.version": 1, "share.version": 1, "transaction.version": 2}
)
"""Protocols of clients that are switched on, and at which level: consumer groups of KIP-848, share groups of KIP-932,
transactions of KIP-890."""


def new_store_level(asked: int) -> int:
    """The level of ``firn.version`` of a store that is empty. ``asked``: the setting ``firn.new.store.level``.

    Raises: ConfigError, if this program does not know that level.
    """
    if asked > LEVEL_MAX:
        raise ConfigError(
            f"firn.new.store.level is {asked}, and this program knows levels up to {LEVEL_MAX}: start a newer version."
        )
    return LEVEL_MAX if asked == NEWEST_LEVEL else asked


class UpgradeType(IntEnum):
    """In which direction a level may change, with Kafka's numbers."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3

    @classmethod
    def of(cls, number: int) -> UpgradeType:
        """The type of that number; UNKNOWN for any other number."""
        return cls(number) if number in cls.__members__.values() else cls.UNKNOWN


class FeatureAsked(NamedTuple):
    """The level that a feature is to have."""

    name: str
    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


@Stepwise
def update_features(
    draft: ImageDraft, around: PlanInputs, asked: Sequence[FeatureAsked], *, level_max: int = LEVEL_MAX
) -> Steps[Planned[None]]:
    """Change the levels of features: all of them, or none. ``level_max``: the highest level that this program understands.

    Raises: RequestRejected INVALID_REQUEST, INVALID_UPDATE_VERSION.
    """
    if len({one.name for one in asked}) != len(asked):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "The request names a feature twice.")
    for one in asked:
        _check(draft, one, level_max)
    level = next((one.level for one in asked if one.name == LEVEL_FEATURE), draft.level)
    if level == draft.level:
        return Planned([], None)
    records = [feature_change(LEVEL_FEATURE, level)]
    if not draft.level:
        # First of all the record that programs of level 0 refuse.
        records = [cluster_change(ClusterRecord(2, draft.cluster_id, draft.created_ms)), *records]
        records += yield from _one_of_several(draft, around, level_max)
    return Planned(records, None)


def _check(draft: ImageDraft, asked: FeatureAsked, level_max: int) -> None:
    """Raises: RequestRejected INVALID_UPDATE_VERSION."""
    fixed = OF_PROTOCOL.get(asked.name)
    present = draft.level if asked.name == LEVEL_FEATURE else fixed
    why = None
    if present is None:
        why = f"There is no such feature. Features are {LEVEL_FEATURE}, {', '.join(OF_PROTOCOL)}."
    elif asked.upgrade_type is UpgradeType.UNKNOWN:
        why = "The type of the change is not upgrade, safe downgrade or unsafe downgrade."
    elif fixed is not None and asked.level != fixed:
        why = f"It is always {fixed} here."
    elif asked.level < present:
        why = (
            f"It is {present}, and never goes down: programs of the lower level could not read the cluster's metadata."
        )
    elif asked.level > present and asked.upgrade_type is not UpgradeType.UPGRADE:
        why = f"It is {present}, so this is no downgrade."
    elif fixed is None and asked.level > present:
        why = _too_old(draft, asked.level, level_max)
    if why is not None:
        raise RequestRejected(
            ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {asked.level} for feature {asked.name}. {why}"
        )


def _too_old(draft: ImageDraft, level: int, level_max: int) -> str | None:
    """Why the brokers' programs do not allow a level."""
    if level > level_max:
        return f"The controller's program understands {level_max} at most. Install a newer version first."
    if not draft.level:
        return None  # the controller is the one broker
    old = [broker.broker_id for _, broker in sorted(draft.brokers.items()) if broker.level_max < level]
    return (
        f"The programs of brokers {old} are older. Install a newer version first, or unregister them." if old else None
    )


def _one_of_several(draft: ImageDraft, around: PlanInputs, level_max: int) -> Steps[list[KeyValue]]:
    """The records that make the one broker a member. Earlier brokers of the cluster, under other node ids, are fenced (M6)."""
    mine = draft.controller.broker_id
    others = frozenset(draft.brokers) - {mine}
    records = [
        broker_change(
            broker_id,
            replace(
                broker,
                fenced=broker_id != mine,
                changed_at=around.sequence,
                level_max=level_max if broker_id == mine else broker.level_max,
            ).record(),
        )
        for broker_id, broker in draft.brokers.items()
    ]
    if not others:
        return records
    terms_of = TermsOfTopics(draft, around)

    def lives(broker: BrokerId) -> bool:
        return broker == mine

    for topic in draft.topics:
        yield
        terms = terms_of.of(topic)._replace(active=lives, unfenced=lives, unclean=False)
        for image in topic.partitions:
            after = fenced(image, others, terms)
            if after is not image:
                records.append(partition_change(topic.topic_id, image.partition_index, after.record()))
    return records
