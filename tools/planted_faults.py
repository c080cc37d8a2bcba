"""Plants one fault at a time in a module, and runs the tests that the module names.

    python tools/planted_faults.py --modules app/core app/wal/writer.py
    python tools/planted_faults.py --seconds-max 600
    python tools/planted_faults.py --go-on --modules app/hot app/records app

A fault turns a comparison, leaves a return out, shifts a constant or negates a condition. The faults of a module are drawn with the
seed; the first one that makes a test fail ends the module. The program prints the modules where no fault makes a test fail: either
their tests assert too little, or the module names the wrong ones. ``tests/modules_without_found_faults.toml`` lists these modules,
and ``tests/test_planted_faults.py`` holds the list.

The faults are planted in a copy of the tree, never in the tree itself. A run that takes five times the CPU of one without a fault
counts as failed: a fault can make an endless loop. A run that only waits is ended, and says nothing. Tests that are marked as
``slow``, ``interop`` or ``faults`` are left out.

``--go-on`` takes the modules that the list lacks, in the order of the given folders, those with short tests first. It writes each
result to the list at once, so that the program can be ended at any time and goes on where it ended.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.named_tests import found_tests, modules  # noqa: E402

MARKERS: Final = "not slow and not interop and not faults"
FAULTS_MAX: Final = 8
"""Faults that are tried in a module before it counts as one where nothing fails."""
CPU_S_MAX: Final = 60
"""Modules whose tests take more CPU without a fault are not measured."""
CPU_TIMES: Final = 5
"""The CPU of a run with a fault at most, in runs without one."""
CPU_S_MIN: Final = 20
WAIT_S_MAX: Final = 1800.0
"""A run that waits longer is ended. On a machine with other work, a run of 60 s of CPU waits long."""
LIST: Final = ROOT / "tests" / "modules_without_found_faults.toml"
COPIED: Final = ("app", "firn_broker", "pyspark_firn", "tests", "tools", "loadtests", "infra", "docs")
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", ".terraform", "target")
NO_TESTS_RAN: Final = 5
"""pytest's exit code when the markers select no test."""


class Fault(NamedTuple):
    """One change of a source text."""

    line: int
    kind: str
    text: str
    """The whole source with the fault."""


class Outcome(Enum):
    FOUND = "a planted fault makes a test fail"
    NOT_FOUND = "no planted fault makes a test fail"
    NOTHING_TO_PLANT = "nothing to plant"
    NO_TESTS = "names no tests"
    LEFT_OUT = "all its tests are left out by their markers"
    BROKEN = "its tests fail without a fault"
    TOO_LONG = "its tests take too long"


UNMEASURED: Final = (Outcome.NOTHING_TO_PLANT, Outcome.LEFT_OUT, Outcome.TOO_LONG)
"""Outcomes of modules that this program cannot measure."""


class Report(NamedTuple):
    module: str
    outcome: Outcome
    tried: int = 0
    """Faults that were planted."""
    detail: str = ""


TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.Return, str]]:
    """The kind of each fault that a node offers, the node to replace, and its replacement."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            turned = ast.Compare(left, [TURNED[type(op)]()], [right])
            yield "a comparison turned", node, f"({ast.unparse(turned)})"
        case ast.Return(value=ast.expr() as value):
            yield "a return left out", node, f"({ast.unparse(value)})"
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield "a constant shifted", node, f"({number + 1})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare):
                yield "a condition negated", test, f"(not ({ast.unparse(test)}))"


def _never_run(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


NO_PLACES: Final = (ast.Assert, ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)
"""A pattern takes no other constant: the parentheses would be a syntax error."""


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that a fault may change: no annotation, no assertion, no raised error, no text, no pattern."""
    if isinstance(node, NO_PLACES) or _never_run(node):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _replaced(source: bytes, starts: Sequence[int], node: ast.expr | ast.Return, text: str) -> str:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return (source[:start] + text.encode() + source[end:]).decode()


def faults_of(source: str) -> list[Fault]:
    """Every fault that can be planted in a source text, in its order. Each text compiles."""
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for place in _places(ast.parse(source)):
        for kind, node, text in _changes(place):
            found.append(Fault(node.lineno, kind, _replaced(raw, starts, node, text)))
    return found


