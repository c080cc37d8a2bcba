"""The file of figures, the page made of it, and what it is held against."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadtests import __main__ as bench
from loadtests import lab, machine
from loadtests.machine import busy_seconds, usual_congestion_control
from loadtests.measuring import Report, alternate, median
from loadtests.processes import CLOCK_TICKS, family, family_memory_mb, memory_mb
from loadtests.report import text
from loadtests.results import FORMAT, Case, Group, Results, load, save
from loadtests.system import System
from loadtests.targets import TARGETS, verdicts
from loadtests.workloads import GROUPS, Workload, latency
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


def test_a_file_of_figures_reads_back_with_lowest_and_highest_and_has_a_line_for_each_case(tmp_path: Path) -> None:
    path = tmp_path / "results" / "one.json"
    save(results(), path)
    found, written = load(path), results()
    firn = found.groups["produce"].cases[0].systems["Firn"]
    assert firn == {"mb_per_s": 300, "server_cpu_s_per_gb": 1, "spread": {"mb_per_s": [290, 310]}}
    written.groups["produce"].cases[0].systems["Firn"] = firn  # figures that were the same in all rounds have no spread
    assert found == written
    lines = path.read_text().splitlines()
    assert sum('"name"' in line for line in lines) == 6
    assert '"mb_per_s": [300, 290, 310]' in next(line for line in lines if '"produce 1 KB"' in line)
    path.write_bytes(path.read_bytes().replace(b'"format": 2', b'"format": 3'))
    with pytest.raises(ValueError, match="format 3"):
        load(path)


def test_four_digits_of_a_figure_are_kept(tmp_path: Path) -> None:
    measured = results()
    measured.groups["produce"].cases[0].systems["bare"] = {"mb_per_s": 1234.567, "share": 0.00123456, "whole": True}
    save(measured, tmp_path / "one.json")
    assert load(tmp_path / "one.json").figures("produce 1 KB", "bare") == {
        "mb_per_s": 1235,
        "share": 0.001235,
        "whole": True,
    }


def test_a_file_of_the_format_before_is_read(tmp_path: Path) -> None:
    old = msgspec.to_builtins(results())
    path = tmp_path / "old.json"
    path.write_bytes(msgspec.json.encode(old | {"format": 1}))
    assert load(path) == results()


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


SERVER_WITH_AN_ENDED_CHILD = """
import os, sys
child = os.fork()
if not child:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
sys.stdin.read()
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


