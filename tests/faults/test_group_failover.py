"""Three broker processes; consumer groups of both protocols read and commit while their coordinators are killed (ADR 0025)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.group_load import Groups, coordinator_of
from tests.support.cluster import NODES, Writing, brokers_running, create_topics
from tests.support.cluster_faults import Faults

pytestmark = [pytest.mark.faults, pytest.mark.slow]
FAULTS = 30


@pytest.mark.parametrize("seed", [2, 3])
def test_committed_offsets_never_go_back_and_every_record_is_read(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path) as brokers:
        create_topics(AdminClient({"bootstrap.servers": brokers.bootstrap}), "t")
        writing = Writing(brokers.bootstrap, pace_s=0.05)
        groups = Groups(brokers.bootstrap, writing)
        faults = Faults(brokers, rng, [writing, groups])

        def victims() -> Iterator[int]:
            """Mostly a coordinator, sometimes somebody else, which may be the controller."""
            for group in cycle(groups.groups):
                yield coordinator_of(brokers.bootstrap, group.name)
                if rng.random() < 1 / 3:
                    yield rng.choice(NODES)

        faults.victim = victims().__next__
        try:
            faults.run(faults.of_processes(), FAULTS)
            writing.finish()
            groups.finish()
        finally:
            groups.stop()
            writing.finish()
        writing.check(brokers.bootstrap)
        groups.check()
