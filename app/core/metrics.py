"""Counters and histograms cheap enough for the hot path: plain attributes, summed up only when they are read.

A ``Registry`` belongs to one process and is read by ``samples()``; the HTTP process renders the samples of all processes in
Prometheus' text format. Nothing here locks: every registry belongs to one event loop.

Tests: ``tests/http/test_metrics.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

LATENCY_BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds, in seconds, of every latency histogram: a page-cache append to a stuck object store."""

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One exposed number. ``name`` carries Prometheus' suffix (``_total``, ``_bucket``, …) already."""

    family: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    name: str
    labels: Labels
    value: float


class Counter:
    """A number that only rises. Add to ``value`` directly."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class PackedSamples(NamedTuple):
    """Samples as bytes for another process."""

    number: int
    data: bytes


class SampleBlock:
    """Samples that stay the same until another block takes their place, such as those of one client."""

    __slots__ = ("packed", "samples")

    def __init__(self, samples: Callable[[], Iterator[Sample]]) -> None:
        self.samples: Final = samples
        """Gives all of them. The first one of a family has the help."""
        self.packed: Sequence[PackedSamples] | None = None
        """The samples as they were packed last; None if they were not, or if they are too long to be kept twice."""


class Registry:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._help: dict[str, tuple[Literal["counter", "gauge", "histogram"], str]] = {}
        self._counters: dict[tuple[str, Labels], Counter] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._gauges: list[tuple[str, Callable[[], Iterable[tuple[Labels, float]]]]] = []
        self._sources: list[tuple[frozenset[str], Callable[[], Iterable[tuple[str, Labels, float] | None]]]] = []
        self._foreign: list[tuple[str, Callable[[], Iterable[SampleBlock]]]] = []

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        """The counter of this name (ending in ``_total``) and labels, made on first use. Keep it; do not look it up hot."""
        assert name.endswith("_total"), name
        self._help.setdefault(name, ("counter", help))
        return self._counters.setdefault((name, tuple(sorted(labels.items()))), Counter())

    def histogram(self, name: str, help: str, **labels: str) -> Histogram:
        """The histogram of this name (ending in its unit) and labels, made on first use."""
        self._help.setdefault(name, ("histogram", help))
        return self._histograms.setdefault((name, tuple(sorted(labels.items()))), Histogram())

    def gauge(self, name: str, help: str, read: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
        """Register a gauge that is computed only when the metrics are read: ``read`` yields (labels, value) pairs."""
        self._help.setdefault(name, ("gauge", help))
        self._gauges.append((name, read))

    def describe(self, name: str, kind: Literal["counter", "gauge"], help: str) -> None:
        """A family whose samples come from a ``source``."""
        self._help.setdefault(name, (kind, help))

    def source(self, read: Callable[[], Iterable[tuple[str, Labels, float] | None]], of: Iterable[str] = ()) -> None:
        """Register a reader of described families, which is asked only when the metrics are read. ``of``: all names that it yields,
        so that it is not asked if none of them is wanted.

        ``read`` yields (name, labels, value), and None for a step without a sample. Between two steps other work may run, so it
        must bear that the collection changes meanwhile, and no step may take long.
        """
        self._sources.append((frozenset(of), read))

    def foreign(self, read: Callable[[], Iterable[SampleBlock]], prefix: str) -> None:
        """As ``source``, for samples whose families come from elsewhere, such as from clients. ``prefix``: of all their names."""
        self._foreign.append((prefix, read))

    def samples(self) -> list[Sample]:
        """Everything as of now, sorted by family."""
        return sorted((sample for sample in self.steps() if sample is not None), key=lambda sample: sample.family)

    def steps(self, names: Collection[str] = ()) -> Iterator[Sample | None]:
        """Everything, in small steps; other work may run between them. None is a step without a sample. ``names``: of the samples
        that are wanted; empty for all. Readers of others are not asked."""
        yield from self.own_steps(names)
        for block in self.blocks(names):
            for sample in block.samples():
                yield sample if not names or sample.name in names else None

    def blocks(self, names: Collection[str] = ()) -> Iterator[SampleBlock]:
        """The samples that come from elsewhere. A block may have others than ``names``, too. Other work may run between two
        blocks."""
        for prefix, read in self._foreign:
            if not names or any(name.startswith(prefix) for name in names):
                yield from read()

    def own_steps(self, names: Collection[str] = ()) -> Iterator[Sample | None]:
        """As ``steps``, without ``blocks``."""
        for sample in self._kept():
            if not names or sample.name in names:
                yield sample
        for name, read in self._gauges:
            if names and name not in names:
                continue
            kind, text = self._help[name]
            for labels, value in read():
                yield Sample(name, kind, text, name, labels, value)
        for of, read_all in self._sources:
            if names and of and of.isdisjoint(names):
                continue
            for found in read_all():
                if found is None or (names and found[0] not in names):
                    yield None
                else:
                    name, labels, value = found
                    yield Sample(name, *self._help[name], name, labels, value)

    def _kept(self) -> list[Sample]:
        """Counters and histograms: as many as there are APIs and outcomes, not as there are partitions."""
        out: list[Sample] = []
        for (name, labels), counter in self._counters.items():
            kind, text = self._help[name]
            out.append(Sample(name, kind, text, name, labels, counter.value))
        for (name, labels), histogram in self._histograms.items():
            kind, text = self._help[name]
            running = 0
            for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
                running += count
                le = "+Inf" if bound == float("inf") else repr(bound)
                out.append(Sample(name, kind, text, f"{name}_bucket", (*labels, ("le", le)), running))
            out.append(Sample(name, kind, text, f"{name}_sum", labels, histogram.total))
            out.append(Sample(name, kind, text, f"{name}_count", labels, running))
        return out
