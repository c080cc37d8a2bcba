"""A copy-on-write map behaves like a copy of its base, and never changes a mapping that it was given or has frozen."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from app.metadata.image.copy_on_write import CopyOnWriteMap

entries = st.dictionaries(st.integers(0, 5), st.integers(), max_size=4)
puts = st.tuples(st.integers(0, 5), st.none() | st.integers())
scripts = st.lists(puts | st.none(), max_size=12)
"""Entries that are put, and None for a freeze."""

Step = tuple[int, int | None] | None


def assert_equal(map_: CopyOnWriteMap[int, int], model: dict[int, int]) -> None:
    """Every way to read returns the same as the model."""
    assert map_ == model
    assert len(map_) == len(model)
    assert list(map_) == list(map_.keys()) == list(model)
    assert list(map_.items()) == list(model.items())
    assert list(map_.values()) == list(model.values())
    assert [map_[key] for key in model] == list(model.values())
    for key in range(6):
        assert (key in map_) == (key in model)
        assert map_.get(key) == model.get(key)
        assert map_.get(key, "none") == model.get(key, "none")


@given(entries, scripts)
def test_it_is_like_a_copy_of_the_base_after_any_changes(base: dict[int, int], script: list[Step]) -> None:
    map_, model = CopyOnWriteMap(base), dict(base)
    shared: list[tuple[Mapping[int, int], dict[int, int]]] = [(base, dict(base))]
    """Mappings that others may hold, and their entries at that moment."""
    for step in script:
        if step is None:
            frozen = map_.freeze()
            assert frozen == model
            assert not map_.changed
            shared.append((frozen, dict(model)))
        else:
            key, value = step
            map_.put(key, value)
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
            assert map_.changed or shared[-1][1] == model
        assert_equal(map_, model)
    assert all(mapping == then for mapping, then in shared), "no shared mapping changes"


@given(entries, st.lists(st.integers(0, 5)))
def test_a_map_without_a_change_freezes_to_the_base_itself(base: dict[int, int], absent: list[int]) -> None:
    map_ = CopyOnWriteMap(base)
    for key in absent:
        if key not in base:
            map_.put(key, None)
    assert map_.freeze() is base


def test_the_entries_are_copied_once_for_many_changes() -> None:
    map_ = CopyOnWriteMap({1: 1})
    map_.put(2, 2)
    view = map_.items()
    map_.put(3, 3)
    assert dict(view) == {1: 1, 2: 2, 3: 3}, "the second change went into the same copy"
    assert map_.freeze() is map_.freeze()
