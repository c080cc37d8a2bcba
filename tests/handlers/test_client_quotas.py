"""What quotas do: whose limit counts, how long one waits, and that a rate holds whatever the requests are like."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.configs import BrokerConfig
from app.core.buckets import AHEAD_S
from app.core.errors import ErrorCode, RequestRejected
from app.core.metrics import Registry
from app.handlers.policy import client_quotas
from app.handlers.policy.callers import UNKNOWN, Caller, Rights
from app.handlers.policy.client_quotas import FETCH, PRODUCE, ClientQuotas
from app.metadata.image.records import QuotaEntity
from app.wire.apikeys import ApiKey

METADATA = int(ApiKey.METADATA)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas(limits, **config: int) -> tuple[ClientQuotas, Clock]:
    clock = Clock()
    made = ClientQuotas(BrokerConfig(node_id=1, **config), clock)
    made.follow(limits)
    return made, clock


def caller(user: str = "u") -> Caller:
    return Caller(Rights(f"User:{user}"))


class Kind:
    """Requests of one kind."""

    def __init__(self, client_id: str) -> None:
        self.client_id: str | None = client_id
        self.shares = UNKNOWN


def of_user(name: str | None, client_id: str | None = None) -> QuotaEntity:
    return QuotaEntity(name, client_id, None)


def test_waits_are_counted_by_the_quota_that_causes_them() -> None:
    limits = {
        "producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0, "firn.cold_read_byte_rate": 1000.0,
        "controller_mutation_rate": 1.0, "request_percentage": 1.0,
    }  # fmt: skip
    found, clock = quotas({of_user("u"): limits})
    registry = Registry()
    found.waits.register(registry)

    def counted() -> dict[tuple[str, str], float]:
        return {(one.name, dict(one.labels)["quota"]): one.value for one in registry.samples() if one.value}

    assert found.charge(caller(), None, PRODUCE, 10) == 0
    assert counted() == {}
    waits_ms = {
        "producer_byte_rate": found.charge(caller(), None, PRODUCE, 100_000),
        "consumer_byte_rate": found.charge(caller(), None, FETCH, 100_000),
        "firn.cold_read_byte_rate": found.read_cold(caller(), None, 100_000),
        "controller_mutation_rate": found.mutate(caller(), None, 1_000, strict=False),
    }
    found.begin()
    clock.now_s += 5
    waits_ms["request_percentage"] = found.charge(caller(), None, METADATA, 10)
    assert all(waits_ms.values())
    told = counted()
    assert {quota for name, quota in told if name == "firn_throttled_requests_total"} == waits_ms.keys()
    for quota, wait_ms in waits_ms.items():
        assert told["firn_throttled_requests_total", quota] == 1
        assert told["firn_throttled_seconds_total", quota] == pytest.approx(wait_ms / 1000, abs=0.001)
    with pytest.raises(RequestRejected):
        found.mutate(caller(), None, 1, strict=True)
    assert counted()["firn_throttled_requests_total", "controller_mutation_rate"] == 2


@pytest.mark.parametrize("key", [PRODUCE, FETCH])
@given(
    st.integers(1_000, 10_000_000),
    st.lists(st.tuples(st.integers(0, 2_000_000), st.floats(0, 0.3)), min_size=1, max_size=40),
)
def test_a_client_that_waits_as_told_gets_its_rate_and_one_sample(key, rate, requests) -> None:
    name = "producer_byte_rate" if key == PRODUCE else "consumer_byte_rate"
    made, clock = quotas({of_user("u"): {name: float(rate)}})
    began_s, sent = clock.now_s, 0
    for size, pause_s in requests:
        sent += size
        wait_ms = made.charge(caller(), "c", key, size)
        clock.now_s += wait_ms / 1000
        # Once it has waited, it has no more than what came in, and what it had at first.
        assert sent <= rate * (clock.now_s - began_s + 1) + rate * 1e-6
        clock.now_s += pause_s


TURNS = st.lists(st.tuples(st.lists(st.integers(10, 200_000), max_size=9), st.floats(0, 0.3)), max_size=20)


@given(st.integers(1_000, 10_000_000), TURNS)
def test_small_requests_wait_as_if_each_looked_at_the_clock(rate, turns) -> None:
    limits = {of_user("u"): {"producer_byte_rate": float(rate)}}
    (made, clock), (exact, other_clock) = quotas(limits), quotas(limits)
    who, kind, began_s, sent = caller(), Kind("c"), clock.now_s, 0
    for sizes, pause_s in turns:
        made.begin()
        for size in sizes:
            sent += size
            told_ms = made.produced(who, "c", size) if size % 2 else made.produced_alike(who, kind, size)
            wait_ms = exact.charge(who, "c", PRODUCE, size)
            assert told_ms <= wait_ms + 1  # rounded up
            # Only a bucket that filled to the brim meanwhile has let more pass.
            assert told_ms >= wait_ms - AHEAD_S * 1000 - 1
            assert told_ms or sent <= rate * (clock.now_s - began_s + 1 + AHEAD_S) + rate * 1e-6
        made.end()
        clock.now_s += pause_s
        other_clock.now_s += pause_s


@given(st.integers(1_000, 10_000_000), st.lists(st.integers(10, 20_000), min_size=1, max_size=200))
def test_a_burst_of_small_requests_is_counted_to_the_byte(rate, sizes) -> None:
    made, _ = quotas({of_user("u"): {"producer_byte_rate": float(rate)}})
    who = caller()
    made.begin()
    for size in sizes:
        made.produced(who, "c", size)
    made.end()
    assert made.charge(who, "c", PRODUCE, rate) == pytest.approx(sum(sizes) / rate * 1000, abs=1)


def test_small_requests_that_fit_look_at_no_clock() -> None:
    made, clock = quotas({of_user("u"): {"producer_byte_rate": 1e6}})
    who, looks = caller(), 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return clock.now_s

    def turns() -> int:
        nonlocal looks
        looks = 0
        for _ in range(20):
            made.begin()
            assert [made.produced(who, "c", 100) for _ in range(5)] == [0] * 5
            made.end()
        return looks

    made.produced(who, "c", 100)
    made.now_s = look
    assert turns() == 0, "10 KB of the 15 KB that were taken ahead"
    assert turns() == 1
    made.follow({of_user("u"): {"producer_byte_rate": 1e9, "request_percentage": 20.0}})
    turns()
    clock.now_s += 1  # it fills
    turns()
    assert turns() == 40, "with a limit of time, two in a turn"


def test_what_calls_charge_is_not_of_the_step_in_which_they_are_made() -> None:
    made, clock = quotas({of_user("u"): {"request_percentage": 10.0, "producer_byte_rate": 1e9}})
    who, before_s = caller(), made.between_calls_s()
    clock.now_s += 0.25
    for key in (PRODUCE, FETCH):
        made.begin()
        clock.now_s += 0.5
        if key == PRODUCE:
            made.produced(who, "c", 100)
        else:
            made.charge(who, "c", key, 100)
        made.end()
    clock.now_s += 0.125
    assert made.between_calls_s() - before_s == pytest.approx(0.375)


def test_the_steps_of_a_client_are_its_time_and_those_between_brokers_are_not() -> None:
    made, _ = quotas({of_user("u"): {"request_percentage": 10.0}})
    made.stepped(caller(), "c", int(ApiKey.ENVELOPE), 5.0)
    assert made.charge(caller(), "c", FETCH, 0) == 0
    made.stepped(caller(), "c", int(ApiKey.DELETE_GROUPS), 0.15)
    assert made.charge(caller(), "c", FETCH, 0) == 500


def test_the_time_of_a_produce_request_is_told_with_the_next_request() -> None:
    made, clock = quotas({of_user("u"): {"request_percentage": 10.0, "producer_byte_rate": 1e9}})
    who = caller()
    made.begin()
    assert made.produced(who, "c", 100) == 0
    clock.now_s += 0.15
    assert made.produced(who, "c", 100) == 0
    made.end()
    made.begin()
    assert made.produced(who, "c", 100) == 500, "0.05 s above the 0.1 s that a second brings"
    made.end()
    clock.now_s += 0.5
    assert made.produced(who, "c", 100) == 0


@given(st.floats(0.01, 1), st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.3)), min_size=1, max_size=60))
def test_a_client_that_waits_as_told_has_its_share_of_the_loop_and_one_sample(share, turns) -> None:
    made, clock = quotas({of_user("u"): {"request_percentage": share * 100}})
    who, kind, began_s, spent_s = caller(), Kind("c"), clock.now_s, 0.0
    for request_s, pause_s in turns:
        made.begin()
        clock.now_s += request_s
        wait_ms = made.produced_alike(who, kind, 100)
        made.end()
        spent_s += request_s
        clock.now_s += pause_s
        # It waits a sample at most, and is told of the last request with the next one.
        if wait_ms < 1000:
            clock.now_s += wait_ms / 1000
            allowed_s = share * (clock.now_s - began_s + 1 + AHEAD_S) + request_s
            assert spent_s <= allowed_s + 1e-6
        else:
            made, clock = quotas({of_user("u"): {"request_percentage": share * 100}})
            began_s, spent_s = clock.now_s, 0.0


def test_shares_that_are_remembered_are_those_that_count(monkeypatch) -> None:
    monkeypatch.setattr(client_quotas, "SHARES_MAX", 100)
    made, clock = quotas({of_user(None, ""): {"producer_byte_rate": 1000.0}})
    who, kind = caller(), Kind("c")
    for turn in range(20):
        clock.now_s += 100  # its bucket is full again, and so is forgotten
        for number in range(1000):
            made.charge(who, f"{turn}-{number}", PRODUCE, 10)
        assert made.produced_alike(who, kind, 2000) == 1000
        assert made.charge(who, "c", PRODUCE, 1000) == 2000


def test_each_pays_for_its_own_requests_and_its_own_time() -> None:
    made, clock = quotas(
        {
            of_user(""): {"producer_byte_rate": 1000.0, "request_percentage": 10.0},
            of_user("u", "d"): {"producer_byte_rate": 500.0},
        }
    )
    user, other = caller("u"), caller("v")
    made.begin()
    assert [made.produced(user, "c", 400) for _ in range(2)] == [0, 0]
    assert made.produced(other, "c", 900) == 0
    assert made.produced(user, "d", 400) == 0
    assert made.produced(user, "c", 300) == 100
    assert made.charge(other, "c", PRODUCE, 200) == 100
    assert made.produced(user, "d", 200) == 200
    made.end()
    clock.now_s += 2
    made.begin()
    assert made.produced(user, "d", 10) == 0
    clock.now_s += 0.2
    assert made.produced(other, "c", 10) == 0
    made.end()
    assert made.charge(other, "c", METADATA, 1) == 0
    assert made.charge(user, "d", METADATA, 1) == 1000


@pytest.mark.ci
def test_a_busy_client_has_its_rate_within_5_percent_over_30_seconds() -> None:
    for size in (100, 16_384, 1_048_576):
        made, clock = quotas({of_user("u"): {"producer_byte_rate": 1_000_000.0}})
        who, sent = caller(), 0
        while clock.now_s < 1030:
            sent += size
            clock.now_s += max(made.produced(who, "c", size) / 1000, size / 50e6)
        assert 0.95 < sent / 30e6 < 1.05 + size / 30e6


ORDER = [("u", "c"), ("u", ""), ("u", None), ("", "c"), ("", ""), ("", None), (None, "c"), (None, "")]
"""From the closest on, as Kafka's documentation of quotas lists them."""


