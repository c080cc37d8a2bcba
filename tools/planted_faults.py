"""Plants one fault at a time in a module, and runs the tests that the module names.

    python tools/planted_faults.py --modules app/core app/wal/writer.py
    python tools/planted_faults.py --seconds-max 600
    python tools/planted_faults.py --go-on --workers 2 --modules app/hot app/records app

A fault turns a comparison, leaves a return out, shifts a constant or negates a condition. The faults of a module are drawn with the
seed; the first one that makes a test fail ends the module. The program prints the modules where no fault makes a test fail: either
their tests assert too little, or the module names the wrong ones. ``tests/modules_without_found_faults.toml`` lists these modules,
and ``tests/test_planted_faults.py`` holds the list.

How a module is measured, with as little work as its tests allow:

1. Its tests run without a fault until they entered some of its functions (``ENOUGH``). They must pass.
2. Faults are planted in these functions. Only the tests that entered the function run, the shortest first.
3. When none fails, all tests run without a fault, and step 2 is done for the other functions.
4. Faults outside of the functions that the tests entered are planted in the file, and all tests run in a new process. If a module
   has no function, the tests come first whose parameters name it.

The faults are planted in a copy of the tree, never in the tree itself. ``tools/fault_server.py`` imports and collects the tests of
the copy once, and runs them in forked processes. A test fails as well when it takes five times the CPU or the time of its
run without a fault, and some seconds: a fault can make an endless loop, or an endless wait. Tests that are marked as ``slow``,
``interop`` or ``faults`` are left out.

``--go-on`` takes the modules that the list lacks, in the order of the given folders, those with short tests first. It writes each
result to the list at once, so that the program can be ended at any time and goes on where it ended. Each worker has its own copy.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.fault_server import FAILED, End, Functions, Ran, outermost  # noqa: E402
from tools.named_tests import found_tests, modules  # noqa: E402

MARKERS: Final = "not slow and not interop and not faults"
FAULTS_MAX: Final = 8
"""Faults that are tried in a module before it counts as one where nothing fails."""
ENOUGH: Final = 3
"""Functions that the tests must have entered before the first fault is planted."""
CPU_S_MAX: Final = 60
"""Tests that take more CPU without a fault do not run to their end."""
TIMES: Final = 5
"""CPU and time of a test with a fault at most, in those without one."""
CPU_S_MIN: Final = 5.0
"""A test with a fault may take so much CPU in any case."""
IDLE_S_MAX: Final = 30.0
"""A test may wait so long while none of its processes works. Time without a CPU does not count."""
LIST: Final = ROOT / "tests" / "modules_without_found_faults.toml"
COPIED: Final = ("app", "firn_broker", "pyspark_firn", "tests", "tools", "loadtests", "infra", "docs")
LEFT_OUT: Final = shutil.ignore_patterns(".git", ".terraform", "target")
PYTEST: Final = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio", "-m", MARKERS)


class Fault(NamedTuple):
    """One change of a source text."""

    line: int
    kind: str
    text: str
    """The whole source with the fault."""
    function: int | None = None
    """Number of the outermost function that holds it, in the order of the text; None if it runs when the module is imported."""


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
    cpu_s: float = 0.0
    """CPU of its runs."""


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
        case (
            ast.FunctionDef(body=[*_, ast.Expr(ast.Constant(value))])
            | ast.AsyncFunctionDef(body=[*_, ast.Expr(ast.Constant(value))])
        ):
            return value is ...  # a method of a protocol
    return False


NO_PLACES: Final = (ast.Assert, ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)
"""A pattern takes no other constant: the parentheses would be a syntax error."""


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _places(
    node: ast.AST, numbers: dict[ast.AST, int], function: int | None = None
) -> Iterator[tuple[ast.AST, int | None]]:
    """Nodes that a fault may change, with their function: no annotation, no assertion, no raised error, no text, no pattern.

    Of a field of a message (``app/wire/schema.py:Row``), only its first version: most last versions and defaults have no effect.
    """
    if isinstance(node, NO_PLACES) or _never_run(node):
        return
    match node:
        case ast.Tuple(
            elts=[ast.Constant(str()), ast.Constant(str()), ast.Constant(bool()), first_version, _, _, _, _]
        ):
            yield first_version, function
            return
    yield node, function
    for field, child in _children(node):
        if field not in ("annotation", "returns", "decorator_list"):
            runs_inside = function is None and isinstance(node, Functions) and field == "body"
            yield from _places(child, numbers, numbers[node] if runs_inside else function)


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
    tree = ast.parse(source)
    numbers: dict[ast.AST, int] = {function: number for number, function in enumerate(outermost(tree))}
    found = []
    for place, function in _places(tree, numbers):
        for kind, node, text in _changes(place):
            found.append(Fault(node.lineno, kind, _replaced(raw, starts, node, text), function))
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


OUT_OF_CPU: Final = (-signal.SIGXCPU, -signal.SIGKILL)


class Copy:
    """A copy of the tree, in which faults are planted, and the server that has collected its tests. A context manager.

    Args:
        root: the tree.
        folder: an empty folder for the copy. The caller deletes it.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._temporary = folder / "t"
        self._log = folder / "server.log"
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self.root / name, ignore=LEFT_OUT, symlinks=True)
        for path in root.iterdir():
            if path.is_file():
                shutil.copy2(path, self.root / path.name)
        self._server: subprocess.Popen[str] | None = None
        self.cpu_s = 0.0
        """CPU of all runs so far, without imports and collecting."""
        self._collected: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server."""
        if self._server is not None:
            _end_group(self._server)
            self._server = None

    def write(self, module: str, source: str) -> None:
        """Give a module another source text. Its compiled file goes: the next text may have the same size and second."""
        path = self.root / module
        path.write_text(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def collect(self, tests: Sequence[str]) -> None:
        """Collect files of tests, if they are not collected yet. No fault may be planted meanwhile."""
        if not set(tests) <= self._collected:
            self.stop()
            self._collected |= set(tests)
            program = [sys.executable, "-P", str(Path(__file__).with_name("fault_server.py")), *PYTEST]
            with self._log.open("w") as log:
                self._server = self._start(
                    [*program, "--basetemp", str(self._temporary), "--", *sorted(self._collected)], log
                )

    def run(
        self,
        module: str,
        tests: Sequence[str],
        *,
        source: str,
        fault: str = "",
        wanted: Sequence[int] = (),
        enough: int = 0,
        word: str = "",
        cpu_s_max: int,
    ) -> End:
        """Run collected tests until one fails: node ids, or files. ``tools/fault_server.py`` describes the arguments."""
        limits = {"cpu_s_max": cpu_s_max, "idle_s_max": IDLE_S_MAX}
        which = {"tests": tests, "word": word, "wanted": wanted, "enough": enough}
        return self._ask({"module": module, "source": source, "fault": fault} | which | limits)

    def run_anew(self, tests: Sequence[str], cpu_s_max: int) -> tuple[End, str]:
        """Run tests in a new process, which imports everything, until one fails. Returns its end, and the test that failed."""
        output = self._log.with_name("output")
        command = [
            sys.executable,
            "-m",
            "pytest",
            *PYTEST,
            "-x",
            "-rfE",
            "--basetemp",
            f"{self._temporary}",
            "--",
            *tests,
        ]
        end = self._ask({"command": command, "output": str(output), "cpu_s_max": cpu_s_max, "idle_s_max": IDLE_S_MAX})
        lines = output.read_text(errors="replace").splitlines()
        return end, next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")

    def _ask(self, request: dict[str, object]) -> End:
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError(f"The server of tests ended: {self._log.read_text()[-2000:]}")
        told = json.loads(line)
        end = End(**told | {"ran": [Ran(**ran) for ran in told["ran"]]})
        if end.code == FAILED:
            raise RuntimeError(f"A run of tests failed by itself: {self._log.read_text()[-2000:]}")
        self.cpu_s += end.cpu_s
        return end

    def _start(self, command: Sequence[str], log: IO[str] | int) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(self.root), "CI": "true"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling the program is most of a short run
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,
        )


def _end_group(process: subprocess.Popen[str]) -> None:
    """End the tests and all processes that they started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


