"""Firn's own APIs (keys 20000 to 20005, 20014 to 20018, 20020, 20021): requests and responses, each as msgpack in one field.

Shared by the broker, which answers, and by the HTTP process and the command line, which ask. The keys are not advertised.
Structs are arrays on the wire; a new field goes to the end and has a default, so that either side may be the older one.

Tests: ``tests/broker/test_private_apis.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from struct import Struct
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from app.core.errors import ProtocolError, clause
from app.core.limits import KIB, REQUEST_ELEMENTS_MAX
from app.core.metrics import PackedSamples
from app.core.turns import Steps, drained

_ENCODER: Final = msgspec.msgpack.Encoder()

OFFLINE: Final = "offline"
"""The state of a partition that its broker cannot open; ``last_error`` says why, and everything else is not known."""
REPLACED_AT_ONCE_MAX: Final = 10_000
"""Segments that one job makes one of."""
SEGMENTS_PER_ANSWER_MAX: Final = 10_000
"""For a partition with more, ask again from the end of the last one."""


class PlaceRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnPlace asks a broker whether it has this node id on this data directory (ADR 0018).

    ``replaced_by`` tells it that another broker took its place. It does not believe that: it reads the cluster log.
    """

    cluster_id: str
    node_id: int
    directory_id: UUID
    replaced_by: str = ""


class PlaceResponse(msgspec.Struct, array_like=True, frozen=True):
    cluster_id: str
    node_id: int
    directory_id: UUID
    looks: bool = False
    """True: the broker reads the cluster log before it answers anything else. False: it was told too recently, or it is not the
    broker that is meant."""
    untiered_bytes: int = 0
    """Bytes that are only on its disk; 0 if it was not told of a successor."""
    untiered_partitions: int = 0


METRIC_NAMES_MAX: Final = 200
METRIC_NAME_CHARS_MAX: Final = 100


class MetricsRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnMetrics: samples of the broker and of its store process."""

    names: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=METRIC_NAME_CHARS_MAX)]], msgspec.Meta(max_length=METRIC_NAMES_MAX)
    ] = []
    """Of the samples that are wanted; empty for all. A broker of an older release sends all."""


class MetricSample(msgspec.Struct, array_like=True, frozen=True):
    """``app.core.metrics.Sample``; ``process`` is ``broker`` or ``store``. Of a family, the first sample has the help at least."""

    family: str
    kind: str
    help: str
    name: str
    labels: list[tuple[str, str]]
    value: float


class MetricsResponse(msgspec.Struct, array_like=True, frozen=True):
    node_id: int
    cluster_id: str
    samples: list[MetricSample]
    process_id: int = 0


class _PackedMetrics(msgspec.Struct, array_like=True, frozen=True):
    """``MetricsResponse``, whose samples are not read yet."""

    node_id: int
    cluster_id: str
    samples: list[msgspec.Raw]
    process_id: int = 0


_SAMPLES: Final = msgspec.msgpack.Decoder(MetricSample)
SAMPLES_A_STEP: Final = 100
"""Some 0.1 ms."""


class TierStatusRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnTierStatus: where the bytes of partitions are."""

    topics: Annotated[list[str], msgspec.Meta(max_length=REQUEST_ELEMENTS_MAX)] = []
    """Empty is all."""
    replicas: bool = False
    """Whether the partitions that the broker follows are told as well."""


FOLLOWING: Final = "following"
LEARNING: Final = "learning"
"""``PartitionTierStatus.state`` of a partition that another broker leads. ``FOLLOWING``: this broker has all manifest entries that
the leader has announced. ``LEARNING``: it lacks some."""
NOT_TIERED: Final = "off"
"""``PartitionTierStatus.state`` of a partition whose topic is not tiered."""


