"""From the counts of brokers in the last hour to a cost a month, and the topics that cause it.

A broker takes a reading of its counters once a minute (``Hour``), and shows the sums of the last hour with its metrics
(``firn_hour_*``). The sum over brokers is read from there (``spent_of``). Resources that are paid by the hour are in no counter:
machines, disks, load balancers.

Topics share the cost of requests and bytes of the write-ahead log by their bytes in it, of requests for segments and manifests by
the bytes of their copied segments, of storage by their stored bytes, and of bytes between zones by the bytes that their producers
wrote and their consumers read. No topic has the rest: heartbeats and the cluster's log.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from app.core.limits import GIB
from app.cost import requests
from app.cost.bill import Line, s3_rate, zone_line
from app.cost.prices import AS_OF, REGION, SECONDS_PER_MONTH, Prices, StoreKind, store_prices

HOUR_S: Final = 3600.0
TOPICS_KEPT: Final = 100
"""Topics of a reading. Those with fewer bytes are added up as ``OTHERS``."""
OTHERS: Final = "(others)"
UNKNOWN: Final = "unknown"
"""Zone of clients that name none."""

WAL: Final = "wal"
SEGMENTS: Final = "segments"
IN: Final = "in"
OUT: Final = "out"
REPLICATION: Final = "replication"
UP: Final = "up"
DOWN: Final = "down"
STORED: Final = "stored"
"""Bytes of segments as of now. All others are bytes of an hour."""

_STORE_KINDS: Final = frozenset(StoreKind)
_WHOSE: Final = {IN: "producers", OUT: "consumers", REPLICATION: "followers"}
_BY: Final = {IN: IN, OUT: OUT, REPLICATION: IN}
"""Bytes of topics by which bytes between zones are shared."""


class PartitionBytes(NamedTuple):
    """Counters of one partition's log on one broker."""

    wal: float
    segments: float
    bytes_in: float
    bytes_out: float


class Reading(NamedTuple):
    """The counters of one broker at one time."""

    requests: Mapping[tuple[str, str], float]
    """By (operation, kind of key)."""
    zones: Mapping[tuple[str, str], float]
    """Bytes by (direction, ``same``, ``other`` or ``unknown``)."""
    partitions: Mapping[tuple[str, int], PartitionBytes]
    """All that have a log here."""
    wal_bytes: Mapping[tuple[str, str], float] = {}
    """Bytes of a store of their own for write-ahead logs, by (direction, kind of store)."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The counts of one broker in the last hour, or since its start."""

    seconds: float
    requests: Mapping[tuple[str, str], float] = field(default_factory=dict)
    zones: Mapping[tuple[str, str], float] = field(default_factory=dict)
    topics: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Bytes by (kind of bytes, topic)."""
    wal_kept_bytes: float = 0.0
    """Of the write-ahead log, as of now."""
    wal_bytes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """As in ``Reading``. Empty if write-ahead logs are in the main store."""

    @property
    def wal_store(self) -> StoreKind:
        """The kind of store that write-ahead logs are in."""
        return next((StoreKind(kind) for _, kind in self.wal_bytes if kind in _STORE_KINDS), StoreKind.S3)


class _Step(NamedTuple):
    began_s: float
    ended_s: float
    requests: Mapping[tuple[str, str], float]
    zones: Mapping[tuple[str, str], float]
    topics: Mapping[tuple[str, str], float]
    wal_bytes: Mapping[tuple[str, str], float]


class Hour:
    """The increase of counters in the last hour, from readings at any times."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()
        self._before: Reading | None = None
        self._read_s = 0.0

    def note(self, reading: Reading, now_s: float, led: Iterable[tuple[str, int]]) -> None:
        """A reading. ``led``: partitions that the broker leads; bytes that it copies from others are not counted for their topics.

        A counter that fell began anew from 0: its process was started again, or its log was opened again.
        """
        before, self._before = self._before, reading
        began_s, self._read_s = self._read_s, now_s
        if before is None or now_s <= began_s:
            return
        step = _Step(
            began_s,
            now_s,
            _rises(reading.requests, before.requests),
            _rises(reading.zones, before.zones),
            _topics(reading.partitions, before.partitions, led),
            {key: _rise(value, before.wal_bytes.get(key, 0.0)) for key, value in reading.wal_bytes.items()},
        )
        self._steps.append(step)
        while self._steps and self._steps[0].began_s < now_s - HOUR_S:
            self._steps.popleft()

    def spent(self, stored: Mapping[str, float], wal_kept_bytes: float) -> Spent | None:
        """The sums. ``stored``: bytes of segments by topic. Returns: None if there was no second reading yet."""
        if not self._steps:
            return None
        requests_: dict[tuple[str, str], float] = defaultdict(float)
        zones: dict[tuple[str, str], float] = defaultdict(float)
        topics: dict[tuple[str, str], float] = defaultdict(float)
        wal_bytes: dict[tuple[str, str], float] = defaultdict(float)
        for step in self._steps:
            for total, part in (
                (requests_, step.requests),
                (zones, step.zones),
                (topics, step.topics),
                (wal_bytes, step.wal_bytes),
            ):
                for key, value in part.items():
                    total[key] += value
        for topic, value in _largest(stored).items():
            topics[STORED, topic] += value
        return Spent(
            self._steps[-1].ended_s - self._steps[0].began_s,
            dict(requests_),
            dict(zones),
            dict(topics),
            wal_kept_bytes,
            dict(wal_bytes),
        )


