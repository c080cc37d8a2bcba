"""Redis beside a cluster: killed, emptied and hung. Nothing of the cluster may depend on it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.cluster import Writing, brokers_running, controller_of, create_topics, seen
from tests.support.cluster_faults import Faults
from tests.support.redis_server import redis_running

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def leaders(admin: AdminClient) -> dict[int, int]:
    return {index: one.leader for index, one in seen(admin).topics["t"].partitions.items()}


def test_brokers_lead_fail_over_and_start_whatever_happens_to_redis(tmp_path: Path) -> None:
    with (
        redis_running(tmp_path) as redis,
        brokers_running(tmp_path, redis=f"redis://127.0.0.1:{redis.port}/0") as brokers,
    ):
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        create_topics(admin, "t")
        writing = Writing(brokers.bootstrap)
        faults = Faults(brokers, random.Random(1), [writing])
        try:
            for harm in (redis.stop, redis.flush, redis.hang):
                faults.go_on()
                before = controller_of(admin), leaders(admin)
                harm()
                faults.go_on()
                assert (controller_of(admin), leaders(admin)) == before, f"nobody is elected because of {harm.__name__}"
                faults.run([faults.kill, faults.kill_the_controller, faults.stop], faults.count + 3)
                redis.stop()
                redis.start()
        finally:
            writing.finish()
        writing.check(brokers.bootstrap)
