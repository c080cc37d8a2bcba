"""``RESULTS.md`` from the JSON of a run: what was measured, on what, and what it is held against.

    python -m loadtests.report loadtests/results/FILE.json

writes ``loadtests/RESULTS.md`` again, without measuring anything.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.results import Case, Group, Results, load
from loadtests.targets import TARGETS
from loadtests.workloads import GROUPS

HERE = Path(__file__).resolve().parent
COLUMNS = {
    "mb_per_s": ("MB/s", "{:,.1f}"),
    "records_per_s": ("records/s", "{:,.0f}"),
    "requests_per_s": ("requests/s", "{:,.0f}"),
    "commits_per_s": ("commits/s", "{:,.0f}"),
    "connections_per_s": ("connections/s", "{:,.0f}"),
    "store_requests": ("requests", "{:,.0f}"),
    "server_cpu_us_per_connection": ("CPU µs a connection", "{:,.0f}"),
    "server_cpu_us_per_commit": ("CPU µs a commit", "{:,.1f}"),
    "server_cpu_us_per_request": ("CPU µs a request", "{:,.1f}"),
    "server_cpu_s_per_gb": ("CPU s per GB", "{:,.2f}"),
    "server_cpu_us_per_record": ("CPU µs a record", "{:,.0f}"),
    "server_cpu_share": ("CPU share", "{:.0%}"),
    "load_share": ("generator's share", "{:.0%}"),
    "peak_memory_mb": ("peak MB", "{:,.0f}"),
    "p50_ms": ("p50 ms", "{:,.2f}"),
    "p99_ms": ("p99 ms", "{:,.2f}"),
    "p999_ms": ("p99.9 ms", "{:,.2f}"),
    "e2e_p50_ms": ("end to end p50 ms", "{:,.2f}"),
    "e2e_p99_ms": ("p99 ms", "{:,.2f}"),
    "e2e_p999_ms": ("p99.9 ms", "{:,.2f}"),
    "connected_s": ("accepts after s", "{:,.2f}"),
    "metadata_s": ("Metadata after s", "{:,.2f}"),
    "produce_s": ("Produce after s", "{:,.2f}"),
    "fetch_s": ("Fetch after s", "{:,.2f}"),
    "load_s": ("loaded in s", "{:,.2f}"),
    "longest_ms": ("longest turn ms", "{:,.0f}"),
    "fetch_after_kill_s": ("Fetch after s, killed before", "{:,.2f}"),
    "create_s": ("made in s", "{:,.2f}"),
    "idle_cpu_share": ("CPU share when idle", "{:.2%}"),
    "join_s": ("all joined in s", "{:,.1f}"),
    "join_cpu_s": ("joining CPU s", "{:,.2f}"),
    "rebalance_intervals": ("rebalanced in intervals", "{:,.2f}"),
    "rebalance_cpu_s": ("rebalance CPU s", "{:,.2f}"),
    "catch_up_mb_per_s": ("catching up MB/s", "{:,.1f}"),
    "catch_up_s": ("caught up in s", "{:,.2f}"),
    "broker_cpu_s": ("broker CPU s", "{:,.2f}"),
    "start_s": ("start s", "{:,.2f}"),
    "broker_mb": ("broker MB", "{:,.0f}"),
    "memory_mb": ("memory MB", "{:,.0f}"),
    "family_mb": ("all processes MB", "{:,.0f}"),
    "task_mb": ("task's own MB", "{:,.0f}"),
    "task_with_libraries_mb": ("with libraries MB", "{:,.0f}"),
    "one_record_s": ("one record s", "{:,.2f}"),
    "plan_s": ("planned in s", "{:,.2f}"),
    "plan_cpu_s": ("planning CPU s", "{:,.2f}"),
    "first_s": ("first s", "{:,.2f}"),
    "median_s": ("median s", "{:,.2f}"),
    "longest_s": ("longest s", "{:,.2f}"),
    "max_ms": ("longest ms", "{:,.1f}"),
    "of_alone": ("of the rate alone", "{:.2f}"),
    "moved_mb": ("sent to followers MB", "{:,.1f}"),
    "seconds": ("in s", "{:,.1f}"),
    "idle_cpu_percent": ("% of a core each", "{:,.2f}"),
    "bytes_read_of_range": ("bytes read of the range's", "{:,.3f}"),
}
"""Figures that the tables show, in their order; the JSON has all."""
WORDS = {True: "met", False: "**MISSED**"}
RATES = ("mb_per_s", "records_per_s", "commits_per_s", "connections_per_s")
SPREAD_OF = (*RATES, "server_cpu_s_per_gb", "p99_ms", "p999_ms")
RATIO_OF = (*RATES, "server_cpu_s_per_gb", "p99_ms")


def write(results: Results, path: Path) -> Path:
    """Write the page. ``path`` is the JSON's; a file that is not the laboratory's own has its page beside it.

    Answers the page's path.
    """
    path = path.resolve()
    page = (HERE if path.parent == HERE / "results" else path.parent) / "RESULTS.md"
    page.write_text(text(results, path))
    return page


def text(results: Results, path: Path) -> str:
    """The page."""
    kept = path.parent == HERE / "results"
    shown = f"results/{path.name}" if kept else path.name
    parts = [
        "# Results of the laboratory",
        f"Written by `make bench` from [{path.name}]({shown}), which has every figure with its lowest and highest round. "
        f"`python -m loadtests.plots {'loadtests/' * kept}{shown}` draws plots of it. How the laboratory works and how to read it: "
        "[README.md](README.md).",
        _conditions(results),
        _targets(results),
        *(_group(name, group) for name, group in results.groups.items()),
        *_missing(results),
        _settings(results),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _conditions(results: Results) -> str:
    machine = {name.replace("_", " "): value for name, value in results.machine.items()}
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    efforts = sorted({group.effort for group in results.groups.values()})
    commits = sorted({group.commit for group in results.groups.values()})
    dates = sorted({group.began[:10] for group in results.groups.values()})
    rows = [
        ("date", ", ".join(dates)),
        ("machine", facts),
        ("versions", versions),
        ("commit of Firn", ", ".join(commits)),
        ("effort", ", ".join(efforts)),
    ]
    partly = ", ".join(f"`{name}`" for name, group in results.groups.items() if not group.whole)
    several = (
        f"\n\n**One commit:** every group is of {results.one_commit}, without changes that were not committed."
        if results.one_commit
        else f"\n\n**Mixed:** this page is {len(results.groups)} groups of {len(commits)} commit{'s' * (len(commits) > 1)}. Each "
        "group names its own, and a + says that there were changes which were not committed."
    ) + (f"\n\nThese groups did not come to their end: {partly}." if partly else "")
    disturbed = ", ".join(f"`{name}`" for name, group in results.groups.items() if group.busy)
    busy = (
        f"\n\n**The machine was busy** when these groups began: {disturbed}. Their rates and latencies are those of what was left "
        "of it, in turns; they say little about a quiet machine, and Java, which compiles while it runs, suffers more than its "
        "share. CPU a request and a GB are sounder."
        if disturbed
        else ""
    )
    return (
        "## Conditions\n\n"
        + _table(("", ""), rows)
        + several
        + "\n\nThe systems of one table took turns within one run, server on core 0 and load on core 1 unless a line says "
        "otherwise. Figures are medians of the rounds, those that decide with the lowest and highest of them. The CPU is that of "
        "all processes of the server, from `/proc`. Each group says how many cores other work kept busy just before it began, or "
        "the load of the minute before, which has the group before it in it. Figures of two groups are not comparable."
        + busy
    )


def _targets(results: Results) -> str:
    rows = []
    for target in TARGETS:
        verdict = target.verdict(results)
        word, value = ("not measured", "") if verdict is None else (WORDS[verdict.met], verdict.value_text)
        rows.append((word, target.name, value, target.bound_text))
    return "## Against the targets\n\n" + _table(("", "target", "measured", "wanted"), rows)


def _group(name: str, group: Group) -> str:
    parts = [
        f"## {GROUPS[name].title if name in GROUPS else name}",
        f'`make bench ARGS="--only {name}"`, {group.seconds:,.0f} s from {group.began.replace("T", " ")[:16]} UTC at '
        f"{group.commit}, {group.busy_text} before it began.",
    ]
    described = (inspect.getdoc(GROUPS[name].run) or "").replace("``", "`") if name in GROUPS else ""
    if described:
        parts.append(described)
    parts += [f"- {note}" for note in group.notes]
    parts.append(_cases(group.cases))
    return "\n\n".join(parts)


def _cases(cases: Sequence[Case]) -> str:
    shown = [name for name in COLUMNS if any(name in report for case in cases for report in case.systems.values())]
    head = ["workload", "system", *(COLUMNS[name][0] for name in shown), "Firn against it"]
    rows = []
    for case in cases:
        first = next(iter(case.systems.values()))
        for place, (system, report) in enumerate(case.systems.items()):
            cells = [_cell(report, name) for name in shown]
            against = _against(first, report) if place and "Firn" in case.systems else ""
            rows.append([case.name if not place else "", system, *cells, against])
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return _table(head, rows)


def _cell(report: Mapping[str, Any], name: str) -> str:
    if name not in report:
        return ""
    form = COLUMNS[name][1]
    spread = report.get("spread", {}).get(name)
    out = form.format(report[name])
    if spread and name in SPREAD_OF and spread[0] != spread[1]:
        out += f" ({form.format(spread[0])}–{form.format(spread[1])})"
    return out


def _against(first: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Firn's figure as a multiple of this system's."""
    words = dict.fromkeys(RATES, "rate") | {"server_cpu_s_per_gb": "CPU per GB", "p99_ms": "p99"}
    found = {words[name]: first[name] / report[name] for name in RATIO_OF if first.get(name) and report.get(name)}
    return ", ".join(f"{value:.2f} × {word}" for word, value in found.items())


def _missing(results: Results) -> list[str]:
    """A plain line for the groups that this file has nothing of."""
    titles = [f"{workload.title} (`{name}`)" for name, workload in GROUPS.items() if name not in results.groups]
    return [f"## Not measured this time\n\n{'; '.join(titles)}."] if titles else []


def _settings(results: Results) -> str:
    blocks = [
        f"{system}:\n\n```properties\n" + "\n".join(f"{name}={value}" for name, value in settings.items()) + "\n```"
        for system, settings in results.settings.items()
    ]
    return (
        "## Settings\n\nWhat differs from each system's defaults; everything else is as it comes. Topics of both are not "
        "tiered but in the workloads that replay or upload, where both are, with the same segment size.\n\n"
        + "\n\n".join(blocks)
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    given = Path(sys.argv[1]).resolve()
    print(f"written: {write(load(given), given)}")
