"""The checks and the records of each change of the cluster. Pure. Input: a draft of the next image. Output: records and a result.

Refusals are Kafka's: ``RequestRejected`` with Kafka's code for the same mistake. A plan only reads the draft. The controller
adds the records to the draft, so the next change of the same group is checked against all earlier ones.

Tests: ``tests/metadata/test_changes.py``, ``tests/metadata/test_long_changes.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from app.configs import BrokerConfig, Durability, TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.client_metrics import SUBSCRIPTION_NAME_MAX, SUBSCRIPTIONS_MAX, validate_client_metrics
from app.configs.definition import Definition
from app.configs.kinds import ConfigType
from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.configs.validation import validate_broker_configs, validate_topic_configs
from app.configs.values import format_value, invalid_value
from app.configs.without_effect import (
    BROKER_WITHOUT_EFFECT,
    broker_setting_without_effect,
    checked_text,
)
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from app.core.turns import STRIDE, Steps, Stepwise, slices
from app.core.units import (
    BrokerId,
    LeaderEpoch,
    LogSequence,
    PartitionIndex,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.metadata.changes.durability_changes import from_object, to_object
from app.metadata.changes.group_configs import GROUP_DEFINITIONS, validate_group_configs
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import GUARDED_TOPICS, PartitionImage, TopicImage
from app.metadata.image.records import (
    ALL_BROKERS,
    CLIENT_METRICS_LEVEL,
    LEVEL_FEATURE,
    OBJECT_LEVEL,
    REGISTRY_LEVEL,
    ProducerIdsRecord,
    broker_configs_change,
    client_metrics_change,
    group_configs_change,
    partition_change,
    producer_ids_change,
    topic_change,
    upgrade_needed,
)
from app.metadata.image.wal_ranges import PartitionDurability, WalId
from app.metadata.log.log_format import NOTHING_APPLIED, KeyValue
from app.metadata.replicas.log_leaders import may_lead, opened_by
from app.metadata.replicas.placement import place, staying
from app.metadata.replicas.replica_changes import clear_eligible
from app.wire.config_resources import ConfigOperation, ConfigResourceType

T_co = TypeVar("T_co", covariant=True)

KEY_SCHEMAS: Final = "confluent.key.schema.validation"
VALUE_SCHEMAS: Final = "confluent.value.schema.validation"

DEFAULT: Final = -1
"""As a number of partitions or a replication factor: the broker's default."""

LeaderEpochs: TypeAlias = Mapping[PartitionIndex, LeaderEpoch]
"""The leader epochs of partitions of one topic."""

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids given to a broker at once (KIP-730)."""

PRODUCER_ID_END: Final = 1 << 63

_OF_TOPICS_BY_SYNONYM: Final = {
    synonym.name: definition for definition in TOPIC_DEFINITIONS.values() for synonym in definition.synonyms
}
"""Topic settings by the broker-wide names of their defaults."""

_OF_BROKERS: Final[Mapping[str, Definition]] = {
    **{name: entry.definition for name, entry in BROKER_WITHOUT_EFFECT.items()},
    **_OF_TOPICS_BY_SYNONYM,
    **BROKER_DEFINITIONS,
}

DURABILITY: Final = "firn.durability"

MIN_IN_SYNC: Final = "min.insync.replicas"
"""Of a topic, and of all brokers as the default of topics."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

Assignments = Mapping[int, Sequence[int]]
"""Replicas by partition index, the preferred leader first."""


class LeadersHaveChanged(RequestRejected):
    """A leader that was asked about a partition leads it no more. Nothing was changed; ask the new leader."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class ConfigChange(NamedTuple):
    """One operation on one config."""

    name: str
    operation: ConfigOperation
    value: str | None = None


def never_told(wal: WalId) -> int:
    """No broker has told the next number of its log: any range may begin at 0."""
    return 0


@dataclass(frozen=True, slots=True)
class Planned(Generic[T_co]):
    """The records of a change, and the result for the caller when they are durable."""

    records: Sequence[KeyValue]
    answer: T_co


def no_change(draft: ImageDraft, around: PlanInputs) -> Planned[None]:
    """The plan of a caller that waits until the image contains the outcome of all earlier changes, also of those whose outcome was
    unknown."""
    del draft, around
    return Planned((), None)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a plan in addition to the draft."""

    config: BrokerConfig
    """Settings of the controller's broker, as it was started."""
    live_brokers: Sequence[BrokerId]
    """Brokers that can get new partitions, as far as they are active in the draft, too."""
    now_ms: TimestampMs
    placement_start: int
    """Says which of ``live_brokers`` leads a new topic's first partition. Any number is allowed."""
    sequence: LogSequence = NOTHING_APPLIED
    """Number of the entry that is planned."""
    wal_next: Callable[[WalId], int] = never_told
    """The next number of a write-ahead log, from its broker's last heartbeat; 0 if it has told none (J19)."""


