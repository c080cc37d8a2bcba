"""Every process of a port names the same owner for an id of an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.http.consumers.names import generated_id, is_name, owner_of


@given(process=st.integers(0, 15))
def test_a_generated_id_belongs_to_the_process_that_made_it(process: int) -> None:
    made = generated_id(process, "0123456789abcdef01234567")
    assert is_name(made)
    assert owner_of("g", made, 16) == process


@given(group=st.text(max_size=20), name=st.text(max_size=20), processes=st.integers(1, 16))
def test_a_chosen_id_belongs_to_one_of_the_processes_and_always_to_the_same(
    group: str, name: str, processes: int
) -> None:
    owner = owner_of(group, name, processes)
    assert 0 <= owner < processes
    assert owner == owner_of(group, name, processes)


def test_chosen_ids_are_spread_over_processes_and_depend_on_the_group() -> None:
    owners = [owner_of("g", f"name-{index}", 4) for index in range(200)]
    assert {owners.count(process) > 20 for process in range(4)} == {True}
    assert owners != [owner_of("h", f"name-{index}", 4) for index in range(200)]
    assert owner_of("ab", "c", 1 << 30) != owner_of("a", "bc", 1 << 30)


def test_a_generated_id_of_a_process_that_is_no_more_still_has_one_owner() -> None:
    assert owner_of("g", generated_id(7, "0" * 24), 2) in (0, 1)


def test_a_name_needs_no_escape_in_a_path() -> None:
    assert all(is_name(one) for one in ("one", "a.b", "a_b-c~d:e@f", "x" * 200))
    assert not any(is_name(one) for one in ("", ".", "..", "a/b", "a b", "a%2fb", "ä", "a\n", "x" * 201, "a?b", "a#b"))
