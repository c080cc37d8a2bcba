"""The small Java programs under ``java/``: one process each, that is asked by a line and answers by a line."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.interop.serving import Served, kafka_libs_or_skip
from tests.support.leftovers import own_temporary_folder

SOURCES: Final = Path(__file__).parent / "java"


class JavaProgram:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *words: object) -> str:
        """Send one line, words apart by spaces; the line that it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the JVM has ended"
        return answer.rstrip("\n")


@contextmanager
def running(source: str, *arguments: object, heap_mib: int = 256) -> Iterator[JavaProgram]:
    """A file of ``java/``, compiled and run by one command. The test is skipped where there is no JDK or no Kafka."""
    libs = kafka_libs_or_skip()
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler here")
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{heap_mib}m", "-cp", f"{libs}/*")
    with own_temporary_folder() as folder:
        process = subprocess.Popen(
            ["java", *options, f"-Djava.io.tmpdir={folder}", str(SOURCES / source), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield JavaProgram(process)
        finally:
            process.kill()
            process.communicate()


class Run(NamedTuple):
    code: int
    out: str
    error: str


class Tools:
    """Kafka's command-line tools, all run in one JVM, and the broker they are pointed at."""

    def __init__(self, program: JavaProgram, firn: Served) -> None:
        self._program = program
        self.firn = firn

    def run(self, tool: str, *arguments: object, given: str = "") -> Run:
        fields = [tool, given, *map(str, arguments)]
        answer = self._program.ask(*(base64.b64encode(field.encode()).decode() for field in fields))
        code, out, error = answer.split(" ")
        return Run(int(code), base64.b64decode(out).decode(), base64.b64decode(error).decode())

    def __call__(self, tool: str, *arguments: object, given: str = "") -> str:
        """Run against the broker; what it printed. It must have ended well."""
        done = self.run(tool, "--bootstrap-server", self.firn.bootstrap, *arguments, given=given)
        assert done.code == 0, done
        return done.out
