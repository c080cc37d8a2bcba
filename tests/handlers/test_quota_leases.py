"""Limits of a whole cluster: what brokers lease never adds up to more than the limit, and what is leased gets used."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.handlers.policy.quota_leases import ASKS_MAX, BLOCK_S, LEASE_S, LeasedBucket, Leases
from tests.support.quotas import CentralBucket

SHARE = ("producer_byte_rate", "alice", None)
LIMIT = 1000.0


class Broker:
    """One broker with one share, and the place that it leases from."""

    def __init__(self, central: CentralBucket, brokers: int) -> None:
        self.central = central
        self.leases = Leases(lambda: brokers)
        self.bucket: LeasedBucket = self.leases.bucket(SHARE, LIMIT, LIMIT, 0)
        self.used = 0.0
        self.alone_s = 0.0

    def take(self, amount: float, now_s: float) -> float:
        self.used += amount
        if amount <= self.bucket.ahead:
            self.bucket.ahead -= amount
            return 0.0
        wait_s = self.bucket.take(amount, now_s)
        self.bucket.take_ahead()
        return wait_s

    def ask(self, now_s: float, *, answered: bool = True) -> None:
        if not answered:
            self.leases.failed(now_s)
            return
        asked = self.leases.wanted(now_s)
        self.leases.answered(now_s)
        self.leases.granted(asked, [self.central.lease(ask, now_s) for _, ask in asked], now_s)

    @property
    def debt(self) -> float:
        return max(0.0, -self.bucket.left)


steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(
            st.tuples(st.just("take"), st.floats(0.001, 2000)),
            st.tuples(st.just("ask"), st.booleans()),
            st.tuples(st.just("wait"), st.floats(0, 3)),
        ),
    ),
    max_size=150,
)


@given(steps)
def test_brokers_never_have_more_than_the_limit_and_each_alone_its_part(
    steps: Sequence[tuple[int, tuple[str, float]]],
) -> None:
    central = CentralBucket(0)
    brokers = [Broker(central, 3) for _ in range(3)]
    now_s = 0.0
    for which, (what, number) in steps:
        broker = brokers[which]
        if what == "wait":
            now_s += number
            for one in brokers:
                one.alone_s += number if one.leases.away else 0.0
        elif what == "ask":
            broker.ask(now_s, answered=bool(number))
        else:
            wait_s = broker.take(number, now_s)
            assert (wait_s > 0) == (broker.bucket.balance(now_s) < 0)
        paid = sum(one.used - one.debt for one in brokers)
        alone = sum(one.alone_s for one in brokers) * LIMIT / 3
        assert paid <= LIMIT * now_s + alone + 1e-3


def spent(
    brokers: Sequence[Broker], clients: Sequence[int], seconds: float, *, away: tuple[float, float] = (0, 0)
) -> float:
    """What clients get who send 50 bytes at a time and wait as they are told; ``clients``: the broker of each."""
    rng = random.Random(3)
    asks = [(rng.uniform(0, 0.1), index) for index in range(len(brokers))]
    sends = [(rng.uniform(0, 0.1), index) for index in range(len(clients))]
    for broker in brokers:
        broker.ask(0)
    while True:
        due_s, kind, index = min(
            [(due_s, 0, index) for due_s, index in asks] + [(due_s, 1, index) for due_s, index in sends]
        )
        if due_s >= seconds:
            return sum(one.used for one in brokers)
        if kind == 0:
            brokers[index].ask(due_s, answered=not away[0] <= due_s < away[1])
            asks[index] = (due_s + rng.uniform(0.05, 0.15), index)
        else:
            wait_s = brokers[clients[index]].take(50, due_s)
            sends[index] = (due_s + max(wait_s, 0.005), index)


@pytest.mark.parametrize("clients", [[0], [0, 1, 2], [0, 0, 0, 1], [1, 2, 2, 2, 2]])
def test_the_limit_is_used_wherever_clients_are(clients: list[int]) -> None:
    central = CentralBucket(0)
    brokers = [Broker(central, 3) for _ in range(3)]
    assert spent(brokers, clients, 30) == pytest.approx(30 * LIMIT, rel=0.05)


def test_a_broker_alone_has_its_part_of_the_limit_until_it_is_answered_again() -> None:
    central = CentralBucket(0)
    brokers = [Broker(central, 3) for _ in range(3)]
    assert spent(brokers, [0], 30, away=(10, 20)) == pytest.approx((20 + 10 / 3) * LIMIT, rel=0.05)


def test_a_block_that_was_not_used_is_lost() -> None:
    broker = Broker(CentralBucket(-10), 1)
    broker.ask(0)
    broker.ask(0.0)
    assert broker.bucket.balance(0) == LIMIT * BLOCK_S
    assert broker.bucket.balance(LEASE_S) == LIMIT * BLOCK_S
    assert broker.bucket.balance(LEASE_S + 0.1) == 0
    assert broker.take(10, 60) > 0


def test_a_return_brings_one_block_at_most() -> None:
    broker = Broker(CentralBucket(0), 2)
    broker.ask(0, answered=False)
    assert broker.bucket.balance(60) == LIMIT / 2
    broker.leases.answered(60)
    assert broker.bucket.balance(60) == LIMIT * BLOCK_S


def test_one_request_asks_for_so_many_shares_and_the_others_are_next() -> None:
    leases = Leases(lambda: 1)
    leases.answered(0)
    buckets = [leases.bucket((str(index), None, None), LIMIT, LIMIT, 0) for index in range(ASKS_MAX + 7)]
    for bucket in buckets:
        bucket.take(1, 0)
    assert len(leases.wanted(0)) == ASKS_MAX
    assert [bucket for bucket, _ in leases.wanted(0)] == buckets[ASKS_MAX:]
    assert not leases.wants


def test_what_is_forgotten_is_asked_for_no_more() -> None:
    leases = Leases(lambda: 1)
    leases.answered(0)
    first, second = (leases.bucket((name, None, None), LIMIT, LIMIT, 0) for name in "ab")
    first.take(1, 0)
    second.take(1, 0)
    leases.keep([second])
    assert [bucket for bucket, _ in leases.wanted(0)] == [second]
