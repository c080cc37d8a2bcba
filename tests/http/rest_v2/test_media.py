"""Media types of REST v2 name the formats of keys and values."""

from __future__ import annotations

from app.http.consumers.settings import Format
from app.http.rest_v2.media import PLAIN_TYPES, embedded_type, format_of


def test_a_body_has_the_format_that_its_type_names() -> None:
    for form in Format:
        assert format_of(embedded_type(form)) is form
        assert format_of(f"application/vnd.kafka.{form.value}+json; charset=utf-8") is form
    assert all(format_of(kind) is Format.BINARY for kind in PLAIN_TYPES)
    assert format_of("application/x-www-form-urlencoded") is None
    assert format_of("application/vnd.kafka.xml.v2+json") is None
