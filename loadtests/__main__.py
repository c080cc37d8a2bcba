"""``make bench``: Firn against Apache Kafka, against bare limits and against its targets, in turns within one run.

Where rates are compared, the system under test runs on core 0 and the load on core 1. Every figure is the median of the
rounds of this run; ratios are between medians of the same group. A peer that is not there is a line in the report, not a
failure. See README.md beside this file.

    python -m loadtests [--quick] [--only produce,fetch,…] [--directory DIR] [--results FILE]

writes ``FILE`` (``loadtests/results/<date>-<machine>.json``; groups that it has already are replaced) and, unless the run is
a quick one, ``loadtests/RESULTS.md`` with its plots.
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
from contextlib import suppress
from pathlib import Path

from loadtests import kafka_peer
from loadtests.lab import FULL, QUICK, TIER_AT_ONCE, Effort, Lab, Shared
from loadtests.machine import commit, cores_busy, machine, slug, versions
from loadtests.measuring import LoadFailed
from loadtests.results import FORMAT, Group, Results, load, save
from loadtests.system import SystemFailed, keep_priority
from loadtests.targets import verdicts
from loadtests.workloads import GROUPS

HERE = Path(__file__).parent


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
    others = cores_busy(LOOK_AROUND_QUICK_S if lab.quick else LOOK_AROUND_S)
    began, started, busy = datetime.datetime.now(datetime.UTC), time.monotonic(), os.getloadavg()[0]
    failure: Failure | None = None
    try:
        cases = GROUPS[name].run(lab)
    except (LoadFailed, SystemFailed, SystemExit) as trouble:
        failure, cases = trouble, lab.kept
        lab.note(f"This group did not come to its end: {str(failure)[-300:]}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    group = Group(
        commit=commit(),
        began=began.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        effort=effort.name,
        load_at_start=round(busy, 2),
        notes=lab.notes,
        cases=cases,
        cores_busy_at_start=round(others, 2),
    )
    return group, failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter and smaller: that it works, not how fast")
    parser.add_argument("--only", default="", help=f"groups, separated by commas: {', '.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, help="where the systems keep their data (a temporary folder)")
    parser.add_argument("--results", type=Path, help="the JSON file to write or to add groups to")
    arguments = parser.parse_args()
    wanted = (
        arguments.only.split(",")
        if arguments.only
        else [n for n, w in GROUPS.items() if w.quick or not arguments.quick]
    )
    if unknown := set(wanted) - set(GROUPS):
        parser.error(f"no group is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # what was started is then ended too
    effort = QUICK if arguments.quick else FULL
    keep_priority(os.getpid())
    base = Path(tempfile.mkdtemp(prefix="firn-bench-", dir=arguments.directory))
    began = time.monotonic()
    where = machine(base)
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = arguments.results or HERE / "results" / f"{'quick-' * arguments.quick}{today}-{slug(where)}.json"
    results = Results(FORMAT, where, versions(), settings_used())
    if path.exists():
        with suppress(ValueError):
            results.groups = load(path).groups
    failed = False
    shared = Shared(base) if arguments.quick else None
    try:
        for name in (name for name in GROUPS if name in wanted):
            group, failure = run_group(name, base, effort, shared)
            if group.cases or failure is None:
                results.groups[name] = group
            results.groups = {name: results.groups[name] for name in GROUPS if name in results.groups}
            save(results, path)
            failed |= failure is not None
            if isinstance(failure, SystemExit):
                break
    finally:
        if shared is not None:
            shared.stack.close()
        shutil.rmtree(base, ignore_errors=True)
    if arguments.quick:
        print(
            "\nThat it works is what a quick run shows: Java is not warm yet, so ratios to Kafka flatter Firn.",
            flush=True,
        )
    else:
        print("\n" + "\n".join(verdict.line() for verdict in verdicts(results)), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s in all; every figure is in {path}", flush=True)
    if not arguments.quick:
        from loadtests.report import write

        print(f"written: {write(results, path)}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
