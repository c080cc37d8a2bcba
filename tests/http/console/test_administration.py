"""Pages of the cluster's cost and of its access rules."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.cost.bill import Line
from app.cost.measured import MeasuredBill, TopicBill
from app.http.console.pages.overview import Numbers
from app.http.console.pages.rules import sentence_of
from app.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType, Rule
from tests.http.secured import secured


def rule(
    operation: int = Operation.READ,
    kind: int = ResourceType.TOPIC,
    name: str = "orders",
    pattern: int = PatternType.LITERAL,
    permission: int = Permission.ALLOW,
) -> Acl:
    return Acl(Pattern(kind, pattern, name), Rule("User:a", "*", operation, permission))


@pytest.mark.parametrize(
    ("acl", "words"),
    [
        (rule(), "may read topic orders"),
        (rule(pattern=PatternType.PREFIXED, name="orders."), "may read topics whose name begins with orders."),
        (rule(Operation.ALL, name="*"), "may do everything with all topics"),
        (rule(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"), "may describe the cluster"),
        (rule(Operation.WRITE, permission=Permission.DENY), "may not write to topic orders"),
        (rule(99, 98, "x"), "may do operation 99 with resource of type 98 x"),
    ],
)
def test_a_rule_is_a_sentence(acl: Acl, words: str) -> None:
    one = sentence_of(acl)
    assert " ".join(filter(None, ("may not" if one.denies else "may", one.verb, one.what, one.name))) == words


def test_each_operation_and_type_of_resource_has_a_word() -> None:
    for operation in Operation:
        if operation > Operation.ANY:
            assert "operation" not in sentence_of(rule(operation)).verb, operation
    for kind in ResourceType:
        if kind > ResourceType.ANY:
            assert "type" not in sentence_of(rule(kind=kind)).what, kind


async def test_without_rules_in_force_the_page_says_that_all_may_do_all(http: httpx.AsyncClient) -> None:
    text = (await http.get("/console/access")).text
    assert "each client that reaches a broker may do everything" in text
    assert "authorizer.class.name" in text


async def test_rules_are_listed_for_those_who_may_see_the_cluster(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave")
        await http.allow("carol", (Operation.READ, ResourceType.TOPIC, "a<b>"))
        await http.allow("dave", (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
        page = await http.ask("dave", "/console/access")
        assert page.status_code == 200
        assert "2 rules" in page.text
        assert "a&lt;b&gt;" in page.text
        filtered = (await http.ask("dave", "/console/access?q=carol")).text
        assert "1 rule of 2" in filtered
        assert "User:dave" not in filtered
        assert (await http.ask("carol", "/console/access")).status_code == 403
        assert (await http.ask("carol", "/console/cost")).status_code == 403


async def test_the_cost_is_told_by_kind_and_by_topic(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    early = (await http.get("/console/cost")).text
    assert "No broker has counted for a minute yet." in early
    bill = MeasuredBill(
        3600.0,
        1,
        (Line("S3 storage", 1.0, "1 GiB"), Line("segments", 3.0, "9 PUT")),
        (TopicBill("flights", 2.5, {"segments": 2.0, "S3 storage": 0.5}),),
        {},
    )

    async def counted(*_: object) -> Numbers:
        return Numbers(bill=bill, silent=[2])

    monkeypatch.setattr("app.http.console.pages.cost.numbers_of", counted)
    text = (await http.get("/console/cost")).text
    assert "$4.00 a month" in text
    assert text.index("segments") < text.index("S3 storage")
    assert '<a href="/console/topics/flights">flights</a>' in text
    assert "1.50" in text
    assert "Broker 2 did not respond in time" in text