def drawn(faults: Sequence[Fault], count: int, seed: int, module: str) -> list[Fault]:
    """Some faults of a module, different kinds first. The same seed draws the same ones."""
    rng = random.Random(f"{seed} {module}")
    by_kind: dict[str, list[Fault]] = {}
    for fault in rng.sample(faults, len(faults)):
        by_kind.setdefault(fault.kind, []).append(fault)
    order: list[Fault] = []
    while len(order) < min(count, len(faults)):
        order += [of_kind.pop(0) for of_kind in by_kind.values() if of_kind]
    return order[:count]


class Run(NamedTuple):
    """The end of a run of tests."""

    code: int | None
    """pytest's exit code; negative if a signal ended it; None if it only waited."""
    last: str
    """Its last line."""
    cpu_s: float

    @property
    def out_of_cpu(self) -> bool:
        return self.code in (-signal.SIGXCPU, -signal.SIGKILL)


class Copy:
    """A copy of the tree, in which faults are planted.

    Args:
        root: the tree.
        folder: an empty folder for the copy. The caller deletes it.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=LEFT_OUT, symlinks=True)
        for path in root.iterdir():
            if path.is_file():
                shutil.copy2(path, folder / path.name)
        self._clean_runs: dict[tuple[str, ...], Run] = {}

    def write(self, module: str, source: str) -> None:
        """Give a module another source text. Its compiled file goes: the next text may have the same size and second."""
        path = self.root / module
        path.write_text(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def run_clean(self, tests: Sequence[str]) -> Run:
        """Run tests without a fault. Modules that name the same tests share one run."""
        key = tuple(tests)
        if key not in self._clean_runs:
            self._clean_runs[key] = self.run(tests, CPU_S_MAX)
        return self._clean_runs[key]

    def run(self, tests: Sequence[str], cpu_s_max: int) -> Run:
        """Run tests in the copy until the first one fails."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "CI": "true",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling the program is most of a short run
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-p",
            "no:anyio",
        ]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))

        before = _cpu_of_children_s()
        process = subprocess.Popen(
            [*command, "-m", MARKERS, "--", *tests],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=limit,  # noqa: PLW1509 - this program has one thread
        )
        try:
            told, _ = process.communicate(timeout=WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            return Run(None, f"no end within {WAIT_S_MAX:.0f} s", 0.0)
        finally:
            _end_group(process)
        lines = [line for line in told.splitlines() if line.strip()]
        return Run(process.returncode, lines[-1] if lines else "", _cpu_of_children_s() - before)


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end_group(process: subprocess.Popen[str]) -> None:
    """End the tests and all processes that they started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measure(copy: Copy, module: str, tests: Sequence[str], *, count: int, seed: int) -> Report:
    """Plant faults in one module until a test fails.

    Args:
        module: its path in the tree.
        tests: paths of the tests that it names.
        count: faults at most.
        seed: of the draw.
    """
    source = (copy.root / module).read_text()
    faults = drawn(faults_of(source), count, seed, module)
    if not tests:
        return Report(module, Outcome.NO_TESTS)
    if not faults:
        return Report(module, Outcome.NOTHING_TO_PLANT)
    clean = copy.run_clean(tests)
    if clean.code is None or clean.out_of_cpu:
        return Report(module, Outcome.TOO_LONG)
    if clean.code == NO_TESTS_RAN:
        return Report(module, Outcome.LEFT_OUT)
    if clean.code != 0:
        return Report(module, Outcome.BROKEN, detail=clean.last)
    cpu_s_max = max(CPU_S_MIN, int(CPU_TIMES * clean.cpu_s))
    try:
        for number, fault in enumerate(faults, 1):
            copy.write(module, fault.text)
            run = copy.run(tests, cpu_s_max)
            if run.code not in (0, None):
                end = f"more than {cpu_s_max} s of CPU" if run.out_of_cpu else run.last
                return Report(module, Outcome.FOUND, number, f"{fault.kind} in line {fault.line}: {end}")
    finally:
        copy.write(module, source)
    tried = ", ".join(f"{fault.kind} in line {fault.line}" for fault in faults)
    return Report(module, Outcome.NOT_FOUND, len(faults), tried)


def chosen_modules(places: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The modules at these places, with their tests, in the order of the places; in a place, those with short tests first."""
    found: dict[str, list[str]] = {}
    by_path = {path.relative_to(ROOT).as_posix(): path for _, path in modules()}
    for place in places:
        names = [name for name in by_path if name == place or name.startswith(place.rstrip("/") + "/")]
        tests = {name: found_tests(by_path[name]) for name in names}
        for name in sorted(names, key=lambda one: (_length(tests[one]), one)):
            found.setdefault(name, tests[name])
    return list(found.items())


def _length(tests: Sequence[str]) -> int:
    return sum((ROOT / test).stat().st_size for test in tests)


def measure_all(
    chosen: Sequence[tuple[str, list[str]]],
    *,
    count: int,
    seed: int,
    seconds_max: float,
    told: Callable[[Report], None],
) -> list[Report]:
    """Measure modules in their order, until none is left or the time is over.

    Args:
        chosen: modules with their tests.
        count: faults a module, at most.
        seconds_max: no module begins after that.
        told: called with each report.
    """
    end = time.monotonic() + seconds_max
    reports = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(ROOT, Path(folder))
        for name, tests in chosen:
            if time.monotonic() >= end:
                break
            reports.append(measure(copy, name, tests, count=count, seed=seed))
            told(reports[-1])
    return reports


def read_list(path: Path) -> dict[str, list[str]]:
    """The lists ``measured``, ``nothing_fails`` and ``unmeasured`` of the file."""
    return tomllib.loads(path.read_text())


def add_to_list(path: Path, report: Report) -> None:
    """Write a report to the file. Modules whose tests fail without a fault are not written: they are measured again."""
    lists = read_list(path)
    for name, outcomes in (
        ("measured", (Outcome.FOUND, Outcome.NOT_FOUND)),
        ("nothing_fails", (Outcome.NOT_FOUND,)),
        ("unmeasured", UNMEASURED),
    ):
        kept = set(lists[name]) - {report.module}
        lists[name] = sorted(kept | {report.module} if report.outcome in outcomes else kept)
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    for name, known in lists.items():
        head += [f"{name} = [", *(f'  "{one}",' for one in known), "]"] if known else [f"{name} = []"]
    path.write_text("\n".join(head) + "\n")


def _tell(report: Report) -> None:
    detail = f" ({report.detail})" if report.detail else ""
    sys.stdout.write(f"{report.module}: {report.outcome.value}{detail}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Print a line for each module. Returns the exit code: 1 if there is a module where nothing fails."""
    parser = argparse.ArgumentParser(description="Plant faults in modules and run the tests that they name.")
    parser.add_argument("--modules", nargs="+", default=["app"], metavar="PATH", help="modules or folders (app)")
    parser.add_argument("--faults-per-module", type=int, default=FAULTS_MAX, metavar="N", help="at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws faults and the order of modules (%(default)s)")
    parser.add_argument("--go-on", action="store_true", help="measure what the list lacks, and write results to it")
    parser.add_argument("--seconds-max", type=float, default=float("inf"), help="begin no module after that")
    options = parser.parse_args(arguments)
    chosen = chosen_modules(options.modules)
    if options.go_on:
        lists = read_list(LIST)
        known = {*lists["measured"], *lists["unmeasured"]}
        chosen = [(name, tests) for name, tests in chosen if name not in known]
    else:
        random.Random(options.seed).shuffle(chosen)

    def told(report: Report) -> None:
        _tell(report)
        if options.go_on:
            add_to_list(LIST, report)

    reports = measure_all(
        chosen,
        count=options.faults_per_module,
        seed=options.seed,
        seconds_max=options.seconds_max,
        told=told,
    )
    counts = {outcome: sum(report.outcome is outcome for report in reports) for outcome in Outcome}
    sys.stdout.write("".join(f"{count:4} {outcome.value}\n" for outcome, count in counts.items() if count))
    return 1 if counts[Outcome.NOT_FOUND] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
