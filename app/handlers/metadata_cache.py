"""Metadata responses as bytes, so that many clients can ask for many topics.

What a client is told of a topic depends on the topic's image, on which brokers live, and on the partitions that this broker cannot
open. It is encoded once for each of them, in each version that clients use. A response is put together from these pieces, and the
response with all topics is kept for as long as the image stays.

All callers are told the same of a topic. Which topics a caller may see is decided before this, and operations that differ from
caller to caller are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataResponse, MetadataResponseTopic
from app.wire.codec import encode_response, struct_encoder
from app.wire.primitives import INT32, uvarint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.metadata.cluster import BrokerImage, ClusterImage, TopicImage

KINDS_MAX: Final = 4
"""Versions (each with or without authorized operations) whose pieces are kept: some 60 bytes for each partition and kind, and as
many for all topics together. Clients of one fleet use one or two."""
FLEXIBLE: Final = 9
OPERATIONS: Final = range(8, 11)
"""Versions with the authorized operations of the cluster, behind the topics."""
ERROR_CODE: Final = 13
"""First version with an error for the whole response, behind the topics."""

Kind = tuple[int, int]
"""Version, and the authorized operations of topics as they are told."""


class _Pieces:
    """The topics of one kind, encoded."""

    __slots__ = ("all_topics", "encode", "topics")

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.encode = encode
        self.topics: dict[UUID, tuple[TopicImage, bytes]] = {}
        self.all_topics: bytes | None = None
        """All topics of the image, in its order."""


class MetadataCache:
    """Belongs to one broker. Call ``follow`` first in each request."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._offline_changes = -1
        self._pieces: OrderedDict[Kind, _Pieces] = OrderedDict()

    def follow(self, image: ClusterImage, offline_changes: int) -> None:
        """Forget what is not true of ``image`` any more. ``offline_changes`` counts changes of what this broker cannot open."""
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

    def all_topics(self, kind: Kind, describe: Callable[[TopicImage], MetadataResponseTopic]) -> bytes:
        """Every topic of the image, encoded one after the other."""
        pieces = self._of(kind)
        if pieces.all_topics is None:
            assert self._image is not None
            topics = self._image.topics_by_name.values()
            pieces.all_topics = b"".join([self._topic(pieces, topic, describe) for topic in topics])
        return pieces.all_topics

    def lacking(self, kind: Kind, topics: Iterable[TopicImage] | None) -> list[TopicImage]:
        """Those of ``topics`` (None: of all) that are not encoded yet."""
        assert self._image is not None
        pieces = self._of(kind)
        if topics is None:
            if pieces.all_topics is not None:
                return []
            topics = self._image.topics_by_name.values()
        known = pieces.topics
        return [topic for topic in topics if (found := known.get(topic.topic_id)) is None or found[0] is not topic]

    def topic(self, kind: Kind, topic: TopicImage, describe: Callable[[TopicImage], MetadataResponseTopic]) -> bytes:
        """One topic of the image, encoded."""
        return self._topic(self._of(kind), topic, describe)

    def unknown(self, kind: Kind, topic: MetadataResponseTopic) -> bytes:
        """What a client is told of a topic that is not there; not kept."""
        return self._of(kind).encode(topic)

    def _topic(
        self, pieces: _Pieces, topic: TopicImage, describe: Callable[[TopicImage], MetadataResponseTopic]
    ) -> bytes:
        found = pieces.topics.get(topic.topic_id)
        if found is not None and found[0] is topic:
            return found[1]
        encoded = pieces.encode(describe(topic))
        pieces.topics[topic.topic_id] = topic, encoded
        return encoded

    def _of(self, kind: Kind) -> _Pieces:
        found = self._pieces.get(kind)
        if found is None:
            found = _Pieces(struct_encoder(ApiKey.METADATA, kind[0], "MetadataResponseTopic"))
            self._pieces[kind] = found
            if len(self._pieces) > KINDS_MAX:
                self._pieces.popitem(last=False)
        else:
            self._pieces.move_to_end(kind)
        return found


def put_together(version: int, frame: MetadataResponse, count: int, topics: Iterable[bytes]) -> bytes:
    """The body of a response: ``frame``, which has no topics, with ``count`` encoded topics in their place."""
    empty = encode_response(ApiKey.METADATA, version, frame)
    flexible = version >= FLEXIBLE
    behind = (4 if version in OPERATIONS else 0) + (2 if version >= ERROR_CODE else 0) + (1 if flexible else 0)
    end = len(empty) - behind
    begin = end - (1 if flexible else INT32.size)
    return b"".join((empty[:begin], uvarint(count + 1) if flexible else INT32.pack(count), *topics, empty[end:]))
