"""Real brokers of a cluster under transactional producers (librdkafka), killed, stopped and paused one after another (ADR 0026)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.transaction_load import PARTITIONS, SETTINGS, Transactions
from tests.support.cluster import brokers_running, create_topics
from tests.support.cluster_faults import Faults

pytestmark = [pytest.mark.faults, pytest.mark.slow]
FAULTS = 30


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_transactions_are_whole_while_brokers_die(tmp_path: Path, seed: int) -> None:
    with brokers_running(tmp_path, settings={"replica_lag_time_max_ms": 2_000} | SETTINGS) as brokers:
        create_topics(AdminClient({"bootstrap.servers": brokers.bootstrap}), "txn", "copy", partitions=PARTITIONS)
        transactions = Transactions(brokers.bootstrap, seed)
        faults = Faults(brokers, random.Random(seed), [transactions])
        try:
            faults.run(faults.of_processes(), FAULTS)
            transactions.finish()
        finally:
            transactions.stop()
        transactions.check()
