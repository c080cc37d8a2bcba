"""``make bench``: Firn against Apache Kafka, against bare limits and against its targets, in turns within one run.

Where rates are compared, the system under test runs on core 0 and the load on core 1. Every figure is the median of the
rounds of this run; ratios are between medians of the same group. A peer that is not there is a line in the report, not a
failure. See README.md beside this file.

    python -m loadtests [--quick] [--plan] [--continue] [--only produce,fetch,…] [--directory DIR] [--results FILE]

writes ``FILE`` (``loadtests/results/<date>-<machine>.json``) and, unless the run is a quick one, ``loadtests/RESULTS.md``. A run
of all groups begins with an empty file, so that its figures are of one commit; a run of some groups replaces those groups. A run
that is interrupted keeps what it measured, and ``--continue`` measures the rest.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from loadtests import kafka_peer
from loadtests.lab import FULL, QUICK, TIER_AT_ONCE, Effort, Lab, Shared
from loadtests.machine import (
    USUAL_CONGESTION_CONTROL,
    commit,
    congestion_control,
    cores_busy,
    machine,
    slug,
    usual_congestion_control,
    versions,
)
from loadtests.measuring import LoadFailed
from loadtests.report import write
from loadtests.results import FORMAT, Group, Results, load, save
from loadtests.system import SystemFailed, keep_priority
from loadtests.targets import verdicts
from loadtests.workloads import GROUPS

HERE = Path(__file__).parent
DIRTY = (
    "app/ or loadtests/ has changes that are not committed ({commit}), so that nobody could say what the figures are of. "
    'Commit them, or measure anyway with --uncommitted; RESULTS.md then says "mixed".'
)


class Interrupted(SystemExit):
    """Somebody ended the run: what was measured is kept."""


def settings_used() -> dict[str, dict[str, str]]:
    """What differs from each system's defaults."""
    properties = kafka_peer.server_properties(Path("DIR"), 9092, 9093, tiered=True)
    return {
        "Kafka": properties | {"JVM": " ".join(kafka_peer.JVM_FLAGS)},
        "Firn": dict(TIER_AT_ONCE),
    }


LOOK_AROUND_S, LOOK_AROUND_QUICK_S = 0.5, 0.1
"""How long the machine is watched before a group begins."""

Failure = LoadFailed | SystemFailed | SystemExit


def run_group(name: str, base: Path, effort: Effort, shared: Shared | None) -> tuple[Group, Failure | None]:
    """One group in a folder of its own, which is gone afterwards; and why it did not come to its end, if it did not."""
    print(f"\n--- {name}: {GROUPS[name].title}", flush=True)
    directory = base / name
    directory.mkdir(parents=True)
    lab = Lab(directory, effort, shared)
    if (used := congestion_control()) != USUAL_CONGESTION_CONTROL:
        lab.note(f"TCP's congestion control was {used}, not {USUAL_CONGESTION_CONTROL}: loopback may have been slow.")
    others = cores_busy(LOOK_AROUND_QUICK_S if lab.quick else LOOK_AROUND_S)
    began, started, busy = datetime.datetime.now(datetime.UTC), time.monotonic(), os.getloadavg()[0]
    at_start = commit()
    failure: Failure | None = None
    try:
        cases = GROUPS[name].run(lab)
    except (LoadFailed, SystemFailed, SystemExit) as trouble:
        failure, cases = trouble, lab.kept
        lab.note(f"This group did not come to its end: {str(failure)[-300:]}")
        if shared is not None:
            shared.end()  # whatever failed, the next group is to begin with systems that are well
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    at_end = commit()
    group = Group(
        commit=at_end if at_end == at_start else f"{at_start}+",
        began=began.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        effort=effort.name,
        load_at_start=round(busy, 2),
        notes=lab.notes,
        cases=cases,
        cores_busy_at_start=round(others, 2),
        whole=failure is None,
    )
    return group, failure


def plan(names: Sequence[str]) -> str:
    """What is going to be measured, and how many minutes each group takes on a quiet machine."""
    lines = [f"{GROUPS[name].minutes:>6.1f}  {name:<16} {GROUPS[name].title}" for name in names]
    total = sum(GROUPS[name].minutes for name in names)
    return "\n".join(["minutes, on a quiet machine with two cores:", *lines, f"{total:>6.1f}  in all"])


def to_continue(directory: Path, of_commit: str) -> Path | None:
    """The newest file of full runs in which every group is of this commit."""
    for path in sorted(directory.glob("[0-9]*.json"), reverse=True):
        with suppress(ValueError):
            found = load(path)
            if found.groups and {group.commit for group in found.groups.values()} == {of_commit}:
                return path
    return None


