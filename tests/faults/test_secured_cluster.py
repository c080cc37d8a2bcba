"""Broker processes of a secured cluster under clients: TLS and logins everywhere, a certificate for each broker, rules, a proven
cluster log, a Redis with a password and TLS.

The faults and the clients are those of ``test_cluster.py``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from redis import Redis

from tests.faults import every_load
from tests.faults.every_load import RIGHTS, EveryLoad
from tests.faults.http_load import CALLERS, HttpCallers
from tests.faults.strangers import STRANGER, Strangers
from tests.support.cluster import NODES, Brokers, brokers_running, create_topics, until, wait_for_brokers
from tests.support.cluster_faults import Fault, Faults
from tests.support.redis_server import PASSWORD, RedisServer, redis_running
from tests.support.secured_cluster import Right, Security, allow, denied, give, give_quota, knows_right

pytestmark = pytest.mark.faults

RATE = 50_000_000.0
"""Of the quota: more than a writer of these tests takes."""


@contextmanager
def secured(path: Path, *users: str, between: str = "SASL_SSL") -> Iterator[tuple[Brokers, RedisServer, Security]]:
    """Brokers, the Redis that they share, and what lets in."""
    security = Security(path / "tls", *users, between=between)
    with redis_running(path, tls=security.folder) as redis:
        security.redis = redis.url
        with brokers_running(path, proxied=True, settings=every_load.SETTINGS, security=security) as brokers:
            wait_for_brokers(brokers.admin)
            yield brokers, redis, security


def wait_until_known(brokers: Brokers, security: Security) -> None:
    """Until each broker knows the last rules that were given. Whoever asks one that does not know them yet is refused."""
    user = [*RIGHTS][-1]
    for address in brokers.addresses.values():
        until(lambda address=address: knows_right(address, security, user, "copy"), f"{address} knows all rules")


def make_brokers_like_others(brokers: Brokers, security: Security) -> None:
    """Give them the one right that they need. From their next starts on they are no superusers."""
    between = Right(AclOperation.CLUSTER_ACTION, ResourceType.BROKER, "kafka-cluster")
    for node in NODES:
        give(brokers.admin, security.broker_principal(node), between)
    security.brokers_are_super = False


def hold_out(
    brokers: Brokers,
    redis: RedisServer,
    security: Security,
    kinds: Callable[[Faults], Sequence[Fault]],
    count: int,
    seed: int,
) -> None:
    """So many faults under clients of all kinds, and a stranger who tries to harm them. Everything that they were told is so."""
    for user, rights in RIGHTS.items():
        give(brokers.admin, security.principal(user), *rights)
    wait_until_known(brokers, security)
    give_quota(brokers.bootstrap, security, "writer", RATE)
    load = EveryLoad(brokers, seed)
    strangers = Strangers(brokers, security)
    faults = Faults(brokers, random.Random(seed), [*load.loads, strangers])
    load.shares.book.phase = faults.phase
    try:
        faults.run(kinds(faults), count)
        with Redis.from_url(redis.url) as client:
            until(lambda: client.keys("firn:*:quota:*"), "brokers lease the quota from Redis")
        load.finish()
    finally:
        strangers.stop()
        load.stop()
    load.check()
    strangers.check()
    said = "".join(brokers.lines(node) for node in NODES)
    assert [one for one in (PASSWORD, *security.passwords.values()) if one in said] == [], "no secret is logged"
    refused = sum((denied(brokers.path / f"broker-{node}") for node in NODES), Counter())
    assert {*refused} <= {f"User:{STRANGER}", f"User:CN={STRANGER}"}, "each has the rights that it needs"
    assert refused


@pytest.mark.ci
def test_all_that_was_acknowledged_is_kept_where_nobody_may_do_more_than_it_needs(tmp_path: Path) -> None:
    with secured(tmp_path, *RIGHTS, STRANGER) as (brokers, redis, security):

        def kinds(faults: Faults) -> Sequence[Fault]:
            return [faults.kill_the_controller]

        hold_out(brokers, redis, security, kinds, 1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("between", "seed"), [("SASL_SSL", 2), ("SSL", 3)])
def test_a_secured_cluster_holds_out(tmp_path: Path, between: str, seed: int) -> None:
    """Brokers that reach each other by certificates are no superusers: they have a rule instead."""
    with secured(tmp_path, *RIGHTS, STRANGER, between=between) as (brokers, redis, security):
        if between == "SSL":
            make_brokers_like_others(brokers, security)

        def kinds(faults: Faults) -> Sequence[Fault]:
            def lose_redis() -> None:
                redis.stop()
                faults.go_on()
                redis.start()

            def hang_redis() -> None:
                redis.hang()
                faults.go_on()
                redis.stop()
                redis.start()

            others = [fault for fault in faults.all() if fault != faults.roll]
            return [faults.roll, *others, lose_redis, hang_redis]

        hold_out(brokers, redis, security, kinds, 24, seed)


@pytest.mark.slow
def test_callers_of_http_keep_their_own_rights_while_brokers_die(tmp_path: Path) -> None:
    with secured(tmp_path, *CALLERS) as (brokers, _, security):
        admin = brokers.admin
        create_topics(admin, *CALLERS.values())
        for user, topic in CALLERS.items():
            allow(admin, topic, security.principal(user))
        for (user, topic), address in product(CALLERS.items(), brokers.addresses.values()):
            until(lambda ask=(address, security, user, topic): knows_right(*ask), f"{address} knows all rules")
        callers = HttpCallers(tmp_path, brokers, security)
        faults = Faults(brokers, random.Random(4), [callers])
        try:
            faults.run([faults.kill, faults.pause, faults.kill_the_controller, faults.stop, faults.reset], 8)
        finally:
            callers.stop()
        callers.check()
