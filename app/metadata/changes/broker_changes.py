"""Changes of the cluster that brokers cause: they register, are fenced and unfenced, stop, leave, and propose in-sync sets.

The rules are those of ADR 0023 (M) and ADR 0024 (R and E). Pure: a plan reads the draft, and returns records
and a result.

Each plan is one change, so a broker and all of its partitions change in the same entry (M2, M6, M13). A plan goes once over all
partitions of the draft, in steps. Records of 10,000 partitions are about 0.7 MB, so a plan fits into a group (``GROUP_BYTES_MAX``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from app.configs.resolving import apply_broker_overrides, resolve_topic_config
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise, slices
from app.core.units import BrokerId, LogSequence, TopicId, TopicIdPartition
from app.metadata.changes.topic_changes import PlanInputs, Planned, changes_of
from app.metadata.changes.wal_store_changes import change_wal_store
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from app.metadata.image.records import (
    ALL_BROKERS,
    LEVEL_FEATURE,
    OBJECT_LEVEL,
    CountersRecord,
    Endpoint,
    broker_change,
    counters_change,
    partition_change,
)
from app.metadata.log.log_format import KeyValue
from app.metadata.replicas.elections import was_unclean
from app.metadata.replicas.log_leaders import COUNTED_AT_ONCE, LogLeaders, log_has_ended, orphaned_logs
from app.metadata.replicas.replica_changes import (
    ProposedReplica,
    Terms,
    altered,
    fenced,
    lost,
    registered,
    stopping,
    unchanged,
    unfenced,
)

ANY_NODE_ID = -1
"""As the node id of a registration: one that was never used (``--node-id auto``, M10)."""

NO_BROKER_EPOCH = -1


class RegistrationAsked(NamedTuple):
    """A broker's request to register."""

    broker_id: int
    """``ANY_NODE_ID`` for a new one."""
    directory_id: UUID
    incarnation: UUID
    boot_id: str
    """The boot of its machine; empty if unknown."""
    endpoints: tuple[Endpoint, ...]
    level_min: int
    level_max: int
    """The levels that its program understands."""
    replaces: int = NO_BROKER_EPOCH
    """The broker epoch that it saw for its node id (M9)."""
    clean_epoch: int = NO_BROKER_EPOCH
    """The broker epoch in the marker of a clean stop in its directory (M4)."""
    run_epoch: int = NO_BROKER_EPOCH
    """The broker epoch in the marker of the last run in its directory (M4)."""
    run_boot_id: str = ""
    """The boot in the marker of the last run."""
    rack: str | None = None
    instance_id: str = ""
    force: bool = False
    """Whether the operator asked for a take-over of an unfenced broker's place."""
    anew: int = NO_BROKER_EPOCH
    """The broker epoch of this incarnation that is over, because its write-ahead log has ended (J14)."""
    ephemeral: bool = False
    """Whether its disk may be lost at any time (J47)."""
    wal_store: str = ""
    """The id of its store of write-ahead logs; empty if that is the main store (J62)."""


class RegistrationAnswer(NamedTuple):
    """The place that a broker got."""

    broker_id: BrokerId
    broker_epoch: int
    sequence: LogSequence
    """The broker is unfenced once it has applied this entry (M7)."""
    unclean: tuple[TopicIdPartition, ...] = ()
    """Partitions that got a leader which may lack committed records: to be counted and logged (E3)."""


class BrokersChanged(NamedTuple):
    """The result of a change of brokers."""

    brokers: tuple[BrokerId, ...]
    """Brokers that changed. The others had changed before, or were named by an older broker epoch."""
    unclean: tuple[TopicIdPartition, ...]
    """As in ``RegistrationAnswer``."""


