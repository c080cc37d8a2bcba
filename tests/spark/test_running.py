"""Parts of a job in worker processes: what becomes of them when one fails, and when the process that waits for them ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.errors import ConfigError
from pyspark_firn.jobs.running import ProcessRunner, WorkerLost

DEADLINE_S = 60

WAITING = """
import fcntl, os, signal, sys, threading
from pyspark_firn.jobs.running import ProcessRunner

def part(path):
    held = open(path, "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(path, path + ".held")
    threading.Event().wait()

if __name__ == "__main__":
    # As at a terminal: a shell that starts the tests in the background hands an ignored SIGINT down.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        list(ProcessRunner(2).run(part, [f"{sys.argv[1]}/{number}" for number in range(3)]))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_free(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: one for sockets, whose addresses have no more than a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="firn-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "everybody", "code"),
    [(signal.SIGKILL, False, -signal.SIGKILL), (signal.SIGINT, True, 130), (signal.SIGINT, False, 130)],
)
def test_workers_end_with_the_process_that_waits_for_them_and_leave_nothing(
    tmp_path: Path, temporary: Path, number: signal.Signals, everybody: bool, code: int
) -> None:
    """``everybody``: as a terminal sends Ctrl-C."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (tmp_path / "script.py").write_text(WAITING)
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "script.py", str(parts)],
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            wait_for(lambda: len(list(parts.glob("*.held"))) == 2 or process.poll() is not None, "two parts under way")
            (os.killpg if everybody else os.kill)(process.pid, number)
            assert process.wait(DEADLINE_S) == code
            for held in parts.glob("*.held"):
                wait_for(lambda held=held: is_free(held), "the end of a worker")  # type: ignore[misc]
            wait_for(lambda: not list(temporary.iterdir()), "an empty temporary folder")
        finally:
            with suppress(ProcessLookupError):  # Whoever of its group is there still.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if number == signal.SIGINT:
        assert (tmp_path / "said").read_text() == ""


TELLING = """
import sys, tempfile
from multiprocessing import util
from pyspark_firn.jobs.running import ProcessRunner

def part(number):
    return tempfile.gettempdir()

if __name__ == "__main__":
    print(*{tempfile.gettempdir(), *ProcessRunner(2).run(part, range(3))})
    print(util.get_temp_dir())
"""


def test_workers_are_there_also_where_the_name_of_the_temporary_folder_is_too_long_for_a_socket(tmp_path: Path) -> None:
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    (tmp_path / "script.py").write_text(TELLING)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stderr == ""
    place, sockets = done.stdout.splitlines()
    assert place == str(temporary)
    assert not list(temporary.iterdir())
    wait_for(lambda: not Path(sockets).exists(), "the end of the sockets' folder")


def test_a_folder_that_is_too_long_for_a_socket_for_good_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where other code has used it before."""
    monkeypatch.setattr("pyspark_firn.jobs.running.util.get_temp_dir", lambda: str(tmp_path / ("long" * 30)))
    with pytest.raises(ConfigError, match=r"too long for a socket: set TMPDIR to a shorter one\.$"):
        list(ProcessRunner(2).run(fail_or_write, [tmp_path / "a", tmp_path / "b"]))


def die(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_or_write(path: Path) -> str:
    if path.name == "fail":
        raise ConfigError("this part cannot be done")
    path.write_text("done")
    return path.name


def test_a_worker_that_is_killed_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match="ended from outside"):
        list(ProcessRunner(2).run(die, [tmp_path, tmp_path]))


def test_a_part_that_fails_is_raised_when_those_under_way_have_come_to_their_end(tmp_path: Path) -> None:
    results: list[str] = []
    with pytest.raises(ConfigError, match="cannot be done") as raised:
        results += ProcessRunner(2).run(fail_or_write, [tmp_path / "fail", tmp_path / "other"])
    assert (tmp_path / "other").read_text() == "done"
    assert "in fail_or_write" in raised.value.__notes__[0]


def test_every_part_is_done_once_whoever_does_it(tmp_path: Path) -> None:
    names = [f"part-{number}" for number in range(20)]
    assert sorted(ProcessRunner(3).run(fail_or_write, [tmp_path / name for name in names])) == sorted(names)


BESIDE_AN_APP = """
import os, sys
from pyspark_firn.jobs.running import ProcessRunner

def loaded(number):
    import app
    return "pyspark_firn.jobs.preloaded" in sys.modules, app.__file__

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    print({*ProcessRunner(2).run(loaded, range(2))})
"""


def test_workers_find_what_is_loaded_before_them_though_there_is_an_app_in_the_current_folder(tmp_path: Path) -> None:
    """As where ``firn job`` is run in a project of the user's."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "app.py").write_text("raise SystemExit('the user\\'s program was run')")
    (tmp_path / "script.py").write_text(BESIDE_AN_APP)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "users")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", f"{{(True, '{Path(__file__).parents[2]}/app/__init__.py')}}\n")
