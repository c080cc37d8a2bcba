"""Plots of a run: one SVG for each group, drawn from the JSON alone.

    python -m loadtests.plots loadtests/results/FILE.json [--into DIRECTORY]

writes them to a folder beside the file, which the repository does not keep.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.results import Case, Group, Results, load

STYLE: Any = {
    "svg.hashsalt": "firn",  # the same figures give the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "sans-serif",
}
COLOURS = {"Firn": "#1f6fb4", "Kafka": "#d9762b"}
OTHER_COLOUR = "#8c8c8c"
UNITS = {
    "mb_per_s": "MB/s",
    "records_per_s": "records/s",
    "server_cpu_s_per_gb": "server CPU s per GB",
    "server_cpu_us_per_request": "server CPU µs a request",
    "server_cpu_share": "share of one core",
    "commits_per_s": "commits/s",
    "server_cpu_us_per_commit": "server CPU µs a commit",
    "rebalance_intervals": "heartbeat intervals",
    "rebalance_cpu_s": "server CPU s",
    "store_requests": "requests",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "e2e_p99_ms": "end to end p99 ms",
    "e2e_p999_ms": "end to end p99.9 ms",
    "fetch_s": "s to the first Fetch",
    "memory_mb": "broker MB",
    "broker_mb": "broker MB",
    "peak_memory_mb": "peak MB of all its processes",
    "fetch_after_kill_s": "s to the first Fetch after kill -9",
    "create_s": "s to make them",
    "load_s": "s to load them",
    "idle_cpu_share": "share of one core when idle",
}
CURVES: dict[str, tuple[tuple[str, str], ...]] = {
    "latency": (
        ("share_of_capacity", "p99_ms"),
        ("share_of_capacity", "p999_ms"),
        ("share_of_capacity", "e2e_p99_ms"),
        ("share_of_capacity", "e2e_p999_ms"),
        ("share_of_capacity", "server_cpu_share"),
        ("share_of_capacity", "server_cpu_us_per_request"),
    ),
    "partitions": (
        ("partitions", "server_cpu_us_per_request"),
        ("partitions", "memory_mb"),
        ("partitions", "create_s"),
    ),
    "history": (
        ("segments", "fetch_s"),
        ("segments", "fetch_after_kill_s"),
        ("segments", "broker_mb"),
        ("partitions", "fetch_s"),
        ("partitions", "fetch_after_kill_s"),
        ("partitions", "broker_mb"),
    ),
    "memory": (("idle_connections", "memory_mb"), ("idle_connections", "idle_cpu_share")),
    "s3": (("first_byte_ms", "mb_per_s"), ("first_byte_ms", "server_cpu_s_per_gb")),
}
"""Groups drawn against parameters, a panel for each of them and a figure; all others are bars."""
PANELS_PER_ROW = 3
BARS = (
    "mb_per_s",
    "commits_per_s",
    "server_cpu_s_per_gb",
    "server_cpu_us_per_commit",
    "p99_ms",
    "fetch_s",
    "load_s",
    "memory_mb",
    "records_per_s",
    "rebalance_intervals",
    "rebalance_cpu_s",
    "store_requests",
)
BARS_MAX = 3
LABEL_INCHES_PER_LETTER = 0.066
CURVES_LOG_FROM, BARS_LOG_FROM = 20, 50
"""Times the least figure of a panel, drawn on a logarithmic scale from there on: the length of a bar says less there."""


def draw(results: Results, directory: Path) -> dict[str, Path]:
    """Group to the file with its plot; ``directory`` is made. A group with nothing to draw has none."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with mpl.rc_context(STYLE):
        for name, group in results.groups.items():
            figure = _curves(group, CURVES[name]) if name in CURVES else _bars(group)
            if figure is not None:
                drawn[name] = directory / f"{name}.svg"
                figure.savefig(drawn[name], metadata={"Date": None}, bbox_inches="tight")
    return drawn


def _systems(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(system for case in cases for system in case.systems))


def _colour(system: str, place: int) -> Any:
    return COLOURS.get(system, mpl.colormaps["Greys"](0.35 + 0.15 * (place % 4)))


def _spread(report: Mapping[str, Any], metric: str) -> tuple[float, float]:
    """The lowest and the highest round, where there was more than one."""
    lowest, highest = report.get("spread", {}).get(metric, (report[metric], report[metric]))
    return lowest, highest


