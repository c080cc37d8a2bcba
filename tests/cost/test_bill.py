"""Bills: what they add up to, and what moves them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from app.core.errors import ConfigError
from app.core.limits import GIB, MIB
from app.cost.bill import FIRN_WORK, KAFKA_WORK, Around, Bill, Work, bills, firn, firn_object, kafka
from app.cost.prices import Prices, StoreKind, with_overrides
from app.cost.requests import billed
from app.cost.workload import Workload, WriteAhead, parse_bytes

PRICES = Prices()


def position(system: str, name: str, workload: Workload) -> float:
    found = bills(workload, PRICES)
    bill = next(bill for bill in found if bill.system == system)
    return sum(line.dollars for line in bill.lines if line.what == name)


def test_a_gib_a_second_for_a_month_is_what_the_list_says() -> None:
    workload = Workload(write_mb_per_s=GIB / 1e6, retention_days=1, zones=1, partitions=1)
    assert workload.retained_gib == pytest.approx(86_400)
    assert position("Firn", "S3 storage", workload) == pytest.approx(50 * 1024 * 0.023 + (86_400 - 50 * 1024) * 0.022)
    assert position("Kafka, 3 × EBS", "EBS", workload) == pytest.approx(86_400 * 3 / 0.7 * 0.08)


def test_nothing_is_billed_between_zones_in_one_zone() -> None:
    for bill in bills(Workload(write_mb_per_s=10, zones=1), PRICES):
        assert not [line for line in bill.lines if line.what.startswith("between zones")]


def test_followers_and_producers_cross_zones_and_consumers_of_kafka_do_not() -> None:
    workload = Workload(write_mb_per_s=10, fan_out=5, replay_share=0)
    a_time = workload.gib_per_month * 2 * 0.01
    for system, consumers, followers in (("Kafka, 3 × EBS", 0, 2), ("Firn", 5 * 2 / 3, 0)):
        assert position(system, "between zones: producers", workload) == pytest.approx(2 / 3 * a_time)
        assert position(system, "between zones: consumers", workload) == pytest.approx(consumers * a_time)
        assert position(system, "between zones: followers", workload) == pytest.approx(followers * a_time)


def test_a_volume_takes_the_place_of_nvme_and_costs_by_its_size() -> None:
    workload = Workload(write_mb_per_s=5, zones=1)
    on_nvme, on_volume = firn(workload, PRICES), firn(workload, PRICES, volume_gib=100)
    assert "EBS" not in [line.what for line in on_nvme.lines]
    assert [line.dollars for line in on_volume.lines if line.what == "EBS"] == [pytest.approx(100 * 0.08)]
    assert on_nvme.lines[0].how == "1 × i4i.large on demand"
    assert on_volume.lines[0].how == "1 × m6i.large on demand"


def test_a_volume_that_does_not_hold_local_records_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"10 GiB is too small: local records fill 48 GiB"):
        firn(Workload(write_mb_per_s=5), PRICES, volume_gib=10)


def test_what_stands_around_a_broker_is_billed_by_zone_by_number_and_by_byte() -> None:
    workload = Workload(write_mb_per_s=10, fan_out=3, replay_share=0.5, zones=2)
    around = Around(
        load_balancer=1, endpoint=8, nat=1, key=2, metric=15, alarm=10, http_machine=3, http_load_balancer=1
    )
    dollars = {line.what: line.dollars for line in firn(workload, PRICES, around=around).lines}
    assert dollars["load balancer"] == pytest.approx(0.0225 * 730 + workload.gib_per_month * 4.5 * 0.006)
    assert dollars["way to AWS's APIs"] == pytest.approx((8 * 2 * 0.01 + 0.045) * 730)
    assert dollars["CloudWatch"] == pytest.approx(15 * 0.3 + 10 * 0.1)
    assert dollars["KMS"] == pytest.approx(2)
    assert dollars["HTTP"] == pytest.approx((3 * 0.0168 + 0.0225) * 730)
    assert not dollars.keys() & {line.what for line in kafka(workload, PRICES, tiered=True).lines} - {
        "instances",
        "S3 storage",
        "S3 requests",
        "between zones: producers",
        "between zones: consumers",
        "between zones: followers",
    }


def test_smaller_segments_cost_more_requests() -> None:
    large, small = (
        billed(firn(Workload(write_mb_per_s=50, segment_bytes=size), PRICES).operations)[0] for size in (GIB, 16 * MIB)
    )
    assert small > 1.5 * large


def test_a_slow_partition_rolls_by_age_and_its_segments_are_small() -> None:
    workload = Workload(write_mb_per_s=1, partitions=1000)
    assert workload.rolled_bytes == pytest.approx(1e6 / 1000 * 3600)
    assert workload.segments_per_month == pytest.approx(730 * 1000)


def test_longer_retention_is_paid_in_s3_and_not_in_machines() -> None:
    short, long = (Workload(write_mb_per_s=50, retention_days=days) for days in (1, 100))
    assert position("Firn", "instances", short) == position("Firn", "instances", long)
    assert position("Firn", "S3 storage", long) > 90 * position("Firn", "S3 storage", short)


def test_a_price_of_ones_own_replaces_the_lists() -> None:
    workload = Workload(write_mb_per_s=10)
    free = with_overrides(PRICES, {"zone_gib_each_way": 0.0})
    assert firn(workload, free).dollars < firn(workload, PRICES).dollars
    assert kafka(workload, free, tiered=False).replayed_gib == 0
    with pytest.raises(KeyError):
        with_overrides(PRICES, {"unheard_of": 1.0})


def test_impossible_workloads_and_sizes_are_refused() -> None:
    for impossible in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="What is written must be a number above 0"):
            Workload(write_mb_per_s=impossible)
    with pytest.raises(ConfigError, match="fan-out must be a number, 0 or more"):
        Workload(write_mb_per_s=1, fan_out=-0.5)
    with pytest.raises(ConfigError, match="peak"):
        Workload(write_mb_per_s=1, peak=0.5)
    assert parse_bytes("1.5MiB") == 1_572_864
    with pytest.raises(ConfigError, match="size"):
        parse_bytes("large")


def dollars_by_line(bill: Bill) -> dict[str, float]:
    return {line.what: line.dollars for line in bill.lines}


def test_object_durability_costs_a_fifth_of_kafka_on_ebs_for_a_month_of_100_mb_a_second() -> None:
    workload = Workload(write_mb_per_s=100, retention_days=30, zones=3)
    found = {one.system: one for one in bills(workload, PRICES, write_ahead=WriteAhead())}
    assert list(found) == [
        "Firn, object",
        "Firn",
        "Firn, 2 replicas",
        "Firn, 3 replicas",
        "Kafka, tiered",
        "Kafka, 3 × EBS",
    ]
    of_objects, of_kafka = found["Firn, object"], found["Kafka, 3 × EBS"]
    assert of_objects.dollars <= of_kafka.dollars / 5
    lines = dollars_by_line(of_objects)
    assert "between zones: followers" not in lines
    for system in ("Firn", "Kafka, tiered", "Kafka, 3 × EBS"):
        assert dollars_by_line(found[system])["between zones: producers"] == lines["between zones: producers"]
    assert lines["S3 storage"] == dollars_by_line(found["Firn, 3 replicas"])["S3 storage"], "one copy in the bucket"
    found_avoidable = of_objects.avoidable
    assert found_avoidable is not None
    assert found_avoidable.producers_dollars == pytest.approx(workload.gib_per_month * 2 / 3 * 0.02)
    assert found_avoidable.producers_dollars == pytest.approx(lines["between zones: producers"])
    # Each object is put once more, and read from each of two other zones.
    more = lines["write-ahead log: PUTs"] * (1 + 2 * 0.0004 / 0.005)
    assert found_avoidable.saved_dollars == pytest.approx(found_avoidable.producers_dollars - more)


def wal_puts(write_ahead: WriteAhead, **workload: float) -> float:
    line = dollars_by_line(firn_object(Workload(**workload), PRICES, write_ahead))["write-ahead log: PUTs"]  # type: ignore[arg-type]
    return line / 0.005 * 1000 / (730 * 3600)


def test_objects_are_put_by_linger_or_by_size_whatever_the_number_of_partitions() -> None:
    assert wal_puts(WriteAhead(), write_mb_per_s=1) == pytest.approx(4)
    assert wal_puts(WriteAhead(), write_mb_per_s=1, partitions=10_000) == pytest.approx(4)
    assert wal_puts(WriteAhead(linger_ms=1000), write_mb_per_s=1) == pytest.approx(1)
    # 8 MiB are there earlier.
    assert wal_puts(WriteAhead(linger_ms=10_000), write_mb_per_s=MIB / 1e6 * 16, zones=1) == pytest.approx(2)
    # Ten requests a second: after each object 100 ms pass until the next one begins.
    assert wal_puts(WriteAhead(appends_per_s=10), write_mb_per_s=1) == pytest.approx(1 / 0.35)


def test_a_log_that_holds_too_much_back_has_smaller_segments() -> None:
    workload = Workload(write_mb_per_s=20, partitions=100, roll_hours=0.25)
    large, small = (firn_object(workload, PRICES, WriteAhead(retention_bytes=size)) for size in (200 * GIB, 100 * MIB))
    assert billed(small.operations)[0] > 2 * billed(large.operations)[0]
    held = [dollars_by_line(one)["write-ahead log: storage"] / 0.023 for one in (large, small)]
    assert held == [pytest.approx(20e6 * 900 / GIB), pytest.approx(100 / 1024)]


def test_a_log_of_many_small_objects_has_smaller_segments() -> None:
    write_ahead = WriteAhead(retention_bytes=200 * GIB)
    often, seldom = (Workload(write_mb_per_s=0.1, partitions=100, roll_hours=hours, zones=1) for hours in (1, 0.25))
    lines = [dollars_by_line(firn_object(one, PRICES, write_ahead)) for one in (often, seldom)]
    # Four objects a second: an hour's are 14,400, and those of a quarter of an hour fewer than the 4,096 that a log may have.
    held = [each["write-ahead log: storage"] / 0.023 for each in lines]
    assert held == [pytest.approx(0.1e6 * 4096 / 4 / GIB, rel=0.01), pytest.approx(0.1e6 * 900 / GIB, rel=0.01)]


def test_what_a_write_ahead_log_cannot_be_is_refused() -> None:
    for wrong in ({"linger_ms": -1}, {"take_overs": float("nan")}, {"object_bytes": 0}, {"appends_per_s": 0}):
        with pytest.raises(ConfigError):
            WriteAhead(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("write_mb_per_s", [2, 50, 500])
def test_machines_are_bought_for_their_network_whatever_the_measured_cpu_is(
    monkeypatch: pytest.MonkeyPatch, write_mb_per_s: float, factor: float
) -> None:
    workload = Workload(write_mb_per_s=write_mb_per_s, retention_days=30)
    found = [one.lines for one in bills(workload, PRICES)]
    for name, work in (("FIRN_WORK", FIRN_WORK), ("KAFKA_WORK", KAFKA_WORK)):
        scaled = Work(**{field.name: getattr(work, field.name) * factor for field in fields(work)})
        monkeypatch.setattr(f"app.cost.bill.{name}", scaled)
    assert [one.lines for one in bills(workload, PRICES)] == found


def lines_of(bill: Bill) -> dict[str, float]:
    return {line.what: line.dollars for line in bill.lines}


def test_write_ahead_logs_cost_what_their_store_costs() -> None:
    workload = Workload(write_mb_per_s=10, zones=3)
    standard, express, file = (
        firn_object(workload, PRICES, WriteAhead(store=kind))
        for kind in (StoreKind.S3, StoreKind.EXPRESS, StoreKind.FILE)
    )
    assert standard == firn_object(workload, PRICES, WriteAhead())
    assert standard.operations == express.operations == file.operations
    of = {"write-ahead log: PUTs", "write-ahead log: storage", "write-ahead log: others"}
    for other in (express, file):
        for what, dollars in lines_of(standard).items():
            assert (lines_of(other)[what] == pytest.approx(dollars)) is (what not in of)
    puts = lines_of(standard)["write-ahead log: PUTs"] / 0.005 * 1000
    held_gib = lines_of(standard)["write-ahead log: storage"] / 0.023
    # Requests cost less than a quarter, bytes are billed as well.
    dollars = lines_of(express)
    assert dollars["write-ahead log: PUTs"] == pytest.approx(puts / 1000 * 0.00113 + workload.gib_per_month * 0.0032)
    assert dollars["write-ahead log: storage"] == pytest.approx(held_gib * 0.11)
    assert dollars["write-ahead log: others"] > held_gib * 0.0006
    assert {lines_of(file)[what] for what in of} == {0.0}
    assert express.avoidable is not None
    assert express.avoidable.requests_dollars == pytest.approx(
        puts / 1000 * (0.00113 + 2 * 0.00003) + workload.gib_per_month * (0.0032 + 2 * 0.0006)
    )