@pytest.mark.parametrize("present", list(product([False, True], repeat=len(ORDER))))
def test_the_closest_limit_counts(present) -> None:
    limits = {
        of_user(*entity): {"producer_byte_rate": 1000.0 * (place + 1)}
        for place, (entity, is_there) in enumerate(zip(ORDER, present, strict=True))
        if is_there
    }
    made, _ = quotas(limits)
    first = next((place for place, is_there in enumerate(present) if is_there), None)
    if first is None:
        assert made.charge(caller(), "c", PRODUCE, 1 << 30) == 0
        return
    rate = 1000 * (first + 1)
    assert made.charge(caller(), "c", PRODUCE, rate * 3) == 2000


@pytest.mark.parametrize(
    ("entity", "shared_with"),
    [
        (("u", "c"), set()),
        (("u", ""), set()),
        (("u", None), {("u", "d")}),
        (("", "c"), set()),
        (("", ""), set()),
        (("", None), {("u", "d")}),
        ((None, "c"), {("v", "c")}),
        ((None, ""), {("v", "c")}),
    ],
)
def test_who_shares_a_limit_with_whom(entity, shared_with) -> None:
    for other in (("u", "d"), ("v", "c"), ("v", "d")):
        made, _ = quotas({of_user(*entity): {"producer_byte_rate": 1000.0}})
        made.charge(caller("u"), "c", PRODUCE, 5000)
        assert (made.charge(caller(other[0]), other[1], PRODUCE, 1) > 1) is (other in shared_with)


