"""``firn acl`` against a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import AclFilter
from tests.support.broker import RunningBroker, running_broker
from tests.support.commands import Firn, runner
from tests.support.several import unfenced
from tests.support.waiting import until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(
        tmp_path, new_level=SECURITY_LEVEL, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS"
    ) as running:
        await until(lambda: unfenced(running))
        yield running


@pytest.fixture
def firn(broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firn:
    return runner(capfd, monkeypatch, broker.bootstrap)


def rules(broker: RunningBroker) -> int:
    return len(list(AclFilter().find(broker.node.cluster.image.acls)))


async def test_rules_are_added_listed_and_removed(broker: RunningBroker, firn: Firn) -> None:
    assert "no such ACLs" in (await firn("acl", "list")).err
    done = await firn(
        "acl", "add", "--allow", "User:alice", "--operation", "read", "--topic", "orders", "--host", "10.0.0.1"
    )
    assert (done.code, done.err) == (0, "Added 1 ACL.\n")
    assert "User:alice" in done.out
    again = await firn(
        "acl", "add", "--allow", "User:alice", "--operation", "read", "--topic", "orders", "--host", "10.0.0.1"
    )
    assert again.code == 0
    assert rules(broker) == 1
    await firn("acl", "add", "--deny", "User:*", "--operation", "write", "--topic", "or", "--prefixed")
    found = (await firn("acl", "list", "--json")).json
    assert found == [
        {
            "resource_type": "topic",
            "name": "or",
            "pattern": "prefixed",
            "principal": "User:*",
            "host": "*",
            "operation": "write",
            "permission": "deny",
        },
        {
            "resource_type": "topic",
            "name": "orders",
            "pattern": "literal",
            "principal": "User:alice",
            "host": "10.0.0.1",
            "operation": "read",
            "permission": "allow",
        },
    ]
    assert len((await firn("acl", "list", "--topic", "orders", "--json")).json) == 1
    assert len((await firn("acl", "list", "--topic", "orders", "--matching", "--json")).json) == 2
    assert len((await firn("acl", "list", "--principal", "User:*", "--json")).json) == 1
    refused = await firn("acl", "remove", "--principal", "User:alice")
    assert refused.code != 0
    assert "--yes" in refused.err
    assert rules(broker) == 2
    done = await firn("acl", "remove", "--principal", "User:alice", "--yes")
    assert (done.code, done.err) == (0, "Removed 1 ACL.\n")
    assert (await firn("acl", "remove", "--topic", "or", "--prefixed", "--yes")).code == 0
    assert rules(broker) == 0
    assert "no such ACLs" in (await firn("acl", "remove", "--topic", "or", "--yes")).err


async def test_what_producers_and_consumers_need_is_added_at_once(broker: RunningBroker, firn: Firn) -> None:
    done = await firn(
        "acl", "add", "--allow", "User:p", "--producer", "--topic", "t", "--transactional-id", "x", "--json"
    )
    assert {(one["resource_type"], one["operation"]) for one in done.json} == {
        ("topic", "write"),
        ("topic", "describe"),
        ("topic", "create"),
        ("transactional-id", "write"),
        ("transactional-id", "describe"),
    }
    done = await firn("acl", "add", "--allow", "User:c", "--consumer", "--topic", "t", "--group", "g", "--json")
    assert {(one["resource_type"], one["operation"]) for one in done.json} == {
        ("topic", "read"),
        ("topic", "describe"),
        ("group", "read"),
    }
    assert rules(broker) == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--operation", "read", "--topic", "t"), "--allow User:alice"),
        (("--allow", "User:a", "--operation", "read"), "--topic"),
        (("--allow", "User:a", "--topic", "t"), "--operation read"),
        (("--allow", "User:a", "--topic", "t", "--operation", "fly"), "--operation fly is none of all, read"),
        (("--allow", "User:a", "--group", "g", "--operation", "write"), "a group has the operations read"),
        (("--allow", "alice", "--topic", "t", "--operation", "read"), "User:alice"),
    ],
)
async def test_what_means_nothing_is_refused_with_the_mend(
    broker: RunningBroker, firn: Firn, arguments: tuple[str, ...], sentence: str
) -> None:
    done = await firn("acl", "add", *arguments)
    assert done.code != 0
    assert sentence in done.err
    assert rules(broker) == 0


async def test_removing_everything_by_accident_is_refused(firn: Firn) -> None:
    done = await firn("acl", "remove", "--yes")
    assert done.code != 0
    assert "--principal User:alice" in done.err
