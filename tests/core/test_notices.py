"""Lines for the operator: one line each, safe on a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from app.core.faults import Faults
from app.core.log_events import Event
from app.core.notices import FORMAT_VARIABLE, JSON, announce, json_line, log_exception, log_line, one_line, use_format


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("topic t is there", "topic t is there"),
        ("two\nlines", "two lines"),
        ("bell\a and \x1b[2J", "bell\\x07 and \\x1b[2J"),
        ("Zürich", "Zürich"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_a_name_of_a_peer_ends_no_line_and_moves_no_cursor(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_a_line_begins_with_the_time_in_utc(capfd: pytest.CaptureFixture[str]) -> None:
    log_line("it\nserves")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ it serves\n", capfd.readouterr().err)


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, JSON)


NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


def test_a_line_in_json_has_time_level_event_message_and_then_its_fields() -> None:
    line = Event.PARTITION_OFFLINE.line("orders-0 is\noffline\x1b", topic="Zürich", partition=0, why=None)
    assert json_line(line, NOW) == (
        '{"time": "2026-01-02T03:04:05.678Z", "level": "error", "event": "partition.offline", '
        '"message": "orders-0 is\\noffline\\u001b", "topic": "Z\\u00fcrich", "partition": 0, "why": null}'
    )


def test_a_field_hides_neither_time_nor_level_nor_event_nor_message() -> None:
    line = Event.DISK_FULL.line("full", time="x", level="x", event="x", message="x", more=1)
    told = json.loads(json_line(line, NOW))
    assert told == {
        "time": "2026-01-02T03:04:05.678Z", "level": "error", "event": "disk.full", "message": "full", "more": 1
    }  # fmt: skip


@pytest.mark.usefixtures("in_json")
def test_a_line_without_a_name_has_the_module_that_wrote_it(capfd: pytest.CaptureFixture[str]) -> None:
    log_line("it serves")
    Faults(log_line, lambda: 0.0).met("a kind without a name", "x", "x fails")
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert (first["event"], first["message"], first["module"]) == ("log", "it serves", __name__)
    assert (second["event"], second["kind"], second["subject"]) == ("fault", "a kind without a name", "x")


@pytest.mark.usefixtures("in_json")
def test_the_traceback_of_an_error_is_one_field(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        log_exception(error)
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["level"], told["message"]) == ("internal_error", "error", "ValueError: a\nb")
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: a\nb\n")


def test_an_announcement_is_its_text_alone_or_a_line_in_json(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(Event.HTTP_LISTENING.line("Firn HTTP listens"))
    assert capfd.readouterr().err == "Firn HTTP listens\n"
    monkeypatch.setenv(FORMAT_VARIABLE, JSON)
    announce(Event.HTTP_LISTENING.line("Firn HTTP listens"))
    assert json.loads(capfd.readouterr().err)["event"] == "http.listening"


def test_text_is_handed_on_to_no_child(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, JSON)
    use_format("text")
    log_line("it serves")
    assert capfd.readouterr().err.endswith("Z it serves\n")


UNEXPECTED = """
import logging
from app.core.notices import follow_format
follow_format()
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("some.library").exception("it failed")
logging.getLogger("some.library").info("quiet")
raise LookupError("nothing there")
"""


def test_records_of_libraries_and_the_end_of_a_process_are_json_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNEXPECTED],
        env={FORMAT_VARIABLE: JSON, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    record, crash = map(json.loads, done.stderr.splitlines())
    assert (record["event"], record["level"], record["module"]) == ("log", "error", "some.library")
    assert record["exception"].endswith("ZeroDivisionError: division by zero\n")
    assert (crash["event"], done.returncode) == ("process.crashed", 1)
    assert crash["exception"].endswith("LookupError: nothing there\n")


IN_A_THREAD = """
import sys, threading, warnings
from app.core.notices import follow_format
follow_format()
warnings.warn("old way")
for end in (lambda: 1 / 0, sys.exit):
    thread = threading.Thread(target=end, name="helper")
    thread.start()
    thread.join()
"""


def test_warnings_and_the_ends_of_threads_by_errors_are_json_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD],
        env={FORMAT_VARIABLE: JSON, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    warning, ended = map(json.loads, done.stderr.splitlines())
    assert (warning["level"], warning["module"]) == ("warning", "py.warnings")
    assert "old way" in warning["message"]
    assert (ended["event"], ended["message"]) == (
        "internal_error", "thread helper ended by ZeroDivisionError: division by zero"
    )  # fmt: skip
    assert ended["exception"].endswith("ZeroDivisionError: division by zero\n")


WRONG_CALL = """
import logging
from app.core.notices import follow_format
follow_format()
logging.getLogger("some.library").warning("%d of %d", "one")
logging.getLogger("some.library").warning("it goes on")
"""


def test_a_library_that_logs_with_wrong_arguments_goes_on_and_the_log_shows_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRONG_CALL],
        env={FORMAT_VARIABLE: JSON, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wrong, later = map(json.loads, done.stderr.splitlines())
    assert (wrong["level"], wrong["module"], later["message"]) == ("error", "some.library", "it goes on")
    assert wrong["message"] == "a log record of some.library has wrong arguments"
    assert "TypeError" in wrong["exception"]


@pytest.mark.parametrize("format_name", ["text", JSON])
def test_a_line_that_has_no_reader_any_more_is_left_out(format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setenv(FORMAT_VARIABLE, format_name)
    with os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        log_line("it serves")
        log_line(Event.BROKER_READY.line("it serves"))
        monkeypatch.undo()
