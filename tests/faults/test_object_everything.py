"""Brokers without disks, killed one by one and all at once, under every kind of client, with a bucket in an S3 server (ADR 0037).

Topics and those of coordinators are in the bucket alone, and leaderships move meanwhile. Nothing that a client was told may change.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults import share_load, transaction_load
from tests.faults.every_load import SHORT
from tests.faults.group_load import Groups
from tests.faults.machines import Machines, machines_running
from tests.faults.moving import Moving
from tests.faults.object_load import TIERED, TOPIC, Following, check, create
from tests.faults.share_load import Shares
from tests.faults.transaction_load import Transactions
from tests.support.cluster import Writing
from tests.support.cluster_faults import Load, wait_for_more
from tests.support.s3_server import CREDENTIALS, s3_server

pytestmark = pytest.mark.faults
MACHINES: Final = 3
MANY: Final = 100
PACE_S: Final = 0.05
MOVES_S: Final = 4.0
"""One of 29 partitions moves so often, and brokers that find themselves with fewer than others move one back. With more, members of
groups look for their coordinator most of the time."""
SETTINGS: Final[dict[str, Any]] = (
    SHORT
    | share_load.SETTINGS
    | transaction_load.SETTINGS
    | {
        "broker_heartbeat_interval_ms": 500,
        "broker_session_timeout_ms": 10_000,
        "group_consumer_session_timeout_ms": 10_000,
        "group_consumer_min_session_timeout_ms": 10_000,
        "wal_bytes": 64 * 1024,
        "wal_buffer_bytes": 2 * 1024 * 1024,
        "remote_log_manager_task_interval_ms": 200,
        "wal_linger_ms": 100,
        "firn_log_dir_free_bytes_min": 0,
        "transaction_state_log_num_partitions": 3,
        "offsets_topic_num_partitions": 3,
    }
)
CONFIGS: Final = TIERED | {"segment.ms": "5000", "firn.wal.linger.ms": "100"}
"""Segments roll and leave the disk, but the servers, which share two cores with all else, keep up with the requests."""


class Everything:
    """All clients, on new topics."""

    def __init__(self, machines: Machines, seed: int) -> None:
        create(machines.admin, MACHINES, CONFIGS, TOPIC)
        create(machines.admin, MACHINES, CONFIGS, "txn", "copy", partitions=transaction_load.PARTITIONS)
        bootstrap = self._bootstrap = machines.bootstrap
        self.writing = Writing(bootstrap, pace_s=PACE_S)
        self.following = Following(bootstrap)
        self.groups = Groups(bootstrap, self.writing, may_hang=True)
        self.shares = Shares(bootstrap, self.writing, seed)
        self.shares.book.phase = lambda: 1  # no moment is calm
        self.transactions = Transactions(bootstrap, seed)
        self.moving = Moving(bootstrap, list(machines.ports.values()), seed, pause_s=MOVES_S, at_once=1)
        self.loads: Sequence[Load] = (
            self.writing,
            self.following,
            self.groups,
            self.shares,
            self.transactions,
            self.moving,
        )

    def finish(self) -> None:
        self.moving.stop()
        self.writing.finish()
        self.groups.finish()
        self.shares.finish()
        self.transactions.finish()
        self.following.stop()

    def stop(self) -> None:
        for load in (self.moving, self.following, self.groups, self.shares, self.transactions):
            load.stop()
        self.writing.finish()

    def check(self) -> str:
        """After ``finish``. Returns: what there was of all."""
        records = check(self._bootstrap, self.writing, self.following)
        self.groups.check()
        self.groups.check_exact()
        self.shares.check()
        self.transactions.check()
        self.moving.check()
        history = self.transactions.committed
        accepted = len(self.shares.book.done)
        return f"{records} records, {history} transactions committed, {accepted} accepted, moves {dict(self.moving.answers)}"


def lose_machines(path: Path, server: str, goes_on: Callable[[int], bool], seed: int) -> None:
    """Kill a machine, or all of them at once, with other trouble in between. ``goes_on`` says after how many kills it ends."""
    rng = random.Random(seed)
    with (
        s3_server(server, path / "bucket") as s3,
        machines_running(path, MACHINES, s3.store, settings=SETTINGS, environment=CREDENTIALS) as machines,
    ):
        everything = Everything(machines, seed)
        killed = lost = rounds = 0
        try:
            wait_for_more(everything.loads)
            while goes_on(killed):
                rounds += 1
                together = rng.random() < 0.2
                victims = machines.numbers if together else (rng.choice(machines.numbers),)
                how = rng.choices(("kill", "stop", "pause"), (76, 12, 0 if together else 12))[0]
                at_work = rng.random()
                print(f"{time.time():.2f} {rounds}, {killed} killed: {how} {victims}, {at_work:.2f}", flush=True)
                if at_work < 0.75:
                    wait_for_more(everything.loads if at_work < 0.3 else [everything.writing])
                time.sleep(rng.uniform(0, 1.0))
                if how == "pause":
                    machines.pause(victims[0])
                    wait_for_more([everything.writing])
                    machines.go_on(victims[0])
                    continue
                if how == "kill":
                    killed, lost = killed + 1, lost + len(victims)
                machines.lose(victims, signal.SIGKILL if how == "kill" else signal.SIGTERM)
                if not together and rng.random() < 0.3:
                    wait_for_more([everything.writing])  # without it
                for number in victims:
                    machines.start(number)
            wait_for_more(everything.loads)
            everything.finish()
        finally:
            everything.stop()
        took = f"{killed} kills of {lost} brokers in {rounds} rounds"
        print(f"{server}, seed {seed}, {took}: {everything.check()}", flush=True)
        print(f"brokers that ended by themselves: {machines.exits}", flush=True)
        machines.check_no_bug()


@pytest.mark.slow
@pytest.mark.parametrize(("server", "seed"), [("moto", 1), ("s3s-fs", 2), ("MinIO", 3)])
def test_a_hundred_lost_machines(tmp_path: Path, server: str, seed: int) -> None:
    lose_machines(tmp_path, server, lambda killed: killed < MANY, seed)
