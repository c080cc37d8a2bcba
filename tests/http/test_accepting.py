"""Media types are agreed as RFC 9110 says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.accepting import chosen
from app.http.rest_v2.media import PLAIN_TYPES
from app.http.schemas import V2_TYPE

KAFKA, JSON = PLAIN_TYPES[1:]


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        ("", V2_TYPE),
        ("*/*", V2_TYPE),
        ("application/json", JSON),
        ("application/json, application/vnd.kafka.v2+json", V2_TYPE),
        ("application/json;q=0.9, application/vnd.kafka.v2+json;q=0.5", JSON),
        ("application/vnd.kafka.v2+json;q=0, */*;q=0.1", KAFKA),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("text/html, application/*;q=0.2", V2_TYPE),
        ("text/html", None),
        ("application/json;q=0", None),
        ("application/json;q=2", None),
        (",,;q=1", V2_TYPE),
    ],
)
def test_the_type_that_the_client_likes_best_is_chosen(accept: str, found: str | None) -> None:
    assert chosen(accept, PLAIN_TYPES) == found


@given(st.text(max_size=300))
def test_any_header_chooses_an_offered_type_or_none(accept: str) -> None:
    assert chosen(accept, PLAIN_TYPES) in (*PLAIN_TYPES, None)
