"""Clients push as often as they may, what they are asked for, and no more than there is room for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from uuid import UUID

import pytest

from app.configs.client_metrics import Client
from app.core.errors import ErrorCode, ProtocolError, RequestRejected
from app.core.turns import whole
from app.telemetry import clients as module
from app.telemetry.clients import Asked, Push, PushingClients
from tests.support.client_metrics import Pushed, metrics_data

ID, OTHER = UUID(int=0xA1), UUID(int=0xA2)
JAVA = Client(str(ID), "c", "apache-kafka-java", "4.3.1", "10.0.0.1", "5000")
EVERYTHING = {"all": {"metrics": "*", "interval.ms": "10000"}}


def clients_with(
    configs: Mapping[str, Mapping[str, str]] = EVERYTHING, *, series_max: int = 100, client_series_max: int = 50
) -> PushingClients:
    clients = PushingClients(bytes_max=1000, series_max=series_max, client_series_max=client_series_max)
    whole(clients.following(configs))
    return clients


def push(clients: PushingClients, asked: Asked, now_s: float, *names: str, instance_id: UUID = ID, **more: int) -> None:
    about = Push(
        **{"subscription_id": asked.subscription_id, "codec": 0, "size_bytes": 10, "terminating": False, **more}
    )  # type: ignore[arg-type]
    state = clients.admit(JAVA, instance_id, about, now_s)
    whole(clients.taking(state, metrics_data([Pushed(name, 1) for name in names])))


def refused(clients: PushingClients, asked: Asked, now_s: float, **more: int) -> ErrorCode:
    with pytest.raises(RequestRejected) as error:
        push(clients, asked, now_s, "x", **more)
    return error.value.code


def families(clients: PushingClients) -> list[str]:
    return [one.family for block in clients.shown() for one in block.samples()]


def test_the_wanted_metrics_are_those_of_all_subscriptions_that_match() -> None:
    configs = {
        "a": {"metrics": "org.b.,org.a.", "interval.ms": "60000", "match": "client_software_name=apache-.*"},
        "b": {"metrics": "org.a.,org.c", "interval.ms": "30000", "match": "client_id=c,client_source_port=50.."},
        "c": {"metrics": "*", "match": "client_id=other"},
        "d": {"interval.ms": "100", "match": "client_source_address=10.0.0.10"},
    }
    asked = clients_with(configs).subscribe(JAVA, ID, 0.0)
    assert (asked.wanted.metrics, asked.wanted.interval_ms) == (("org.a.", "org.b.", "org.c"), 30_000)
    assert clients_with().subscribe(JAVA, ID, 0.0).wanted.metrics == ("*",)


def test_a_client_that_matches_nothing_is_asked_for_nothing() -> None:
    asked = clients_with({"a": {"metrics": "*", "match": "client_id=other"}}).subscribe(JAVA, ID, 0.0)
    assert (asked.wanted.metrics, asked.wanted.interval_ms) == ((), 300_000)


def test_patterns_see_the_first_256_characters_of_a_fact() -> None:
    configs = {"a": {"metrics": "*", "match": "client_id=a*"}}
    beyond, within = JAVA._replace(client_id="a" * 256 + "b"), JAVA._replace(client_id="a" * 255 + "b")
    assert clients_with(configs).subscribe(beyond, ID, 0.0).wanted.metrics == ("*",)
    assert clients_with(configs).subscribe(within, ID, 0.0).wanted.metrics == ()


def test_every_broker_gives_a_client_the_same_subscription() -> None:
    one, two = clients_with(), clients_with()
    assert one.subscribe(JAVA, ID, 0.0) == two.subscribe(JAVA, ID, 50.0)
    assert one.subscribe(JAVA, OTHER, 0.0).subscription_id != two.subscribe(JAVA, ID, 90.0).subscription_id
    other = clients_with({"all": {"metrics": "*", "interval.ms": "10001"}}).subscribe(JAVA, ID, 0.0)
    assert other.subscription_id != two.subscribe(JAVA, ID, 190.0).subscription_id


def test_a_client_asks_and_pushes_once_in_its_interval() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    push(clients, asked, 1.0, "x")
    assert refused(clients, asked, 10.9) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with pytest.raises(RequestRejected, match="before its interval is over"):
        clients.subscribe(JAVA, ID, 10.9)
    push(clients, asked, 11.0, "x")
    assert clients.pushes == {"accepted": 2, "throttled": 2, "refused": 0}


def test_the_last_push_need_not_wait_and_nothing_follows_it() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    push(clients, asked, 1.0, "x")
    push(clients, asked, 2.0, "y", terminating=True)
    assert families(clients) == ["kafka_client_y"]
    assert refused(clients, asked, 20.0) is ErrorCode.INVALID_REQUEST


def test_a_push_that_is_not_asked_for_is_refused() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    assert refused(clients, asked, 1.0, subscription_id=7) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    clients.subscribe(JAVA, ID, 2.0)  # at once: its subscription was unknown
    assert refused(clients, asked, 3.0, codec=5) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    clients.subscribe(JAVA, ID, 4.0)
    assert refused(clients, asked, 20.0, size_bytes=1001) is ErrorCode.TELEMETRY_TOO_LARGE
    assert refused(clients, asked, 40.0, instance_id=UUID(int=0)) is ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    assert families(clients) == []


def test_a_change_of_the_subscriptions_makes_a_client_ask_again_and_keeps_its_series() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    push(clients, asked, 1.0, "a.x", "b.x")
    whole(clients.following({"all": {"metrics": "a."}}))
    assert refused(clients, asked, 2.0) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert len(families(clients)) == 2
    again = clients.subscribe(JAVA, ID, 2.5)
    push(clients, again, 3.0, "a.x", "b.x")
    assert families(clients) == ["kafka_client_a_x"]
    assert (clients.series_count, clients.dropped_points) == (1, 1)


def test_bad_metrics_change_nothing() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    push(clients, asked, 1.0, "x")
    state = clients.admit(JAVA, ID, Push(asked.subscription_id, 0, 10, False), 20.0)
    with pytest.raises(ProtocolError):
        whole(clients.taking(state, metrics_data([Pushed("y", 1)]) + b"\x0a"))
    assert (families(clients), clients.series_count) == (["kafka_client_x"], 1)


def test_a_client_that_is_forgotten_while_its_push_is_read_leaves_nothing() -> None:
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    state = clients.admit(JAVA, ID, Push(asked.subscription_id, 0, 10, False), 1.0)
    taking = clients.taking(state, metrics_data([Pushed(f"x{n}", 1) for n in range(20)]))
    next(taking)
    clients.expire(1000.0)
    whole(taking)
    assert (len(clients), clients.series_count, families(clients)) == (0, 0, [])


def test_series_are_bounded_for_a_client_and_in_sum_and_end_with_the_client() -> None:
    clients = clients_with(series_max=7, client_series_max=5)
    names = [f"x{n}" for n in range(9)]
    push(clients, clients.subscribe(JAVA, ID, 0.0), 1.0, *names)
    assert (clients.series_count, clients.dropped_points) == (5, 4)
    push(clients, clients.subscribe(JAVA, OTHER, 50.0), 51.0, *names, instance_id=OTHER)
    assert (clients.series_count, clients.dropped_points) == (7, 11)
    clients.expire(61.0)
    assert clients.series_count == 7
    clients.expire(61.1)
    assert (clients.series_count, len(clients)) == (2, 1)
    push(clients, clients.subscribe(JAVA, OTHER, 70.0), 71.0, *names, instance_id=OTHER)
    assert clients.series_count == 5


def test_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 3)
    clients = clients_with()
    asked = clients.subscribe(JAVA, ID, 0.0)
    push(clients, asked, 0.0, "x")
    for number in range(5):
        clients.subscribe(JAVA, UUID(int=1000 + number), 1.0)
    assert (len(clients), clients.series_count, families(clients)) == (3, 0, [])


@pytest.mark.ci
def test_the_series_of_a_thousand_clients_stay_within_their_memory() -> None:
    """20 series each, with the names and labels of a Java producer: 400 bytes a series, and 1 KiB a client."""
    clients = PushingClients(bytes_max=1 << 20, series_max=20_000, client_series_max=500)
    whole(clients.following(EVERYTHING))
    names = [f"org.apache.kafka.producer.topic.some.metric.{number}.rate" for number in range(25)]
    data = metrics_data([Pushed(name, 0.5, {"topic": "orders-of-many-customers"}) for name in names])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1_000):
            instance_id = UUID(int=1 << 64 | number + 10)
            client = Client(str(instance_id), f"producer-{number}", "apache-kafka-java", "4.3.1", "10.0.0.1", "5000")
            asked = clients.subscribe(client, instance_id, 0.0)
            state = clients.admit(client, instance_id, Push(asked.subscription_id, 0, 10, False), 1.0)
            whole(clients.taking(state, data))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert (len(clients), clients.series_count, clients.dropped_points) == (1_000, 20_000, 5_000)
    assert used < 20_000 * 400 + 1_000 * 1024