# --- topics ---------------------------------------------------------------------------------------------------------


def check_topic_name(name: str) -> None:
    """Raises: RequestRejected INVALID_TOPIC_EXCEPTION."""
    if not name:
        why = "it is empty"
    elif name in (".", ".."):
        why = f"it is {name!r}"
    elif len(name) > TOPIC_NAME_CHARS_MAX:
        why = f"it has {len(name)} characters, more than {TOPIC_NAME_CHARS_MAX}"
    elif _NAME.fullmatch(name) is None:
        why = "it has characters other than ASCII letters and digits, '.', '_' and '-'"
    else:
        return
    raise RequestRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic name is not valid: {why}.")


@Stepwise
def create_topic(
    draft: ImageDraft,
    around: PlanInputs,
    *,
    topic_id: TopicId,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str | None],
    assignments: Assignments | None,
    fewer_replicas: bool = False,
) -> Steps[Planned[TopicImage]]:
    """Create a topic. ``fewer_replicas`` lowers the factor to the number of brokers, as the default does. Raises:
    RequestRejected."""
    check_topic_name(name)
    if draft.topic(name) is not None:
        raise RequestRejected(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = draft.colliding_name(name)
    if other is not None:
        raise RequestRejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with topic '{other}': '.' and '_' are the same in the names of metrics.",
        )
    broker = _effective_broker(draft, around.config)
    configs = _with_durability(broker, configs)
    in_log = says_object(configs)
    if in_log:
        require_object_level(draft)
    if assignments:
        if partitions != DEFAULT or replication_factor != DEFAULT:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                "Replicas are assigned by hand, so the partition count and the replication factor must be -1.",
            )
        _check_count(len(assignments))
        placed = yield from _placed_by_hand(draft, assignments, range(len(assignments)), in_log=in_log)
        replication_factor = len(placed[0])
    else:
        if partitions == DEFAULT:
            partitions = broker.num_partitions
        if replication_factor == DEFAULT:
            replication_factor, fewer_replicas = broker.default_replication_factor, True
        available = _available(draft, around) if in_log else _with_disks(draft, _available(draft, around), name)
        if fewer_replicas and not in_log:
            replication_factor = min(replication_factor, max(1, len(available)))
        _check_count(partitions)
        start, fenced = around.placement_start, _fenced(draft)
        if in_log:
            placed = yield from _placed_in_log(draft, around, partitions, replication_factor, start)
        else:
            chosen = yield from staying.steps(available, _partitions(draft), replication_factor)
            placed = yield from place.steps(draft.brokers, chosen, partitions, replication_factor, start, fenced=fenced)
    _check_schema_settings(draft, name, validate_topic_configs(configs, broker=broker))
    overrides = {key: value for key, value in configs.items() if value is not None}
    images = yield from _new_partitions(draft, around, placed, in_log=in_log)
    asked = replication_factor if in_log else -1
    topic = TopicImage(topic_id, name, images, overrides, around.now_ms, asked)
    records = yield from _partition_changes(topic_id, images)
    return Planned([*records, topic_change(topic_id, topic.record())], topic)


@Stepwise
def delete_topic(draft: ImageDraft, *, name: str | None, topic_id: UUID | None) -> Steps[Planned[TopicImage]]:
    """Delete a topic. Its name is free at once; its objects are deleted later. Raises: RequestRejected."""
    topic = _require_topic(draft, name=name, topic_id=topic_id)
    records = [topic_change(topic.topic_id, topic.record(deleting=True, configs={}))]
    for some in slices(topic.partitions, STRIDE):
        records += [partition_change(topic.topic_id, image.partition_index, None) for image in some]
        yield
    return Planned(records, topic)


