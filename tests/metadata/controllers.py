"""A controller over a store in memory."""

from __future__ import annotations

import random
from typing import Any

from app.configs import BrokerConfig
from app.core.seams import Clock
from app.metadata.image.records import Endpoint
from app.metadata.membership.membership import Membership
from app.metadata.peers.liveness import ObjectLiveness
from app.objectstore.api import ObjectStore
from tests.metadata.support import FixedClock, uuid_of

PUT = "put_if_absent"


def make(
    store: ObjectStore, directory: int = 1, *, node_id: int = 1, clock: Clock | None = None, **more: Any
) -> Membership:
    clock = clock or FixedClock()
    rng = random.Random(f"{directory}{node_id}{more.pop('seed', 0)}")
    return Membership(
        store,
        config=more.pop("config", BrokerConfig(node_id=node_id)),
        directory_id=uuid_of(directory),
        endpoints=[Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")],
        liveness=ObjectLiveness(store, rng=rng, clock=clock),
        rng=rng,
        clock=clock,
        **more,
    )
