"""Prometheus' text format (0.0.4) from samples of any process. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from app.core.metrics import Labels, Sample
from app.core.turns import drained

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GATHERED_A_STEP: Final = 100
WRITTEN_A_STEP: Final = 50
"""Samples in some 0.1 ms."""


def render_steps(samples: list[Sample]) -> Generator[None, None, list[bytes]]:
    """The samples as text, families together, each with one HELP and one TYPE line: by a generator that yields after every few
    samples, and returns pieces of UTF-8. It empties the list."""
    families: dict[str, list[Sample]] = {}
    for place, sample in enumerate(drained(samples)):
        families.setdefault(sample.family, []).append(sample)
        if not place % GATHERED_A_STEP:
            yield
    pieces: list[bytes] = []
    for family in sorted(families):
        members = drained(families.pop(family))
        first = next(members)
        pieces.append(f"# HELP {family} {_escaped_help(first.help)}\n# TYPE {family} {first.kind}\n".encode())
        some = [first]
        while some:
            lines = [f"{member.name}{_labels(member.labels)} {_number(member.value)}\n" for member in some]
            pieces.append("".join(lines).encode())
            some = list(islice(members, WRITTEN_A_STEP))
            yield
    return pieces


def labelled(samples: Iterable[Sample], **labels: str) -> Iterator[Sample]:
    """The samples with further labels, which name their origin."""
    more = tuple(labels.items())
    return (sample._replace(labels=(*more, *sample.labels)) for sample in samples)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped_value(value)}"' for name, value in labels) + "}"


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def escaped_value(text: str) -> str:
    """The value of a label, as it stands between quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return (
        str(int(value)) if value == value and float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))
    )