def finish_topic_deletion(draft: ImageDraft, topic_id: UUID) -> Planned[None]:
    """Finish the deletion of a topic without objects. A repeated call does nothing."""
    return Planned([topic_change(topic_id, None)] if topic_id in draft.deleting else [], None)


@Stepwise
def create_partitions(
    draft: ImageDraft,
    around: PlanInputs,
    *,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
) -> Steps[Planned[TopicImage]]:
    """Add partitions up to ``count`` in all. ``assignments`` are the replicas of the new ones. Raises: RequestRejected."""
    topic = _require_topic(draft, name=name, topic_id=None)
    before = len(topic.partitions)
    if count <= before:
        relation = "already has" if count == before else f"has {before}, which is more than the requested"
        raise RequestRejected(ErrorCode.INVALID_PARTITIONS, f"Topic '{name}' {relation} {count} partitions.")
    _check_count(count)
    in_log = says_object(topic.configs)
    factor = _factor_of(topic)
    if assignments is not None:
        if len(assignments) != count - before:
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - before} new partitions need as many assignments, not {len(assignments)}.",
            )
        new = range(before, count)
        placed = yield from _placed_by_hand(draft, dict(zip(new, assignments, strict=True)), new, in_log=in_log)
        if any(len(replicas) != factor for replicas in placed):
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The topic's partitions have {factor} replicas each."
            )
    elif in_log:
        placed = yield from _placed_in_log(draft, around, count - before, factor, around.placement_start + before)
    else:
        start = around.placement_start + before
        available = _with_disks(draft, _available(draft, around), name)
        chosen = yield from staying.steps(available, _partitions(draft), factor)
        placed = yield from place.steps(draft.brokers, chosen, count - before, factor, start, fenced=_fenced(draft))
    added = yield from _new_partitions(draft, around, placed, before, in_log=in_log)
    records = yield from _partition_changes(topic.topic_id, added)
    records.append(topic_change(topic.topic_id, topic.record(partition_count=count)))
    answer = replace(topic, partitions=topic.partitions + added)
    return Planned(records, answer)


def says_object(configs: Mapping[str, str | None]) -> bool:
    """Whether settings ask for the write-ahead log in the object store."""
    return (configs.get(DURABILITY) or "").strip() == Durability.OBJECT


def require_object_level(draft: ImageDraft) -> None:
    """Raises: RequestRejected INVALID_CONFIG: programs of a lower level would ignore in which logs records are."""
    if draft.level < OBJECT_LEVEL:
        raise invalid_value(
            DURABILITY,
            Durability.OBJECT,
            f"It needs {LEVEL_FEATURE} {OBJECT_LEVEL}, and it is {draft.level}: run `firn cluster features --upgrade "
            f"{LEVEL_FEATURE}={OBJECT_LEVEL}`.",
        )


def _check_schema_settings(draft: ImageDraft, name: str, config: TopicConfig) -> None:
    """Raises: RequestRejected INVALID_CONFIG if a topic cannot have its schemas checked (SV10)."""
    if not config.checks_schemas:
        return
    asked = VALUE_SCHEMAS if config.confluent_value_schema_validation else KEY_SCHEMAS
    if name in GUARDED_TOPICS or name.startswith("__"):
        raise invalid_value(asked, "true", f"Topic '{name}' is of Firn's own. Set it on topics of producers.")
    if draft.level < REGISTRY_LEVEL:
        raise invalid_value(
            asked,
            "true",
            f"It needs {LEVEL_FEATURE} {REGISTRY_LEVEL}, and it is {draft.level}: run `firn cluster features --upgrade "
            f"{LEVEL_FEATURE}={REGISTRY_LEVEL}`.",
        )