class Measuring:
    """Plants faults in one module until a test fails.

    Args:
        module: its path in the tree.
        tests: paths of the tests that it names.
        faults: faults to plant, in their order.
        count: faults at most.
    """

    def __init__(self, copy: Copy, module: str, tests: Sequence[str], faults: Sequence[Fault], count: int) -> None:
        self._copy = copy
        self._module = module
        self._tests = tests
        self._faults = list(faults)
        self._count = count
        self._source = (copy.root / module).read_text()
        self._cpu_s = copy.cpu_s
        self._passed: dict[str, Ran] = {}
        self._tried: list[Fault] = []

    def report(self) -> Report:
        """Measure. The module has its own text again afterwards."""
        in_functions = any(fault.function is not None for fault in self._faults)
        for enough, word in ((ENOUGH, ""), (0, "")) if in_functions else ((0, Path(self._module).stem), (0, "")):
            self._tried.clear()
            end = self._run_clean(enough, word)
            if end.ran and not end.ran[-1].passed:
                return self._report(Outcome.BROKEN, f"{end.ran[-1].node}: {end.ran[-1].told}")
            if end.unfinished and not end.idle and end.code not in OUT_OF_CPU:
                return self._report(Outcome.BROKEN, f"{end.unfinished}: its process ended with {end.code}")
            if not end.ran and not end.unfinished:
                return self._report(Outcome.LEFT_OUT)
            found = self._plant_in_entered()
            if found is not None:
                return found
            if end.unfinished:
                return self._report(Outcome.TOO_LONG, end.unfinished)
            named = [ran.node for ran in end.ran if word and word in ran.node.partition("[")[2]]
            found = None if enough else self._plant_in_file(named or self._tests)
            if found is not None:
                return found
            if word and not named:
                break  # all tests ran
        return self._report(Outcome.NOT_FOUND, ", ".join(map(_told, self._tried)))

    def _report(self, outcome: Outcome, detail: str = "") -> Report:
        return Report(self._module, outcome, len(self._tried), detail, self._copy.cpu_s - self._cpu_s)

    def _run_clean(self, enough: int, word: str) -> End:
        wanted = {fault.function for fault in self._faults if fault.function is not None}
        end = self._copy.run(
            self._module,
            self._tests,
            source=self._source,
            wanted=sorted(wanted),
            enough=min(enough, len(wanted)),
            word=word,
            cpu_s_max=CPU_S_MAX,
        )
        self._passed |= {ran.node: ran for ran in end.ran if ran.passed}
        return end

    def _next(self, fits: Callable[[Fault], bool]) -> Iterator[Fault]:
        for fault in self._faults:
            if len(self._tried) >= self._count:
                return
            if fault not in self._tried and fits(fault):
                self._tried.append(fault)
                yield fault

    def _plant_in_entered(self) -> Report | None:
        entered = {function for ran in self._passed.values() for function in ran.functions}
        for fault in self._next(lambda fault: fault.function in entered):
            clean = sorted(
                (ran for ran in self._passed.values() if fault.function in ran.functions), key=lambda ran: ran.cpu_s
            )
            with self._planted(fault):
                end = self._copy.run(
                    self._module,
                    [ran.node for ran in clean],
                    source=self._source,
                    fault=fault.text,
                    cpu_s_max=int(TIMES * (CPU_S_MIN + sum(ran.cpu_s for ran in clean))),
                )
            failed = self._failed(end)
            if failed:
                return self._report(Outcome.FOUND, f"{_told(fault)}: {failed}")
        return None

    def _failed(self, end: End) -> str:
        """The test that failed, or took too much; empty if none did."""
        if end.ran and not end.ran[-1].passed:
            return f"{end.ran[-1].node}: {end.ran[-1].told}"
        if end.unfinished:
            clean = self._passed[end.unfinished]
            if end.idle and TIMES * clean.wall_s < IDLE_S_MAX:
                return f"{end.unfinished}: it waits without an end"
            if end.unfinished_cpu_s > max(CPU_S_MIN, TIMES * clean.cpu_s):
                return f"{end.unfinished}: {end.unfinished_cpu_s:.0f} s of CPU"
            if not end.idle and end.code not in OUT_OF_CPU:
                return f"{end.unfinished}: its process ended with {end.code}"
        return ""

    def _plant_in_file(self, tests: Sequence[str]) -> Report | None:
        """Plant faults outside of the entered functions. The tests have passed without a fault before."""
        cpu_s_max = int(TIMES * (CPU_S_MIN + sum(ran.cpu_s for ran in self._passed.values())))
        waits = TIMES * max(ran.wall_s for ran in self._passed.values()) >= IDLE_S_MAX
        for fault in self._next(lambda _: True):
            with self._planted(fault):
                end, failed = self._copy.run_anew(tests, cpu_s_max)
            if end.idle:
                failed = "" if waits else "it waits without an end"
            elif end.code in OUT_OF_CPU:
                failed = f"{end.cpu_s:.0f} s of CPU"
            if failed:
                return self._report(Outcome.FOUND, f"{_told(fault)}: {failed}")
        return None

    @contextlib.contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        self._copy.write(self._module, fault.text)
        try:
            yield
        finally:
            self._copy.write(self._module, self._source)