def _bars(group: Group) -> Figure | None:
    shown = [
        metric
        for metric in BARS
        if sum(metric in report for case in group.cases for report in case.systems.values()) > 1
    ][:BARS_MAX]
    if not shown:
        return None
    rows = {
        case.name: [system for system, report in case.systems.items() if any(metric in report for metric in shown)]
        for case in group.cases
    }
    cases = [case for case in group.cases if rows[case.name]]
    systems = _systems(cases)
    # A bar is one high, and as much is left between two cases.
    tops = list(accumulate((len(rows[case.name]) + 1 for case in cases), initial=0))
    label_inches = LABEL_INCHES_PER_LETTER * max(len(case.name) for case in cases)
    figure = Figure(figsize=(label_inches + 2.6 * len(shown), 0.7 + 0.16 * tops[-1]), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0])
    for axis, metric in zip(axes, shown, strict=True):
        for case, top in zip(cases, tops, strict=False):
            for row, system in enumerate(rows[case.name], top):
                report = case.systems[system]
                if metric not in report:
                    continue
                lowest, highest = _spread(report, metric)
                axis.barh(
                    row,
                    report[metric],
                    height=0.9,
                    color=_colour(system, systems.index(system)),
                    xerr=[[max(0, report[metric] - lowest)], [max(0, highest - report[metric])]],
                    error_kw={"lw": 0.7},
                    label=system,
                )
        axis.set_xlabel(UNITS.get(metric, metric))
        axis.grid(axis="x", lw=0.3)
        values = [r[metric] for c in cases for r in c.systems.values() if r.get(metric)]
        if values and max(values) > BARS_LOG_FROM * min(values):
            axis.set_xscale("log")
    axes[0].set_yticks([top + (len(rows[case.name]) - 1) / 2 for case, top in zip(cases, tops, strict=False)])
    axes[0].set_yticklabels([case.name for case in cases])
    axes[0].invert_yaxis()
    _legend(figure, axes, systems)
    return figure


def _curves(group: Group, panels: Sequence[tuple[str, str]]) -> Figure | None:
    shown = [
        (parameter, metric)
        for parameter, metric in panels
        if any(parameter in case.parameters and metric in r for case in group.cases for r in case.systems.values())
    ]
    if not shown:
        return None
    columns = min(PANELS_PER_ROW, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.8 * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis, (parameter, metric) in zip(axes, shown, strict=False):
        cases = [case for case in group.cases if parameter in case.parameters]
        for place, system in enumerate(_systems(cases)):
            points = sorted(
                (case.parameters[parameter], case.systems[system][metric], *_spread(case.systems[system], metric))
                for case in cases
                if metric in case.systems.get(system, {})
            )
            if points:
                at, medians, lowest, highest = zip(*points, strict=True)
                colour = _colour(system, place)
                axis.plot(at, medians, marker="o", ms=3, color=colour, label=system)
                axis.fill_between(at, lowest, highest, color=colour, alpha=0.15, lw=0)
        axis.set_xlabel(parameter.replace("_", " "))
        axis.set_title(UNITS.get(metric, metric), fontsize=9)
        axis.grid(lw=0.3)
        _scale_growth(axis, cases, metric)
        steps = [case.parameters[parameter] for case in cases if case.parameters[parameter]]
        if steps and max(steps) >= 100 * min(steps):
            axis.set_xscale("log")
    _legend(figure, axes, _systems(group.cases))
    return figure


def _scale_growth(axis: Axes, cases: Sequence[Case], metric: str) -> None:
    """From 0 on, but where one figure would leave nothing to be seen of another."""
    values = [report[metric] for case in cases for report in case.systems.values() if report.get(metric)]
    if values and max(values) > CURVES_LOG_FROM * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)


def _legend(figure: Figure, axes: Sequence[Axes], systems: Sequence[str]) -> None:
    """One for all panels, in the order of ``systems``."""
    drawn: dict[str, Any] = {}
    for axis in axes:
        found, labels = axis.get_legend_handles_labels()
        drawn |= dict(zip(labels, found, strict=True))
    handles = {system: drawn[system] for system in systems if system in drawn}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the JSON file of a run")
    parser.add_argument("--into", type=Path, help="folder for the plots")
    arguments = parser.parse_args()
    into = arguments.into or arguments.file.with_suffix("")
    print(f"{len(draw(load(arguments.file), into))} plots are in {into}")


if __name__ == "__main__":
    main()
