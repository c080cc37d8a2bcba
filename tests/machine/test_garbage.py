"""Garbage collections stay short however large the heap is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.machine.garbage import GARBAGE_THRESHOLD, MIDDLE_THRESHOLD, OLD_AFTER, SET_ASIDE_FROM_S, ShortCollections


class Node:
    """Something that refers to itself through another."""

    other: Any = None


def cycle() -> weakref.ref[Node]:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


class Loop:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Iterator[Loop]:
    frozen = gc.get_freeze_count()
    gc.collect()
    yield Loop()
    if frozen == 0:
        gc.unfreeze()


def grow(loop: Loop) -> list[list[int]]:
    """Make objects, and keep them, until old objects are to be looked at."""
    kept = []
    while not loop.calls:
        kept.append([1])
        assert len(kept) <= 2 * GARBAGE_THRESHOLD * (MIDDLE_THRESHOLD + 1) * (OLD_AFTER + 1)
    return kept


def test_old_objects_are_looked_at_in_a_turn_of_their_own(loop: Loop) -> None:
    collections = ShortCollections(loop.call_soon, cpu_s=lambda: 0.0)
    collections.begin()
    try:
        dropped = cycle()
        kept = grow(loop)
        loop.turn()
        assert dropped() is None
        assert collections.set_aside == 0
        assert len(kept) >= GARBAGE_THRESHOLD
    finally:
        collections.end()


def test_a_look_comes_before_40_000_more_objects_are_old(loop: Loop) -> None:
    collections = ShortCollections(loop.call_soon, cpu_s=lambda: 0.0)
    collections.begin()
    try:
        assert len(grow(loop)) <= 40_000
        loop.turn()
        assert len(grow(loop)) <= 40_000
    finally:
        collections.end()


def test_what_takes_long_to_look_at_is_set_aside_and_goes_with_its_last_reference(loop: Loop) -> None:
    times = iter([0.0, SET_ASIDE_FROM_S, 1.0, 1.0])
    collections = ShortCollections(loop.call_soon, cpu_s=lambda: next(times))
    collections.begin()
    try:
        before, node = gc.get_freeze_count(), Node()
        kept = grow(loop)
        loop.turn()
        assert collections.set_aside == 1
        assert gc.get_freeze_count() - before >= len(kept)
        found = weakref.ref(node)
        del node
        assert found() is None
        collections.look()
        assert collections.set_aside == 1
    finally:
        collections.end()


def test_the_interpreter_does_not_look_at_old_objects_by_itself(loop: Loop) -> None:
    looks: list[int] = []
    collections = ShortCollections(loop.call_soon, cpu_s=lambda: 0.0)
    collections.begin()
    gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "start" else None)
    try:
        kept = [[1] for _ in range(GARBAGE_THRESHOLD * MIDDLE_THRESHOLD * 12)]
        assert kept
        assert 1 in looks
        assert 2 not in looks
    finally:
        gc.callbacks.pop()
        collections.end()


def test_the_end_gives_the_interpreter_its_thresholds_back(loop: Loop) -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    collections = ShortCollections(loop.call_soon)
    collections.begin()
    assert gc.get_threshold() != before[0]
    collections.end()
    assert (gc.get_threshold(), gc.callbacks) == before