def test_each_key_is_looked_up_for_itself() -> None:
    made, _ = quotas({of_user("u", "c"): {"consumer_byte_rate": 10.0}, of_user("u"): {"producer_byte_rate": 1000.0}})
    assert made.charge(caller(), "c", PRODUCE, 2000) == 1000
    assert made.charge(caller(), "c", FETCH, 20) == 1000
    assert made.charge(caller(), "c", METADATA, 1 << 20) == 0


def test_a_client_without_an_id_has_the_default_of_ids() -> None:
    made, _ = quotas({of_user(None, ""): {"producer_byte_rate": 1000.0}})
    assert made.charge(caller(), None, PRODUCE, 2000) == 1000
    assert made.charge(caller(), "", PRODUCE, 1000) == 2000


def test_request_percentage_is_of_the_loop_s_time_and_waits_a_sample_at_most() -> None:
    made, clock = quotas({of_user("u"): {"request_percentage": 10.0}})
    made.begin()
    clock.now_s += 0.15
    assert made.charge(caller(), "c", METADATA, 1) == 500, "0.05 s above the 0.1 s that a second brings"
    clock.now_s += 0.1
    made.spent(caller(), "c")
    made.end()
    clock.now_s += 1
    assert made.charge(caller(), "c", METADATA, 1) == 400, "outside of begin and end no time counts"
    made.begin()
    clock.now_s += 60
    assert made.charge(caller(), "c", METADATA, 1) == 1000
    assert made.charge(caller("v"), "c", METADATA, 1) == 0


