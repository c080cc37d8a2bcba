"""The table of instances: owners, bounds and expiry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app.core.metrics import Registry
from app.core.units import PartitionIndex, TopicPartition
from app.http.consumers.settings import InstanceSettings
from app.http.consumers.table import ConsumerInstances, InstanceLimits
from app.http.errors import RestError
from app.http.gateway import Gateway
from tests.support.waiting import until

LIMITS = InstanceLimits(instances_max=3, of_caller_max=2, partitions_max=4, idle_timeout_ms=3_600_000)
SETTINGS = InstanceSettings(auto_commit=False)


class _Clients:
    """Stands for the connections of a caller, which an instance without a subscription does not use."""


def owner() -> Gateway:
    return cast("Gateway", _Clients())


class _Caller:
    def __init__(self) -> None:
        self.instances = 0
        self.on_end: set[Any] = set()


@pytest.fixture
async def table() -> AsyncIterator[ConsumerInstances]:
    async with ConsumerInstances(LIMITS, registry=Registry(), process=3) as made:
        yield made


def refusal(error: pytest.ExceptionInfo[RestError]) -> tuple[int, int]:
    return error.value.answer.status, error.value.answer.error_code


async def test_an_instance_is_found_by_its_owner_only(table: ConsumerInstances) -> None:
    alice, bob = owner(), owner()
    made = table.create(alice, None, "g", "one", SETTINGS)
    with table.using(alice, "g", "one") as found:
        assert found is made
    for other, group, name in ((bob, "g", "one"), (alice, "h", "one"), (alice, "g", "two")):
        with pytest.raises(RestError) as refused, table.using(other, group, name):
            pass
        assert refusal(refused) == (404, 40403)
        with pytest.raises(RestError):
            await table.delete(other, group, name)
    assert table.create(bob, None, "g", "one", SETTINGS) is not made
    with pytest.raises(RestError) as refused:
        table.create(alice, None, "g", "one", SETTINGS)
    assert refusal(refused) == (409, 40902)


async def test_a_generated_id_names_the_process(table: ConsumerInstances) -> None:
    assert table.create(owner(), None, "g", None, SETTINGS).instance_id.startswith("rest-consumer-3-")


async def test_instances_are_bounded_for_a_caller_and_for_all(table: ConsumerInstances) -> None:
    alice, bob = owner(), owner()
    for name in "ab":
        table.create(alice, None, "g", name, SETTINGS)
    with pytest.raises(RestError) as refused:
        table.create(alice, None, "g", "c", SETTINGS)
    assert refusal(refused) == (429, 42901)
    table.create(bob, None, "g", "a", SETTINGS)
    with pytest.raises(RestError) as refused:
        table.create(bob, None, "g", "b", SETTINGS)
    assert refusal(refused) == (429, 42901)
    await table.delete(alice, "g", "a")
    table.create(bob, None, "g", "b", SETTINGS)


async def test_partitions_of_all_instances_are_bounded_and_given_back(table: ConsumerInstances) -> None:
    alice, bob = owner(), owner()
    partitions = [TopicPartition("t", PartitionIndex(index)) for index in range(3)]
    first, second = (table.create(one, None, "g", "one", SETTINGS) for one in (alice, bob))
    await first.assign(partitions)
    await first.assign(partitions)
    with pytest.raises(RestError) as refused:
        await second.assign(partitions)
    assert refused.value.answer.status == 429
    await table.delete(alice, "g", "one")
    await second.assign(partitions)


async def test_an_idle_instance_ends_and_one_with_a_request_does_not() -> None:
    limits = InstanceLimits(idle_timeout_ms=1)
    async with ConsumerInstances(limits, registry=Registry()) as table:
        alice = owner()
        table.create(alice, None, "g", "busy", SETTINGS)
        with table.using(alice, "g", "busy") as busy:
            table.create(alice, None, "g", "idle", SETTINGS)
            await until(lambda: len(table) == 1)
            assert [*table] == [busy]
        await until(lambda: len(table) == 0)
        await until(lambda: busy.closed)
        with pytest.raises(RestError) as refused, table.using(alice, "g", "busy"):
            pass
        assert refusal(refused) == (404, 40403)


async def test_instances_end_with_the_credential_of_their_caller_and_keep_it_until_then(
    table: ConsumerInstances,
) -> None:
    alice, caller = owner(), _Caller()
    first = table.create(alice, cast("Any", caller), "g", "a", SETTINGS)
    table.create(alice, cast("Any", caller), "g", "b", SETTINGS)
    assert (caller.instances, len(caller.on_end)) == (2, 2)
    await table.delete(alice, "g", "b")
    assert (caller.instances, len(caller.on_end)) == (1, 1)
    for tell in tuple(caller.on_end):
        tell()
    assert (caller.instances, len(caller.on_end), len(table)) == (0, 0, 0)
    await until(lambda: first.closed)