class PartitionTierStatus(msgspec.Struct, array_like=True, frozen=True):
    """One partition: offsets, bytes and lag by tier. Half-open ranges; times in ms, -1 is none."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    log_start_offset: int
    local_start_offset: int
    tiered_end_offset: int
    """One past the last offset in the object store; the log start if nothing is there."""
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    local_bytes: int
    local_segments: int
    remote_bytes: int
    """As stored in the bucket."""
    remote_raw_bytes: int
    """As Kafka would count them."""
    remote_segments: int
    lag_bytes: int
    """Bytes of local segments, the active one included, that are not in the object store yet; 0 if the topic is not tiered."""
    lag_ms: int
    """Time since the first write to the oldest of these segments; 0 if there is none."""
    state: str
    """The copier's state, or the event that it waits for, in one word."""
    last_error: str = ""
    copied_segments: int = 0
    """Since the broker started."""
    pending_deletes: int = 0
    """Objects that readers no longer use and that are not deleted yet."""
    failures: int = 0
    """Rounds that failed since the broker started."""
    faults: list[str] = []
    """Gaps and overlaps that a check found. Only a bug or a damaged bucket makes any."""
    role: str = "leader"
    """The broker's role for the partition: ``leader`` or ``follower``. A follower reports its own log, and the tiered end that it
    knows. Only the leader reports the bytes in the object store."""
    cleaned_end_offset: int = -1
    """One past the last offset of the part that compaction has cleaned; the log start before its first round. -1 if the topic is
    not compacted, or the broker does not say."""

    @property
    def tiered(self) -> bool:
        """Whether the topic's segments go to the object store."""
        return self.state != NOT_TIERED


class BackTopic(msgspec.Struct, array_like=True, frozen=True):
    """A tiered topic, as the broker found it when it took the place of another data directory."""

    topic: str
    partitions: int
    offsets: int
    """The sum of the offsets at which its partitions went on. All records below are in the store, or deleted."""


class TierStatusResponse(msgspec.Struct, array_like=True, frozen=True):
    partitions: list[PartitionTierStatus]
    missing: list[str] = []
    """Topics asked for that do not exist."""
    drain: str = ""
    """How far a drain of the broker is, in a sentence; empty if there is no drain."""
    back: list[BackTopic] = []
    """Set if the broker took the place of another data directory when it started."""
    store: str = ""
    """As ``ClusterResponse.store``."""


class TierSegmentsRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnTierSegments: every segment of one partition, of both tiers, in order."""

    topic: str
    partition: int
    from_offset: int = 0


class SegmentInfo(msgspec.Struct, array_like=True, frozen=True):
    """One segment."""

    tier: str
    """``local``, ``remote`` or ``both``."""
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    state: str
    """``ACTIVE``, ``ROLLED``, or the state of KIP-405."""
    object_key: str = ""
    raw_bytes: int = 0
    min_timestamp: int = -1
    record_count: int = -1
    """-1 where only the local log knows the segment."""
    stored_bytes: int = 0
    changed_ms: int = -1
    lag_ms: int = -1
    """Time from its last write until it was in the store, or until now if it still waits. -1 if that is not known, or does not
    apply."""


class TierSegmentsResponse(msgspec.Struct, array_like=True, frozen=True):
    segments: list[SegmentInfo]
    error: str = ""
    """A sentence if the partition is not here."""
    more_from_offset: int = -1
    """There are more from this offset on; -1 if there are no more."""


class TierReplaceRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnTierReplace replaces neighbouring segments by one, step by step. Compaction jobs use it."""

    topic: str
    partition: int
    step: str
    """``begin`` before the upload, ``finish`` after it, ``give-up`` instead."""
    inputs: Annotated[list[bytes], msgspec.Meta(max_length=REPLACED_AT_ONCE_MAX)]
    """Ids of the segments to replace, in order."""
    segment_id: bytes
    """Of the new segment, 16 bytes. An older form had the segment's whole record here, key included, and no range after it:
    a broker refuses that form with a sentence, as an older broker refuses this one."""
    base_offset: int = -1
    end_offset: int = -1
    """The range of the new segment. The leader builds the object's key, and its record from the object's footer."""


class TierReplaceResponse(msgspec.Struct, array_like=True, frozen=True):
    error_code: int = 0
    error: str = ""
    """A sentence, if the step was refused."""


class ClusterRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnCluster: how the cluster stands, by the image of the broker that is asked (ADR 0029)."""

    leaving: int = -1
    """A broker that is about to stop: partitions that lack nothing but its replica are not listed (O8). Brokers of earlier
    versions list them."""


class ClusterBroker(msgspec.Struct, array_like=True, frozen=True):
    """One registered broker."""

    node_id: int
    host: str
    port: int
    rack: str | None
    broker_epoch: int
    state: str
    """``alive``, ``fenced`` or ``stopping``."""
    leaders: int
    replicas: int
    in_sync: int
    level_max: int
    """The highest ``firn.version`` that its program understands."""
    applied: int = -1
    """Number of the newest entry that it has applied, as the controller knows; -1 if this broker does not know it."""
    clock_ms: int | None = None
    """How far its clock is before the controller's; None if this broker does not know it."""


