"""The file of figures, the page made of it, and what it is held against."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the laboratory's own extra is not installed")

from loadtests import lab, plots
from loadtests.machine import busy_seconds
from loadtests.measuring import Report, alternate, median
from loadtests.processes import CLOCK_TICKS
from loadtests.report import text
from loadtests.results import FORMAT, Case, Group, Results, load, save
from loadtests.system import System
from loadtests.targets import TARGETS, verdicts
from loadtests.workloads.produce import OTHER_SIZES, VARIANTS, VARIANTS_QUICK


def results(firn_mb_per_s: float = 300.0) -> Results:
    produce = Case(
        "produce 1 KB",
        {
            "Firn": median(
                [
                    {"mb_per_s": firn_mb_per_s - 10, "server_cpu_s_per_gb": 1.0},
                    {"mb_per_s": firn_mb_per_s + 10, "server_cpu_s_per_gb": 1.0},
                ]
            ),
            "Kafka": {"mb_per_s": 100.0, "server_cpu_s_per_gb": 4.0},
            "bare": {"mb_per_s": 900.0},
        },
    )
    growth = [
        Case(f"{count} partitions", {"Firn": {"memory_mb": 50.0 + count}}, {"partitions": count}) for count in (1, 10)
    ]
    starts = [
        Case("ten", {"Firn": {"fetch_s": 0.7, "broker_mb": 50.0}}, {"segments": 100, "partitions": 10}),
        Case("more segments", {"Firn": {"fetch_s": 0.8, "broker_mb": 51.0}}, {"segments": 10_000}),
        Case("more partitions", {"Firn": {"fetch_s": 0.9, "broker_mb": 60.0}}, {"partitions": 1_000}),
    ]
    groups = {
        "produce": Group("abc", "2026-01-01T00:00:00+00:00", 10.0, "full", 0.1, ["No Java here."], [produce]),
        "partitions": Group("abc", "2026-01-01T00:10:00+00:00", 10.0, "full", 0.1, [], growth),
        "history": Group("abc", "2026-01-01T00:20:00+00:00", 10.0, "full", 0.1, [], starts),
    }
    return Results(FORMAT, {"processor": "a"}, {"Firn": "abc"}, {"Kafka": {"node.id": "1"}}, groups)


def test_a_file_of_figures_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "one.json"
    save(results(), path)
    assert load(path) == results()
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(ValueError, match="format 2"):
        load(path)


def test_medians_come_with_the_lowest_and_the_highest() -> None:
    found = alternate({"one": iter([{"x": 3.0}, {"x": 1.0}, {"x": 2.0}]).__next__}, 3)
    assert found == {"one": {"x": 2.0, "spread": {"x": [1.0, 3.0]}}}


HOLDS_FOR_A_MOMENT = """
import sys
for line in sys.stdin:
    held = bytearray(int(line))
    touched = len(held)
    del held
    print(touched, flush=True)
