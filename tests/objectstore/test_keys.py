"""Keys of objects: the allowed ones, at the ends of each limit. Each adapter refuses the others (``test_behaviour.py``)."""

from __future__ import annotations

import pytest

from app.objectstore.api import InvalidKey
from app.objectstore.keys import (
    KEY_CHARS_MAX,
    KEY_PART_CHARS_MAX,
    check_key,
    check_prefix,
    check_range,
    is_visible_name,
)

PART = "p" * KEY_PART_CHARS_MAX
LONGEST = ("k/" * KEY_CHARS_MAX)[: KEY_CHARS_MAX - 1] + "k"


@pytest.mark.parametrize("key", ["a", "a/b.c/_d-e", "0", "-a", PART, f"{PART}/{PART}", LONGEST])
def test_allowed_keys_and_their_beginnings_are_allowed(key: str) -> None:
    check_key(key)
    for end in range(len(key) + 1):
        if not key[:end].endswith("."):
            check_prefix(key[:end])


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".a", "a/.b", "a/..", "a b", "ä", PART + "p", LONGEST + "k"])
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidKey, match="is not an object key"):
        check_key(key)


@pytest.mark.parametrize("prefix", ["/", "a//", ".", "a/.b", "a b", PART + "p", LONGEST + "k"])
def test_other_beginnings_are_refused(prefix: str) -> None:
    with pytest.raises(InvalidKey, match="is not the beginning of an object key"):
        check_prefix(prefix)


def test_a_name_is_visible_if_it_can_be_a_part_of_a_key() -> None:
    assert is_visible_name("a.b")
    assert not is_visible_name(".a")
    assert not is_visible_name("a/b")
    assert not is_visible_name("")


def test_ranges_are_not_empty_and_begin_at_0_at_least() -> None:
    check_range(0, 1)
    for start, end in ((-1, 1), (1, 1), (2, 1)):
        with pytest.raises(AssertionError):
            check_range(start, end)