def test_time_of_brokers_is_nobody_s() -> None:
    made, clock = quotas({of_user(""): {"request_percentage": 1.0}})
    made.begin()
    clock.now_s += 60
    assert made.charge(caller(), "c", int(ApiKey.ENVELOPE), 1) == 0
    made.end()


def test_changes_of_topics_are_refused_only_in_debt_and_only_to_those_who_know() -> None:
    made, clock = quotas({of_user("u"): {"controller_mutation_rate": 2.0}}, controller_quota_window_num=5)
    assert made.mutate(caller(), "c", 14, strict=True) == 2000
    with pytest.raises(RequestRejected, match=r"in 2\.0 s") as refused:
        made.mutate(caller(), "c", 1, strict=True)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert made.mutate(caller(), "c", 1, strict=False) == 2500
    clock.now_s += 2.5
    assert made.mutate(caller(), "c", 1, strict=True) == 500


def test_an_address_opens_so_many_connections_a_second() -> None:
    limits = {QuotaEntity(None, None, ""): {"connection_creation_rate": 2.0}}
    limits[QuotaEntity(None, None, "::1")] = {"connection_creation_rate": 1.0}
    made, clock = quotas(limits)
    assert [made.connected("10.0.0.1") for _ in range(3)] == [0, 0, 0.5]
    assert [made.connected("10.0.0.2") for _ in range(3)] == [0, 0, 0.5]
    assert [made.connected("::1") for _ in range(2)] == [0, 1]
    clock.now_s += 0.5
    assert [made.connected("10.0.0.1") for _ in range(2)] == [0, 0.5], "who is refused pays nothing"


def test_a_changed_limit_keeps_what_was_taken_and_no_debt_beyond_a_sample() -> None:
    made, _ = quotas({of_user("u"): {"producer_byte_rate": 1000.0}})
    assert [made.produced(caller(), "c", 10) for _ in range(100)] == [0] * 100
    assert made.charge(caller(), "c", PRODUCE, 1_000_000) == 1_000_000
    made.follow({of_user("u"): {"producer_byte_rate": 2000.0}})
    assert made.charge(caller(), "c", PRODUCE, 0) == 1000
    made.follow({})
    assert made.charge(caller(), "c", PRODUCE, 1 << 30) == 0


def test_a_fetch_brings_no_more_than_a_sample() -> None:
    made, _ = quotas({of_user("u"): {"consumer_byte_rate": 5000.0, "firn.cold_read_byte_rate": 3000.0}})
    assert made.fetch_bytes_max(caller(), "c") == 3000
    assert made.fetch_bytes_max(caller("v"), "c") is None
    assert made.read_cold(caller(), "c", 6000) == 1000


def test_clients_that_come_and_go_are_forgotten_and_debtors_last(monkeypatch) -> None:
    monkeypatch.setattr(client_quotas, "SHARES_MAX", 100)
    made, clock = quotas({of_user(None, ""): {"producer_byte_rate": 1000.0}})
    made.charge(caller(), "debtor", PRODUCE, 1_000_000)
    for number in range(5000):
        made.charge(caller(), str(number), PRODUCE, 10)
        clock.now_s += 0.001
    assert len(made._buckets) <= 100
    assert len(made._shares) <= 100
    assert made.charge(caller(), "debtor", PRODUCE, 0) > 900_000


def test_addresses_that_come_and_go_are_forgotten_and_push_out_no_debtor(monkeypatch) -> None:
    monkeypatch.setattr(client_quotas, "SHARES_MAX", 100)
    rates = {"connection_creation_rate": 1.0}
    made, clock = quotas({of_user(None, ""): {"producer_byte_rate": 1000.0}, QuotaEntity(None, None, ""): rates})
    for number in range(60):
        made.charge(caller(), str(number), PRODUCE, 1_000_000)
    assert made.connected("10.0.0.1") == 0
    for number in range(5000):
        assert made.connected(f"10.1.{number // 256}.{number % 256}") == 0
        clock.now_s += 0.0001
    assert len(made._addresses) <= 100
    assert all(made.charge(caller(), str(number), PRODUCE, 0) > 900_000 for number in range(60))