def _with_durability(broker: BrokerConfig, configs: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """The settings of a new topic. If ``object`` is the brokers' default, and the topic can have it, the topic says so itself: its
    records stay where they are when the default changes."""
    if DURABILITY in configs or broker.topic_defaults.firn_durability is not Durability.OBJECT:
        return configs
    wanted = {**configs, DURABILITY: Durability.OBJECT.value}
    try:
        validate_topic_configs(wanted, broker=broker)
    except RequestRejected:
        return configs  # it is compacted or not tiered; or wrong, which is found anyway
    return wanted


def _placed_in_log(
    draft: ImageDraft, around: PlanInputs, partitions: int, factor: int, start: int
) -> Steps[list[tuple[BrokerId, ...]]]:
    """The leaders of new partitions in write-ahead logs. They are the only replicas, for any requested factor."""
    if factor <= 0:
        raise RequestRejected(ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor must be greater than 0.")
    available = [each for each in _available(draft, around) if may_lead(draft.brokers[each])]
    chosen = yield from staying.steps(available, _partitions(draft), 1)
    return (yield from place.steps(draft.brokers, chosen, partitions, 1, start))


def _in_log(draft: ImageDraft, around: PlanInputs, image: PartitionImage) -> PartitionImage:
    """A new partition with its open range (J19). Raises: RequestRejected INVALID_REPLICA_ASSIGNMENT."""
    broker = draft.brokers[image.leader]
    if not may_lead(broker):
        raise RequestRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The write-ahead log of broker {image.leader} has ended: wait until it has registered again.",
        )
    return image._replace(
        replicas=(image.leader,),
        isr=(image.leader,),
        durability=PartitionDurability.OBJECT,
        wal_ranges=opened_by(image, broker, image.leader_epoch, around.wal_next(broker.wal)),
    )


@Stepwise
def bump_leader_epochs(
    draft: ImageDraft, partitions: Iterable[TopicIdPartition], above: Mapping[TopicIdPartition, int]
) -> Steps[Planned[dict[TopicIdPartition, LeaderEpoch]]]:
    """Begin a new leadership of the same leader, with an epoch above the present one and above ``above``.

    Partitions that no longer exist, or whose records are in write-ahead logs, are left out of the result.
    """
    records: list[KeyValue] = []
    epochs: dict[TopicIdPartition, LeaderEpoch] = {}
    for seen, partition in enumerate(partitions):
        if not seen % STRIDE:
            yield
        topic = draft.topic_by_id(partition.topic_id)
        if topic is None or partition.partition >= len(topic.partitions) or partition in epochs:
            continue
        image = topic.partitions[partition.partition]
        if image.durability.by_log:
            continue  # its range names the leader epoch, and its epochs come from this log alone
        epoch = LeaderEpoch(max(image.leader_epoch, above.get(partition, -1)) + 1)
        image = image._replace(leader_epoch=epoch, partition_epoch=image.partition_epoch + 1)
        records.append(partition_change(partition.topic_id, partition.partition, image.record()))
        epochs[partition] = epoch
    return Planned(records, epochs)


def _require_topic(draft: ImageDraft, *, name: str | None, topic_id: UUID | None) -> TopicImage:
    if name is not None:
        topic = draft.topic(name)
        if topic is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        return topic
    assert topic_id is not None, "a topic is spoken of by name or by id"
    topic = draft.topic_by_id(topic_id)
    if topic is None:
        raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id}.")
    return topic


def _check_count(partitions: int) -> None:
    if not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has from 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {partitions}.",
        )


def _factor(partition: PartitionImage) -> int:
    """How many replicas a partition has, or will have when its reassignment is complete."""
    return len(partition.replicas) - len(partition.removing)


def changes_of(changed: Mapping[tuple[UUID, int], PartitionImage]) -> Steps[list[KeyValue]]:
    """The records of partitions that have changed, by topic id and index."""
    records: list[KeyValue] = []
    for (topic_id, index), image in changed.items():
        records.append(partition_change(topic_id, index, image.record()))
        if not len(records) % STRIDE:
            yield
    return records


def _partition_changes(topic_id: UUID, images: Sequence[PartitionImage]) -> Steps[list[KeyValue]]:
    """The records of partitions of one topic."""
    return changes_of({(topic_id, image.partition_index): image for image in images})


