"""Collects tests once, and runs some of them in a forked process for each request: no run imports or collects anything.

``tools/planted_faults.py`` starts it in a copy of the tree. Requests and responses are lines of JSON, on its standard input and
output. A request is a dict:

    tests       node ids in the order of their run, or paths of files, whose tests run in the order of the collection
    module      path of the module
    source      its source text
    fault       the source text that its functions get; without one, they tell when they are entered
    wanted      functions of the module
    word        if parameters of some of the tests have this word, only these run
    enough      a run ends after the test by which so many of them were entered; 0: only after the last one
    cpu_s_max   CPU of a run at most
    idle_s_max  seconds that a test may wait without work of any process

Or a dict of a command in place of tests, which runs in a new process: ``command``, ``output`` (a path), and the two limits.

The response is an ``End`` as a dict. A function is known by the number of its outermost function in the module, in the order of
the text.

The functions get other code in place, so that it does not matter where they were imported. Statements of a module that run at its
import stay as they are. The caller writes the source text to the copy as well: processes that tests start read it there.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import gc
import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn

import pytest

Functions = ast.FunctionDef | ast.AsyncFunctionDef
ENTERED: Final = "__entered_function__"
"""The builtin that a marked function calls with its number."""
MEMORY_MAX: Final = 12 << 30
"""Address space of a run: a fault can make an endless list."""
FAILED: Final = 70
"""Exit code of a run that failed by itself."""
WORKING: Final = "RD"
"""States of threads that run, or wait for a CPU or a disk."""
PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass
class Ran:
    """A test that ended."""

    node: str
    passed: bool
    cpu_s: float
    wall_s: float
    functions: list[int]
    """Functions of the module that it entered in its own process."""
    told: str = ""
    """The last line of the failure."""


@dataclass
class End:
    """The end of a run."""

    ran: list[Ran] = field(default_factory=list)
    unfinished: str = ""
    """The test in which the run was ended."""
    cpu_s: float = 0.0
    unfinished_cpu_s: float = 0.0
    idle: bool = False
    """It was ended since its processes only waited."""
    code: int = 0
    """The exit code; negative if a signal ended it."""


def outermost(tree: ast.AST) -> Iterator[Functions]:
    """The functions and methods of a module that are in no other function, in the order of the text."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Functions):
            yield child
        elif not isinstance(child, ast.expr):
            yield from outermost(child)


def marked(source: str) -> ast.Module:
    """The tree of a source text in which each function tells its number when it is entered."""
    tree = ast.parse(source)
    for number, function in enumerate(outermost(tree)):
        for inner in ast.walk(function):
            if isinstance(inner, Functions):
                call = ast.Expr(ast.Call(ast.Name(ENTERED, ast.Load()), [ast.Constant(number)], []))
                ast.fix_missing_locations(ast.copy_location(call, inner))
                inner.body.insert(1 if ast.get_docstring(inner, clean=False) is not None else 0, call)
    return tree


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


Key = tuple[str, str, int]
"""File, name and first line of a function's code."""


def key_of(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def live_functions(folder: Path) -> dict[Key, list[FunctionType]]:
    """The functions of all imported modules in a folder, by their code."""
    found: dict[Key, list[FunctionType]] = {}
    inside = f"{folder}{os.sep}"
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(inside):
            found.setdefault(key_of(one.__code__), []).append(one)
    return found


def replace_code(live: dict[Key, list[FunctionType]], path: Path, source: str, tree: ast.Module) -> None:
    """Give the functions of a module the code of another tree. Code that Python never reaches may be missing there."""
    after: dict[Key, list[CodeType]] = {}
    for code in _codes(compile(tree, str(path), "exec")):
        after.setdefault(key_of(code), []).append(code)
    for old in _codes(compile(source, str(path), "exec")):
        of_same_place = after.get(key_of(old))
        if not of_same_place:
            continue
        new = of_same_place.pop(0)
        for function in live.get(key_of(old), ()):
            if function.__code__.co_freevars == new.co_freevars:
                function.__code__ = new


class Server:
    """The plugin of pytest that serves requests in place of running the collected tests."""

    def __init__(self, requests: int, responses: int) -> None:
        self._requests = os.fdopen(requests, "r")
        self._responses = os.fdopen(responses, "w")
        self._live: dict[Key, list[FunctionType]] = {}
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._live = live_functions(session.config.rootpath)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.collect()
        gc.freeze()
        by_name: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            by_name.setdefault(item.nodeid, []).append(item)
            by_name.setdefault(item.nodeid.split("::", 1)[0], []).append(item)
        for items in by_name.values():
            items.sort(key=lambda item: item.get_closest_marker("ci") is not None)
        for line in self._requests:
            request = json.loads(line)
            items = [item for name in request.get("tests", ()) for item in by_name.get(name, ())]
            if word := request.get("word"):
                about = re.compile(rf"[\[-]{word}[-\]]")
                items = [item for item in items if about.search(item.nodeid)] or items
            self._responses.write(json.dumps(asdict(self._fork(items, request))) + "\n")
            self._responses.flush()
        return True

    def _fork(self, items: Sequence[pytest.Item], request: dict[str, Any]) -> End:
        gc.collect()  # a test would fail by garbage of this process
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = FAILED
            try:
                os.close(reader)
                _limit(request["cpu_s_max"])
                if "command" in request:
                    _replace_process(request["command"], request["output"])
                self._run(items, request, writer)
                code = 0
            except BaseException:
                traceback.print_exc()
                raise  # not seen: the process ends
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writer)
        try:
            return watched(pid, reader, request["idle_s_max"])
        finally:
            os.close(reader)
            end_children()

    def _run(self, items: Sequence[pytest.Item], request: dict[str, Any], writer: int) -> None:
        """Run tests until one fails, in the forked process."""
        entered: set[int] = set()
        setattr(builtins, ENTERED, entered.add)
        source, fault = request["source"], request["fault"]
        tree = ast.parse(fault) if fault else marked(source)
        replace_code(self._live, Path.cwd() / request["module"], source, tree)
        missing = set(request["wanted"])
        enough = len(missing) - request["enough"]
        for number, item in enumerate(items):
            following = items[number + 1] if number + 1 < len(items) else None
            ran = self._run_one(item, following, entered, writer)
            missing -= entered
            if not ran or (request["enough"] and len(missing) <= enough):
                return

    def _run_one(self, item: pytest.Item, following: pytest.Item | None, entered: set[int], writer: int) -> bool:
        self._reports.clear()
        entered.clear()
        begun, cpu_s = time.monotonic(), _cpu_s()
        _tell(writer, [item.nodeid, cpu_s])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        failed = [report for report in self._reports if report.failed]
        sys.stderr.writelines(report.longreprtext for report in failed)
        told = next((report.longreprtext.strip().splitlines()[-1] for report in failed if report.longrepr), "")
        ran = Ran(
            item.nodeid,
            not failed,
            round(_cpu_s() - cpu_s, 4),
            round(time.monotonic() - begun, 4),
            sorted(entered),
            told[:200],
        )
        _tell(writer, asdict(ran))
        return not failed