def _told(fault: Fault) -> str:
    return f"{fault.kind} in line {fault.line}"


def measure(copy: Copy, module: str, tests: Sequence[str], *, count: int, seed: int) -> Report:
    """Plant faults in one module until a test fails.

    Args:
        module: its path in the tree.
        tests: paths of the tests that it names.
        count: faults at most.
        seed: of the draw.
    """
    faults = faults_of((copy.root / module).read_text())
    if not tests:
        return Report(module, Outcome.NO_TESTS)
    if not faults:
        return Report(module, Outcome.NOTHING_TO_PLANT)
    copy.collect(tests)
    return Measuring(copy, module, tests, drawn(faults, len(faults), seed, module), count).report()


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
    workers: int,
    told: Callable[[Report], None],
) -> list[Report]:
    """Measure modules in their order, until none is left or the time is over.

    Args:
        chosen: modules with their tests.
        count: faults a module, at most.
        seconds_max: no module begins after that.
        workers: modules that are measured at the same time.
        told: called with each report, by one thread at a time.
    """
    end = time.monotonic() + seconds_max
    left: queue.SimpleQueue[tuple[str, list[str]]] = queue.SimpleQueue()
    for one in chosen:
        left.put(one)
    reports: list[Report] = []
    lock = threading.Lock()

    def work(folder: Path) -> None:
        with Copy(ROOT, folder) as copy:
            copy.collect(sorted({test for _, tests in chosen for test in tests}))
            while time.monotonic() < end:
                try:
                    name, tests = left.get_nowait()
                except queue.Empty:
                    return
                report = measure(copy, name, tests, count=count, seed=seed)
                with lock:
                    reports.append(report)
                    told(report)

    with tempfile.TemporaryDirectory(prefix="planted-") as folder, ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, Path(folder, str(number))) for number in range(workers)]:
            done.result()
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
    sys.stdout.write(f"{report.module}: {report.outcome.value}, {report.cpu_s:.1f} s{detail}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Print a line for each module. Returns the exit code: 1 if there is a module where nothing fails."""
    parser = argparse.ArgumentParser(description="Plant faults in modules and run the tests that they name.")
    parser.add_argument("--modules", nargs="+", default=["app"], metavar="PATH", help="modules or folders (app)")
    parser.add_argument("--faults-per-module", type=int, default=FAULTS_MAX, metavar="N", help="at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws faults and the order of modules (%(default)s)")
    parser.add_argument("--go-on", action="store_true", help="measure what the list lacks, and write results to it")
    parser.add_argument("--workers", type=int, default=1, help="modules at the same time (%(default)s)")
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
        workers=options.workers,
        told=told,
    )
    counts = {outcome: sum(report.outcome is outcome for report in reports) for outcome in Outcome}
    sys.stdout.write("".join(f"{count:4} {outcome.value}\n" for outcome, count in counts.items() if count))
    return 1 if counts[Outcome.NOT_FOUND] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
