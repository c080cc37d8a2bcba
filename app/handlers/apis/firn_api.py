"""Firn's own keys: metrics and the state of the tier, for HTTP and the command line (``app.wire.private``).

Tests: ``tests/broker/test_private_apis.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from app.core.errors import (
    ConflictError,
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
    clause,
    kafka_code,
)
from app.core.metrics import PackedSamples, Registry, Sample, SampleBlock
from app.core.turns import Portion, ordered, run
from app.core.units import Offset, SegmentId, TopicIdPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import may, require
from app.handlers.base.request import Request
from app.handlers.base.views import OperatorView
from app.hot.log import PartitionLog
from app.metadata.image.image import ClusterImage
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.tiering.upload import replacement
from app.tiering.upload import tier_status as tier
from app.wire.apikeys import ApiKey
from app.wire.private import (
    FOLLOWING,
    LEARNING,
    LEFT_PER_ANSWER_MAX,
    NOT_TIERED,
    OFFLINE,
    SAMPLES_A_STEP,
    SEGMENTS_PER_ANSWER_MAX,
    BackTopic,
    DrainKept,
    DrainLeft,
    DrainRequest,
    DrainResponse,
    MetricsRequest,
    PartitionTierStatus,
    PlaceRequest,
    PlaceResponse,
    SegmentInfo,
    TierReplaceRequest,
    TierReplaceResponse,
    TierSegmentsRequest,
    TierSegmentsResponse,
    TierStatusRequest,
    TierStatusResponse,
    pack,
    pack_metrics,
    pack_samples,
    unpack,
)

if TYPE_CHECKING:
    from app.replication.followed_tier import FollowedTier

ROOM: Final = frozenset({"firn_log_dir_free_bytes", "firn_log_dir_size_bytes", "firn_log_dir_free_bytes_min"})
"""Names of samples that the disk is asked for."""
SEGMENT_ID_BYTES: Final = 16
Label: TypeAlias = tuple[str, str]
PROCESS: Final = "process"
BROKER: Final[Label] = PROCESS, "broker"
STORE: Final[Label] = PROCESS, "store"
KEPT_SAMPLE_BYTES: Final = 512
"""Packed samples of a block are kept if they have no more bytes on average. Those of Kafka's clients have about 250."""
OFFSET_MAX: Final = 2**63 - 1
_OFFSETS_AND_BYTES: Final = (
    "log_start_offset",
    "local_start_offset",
    "tiered_end_offset",
    "last_stable_offset",
    "high_watermark",
    "log_end_offset",
    "local_bytes",
    "local_segments",
    "remote_bytes",
    "remote_raw_bytes",
    "remote_segments",
    "lag_bytes",
)


async def handle_metrics(context: OperatorView, request: Request, message: bytes) -> bytes:
    """The samples with the wanted names of this process and, if it answers, of the store process. Raises: ProtocolError."""
    del request
    names = frozenset(unpack(MetricsRequest, message).names)
    pieces = await _collected(context.registry, names)
    if not names or not names.isdisjoint(ROOM):
        room = await room_samples(context)
        pieces.append(_packed([sample for sample in room if not names or sample.name in names], BROKER))
    if context.store_samples is not None:
        try:
            found = await context.store_samples()
            pieces.append(_packed([sample for sample in found if not names or sample.name in names], STORE))
        except StorageUnavailable as error:
            sentence = f"metrics without those of the store process: {error}"
            context.faults.met("metrics of", "the store process", sentence)
    return pack_metrics(context.config.node_id, context.image.cluster_id, pieces, process_id=os.getpid())


