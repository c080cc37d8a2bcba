"""``ImageDraft``, from which the next image is made, and ``ClusterState``, which makes an image of each entry. Pure.

The controller plans a whole group of changes on one draft, so that maps are copied once for a group and not for every change.

Tests: ``tests/metadata/test_image.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.errors import CorruptionError
from app.core.turns import Steps, slices, whole
from app.core.units import BrokerId, LogSequence, PartitionIndex, TimestampMs, TopicId
from app.metadata.image.copy_on_write import CopyOnWriteMap
from app.metadata.image.image import (
    BrokerImage,
    ClusterImage,
    ControllerImage,
    DeletingTopic,
    PartitionImage,
    TopicImage,
)
from app.metadata.image.records import (
    ACLS,
    BROKER_CONFIGS,
    BROKERS,
    CLIENT_METRICS,
    CLUSTERS,
    CONTROLLERS,
    COUNTERS,
    FEATURES,
    GROUP_CONFIGS,
    LEVEL_FEATURE,
    PARTITIONS,
    PRODUCER_IDS,
    QUOTAS,
    SCRAM_SECRETS,
    SCRAM_USERS,
    TOKENS,
    TOPICS,
    Kind,
    ObjectTopicRecord,
    TopicRecord,
    quota_entity,
    token_of,
)
from app.metadata.log.log_format import Entry, KeyValue, decode_key
from app.security.acls import Pattern, Rule
from app.security.scram import NO_SHAPES, ScramCredential, counted, imitated

TAKEN_AT_ONCE: Final = 100
"""Records that are added to an image in one step: about 0.5 ms."""
SETTLED_AT_ONCE: Final = 2_000
"""Partitions after which the topics that were assembled are a step: about 1 ms. A topic is assembled in one step."""


@dataclass(slots=True)
class _TopicInTheMaking:
    record: TopicRecord | None
    partitions: dict[int, PartitionImage]


class ImageDraft:
    """A mutable image: ``take`` records, look up the result, ``freeze`` it. Maps are copied on their first change.

    After ``take``, topics are as before until the steps of ``settling`` have ended.
    """

    __slots__ = (
        "_folded_names",
        "_imitated_shapes",
        "_making",
        "_own_rules",
        "_scram_shapes",
        "acl_count",
        "acls",
        "broker_configs",
        "brokers",
        "client_metrics",
        "cluster_id",
        "controller",
        "created_ms",
        "deleting",
        "features",
        "group_configs",
        "next_node_id",
        "producer_id_next",
        "quotas",
        "scram_secret",
        "scram_users",
        "tokens",
        "topics_by_id",
        "topics_by_name",
        "wal_store",
    )

    def __init__(self, base: ClusterImage) -> None:
        # Plans read these fields, and only ``take`` changes them. They have the names and meanings of ``ClusterImage``.
        self.cluster_id = base.cluster_id
        self.created_ms = base.created_ms
        self.wal_store = base.wal_store
        self.controller = base.controller
        self.topics_by_name = CopyOnWriteMap(base.topics_by_name)
        self.topics_by_id = CopyOnWriteMap(base.topics_by_id)
        self.deleting = CopyOnWriteMap(base.deleting)
        self.brokers = CopyOnWriteMap(base.brokers)
        self.broker_configs = CopyOnWriteMap(base.broker_configs)
        self.group_configs = CopyOnWriteMap(base.group_configs)
        self.client_metrics = CopyOnWriteMap(base.client_metrics)
        self.quotas = CopyOnWriteMap(base.quotas)
        self.producer_id_next = base.producer_id_next
        self.features = CopyOnWriteMap(base.features)
        self.next_node_id = base.next_node_id
        self.acls = CopyOnWriteMap(base.acls)
        self.acl_count = base.acl_count
        self.scram_users = CopyOnWriteMap(base.scram_users)
        self.scram_secret = base.scram_secret
        self.tokens = CopyOnWriteMap(base.tokens)
        self._own_rules: dict[Pattern, dict[str, tuple[Rule, ...]]] = {}
        """The mappings in ``acls`` that this draft has made, and may change."""
        self._scram_shapes = CopyOnWriteMap(base.scram_shapes)
        self._imitated_shapes = base.imitated_shapes
        self._making: dict[UUID, _TopicInTheMaking] = {}
        self._folded_names: dict[str, str] | None = None

    @property
    def level(self) -> int:
        """As ``ClusterImage.level``."""
        return self.features.get(LEVEL_FEATURE, 0)

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    @property
    def topics(self) -> Collection[TopicImage]:
        """Every topic of this draft."""
        return self.topics_by_name.values()

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def colliding_name(self, name: str) -> str | None:
        """A topic whose name differs from ``name`` only in ``.`` and ``_``: metrics could not distinguish them."""
        if self._folded_names is None:
            self._folded_names = {other.replace(".", "_"): other for other in self.topics_by_name}
        found = self._folded_names.get(name.replace(".", "_"))
        return found if found != name else None

    # Making it.

    def apply(self, records: Sequence[KeyValue]) -> None:
        """Add the records of one change, and assemble the topics. Raises: CorruptionError."""
        self.take(records)
        if self._making:
            whole(self.settling())

    def applying(self, records: Sequence[KeyValue]) -> Steps[None]:
        """As ``apply``, in steps. The draft is whole again after the last one."""
        for some in slices(records, TAKEN_AT_ONCE):
            self.take(some)
            yield
        yield from self.settling()

    def take(self, records: Sequence[KeyValue]) -> None:
        """Add records. Partitions and their topics may come in any order. Raises: CorruptionError."""
        for key, value in records:
            parts = decode_key(key)
            try:
                self._take(parts, value)
            except (IndexError, TypeError, ValueError):
                raise CorruptionError(f"The record key {parts} of the cluster log is not one of its kind.") from None

    def settling(self) -> Steps[None]:
        """Assemble the topics whose records were added, in steps. Raises: CorruptionError."""
        partitions = 0
        for topic_id, making in self._making.items():
            self._settle_topic(topic_id, making)
            partitions += 1 + len(making.partitions)
            if partitions >= SETTLED_AT_ONCE:
                partitions = 0
                yield
        self._making.clear()

    def freeze(self, sequence: LogSequence) -> ClusterImage:
        """The image at entry ``sequence``. It never changes, even if the draft does."""
        assert not self._making, "the topics are not assembled"
        self._own_rules.clear()
        if self._scram_shapes.changed:
            self._imitated_shapes = {kind: imitated(shapes) for kind, shapes in self._scram_shapes.items()}
        return ClusterImage(
            sequence=sequence,
            cluster_id=self.cluster_id,
            created_ms=self.created_ms,
            wal_store=self.wal_store,
            controller=self.controller,
            topics_by_name=self.topics_by_name.freeze(),
            topics_by_id=self.topics_by_id.freeze(),
            deleting=self.deleting.freeze(),
            brokers=self.brokers.freeze(),
            broker_configs=self.broker_configs.freeze(),
            group_configs=self.group_configs.freeze(),
            client_metrics=self.client_metrics.freeze(),
            quotas=self.quotas.freeze(),
            producer_id_next=self.producer_id_next,
            features=self.features.freeze(),
            next_node_id=self.next_node_id,
            acls=self.acls.freeze(),
            acl_count=self.acl_count,
            scram_users=self.scram_users.freeze(),
            scram_shapes=self._scram_shapes.freeze(),
            imitated_shapes=self._imitated_shapes,
            scram_secret=self.scram_secret,
            tokens=self.tokens.freeze(),
        )

    def _take(self, parts: list[object], value: bytes | None) -> None:
        match parts[0]:
            case Kind.PARTITION:
                self._take_partition(_uuid(parts[1]), _number(parts[2]), value)
            case Kind.TOPIC:
                making = self._topic_in_the_making(_uuid(parts[1]))
                making.record = None if value is None else TOPICS.decode(value)
            case Kind.BROKER:
                self._take_broker(_number(parts[1]), value)
            case Kind.BROKER_CONFIGS:
                configs = None if value is None else BROKER_CONFIGS.decode(value).configs
                self.broker_configs.put(_number(parts[1]), configs)
            case Kind.GROUP_CONFIGS:
                configs = None if value is None else GROUP_CONFIGS.decode(value).configs
                self.group_configs.put(_text(parts[1]), configs)
            case Kind.CLIENT_METRICS:
                configs = None if value is None else CLIENT_METRICS.decode(value).configs
                self.client_metrics.put(_text(parts[1]), configs)
            case Kind.SCRAM_USER if len(parts) == 1:
                if value is None:
                    raise CorruptionError("The secret of SCRAM users is gone.")
                self.scram_secret = SCRAM_SECRETS.decode(value).secret
            case Kind.SCRAM_USER:
                self._take_scram_user(_text(parts[1]), _number(parts[2]), value)
            case Kind.DELEGATION_TOKEN:
                self.tokens.put(_text(parts[1]), None if value is None else token_of(TOKENS.decode(value)))
            case Kind.QUOTA:
                limits = None if value is None else QUOTAS.decode(value).limits
                self.quotas.put(quota_entity([_text(part) for part in parts[1:]]), limits)
            case Kind.FEATURE:
                self.features.put(_text(parts[1]), None if value is None else FEATURES.decode(value).level)
            case Kind.ACCESS_CONTROL:
                self._take_acl(parts, value)
            case Kind.COUNTERS:
                if value is None:
                    raise CorruptionError("The record of counters is gone.")
                self.next_node_id = COUNTERS.decode(value).next_node_id
            case Kind.CLUSTER:
                if value is None:
                    raise CorruptionError("The cluster's record is gone.")
                cluster = CLUSTERS.decode(value)
                self.cluster_id, self.created_ms = cluster.cluster_id, cluster.created_ms
                self.wal_store = cluster.wal_store
            case Kind.CONTROLLER:
                if value is None:
                    raise CorruptionError("The controller's record is gone.")
                controller = CONTROLLERS.decode(value)
                self.controller = ControllerImage(controller.epoch, controller.broker_id, controller.incarnation)
            case Kind.PRODUCER_IDS:
                if value is None:
                    raise CorruptionError("The record of producer ids is gone.")
                block = PRODUCER_IDS.decode(value)
                if block.next_producer_id < self.producer_id_next:
                    raise CorruptionError(
                        f"Producer ids would go back from {self.producer_id_next} to {block.next_producer_id}."
                    )
                self.producer_id_next = block.next_producer_id
            case _:
                # Of a newer version, or reserved: kept by the log, meaningless here.
                return

    def _take_partition(self, topic_id: UUID, index: int, value: bytes | None) -> None:
        making = self._topic_in_the_making(topic_id)
        if value is None:
            making.partitions.pop(index, None)
            return
        record = PARTITIONS.decode(value)
        making.partitions[index] = PartitionImage(
            PartitionIndex(index),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.replicas,
            record.isr,
            record.eligible,
            record.last_known_eligible,
            record.adding,
            record.removing,
            record.recovering,
            record.unclean_epoch,
            record.durability,
            record.wal_ranges,
        )

    def _take_acl(self, parts: list[object], value: bytes | None) -> None:
        kind, pattern_type, name, principal, host, operation, permission = parts[1:]
        pattern = Pattern(_number(kind), _number(pattern_type), _text(name))
        rule = Rule(_text(principal), _text(host), _number(operation), _number(permission))
        if value is not None:
            ACLS.decode(value)
        rules = self.acls.get(pattern, {})
        before = rules.get(rule.principal, ())
        if (rule in before) == (value is not None):
            return
        own = self._own_rules.get(pattern)
        if own is None:
            own = self._own_rules[pattern] = dict(rules)
            self.acls.put(pattern, own)
        if value is not None:
            own[rule.principal] = (*before, rule)
            self.acl_count += 1
            return
        self.acl_count -= 1
        own[rule.principal] = tuple([one for one in before if one != rule])
        if len(before) == 1:
            del own[rule.principal]
            if not own:
                self.acls.put(pattern, None)
                del self._own_rules[pattern]

    def _take_scram_user(self, user: str, mechanism: int, value: bytes | None) -> None:
        of_user = dict(self.scram_users.get(user, {}))
        before = of_user.pop(mechanism, None)
        if value is not None:
            record = SCRAM_USERS.decode(value)
            of_user[mechanism] = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        shapes = counted(self._scram_shapes.get(mechanism, NO_SHAPES), before, of_user.get(mechanism))
        self._scram_shapes.put(mechanism, shapes or None)
        self.scram_users.put(user, of_user or None)

    def _take_broker(self, broker_id: int, value: bytes | None) -> None:
        if value is None:
            self.brokers.put(broker_id, None)
            return
        record = BROKERS.decode(value)
        broker = BrokerImage(
            BrokerId(broker_id),
            record.directory_id,
            record.incarnation,
            record.broker_epoch,
            record.endpoints,
            record.rack,
            record.registered_ms,
            record.instance_id,
            record.fenced,
            record.stopping,
            record.changed_at,
            record.boot_id,
            record.level_max,
            record.wal_end,
            record.ephemeral,
        )
        self.brokers.put(broker_id, broker)

    def _topic_in_the_making(self, topic_id: UUID) -> _TopicInTheMaking:
        making = self._making.get(topic_id)
        if making is None:
            topic = self.topics_by_id.get(topic_id)
            deleting = self.deleting.get(topic_id)
            if topic is not None:
                making = _TopicInTheMaking(topic.record(), {p.partition_index: p for p in topic.partitions})
            elif deleting is not None:
                record = TopicRecord(1, deleting.name, deleting.partition_count, {}, TimestampMs(-1), True)
                making = _TopicInTheMaking(record, {})
            else:
                making = _TopicInTheMaking(None, {})
            self._making[topic_id] = making
        return making

    def _settle_topic(self, topic_id: UUID, making: _TopicInTheMaking) -> None:
        record = making.record
        before = self.topics_by_id.get(topic_id)
        if record is None or record.deleting:
            if record is None and making.partitions:
                raise CorruptionError(f"There are partitions of topic {topic_id}, but no such topic.")
            if before is not None:
                self.topics_by_id.put(topic_id, None)
                self.topics_by_name.put(before.name, None)
                if self._folded_names is not None:
                    self._folded_names.pop(before.name.replace(".", "_"), None)
            gone = None if record is None else DeletingTopic(TopicId(topic_id), record.name, record.partition_count)
            self.deleting.put(topic_id, gone)
            return
        count = record.partition_count
        try:
            partitions = tuple([making.partitions[index] for index in range(count)])
        except KeyError as missing:
            raise CorruptionError(f"Topic {record.name!r} has no record of partition {missing}.") from None
        if len(making.partitions) != count:
            raise CorruptionError(f"Topic {record.name!r} has {len(making.partitions)} partitions, not {count}.")
        other = self.topics_by_name.get(record.name)
        if other is not None and other.topic_id != topic_id:
            raise CorruptionError(f"Topics {other.topic_id} and {topic_id} have the same name {record.name!r}.")
        factor = record.replication_factor if isinstance(record, ObjectTopicRecord) else -1
        topic = TopicImage(TopicId(topic_id), record.name, partitions, record.configs, record.created_ms, factor)
        self.topics_by_id.put(topic_id, topic)
        self.topics_by_name.put(record.name, topic)
        if self._folded_names is not None:
            self._folded_names[record.name.replace(".", "_")] = record.name


def _uuid(part: object) -> UUID:
    if type(part) is not bytes:
        raise TypeError
    return UUID(bytes=part)


def _text(part: object) -> str:
    if type(part) is not str:
        raise TypeError
    return part


def _number(part: object) -> int:
    if type(part) is not int:
        raise TypeError
    return part


class ClusterState:
    """LogState of the cluster log. It has the newest image."""

    __slots__ = ("_loading", "image")

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._loading: ImageDraft | None = None

    def load(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Add a part of a snapshot."""
        if self._loading is None:
            self._loading = ImageDraft(self.image)
        self._loading.take(records)

    def loaded(self, sequence: LogSequence) -> None:
        """Assemble the image."""
        whole(self.loading_ends(sequence))

    def loading_ends(self, sequence: LogSequence) -> Steps[None]:
        """As ``loaded``, in steps."""
        if self._loading is not None:
            yield from self._loading.settling()
            self.image = self._loading.freeze(sequence)
            self._loading = None

    def apply(self, entry: Entry) -> None:
        """Apply one entry. It makes a new image. After a CorruptionError the old image stays."""
        draft = ImageDraft(self.image)
        draft.apply(entry.records)
        self.image = draft.freeze(entry.sequence)

    def applying(self, entry: Entry) -> Steps[None]:
        """As ``apply``, in steps. The last one replaces the image, so a part of an entry is never seen."""
        draft = ImageDraft(self.image)
        yield from draft.applying(entry.records)
        self.image = draft.freeze(entry.sequence)
