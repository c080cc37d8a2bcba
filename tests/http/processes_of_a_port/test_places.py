"""Requests between the processes of a port have limited places, and pages of the console have fewer of their own."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from app.http.errors import RestError
from app.http.processes.places import CONSOLE_PASSED_MAX, DESCRIPTORS, PASSED_MAX, Places


@pytest.mark.parametrize(("console", "most"), [(True, CONSOLE_PASSED_MAX), (False, PASSED_MAX)])
def test_a_share_that_is_full_refuses_and_leaves_the_other_one(console: bool, most: int) -> None:
    places = Places("Too many.")
    with ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(places.place(console=console))
        with pytest.raises(RestError, match="Too many") as refused, places.place(console=console):
            pass
        assert refused.value.answer.status == 503
        stack.enter_context(places.place(console=not console))
    with places.place(console=console):
        pass


def test_descriptors_are_kept_for_all_places_of_both_directions() -> None:
    assert CONSOLE_PASSED_MAX < PASSED_MAX
    assert DESCRIPTORS == 2 * (PASSED_MAX + CONSOLE_PASSED_MAX)