class ClusterMove(msgspec.Struct, array_like=True, frozen=True):
    """A reassignment under way."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


class ClusterResponse(msgspec.Struct, array_like=True, frozen=True):
    """``app.metadata.view.standing.Standing``. Lists name 1,000 partitions at most; the counts are of all."""

    node_id: int
    """The broker that answers."""
    cluster_id: str
    sequence: int
    level: int
    controller_id: int
    controller_epoch: int
    brokers: list[ClusterBroker]
    topics: int
    partitions: int
    under_replicated: list[tuple[str, int]]
    under_min_isr: list[tuple[str, int]]
    offline: list[tuple[str, int]]
    under_replicated_count: int
    under_min_isr_count: int
    offline_count: int
    moves: list[ClusterMove]
    moves_count: int
    level_max: int = 0
    """The highest level that this broker's program understands."""
    protocol_features: dict[str, int] = {}
    """Features of Kafka's protocol, each at its one level."""
    store: str = ""
    """A sentence if the object store is away, as far as the broker that answers knows."""


TOPIC_NAMES_MAX: Final = 1_000
"""Names in one FirnTopics response."""
NAMES_A_STEP: Final = 64
"""Names that are looked at before the clock: some 50 µs."""
TOPIC_NAME_CHARS_MAX: Final = 300
"""Longest text of a FirnTopics request. A topic's name has 249 characters at most."""
TopicText: TypeAlias = Annotated[str, msgspec.Meta(max_length=TOPIC_NAME_CHARS_MAX)]


class TopicsRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnTopics: some of the topics that the caller may describe, in the order of their names (ADR 0047)."""

    contains: TopicText = ""
    """Part of a name; empty for all topics."""
    after: TopicText = ""
    """The page begins behind this name; empty for the first page."""
    limit: int = TOPIC_NAMES_MAX
    """Most names of the response, from 1 to ``TOPIC_NAMES_MAX``."""
    internal: bool = False
    """Whether internal topics are listed, too."""


class TopicsResponse(msgspec.Struct, array_like=True, frozen=True):
    names: list[str] = []
    before: int = 0
    """Fitting topics up to ``after``."""
    fitting: int = 0
    total: int = 0
    """All topics that the caller may describe, internal ones among them."""


def topics_page_steps(
    asked: TopicsRequest, topics: Iterable[tuple[str, bool]], sees: Callable[[str], bool]
) -> Steps[TopicsResponse]:
    """The response to a request. ``topics``: each name, and whether the topic is internal. ``sees``: whether the caller may
    describe a topic."""
    limit = max(1, min(asked.limit, TOPIC_NAMES_MAX))
    total = before = following = 0
    names: list[str] = []
    for index, (name, internal) in enumerate(topics, 1):
        if not index % NAMES_A_STEP:
            yield
        if not sees(name):
            continue
        total += 1
        if asked.contains not in name or (internal and not asked.internal):
            continue
        if name <= asked.after:
            before += 1
            continue
        following += 1
        names.append(name)
        if len(names) >= 2 * TOPIC_NAMES_MAX:
            names = sorted(names)[:limit]
    return TopicsResponse(sorted(names)[:limit], before, before + following, total)


LAG_TOPICS_MAX: Final = 100
"""Topics of one FirnTopicLags request."""
LAG_ENDS_MAX: Final = 10_000
"""Partitions of one FirnTopicLags request, of all its topics together."""
LAG_GROUPS_MAX: Final = 100
"""Groups that one FirnTopicLags response names."""
LAG_OFFSETS_SHOWN: Final = 12
"""Offsets of a named group, those with the greatest lags."""
UNKNOWN_END: Final = -1


class TopicLagsRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnTopicLags: how far the groups of one broker are behind in some topics (ADR 0047)."""

    ends: Annotated[
        list[tuple[TopicText, Annotated[list[int], msgspec.Meta(max_length=LAG_ENDS_MAX)]]],
        msgspec.Meta(max_length=LAG_TOPICS_MAX),
    ]
    """Of each topic, the ends of its partitions as the caller knows them; ``UNKNOWN_END`` for others."""
    limit: int = 0
    """Most groups to name, at most ``LAG_GROUPS_MAX``. The groups of the first topic are named, in the order of their ids."""
    after: str = ""
    """The named groups begin behind this id; empty for the first page."""
    partition: int = -1
    """The offset of named groups in this partition alone is told; -1 for those with the greatest lags."""


