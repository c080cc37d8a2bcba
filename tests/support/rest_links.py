"""The links in responses of REST v3."""

from __future__ import annotations

from typing import Any


def linked(answer: Any) -> set[str]:
    """Every URL that a response links to."""
    match answer:
        case dict():
            links = ("self", "related", "next")
            own = {value for name, value in answer.items() if name in links and isinstance(value, str)}
            return own.union(*(linked(value) for value in answer.values()))
        case list():
            return set().union(*(linked(value) for value in answer))
        case _:
            return set()