def test_a_process_that_ended_and_was_not_waited_for_holds_no_memory() -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER_WITH_AN_ENDED_CHILD], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    with server:
        try:
            assert server.stdout is not None
            ended = int(server.stdout.readline())
            assert ended in family(server.pid)
            with pytest.raises(ValueError, match="VmHWM"):
                memory_mb(ended, "VmHWM")
            server.send_signal(signal.SIGSTOP)  # it has told its child's id and goes on to read: its memory still grows
            os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
            assert family_memory_mb(server.pid, "VmHWM") == memory_mb(server.pid, "VmHWM")
        finally:
            server.kill()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of systems that run; Firn only, so that each group says that Kafka is missing."""
    started: list[Path] = []

    @contextmanager
    def both_running(directory: Path, note: Callable[[str], None], **_: object) -> Iterator[dict[str, System]]:
        started.append(directory)
        note("Apache Kafka is left out.")
        yield {"Firn": System("Firn", "127.0.0.1", 1, 1, 0.0, directory)}
        started.pop()

    monkeypatch.setattr(lab, "both_running", both_running)
    return started


def test_groups_of_a_quick_run_use_the_same_systems_and_each_says_who_is_missing(
    started: list[Path], tmp_path: Path
) -> None:
    shared = lab.Shared(tmp_path, every=True)
    for name in ("first", "second"):
        one = lab.Lab(tmp_path / name, lab.QUICK, shared)
        with one.systems(tiered=True) as systems:
            del systems["Firn"]  # a group may leave one out
        assert one.notes == ["Apache Kafka is left out."]
        with one.systems() as systems:
            assert list(systems) == ["Firn"]
    assert started == [tmp_path / "shared"]
    shared.end()
    assert not started


def test_groups_that_ask_for_the_same_systems_share_them_and_others_get_new_ones(
    started: list[Path], tmp_path: Path
) -> None:
    shared = lab.Shared(tmp_path)

    def use(**wanted: bool) -> bool:
        """Whether a group before has used the systems."""
        one = lab.Lab(tmp_path, lab.FULL, shared)
        with one.systems(**wanted):
            assert started == [tmp_path / "shared"]
            return one.used

    assert [use(), use(), use(tiered=True), use(tiered=True), use()] == [False, True, False, True, False]
    assert [use(fresh=True), use()] == [False, False]
    shared.end()
    assert not started


def test_a_target_is_judged_by_what_was_measured_and_left_out_if_it_was_not() -> None:
    judged = "produce 1 KB, 100 in flight"
    for firn_mb_per_s, met in ((300.0, True), (200.0, False)):
        measured = results(firn_mb_per_s)
        measured.groups["produce"].cases[0].name = judged
        assert {v.target.name: v.met for v in verdicts(measured)} == {
            f"{judged}: rate against Kafka": met,
            f"{judged}: CPU per GB against Kafka": True,
        }


def test_memory_under_load_is_judged_by_its_highest_where_that_was_taken() -> None:
    for figures, met in (({"memory_mb": 299.0}, True), ({"memory_mb": 1.0, "peak_memory_mb": 301.0}, False)):
        measured = results()
        measured.groups["produce"].cases[0].name = "produce 1 MB"
        measured.groups["produce"].cases[0].systems["Firn"].update(figures)
        assert {v.target.name: v.met for v in verdicts(measured)}["produce 1 MB: memory"] is met


def test_the_page_has_losers_notes_conditions_and_ratios(tmp_path: Path) -> None:
    measured = results(50.0)
    measured.groups["produce"].cases[0].name = "produce 1 MB"
    page = text(measured, tmp_path / "one.json")
    assert "**MISSED** | produce 1 MB: rate against Kafka | 0.50 x" in page
    assert "| not measured | broker, at rest |  | at most 100 MB |" in page
    assert "50.0 (40.0–60.0)" in page
    assert "0.50 × rate, 0.25 × CPU per GB" in page
    assert "- No Java here." in page
    assert "](one.json)" in page


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


def test_the_page_says_whether_it_is_of_one_clean_commit(tmp_path: Path) -> None:
    def page(**commits: str) -> str:
        measured = results()
        for name, found in commits.items():
            measured.groups[name].commit = found
        return text(measured, tmp_path / "one.json")

    assert "**One commit:** every group is of abc" in page()
    assert "**Mixed:** this page is 3 groups of 2 commits." in page(history="abd")
    assert "**Mixed:** this page is 3 groups of 2 commits." in page(history="abc+")
    assert "**Mixed:** this page is 3 groups of 1 commit." in page(produce="abc+", partitions="abc+", history="abc+")
    assert "**Mixed:**" in page(produce="unknown", partitions="unknown", history="unknown")


def test_the_page_names_the_groups_that_did_not_come_to_their_end(tmp_path: Path) -> None:
    measured = results()
    assert "did not come to their end" not in text(measured, tmp_path / "one.json")
    measured.groups["history"].whole = False
    assert "These groups did not come to their end: `history`." in text(measured, tmp_path / "one.json")


def test_the_page_names_the_groups_that_found_the_machine_busy(tmp_path: Path) -> None:
    measured = results()
    measured.groups["history"].cores_busy_at_start = 1.5
    page = text(measured, tmp_path / "one.json")
    assert "**The machine was busy** when these groups began: `history`." in page
    assert "1.50 cores busy before it began" in page
    assert "The machine was busy" not in text(results(), tmp_path / "one.json")


def test_a_core_is_busy_with_interrupts_and_other_machines_too_and_not_while_it_waits_for_a_disk() -> None:
    assert busy_seconds("cpu  100 20 300 40000 5000 6 70 800 100 0\n") == pytest.approx(1296 / CLOCK_TICKS)


def test_the_machines_congestion_control_is_cubic_while_a_run_lasts_and_as_it_was_afterwards(tmp_path: Path) -> None:
    setting = tmp_path / "tcp_congestion_control"
    setting.write_text("bbr\n")
    with suppress(RuntimeError), usual_congestion_control(setting) as before:
        assert (before, setting.read_text()) == ("bbr", "cubic")
        raise RuntimeError("the run fails")
    assert setting.read_text() == "bbr"


def test_a_machine_that_uses_cubic_or_may_not_be_changed_is_left_alone(tmp_path: Path) -> None:
    setting = tmp_path / "tcp_congestion_control"
    setting.write_text("cubic\n")
    with usual_congestion_control(setting) as before:
        assert before is None
    assert setting.read_text() == "cubic\n"

    class Refusing(type(setting)):  # type: ignore[misc]
        def write_text(self, *_: object) -> int:
            raise PermissionError

    setting.write_text("bbr\n")
    with usual_congestion_control(Refusing(setting)) as before:
        assert before is None
    assert setting.read_text() == "bbr\n"


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
    assert flags["1 MB, 50 connections"]["connections"] == 50


def test_the_same_figures_draw_the_same_plots(tmp_path: Path) -> None:
    plots = pytest.importorskip("loadtests.plots", reason="matplotlib is not installed", exc_type=ImportError)
    first, second = (plots.draw(results(), tmp_path / name) for name in ("a", "b"))
    assert set(first) == {"produce", "partitions", "history"}
    drawn = first["history"].read_text()
    assert (drawn.count(">segments<"), drawn.count(">partitions<")) == (2, 2)  # a panel for each figure against each
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes()


def test_bars_are_drawn_of_what_has_them_and_each_system_is_named_once(tmp_path: Path) -> None:
    plots = pytest.importorskip("loadtests.plots", reason="matplotlib is not installed", exc_type=ImportError)
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


@pytest.mark.parametrize(
    ("rates", "still"),
    [
        ([10, 10], False),  # too few to say
        ([1, 2, 4, 8, 16, 32], False),
        ([10, 11, 12, 12.2, 12.1, 12.3], False),
        ([1, 2, 4, 12, 12.1, 12.2, 12.1, 12.3, 12.2], True),
        ([12, 12.1, 3, 12.2, 12.1, 12.0], True),  # one slice that something else held up
        ([40, 40, 40, 30, 30, 30], False),  # falling is no standing still either
    ],
)
def test_a_rate_stands_still_when_two_windows_have_the_same_median(rates: list[float], still: bool) -> None:
    assert lab.stands_still(rates, 3) is still


def warmed(name: str, rates: list[float]) -> tuple[int, int]:
    """How many slices a system took, and how many notes were made of that."""
    run, one = iter(rates), lab.Lab(Path(), lab.FULL)
    one.warm(System(name, "127.0.0.1", 1, 1, 0.0, Path()), run.__next__, lab.WarmUp(1.0, 2, 60.0))
    return len(rates) - len(list(run)), len(one.notes)


def test_kafka_is_warmed_up_until_its_rate_stands_still_and_others_once() -> None:
    rates = [1.0, 2.0, 4.0, 8.0, 9.0, 9.1, 9.0, 9.2, 9.1, 9.0]
    assert (warmed("Kafka", rates), warmed("Firn", rates)) == ((8, 0), (1, 0))


def test_a_warm_up_has_an_end_and_the_page_says_that_it_was_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 1000, 20))
    monkeypatch.setattr("time.monotonic", moments.__next__)
    assert warmed("Kafka", [2.0**n for n in range(20)]) == (4, 1)


def test_a_slice_of_a_warm_up_is_for_a_time_and_asks_for_no_more_than_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def generate(peer: System, work: str, topic: str, **options: object) -> Report:
        asked.append(options)
        return {"mb_per_s": 1.0}

    monkeypatch.setattr(lab, "generate", generate)
    firn = System("Firn", "127.0.0.1", 1, 1, 0.0, Path())
    lab.Lab(Path(), lab.FULL).warm_up(firn, "produce", "t", {"megabytes": 1000, "warm_up": 1, "pipeline": 3})
    assert asked == [{"pipeline": 3, "seconds": lab.MAIN_WARM_UP.slice_s, "warm_up": 0}]


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


def test_a_tree_is_dirty_by_what_is_measured_and_not_by_what_a_run_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    for name in ("app/one.py", "loadtests/two.py", "loadtests/results/a.json", "loadtests/RESULTS.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    clean = machine.commit()
    for name in ("loadtests/results/a.json", "loadtests/RESULTS.md", "README.md", "loadtests/results/b.json"):
        (tmp_path / name).write_text("2")
    assert machine.commit() == clean
    assert not clean.endswith("+")
    for name in ("app/new.py", "app/one.py"):
        (tmp_path / name).write_text("2")
        assert machine.commit() == f"{clean}+"
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "next")
        clean = machine.commit()


class Bench:
    """``make bench`` with groups that measure nothing, in a folder of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.directory, self.measured, self.commit = directory, list[str](), "abc"
        self.ends_in: str | None = None
        self._patch = monkeypatch
        groups = {name: Workload(partial(self._run, name), name, True, 1.0) for name in ("bounds", "produce", "fetch")}
        for module in ("loadtests.__main__", "loadtests.report"):
            monkeypatch.setattr(f"{module}.GROUPS", groups)
            monkeypatch.setattr(f"{module}.HERE", directory)
        monkeypatch.setattr(bench, "commit", lambda: self.commit)
        monkeypatch.setattr(bench, "versions", dict)
        monkeypatch.setattr(bench, "keep_priority", lambda _: None)
        monkeypatch.setattr(bench, "LOOK_AROUND_S", 0.0)
        monkeypatch.setattr(bench, "cores_busy", lambda _: 0.0)
        monkeypatch.setattr(bench, "usual_congestion_control", self._usual_congestion_control)
        monkeypatch.setattr(bench, "congestion_control", lambda: "cubic" if self.usual else "bbr")
        self.usual = False
        """Whether the machine's congestion control is cubic now."""
        self.measured_usually = list[str]()
        """The groups that were measured with cubic."""
        (directory / "results").mkdir()

    @contextmanager
    def _usual_congestion_control(self) -> Iterator[str]:
        self.usual = True
        try:
            yield "bbr"
        finally:
            self.usual = False

    def _run(self, name: str, one: lab.Lab) -> list[Case]:
        self.measured.append(name)
        if self.usual:
            self.measured_usually.append(name)
        one.kept.append(Case(f"{name}, first", {"Firn": {"mb_per_s": 1.0}}))
        if name == self.ends_in:
            os.kill(os.getpid(), signal.SIGINT)
        return [*one.kept, Case(f"{name}, second", {"Firn": {"mb_per_s": 2.0}})]

    def __call__(self, *arguments: str) -> object:
        """What it exits with."""
        self._patch.setattr("sys.argv", ["loadtests", *arguments])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.measured.clear()
        try:
            bench.main()
        except SystemExit as end:
            return end.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return None

    @property
    def results(self) -> Results:
        [path] = (self.directory / "results").glob("*.json")
        return load(path)

    @property
    def page(self) -> str:
        return (self.directory / "RESULTS.md").read_text()


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