def _new_partitions(
    draft: ImageDraft,
    around: PlanInputs,
    placed: Sequence[tuple[BrokerId, ...]],
    first: int = 0,
    *,
    in_log: bool,
) -> Steps[tuple[PartitionImage, ...]]:
    """Partitions from index ``first`` on, in write-ahead logs if ``in_log``. In sync are their replicas that are active, and the
    first of these leads.

    Raises: RequestRejected INVALID_REPLICA_ASSIGNMENT if none of a partition's replicas is active.
    """
    inactive = frozenset([broker.broker_id for broker in draft.brokers.values() if not broker.active])
    images: list[PartitionImage] = []
    for index, replicas in enumerate(placed, first):
        isr = replicas
        if inactive and not inactive.isdisjoint(replicas):
            isr = tuple([each for each in replicas if each not in inactive])
            if not isr:
                raise RequestRejected(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"All brokers that the assignment of partition {index} names are fenced or about to stop.",
                )
        image = PartitionImage(PartitionIndex(index), isr[0], LeaderEpoch(0), 0, replicas, isr)
        images.append(_in_log(draft, around, image) if in_log else image)
        if not index % STRIDE:
            yield
    return tuple(images)


def _available(draft: ImageDraft, around: PlanInputs) -> Sequence[BrokerId]:
    """The brokers that get new partitions. Of several, an earlier change of the same entry may have fenced one."""
    if not draft.level:
        return around.live_brokers
    brokers = draft.brokers
    return [each for each in around.live_brokers if (broker := brokers.get(each)) is not None and broker.active]


def _partitions(draft: ImageDraft) -> Iterator[PartitionImage]:
    """All partitions, of several brokers."""
    return (each for topic in draft.topics for each in topic.partitions) if draft.level else iter(())


def _fenced(draft: ImageDraft) -> Sequence[BrokerId]:
    """Brokers of several that are registered and do not serve now, and may have replicas on their disks."""
    if not draft.level:
        return ()
    return [each.broker_id for each in draft.brokers.values() if not each.active and not each.ephemeral]


def _with_disks(draft: ImageDraft, available: Sequence[BrokerId], name: str) -> Sequence[BrokerId]:
    """The brokers that may have replicas of a topic whose records are on disks (J47). Raises: RequestRejected INVALID_CONFIG."""
    if draft.level < OBJECT_LEVEL:
        return available
    found = [each for each in available if not draft.brokers[each].ephemeral]
    if available and not found:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"All brokers are ephemeral, so they lead only topics with {DURABILITY}=object, and '{name}' has another durability: "
            f"create it with {DURABILITY}=object (it must be tiered), or start a broker without --ephemeral.",
        )
    return found


def _placed_by_hand(
    draft: ImageDraft, assignments: Assignments, indexes: range, *, in_log: bool
) -> Steps[list[tuple[BrokerId, ...]]]:
    if set(assignments) != set(indexes):
        raise RequestRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions that are assigned by hand are numbered without a gap."
        )
    placed: list[tuple[BrokerId, ...]] = []
    for index in indexes:
        replicas = tuple(BrokerId(broker) for broker in assignments[index])
        if not replicas or len(set(replicas)) != len(replicas):
            why = "names a broker twice" if replicas else "is empty"
            raise RequestRejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The assignment of partition {index} {why}.")
        unknown = [broker for broker in replicas if broker not in draft.brokers]
        if unknown:
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The assignment of partition {index} names broker {unknown[0]}, which is not registered.",
            )
        ephemeral = [] if in_log else [broker for broker in replicas if draft.brokers[broker].ephemeral]
        if ephemeral:
            raise RequestRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The assignment of partition {index} names broker {ephemeral[0]}, which is ephemeral: it leads only topics with "
                f"{DURABILITY}=object.",
            )
        placed.append(replicas)
        if not len(placed) % STRIDE:
            yield
    if len({len(replicas) for replicas in placed}) > 1:
        raise RequestRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions of a topic have the same number of replicas."
        )
    return placed


# --- configs --------------------------------------------------------------------------------------------------------


