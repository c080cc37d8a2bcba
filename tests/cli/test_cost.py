"""``firn cost`` as a person runs it."""

from __future__ import annotations

import json

import pytest

from app.cli import WRONG_USAGE, main


def test_the_bill_adds_up_and_names_its_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--write", "50", "--retention", "30", "--json"]) == 0
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
        "between zones",
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