class ProposedSet(NamedTuple):
    """A leader's proposal of one in-sync set (AlterPartition)."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    members: Sequence[ProposedReplica]
    recovering: bool = False
    """Whether the leader has not yet confirmed that it holds on to the tier (E3)."""


class AlteredSet(NamedTuple):
    """The result of a proposal for one partition."""

    topic_id: UUID
    partition: int
    error: ErrorCode
    why: str
    """One sentence; empty if there is no error."""
    image: PartitionImage | None
    """The partition afterwards, also if the proposal was refused; None if there is no such partition."""


# --- registration ---------------------------------------------------------------------------------------------------


@Stepwise
def register_broker(
    draft: ImageDraft, around: PlanInputs, asked: RegistrationAsked
) -> Steps[Planned[RegistrationAnswer]]:
    """Give a broker its place, fenced, and end its leaderships (M1 to M4, M8 to M11).

    A repeated request of the same incarnation gets the same answer and writes nothing. Raises: RequestRejected.
    """
    bound = _bound(draft, asked)
    mine = bound is not None and bound.incarnation == asked.incarnation
    if bound is not None and mine and asked.anew != bound.broker_epoch:
        # M8: this request was carried out before. The broker may be unfenced and lead meanwhile.
        return Planned([], RegistrationAnswer(bound.broker_id, bound.broker_epoch, LogSequence(bound.changed_at)))
    _check_level(draft, asked)
    broker_id = bound.broker_id if bound is not None else BrokerId(asked.broker_id)
    records: list[KeyValue] = []
    if broker_id == ANY_NODE_ID:
        broker_id = new_node_id(draft)
        records.append(counters_change(CountersRecord(1, broker_id + 1)))
    _check_place(broker_id, bound, asked)
    if asked.ephemeral:
        yield from _check_ephemeral(draft, broker_id)
    if asked.wal_store != draft.wal_store:
        records += change_wal_store(draft, broker_id, asked.wal_store)
    previous_epoch = NO_BROKER_EPOCH if bound is None else bound.broker_epoch
    broker = BrokerImage(
        broker_id,
        asked.directory_id,
        asked.incarnation,
        max(around.sequence, previous_epoch + 1),
        asked.endpoints,
        asked.rack,
        around.now_ms,
        asked.instance_id,
        fenced=True,
        changed_at=around.sequence,
        boot_id=asked.boot_id,
        level_max=asked.level_max,
        ephemeral=asked.ephemeral,
    )
    new_directory = bound is None or bound.directory_id != asked.directory_id
    # A process that registers again has lost nothing.
    kept = bound is not None and not new_directory and (mine or _names_last_run(asked, bound.broker_epoch))
    records.append(broker_change(broker_id, broker.record()))
    changed = _Changed(draft, around, {broker_id: broker})
    yield from changed.each(
        lambda image, terms: registered(image, broker_id, terms, kept=kept, new_directory=new_directory)
    )
    answer = RegistrationAnswer(broker_id, broker.broker_epoch, around.sequence, tuple(changed.unclean))
    return Planned(records + changed.records, answer)


def new_node_id(image: ClusterImage | ImageDraft) -> BrokerId:
    """A node id that was never given (M10). It is also above those that operators chose and that are registered."""
    return BrokerId(max(image.next_node_id, 1 + max(image.brokers, default=0)))


def allot_node_id(draft: ImageDraft) -> Planned[BrokerId]:
    """Give a node id to a broker before it registers (M10). Raises: RequestRejected INVALID_REQUEST at level 0."""
    _require_several(draft)
    broker_id = new_node_id(draft)
    return Planned([counters_change(CountersRecord(1, broker_id + 1))], broker_id)


@Stepwise
def unregister_broker(draft: ImageDraft, around: PlanInputs, broker_id: int) -> Steps[Planned[BrokersChanged]]:
    """Take a broker out of the cluster, alive or not, as Kafka does. It leads nothing and is in no set afterwards.

    It stays among the replicas of its partitions until they are reassigned. Raises: RequestRejected BROKER_ID_NOT_REGISTERED, and
    INVALID_REQUEST in a cluster of one broker.
    """
    broker = require_broker(draft, broker_id)
    records = [broker_change(broker_id, None)]
    if draft.next_node_id <= broker_id:
        # M10: the id stands in lists of replicas, so it is given to no other broker.
        records.append(counters_change(CountersRecord(1, broker_id + 1)))
    changed = _Changed(draft, around, {broker_id: None})
    yield from changed.each(lambda image, terms: lost(image, broker.broker_id, terms, new_directory=False))
    return Planned(records + changed.records, BrokersChanged((broker.broker_id,), tuple(changed.unclean)))


@Stepwise
def forget_broker(
    draft: ImageDraft, around: PlanInputs, broker_id: int, broker_epoch: int, *, only_fenced: bool = False
) -> Steps[Planned[BrokersChanged]]:
    """Unregister a broker without a disk, as it will not come back (J48). One that has changed since is left alone."""
    broker = draft.brokers.get(broker_id)
    if (
        broker is None
        or broker.broker_epoch != broker_epoch
        or not broker.ephemeral
        or (only_fenced and not broker.fenced)
    ):
        return Planned([], BrokersChanged((), ()))
    return (yield from unregister_broker.steps(draft, around, broker_id))


def _bound(draft: ImageDraft, asked: RegistrationAsked) -> BrokerImage | None:
    """The broker whose place is asked for. One that asks for any node id has the one that its directory has."""
    if asked.broker_id != ANY_NODE_ID:
        return draft.brokers.get(asked.broker_id)
    return next((each for each in draft.brokers.values() if each.directory_id == asked.directory_id), None)


def _names_last_run(asked: RegistrationAsked, broker_epoch: int) -> bool:
    """M4: whether a marker in the directory is of the last run of this place, and nothing that it wrote was lost since."""
    return asked.clean_epoch == broker_epoch or (
        asked.run_epoch == broker_epoch and asked.run_boot_id == asked.boot_id and asked.boot_id != ""
    )


def _check_level(draft: ImageDraft, asked: RegistrationAsked) -> None:
    """Raises: RequestRejected INVALID_REQUEST, UNSUPPORTED_VERSION."""
    _require_several(draft)
    if not asked.level_min <= draft.level <= asked.level_max:
        what = "a newer" if draft.level > asked.level_max else "an older"
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster's {LEVEL_FEATURE} is {draft.level}, and this broker understands {asked.level_min} to "
            f"{asked.level_max}. Start {what} version of the program.",
        )


def _check_place(broker_id: BrokerId, bound: BrokerImage | None, asked: RegistrationAsked) -> None:
    """Raises: RequestRejected STALE_BROKER_EPOCH (M9), DUPLICATE_BROKER_REGISTRATION (M11), INVALID_REQUEST."""
    if broker_id < 0:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"{broker_id} is no node id. Use 0 or more, or auto.")
    present_epoch = NO_BROKER_EPOCH if bound is None else bound.broker_epoch
    if asked.replaces != present_epoch:
        present = "is not registered" if bound is None else f"has broker epoch {present_epoch}"
        raise RequestRejected(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Node id {broker_id} {present}, and the registration is to replace broker epoch {asked.replaces}. "
            "Read the cluster log and register again.",
        )
    if bound is not None and bound.directory_id != asked.directory_id and not bound.fenced and not asked.force:
        raise RequestRejected(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Node id {broker_id} is in use by a broker with another data directory ({bound.directory_id}). "
            "Stop that broker, give this one another --node-id, or start it with --take-over.",
        )


def _check_ephemeral(draft: ImageDraft, broker_id: BrokerId) -> Steps[None]:
    """Raises: RequestRejected UNSUPPORTED_VERSION, INVALID_REQUEST (J47)."""
    if draft.level < OBJECT_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            f"A broker with firn.ephemeral needs {LEVEL_FEATURE} {OBJECT_LEVEL}, and the cluster's is {draft.level}: run `firn "
            f"cluster features --upgrade {LEVEL_FEATURE}={OBJECT_LEVEL}` first.",
        )
    for topic in draft.topics:
        for some in slices(topic.partitions, COUNTED_AT_ONCE):
            if any(broker_id in image.replicas and image.durability.needs_disks for image in some):
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"Broker {broker_id} has replicas of topic '{topic.name}', whose records are on disks, so it cannot become "
                    "ephemeral: move its replicas first (`firn cluster drain`), or start it without --ephemeral.",
                )
            yield


# --- fencing and stopping -------------------------------------------------------------------------------------------


@Stepwise
def fence_brokers(
    draft: ImageDraft, around: PlanInputs, brokers: Iterable[tuple[int, int]]
) -> Steps[Planned[BrokersChanged]]:
    """Fence brokers, each by node id and broker epoch (M6). One that is fenced, or has another broker epoch, is left out."""
    after: dict[int, BrokerImage | None] = {}
    for broker_id, broker_epoch in brokers:
        broker = draft.brokers.get(broker_id)
        if broker is not None and broker.broker_epoch == broker_epoch and not broker.fenced:
            after[broker_id] = replace(broker, fenced=True, changed_at=around.sequence)
    changed = _Changed(draft, around, after)
    if after:
        yield from changed.each(lambda image, terms: fenced(image, after, terms))
    return changed.planned()


@Stepwise
def unfence_brokers(
    draft: ImageDraft, around: PlanInputs, brokers: Iterable[tuple[int, int, int]]
) -> Steps[Planned[BrokersChanged]]:
    """Unfence brokers, and elect leaders for partitions without one. A broker is named by its node id, its broker epoch, and the
    number of the newest entry that it has applied.

    One that is not fenced, has another broker epoch, or has not applied the entry that fenced it (M7) is left out. So is one whose
    write-ahead log has ended, or is to end: it must register again (J14).
    """
    orphans = (yield from orphaned_logs.steps(draft.topics)) if draft.level >= OBJECT_LEVEL else set()
    after: dict[int, BrokerImage | None] = {}
    for broker_id, broker_epoch, applied in brokers:
        broker = draft.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch or not broker.fenced or applied < broker.changed_at:
            continue
        if log_has_ended(broker, orphans):
            continue
        after[broker_id] = replace(broker, fenced=False)
    changed = _Changed(draft, around, after)
    if after:
        yield from changed.each(unfenced)
    return changed.planned()


@Stepwise
def begin_stop(draft: ImageDraft, around: PlanInputs, broker_id: int, broker_epoch: int) -> Steps[Planned[int]]:
    """Let a broker stop in order: others lead its partitions where they can (M13). Call it again for each of its heartbeats.

    Returns: how many partitions it leads that another living replica could lead once it is in sync, or once it has released them.
    It may stop at 0.
    Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    broker = require_broker(draft, broker_id, broker_epoch)
    after: dict[int, BrokerImage | None] = {} if broker.stopping else {broker_id: replace(broker, stopping=True)}
    changed = _Changed(draft, around, after)
    left = 0

    def stop(image: PartitionImage, terms: Terms) -> PartitionImage:
        nonlocal left
        result = stopping(image, broker.broker_id, terms)
        if result.leader == broker_id:
            # Any broker may lead a partition in write-ahead logs, once this one has released it (J18, J23).
            left += changed.any_active if result.durability.by_log else any(map(terms.active, result.replicas))
        return result

    yield from changed.each(stop)
    return Planned(changed.planned().records, left)


