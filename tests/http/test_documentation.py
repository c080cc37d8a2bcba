"""The documentation page is complete in itself and names every operation."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from typing import Any

import httpx

from app.core.units import TimestampMs
from app.http.application import create_app
from app.http.documentation import Documents, page
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


async def test_both_forms_are_made_once_and_in_a_thread() -> None:
    threads: list[int] = []

    def generate() -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {"info": {"title": "é", "version": "1"}, "paths": {}}

    documents = Documents(generate)
    first, second = await asyncio.gather(documents.html(), documents.json())
    assert (first, second) == (await documents.html(), await documents.json())
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
    assert json.loads(second)["info"]["title"] == "é"


async def test_the_routes_have_the_documents_of_their_application() -> None:
    app = create_app(HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=_Clock(), rng=random.Random(1))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        response = await http.get("/openapi.json")
        assert response.json() == app.openapi()
        assert (await http.get("/docs")).text == page(app.openapi())


def test_text_of_the_document_cannot_become_markup() -> None:
    html = page({"info": {"title": "<script>", "version": "1"}, "paths": {"/<b>": {"get": {"summary": "<i>"}}}})
    assert "<script>" not in html
    assert "<b>" not in html
    assert "<i>" not in html