@Stepwise
def alter_configs(
    draft: ImageDraft,
    around: PlanInputs,
    *,
    resource_type: int,
    resource_name: str,
    changes: Sequence[ConfigChange],
    nothing_tiered: LeaderEpochs | None = None,
) -> Steps[Planned[Mapping[str, str]]]:
    """IncrementalAlterConfigs of one resource. The result is its overrides afterwards.

    ``nothing_tiered``: the leader epochs under which the leaders have said that nothing of the topic is tiered, and keep it so.
    Raises: RequestRejected. TierMustBeEmpty asks the caller to ensure an empty tier, and to call again with
    ``nothing_tiered``. LeadersHaveChanged says that the partitions have other leader epochs by now.
    """
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        counted = Counter(names)
        twice = next(name for name in names if counted[name] > 1)
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The config {twice} is changed twice in one request.")
    resource = _resource(draft, resource_type, resource_name)
    overrides = dict(resource.overrides)
    for change in changes:
        definition = resource.definitions.get(change.name)
        match change.operation:
            case ConfigOperation.DELETE:
                # Unknown names can be deleted, too, as in Kafka: an older version may have set them.
                overrides.pop(change.name, None)
            case ConfigOperation.SET:
                if change.value is None:
                    raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The config {change.name} is set to null.")
                overrides[change.name] = change.value
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                overrides[change.name] = _changed_list(draft, around, resource, definition, change)
    return (yield from _configured(draft, around, resource, overrides, nothing_tiered=nothing_tiered))


@Stepwise
def replace_configs(
    draft: ImageDraft,
    around: PlanInputs,
    *,
    resource_type: int,
    resource_name: str,
    configs: Mapping[str, str | None],
    nothing_tiered: LeaderEpochs | None = None,
) -> Steps[Planned[Mapping[str, str]]]:
    """AlterConfigs of one resource: configs without a value return to their defaults. Raises: as ``alter_configs``."""
    resource = _resource(draft, resource_type, resource_name)
    for name, value in configs.items():
        if value is None:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"The config {name} is set to null.")
    given = {key: value for key, value in configs.items() if value is not None}
    return (yield from _configured(draft, around, resource, given, nothing_tiered=nothing_tiered))


class _Resource(NamedTuple):
    topic: TopicImage | None
    broker_id: int
    overrides: Mapping[str, str]
    definitions: Mapping[str, Definition]
    group_id: str | None = None
    subscription: str | None = None
    """The name of a subscription to the metrics of clients."""


def _resource(draft: ImageDraft, resource_type: int, name: str) -> _Resource:
    if resource_type == ConfigResourceType.TOPIC:
        check_topic_name(name)
        topic = _require_topic(draft, name=name, topic_id=None)
        return _Resource(topic, ALL_BROKERS, topic.configs, TOPIC_DEFINITIONS)
    if resource_type == ConfigResourceType.GROUP:
        if not name:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The group id is empty.")
        return _Resource(None, ALL_BROKERS, draft.group_configs.get(name, {}), GROUP_DEFINITIONS, name)
    if resource_type == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty.")
        # Nothing is appended to their lists, as in Kafka.
        return _Resource(None, ALL_BROKERS, draft.client_metrics.get(name, {}), {}, subscription=name)
    if resource_type != ConfigResourceType.BROKER:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"Configs of resource type {resource_type} cannot be changed here."
        )
    if name == "":
        broker_id = ALL_BROKERS
    elif name.isascii() and name.isdecimal():
        broker_id = int(name)
    else:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"A broker is named by its node id, not {name!r}.")
    if broker_id != ALL_BROKERS and broker_id not in draft.brokers:
        raise RequestRejected(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id}.")
    return _Resource(None, broker_id, draft.broker_configs.get(broker_id, {}), _OF_BROKERS)