@Stepwise
def elect_where_nobody_leads(draft: ImageDraft, around: PlanInputs) -> Steps[Planned[BrokersChanged]]:
    """Elect leaders of all partitions without one, for instance after a setting allowed more (E1, E3, E4)."""
    changed = _Changed(draft, around, {})
    yield from changed.each(unfenced)
    return changed.planned()


# --- in-sync sets ---------------------------------------------------------------------------------------------------


@Stepwise
def alter_in_sync(
    draft: ImageDraft,
    around: PlanInputs,
    broker_id: int,
    broker_epoch: int,
    proposals: Sequence[ProposedSet],
    *,
    after: Callable[[PartitionImage], PartitionImage] = unchanged,
) -> Steps[Planned[list[AlteredSet]]]:
    """Decide the proposals of a leader, each for itself (R5). ``after``: as in ``replica_changes.altered``.

    Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    require_broker(draft, broker_id, broker_epoch)
    changed = _Changed(draft, around, {})
    decided: dict[tuple[UUID, int], PartitionImage] = {}
    answers: list[AlteredSet] = []
    for seen, asked in enumerate(proposals):
        if not seen % STRIDE:
            yield
        key = (asked.topic_id, asked.partition)
        topic = draft.topic_by_id(asked.topic_id)
        if topic is None or not 0 <= asked.partition < len(topic.partitions):
            answers.append(no_such_partition(topic, *key))
            continue
        image = decided.get(key, topic.partitions[asked.partition])
        try:
            result = altered(
                image,
                broker_id,
                asked.leader_epoch,
                asked.partition_epoch,
                asked.members,
                draft.brokers,
                changed.terms(topic),
                recovering=asked.recovering,
                after=after,
            )
        except RequestRejected as error:
            answers.append(AlteredSet(*key, error.code, str(error), image))
            continue
        decided[key] = result
        if result.leader == broker_id:
            answers.append(AlteredSet(*key, ErrorCode.NONE, "", result))
        else:
            why = f"The set was accepted, and broker {result.leader} leads now: follow it."
            answers.append(AlteredSet(*key, ErrorCode.NEW_LEADER_ELECTED, why, result))
    return Planned((yield from changes_of(decided)), answers)


def no_such_partition(topic: TopicImage | None, topic_id: UUID, index: int) -> AlteredSet:
    """The refusal of a proposal for a partition that does not exist."""
    code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    what = f"topic with id {topic_id}" if topic is None else f"partition {index} of {topic.name}"
    return AlteredSet(topic_id, index, code, f"There is no {what}: read the cluster log.", None)


# --- shared by plans ------------------------------------------------------------------------------------------------


def _require_several(draft: ImageDraft) -> None:
    """Raises: RequestRejected INVALID_REQUEST if the cluster is of one broker: level 0 has no record of other brokers' states."""
    if draft.level < 1:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"The cluster is of one broker: its {LEVEL_FEATURE} is 0. Raise {LEVEL_FEATURE} to 1 first.",
        )


