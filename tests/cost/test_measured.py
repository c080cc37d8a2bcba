"""From counters to the last hour, and from that to a bill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.limits import GIB
from app.cost import measured
from app.cost.measured import OTHERS, Hour, PartitionBytes, Reading, Spent, as_json, measured_bill, samples_of, spent_of
from app.cost.prices import SECONDS_PER_MONTH, Prices, with_overrides

PUTS = ("put_if_absent", "wal")
PRICES = Prices()


def reading(puts: float = 0, **topics: PartitionBytes) -> Reading:
    return Reading({PUTS: puts}, {("in", "other"): puts}, {(topic, 0): values for topic, values in topics.items()})


def test_an_hour_is_what_counters_rose_by_since_the_first_reading() -> None:
    hour = Hour()
    hour.note(reading(100, t=PartitionBytes(5, 0, 5, 0)), 10.0, [("t", 0)])
    assert hour.spent({}, 0) is None
    hour.note(reading(130, t=PartitionBytes(25, 7, 25, 3)), 70.0, [("t", 0)])
    hour.note(reading(150, t=PartitionBytes(25, 7, 25, 4), u=PartitionBytes(0, 0, 9, 0)), 130.0, [("t", 0), ("u", 0)])
    assert hour.spent({"t": 40.0}, 6.0) == Spent(
        120.0,
        {PUTS: 50},
        {("in", "other"): 50},
        {
            ("wal", "t"): 20,
            ("segments", "t"): 7,
            ("in", "t"): 20,
            ("out", "t"): 4,
            ("in", "u"): 9,
            ("stored", "t"): 40,
        },
        6.0,
    )


def test_what_is_older_than_an_hour_is_forgotten_and_a_counter_that_fell_began_anew() -> None:
    hour = Hour()
    for minute in range(121):
        hour.note(reading(minute if minute < 100 else minute - 100), minute * 60.0, [])
    spent = hour.spent({}, 0)
    assert spent is not None
    assert spent.seconds == 3600
    assert spent.requests == {PUTS: 39 + 20}, "from 60 to 99, and from 0 to 20"


def test_what_a_follower_copies_is_not_counted_for_its_topics() -> None:
    hour = Hour()
    hour.note(reading(), 0.0, [])
    hour.note(reading(t=PartitionBytes(0, 0, 100, 0)), 60.0, [])
    hour.note(reading(t=PartitionBytes(0, 0, 130, 0)), 120.0, [("t", 0)])
    spent = hour.spent({}, 0)
    assert spent is not None
    assert spent.topics == {("in", "t"): 30}, "what it had when it became leader is not of this hour"


def test_topics_with_few_bytes_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "TOPICS_KEPT", 2)
    hour = Hour()
    hour.note(reading(), 0.0, [])
    topics = {f"t{size}": PartitionBytes(0, 0, size, 0) for size in (1, 2, 30, 40)}
    hour.note(reading(**topics), 60.0, [(topic, 0) for topic in topics])
    spent = hour.spent({topic: float(values.bytes_in) for topic, values in topics.items()}, 0)
    assert spent is not None
    of_in = {topic: value for (of, topic), value in spent.topics.items() if of == "in"}
    assert of_in == {"t40": 40, "t30": 30, OTHERS: 3}
    assert spent.topics["stored", OTHERS] == 3


SPENT = Spent(
    3600.0,
    {
        PUTS: 14_400,
        ("get_tail", "wal"): 100,
        ("list_objects", "wal"): 1,
        ("put_part", "data"): 4_000,
        ("put_if_absent", "manifests"): 1_000,
        ("put", "cluster"): 360,
        ("delete_many", "wal"): 50,
    },
    {("in", "other"): 2.0 * GIB, ("in", "same"): GIB, ("out", "unknown"): 3.0 * GIB},
    {
        ("wal", "a"): 75,
        ("wal", "b"): 25,
        ("segments", "b"): 10,
        ("in", "a"): 50,
        ("in", "b"): 50,
        ("stored", "b"): 100.0 * GIB,
        ("stored", "c"): 100.0 * GIB,
    },
    4.0 * GIB,
)


def test_what_brokers_show_is_read_back() -> None:
    samples = [(name, dict(labels), value) for name, labels, value in samples_of(SPENT)]
    samples += [("firn_wal_kept_bytes", {"process": "broker"}, SPENT.wal_kept_bytes), ("firn_other", {}, 1.0)]
    assert spent_of(samples) == SPENT
    assert spent_of([("firn_other", {}, 1.0)]) is None


def test_the_bill_of_a_month_like_this_hour_and_who_causes_it() -> None:
    bill = measured_bill([SPENT], PRICES)
    lines = {line.what: line.dollars for line in bill.lines}
    puts = 14_400 * 730 / 1000 * 0.005
    tier = 5_000 * 730 / 1000 * 0.005
    storage = 200 * 0.023
    crossing = 2 * 730 * 0.02
    held = 4 * 0.023
    others = (100 * 0.0004 + 1 * 0.005) * 730 / 1000
    assert lines == {
        "write-ahead log: PUTs": pytest.approx(puts),
        "write-ahead log: others": pytest.approx(others),
        "segments and manifests: requests": pytest.approx(tier),
        "cluster: requests": pytest.approx(360 * 730 / 1000 * 0.005),
        "S3 storage": pytest.approx(storage),
        "write-ahead log: storage": pytest.approx(held),
        "between zones: producers": pytest.approx(crossing),
    }
    assert [topic.topic for topic in bill.topics] == ["a", "b", "c"]
    a, b, c = bill.topics
    assert a.dollars == pytest.approx(0.75 * (puts + others + held) + 0.5 * crossing)
    assert b.dollars == pytest.approx(0.25 * (puts + others + held) + 0.5 * crossing + tier + storage / 2)
    assert c.lines == {"S3 storage": pytest.approx(storage / 2)}
    assert bill.nobodys_dollars == pytest.approx(lines["cluster: requests"])
    assert bill.unknown_gib == {"consumers": pytest.approx(3 * 730)}
    told = as_json(bill)
    assert sum(line["dollars"] for line in told["lines"]) == pytest.approx(told["dollars_per_month"], abs=0.01)
    assert told["topics"][0]["topic"] == "a"


def test_brokers_are_added_up_each_by_its_own_time() -> None:
    young = Spent(60.0, {PUTS: 240}, {}, {("wal", "c"): 1})
    bill = measured_bill([SPENT, young], PRICES)
    assert (bill.brokers, bill.seconds) == (2, 60.0)
    [puts] = [line.dollars for line in bill.lines if line.what == "write-ahead log: PUTs"]
    assert puts == pytest.approx((14_400 / 3600 + 240 / 60) * SECONDS_PER_MONTH / 1000 * 0.005)
    [of_c] = [topic for topic in bill.topics if topic.topic == "c"]
    assert of_c.lines["write-ahead log: PUTs"] == pytest.approx(puts / 2), "its part of its own broker's"
    free = with_overrides(PRICES, {"s3_put_per_1000": 0.0, "s3_get_per_1000": 0.0})
    assert not measured_bill([young], free).dollars


# --- a store of their own for write-ahead logs ------------------------------------------------------------------------


def test_the_store_of_write_ahead_logs_has_its_own_prices() -> None:
    of_express = replace(SPENT, wal_bytes={("up", "express"): 8.0 * GIB, ("down", "express"): 0.5 * GIB})
    before, after = (
        {line.what: line.dollars for line in measured_bill([spent], PRICES).lines} for spent in (SPENT, of_express)
    )
    of_wal = {
        "write-ahead log: PUTs": (14_400 / 1000 * 0.00113 + 8 * 0.0032) * 730,
        "write-ahead log: others": (100 / 1000 * 0.00003 + 1 / 1000 * 0.00113 + 0.5 * 0.0006) * 730,
        "write-ahead log: storage": 4 * 0.11,
    }
    assert {what: dollars for what, dollars in after.items() if dollars != pytest.approx(before[what])} == {
        what: pytest.approx(dollars) for what, dollars in of_wal.items()
    }
    bill = measured_bill([of_express], PRICES)
    a = next(topic for topic in bill.topics if topic.topic == "a")
    assert a.lines["write-ahead log: PUTs"] == pytest.approx(0.75 * of_wal["write-ahead log: PUTs"])
    [how] = [line.how for line in bill.lines if line.what == "write-ahead log: PUTs"]
    assert how.endswith("; 5,840.0 GiB of the WAL store")


def test_a_file_system_is_not_in_the_bill() -> None:
    of_file = replace(SPENT, wal_bytes={("up", "file"): GIB, ("down", "file"): 0.0})
    dollars = {line.what: line.dollars for line in measured_bill([of_file], PRICES).lines}
    assert {value for what, value in dollars.items() if what.startswith("write-ahead log")} == {0.0}


def test_bytes_of_the_wal_store_are_counted_by_the_hour_and_shown() -> None:
    hour = Hour()
    for minute, up in enumerate((100.0, 160.0, 200.0)):
        read = reading()._replace(wal_bytes={("up", "express"): up, ("down", "express"): 0.0})
        hour.note(read, 60.0 * minute, [])
    spent = hour.spent({}, 0)
    assert spent is not None
    assert spent.wal_bytes == {("up", "express"): 100.0, ("down", "express"): 0.0}
    assert spent.wal_store == "express"
    assert spent_of((name, dict(labels), value) for name, labels, value in samples_of(spent)) == spent
    # A kind that a newer broker knows is billed as S3.
    assert replace(spent, wal_bytes={("up", "newer"): 1.0}).wal_store == "s3"
