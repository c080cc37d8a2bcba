"""Real brokers of a cluster under clients: killed, paused, stopped, cut off and robbed of their disks, one after another.

The rules that these faults try are those of ADR 0023 and 0024.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults import every_load, transaction_load
from tests.faults.client_loads import TXN_PARTITIONS, AioWriting, JavaProducers
from tests.faults.every_load import EveryLoad
from tests.faults.quick_cluster import SETTINGS
from tests.interop.java_programs import running
from tests.support.cluster import Writing, brokers_running, create_topics
from tests.support.cluster_faults import Faults

pytestmark = pytest.mark.faults


@pytest.mark.ci
def test_all_that_was_acknowledged_is_kept_while_groups_of_all_kinds_and_transactions_go_on(tmp_path: Path) -> None:
    with brokers_running(tmp_path, proxied=True, settings=every_load.SETTINGS) as brokers:
        load = EveryLoad(brokers, seed=1)
        faults = Faults(brokers, random.Random(1), load.loads)
        load.shares.book.phase = faults.phase
        try:
            quick = [faults.reset, faults.lose_the_bucket, faults.cut_one_way, faults.all_lose_the_bucket]
            once = [fault for fault in faults.all() if fault != faults.stop]  # each broker is stopped in its turn
            faults.run([*once, *quick, *quick], 20)
            load.finish()
        finally:
            load.stop()
        load.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_every_acknowledged_record_is_there_once_and_in_order(tmp_path: Path, seed: int) -> None:
    with brokers_running(tmp_path, proxied=True, settings=SETTINGS) as brokers:
        create_topics(AdminClient({"bootstrap.servers": brokers.bootstrap}), "t")
        writing = Writing(brokers.bootstrap)
        faults = Faults(brokers, random.Random(seed), [writing])
        try:
            faults.run(faults.all(), 50)
        finally:
            writing.finish()
        writing.check(brokers.bootstrap)


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "seed"), [("disk", 8), ("memory", 9)])
def test_losses_of_power_take_nothing_that_was_acknowledged(tmp_path: Path, durability: str, seed: int) -> None:
    with brokers_running(tmp_path, settings=SETTINGS, loses_power=True) as brokers:
        create_topics(brokers.admin, "t", firn_durability=durability)
        writing = Writing(brokers.bootstrap, one_by_one=True)
        faults = Faults(brokers, random.Random(seed), [writing])
        try:
            faults.run([*faults.of_power(memory=durability == "memory"), faults.kill], 20)
        finally:
            writing.finish()
        writing.check(brokers.bootstrap)


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("seed", [6, 7])
def test_producers_of_other_clients_write_everything_once_and_in_order(tmp_path: Path, seed: int) -> None:
    settings = SETTINGS | transaction_load.SETTINGS
    with brokers_running(tmp_path, proxied=True, settings=settings) as brokers, running("ClusterProducers.java") as jvm:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        create_topics(admin, "java", "aiokafka")
        create_topics(admin, "java-txn", partitions=TXN_PARTITIONS)
        java = JavaProducers(jvm, brokers.bootstrap, seed)
        aiokafka = AioWriting(brokers.bootstrap)
        faults = Faults(brokers, random.Random(seed), [java, aiokafka])
        try:
            faults.run(faults.all(), 40)
            java.finish()
        finally:
            aiokafka.finish()
        java.check()
        aiokafka.check()