def require_broker(draft: ImageDraft, broker_id: int, broker_epoch: int | None = None) -> BrokerImage:
    """Raises: RequestRejected BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
    broker = draft.brokers.get(broker_id)
    if broker is None:
        raise RequestRejected(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker {broker_id} is not registered. Registered are {sorted(draft.brokers)}.",
        )
    if broker_epoch is not None and broker.broker_epoch != broker_epoch:
        raise RequestRejected(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} is registered under broker epoch {broker.broker_epoch}, not {broker_epoch}: register again.",
        )
    return broker


class _Changed:
    """One pass over the draft's partitions, with the brokers as they are after the change."""

    def __init__(self, draft: ImageDraft, around: PlanInputs, after: Mapping[int, BrokerImage | None]) -> None:
        """``after``: the brokers that change; None for one that leaves. Raises: RequestRejected INVALID_REQUEST at level 0."""
        _require_several(draft)
        self.records: list[KeyValue] = []
        self.unclean: list[TopicIdPartition] = []
        self._draft = draft
        self._after = after
        brokers = {**draft.brokers, **after}
        self._active = frozenset([id_ for id_, each in brokers.items() if each is not None and each.active])
        self._unfenced = frozenset([id_ for id_, each in brokers.items() if each is not None and not each.fenced])
        # One broker's own settings must not decide for the cluster, so only those of all brokers count.
        self._config = apply_broker_overrides(around.config, draft.broker_configs.get(ALL_BROKERS, {}))
        self._of_logs = LogLeaders(draft.topics, brokers, around.wal_next)
        self._terms: dict[tuple[str | None, ...], Terms] = {}

    @property
    def any_active(self) -> bool:
        """Whether any broker may be elected."""
        return bool(self._active)

    def terms(self, topic: TopicImage) -> Terms:
        """The terms of a topic. There are few different ones, so a plan resolves few configs."""
        deciding = {name: topic.configs[name] for name in _DECIDING if name in topic.configs}
        key = tuple(deciding.get(name) for name in _DECIDING)
        terms = self._terms.get(key)
        if terms is None:
            config = resolve_topic_config(self._config, deciding)
            terms = self._terms[key] = Terms(
                self._active.__contains__,
                self._unfenced.__contains__,
                config.min_insync_replicas,
                config.unclean_leader_election_enable,
                self._of_logs.elect,
            )
        return terms

    def each(self, change: Callable[[PartitionImage, Terms], PartitionImage]) -> Steps[None]:
        """Change the partitions, in steps."""
        yield from self._of_logs.counting()
        seen = 0
        for topic in self._draft.topics:
            terms = self.terms(topic)
            for image in topic.partitions:
                seen += 1
                if not seen % STRIDE:
                    yield
                after = change(image, terms)
                if after is not image:
                    self.records.append(partition_change(topic.topic_id, image.partition_index, after.record()))
                    if was_unclean(image, after):
                        self.unclean.append(TopicIdPartition(TopicId(topic.topic_id), image.partition_index))

    def planned(self) -> Planned[BrokersChanged]:
        """The records of brokers and partitions."""
        brokers = [broker_change(id_, None if each is None else each.record()) for id_, each in self._after.items()]
        changed = BrokersChanged(tuple([BrokerId(each) for each in self._after]), tuple(self.unclean))
        return Planned(brokers + self.records, changed)


_DECIDING = ("min.insync.replicas", "unclean.leader.election.enable")
"""Settings of a topic that decide which replicas are eligible, and which one is elected."""