async def room_samples(context: OperatorView) -> list[Sample]:
    """The data directory's disk, asked in the pool: a file system over a network may take its time."""
    try:
        free, total = await context.pool.run(lambda: (context.logs.free_bytes(), context.logs.total_bytes()))
    except StorageUnavailable as error:
        sentence = f"metrics without the room of the data directory: {error}"
        context.faults.met("metrics of", "the data directory", sentence)
        return []
    text = "Free bytes on the disk of the data directory."
    room = Sample("firn_log_dir_free_bytes", "gauge", text, "firn_log_dir_free_bytes", (), float(free))
    text = "Size of the disk of the data directory."
    size = Sample("firn_log_dir_size_bytes", "gauge", text, "firn_log_dir_size_bytes", (), float(total))
    text = "Free bytes below which producers are refused (firn.log.dir.free.bytes.min)."
    least = float(context.config.firn_log_dir_free_bytes_min)
    return [room, size, Sample("firn_log_dir_free_bytes_min", "gauge", text, "firn_log_dir_free_bytes_min", (), least)]


async def _collected(registry: Registry, names: frozenset[str]) -> list[PackedSamples]:
    """The wanted samples, packed, by pieces: with many partitions and groups it takes longer than the loop may be held."""
    found: list[PackedSamples] = []
    told: set[str] = set()
    some: list[Sample] = []
    portion = Portion()
    for sample in registry.own_steps(names):
        if sample is not None:
            some.append(sample._replace(help="") if sample.family in told else sample)
            told.add(sample.family)
            if len(some) >= SAMPLES_A_STEP:
                found.append(_packed(some, BROKER))
                some.clear()
        if portion.spent():
            await portion.rest()
    found.append(_packed(some, BROKER))
    for block in registry.blocks(names):
        if names:
            found.append(_packed([one for one in block.samples() if one.name in names], BROKER))
        else:
            found += block.packed or await _packed_block(block, portion)
        if portion.spent():
            await portion.rest()
    return found


async def _packed_block(block: SampleBlock, portion: Portion) -> list[PackedSamples]:
    """The samples of a block, which keeps them for the next time if they are short."""
    found = []
    samples = block.samples()
    while some := list(islice(samples, SAMPLES_A_STEP)):
        found.append(_packed(some, BROKER))
        if portion.spent():
            await portion.rest()
    if sum([len(one.data) for one in found]) <= KEPT_SAMPLE_BYTES * sum([one.number for one in found]):
        block.packed = found
    return found


def _packed(samples: Iterable[Sample], process: Label) -> PackedSamples:
    """The samples, packed, with the label ``process``. One that has such a label keeps it."""
    return pack_samples(
        [
            one if any(name == PROCESS for name, _ in one.labels) else (*one[:-2], (*one.labels, process), one.value)
            for one in samples
        ]
    )


