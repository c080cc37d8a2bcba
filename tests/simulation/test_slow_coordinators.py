"""A log of transactional ids takes no records for a time: keyed requests with ids in it are late, and no others (ADR 0026, XV7).

Broker L coordinates all ids, and leads nothing else. Of its two logs, one has a replica on broker F, and L and F do not reach each
other for a time. The controller leads the records and the results. So it asks L with AddPartitionsToTxn.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from app.coordinator.topics import HTTP_REQUESTS, TRANSACTION_STATE, partition_for
from app.exactly_once.records import PARTITIONS
from app.handlers.apis.transactions import ADDED_WITHIN_S
from app.transactions.elsewhere import OtherBrokers
from tests.cluster_simulation.keyed_scripts import Answered, Caller, caller_of, on, started
from tests.cluster_simulation.planted_keyed import KEYED
from tests.cluster_simulation.world import Outcome, World, run_seed
from tests.sim.violation import Violation
from tests.simulation.seeds import describe

SHAPE: Final = KEYED | {"brokers": 4, "lag_ms": 300_000, "producers": 0}
TOPIC: Final = "t"
SLOW, QUICK = 0, 1
"""The logs."""
STALL_S: Final = 20.0
KEYS: Final = 24
SECOND_KEYS: Final = 6
SECOND_S: Final = 7.0
"""After the first keys. Which log is slow is known by then."""
SOON_S: Final = 2.0
IN_TIME: Final = "in time"


async def made(world: World) -> list[tuple[str, str]]:
    """Make the topics. Returns: the ways between L and F."""
    await started(world)
    controller = int(world.newest.controller.broker_id)
    leader, follower, other = (one.node_id for one in world.machines if one.node_id != controller)
    node = world.machine(controller).node
    assert node is not None

    async def create(name: str, replicas: dict[int, tuple[int, ...]], **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()} | {"min.insync.replicas": "2"}
        assert node is not None
        await on(
            world.machine(controller),
            node.membership.controller.create_topic(name, configs=named, assignments=replicas),
        )

    logs = {SLOW: (leader, controller, follower), QUICK: (leader, controller, other)}
    of_controller = (controller, leader, other)
    await create(TRANSACTION_STATE.name, logs, cleanup_policy="compact")
    kept = {"cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"}
    await create(HTTP_REQUESTS.name, dict.fromkeys(range(PARTITIONS), of_controller), **kept)
    await create(TOPIC, {0: of_controller})
    return [(f"n{leader}", f"n{follower}"), (f"n{follower}", f"n{leader}")]


def log_of(caller: Caller, key: bytes) -> int:
    """The log of the id with which a key was written first."""
    return int(partition_for(caller.ids[key][0], len((SLOW, QUICK))))


def check(caller: Caller, answers: dict[bytes, Answered], within_s: float) -> None:
    """Raises: Violation."""
    for key, answer in answers.items():
        if log_of(caller, key) == QUICK and (answer.status != 200 or answer.after_s > within_s):
            raise Violation(IN_TIME, f"{key!r} is answered with {answer.status} after {answer.after_s:.1f} s")


async def script(world: World) -> None:
    async with caller_of(world) as caller:
        ways = await made(world)

        async def ask(name: bytes, count: int) -> dict[bytes, Answered]:
            keys = [b"%s-%d" % (name, number) for number in range(count)]
            return dict(zip(keys, await asyncio.gather(*(caller.ask(key, TOPIC) for key in keys)), strict=True))

        while (await caller.ask(b"first", TOPIC)).status != 200:
            await asyncio.sleep(0.1)
        assert {one.status for one in (await ask(b"before", KEYS)).values()} == {200}
        await asyncio.sleep(1.0)
        world.network.cut(ways)
        world.loop.call_later(STALL_S, world.network.heal, ways)
        first = asyncio.ensure_future(ask(b"first", KEYS))
        await asyncio.sleep(SECOND_S)
        check(caller, await ask(b"second", SECOND_KEYS), SOON_S)
        answers = await first
        check(caller, answers, ADDED_WITHIN_S + SOON_S)
        late = [answer for key, answer in answers.items() if log_of(caller, key) == SLOW]
        assert 0 < len(late) < KEYS
        assert {one.status for one in late} == {503}
        for key in answers:
            while (await caller.ask(key, TOPIC)).status != 200:
                await asyncio.sleep(0.5)
        found = await caller.committed(TOPIC)
        assert set(found.values()) == {1}
        assert found.keys() >= answers.keys()


def played() -> Outcome:
    return run_seed(1, faults=(), shape=SHAPE, script=script)


@pytest.mark.ci
def test_a_log_that_stores_nothing_makes_its_own_transactions_wait_alone() -> None:
    outcome = played()
    assert outcome.violation is None, describe(outcome)


@pytest.mark.ci
def test_late_questions_that_go_with_the_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(OtherBrokers, "_learn", nothing)
    violation = played().violation
    assert violation is not None
    assert violation.invariant == IN_TIME
