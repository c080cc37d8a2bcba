"""Kafka's ``kafka-acls`` and the Java client against a broker that checks rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.serving import Served, firn_serving

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ACLS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:ANONYMOUS",
    }
    with firn_serving(tmp_path_factory.mktemp("acls"), **settings) as served:
        yield served
    assert not served.troubles


@pytest.fixture
def tools(jvm: JavaProgram, guarded: Served) -> Tools:
    return Tools(jvm, guarded)


def test_acls_are_added_listed_and_removed(tools: Tools) -> None:
    added = tools(
        ACLS,
        *("--add", "--allow-principal", "User:alice", "--allow-host", "10.0.0.1", "--operation", "Read"),
        *("--topic", "orders"),
    )
    assert "principal=User:alice, host=10.0.0.1, operation=READ, permissionType=ALLOW" in added
    tools(
        ACLS,
        *("--add", "--deny-principal", "User:*", "--operation", "Write", "--topic", "or"),
        *("--resource-pattern-type", "prefixed"),
    )
    tools(ACLS, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "t", "--transactional-id", "x")
    tools(ACLS, "--add", "--allow-principal", "User:bob", "--consumer", "--topic", "t", "--group", "g")
    tools(ACLS, "--add", "--allow-principal", "User:ops", "--operation", "All", "--cluster")
    listed = tools(ACLS, "--list")
    for resource in (
        "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)",
        "ResourcePattern(resourceType=TOPIC, name=or, patternType=PREFIXED)",
        "ResourcePattern(resourceType=TRANSACTIONAL_ID, name=x, patternType=LITERAL)",
        "ResourcePattern(resourceType=GROUP, name=g, patternType=LITERAL)",
        "ResourcePattern(resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL)",
    ):
        assert resource in listed
    matching = tools(ACLS, "--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "name=or," in matching
    assert "name=orders," in matching
    assert "name=t," not in matching
    tools(ACLS, "--remove", "--force", "--topic", "or", "--resource-pattern-type", "prefixed")
    tools(
        ACLS,
        *("--remove", "--force", "--allow-principal", "User:alice", "--allow-host", "10.0.0.1", "--operation", "Read"),
        *("--topic", "orders"),
    )
    left = tools(ACLS, "--list")
    assert "name=or," not in left
    assert "name=orders," not in left
    assert "name=t," in left


def test_without_an_authorizer_the_tool_says_so(jvm: JavaProgram, firn: Served) -> None:
    done = Tools(jvm, firn).run(ACLS, "--bootstrap-server", firn.bootstrap, "--list")
    assert "No Authorizer is configured" in done.out + done.error
