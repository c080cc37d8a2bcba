"""Forms of the console, sent as a browser sends them."""

from __future__ import annotations

import re

import httpx

HTML = {"accept": "text/html"}


def token_in(text: str) -> str:
    """The token of the session, as each form of a page has it."""
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', text)
    assert found is not None, text
    return found[1]


async def send_form(http: httpx.AsyncClient, page: str, **fields: str) -> httpx.Response:
    """Send a form of ``page`` to its own address."""
    shown = await http.get(page, headers=HTML)
    assert shown.status_code == 200, shown.text
    form = {"form_token": token_in(shown.text), **fields}
    return await http.post(page.partition("?")[0], data=form, headers=HTML)
