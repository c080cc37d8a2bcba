"""Lists come in pages: all elements once, in order, whatever the size of a page."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.broker import RunningBroker


async def all_pages(http: httpx.AsyncClient, url: str | None) -> list[list[dict[str, Any]]]:
    """The pages from a URL on, by following ``next``."""
    found = []
    while url is not None:
        answer = (await http.get(url)).json()
        found.append(answer["data"])
        url = answer["metadata"]["next"]
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 100])
async def test_pages_of_any_size_have_each_topic_once_and_in_order(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, size: int
) -> None:
    names = [f"t{index}" for index in range(7)]
    for name in reversed(names):
        await broker.create_topic(name)
    pages = await all_pages(http, f"{cluster}/topics?page_size={size}")
    assert [topic["topic_name"] for page in pages for topic in page] == names
    assert {len(page) for page in pages[:-1]} <= {size}
    assert pages[-1]


async def test_a_list_without_a_size_is_whole(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> None:
    await broker.create_topic("t", 30)
    answer = (await http.get(f"{cluster}/topics/t/partitions")).json()
    assert len(answer["data"]) == 30
    assert answer["metadata"]["next"] is None


async def test_a_topic_that_comes_between_two_pages_neither_repeats_nor_hides_others(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    for name in ("b", "d", "f"):
        await broker.create_topic(name)
    first = (await http.get(f"{cluster}/topics?page_size=2")).json()
    assert [topic["topic_name"] for topic in first["data"]] == ["b", "d"]
    for name in ("a", "c", "e"):
        await broker.create_topic(name)
    pages = await all_pages(http, first["metadata"]["next"])
    assert [topic["topic_name"] for page in pages for topic in page] == ["e", "f"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=0", "page_size"),
        ("page_size=-1", "page_size"),
        ("page_size=x", "page_size"),
        ("page_size=99999999999999999999", "page_size"),
        ("page_token=%00", "page_token"),
        ("page_token=YWJj", "page_token"),
        ("page_token=" + "W1" * 20_000, "page_token"),
        ("page_token=WzFd", "page_token"),  # [1], of a list of partitions
    ],
)
async def test_a_page_that_cannot_be_is_refused_with_the_name_of_the_field(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, query: str, field: str
) -> None:
    await broker.create_topic("t")
    answer = await http.get(f"{cluster}/topics?{query}")
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)
    assert f" {field} " in answer.json()["message"]