def _rises(
    now: Mapping[tuple[str, str], float], before: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    found = {}
    for key, value in now.items():
        rise = _rise(value, before.get(key, 0.0))
        if rise:
            found[key] = rise
    return found


def _rise(now: float, before: float) -> float:
    return now - before if now >= before else now


def _topics(
    now: Mapping[tuple[str, int], PartitionBytes],
    before: Mapping[tuple[str, int], PartitionBytes],
    led: Iterable[tuple[str, int]],
) -> dict[tuple[str, str], float]:
    none = PartitionBytes(0, 0, 0, 0)
    of_topics: dict[str, list[float]] = {}
    for key in led:
        values = now.get(key)
        if values is None:
            continue
        rises = [_rise(*pair) for pair in zip(values, before.get(key, none), strict=True)]
        if any(rises):
            sums = of_topics.setdefault(key[0], [0.0] * len(rises))
            for place, rise in enumerate(rises):
                sums[place] += rise
    kept = _largest({topic: sum(sums) for topic, sums in of_topics.items()})
    found: dict[tuple[str, str], float] = defaultdict(float)
    for topic, sums in of_topics.items():
        for of, value in zip((WAL, SEGMENTS, IN, OUT), sums, strict=True):
            if value:
                found[of, topic if topic in kept else OTHERS] += value
    return dict(found)


def _largest(by_topic: Mapping[str, float]) -> dict[str, float]:
    """The topics with most, and the sum of all others."""
    ranked = sorted(by_topic.items(), key=lambda item: -item[1])
    kept = dict(ranked[:TOPICS_KEPT])
    if rest := sum(value for _, value in ranked[TOPICS_KEPT:]):
        kept[OTHERS] = rest
    return kept


# --- as metrics -------------------------------------------------------------------------------------------------------

SECONDS_NAME: Final = "firn_hour_seconds"
REQUESTS_NAME: Final = "firn_hour_requests"
ZONES_NAME: Final = "firn_hour_zone_bytes"
TOPICS_NAME: Final = "firn_hour_topic_bytes"
WAL_BYTES_NAME: Final = "firn_hour_wal_store_bytes"
WAL_KEPT_NAME: Final = "firn_wal_kept_bytes"

Labels = tuple[tuple[str, str], ...]


def samples_of(spent: Spent) -> Iterator[tuple[str, Labels, float]]:
    """(name, labels, value) of all that ``spent_of`` reads, except for the bytes that the write-ahead log keeps."""
    yield SECONDS_NAME, (), spent.seconds
    for (operation, kind), value in spent.requests.items():
        yield REQUESTS_NAME, (("kind", kind), ("operation", operation)), value
    for (direction, zone), value in spent.zones.items():
        yield ZONES_NAME, (("direction", direction), ("zone", zone)), value
    for (of, topic), value in spent.topics.items():
        yield TOPICS_NAME, (("of", of), ("topic", topic)), value
    for (direction, kind), value in spent.wal_bytes.items():
        yield WAL_BYTES_NAME, (("direction", direction), ("kind", kind)), value


MEASURED_NAMES: Final = frozenset({SECONDS_NAME, WAL_KEPT_NAME, REQUESTS_NAME, ZONES_NAME, TOPICS_NAME, WAL_BYTES_NAME})
"""The samples that ``spent_of`` reads: at most some hundreds for a broker."""


def spent_of(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Spent | None:
    """The counts that one broker shows. Returns: None if it has not counted for long enough, or is of an older version."""
    seconds = wal_kept_bytes = 0.0
    requests_: dict[tuple[str, str], float] = {}
    zones: dict[tuple[str, str], float] = {}
    topics: dict[tuple[str, str], float] = {}
    wal_bytes: dict[tuple[str, str], float] = {}
    for name, labels, value in samples:
        if name == SECONDS_NAME:
            seconds = value
        elif name == WAL_KEPT_NAME:
            wal_kept_bytes = value
        elif name == REQUESTS_NAME:
            requests_[labels["operation"], labels["kind"]] = value
        elif name == ZONES_NAME:
            zones[labels["direction"], labels["zone"]] = value
        elif name == TOPICS_NAME:
            topics[labels["of"], labels["topic"]] = value
        elif name == WAL_BYTES_NAME:
            wal_bytes[labels["direction"], labels["kind"]] = value
    return Spent(seconds, requests_, zones, topics, wal_kept_bytes, wal_bytes) if seconds > 0 else None


# --- the bill ---------------------------------------------------------------------------------------------------------


class TopicBill(NamedTuple):
    """The cost that one topic causes."""

    topic: str
    dollars: float
    lines: Mapping[str, float]
    """Dollars by position of the bill."""


@dataclass(frozen=True, slots=True)
class MeasuredBill:
    """Dollars a month, if it goes on like that."""

    seconds: float
    """That were measured, of the broker that has been running for the shortest time."""
    brokers: int
    lines: tuple[Line, ...]
    topics: tuple[TopicBill, ...]
    """The most expensive one first."""
    unknown_gib: Mapping[str, float]
    """A month's bytes of those who named no zone: by ``producers``, ``consumers``, ``followers``."""

    @property
    def dollars(self) -> float:
        return sum(line.dollars for line in self.lines)

    @property
    def nobodys_dollars(self) -> float:
        """The cost that no topic causes."""
        return self.dollars - sum(topic.dollars for topic in self.topics)


class _Position(NamedTuple):
    """Requests of the bill, and the bytes of topics by which they are shared."""

    what: str
    by: str


_PUTS: Final = _Position("write-ahead log: PUTs", WAL)
_TAKE_OVERS: Final = _Position("write-ahead log: others", WAL)
_TIER: Final = _Position("segments and manifests: requests", SEGMENTS)
_CLUSTER: Final = _Position("cluster: requests", "")
_KINDS: Final = {"data": _TIER, "manifests": _TIER}


def _position(operation: str, kind: str) -> _Position:
    if kind == "wal":
        return _PUTS if operation == "put_if_absent" else _TAKE_OVERS
    return _KINDS.get(kind, _CLUSTER)


def measured_bill(brokers: Sequence[Spent], prices: Prices) -> MeasuredBill:
    """The bill of all brokers together; each topic has its share on each broker."""
    assert brokers
    operations: dict[_Position, dict[str, float]] = {each: {} for each in (_PUTS, _TAKE_OVERS, _TIER, _CLUSTER)}
    crossing: dict[str, float] = dict.fromkeys(_WHOSE.values(), 0.0)
    unknown: dict[str, float] = dict.fromkeys(_WHOSE.values(), 0.0)
    shares: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    stored: dict[str, float] = defaultdict(float)
    kept_gib = sum(one.wal_kept_bytes for one in brokers) / GIB
    dollars: dict[_Position, float] = defaultdict(float)
    wal_gib: dict[str, float] = defaultdict(float)
    kept_dollars = 0.0
    for one in brokers:
        month = SECONDS_PER_MONTH / one.seconds
        of_wal = store_prices(prices, one.wal_store)
        of_broker: dict[_Position, dict[str, float]] = {}
        for (operation, kind), count in one.requests.items():
            position = _position(operation, kind)
            part = {operation: count * month}
            operations[position] = requests.add(operations[position], part)
            of_broker[position] = requests.add(of_broker.get(position, {}), part)
        gib_of = {direction: value * month / GIB for (direction, _), value in one.wal_bytes.items()}
        for direction, gib in gib_of.items():
            wal_gib[direction] += gib
        for position, part in of_broker.items():
            puts, gets = requests.billed(part)
            part_prices = of_wal if position.by == WAL else store_prices(prices)
            up_gib = gib_of.get(UP, 0.0) if position is _PUTS else 0.0
            down_gib = gib_of.get(DOWN, 0.0) if position is _TAKE_OVERS else 0.0
            part_dollars = part_prices.of(puts, gets, up_gib, down_gib)
            dollars[position] += part_dollars
            _share(shares, position.what, one, position.by, part_dollars)
        for (direction, zone), value in one.zones.items():
            gib = value * month / GIB
            if zone == UNKNOWN:
                unknown[_WHOSE[direction]] += gib
            elif zone == "other":
                crossing[_WHOSE[direction]] += gib
                line = zone_line(_WHOSE[direction], gib, prices)
                _share(shares, line.what, one, _BY[direction], line.dollars)
        for (of, topic), value in one.topics.items():
            if of == STORED:
                stored[topic] += value / GIB
        kept_here = one.wal_kept_bytes / GIB * of_wal.gib_month
        kept_dollars += kept_here
        _share(shares, "write-ahead log: storage", one, WAL, kept_here)
    more = {_PUTS: wal_gib.get(UP, 0.0), _TAKE_OVERS: wal_gib.get(DOWN, 0.0)}
    lines = [
        _requests_line(position, part, dollars[position], more.get(position, 0.0))
        for position, part in operations.items()
        if part
    ]
    stored_gib = sum(stored.values())
    if stored_gib:
        rate = s3_rate(stored_gib, prices)
        lines.append(Line("S3 storage", stored_gib * rate, f"{stored_gib:,.1f} GiB of segments"))
        for topic, gib in stored.items():
            shares[topic]["S3 storage"] += gib * rate
    if kept_gib:
        how = f"{kept_gib:,.2f} GiB that are not tiered yet"
        lines.append(Line("write-ahead log: storage", kept_dollars, how))
    lines += [zone_line(whose, gib, prices) for whose, gib in crossing.items() if gib]
    topics = [TopicBill(topic, sum(parts.values()), dict(parts)) for topic, parts in shares.items()]
    return MeasuredBill(
        min(one.seconds for one in brokers),
        len(brokers),
        tuple(lines),
        tuple(sorted(topics, key=lambda one: (-one.dollars, one.topic))),
        {whose: gib for whose, gib in unknown.items() if gib},
    )


def _requests_line(position: _Position, operations: Mapping[str, float], dollars: float, gib: float) -> Line:
    puts, gets = requests.billed(operations)
    deletions = sum(count for operation, count in operations.items() if operation in requests.FREE)
    how = f"{puts:,.0f} PUT or LIST, {gets:,.0f} GET, {deletions:,.0f} DELETE (free)"
    if gib:
        how += f"; {gib:,.1f} GiB of the WAL store"
    return Line(position.what, dollars, how)


def _share(shares: dict[str, dict[str, float]], what: str, spent: Spent, by: str, dollars: float) -> None:
    """Give each topic its share of ``dollars``; no share if no topic has such bytes."""
    weights = {topic: value for (of, topic), value in spent.topics.items() if of == by and value > 0}
    total = sum(weights.values())
    if dollars and total:
        for topic, weight in weights.items():
            shares[topic][what] += dollars * weight / total


NOT_MEASURED: Final = "machines, disks, load balancers, KMS, monitoring"


def as_json(bill: MeasuredBill) -> dict[str, Any]:
    """The bill as machines read it (``firn cost --measured --json``, ``GET /v1/cost``)."""
    return {
        "prices": f"{REGION}, {AS_OF}",
        "measured_seconds": round(bill.seconds, 1),
        "brokers": bill.brokers,
        "dollars_per_month": round(bill.dollars, 4),
        "lines": [{"what": line.what, "dollars": round(line.dollars, 4), "how": line.how} for line in bill.lines],
        "topics": [
            {
                "topic": topic.topic,
                "dollars": round(topic.dollars, 4),
                "lines": {what: round(dollars, 4) for what, dollars in sorted(topic.lines.items())},
            }
            for topic in bill.topics
        ],
        "dollars_of_no_topic": round(bill.nobodys_dollars, 4),
        "gib_of_unknown_zone": {whose: round(gib, 4) for whose, gib in bill.unknown_gib.items()},
        "not_measured": NOT_MEASURED,
    }
