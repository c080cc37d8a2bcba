"""Real brokers of a cluster under members of a share group: killed, stopped and paused, one after another (ADR 0027).

The topic's leaders, the share coordinators and the group coordinators are spread over the brokers, so a fault hits all three parts.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.share_load import SETTINGS, Shares
from tests.support.cluster import Writing, brokers_running, create_topics
from tests.support.cluster_faults import Faults

pytestmark = [pytest.mark.faults, pytest.mark.slow]
FAULTS = 20


@pytest.mark.parametrize("seed", [2, 3])
def test_every_record_is_accepted_and_none_is_delivered_afterwards(tmp_path: Path, seed: int) -> None:
    with brokers_running(tmp_path, settings=SETTINGS) as brokers:
        create_topics(AdminClient({"bootstrap.servers": brokers.bootstrap}), "t")
        writing = Writing(brokers.bootstrap)
        shares = Shares(brokers.bootstrap, writing, seed)
        faults = Faults(brokers, random.Random(seed), [writing, shares])
        shares.book.phase = faults.phase
        try:
            faults.run(faults.of_processes(), FAULTS)
            writing.finish()
            shares.finish()
        finally:
            shares.stop()
            writing.finish()
        writing.check(brokers.bootstrap)
        shares.check()
