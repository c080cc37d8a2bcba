"""The part of PromQL that the rules of ``infra/monitoring`` use, evaluated over metrics that were scraped.

It has no extrapolation: ``rate`` and ``increase`` count between the first and the last sample of their window. The test that runs
``promtool`` holds the rules against Prometheus itself.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

RULES: Final = Path(__file__).parents[2] / "infra" / "monitoring" / "firn.rules.yaml"
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LOOKBACK_S: Final = 300
"""A sample counts for so long after its scrape, as in Prometheus."""
TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<name>[a-zA-Z_:][\w:]*)|(?P<text>"[^"]*")|(?P<window>\[\d+[smhd]\])'
    r"|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/<>=(){},]))"
)
COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else float("nan"),
}  # fmt: skip
AGGREGATIONS: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "min": min}
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
ANSWERS: Final = ContextVar[list[tuple[str, bool]] | None]("answers", default=None)
"""Where each question whether an alert fires is noted, with its answer."""


class Scraped(NamedTuple):
    """One sample of one scrape."""

    name: str
    labels: Labels
    at_s: float
    value: float


class Scrapes:
    """What was scraped, with the times that a test gives."""

    def __init__(self, rules: Path = RULES) -> None:
        groups = yaml.safe_load(rules.read_text())["groups"]
        rules_of = [rule for group in groups for rule in group["rules"]]
        self.alerts: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in rules_of if "alert" in rule}
        self.recorded: dict[str, str] = {rule["record"]: rule["expr"] for rule in rules_of if "record" in rule}
        self._samples: dict[str, list[Scraped]] = {}
        self.times_s: list[float] = []

    def add(self, text: str, at_s: float) -> None:
        """Take a page of ``/metrics``."""
        self.times_s.append(at_s)
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                scraped = Scraped(one.name, frozenset(one.labels.items()), at_s, one.value)
                self._samples.setdefault(one.name, []).append(scraped)

    @property
    def names(self) -> set[str]:
        return set(self._samples)

    def value(self, expression: str, at_s: float) -> Vector:
        """The vector that an expression gives at a time; a number has no labels."""
        found = _Parser(self, expression, at_s).whole()
        return found if isinstance(found, dict) else {frozenset(): found}

    def firing(self, alert: str, at_s: float) -> list[dict[str, str]]:
        """The labels of the instances of an alert that fire: its expression held for as long as it says, at each scrape."""
        rule = self.alerts[alert]
        held_s = _seconds(rule.get("for", "0s"))
        times_s = [at_s, *(one for one in self.times_s if at_s - held_s < one < at_s), at_s - held_s]
        held = [self.value(rule["expr"], one).keys() for one in times_s]
        found = [dict(labels) for labels in held[0] if all(labels in one for one in held[1:])]
        if (answers := ANSWERS.get()) is not None:
            answers.append((alert, bool(found)))
        return found

    def of(self, name: str, at_s: float, window_s: float) -> dict[Labels, list[Scraped]]:
        """The samples of a name in the window that ends at a time."""
        found: dict[Labels, list[Scraped]] = {}
        for one in self._samples.get(name, ()):
            if at_s - window_s < one.at_s <= at_s:
                found.setdefault(one.labels, []).append(one)
        return found


def _seconds(text: str) -> float:
    return int(text[:-1]) * UNITS_S[text[-1]]


class _Parser:
    """Evaluates while it reads: the rules are short."""

    def __init__(self, scrapes: Scrapes, expression: str, at_s: float) -> None:
        self._scrapes, self._at_s = scrapes, at_s
        self._tokens: list[tuple[str, str]] = []
        position = 0
        text = expression.strip()
        while position < len(text):
            found = TOKEN.match(text, position)
            assert found is not None, f"not understood: {text[position:]}"
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            position = found.end()
        self._place = 0

    def _next(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> tuple[str, str]:
        token = self._tokens[self._place]
        assert not wanted or token[1] == wanted, (wanted, token)
        self._place += 1
        return token

    def whole(self) -> float | Vector:
        found = self._either()
        assert self._place == len(self._tokens), self._tokens[self._place :]
        return found

    def _either(self) -> float | Vector:
        left = self._compared()
        while self._next() == "or":
            self._take()
            right = self._compared()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {**right, **left}
        return left

    def _compared(self) -> float | Vector:
        left = self._sum()
        if self._next() not in COMPARISONS:
            return left
        compare = COMPARISONS[self._take()[1]]
        as_number = self._next() == "bool"
        if as_number:
            self._take()
        right = self._sum()
        assert isinstance(left, dict), "numbers are not compared"
        found: Vector = {}
        for labels, value in left.items():
            other = _other(right, labels)
            if other is not None and as_number:
                found[labels] = float(compare(value, other))
            elif other is not None and compare(value, other):
                found[labels] = value
        return found

    def _sum(self) -> float | Vector:
        left = self._product()
        while self._next() in ("+", "-"):
            left = _combined(ARITHMETIC[self._take()[1]], left, self._product())
        return left

    def _product(self) -> float | Vector:
        left = self._primary()
        while self._next() in ("*", "/"):
            left = _combined(ARITHMETIC[self._take()[1]], left, self._primary())
        return left

    def _primary(self) -> float | Vector:
        kind, text = self._take()
        if kind == "number":
            return float(text)
        if text == "(":
            found = self._either()
            self._take(")")
            return found
        assert kind == "name", text
        if text == "time":
            self._take("(")
            self._take(")")
            return self._at_s
        if text in ("topk", "histogram_quantile"):
            self._take("(")
            first = float(self._take()[1])
            self._take(",")
            inner = self._either()
            self._take(")")
            assert isinstance(inner, dict)
            return _greatest(inner, int(first)) if text == "topk" else _quantiles(inner, first)
        if text in AGGREGATIONS:
            return self._aggregated(AGGREGATIONS[text])
        if text in ("rate", "increase", "min_over_time"):
            self._take("(")
            found = self._over(text)
            self._take(")")
            return found
        if text in self._scrapes.recorded:
            return self._scrapes.value(self._scrapes.recorded[text], self._at_s)
        matches = self._matchers()
        window = self._scrapes.of(text, self._at_s, LOOKBACK_S)
        return {labels: samples[-1].value for labels, samples in window.items() if matches(dict(labels))}

    def _aggregated(self, reduce: Callable[[Iterable[float]], float]) -> Vector:
        kept: list[str] = []
        if self._next() == "by":
            self._take()
            self._take("(")
            while self._next() != ")":
                kept.append(self._take()[1])
                if self._next() == ",":
                    self._take()
            self._take(")")
        self._take("(")
        inner = self._either()
        self._take(")")
        assert isinstance(inner, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(frozenset(one for one in labels if one[0] in kept), []).append(value)
        return {labels: reduce(values) for labels, values in groups.items()}

    def _over(self, function: str) -> Vector:
        name = self._take()[1]
        matches = self._matchers()
        kind, window = self._take()
        assert kind == "window", window
        found: Vector = {}
        for labels, samples in self._scrapes.of(name, self._at_s, _seconds(window[1:-1])).items():
            if not matches(dict(labels)):
                continue
            if function == "min_over_time":
                found[labels] = min(one.value for one in samples)
            elif len(samples) > 1:
                risen = _risen([one.value for one in samples])
                found[labels] = risen / (samples[-1].at_s - samples[0].at_s) if function == "rate" else risen
        return found

    def _matchers(self) -> Callable[[Mapping[str, str]], bool]:
        wanted: list[tuple[str, str, str]] = []
        if self._next() == "{":
            self._take()
            while self._next() != "}":
                label, sign, text = (self._take()[1] for _ in range(3))
                wanted.append((label, sign, text[1:-1]))
                if self._next() == ",":
                    self._take()
            self._take("}")
        return lambda labels: all(_matches(labels.get(label, ""), sign, text) for label, sign, text in wanted)


def _matches(value: str, sign: str, text: str) -> bool:
    equal = re.fullmatch(text, value) is not None if "~" in sign else value == text
    return equal is (sign in ("=", "=~"))


def _risen(values: Sequence[float]) -> float:
    """By how much a counter rose; it begins at 0 again when its process does."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _greatest(vector: Vector, count: int) -> Vector:
    return dict(sorted(vector.items(), key=lambda one: -one[1])[:count])


