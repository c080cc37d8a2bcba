"""ACLs are created, found by each filter, linked to, and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.metadata.image.records import SECURITY_LEVEL
from tests.support.broker import RunningBroker, running_broker
from tests.support.rest_links import linked
from tests.support.several import unfenced
from tests.support.waiting import until

READ: Final = {
    "resource_type": "TOPIC",
    "resource_name": "flights & more",
    "pattern_type": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}
DENY: Final = {**READ, "resource_name": "fl", "pattern_type": "PREFIXED", "operation": "WRITE", "permission": "DENY"}
OTHER: Final = {**READ, "resource_type": "GROUP", "resource_name": "g", "principal": "User:bob", "host": "10.0.0.1"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(
        tmp_path,
        new_level=SECURITY_LEVEL,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:ANONYMOUS",
    ) as running:
        await until(lambda: unfenced(running))
        yield running


def fields(acls: Any) -> list[dict[str, str]]:
    return [{name: acl[name] for name in READ} for acl in acls]


@pytest.fixture
async def filled(http: httpx.AsyncClient, cluster: str) -> str:
    """The path of the ACLs, of which there are three."""
    assert (await http.post(f"{cluster}/acls", json=READ)).status_code == 201
    assert (await http.post(f"{cluster}/acls:batch", json={"data": [DENY, OTHER]})).status_code == 201
    return f"{cluster}/acls"


async def test_each_acl_is_found_alone_by_its_link_and_all_are_listed(http: httpx.AsyncClient, filled: str) -> None:
    answer = (await http.get(filled)).json()
    assert answer["kind"] == "KafkaAclList"
    found = fields(answer["data"])
    assert len(found) == 3
    assert all(one in found for one in (READ, DENY, OTHER))
    assert len(linked(answer["data"])) == 3
    for acl in answer["data"]:
        assert (await http.get(acl["metadata"]["self"])).json()["data"] == [acl]
    assert (await http.get(answer["metadata"]["self"])).json() == answer


async def test_a_new_acl_says_where_it_is(http: httpx.AsyncClient, cluster: str) -> None:
    made = await http.post(f"{cluster}/acls", json=READ)
    assert fields((await http.get(made.headers["location"])).json()["data"]) == [READ]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("resource_type=group", [OTHER]),
        ("pattern_type=PREFIXED", [DENY]),
        ("pattern_type=MATCH&resource_name=flights %26 more&resource_type=TOPIC", [DENY, READ]),
        ("principal=User:bob", [OTHER]),
        ("host=10.0.0.1", [OTHER]),
        ("operation=WRITE", [DENY]),
        ("permission=DENY", [DENY]),
        ("principal=User:carol", []),
    ],
)
async def test_a_search_finds_the_acls_that_match(
    http: httpx.AsyncClient, filled: str, query: str, wanted: list[dict[str, str]]
) -> None:
    found = fields((await http.get(f"{filled}?{query}")).json()["data"])
    assert sorted(found, key=str) == sorted(wanted, key=str)


async def test_pages_of_a_search_keep_its_filters(http: httpx.AsyncClient, filled: str) -> None:
    first = (await http.get(f"{filled}?principal=User:alice&page_size=1")).json()
    second = (await http.get(first["metadata"]["next"])).json()
    assert sorted(fields(first["data"] + second["data"]), key=str) == sorted([READ, DENY], key=str)
    assert second["metadata"]["next"] is None


async def test_a_deletion_answers_with_the_acls_that_are_gone(http: httpx.AsyncClient, filled: str) -> None:
    query = "resource_type=TOPIC&pattern_type=ANY&operation=ANY&permission=ANY"
    gone = await http.delete(f"{filled}?{query}")
    assert gone.status_code == 200
    assert sorted(fields(gone.json()["data"]), key=str) == sorted([READ, DENY], key=str)
    assert fields((await http.get(filled)).json()["data"]) == [OTHER]
    assert (await http.delete(f"{filled}?{query}")).json() == {"data": []}


@pytest.mark.parametrize("missing", ["resource_type", "pattern_type", "operation", "permission"])
async def test_a_deletion_that_forgets_a_filter_deletes_nothing(
    http: httpx.AsyncClient, filled: str, missing: str
) -> None:
    filters = {name: "ANY" for name in ("resource_type", "pattern_type", "operation", "permission") if name != missing}
    answer = await http.delete(filled, params=filters)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(f"The parameter {missing} is missing")
    assert len((await http.get(filled)).json()["data"]) == 3


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"operation": "LOOK"}, 400, "operation"),
        ({"resource_type": "UNKNOWN"}, 400, "resource_type"),
        ({"pattern_type": "REGEX"}, 400, "pattern_type"),
        ({"permission": ""}, 400, "permission"),
        ({"host": 7}, 422, "host"),
        ({"colour": "red"}, 422, "colour"),
    ],
)
async def test_an_acl_that_cannot_be_is_refused_with_the_name_of_the_field_and_none_of_its_batch_is_made(
    http: httpx.AsyncClient, cluster: str, change: dict[str, Any], status: int, field: str
) -> None:
    for path, body in (("acls", {**READ, **change}), ("acls:batch", {"data": [DENY, {**READ, **change}]})):
        answer = await http.post(f"{cluster}/{path}", json=body)
        assert answer.status_code == status
        assert field in answer.json()["message"]
    assert (await http.get(f"{cluster}/acls")).json()["data"] == []


async def test_a_search_with_an_unknown_name_is_refused(http: httpx.AsyncClient, cluster: str) -> None:
    answer = await http.get(f"{cluster}/acls?operation=LOOK")
    assert answer.status_code == 400
    assert answer.json()["message"].startswith("The field operation is 'LOOK', and none of ANY, ALL, READ")
