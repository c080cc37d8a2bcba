"""How the runner of librdkafka's suite reads what the suite says. The suite itself runs by hand: see ``librdkafka_suite.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.librdkafka_suite import Listed, listed, run

TABLE = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0004_conf, TEST_F_LOCAL),
    _TEST(0011_produce_batch,
          0,
          /* Produces a lot of messages */
          _THRES(.ucpu = 40.0, .scpu = 8.0)),
    _TEST(0045_subscribe_update, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0045_subscribe_update_topic_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0045_subscribe_update_mock, TEST_F_LOCAL),
    _TEST(0139_offset_validation_mock, 0),
    _TEST(0103_transactions,
          0,
          .scenario = "default,ak23"),
    {NULL}};
"""
PASSED = """
[0011_produce_batch /  1.0s] [ test_one:12: PASS (0.50s) ]
[0011_produce_batch /  2.0s] [ test_two:34: SKIP: not here ]
|\x1b[32m <MAIN>                                   |     PASSED |   2.000s \x1b[0m|
|\x1b[32m 0011_produce_batch                       |     PASSED |   1.500s \x1b[0m|
|\x1b[36m 0011_produce_batch_local |    SKIPPED |   0.000s \x1b[0m|\x1b[36m Filtered due to negative test flags\x1b[0m
|\x1b[36m 0011_produce_batch_in_another_scenario   |    SKIPPED |   0.000s \x1b[0m|\x1b[36m \x1b[0m
"""
ABORTED = """
### Test "0011_produce_batch (do_test:1746)" failed at 0011-produce_batch.c:18:do_test() at Mon Nov 23 02:42:42 2026: ###
Test assertion failed: "count > 0": received no records
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.c").write_text(TABLE)
    return tmp_path


def says(source: Path, text: str) -> None:
    """Have the suite print ``text``."""
    runner = source / "tests" / "test-runner"
    (source / "said").write_text(text)
    runner.write_text(f"#!/bin/sh\ncat '{source}/said'\n")
    runner.chmod(0o755)


def test_tests_without_a_broker_are_left_out(source: Path) -> None:
    assert listed(source) == [
        Listed("0011", ("default",)),
        Listed("0045", ("default",)),
        Listed("0045", ("noautocreate",)),
        Listed("0103", ("default", "ak23")),
    ]


def test_what_a_test_says_of_itself_is_what_it_has_become(source: Path) -> None:
    says(source, PASSED)
    (result,) = run(source, "0011", "default", {}, source / "log")
    assert result == ("0011_produce_batch", "PASSED", 1.5, "", 1, 1)


def test_a_suite_that_aborts_has_failed_with_the_place_and_the_reason(source: Path) -> None:
    says(source, ABORTED)
    (result,) = run(source, "0011", "default", {}, source / "log")
    assert (result.name, result.state) == ("0011_produce_batch", "FAILED")
    assert result.says == '0011-produce_batch.c:18:do_test(): Test assertion failed: "count > 0": received no records'


def test_a_suite_that_says_nothing_has_not_passed(source: Path) -> None:
    says(source, "")
    (result,) = run(source, "0011", "default", {}, source / "log")
    assert result.state == "NO RESULT"