def handle_place(context: OperatorView, request: Request, message: bytes) -> bytes:
    """Tell this broker's identity. If the request says that it was replaced, it reads the cluster log before any other response.

    Raises: ProtocolError.
    """
    asked = unpack(PlaceRequest, message)
    cluster_id, mine = context.image.cluster_id, context.cluster.identity
    is_meant = (asked.cluster_id, asked.node_id, asked.directory_id) == (cluster_id, mine.broker_id, mine.directory_id)
    # The identity is told without a right: a broker without rights must not take silence for a broker that is gone (AZ10).
    tells = is_meant and bool(asked.replaced_by)
    if tells and not may(context, request.caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        note(request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        tells = False
    looks = tells and context.gate.be_told(request.on_close)
    untiered = [log for log in context.logs.logs() if _untiered_bytes(context, log)] if looks else []
    return pack(
        PlaceResponse(
            cluster_id,
            mine.broker_id,
            mine.directory_id,
            looks,
            sum(_untiered_bytes(context, log) for log in untiered),
            len(untiered),
        )
    )


def _untiered_bytes(context: OperatorView, log: PartitionLog) -> int:
    tiered_end = context.remote_log_manager.tiered_end(log.topic_id, log.partition) or 0
    return sum(one.size_bytes for one in log.segments() if one.end_offset > max(one.base_offset, tiered_end))


async def handle_tier_status(context: OperatorView, request: Request, message: bytes) -> bytes:
    """The bytes of partitions on the disk and in the tier. Raises: ProtocolError."""
    portion = Portion()
    asked = unpack(TierStatusRequest, message)
    wanted = set(asked.topics)

    def told(topic: str) -> bool:
        return (not wanted or topic in wanted) and sees(topic)

    def sees(topic: str) -> bool:
        return may(context, request.caller, Operation.DESCRIBE, ResourceType.TOPIC, topic)

    missing = []
    for name in wanted:
        known = context.image.topic(name) is not None
        if known and not sees(name):
            note(request, Operation.DESCRIBE, ResourceType.TOPIC, name)
        if not known or not sees(name):
            missing.append(name)
        if portion.spent_by():
            await portion.rest()
    partitions: list[PartitionTierStatus] = []
    keys = _keys(context.image, wanted) if wanted else None
    for led in await context.remote_log_manager.status_in_portions(portion, keys):
        if told(led.topic):
            partitions.append(_status(context, led))
        if portion.spent_by():
            await portion.rest()
    partitions += [one for one in _offline(context) if told(one.topic)]
    for one in context.followed_tiers() if asked.replicas and context.followed_tiers is not None else ():
        if told(one.partition.topic):
            partitions.append(_followed(one))
        if portion.spent_by():
            await portion.rest()
    return pack(
        TierStatusResponse(
            partitions=partitions,
            missing=await ordered(missing, portion, key=str),
            drain=context.drain.sentence(),
            back=[BackTopic(name, partitions, offsets) for name, partitions, offsets in context.back if told(name)],
            store="" if context.store_trouble is None else context.store_trouble(),
        )
    )


def _keys(image: ClusterImage, topics: Iterable[str]) -> Iterator[TopicIdPartition]:
    """The partitions of some topics."""
    for name in topics:
        topic = image.topic(name)
        if topic is not None:
            for one in topic.partitions:
                yield TopicIdPartition(topic.topic_id, one.partition_index)


def _offline(context: OperatorView) -> list[PartitionTierStatus]:
    """The partitions that cannot be opened, with the reason. Nothing else is known of them."""
    nothing: dict[str, Any] = dict.fromkeys(_OFFSETS_AND_BYTES, 0)
    return [
        PartitionTierStatus(
            topic=topic.name,
            partition=key.partition,
            leader=-1,
            leader_epoch=-1,
            lag_ms=-1,
            state=OFFLINE,
            last_error=why,
            **nothing,
        )
        for key, why in context.partitions.offline.items()
        if (topic := context.image.topic_by_id(key.topic_id)) is not None
    ]


def _followed(one: FollowedTier) -> PartitionTierStatus:
    """The status of a partition that another broker leads: its log here, and the known state of its tier."""
    partition, log = one.partition, one.partition.log
    return PartitionTierStatus(
        topic=partition.topic,
        partition=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_log_start_offset,
        tiered_end_offset=log.log_start_offset if one.manifest is None else one.manifest.tiered_end,
        last_stable_offset=log.last_stable_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        local_bytes=log.size_bytes,
        local_segments=len(log.segments()),
        remote_bytes=0,
        remote_raw_bytes=0,
        remote_segments=0,
        lag_bytes=0,
        lag_ms=0,
        state=(FOLLOWING if one.is_current else LEARNING) if log.config.tiered else NOT_TIERED,
        role="follower",
    )


def _status(context: OperatorView, one: tier.PartitionTierStatus) -> PartitionTierStatus:
    log = context.partitions.led_log(one.topic, one.partition)
    return PartitionTierStatus(
        topic=one.topic,
        partition=one.partition,
        leader=context.config.node_id,
        leader_epoch=-1 if log is None else log.leader_epoch,
        log_start_offset=one.log_start_offset,
        local_start_offset=one.local_start_offset,
        tiered_end_offset=one.tiered_end,
        last_stable_offset=-1 if log is None else log.last_stable_offset,
        high_watermark=-1 if log is None else log.high_watermark,
        log_end_offset=one.log_end_offset,
        local_bytes=one.local_bytes,
        local_segments=0 if log is None else len(log.segments()),
        remote_bytes=one.remote_stored_bytes,
        remote_raw_bytes=one.remote_raw_bytes,
        remote_segments=one.remote_segments,
        lag_bytes=one.lag_bytes,
        lag_ms=one.lag_ms,
        state=one.phase if one.enabled else NOT_TIERED,
        last_error=one.last_error,
        copied_segments=one.copied_segments,
        pending_deletes=one.pending_deletes,
        failures=one.failures,
        faults=list(one.faults),
        cleaned_end_offset=-1 if log is None else _cleaned_end(log),
    )


def _cleaned_end(log: PartitionLog) -> int:
    """One past the last offset of the cleaned part of a compacted log; else -1."""
    if not log.config.compacted:
        return -1
    return max(log.log_start_offset, log.cleaned_end_offset or 0)


def handle_tier_segments(context: OperatorView, request: Request, message: bytes) -> bytes:
    """Every segment of one partition, in order. Raises: ProtocolError."""
    asked = unpack(TierSegmentsRequest, message)
    try:
        require(context, request, Operation.DESCRIBE, ResourceType.TOPIC, asked.topic)
    except RequestRejected as error:
        return pack(TierSegmentsResponse([], str(error)))
    topic = context.image.topic(asked.topic)
    if topic is None or not 0 <= asked.partition < len(topic.partitions):
        return pack(TierSegmentsResponse([], f"There is no partition {asked.topic}-{asked.partition}."))
    partition = topic.partitions[asked.partition].partition_index
    found = [
        segment
        for segment in context.remote_log_manager.segments(topic.topic_id, partition)
        if segment.end_offset > asked.from_offset or segment.state == "ACTIVE"
    ]
    told = found[:SEGMENTS_PER_ANSWER_MAX]
    more = -1 if len(told) == len(found) else int(told[-1].end_offset)
    return pack(TierSegmentsResponse([_segment(one) for one in told], more_from_offset=more))


async def handle_tier_replace(context: OperatorView, request: Request, message: bytes) -> bytes:
    """One step of a replacement: a job has made one segment of several. Raises: ProtocolError."""
    asked = unpack(TierReplaceRequest, message)
    try:
        require(context, request, Operation.ALTER, ResourceType.TOPIC, asked.topic)
        await _replace(context, asked)
    except ConflictError as error:
        # Nothing was changed, and a retry would not help: so the code is not the retriable one of other conflicts.
        return pack(TierReplaceResponse(int(ErrorCode.OPERATION_NOT_ATTEMPTED), str(error)))
    except FirnError as error:
        return pack(TierReplaceResponse(int(kafka_code(error)), str(error)))
    return pack(TierReplaceResponse())


async def _replace(context: OperatorView, asked: TierReplaceRequest) -> None:
    """Raises: RequestRejected (not led here), ConflictError, FencedError, StorageUnavailable, ProtocolError."""
    log = context.partitions.led_log(asked.topic, asked.partition)
    manifest = (
        context.remote_log_manager.manifest_of(TopicIdPartition(log.topic_id, log.partition))
        if log is not None
        else None
    )
    if log is None or manifest is None:
        raise RequestRejected(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{asked.topic}-{asked.partition} is not led by this broker."
        )
    wanted = _replacement(asked)
    match asked.step:
        case "begin":
            await replacement.begin(manifest, wanted, local_start_offset=log.local_log_start_offset)
        case "finish":
            await context.remote_log_manager.finish_replacement(manifest, wanted)
        case "give-up":
            await replacement.give_up(manifest, wanted.segment_id)
        case step:
            raise ProtocolError(f"There is no step {step!r} of a replacement.")


def _replacement(asked: TierReplaceRequest) -> replacement.Replacement:
    """The segments that a request names. Raises: ProtocolError, RequestRejected (it is of the older form)."""
    if asked.base_offset < 0 and len(asked.segment_id) != SEGMENT_ID_BYTES:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            "The request is of an older version of Firn, which sends the new segment's whole record. Nothing was changed. "
            "Upgrade whoever asks: the http process, or the package with the job.",
        )
    try:
        segment_id = SegmentId(UUID(bytes=asked.segment_id))
        inputs = tuple(UUID(bytes=one) for one in asked.inputs)
    except ValueError as error:
        raise ProtocolError(f"A segment's id has {SEGMENT_ID_BYTES} bytes: {clause(error)}.") from error
    if not 0 <= asked.base_offset < asked.end_offset <= OFFSET_MAX:
        raise ProtocolError(f"[{asked.base_offset}, {asked.end_offset}) is no range of offsets.")
    return replacement.Replacement(segment_id, Offset(asked.base_offset), Offset(asked.end_offset), inputs)


def _segment(one: tier.SegmentStatus) -> SegmentInfo:
    return SegmentInfo(
        tier=one.tier,
        base_offset=one.base_offset,
        end_offset=one.end_offset,
        size_bytes=one.stored_bytes if one.tier == "remote" else one.raw_bytes,
        max_timestamp=one.max_timestamp,
        state=one.state,
        object_key=one.object_key,
        raw_bytes=one.raw_bytes,
        min_timestamp=one.min_timestamp,
        record_count=one.record_count,
        stored_bytes=one.stored_bytes,
        changed_ms=one.changed_ms,
        lag_ms=one.lag_ms,
    )


async def handle_drain(context: OperatorView, request: Request, message: bytes) -> bytes:
    """One step of a drain, and how far the drain is. Raises: ProtocolError."""
    del request
    asked = unpack(DrainRequest, message)
    drain, error = context.drain, ""
    try:
        match asked.step:
            case "begin":
                drain.begin()
            case "take-back":
                drain.take_back()
            case "stop":
                drain.acknowledge()
            case "status":
                pass
            case step:
                raise ProtocolError(f"There is no step {step!r} of a drain.")
    except ConflictError as refused:
        error = str(refused)
    progress = await run(drain.progress_steps())
    return pack(
        DrainResponse(
            cluster_id=context.image.cluster_id,
            node_id=context.config.node_id,
            state=drain.state.value,
            elapsed_ms=int(progress.elapsed_s * 1000),
            left_bytes=progress.left_bytes,
            left_partitions=len(progress.left),
            uploaded_bytes=int(progress.uploaded_bytes),
            bytes_per_second=int(progress.bytes_per_second),
            seconds_left=progress.seconds_left,
            open_transactions=progress.open_transactions,
            left=[
                DrainLeft(one.topic, one.partition, one.covered_end, one.log_end, one.bytes, one.why)
                for one in progress.left[:LEFT_PER_ANSWER_MAX]
            ],
            kept=[DrainKept(one.topic, one.partitions, one.bytes, one.why) for one in progress.kept],
            error=error,
        )
    )


def _refuse(request: Request, message: bytes, code: ErrorCode, sentence: str) -> None:
    """There is no error in these answers: the connection is closed, with a line in the log."""
    del request, message, code, sentence


def _refuse_replace(request: Request, message: bytes, code: ErrorCode, sentence: str) -> bytes | None:
    """A missing right is told. Any other message that cannot be read closes the connection."""
    del request, message
    return pack(TierReplaceResponse(int(code), sentence)) if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


APIS: Final[ApiTable] = {
    ApiKey.FIRN_METRICS: Api(handle_metrics, _refuse),
    ApiKey.FIRN_TIER_STATUS: Api(handle_tier_status, _refuse),
    ApiKey.FIRN_TIER_SEGMENTS: Api(handle_tier_segments, _refuse),
    ApiKey.FIRN_TIER_REPLACE: Api(handle_tier_replace, _refuse_replace),
    ApiKey.FIRN_PLACE: Api(handle_place, _refuse),
    ApiKey.FIRN_DRAIN: Api(handle_drain, _refuse),
}
