"""Prometheus' text format (0.0.4) from samples of any process. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.metrics import Labels, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(samples: Iterable[Sample]) -> str:
    """The samples as text, families together, each with one HELP and one TYPE line."""
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.family, []).append(sample)
    lines: list[str] = []
    for family, members in sorted(families.items()):
        first = members[0]
        lines.append(f"# HELP {family} {_escaped_help(first.help)}")
        lines.append(f"# TYPE {family} {first.kind}")
        lines.extend(f"{member.name}{_labels(member.labels)} {_number(member.value)}" for member in members)
    return "\n".join([*lines, ""])


def labelled(samples: Iterable[Sample], **labels: str) -> list[Sample]:
    """The samples with further labels, which say where they come from."""
    more = tuple(labels.items())
    return [sample._replace(labels=(*more, *sample.labels)) for sample in samples]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped_value(value)}"' for name, value in labels) + "}"


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped_value(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return (
        str(int(value)) if value == value and float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))
    )
