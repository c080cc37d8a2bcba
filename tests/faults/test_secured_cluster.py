"""Broker processes of a secured cluster under clients: TLS and logins everywhere, rules, a proven cluster log, a Redis with a
password and TLS.

The faults are those of ``test_cluster.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from tests.faults.http_load import CALLERS, HttpCallers
from tests.faults.test_cluster import SETTINGS, SHORT
from tests.support.cluster import NODES, Brokers, Writing, brokers_running, create_topics, until
from tests.support.cluster_faults import Fault, Faults
from tests.support.redis_server import PASSWORD, RedisServer, redis_running
from tests.support.secured import certificates
from tests.support.secured_cluster import Security, allow, give_quota, lets_in

pytestmark = pytest.mark.faults

RATE = 50_000_000.0
"""Of the quota: more than a writer of these tests takes."""


@contextmanager
def secured(path: Path, *, between: str = "SASL_SSL") -> Iterator[tuple[Brokers, RedisServer, Security]]:
    """Brokers, the Redis that they share, and what lets in. A topic ``t``, which the user ``app`` may use, within a quota."""
    tls = certificates(path / "tls")
    with redis_running(path, tls=tls) as redis:
        security = Security(tls, between=between, redis=redis.url)
        with brokers_running(path, proxied=True, settings=SETTINGS | SHORT, security=security) as brokers:
            admin = brokers.admin
            create_topics(admin, "t")
            allow(admin, "t")
            give_quota(brokers.bootstrap, security, "app", RATE)
            yield brokers, redis, security


def hold_out(
    brokers: Brokers,
    redis: RedisServer,
    security: Security,
    kinds: Callable[[Faults], Sequence[Fault]],
    count: int,
    seed: int,
) -> None:
    """So many faults under a writer, and everything that it was told is there."""
    writing = Writing(brokers.bootstrap, client=brokers.client)
    faults = Faults(brokers, random.Random(seed), [writing])
    try:
        faults.run(kinds(faults), count)
        with Redis.from_url(redis.url) as client:
            until(lambda: client.keys("firn:*:quota:*"), "brokers lease the quota from Redis")
    finally:
        writing.finish()
    writing.check(brokers.bootstrap)
    said = "".join(brokers.lines(node) for node in NODES)
    assert [one for one in (PASSWORD, *security.passwords.values()) if one in said] == [], "no secret is logged"
    assert not lets_in(brokers.bootstrap, security, "app", "wrong")


def test_all_that_was_acknowledged_is_kept_where_nobody_is_let_in_without_a_login(tmp_path: Path) -> None:
    with secured(tmp_path) as (brokers, redis, security):

        def kinds(faults: Faults) -> Sequence[Fault]:
            return [faults.kill_the_controller, faults.reset, faults.cut_one_way]

        hold_out(brokers, redis, security, kinds, 3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("between", "seed"), [("SASL_SSL", 2), ("SSL", 3)])
def test_a_secured_cluster_holds_out(tmp_path: Path, between: str, seed: int) -> None:
    with secured(tmp_path, between=between) as (brokers, redis, security):

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

            return [*faults.all(), lose_redis, hang_redis]

        hold_out(brokers, redis, security, kinds, 24, seed)


@pytest.mark.slow
def test_callers_of_http_keep_their_own_rights_while_brokers_die(tmp_path: Path) -> None:
    with secured(tmp_path) as (brokers, _, security):
        admin = brokers.admin
        create_topics(admin, *CALLERS.values())
        for user, topic in CALLERS.items():
            allow(admin, topic, user)
        callers = HttpCallers(tmp_path, brokers, security)
        faults = Faults(brokers, random.Random(4), [callers])
        try:
            faults.run([faults.kill, faults.pause, faults.kill_the_controller, faults.stop, faults.reset], 8)
        finally:
            callers.stop()
        callers.check()
