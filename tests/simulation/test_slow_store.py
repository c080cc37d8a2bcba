"""Keyed requests while each PUT of a write-ahead object takes 2.3 s: the first try of each commits (ADR 0043)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from app.client.cluster import LATEST
from app.core.units import PartitionIndex, TopicPartition
from app.exactly_once.coordinator import OBJECT_TIMEOUT_MS
from app.metadata.image.records import LEVEL_MAX
from app.metadata.log import layout
from app.objectstore.memory import Fault, FaultKind, StoreCall
from tests.cluster_simulation.keyed_scripts import Caller, caller_of, on, started
from tests.cluster_simulation.object_faults import PUT
from tests.cluster_simulation.objects import ObjectShape
from tests.cluster_simulation.planted_keyed import KEYED
from tests.cluster_simulation.world import Outcome, World, run_seed
from tests.simulation.seeds import describe

PUT_MS: Final = 2_300.0
LINGER_MS: Final = 250
"""The default of firn.wal.linger.ms."""
SHAPE: Final = KEYED | {
    "brokers": 1,
    "factor": 1,
    "min_in_sync": 1,
    "partitions": 1,
    "objects": ObjectShape(topics=0, alone=True, internal=True, linger_ms=LINGER_MS, level=LEVEL_MAX),
}
TOPIC: Final = "t"
WAITS: Final = {True: 3, False: 5}
"""PUTs that the first try of an id waits for, by whether one broker takes all steps."""
WARMING: Final = 2
CALLERS: Final = 12
KEYS: Final = 3
"""Of each caller."""
PAUSES_S: Final = (0.0, 0.6, 1.0, 3.0)
"""After an answer. In some, ids are free while the markers of their transactions are not stored."""


def wal_puts(world: World, since_s: float) -> list[StoreCall]:
    """Of write-ahead objects, that have ended since."""
    return [
        one
        for one in world.bucket.history
        if one.operation == PUT and one.key.startswith(layout.WAL_PREFIX) and one.started_s >= since_s
    ]


async def slowed(world: World, caller: Caller) -> None:
    """Serve two requests, so that all topics are there, and slow the store down."""
    await started(world)
    configs = {"firn.durability": "object", "remote.storage.enable": "true", "firn.wal.linger.ms": str(LINGER_MS)}
    machine = world.machines[0]
    assert machine.node is not None
    await on(machine, machine.node.membership.controller.create_topic(TOPIC, 1, configs, 1))
    for number in range(WARMING):
        while (await caller.ask(b"before-%d" % number, TOPIC)).status != 200:
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    world.bucket.faults = [Fault(FaultKind.LATENCY, PUT, layout.WAL_PREFIX, latency_ms=(PUT_MS, PUT_MS))]
    caller.attempts = caller.committed_at_once = 0


def played(script: Callable[[World], Coroutine[Any, Any, None]], shape: Any = SHAPE) -> Outcome:
    outcome = run_seed(1, faults=(), shape=shape, script=script)
    assert outcome.violation is None, describe(outcome)
    return outcome


@pytest.mark.parametrize("at_once", [True, False], ids=("at once", "step by step"))
def test_the_first_try_commits_though_each_of_its_steps_waits_for_a_put(at_once: bool) -> None:
    async def script(world: World) -> None:
        async with caller_of(world, at_once=at_once) as caller:
            await slowed(world, caller)
            begun_s = world.loop.time()
            assert (await caller.ask(b"k", TOPIC)).status == 200
            assert (caller.attempts, caller.committed_at_once) == (1, at_once)
            assert len(wal_puts(world, begun_s)) == WAITS[at_once]
            assert (await caller.committed(TOPIC))[b"k"] == 1

    played(script)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("brokers", "at_once"), [(1, True), (1, False), (3, False)], ids=("at once", "step by step", "three brokers")
)
def test_the_first_try_of_each_of_many_callers_commits(brokers: int, at_once: bool) -> None:
    async def script(world: World) -> None:
        async with caller_of(world, at_once=at_once) as caller:
            await slowed(world, caller)

            async def call(name: int) -> None:
                for number in range(KEYS):
                    answered = await caller.ask(b"%d-%d" % (name, number), TOPIC)
                    assert answered.status == 200
                    assert answered.after_s < OBJECT_TIMEOUT_MS / 1000
                    await asyncio.sleep(PAUSES_S[name % len(PAUSES_S)])

            await asyncio.gather(*map(call, range(CALLERS)))
            assert caller.attempts == CALLERS * KEYS
            found = await caller.committed(TOPIC)
            assert set(found.values()) == {1}
            assert len(found) == WARMING + CALLERS * KEYS
            partition = TopicPartition(TOPIC, PartitionIndex(0))
            end = (await caller.cluster.list_offsets({partition: LATEST}))[partition].offset
            assert end == 2 * len(found), "a record and its marker: no try was aborted"

    played(script, SHAPE | {"brokers": brokers, "factor": brokers})