def _configured(
    draft: ImageDraft,
    around: PlanInputs,
    resource: _Resource,
    overrides: dict[str, str],
    *,
    nothing_tiered: LeaderEpochs | None,
) -> Steps[Planned[Mapping[str, str]]]:
    topic = resource.topic
    if resource.group_id is not None:
        validate_group_configs(overrides, _effective_broker(draft, around.config))
        records = [group_configs_change(resource.group_id, overrides)]
    elif resource.subscription is not None:
        _check_subscription(draft, resource.subscription, overrides)
        records = [client_metrics_change(resource.subscription, overrides)]
    elif topic is None:
        broker = around.config
        if resource.broker_id != ALL_BROKERS:
            broker = apply_broker_overrides(broker, draft.broker_configs.get(ALL_BROKERS, {}))
        validate_broker_configs(overrides, broker=broker, of_all=resource.broker_id == ALL_BROKERS)
        overrides = {name: _kept(name, text) for name, text in overrides.items()}
        yield from _check_tiered_topics_stay(draft, around, resource.broker_id, overrides)
        if says_object(overrides):
            require_object_level(draft)
        records = [broker_configs_change(resource.broker_id, overrides)]
        if resource.broker_id == ALL_BROKERS and _min_in_sync_changes(draft, resource.overrides, overrides):
            records += yield from clear_eligible.steps(
                [each for each in draft.topics if MIN_IN_SYNC not in each.configs]
            )
    else:
        if nothing_tiered is not None:
            _check_leaders(topic, nothing_tiered)
        broker = _effective_broker(draft, around.config)
        if says_object(topic.configs):
            # AlterConfigs replaces settings that its client knows nothing of. This one returns to the default as of a new topic.
            found = _with_durability(broker, overrides)
            overrides = {name: text for name, text in found.items() if text is not None}
        config = validate_topic_configs(
            overrides,
            broker=broker,
            existing=topic.configs,
            nothing_tiered=nothing_tiered is not None,
        )
        _check_schema_settings(draft, topic.name, config)
        changed = yield from _with_other_durability(draft, around, topic, overrides)
        records = [topic_change(topic.topic_id, changed.record(configs=overrides))]
        if changed is not topic:
            others = [
                after for before, after in zip(topic.partitions, changed.partitions, strict=True) if after is not before
            ]
            records += yield from _partition_changes(topic.topic_id, others)
        if _min_in_sync_changes(draft, resource.overrides, overrides):
            records += yield from clear_eligible.steps([changed])
    return Planned(records if overrides != resource.overrides else [], overrides)


def _check_subscription(draft: ImageDraft, name: str, overrides: Mapping[str, str]) -> None:
    """Raises: RequestRejected INVALID_REQUEST, INVALID_CONFIG, UNSUPPORTED_VERSION below level 6."""
    validate_client_metrics(overrides)
    if draft.level < CLIENT_METRICS_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            upgrade_needed("Client metrics need", CLIENT_METRICS_LEVEL, draft.level),
        )
    if len(name) > SUBSCRIPTION_NAME_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"The name of the subscription has {len(name)} characters, of {SUBSCRIPTION_NAME_MAX} at most.",
        )
    if overrides and name not in draft.client_metrics and len(draft.client_metrics) >= SUBSCRIPTIONS_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"There are {SUBSCRIPTIONS_MAX} client metrics subscriptions already. Delete one first.",
        )


def _check_leaders(topic: TopicImage, said: LeaderEpochs) -> None:
    """Raises: LeadersHaveChanged if a partition has another leader epoch than its leader has spoken under."""
    for one in topic.partitions:
        if said.get(one.partition_index) != one.leader_epoch:
            raise LeadersHaveChanged(
                f"Partition {topic.name}-{one.partition_index} has got another leader meanwhile. Try again."
            )


def _with_other_durability(
    draft: ImageDraft, around: PlanInputs, topic: TopicImage, overrides: Mapping[str, str]
) -> Steps[TopicImage]:
    """The topic after the first entry of a change to or from ``object`` (J40, J41); the same object if there is none.

    Raises: RequestRejected INVALID_CONFIG below level 3, INVALID_REQUEST while a partition is on the other way.
    """
    before, after = says_object(topic.configs), says_object(overrides)
    if before == after:
        return topic
    if after:
        require_object_level(draft)
        factor = _factor_of(topic)
        leaving: list[PartitionImage] = []
        for some in slices(topic.partitions, STRIDE):
            leaving += [to_object(one) for one in some]
            yield
        return replace(topic, partitions=tuple(leaving), replication_factor=factor)
    available = _with_disks(draft, _available(draft, around), topic.name)
    ephemeral = [
        each for each in topic.partitions if (led := draft.brokers.get(each.leader)) is not None and led.ephemeral
    ]
    if ephemeral:
        raise invalid_value(
            DURABILITY,
            overrides.get(DURABILITY, "the default"),
            f"Partition {ephemeral[0].partition_index} is led by broker {ephemeral[0].leader}, which is ephemeral: let a broker "
            "with a disk lead it first (`firn topic reassign`).",
        )
    count = len(topic.partitions)
    factor = min(_factor_of(topic), max(1, len(available)))
    placed: Sequence[tuple[BrokerId, ...]] = [()] * count
    if factor > 1:
        placed = yield from place.steps(draft.brokers, available, count, factor, around.placement_start)
    partitions: list[PartitionImage] = []
    for one, replicas in zip(topic.partitions, placed, strict=True):
        partitions.append(from_object(one, [each for each in replicas if each not in one.replicas[:1]][: factor - 1]))
        if not len(partitions) % STRIDE:
            yield
    return replace(topic, partitions=tuple(partitions))


