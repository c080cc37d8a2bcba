"""The soak's book: what it finds wrong with records that were read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loadtests.soak import Outcome, Sample, flatness
from loadtests.soak_clients import NOT_ACKNOWLEDGED, Book, Wrong, value_of


@dataclass
class Read:
    """A message as a consumer hands it out."""

    sequence: int
    at: int
    of: int = 0
    bytes_: bytes | None = None

    def value(self) -> bytes:
        return value_of(self.sequence) if self.bytes_ is None else self.bytes_

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return self.of


def book() -> Book:
    kept = Book("t", 2)
    kept.offsets.extend([10, 0, 11, NOT_ACKNOWLEDGED, 12])
    return kept


def test_what_was_acknowledged_is_fine_where_it_was_acknowledged() -> None:
    assert book().check(Read(2, 11), 0) == 2  # type: ignore[arg-type]


def test_what_was_never_acknowledged_may_be_there() -> None:
    assert book().check(Read(3, 44, of=1), 1) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "after", "words"),
    [
        (Read(2, 12), 0, "acknowledged at 11"),
        (Read(2, 11), 2, "twice, or out of order"),
        (Read(2, 11), 4, "twice, or out of order"),
        (Read(1, 0), -1, "nobody sent"),
        (Read(5, 0, of=1), -1, "nobody sent"),
        (Read(2, 11, bytes_=value_of(2)[:-1] + b"!"), 0, "nobody sent"),
        (Read(2, 11, bytes_=b"short"), 0, "not a record of ours"),
    ],
)
def test_everything_else_is_wrong(read: Read, after: int, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        book().check(read, after)  # type: ignore[arg-type]


def calm(count: int, broker_mb: float, descriptors: int = 50, lag: int = 0) -> list[Sample]:
    return [Sample(0.0, 1, True, broker_mb, 60.0, descriptors, lag, 1.0) for _ in range(count)]


def test_flat_is_flat_and_growth_is_told() -> None:
    assert flatness(Outcome(samples=calm(80, 70.0))) == []
    grown = flatness(Outcome(samples=calm(40, 70.0) + calm(40, 90.0)))
    assert grown == ["broker_mb grew from 70 to 90 in the calm half"]
    leaking = flatness(Outcome(samples=calm(40, 70.0) + calm(40, 70.0, descriptors=100)))
    assert leaking == ["descriptors grew from 50 to 100 in the calm half"]
    assert "behind" in flatness(Outcome(samples=calm(80, 70.0, lag=1_000_000)))[0]


def test_what_happens_between_restarts_is_not_held_against_it() -> None:
    restarting = [Sample(0.0, 1, False, mb, 60.0, 50, 0, 1.0) for mb in range(50, 500)]
    assert flatness(Outcome(samples=restarting + calm(80, 70.0))) == []


def test_too_little_to_say_is_said() -> None:
    assert "too short" in flatness(Outcome(samples=calm(10, 70.0)))[0]