class TopicLag(msgspec.Struct, array_like=True, frozen=True):
    """How far groups with commits are behind in a topic."""

    topic: str
    groups: int
    lag: int
    """The lags of all groups together."""
    greatest: int = 0
    greatest_group: str = ""
    whole: bool = True
    """False if a lag is not known: the sums are of the others."""


class GroupOnTopic(msgspec.Struct, array_like=True, frozen=True):
    """A group with commits or members on a topic."""

    group_id: str
    group_type: str
    state: str
    members: int
    reads: bool
    """Whether a member reads the topic."""
    partitions: int
    """With a commit."""
    lag: int
    """-1 if it is not known of each partition."""
    offsets: list[tuple[int, int]]
    """Partition and committed offset, of at most ``LAG_OFFSETS_SHOWN``."""


class TopicLagsResponse(msgspec.Struct, array_like=True, frozen=True):
    lags: list[TopicLag] = []
    """Of the topics that the caller may describe."""
    groups: list[GroupOnTopic] = []
    before: int = 0
    """Groups of the first topic up to ``after``."""
    fitting: int = 0
    """All groups of the first topic."""
    whole: bool = True
    """False if the broker does not know all of its groups yet, or has too many to look at."""


class ForwardedRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnForwarded names the address of the client for which a connection is made (ADR 0034, HF)."""

    address: str


class ForwardedResponse(msgspec.Struct, array_like=True, frozen=True):
    error: str = ""
    """A sentence if the address does not count. The connection ends then."""


DRAIN_STEPS: Final = ("begin", "status", "take-back", "stop")
LEFT_PER_ANSWER_MAX: Final = 1_000
"""A response names so many partitions at most that are not in the store as a whole."""


class DrainRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnDrain uploads all acknowledged records of tiered topics before the broker stops for good (ADR 0019)."""

    step: str
    """``begin`` (a second one joins the drain under way), ``status``, ``take-back`` (until the broker said "drained"), ``stop``
    (after that)."""


class DrainLeft(msgspec.Struct, array_like=True, frozen=True):
    """A partition of a tiered topic with records that are only on the broker's disk."""

    topic: str
    partition: int
    covered_end_offset: int
    """All records below this offset are in the store, or deleted; -1 if that is not known."""
    log_end_offset: int
    """-1 if that is not known."""
    bytes: int
    why: str
    """The cause of the partition's wait."""


class DrainKept(msgspec.Struct, array_like=True, frozen=True):
    """A topic that a drain does not upload."""

    topic: str
    partitions: int
    bytes: int
    why: str
    """``compacted``, or the setting that keeps the topic from the store."""


class DrainResponse(msgspec.Struct, array_like=True, frozen=True):
    cluster_id: str
    node_id: int
    state: str
    """``serving``, ``draining``, ``drained`` (nothing is written any more, and the broker stops)."""
    elapsed_ms: int = 0
    """Since the drain began."""
    left_bytes: int = 0
    """Bytes of tiered topics that are only on the disk."""
    left_partitions: int = 0
    uploaded_bytes: int = 0
    """Since the drain began."""
    bytes_per_second: int = 0
    """Since the drain began; 0 if nothing was uploaded yet."""
    seconds_left: float = -1
    """-1 if it cannot be told."""
    open_transactions: int = 0
    """Open transactions that tiered partitions wait for."""
    left: list[DrainLeft] = []
    """The first ``LEFT_PER_ANSWER_MAX``."""
    kept: list[DrainKept] = []
    """Topics with bytes on the disk that are not tiered."""
    error: str = ""
    """A sentence, if the step was refused."""


SCHEMA_RECORDS_MAX: Final = 2_000
"""Records of one append to `_schemas`: the deletion of a subject with so many versions."""
SCHEMA_REQUEST_BYTES_MAX: Final = 1_100_000
"""A longer FirnSchemas is refused before it is read."""
SCHEMA_READ_BYTES: Final = 1_000_000
"""A response to a read ends after so many bytes. Its last record may pass them."""
SchemaRecords: TypeAlias = Annotated[list[tuple[bytes, bytes | None]], msgspec.Meta(max_length=SCHEMA_RECORDS_MAX)]


class SchemasRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnSchemas appends to `_schemas` under a condition, or reads it (ADR 0041). The leader of `_schemas`-0 answers it."""

    step: str
    """``append`` or ``read``."""
    offset: int
    """Of an append: where the log must end. Of a read: the first offset."""
    subject: str | None = None
    """Of an append: the subject that all records belong to; None for records that only an operator writes."""
    records: SchemaRecords = []
    """Of an append: keys and values. A value that is None is a tombstone."""
    history: str = ""
    """Of an append: ``SchemasResponse.history`` of the caller's read; empty if it read a log that did not exist."""