def _limit(cpu_s_max: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def _replace_process(command: Sequence[str], output: str) -> NoReturn:
    told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(told, 1)
    os.dup2(told, 2)
    os.execv(command[0], command)


def _cpu_s() -> float:
    """CPU of this process and of those that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _tell(writer: int, event: object) -> None:
    raw = json.dumps(event).encode() + b"\n"
    while raw:
        raw = raw[os.write(writer, raw) :]


def watched(pid: int, reader: int, idle_s_max: float) -> End:
    """Wait for the end of a forked process, and end it when a test waits too long without work of any process."""
    end = End()
    idle = IdleTime(pid)
    buffer = b""
    begun_cpu_s = 0.0
    ended = os.pidfd_open(pid)  # the pipe may stay open in processes that a test left behind
    waited = [reader, ended]
    while True:
        readable, _, _ = select.select(waited, [], [], 1.0)
        if reader not in readable:
            if ended in readable:
                break
            if idle.seconds() > idle_s_max:
                end.idle = True
                os.kill(pid, signal.SIGKILL)
            continue
        raw = os.read(reader, 1 << 16)
        if not raw:
            waited = [ended]
        *lines, buffer = (buffer + raw).split(b"\n")
        for line in lines:
            idle.begin()
            event = json.loads(line)
            if isinstance(event, list):
                end.unfinished, begun_cpu_s = event
            else:
                end.unfinished = ""
                end.ran.append(Ran(**event))
    os.close(ended)
    _, status, used = os.wait4(pid, 0)
    end.code = os.waitstatus_to_exitcode(status)
    end.cpu_s = used.ru_utime + used.ru_stime
    end.unfinished_cpu_s = end.cpu_s - begun_cpu_s if end.unfinished else 0.0
    return end


class IdleTime:
    """How long a process and its descendants have neither run nor waited for a CPU or a disk."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._busy: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        self._seconds = 0.0
        self._asked = time.monotonic()

    def seconds(self) -> float:
        """Seconds without a break. To be asked about each second: a time counts as idle if less than half of it was work."""
        now = time.monotonic()
        busy = {}
        works = False
        for task in _tasks(self._pid):
            with contextlib.suppress(OSError):  # it has ended
                ran, waited, _ = Path(task, "schedstat").read_text().split()
                busy[task] = int(ran) + int(waited)
                works |= Path(task, "stat").read_text().rpartition(")")[2].split()[0] in WORKING
        worked_s = sum(ns - self._busy.get(task, 0) for task, ns in busy.items()) / 1e9
        is_idle = bool(self._busy) and not works and worked_s < (now - self._asked) / 2
        self._seconds = self._seconds + now - self._asked if is_idle else 0.0
        self._busy, self._asked = busy, now
        return self._seconds


def _tasks(pid: int) -> Iterator[str]:
    """The folders of the threads of a process and of its descendants."""
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            yield f"/proc/{pid}/task/{task}"
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _tasks(int(child))


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, so that ``end_children`` finds them."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "The process cannot adopt orphans.")


def end_children() -> None:
    """End all processes that a run left behind. Their own children become children of this process, and end too."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    while children := own.read_text().split():
        for child in children:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(int(child), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # none is left
            os.wait()


def main(arguments: Sequence[str], run: Callable[..., int | pytest.ExitCode] = pytest.main) -> int:
    """Collect the tests that the arguments of pytest name, and serve requests until the standard input ends."""
    requests, responses = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    adopt_orphans()
    return int(run(list(arguments), plugins=[Server(requests, responses)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
