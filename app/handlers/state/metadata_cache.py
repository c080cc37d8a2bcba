"""Metadata responses as bytes, so that many clients can ask for many topics.

The description of a topic depends on the topic's image, on the living brokers, and on the partitions that this broker cannot open.
It is encoded once for each of them, in each version that clients use. A response is put together from these pieces, and the
response with all topics is kept for as long as the image stays. A large topic is encoded in chunks, in several turns of the loop if
there are many; when some of its partitions change, the chunks of the others are used again.

All callers get the same description of a topic. The topics that a caller may see are decided before this, and operations that
differ from caller to caller are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from app.wire.codec import encode_response, struct_encoder
from app.wire.primitives import INT32, uvarint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

KINDS_MAX: Final = 4
"""Versions (each with or without authorized operations) whose pieces are kept: some 60 bytes for each partition and kind, and as
many for all topics together. Clients of one fleet use one or two."""
CHUNK: Final = 500
"""Partitions that are encoded together: 2 or 3 ms."""
FLEXIBLE: Final = 9
OPERATIONS: Final = range(8, 11)
"""Versions with the authorized operations of the cluster, behind the topics."""
TOPIC_OPERATIONS: Final = 8
"""First version with the authorized operations of each topic, behind its partitions."""
ERROR_CODE: Final = 13
"""First version with an error for the whole response, behind the topics."""

Kind = tuple[int, int]
"""Version, and the authorized operations of topics as they are told."""


Describe = Callable[["TopicImage", Sequence["PartitionImage"]], MetadataResponseTopic]
"""Describes a topic and some of its partitions for clients."""


class _Chunk(NamedTuple):
    partitions: tuple[PartitionImage, ...]
    start: int
    """Their position in the encoded topic."""
    end: int


class _Encoded(NamedTuple):
    topic: TopicImage
    body: bytes
    chunks: tuple[_Chunk, ...]


class _Pieces:
    """The topics of one kind, encoded."""

    __slots__ = ("all_topics", "encode", "encode_partition", "topics", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.encode = struct_encoder(ApiKey.METADATA, version, "MetadataResponseTopic")
        self.encode_partition = struct_encoder(ApiKey.METADATA, version, "MetadataResponsePartition")
        self.topics: dict[UUID, _Encoded] = {}
        self.all_topics: bytes | None = None
        """All topics of the image, in its order."""


class TopicInTheMaking:
    """A topic that is being encoded, as of one image. Made by ``MetadataCache.begin``."""

    __slots__ = ("_bodies", "kind", "pieces", "topic", "unencoded")

    def __init__(self, kind: Kind, pieces: _Pieces, topic: TopicImage) -> None:
        self.kind = kind
        self.pieces = pieces
        self.topic = topic
        known = pieces.topics.get(topic.topic_id)
        self._bodies: list[bytes] = []
        self.unencoded: dict[int, tuple[PartitionImage, ...]] = {}
        """The partitions of each chunk that is to be added, by its number."""
        for number, start in enumerate(range(0, len(topic.partitions), CHUNK)):
            partitions = topic.partitions[start : start + CHUNK]
            body = b""
            if known is not None and number < len(known.chunks) and known.chunks[number].partitions == partitions:
                body = known.body[known.chunks[number].start : known.chunks[number].end]
            else:
                self.unencoded[number] = partitions
            self._bodies.append(body)

    def add(self, number: int, partitions: Iterable[MetadataResponsePartition]) -> None:
        """Encode the partitions of a chunk."""
        self._bodies[number] = b"".join(map(self.pieces.encode_partition, partitions))

    def encoded(self, head: MetadataResponseTopic) -> _Encoded:
        """The encoded topic. ``head``: its description without partitions."""
        topic, version = self.topic, self.pieces.version
        empty, flexible = self.pieces.encode(head), version >= FLEXIBLE
        end = len(empty) - (4 if version >= TOPIC_OPERATIONS else 0) - (1 if flexible else 0)
        count = len(topic.partitions)
        before = empty[: end - (1 if flexible else INT32.size)] + (
            uvarint(count + 1) if flexible else INT32.pack(count)
        )
        position, chunks = len(before), []
        for number, body in enumerate(self._bodies):
            partitions = topic.partitions[number * CHUNK : (number + 1) * CHUNK]
            chunks.append(_Chunk(partitions, position, position + len(body)))
            position += len(body)
        # Of a small topic the next encoding is as cheap as a comparison.
        kept = tuple(chunks) if len(chunks) > 1 else ()
        return _Encoded(topic, b"".join((before, *self._bodies, empty[end:])), kept)


class MetadataCache:
    """Belongs to one broker. Call ``follow`` first in each request."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._offline_changes = -1
        self._pieces: OrderedDict[Kind, _Pieces] = OrderedDict()

    def follow(self, image: ClusterImage, offline_changes: int) -> None:
        """Forget descriptions that do not fit ``image`` any more. ``offline_changes`` counts the changes of the set of partitions
        that this broker cannot open."""
        if image.brokers is not self._brokers or offline_changes != self._offline_changes:
            self._pieces.clear()
            self._brokers, self._offline_changes = image.brokers, offline_changes
        if image is self._image:
            return
        self._image = image
        for pieces in self._pieces.values():
            pieces.all_topics = None
            if len(pieces.topics) > len(image.topics_by_id):  # some were deleted
                pieces.topics = {key: one for key, one in pieces.topics.items() if key in image.topics_by_id}

    def all_topics(self, kind: Kind, describe: Describe) -> bytes:
        """Every topic of the image, encoded one after the other."""
        pieces = self._of(kind)
        if pieces.all_topics is None:
            assert self._image is not None
            topics = self._image.topics_by_name.values()
            pieces.all_topics = b"".join([self._topic(kind, topic, describe) for topic in topics])
        return pieces.all_topics

    def lacking(self, kind: Kind, topics: Iterable[TopicImage] | None) -> list[TopicImage]:
        """The topics among ``topics`` (None: all) that are not encoded yet."""
        assert self._image is not None
        pieces = self._of(kind)
        if topics is None:
            if pieces.all_topics is not None:
                return []
            topics = self._image.topics_by_name.values()
        known = pieces.topics
        return [topic for topic in topics if (found := known.get(topic.topic_id)) is None or found.topic is not topic]

    def topic(self, kind: Kind, topic: TopicImage, describe: Describe) -> bytes:
        """One topic of the image, encoded."""
        return self._topic(kind, topic, describe)

    def begin(self, kind: Kind, topic: TopicImage) -> TopicInTheMaking:
        """Begin to encode a topic of the image. Add the chunks that it names, then ``finish`` it."""
        return TopicInTheMaking(kind, self._of(kind), topic)

    def finish(self, making: TopicInTheMaking, head: MetadataResponseTopic) -> bool:
        """Keep an encoded topic. Returns: False if its description has changed since ``begin``. Then begin again: chunks that did
        not change are kept."""
        topic = making.topic
        assert self._image is not None
        now = self._image.topic_by_id(topic.topic_id)
        if self._pieces.get(making.kind) is not making.pieces or now is None:
            return False
        known = making.pieces.topics.get(topic.topic_id)
        if known is None or known.topic is not now:
            making.pieces.topics[topic.topic_id] = making.encoded(head)
        return now is topic

    def unknown(self, kind: Kind, topic: MetadataResponseTopic) -> bytes:
        """Encode the error for a topic that does not exist. It is not kept."""
        return self._of(kind).encode(topic)

    def _topic(self, kind: Kind, topic: TopicImage, describe: Describe) -> bytes:
        pieces = self._of(kind)
        found = pieces.topics.get(topic.topic_id)
        if found is not None and found.topic is topic:
            return found.body
        making = TopicInTheMaking(kind, pieces, topic)
        for number, partitions in making.unencoded.items():
            making.add(number, describe(topic, partitions).partitions)
        found = pieces.topics[topic.topic_id] = making.encoded(describe(topic, ()))
        return found.body

    def _of(self, kind: Kind) -> _Pieces:
        found = self._pieces.get(kind)
        if found is None:
            found = _Pieces(kind[0])
            self._pieces[kind] = found
            if len(self._pieces) > KINDS_MAX:
                self._pieces.popitem(last=False)
        else:
            self._pieces.move_to_end(kind)
        return found


def with_operations(version: int, topic: bytes, operations: int) -> bytes:
    """An encoded topic, with other authorized operations. ``version`` is ``TOPIC_OPERATIONS`` or newer."""
    behind = 1 if version >= FLEXIBLE else 0
    end = len(topic) - behind
    return b"%b%b%b" % (topic[: end - INT32.size], INT32.pack(operations), topic[end:])


def put_together(version: int, frame: MetadataResponse, count: int, topics: Iterable[bytes]) -> bytes:
    """The body of a response: ``frame``, which has no topics, with ``count`` encoded topics in their place."""
    empty = encode_response(ApiKey.METADATA, version, frame)
    flexible = version >= FLEXIBLE
    behind = (4 if version in OPERATIONS else 0) + (2 if version >= ERROR_CODE else 0) + (1 if flexible else 0)
    end = len(empty) - behind
    begin = end - (1 if flexible else INT32.size)
    return b"".join((empty[:begin], uvarint(count + 1) if flexible else INT32.pack(count), *topics, empty[end:]))