class SchemasResponse(msgspec.Struct, array_like=True, frozen=True):
    error_code: int = 0
    error: str = ""
    """A sentence, if the request was refused."""
    leader: int = -1
    """With an error: the broker to ask instead; -1 if the one that answers does not know."""
    end: int = -1
    """Of an append: where the log ends now. Of a read: the offset of the next read."""
    moved: bool = False
    """Of an append: nothing was appended, because the log ends at ``end``."""
    wait_ms: int = 0
    """Of an append: nothing was appended, because another caller is admitted alone for so long at most."""
    records: list[tuple[int, int, bytes, bytes | None]] = []
    """Of a read: offset, timestamp in ms, key and value of each record that the caller may see."""
    history: str = ""
    """Of a read: names the topic and its last loss of an end. Offsets of two histories may have different records."""
    may_count: bool = False
    """With an error of an append: the records were written, and it is not known whether they count."""


REQUEST_PARTS_MAX: Final = 1_000
"""Partitions that one keyed request writes to."""
REQUEST_BYTES_MAX: Final = 512_000
"""A longer FirnRequests is refused before it is read. A result of 10,000 records in 1,000 partitions fits in it."""
KEYED_BATCHES_MAX: Final = 16
"""Partitions of a try whose steps a broker takes by itself."""
KEYED_BYTES_MAX: Final = 64 * KIB
"""Bytes of a FirnKeyed: appending them is a matter of some milliseconds."""
KEYED_RECORDS_MAX: Final = 100
"""Records of a FirnKeyed. Each is a place in its result."""
KeyedBatches: TypeAlias = Annotated[list[bytes], msgspec.Meta(max_length=KEYED_BATCHES_MAX)]
RequestParts: TypeAlias = Annotated[list[tuple[str, int]], msgspec.Meta(max_length=REQUEST_PARTS_MAX)]


class RequestsRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnRequests looks keys of requests over HTTP up, and appends their results (ADR 0043). The leader of the key's partition
    answers it; the principal is the connection's."""

    step: str
    """``look``, ``settle``, ``append``, ``release`` or ``fate``."""
    key: bytes = b""
    """The value of `Idempotency-Key`."""
    try_id: bytes = b""
    """16 random bytes of one try."""
    partitions: RequestParts = []
    """Of a look: the partitions that the records would be written to. Of a fate: the one of the record."""
    size_bytes: int = 0
    """Of a look: of the result that would be written."""
    transactional_id: str = ""
    """Of an append: the transaction that has the records."""
    producer_id: int = -1
    """Of an append: the transaction's. Of a fate: the record's."""
    producer_epoch: int = -1
    """As ``producer_id``."""
    result: bytes = b""
    """Of an append: the value of the record, as ``docs/formats.md`` has it."""
    offset: int = -1
    """Of a fate: the record's."""


class RequestsResponse(msgspec.Struct, array_like=True, frozen=True):
    error_code: int = 0
    error: str = ""
    """A sentence, if the request was refused."""
    principal: str = ""
    """Of the connection. Keys of two principals are two keys."""
    prefix: str = ""
    """With which all transactional ids of the caller's keyed requests begin."""
    leaders: list[int] = []
    """The brokers that lead the partitions of results; -1 for a partition that has no leader. Empty while there is no topic."""
    found: str = ""
    """``known``, ``open``, ``reserved`` or ``unknown``. Of an append: ``accepted``, or ``taken``, with nothing appended, if the
    key has another result. Of a fate: ``committed``, ``aborted``, ``open`` or ``gone``."""
    result: bytes = b""
    """Of a known key: the value of its record."""
    try_id: bytes = b""
    """Of an open key: the try that has it."""
    timeout_ms: int = 0
    """Of an unknown key: how long its transaction may be open."""


class KeyedRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnKeyed takes all steps of one try of a request over HTTP with a key (ADR 0043, EO19). The leader of the key's partition
    answers it; the principal is the connection's."""

    key: bytes
    """The value of `Idempotency-Key`."""
    try_id: bytes
    """16 random bytes of one try."""
    transactional_id: str
    """Of a transaction that has not begun yet."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    """How long the transaction may be open, as its coordinator knows it."""
    result: bytes
    """The value of the record, as ``docs/formats.md`` has it, without offsets. It names the partitions."""
    batches: KeyedBatches
    """For each partition of the result, its records."""


class KeyedResponse(RequestsResponse, array_like=True, frozen=True):
    """``found`` is as in the answer of a look if nothing was written. Else it is ``failed`` (a record or the result was refused, as
    the error says), ``taken`` (the key has another result), ``accepted`` (the result was appended, and it is not known whether the
    transaction is committed), or ``committed``."""

    offsets: list[tuple[int, int]] = []
    """Of the last two, for each batch: its base offset, and the time of its append or -1."""
    producer_id: int = -1
    """For the next transaction of the id, if this one is committed."""
    producer_epoch: int = -1
    """As ``producer_id``."""


class AppendRequest(msgspec.Struct, array_like=True, frozen=True):
    """FirnAppend appends one batch if a partition has no data behind the offset up to which the caller has read (ADR 0043, EO18).
    Without records it asks for the end of committed records alone. The partition's leader answers."""

    topic_id: UUID
    partition: int
    records: bytes = b""
    """One batch; empty to ask for the end."""
    end: int = -1
    """Of an append: the caller has read all that is below it."""
    epoch: int = -1
    """Of an append: the leader epoch of the last batch below ``end``; -1 for an empty partition."""
    transactional_id: str = ""
    """Of an append: the transaction that has the batch; empty for none."""
    timeout_ms: int = 0
    """Of an append: how long to wait until the batch is stored."""


class AppendResponse(msgspec.Struct, array_like=True, frozen=True):
    error_code: int = 0
    error: str = ""
    """A sentence, if the request was refused."""
    moved: bool = False
    """Nothing was appended: the partition has other data behind the offset, or another history below it."""
    end: int = -1
    """Where a reader of committed records has read all of them; of a batch that was appended: the offset behind it. -1 if that is
    not known now."""
    epoch: int = -1
    """The leader epoch of the last batch below ``end``; -1 for an empty partition."""
    base_offset: int = -1
    """Of the batch that was appended, perhaps by an earlier try."""
    log_append_ms: int = -1
    """-1 if the topic keeps the records' own timestamps."""


T = TypeVar("T", bound=msgspec.Struct)


def pack(message: msgspec.Struct) -> bytes:
    """A request or response as the bytes field of its frame."""
    return msgspec.msgpack.encode(message)


_ARRAY_OF_FOUR: Final = b"\x94"
_LONG_ARRAY: Final = Struct(">BI")
_LONG_ARRAY_TYPE: Final = 0xDD


_SHORT_ARRAY_MAX: Final = 15
_ARRAY_MAX: Final = 0xFFFF


def pack_samples(samples: Sequence[tuple[Any, ...]]) -> PackedSamples:
    """Some ``MetricSample``, packed. ``samples``: as ``app.core.metrics.Sample``, ``SAMPLES_A_STEP`` at most."""
    count = len(samples)
    assert count <= _ARRAY_MAX, count
    return PackedSamples(count, _ENCODER.encode(samples)[1 if count <= _SHORT_ARRAY_MAX else 3 :])


def pack_metrics(node_id: int, cluster_id: str, samples: Sequence[PackedSamples], *, process_id: int) -> bytes:
    """``pack`` of a ``MetricsResponse`` whose samples were packed by pieces, since all at once would hold the loop."""
    head = _ARRAY_OF_FOUR + _ENCODER.encode(node_id) + _ENCODER.encode(cluster_id)
    head += _LONG_ARRAY.pack(_LONG_ARRAY_TYPE, sum([one.number for one in samples]))
    return b"".join((head, *[one.data for one in samples], _ENCODER.encode(process_id)))


def unpack_metrics_steps(data: bytes, names: Container[str] | None = None) -> Generator[None, None, MetricsResponse]:
    """``unpack`` of a ``MetricsResponse``, by a generator that yields after every few samples. ``names``: of the samples that are
    wanted; None for all. Raises: ProtocolError."""
    raw = unpack(_PackedMetrics, data)
    samples = []
    try:
        for place, packed in enumerate(drained(raw.samples)):
            sample = _SAMPLES.decode(packed)
            if names is None or sample.name in names:
                samples.append(sample)
            if not place % SAMPLES_A_STEP:
                yield
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"Not a MetricsResponse: {clause(error)}.") from error
    return MetricsResponse(raw.node_id, raw.cluster_id, samples, raw.process_id)


def unpack(kind: type[T], data: bytes) -> T:
    """The reverse. Raises: ProtocolError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:  # the sender chooses how deeply values are nested
        raise ProtocolError(f"Not a {kind.__name__}: {clause(error)}.") from error