def test_an_interrupted_run_keeps_what_it_measured_and_is_continued_on_its_commit(benched: Bench) -> None:
    benched.ends_in = "produce"
    assert benched() == 1
    assert benched.measured == ["bounds", "produce"]
    assert benched.results.figures("produce, first", "Firn") == {"mb_per_s": 1}
    assert [group.whole for group in benched.results.groups.values()] == [True, False]
    assert "did not come to their end: `produce`" in benched.page
    benched.ends_in = None
    assert not benched("--continue")
    assert benched.measured == ["produce", "fetch"]
    assert [len(group.cases) for group in benched.results.groups.values()] == [2, 2, 2]
    assert "**One commit:** every group is of abc" in benched.page


def test_a_run_that_is_for_figures_has_the_usual_congestion_control_also_if_it_is_interrupted(benched: Bench) -> None:
    benched.ends_in = "produce"
    assert benched() == 1
    assert benched.measured_usually == ["bounds", "produce"]
    assert not benched.usual
    benched.measured_usually.clear()
    benched.ends_in = None
    assert "congestion control was" not in benched.page
    for left_alone in ("--quick", "--keep-congestion-control"):
        assert not benched(left_alone)
        assert benched.measured == ["bounds", "produce", "fetch"]
        assert not benched.measured_usually


