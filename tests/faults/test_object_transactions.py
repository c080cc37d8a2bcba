"""Transactions over topics with ``firn.durability=object`` while brokers die (ADR 0037, J28, J44).

The topics of coordinators are such topics, too, unless ``firn.internal.durability`` says something else.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults import transaction_load
from tests.faults.object_brokers import check_no_bug, end_and_wipe
from tests.faults.object_load import SETTINGS, TIERED, create, wait_until_led
from tests.faults.transaction_load import PARTITIONS, Transactions
from tests.support.cluster import Brokers, brokers_running, seen
from tests.support.cluster_faults import wait_for_more
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults
INTERNAL = ("__transaction_state", "__consumer_offsets")


def wait_until_coordinators_are_safe(brokers: Brokers) -> None:
    """Until their topics are in sync on all brokers, so that the next disk may be lost."""

    def safe() -> bool:
        topics = seen(brokers.admin).topics
        return all(
            name in topics
            and all(one.leader >= 0 and len(one.isrs) == len(one.replicas) for one in topics[name].partitions.values())
            for name in INTERNAL
        )

    block_until(safe, "the coordinators' topics are in sync")
    wait_until_led(brokers.admin, "txn", "copy")


def kill(path: Path, kills: int, seed: int, *, wiped: bool, nodes: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    settings = SETTINGS | transaction_load.SETTINGS | {"replica_lag_time_max_ms": 2_000}
    with brokers_running(path, nodes, settings=settings) as brokers:
        create(brokers.admin, len(nodes), TIERED, "txn", "copy", partitions=PARTITIONS)
        transactions = Transactions(brokers.bootstrap, seed)
        try:
            wait_for_more([transactions])
            for number in range(kills):
                wait_until_coordinators_are_safe(brokers)
                victim = rng.choice(nodes)
                print(f"{time.time():.2f} kill {number + 1}: {victim}")
                time.sleep(rng.uniform(0, 1.0))
                if wiped:
                    end_and_wipe(brokers, [victim])
                else:
                    brokers.end(victim, signal.SIGKILL)
                brokers.start(victim)
                wait_for_more([transactions])
            transactions.finish()
        finally:
            transactions.stop()
        transactions.check()
        check_no_bug(brokers)


@pytest.mark.ci
def test_transactions_are_whole_when_a_broker_starts_again(tmp_path: Path) -> None:
    kill(tmp_path, 2, 1, wiped=False, nodes=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_transactions_are_whole_while_brokers_lose_their_disks_one_at_a_time(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, 30, seed, wiped=True, nodes=(1, 2, 3))


@pytest.mark.slow
def test_transactions_are_whole_while_a_broker_starts_again_and_again(tmp_path: Path) -> None:
    kill(tmp_path, 30, 4, wiped=False, nodes=(1,))