"""


def test_the_highest_memory_of_a_run_is_that_of_its_server_during_it() -> None:
    command = [sys.executable, "-c", HOLDS_FOR_A_MOMENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        asked, told = server.stdin, server.stdout
        assert asked is not None
        assert told is not None

        def touch(count: int) -> Report:
            print(count, file=asked, flush=True)
            return {"touched": int(told.readline())}

        system = System("Firn", "127.0.0.1", 0, server.pid, 0.0, Path())
        runs = {"much": lambda: touch(64 << 20), "little": lambda: touch(1), "bare": dict}
        found = alternate(runs, 1, servers={"much": system, "little": system})
        asked.close()
    assert found["much"]["peak_memory_mb"] > found["little"]["peak_memory_mb"] + 60
    assert "peak_memory_mb" not in found["bare"]


def test_groups_of_a_quick_run_use_the_same_systems_and_each_says_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []

    @contextmanager
    def both_running(directory: Path, note: Callable[[str], None], **_: object) -> Iterator[dict[str, System]]:
        started.append(directory)
        note("Apache Kafka is left out.")
        yield {"Firn": System("Firn", "127.0.0.1", 1, 1, 0.0, directory)}
        started.pop()

    monkeypatch.setattr(lab, "both_running", both_running)
    shared = lab.Shared(tmp_path)
    for name in ("first", "second"):
        one = lab.Lab(tmp_path / name, lab.QUICK, shared)
        with one.systems(tiered=True) as systems:
            del systems["Firn"]  # a group may leave one out
        assert one.notes == ["Apache Kafka is left out."]
        with one.systems() as systems:
            assert list(systems) == ["Firn"]
    assert started == [tmp_path / "shared"]
    shared.stack.close()
    assert not started


def test_a_target_is_judged_by_what_was_measured_and_left_out_if_it_was_not() -> None:
    assert {v.target.name: v.met for v in verdicts(results())} == {
        "produce 1 KB: rate against Kafka": True,
        "produce 1 KB: CPU per GB against Kafka": True,
    }
    assert [v.met for v in verdicts(results(200.0))] == [False, True]


def test_memory_under_load_is_judged_by_its_highest_where_that_was_taken() -> None:
    for figures, met in (({"memory_mb": 299.0}, True), ({"memory_mb": 1.0, "peak_memory_mb": 301.0}, False)):
        measured = results()
        measured.groups["produce"].cases[0].systems["Firn"].update(figures)
        assert {v.target.name: v.met for v in verdicts(measured)}["produce 1 KB: memory"] is met


def test_the_page_has_losers_notes_conditions_and_ratios(tmp_path: Path) -> None:
    page = text(results(50.0), tmp_path / "one.json", {"produce": Path("results/one/produce.svg")})
    assert "**MISSED** | produce 1 KB: rate against Kafka | 0.50 x" in page
    assert "| not measured | broker, at rest |  | at most 100 MB |" in page
    assert "50.0 (40.0–60.0)" in page
    assert "0.50 × rate, 0.25 × CPU per GB" in page
    assert "- No Java here." in page
    assert "![produce](results/one/produce.svg)" in page


def test_what_idle_connections_add_is_what_there_is_beyond_a_broker_at_rest() -> None:
    measured = results()
    for name, held_mb in (("at rest", 57.0), ("1,000 idle connections", 60.0)):
        measured.groups["produce"].cases.append(Case(name, {"Firn": {"memory_mb": held_mb}}))
    found = {verdict.target.name: verdict.value for verdict in verdicts(measured)}
    assert (found["broker, at rest"], found["1,000 idle connections more"]) == (57.0, 3.0)


def test_a_group_is_busy_by_what_others_took_and_in_older_files_by_the_load() -> None:
    older = results().groups["produce"]
    assert (older.busy, older.busy_text) == (False, "load 0.1")
    older.load_at_start = 4.0
    assert older.busy
    older.cores_busy_at_start = 0.02  # the load was that of the group before
    assert (older.busy, older.busy_text) == (False, "0.02 cores busy")
    older.cores_busy_at_start = 0.9
    assert older.busy


def test_a_page_of_several_commits_does_not_read_as_one_run(tmp_path: Path) -> None:
    measured = results()
    assert "It is not one run" not in text(measured, tmp_path / "one.json", {})
    measured.groups["history"].commit = "abc1234+"
    assert f"**This page is {len(measured.groups)} groups, each a run of its own, of 2 commits.**" in text(
        measured, tmp_path / "one.json", {}
    )


def test_the_page_names_the_groups_that_found_the_machine_busy(tmp_path: Path) -> None:
    measured = results()
    measured.groups["history"].cores_busy_at_start = 1.5
    page = text(measured, tmp_path / "one.json", {})
    assert "**The machine was busy** when these groups began: `history`." in page
    assert "1.50 cores busy before it began" in page
    assert "The machine was busy" not in text(results(), tmp_path / "one.json", {})


def test_a_core_is_busy_with_interrupts_and_other_machines_too_and_not_while_it_waits_for_a_disk() -> None:
    assert busy_seconds("cpu  100 20 300 40000 5000 6 70 800 100 0\n") == pytest.approx(1296 / CLOCK_TICKS)


def test_large_figures_are_shown_without_decimals() -> None:
    (target,) = (one for one in TARGETS if one.name.endswith("records a second"))
    measured = results()
    name = target.name.removesuffix(": records a second")
    measured.groups["produce"].cases.append(Case(name, {"Firn": {"records_per_s": 2_598_653.79}}))
    verdict = target.verdict(measured)
    assert verdict is not None
    assert (verdict.value_text, target.bound_text) == ("2,598,654 records", "at least 1,000,000 records")


def test_every_variant_has_a_name_of_its_own_and_asks_for_what_it_names() -> None:
    everything = (*VARIANTS, *OTHER_SIZES)
    assert len({one.name for one in everything}) == len(everything)
    assert {one.name for one in VARIANTS} >= set(VARIANTS_QUICK)
    flags = {one.name: one.flags for one in everything}
    assert flags["1 MB, acks=1"] == {"batch_bytes": 1_000_000, "records": 950, "pipeline": 3, "acks": 1}
    assert flags["1 KB, zstd"]["codec"] == "zstd"
    assert flags["16 KB, as it is"]["idempotent"] is True
    assert flags["16 KB, 50 connections"]["pipeline"] == 2


def test_the_same_figures_draw_the_same_plots(tmp_path: Path) -> None:
    first, second = (plots.draw(results(), tmp_path / name) for name in ("a", "b"))
    assert set(first) == {"produce", "partitions", "history"}
    drawn = first["history"].read_text()
    assert (drawn.count(">segments<"), drawn.count(">partitions<")) == (2, 2)  # a panel for each figure against each
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes()


def test_bars_are_drawn_of_what_has_them_and_each_system_is_named_once(tmp_path: Path) -> None:
    found = results()
    found.groups = {"produce": found.groups["produce"]}
    found.groups["produce"].cases = [
        Case("both", {"Firn": {"mb_per_s": 2.0}, "Kafka": {"mb_per_s": 1.0}}),
        Case("one", {"bare": {"mb_per_s": 3.0}}),
        Case("planned", {"Firn": {"plan_s": 0.1}}),
    ]
    drawn = plots.draw(found, tmp_path)["produce"].read_text()
    named = {word: drawn.count(f">{word}<") for word in ("both", "one", "planned", "Firn", "Kafka", "bare")}
    assert named == {"both": 1, "one": 1, "planned": 0, "Firn": 1, "Kafka": 1, "bare": 1}