def _quantiles(buckets: Vector, quantile: float) -> Vector:
    """The upper bound of the bucket with the quantile. Prometheus estimates a value within the bucket."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(frozenset(one for one in labels if one[0] != "le"), []).append((bound, count))
    found: Vector = {}
    for labels, counts in groups.items():
        counts.sort()
        if counts[-1][1] > 0:
            found[labels] = next(bound for bound, count in counts if count >= quantile * counts[-1][1])
    return found


def metrics_read(expression: str) -> set[str]:
    """The families of the program that an expression reads."""
    text = re.sub(r'"[^"]*"', '""', expression)
    return {
        re.sub("_(bucket|sum|count)$", "", name)
        for name in re.findall(r"(?<![:\w])(?:firn|process)_\w+(?!:)\b", text)
        if not re.search(rf":{name}|{name}:", text)
    }


def labels_read(expression: str) -> set[str]:
    """The labels that an expression groups by or matches."""
    text = re.sub(r'"[^"]*"', '""', expression)
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", text) for label in labels.split(",")}
    return grouped | {
        label for braces in re.findall(r"\{([^}]*)\}", text) for label in re.findall(r"(\w+)\s*=", braces)
    }


def _other(right: float | Vector, labels: Labels) -> float | None:
    return right.get(labels) if isinstance(right, dict) else right


def _combined(combine: Callable[[float, float], float], left: float | Vector, right: float | Vector) -> float | Vector:
    if not isinstance(left, dict):
        if not isinstance(right, dict):
            return combine(left, right)
        return {labels: combine(left, value) for labels, value in right.items()}
    return {
        labels: combine(value, other) for labels, value in left.items() if (other := _other(right, labels)) is not None
    }
