"""Subscriptions matched with the cluster's topics: regular expressions, and a fingerprint of the result. Pure.

Regular expressions are those of RE2 (KIP-848), as in Apache Kafka: a match takes linear time in the length of the name, for
every expression. They match whole names. ``ResolvedRegex`` is the result of a match.

Tests: ``tests/groups/test_many_expressions.py``, ``tests/groups/test_consumer_offsets_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import REGEX_BYTES_MAX, REGEX_CACHE_MAX, REGEX_PROGRAM_SIZE_MAX
from app.core.turns import STRIDE, Steps, Stepwise
from app.core.units import TimestampMs
from app.groups.consumer.assignors import TopicSpec
from app.metadata.image.image import INTERNAL_TOPICS, ClusterImage, TopicImage

if TYPE_CHECKING:
    from uuid import UUID

INLINE_STEPS_MAX: Final = 20_000
"""Limit for matching on the event loop, about 5 ms: number of topics times size of the compiled expression."""
PROGRAM_BYTES_MAX: Final = 1 << 20
"""Memory limit of RE2 for one expression."""
NO_HASH: Final = 0


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched."""

    topics: frozenset[str]
    version: int
    """Version of the matched cluster image."""
    resolved_ms: TimestampMs

    def seen_by(self, sees: Callable[[str], bool] | None) -> ResolvedRegex:
        """The same without topics that may not be seen; None: all may be seen."""
        return self if sees is None else replace(self, topics=frozenset(filter(sees, self.topics)))


class TopicPattern:
    """A compiled expression."""

    __slots__ = ("_compiled",)

    def __init__(self, regex: str) -> None:
        """Raises: RequestRejected INVALID_REGULAR_EXPRESSION."""
        self._compiled = _compile(regex)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        return self._compiled is not None and self._compiled.fullmatch(name) is not None

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """The matching names, without internal topics."""
        return frozenset([name for name in names if self.matches(name) and name not in INTERNAL_TOPICS])

    def resolve(self, image: ClusterImage, now_ms: int) -> ResolvedRegex:
        """The topics of the whole cluster that match."""
        return ResolvedRegex(self.among(image.topics_by_name), image.sequence, TimestampMs(now_ms))

    def is_quick(self, names: Collection[str]) -> bool:
        """Whether matching is quick enough for the event loop."""
        return self._compiled is None or self._compiled.programsize * len(names) <= INLINE_STEPS_MAX


def matches(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names, of a few, that a formerly accepted expression matches; none if the present limits would refuse the expression."""
    try:
        pattern = TopicPattern(regex)
    except RequestRejected:
        # Its member is told when the expression is matched against all topics the next time.
        return frozenset()
    return pattern.among(names)


@lru_cache(maxsize=REGEX_CACHE_MAX)
def _compile(regex: str) -> Any:
    """None for the empty expression: by the protocol it subscribes to nothing."""
    # Most brokers never see one, and the library takes as long to load as a quarter of everything else at start.
    import re2

    if not regex:
        return None
    if len(regex.encode()) > REGEX_BYTES_MAX:
        raise _bad_pattern(regex, f"it has more than {REGEX_BYTES_MAX} bytes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        compiled = re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise _bad_pattern(
            regex, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from None
    if compiled.programsize > REGEX_PROGRAM_SIZE_MAX:
        raise _bad_pattern(regex, "it is too large")
    return compiled


def _bad_pattern(regex: str, reason: str) -> RequestRejected:
    shown = regex if len(regex) <= 80 else regex[:77] + "..."
    return RequestRejected(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {reason}.",
    )


@Stepwise
def topic_specs(names: Iterable[str], image: ClusterImage) -> Steps[dict[UUID, TopicSpec]]:
    """The existing topics, for an assignor."""
    specs: dict[UUID, TopicSpec] = {}
    for number, name in enumerate(names):
        if number % STRIDE == 0:
            yield
        topic = image.topic(name)
        if topic is not None:
            specs[topic.topic_id] = TopicSpec(len(topic.partitions), _racks(topic, image))
    return specs


def _racks(topic: TopicImage, image: ClusterImage) -> tuple[frozenset[str], ...]:
    racks = {broker_id: broker.rack for broker_id, broker in image.brokers.items() if broker.rack is not None}
    if not racks:
        return ()
    return tuple(
        frozenset([racks[replica] for replica in partition.replicas if replica in racks])
        for partition in topic.partitions
    )


def topic_ids(names: Set[str], image: ClusterImage) -> frozenset[UUID]:
    """Ids of the existing topics."""
    found = (image.topic(name) for name in names)
    return frozenset([topic.topic_id for topic in found if topic is not None])


def metadata_hash(names: Set[str], image: ClusterImage) -> int:
    """Fingerprint, as an int64, of an assignor's view of the existing topics; 0 if there are none (KIP-1101).

    It is equal in every process for the same topics, partition counts and racks. So a coordinator that loads a group sees
    whether they have changed meanwhile.
    """
    digest = blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        topic = image.topic(name)
        if topic is None:
            continue
        found = True
        racks = [sorted(of_partition) for of_partition in _racks(topic, image)]
        digest.update(repr((name, topic.topic_id.bytes, len(topic.partitions), racks)).encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if found else NO_HASH


def topics_of_regex(resolved: Mapping[str, ResolvedRegex], regex: str | None) -> frozenset[str]:
    """The topics that matched an expression; none if there is no expression, or it is not resolved."""
    found = resolved.get(regex) if regex else None
    return found.topics if found is not None else frozenset()
