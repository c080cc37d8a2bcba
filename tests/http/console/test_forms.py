from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.console.forms import DECODED_AT_ONCE, FIELDS_MAX, fields_of


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=60), max_size=FIELDS_MAX - 1))
def test_fields_are_those_that_a_browser_has_sent(fields: dict[str, str]) -> None:
    body = urlencode(fields, errors="replace").encode()
    assert fields_of(body) == dict(parse_qsl(body.decode(), keep_blank_values=True))


@pytest.mark.parametrize("before", range(DECODED_AT_ONCE - 4, DECODED_AT_ONCE + 4))
def test_no_piece_of_a_long_field_ends_within_an_escape(before: int) -> None:
    text = "a" * before + "ä" * 40_000
    body = urlencode({"value": text}).encode()
    assert fields_of(body) == {"value": text}
    assert sum(1 for _ in fields_of.steps(body)) > 5, "it is read in portions"


def test_a_form_of_too_many_fields_is_none() -> None:
    with pytest.raises(ValueError, match="too many"):
        fields_of(b"&" * FIELDS_MAX)


async def test_a_body_that_is_no_form_is_refused(http: httpx.AsyncClient, cluster: str) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for body, status in ((b"form_token=%FF", 400), (b"a=1", 403), (b"a&" * FIELDS_MAX, 400), (b"", 403)):
        response = await http.post("/console/topics/t/produce", content=body)
        assert response.status_code == status, body
        assert "content-security-policy" in response.headers
