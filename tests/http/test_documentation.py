"""The documentation page is complete in itself and names every operation."""

from __future__ import annotations

import random
import re

from app.core.units import TimestampMs
from app.http.application import create_app
from app.http.documentation import page
from app.http.gateway import HttpSettings


class _Clock:
    def now_ms(self) -> TimestampMs:
        return TimestampMs(0)


def test_every_operation_is_on_the_page_and_nothing_is_loaded_from_elsewhere() -> None:
    app = create_app(HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=_Clock(), rng=random.Random(1))
    document = app.openapi()
    html = page(document)
    operations = [(method, path) for path, of in document["paths"].items() for method in of if method != "parameters"]
    assert len(operations) > 10
    for method, path in operations:
        assert f"{method.upper()}</span><code>{path}</code>" in html
    assert not re.search(r"(src|href)=.?https?:", html)


def test_text_of_the_document_cannot_become_markup() -> None:
    html = page({"info": {"title": "<script>", "version": "1"}, "paths": {"/<b>": {"get": {"summary": "<i>"}}}})
    assert "<script>" not in html
    assert "<b>" not in html
    assert "<i>" not in html
