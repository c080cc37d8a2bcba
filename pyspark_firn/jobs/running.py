"""Where the parts of a job run: in processes of this machine, or as tasks of a Spark application.

A part is a function of one picklable argument; it may be run again after a failure, so it must be repeatable. Results come as
they are ready, in any order.

Worker processes end with the process that started them, however it ends. Ctrl-C does not reach them; the interrupted process
ends them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from app.core.errors import ConfigError, FirnError
from app.machine.interpreter import environment_for_children

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from pyspark.sql import SparkSession

PRELOADED: Final = "pyspark_firn.jobs.preloaded"
FOLDER_VARIABLE: Final = "FIRN_JOBS_FOLDER"
"""Tells the process that workers are forked from which folder lies about for its socket."""
SOCKET_FOLDER_BYTES_MAX: Final = 107 - len("/listener-12345678")
"""Of the name of a folder for a socket, whose address has 107 bytes at most (unix(7))."""
FOLDER_BYTES_MAX: Final = SOCKET_FOLDER_BYTES_MAX - len("/pymp-12345678")
SHORT_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")
JOBS_AT_ONCE: Final = 64
"""Parts that Spark is given at a time; more than it has cores, as it may get more executors while it runs."""

A = TypeVar("A")
R = TypeVar("R")


class WorkerLost(FirnError):
    """A worker process ended in the middle of a part. Its work is left as after a kill."""


class Runner(Protocol):
    """Runs parts of a job beside each other."""

    @property
    def parallelism(self) -> int:
        """Parts at a time."""
        ...

    def run(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        """Results of ``function`` for each argument, as they are ready. Raises: the first error of ``function``."""
        ...


class ProcessRunner:
    """Processes of this machine; one worker works in this one."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers if workers is not None else len(os.sched_getaffinity(0))

    @property
    def parallelism(self) -> int:
        return self._workers

    def run(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        if self._workers == 1 or len(arguments) < 2:
            for argument in arguments:
                yield function(argument)
            return
        # Not forked from this process, which may have threads and event loops, but from one that has loaded only the modules
        # that the function needs: loading Arrow and the kernels once for each worker takes longer than many a part.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", function.__module__, PRELOADED])
        _begin_forkserver()
        rest = iter(arguments)
        workers: dict[Connection[Any, Any], BaseProcess] = {}
        failure: Exception | None = None
        try:
            for argument in islice(rest, self._workers):
                connection, theirs = context.Pipe()
                with theirs:
                    process: BaseProcess = context.Process(target=_work, args=(theirs, function), daemon=True)
                    process.start()
                workers[connection] = process
                connection.send(argument)
            while workers:
                for ready in wait(list(workers)):
                    connection = cast("Connection[Any, Any]", ready)
                    result = connection.recv()
                    following = list(islice(rest, 1)) if failure is None else []
                    if isinstance(result, _Failed):
                        failure, following = failure or result.error, []
                    if following:
                        connection.send(following[0])
                    else:
                        connection.close()
                        workers.pop(connection).join()
                    if not isinstance(result, _Failed):
                        yield result
        except (EOFError, ConnectionError):
            raise WorkerLost(
                "A worker process was ended from outside, perhaps for want of memory: run the job again, with fewer workers then."
            ) from None
        finally:
            for connection, process in workers.items():
                process.kill()
                process.join()
                connection.close()
        if failure is not None:
            raise failure  # Now that parts that were under way have come to their end.


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


def _work(connection: Connection[Any, Any], function: Callable[[Any], Any]) -> None:
    """The main loop of a worker: a part for each argument, until there are no more."""
    threading.Thread(target=_end_with_parent, name="firn-attend", daemon=True).start()
    while True:
        try:
            argument = connection.recv()
        except EOFError:
            return
        try:
            result = function(argument)
        except Exception as error:  # noqa: BLE001 - it is raised where results are waited for
            error.add_note(traceback.format_exc())
            result = _Failed(error)
        connection.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _begin_forkserver() -> None:
    """Start the process that workers are forked from, unless it is there: deaf to Ctrl-C, and tidy when this one is killed.

    Raises: ConfigError.
    """
    with _short_temporary_folder():
        folder = util.get_temp_dir()
    if len(os.fsencode(folder)) > SOCKET_FOLDER_BYTES_MAX:
        raise ConfigError(
            f"The name of the temporary folder {folder} is too long for a socket: set TMPDIR to a shorter one."
        )
    os.environ[FOLDER_VARIABLE] = folder
    resource_tracker.ensure_running()  # Which would let the signal through again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Else it would look for modules in the current folder first.
        with environment_for_children():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ[FOLDER_VARIABLE]


@contextmanager
def _short_temporary_folder() -> Iterator[None]:
    """Temporary folders that the block creates have names short enough for a socket, if there is a place for such."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) > FOLDER_BYTES_MAX:
        usable = (short for short in SHORT_FOLDERS if os.access(short, os.W_OK | os.X_OK))
        tempfile.tempdir = next(usable, usual)
    try:
        yield
    finally:
        tempfile.tempdir = usual


class SparkRunner:
    """Tasks of a Spark application, which restarts those whose executor dies.

    Each part is a Spark job of one task, so that its result is here as soon as it is done.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        return int(self._context.defaultParallelism)

    def run(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        if not arguments:
            return
        tag = f"firn-{uuid.uuid4()}"

        def run_one(argument: A) -> R:
            # Tags belong to the thread that submits.
            self._context.addJobTag(tag)
            [result] = self._context.parallelize([argument], 1).map(function).collect()
            return result

        with ThreadPoolExecutor(min(JOBS_AT_ONCE, len(arguments)), thread_name_prefix="firn-job") as executor:
            waiting = [executor.submit(run_one, argument) for argument in arguments]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            finally:
                running = [one for one in waiting if not one.cancel() and not one.done()]
                if running:
                    self._context.cancelJobsWithTag(tag)