def measured_before(found: Results, of_commit: str, effort: str) -> set[str]:
    """Groups that need not be measured again: whole, of this commit and effort."""
    return {
        name
        for name, group in found.groups.items()
        if group.whole and (group.commit, group.effort) == (of_commit, effort)
    }


def _ended(*_: object) -> NoReturn:
    # Once is enough: ending what was started is not to be interrupted, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted("somebody ended the run (Ctrl-C or SIGTERM)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter and smaller: that it works, not how fast")
    parser.add_argument(
        "--plan", action="store_true", help="show how many minutes each group takes, and measure nothing"
    )
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="measure what an interrupted run left out"
    )
    parser.add_argument("--uncommitted", action="store_true", help="measure although there are changes not committed")
    parser.add_argument(
        "--keep-congestion-control",
        action="store_true",
        help="leave the machine's TCP congestion control as it is (a run by root uses cubic until it ends)",
    )
    parser.add_argument("--only", default="", help=f"groups, separated by commas: {', '.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, help="where the systems keep their data (a temporary folder)")
    parser.add_argument("--results", type=Path, help="the JSON file to write or to add groups to")
    arguments = parser.parse_args()
    wanted = (
        arguments.only.split(",")
        if arguments.only
        else [n for n, w in GROUPS.items() if not w.apart and (w.quick or not arguments.quick)]
    )
    if unknown := set(wanted) - set(GROUPS):
        parser.error(f"no group is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    effort = QUICK if arguments.quick else FULL
    wanted = [name for name in GROUPS if name in wanted]
    if arguments.plan:
        print(plan(wanted))
        return
    now = commit()
    if now.endswith("+") and not arguments.quick and not arguments.uncommitted:
        parser.error(DIRTY.format(commit=now))
    keep_priority(os.getpid())
    signal.signal(signal.SIGTERM, _ended)  # what was started or changed is then ended or changed back
    signal.signal(signal.SIGINT, _ended)
    keep = arguments.quick or arguments.keep_congestion_control
    with nullcontext() if keep else usual_congestion_control() as before:
        if before is not None:
            print(
                f"Until this run ends, this machine's new TCP connections use cubic as congestion control, not {before}.",
                flush=True,
            )
        sys.exit(run(arguments, wanted, effort, now))


def run(arguments: argparse.Namespace, wanted: Sequence[str], effort: Effort, now: str) -> bool:
    """Measure these groups of this commit, and write file and page. Returns whether one of them failed."""
    base = Path(tempfile.mkdtemp(prefix="firn-bench-", dir=arguments.directory))
    began = time.monotonic()
    where = machine(base)
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = arguments.results or HERE / "results" / f"{'quick-' * arguments.quick}{today}-{slug(where)}.json"
    if arguments.go_on and arguments.results is None:
        path = to_continue(HERE / "results", now) or path
    results = Results(FORMAT, where, versions(), settings_used())
    if path.exists() and (arguments.only or arguments.go_on):
        with suppress(ValueError):
            results.groups = load(path).groups
    if arguments.go_on:
        before = measured_before(results, now, effort.name)
        print(f"measured before, of {now}: {', '.join(name for name in wanted if name in before) or 'nothing'}")
        wanted = [name for name in wanted if name not in before]
    if not arguments.quick:
        print(plan(wanted), flush=True)
    failed = interrupted = False
    shared = Shared(base, every=arguments.quick)
    try:
        for name in wanted:
            group, failure = run_group(name, base, effort, shared)
            if group.cases or failure is None:
                results.groups[name] = group
            results.groups = {name: results.groups[name] for name in GROUPS if name in results.groups}
            save(results, path)
            failed |= failure is not None
            interrupted = isinstance(failure, SystemExit)
            if interrupted:
                break
    finally:
        shared.end()
        shutil.rmtree(base, ignore_errors=True)
    if arguments.quick:
        print(
            "\nThat it works is what a quick run shows: Java is not warm yet, so ratios to Kafka flatter Firn.",
            flush=True,
        )
    else:
        print("\n" + "\n".join(verdict.line() for verdict in verdicts(results)), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s in all; every figure is in {path}", flush=True)
    if interrupted:
        print(
            "This run was interrupted. Measure the rest, on the same commit, with: make bench ARGS=--continue",
            flush=True,
        )
    if not arguments.quick:
        print(f"written: {write(results, path)}", flush=True)
    return failed


if __name__ == "__main__":
    main()
