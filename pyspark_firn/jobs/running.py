"""Where the parts of a job run: in processes of this machine, or as tasks of a Spark application.

A part is a function of one picklable argument; it may be run again after a failure, so it must be repeatable. Results come as
they are ready, in any order.
"""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRELOADED: Final = "pyspark_firn.jobs.preloaded"
JOBS_AT_ONCE: Final = 64
"""Parts that Spark is given at a time; more than it has cores, as it may get more executors while it runs."""

A = TypeVar("A")
R = TypeVar("R")


class Runner(Protocol):
    """Runs parts of a job beside each other."""

    @property
    def parallelism(self) -> int:
        """Parts at a time."""
        ...

    def run(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        """Results of ``function`` for each argument, as they are ready. Raises: what ``function`` raises first."""
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
        # Not forked from this process, which may have threads and event loops, but from one that has only what the function needs:
        # to load Arrow and the kernels once for each worker takes longer than many a part.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", function.__module__, PRELOADED])
        with ProcessPoolExecutor(min(self._workers, len(arguments)), mp_context=context) as executor:
            waiting = [executor.submit(function, argument) for argument in arguments]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            finally:
                for one in waiting:
                    one.cancel()


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
