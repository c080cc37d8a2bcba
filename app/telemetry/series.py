"""The time series of one client, by Prometheus' names. Pure.

A name of OpenTelemetry becomes one of Prometheus: ``org.apache.kafka.producer.record.send.rate`` is
``kafka_client_producer_record_send_rate``, and sums end in ``_total``. All have the prefix, so no client can show a metric of the
broker. Attributes become labels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from app.core.errors import ProtocolError
from app.core.metrics import Labels, Sample, SampleBlock
from app.core.turns import Steps
from app.telemetry.otlp import Point, PushedMetrics, Unread

PREFIX: Final = "kafka_client_"
_OF_KAFKA: Final = "org.apache.kafka."
_OTHER_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9_]")
ATTRIBUTE_CHARACTERS_MAX: Final = 256
"""Characters of an attribute. A point with a longer one is dropped: two long attributes could become equal if they were cut."""
OF_CLIENT: Final = frozenset({"client_id", "client_instance_id", "client_software_name"})
"""Labels of the client itself. The attributes of these names add nothing."""
TAKEN: Final = frozenset({"node_id", "process", "le", "quantile", "job", "instance", "store"})
"""Labels with a meaning of their own at ``/metrics``: the attributes get a prefix."""
HELP: Final = "Pushed by clients (KIP-714)."
POINTS_AT_ONCE: Final = 8
"""Points that are taken in one step: about 0.1 ms."""


class Series:
    """One time series."""

    __slots__ = ("family", "labels", "rises", "value")

    def __init__(self, family: str, *, rises: bool, labels: Labels, value: float) -> None:
        self.family = family
        self.rises = rises
        self.labels = labels
        self.value = value


Known = dict[bytes, Series]
"""The series of one client by the digest of their name and attributes as they were pushed, so that these are decoded once."""


def block_of(series: Known, labels: Labels) -> SampleBlock:
    """The series of one client after a push, until the next one. ``labels``: of the client."""

    def samples() -> Iterator[Sample]:
        told: set[str] = set()
        for one in series.values():
            family = one.family
            text = "" if family in told else HELP
            told.add(family)
            kind: Literal["counter", "gauge"] = "counter" if one.rises else "gauge"
            yield Sample(family, kind, text, family, (*labels, *one.labels), one.value)

    return SampleBlock(samples)


class Taken(NamedTuple):
    """The result of a push."""

    series: Known
    dropped: int
    """Points that were not wanted, are repeated, cannot be shown, or are beyond ``series_max``."""


def take(data: bytes, known: Known, prefixes: tuple[bytes, ...] | None, series_max: int) -> Iterator[Taken | None]:
    """Take the metrics of a push. Yields None after every few points and fields, and last the result, whose series replace
    ``known``.

    ``prefixes``: of the names that are wanted; None if all are. ``series_max``: series that the client may have. A delta adds to
    the value in ``known``. Raises: ProtocolError if the bytes are no metrics; nothing is changed then.
    """
    metrics = PushedMetrics(data)
    fresh: Known = {}
    same: dict[Labels, Labels] = {}
    shown: set[tuple[str, Labels]] = set()
    dropped = count = 0
    for point in metrics.points():
        if point is None:
            yield None
            continue
        count += 1
        if count % POINTS_AT_ONCE == 0:
            yield None
        if point is Unread.POINT or (prefixes is not None and not point.name.startswith(prefixes)):
            dropped += 1
            continue
        if len(fresh) >= series_max or (key := metrics.digest(point)) in fresh:
            dropped += 1
            continue
        before = known.get(key)
        series = before if before is not None else (yield from _series_of(metrics, point, same))
        if series is None or (series.family, series.labels) in shown:
            dropped += 1
            continue
        shown.add((series.family, series.labels))
        value = point.value + (series.value if before is not None and point.is_delta else 0.0)
        fresh[key] = Series(series.family, rises=series.rises, labels=series.labels, value=value)
    yield Taken(fresh, dropped)


def _series_of(metrics: PushedMetrics, point: Point, same: dict[Labels, Labels]) -> Steps[Series | None]:
    """A series that is pushed for the first time, in steps; None if it cannot be shown. ``same``: the labels of other series of the
    client, which are shared. Raises: ProtocolError."""
    attributes = yield from metrics.attributes(point)
    labels: dict[str, str] = {}
    for name, value in attributes:
        if len(name) > ATTRIBUTE_CHARACTERS_MAX or len(value) > ATTRIBUTE_CHARACTERS_MAX:
            return None
        label = _OTHER_CHARACTER.sub("_", name)
        if label in OF_CLIENT:
            continue
        if label in TAKEN or label.startswith("__") or label[0].isdigit():
            label = f"kafka_{label}"
        labels.setdefault(label, value)
    try:
        text = point.name.decode()
    except UnicodeDecodeError:
        raise ProtocolError("The name of a metric is not UTF-8.") from None
    family = sys.intern(_family_of(text, point.is_sum))  # clients push the same ones
    shown = tuple(sorted(labels.items()))
    return Series(family, rises=point.is_sum, labels=same.setdefault(shown, shown), value=0.0)


def _family_of(name: str, rises: bool) -> str:
    """The name of a family. Those of counters end in ``_total``, and no others do, so a name has one type."""
    family = PREFIX + _OTHER_CHARACTER.sub("_", name.removeprefix(_OF_KAFKA))
    if rises:
        return f"{family.removesuffix('_total')}_total"
    return f"{family}_value" if family.endswith("_total") else family