def _factor_of(topic: TopicImage) -> int:
    """The factor of new replicas. For partitions in write-ahead logs, whose only replica is the leader, it is the requested one."""
    first = topic.partitions[0]
    return topic.replication_factor if first.durability.by_log and topic.replication_factor > 0 else _factor(first)


def _min_in_sync_changes(draft: ImageDraft, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """R9: whether eligible replicas are eligible no more. A cluster of one broker has none."""
    return draft.level > 0 and before.get(MIN_IN_SYNC) != after.get(MIN_IN_SYNC)


def _check_tiered_topics_stay(
    draft: ImageDraft, around: PlanInputs, broker_id: int, overrides: Mapping[str, str]
) -> Steps[None]:
    """Raises: RequestRejected INVALID_CONFIG if brokers' settings would turn tiered topics into compacted ones."""
    before = _effective_broker(draft, around.config)
    after = around.config
    for scope in (ALL_BROKERS, after.node_id):
        of_scope = overrides if scope == broker_id else draft.broker_configs.get(scope)
        if of_scope:
            after = apply_broker_overrides(after, of_scope)
    if before.topic_defaults.compacted or not after.topic_defaults.compacted:
        return
    tiered: list[str] = []
    for topic in draft.topics:
        if "cleanup.policy" not in topic.configs and resolve_topic_config(before, topic.configs).tiered:
            tiered.append(topic.name)
        yield
    if tiered:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"log.cleanup.policy cannot become compact while {len(tiered)} topics take it from the brokers and are tiered, "
            f"{tiered[0]} among them: compacted topics are not tiered. Set cleanup.policy=delete on these topics first, or "
            "cleanup.policy=compact on single topics of which nothing is in the object store.",
        )


def _kept(name: str, text: str) -> str:
    useless = broker_setting_without_effect(name)
    return text if useless is None else checked_text(useless, text)


def _changed_list(
    draft: ImageDraft,
    around: PlanInputs,
    resource: _Resource,
    definition: Definition | None,
    change: ConfigChange,
) -> str:
    if definition is None:
        raise RequestRejected(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}.")
    if definition.type is not ConfigType.LIST:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"The config {change.name} is not a list: {change.operation.name} does not apply to it.",
        )
    if change.value is None:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"The config {change.name} is to {change.operation.name} null."
        )
    text = resource.overrides.get(change.name)
    if text is None:
        broker = _effective_broker(draft, around.config)
        settings: BrokerConfig | TopicConfig = broker
        if resource.topic is not None:
            settings = resolve_topic_config(broker, resource.topic.configs)
        elif change.name in _OF_TOPICS_BY_SYNONYM:
            settings = broker.topic_defaults
        text = format_value(getattr(settings, definition.field) if definition.field else definition.default) or ""
    present = _items(text)
    given = _items(change.value)
    if change.operation is ConfigOperation.APPEND:
        return ",".join([*present, *(item for item in given if item not in present)])
    return ",".join(item for item in present if item not in given)


def _items(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def _effective_broker(draft: ImageDraft, config: BrokerConfig) -> BrokerConfig:
    for scope in (ALL_BROKERS, config.node_id):
        overrides = draft.broker_configs.get(scope)
        if overrides:
            config = apply_broker_overrides(config, overrides)
    return config


# --- producer ids ---------------------------------------------------------------------------------------------------


def allocate_producer_ids(draft: ImageDraft, broker_id: BrokerId) -> Planned[range]:
    """Allocate a block of unused producer ids (KIP-730). Raises: RequestRejected when all are used up."""
    start = draft.producer_id_next
    if start + PRODUCER_ID_BLOCK > PRODUCER_ID_END:
        raise RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are given away.")
    end = ProducerId(start + PRODUCER_ID_BLOCK)
    return Planned([producer_ids_change(ProducerIdsRecord(1, end, broker_id))], range(start, end))