def test_a_group_that_was_measured_with_another_congestion_control_says_so(benched: Bench) -> None:
    assert not benched()
    assert not benched("--only", "fetch", "--keep-congestion-control")
    assert {name: len(group.notes) for name, group in benched.results.groups.items()} == {
        "bounds": 0,
        "produce": 0,
        "fetch": 1,
    }
    assert benched.page.count("TCP's congestion control was bbr, not cubic") == 1


def test_a_run_of_another_commit_is_not_continued_and_one_of_all_groups_keeps_nothing_older(benched: Bench) -> None:
    assert not benched("--only", "fetch")
    benched.commit = "abd"
    assert not benched("--continue", "--only", "bounds,fetch")
    assert benched.measured == ["bounds", "fetch"]
    benched.commit = "abe"
    assert not benched("--only", "bounds")
    assert "**Mixed:**" in benched.page
    assert not benched()
    assert "**One commit:** every group is of abe" in benched.page
    benched.commit, benched.ends_in = "abf", "bounds"
    assert benched() == 1
    assert list(benched.results.groups) == ["bounds"]


def test_a_tree_with_changes_is_not_measured_unless_that_is_asked_for(
    benched: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    benched.commit = "abc+"
    assert benched() == 2
    assert "has changes that are not committed (abc+)" in capsys.readouterr().err
    assert benched.measured == []
    assert not benched("--quick")
    assert not (benched.directory / "RESULTS.md").exists()
    for path in (benched.directory / "results").iterdir():
        path.unlink()
    assert not benched("--uncommitted")
    assert "**Mixed:**" in benched.page


def test_a_plan_tells_minutes_and_measures_nothing(benched: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    benched.commit = "abc+"
    benched("--plan", "--only", "bounds,fetch")
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [["1.0", "bounds"], ["1.0", "fetch"], ["2.0", "in"]]
    assert benched.measured == []


def test_all_groups_together_are_planned_to_take_eighty_minutes_at_most() -> None:
    assert 0 < sum(workload.minutes for workload in GROUPS.values() if not workload.apart) <= 80
    assert sum(workload.minutes for workload in GROUPS.values() if workload.apart) <= 40


def test_half_load_is_half_of_each_systems_own_rate_and_who_cannot_sustain_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    capacity = {"Firn": 8_000, "Kafka": 3_000}
    asked: list[tuple[str, float]] = []

    def generators(
        systems: Mapping[str, System], work: str, topic: str, **options: float
    ) -> dict[str, Callable[[], Report]]:
        def run(name: str) -> Report:
            if work == "produce" and options["rate"]:
                asked.append((name, options["rate"]))
            return {"requests_per_s": options["rate"] or capacity[name], "mb_per_s": 1.0}

        return {name: partial(run, name) for name in systems}

    @contextmanager
    def both_running(directory: Path, note: object, **_: object) -> Iterator[dict[str, System]]:
        yield {name: System(name, "127.0.0.1", 1, os.getpid(), 0.0, directory) for name in capacity}

    monkeypatch.setattr(lab, "both_running", both_running)
    monkeypatch.setattr(latency, "generators", generators)
    monkeypatch.setattr(latency, "make_topic", lambda *_, **__: None)
    monkeypatch.setattr("loadtests.measuring.forget_peak", lambda _: None)
    one = lab.Lab(tmp_path, lab.QUICK)
    cases = {case.name: list(case.systems) for case in latency.shares(one)}
    assert asked == [("Firn", 4_000), ("Firn", 1_500), ("Kafka", 1_500)]
    assert cases["produce at half of Firn's rate"] == ["Firn"]
    assert cases["produce at half of Kafka's rate"] == ["Firn", "Kafka"]
    assert one.notes == ["Kafka takes 3,000 requests/s, so that it is left out at half of Firn's 8,000."]


def test_shallow_and_deep_queues_many_connections_half_load_and_s3_servers_are_judged() -> None:
    judged = {target.name for target in TARGETS}
    cases = [f"produce {size}, {count} in flight" for size in ("1 KB", "16 KB") for count in (20, 100)]
    cases += [f"{size}, {count} connections" for size in ("1 KB", "4 KB", "16 KB") for count in ("50", "1,000")]
    cases += ["produce 1 MB", "produce 1 MB, pages as they come"]
    for case in cases:
        assert {f"{case}: rate against Kafka", f"{case}: CPU per GB against Kafka"} <= judged
    bounds = {target.name: target.bound for target in TARGETS}
    assert bounds["10,000 partitions: made in"] == 2
    for of in ("Firn", "Kafka"):
        assert bounds[f"produce at half of {of}'s rate: p99"] == 20
        assert bounds[f"produce at half of {of}'s rate: p99.9"] == 50
    assert bounds["cold fetch from MinIO: rate against the bare client"] == 0.8
    assert bounds["cold fetch from s3s-fs: rate against the bare client"] == 0.8
    assert bounds["cold fetch from S3, 64 partitions at once: rate against the bare client"] == 0.85


def test_a_replay_from_s3_is_held_against_obstore(tmp_path: Path) -> None:
    measured = results()
    systems = {
        name: {"mb_per_s": rate} for name, rate in (("Firn", 79.0), ("bare obstore", 100.0), ("bare aiobotocore", 1.0))
    }
    measured.groups["produce"].cases.append(Case("S3 of MinIO", systems))
    [verdict] = [one for one in verdicts(measured) if "MinIO" in one.target.name]
    assert (verdict.value, verdict.met) == (0.79, False)
