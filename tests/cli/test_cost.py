"""``firn cost`` as a person runs it."""

from __future__ import annotations

import json

import pytest

from app.cli import WRONG_USAGE, main


def test_the_bill_adds_up_and_names_its_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--write", "20", "--retention", "30", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prices"].startswith("us-east-1, 20")
    for bill in told["bills"]:
        assert sum(line["dollars"] for line in bill["lines"]) == pytest.approx(bill["dollars_per_month"], abs=0.1)
    assert [bill["system"] for bill in told["bills"]] == ["Firn", "Kafka, tiered", "Kafka, 3 × EBS"]
    assert told["bills"][0]["operations_per_month"]["put_part"] > 0


def test_people_see_every_position_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "-w", "1"]) == 0
    out = capsys.readouterr().out
    for word in (
        "S3 storage",
        "S3 requests",
        "between zones: producers",
        "EBS",
        "total",
        "a GiB replayed",
        "1 × i4i.large on demand",
    ):
        assert word in out


def test_a_price_that_is_none_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "-w", "1", "--price", "s3=1"]) == WRONG_USAGE
    assert "s3_gib_month_first" in capsys.readouterr().err
    assert main(["cost", "-w", "1", "--price", "zone_gib_each_way=dear"]) == WRONG_USAGE
    assert main(["cost", "-w", "0"]) == WRONG_USAGE


def test_what_one_broker_cannot_carry_is_carried_by_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "-w", "500", "--json"]) == 0
    firn = json.loads(capsys.readouterr().out)["bills"][0]
    assert firn["system"] == "Firn"
    [machines] = [line["how"] for line in firn["lines"] if line["what"] == "instances"]
    assert int(machines.split(" × ")[0]) > 1
    assert main(["cost", "-w", "1", "--replicas", "3", "--json"]) == 0
    firn = json.loads(capsys.readouterr().out)["bills"][0]
    assert firn["system"] == "Firn, 3 replicas"
    [machines] = [line["how"] for line in firn["lines"] if line["what"] == "instances"]
    assert machines.startswith("3 × ")


def test_what_one_broker_carries_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    for rate in ("1", "10", "20", "30"):
        assert main(["cost", "-w", rate, "--json"]) == 0
        firn = json.loads(capsys.readouterr().out)["bills"][0]
        [machines] = [line["how"] for line in firn["lines"] if line["what"] == "instances"]
        assert machines.startswith("1 × ")


def test_what_is_deployed_around_a_broker_is_in_its_bill(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["cost", "-w", "5", "--zones", "1", "--volume", "100", "--with", "load_balancer=1", "--with", "endpoint=8"]
    assert main([*asked, "--json"]) == 0
    firn, *others = json.loads(capsys.readouterr().out)["bills"]
    assert {"EBS", "load balancer", "way to AWS's APIs"} <= {line["what"] for line in firn["lines"]}
    assert not any(line["what"] == "load balancer" for bill in others for line in bill["lines"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--with", "moat=1"), "endpoint, nat, key, metric, alarm, http_machine, http_load_balancer"),
        (("--with", "nat=many"), "--with"),
        (("--with", "nat=-1"), "nat must be 0 or more"),
        (("--volume", "0"), "above 0"),
        (("--volume", "1"), "too small"),
    ],
)
def test_what_cannot_be_deployed_is_refused(
    flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "-w", "5", *flags]) == WRONG_USAGE
    assert told in " ".join(capsys.readouterr().err.split())


def test_object_durability_is_shown_beside_one_to_three_copies(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["cost", "-w", "100", "--retention", "30", "--durability", "object"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    for word in ("write-ahead log: PUTs", "Firn, object", "Firn, 3 replicas", "in its own zone"):
        assert word in out
    assert main([*asked, "--linger", "1000", "--requests", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bills"]
    assert found[0]["without_producers_between_zones"]["saved_dollars"] > 0
    assert all("without_producers_between_zones" not in one for one in found[1:])
    assert main(["cost", "-w", "1", "--durability", "disk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bills"][0]["system"] == "Firn"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("-w", "5", "--durability", "tape"), "memory, disk or object"),
        (("-w", "5", "--durability", "object", "--replicas", "3"), "one copy"),
        (("-w", "5", "--durability", "object", "--requests", "0"), "above 0"),
        ((), "--write is missing"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", *flags]) == WRONG_USAGE
    assert told in " ".join(capsys.readouterr().err.split())


def test_spark_jobs_are_in_the_bill_when_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["cost", "-w", "5", "--spark-read", "1000", "--spark-scans", "30", "--spark-streams", "1"]
    assert main([*asked, "--spark-trigger", "30", "--spark-partitions", "10", "--spark-hours", "100"]) == 0
    out = capsys.readouterr().out
    assert "Spark: workers: 100 hours of a worker" in out
    assert "GiB from the bucket" in out
    assert main(["cost", "-w", "5"]) == 0
    assert "Spark" not in capsys.readouterr().out
    assert main(["cost", "-w", "5", "--spark-scans", "30"]) == WRONG_USAGE
    assert "--spark-read" in " ".join(capsys.readouterr().err.split())
