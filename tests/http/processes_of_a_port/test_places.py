"""Requests between the processes of a port have limited places, and pages of the console have fewer of their own."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from app.http.console.acts.exporting import EXPORT
from app.http.console.acts.following import FOLLOW
from app.http.errors import RestError
from app.http.processes.places import (
    CONSOLE_PASSED_MAX,
    DESCRIPTORS,
    ENDLESS_PASSED_MAX,
    PASSED_MAX,
    Places,
    is_endless,
)

PAGE = "/console/topics"
"""The path of a page that ends by itself."""


@pytest.mark.parametrize(("console", "most"), [(True, CONSOLE_PASSED_MAX), (False, PASSED_MAX)])
def test_a_share_that_is_full_refuses_and_leaves_the_other_one(console: bool, most: int) -> None:
    places = Places("Too many.")
    with ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(places.place(console=console, path=PAGE))
        with pytest.raises(RestError, match="Too many") as refused, places.place(console=console, path=PAGE):
            pass
        assert refused.value.answer.status == 503
        stack.enter_context(places.place(console=not console, path=PAGE))
    with places.place(console=console, path=PAGE):
        pass


@pytest.mark.parametrize("route", [FOLLOW, EXPORT])
def test_streams_of_records_leave_places_to_pages(route: str) -> None:
    stream = route.replace("{topic_name}", "t")
    places = Places("Too many.")
    with ExitStack() as stack:
        for _ in range(ENDLESS_PASSED_MAX):
            stack.enter_context(places.place(console=True, path=stream))
        with pytest.raises(RestError, match="Too many readers") as refused, places.place(console=True, path=stream):
            pass
        assert (refused.value.answer.status, refused.value.answer.error_code) == (429, 42901)
        for _ in range(CONSOLE_PASSED_MAX - ENDLESS_PASSED_MAX):
            stack.enter_context(places.place(console=True, path=PAGE))
        with pytest.raises(RestError, match="Too many\\."), places.place(console=True, path=PAGE):
            pass
    with places.place(console=True, path=stream):
        pass


@pytest.mark.parametrize(
    "page", ["/console/topics/follow", "/console/topics/export/messages", "/console/groups/a/export"]
)
def test_a_page_whose_path_has_a_stream_s_word_is_no_stream(page: str) -> None:
    assert not is_endless(page)


def test_descriptors_are_kept_for_all_places_of_both_directions() -> None:
    assert CONSOLE_PASSED_MAX < PASSED_MAX
    assert DESCRIPTORS == 2 * (PASSED_MAX + CONSOLE_PASSED_MAX)
