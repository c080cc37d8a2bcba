"""Where the parts of a job run: in processes of this machine, or as tasks of a Spark application.

A part is a function of one picklable argument; it may be run again after a failure, so it must be repeatable. Results come as
they are ready, in any order.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRELOADED: Final = "pyspark_firn.jobs.preloaded"

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
    """Tasks of a Spark application, which restarts those whose executor dies."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        return int(self._context.defaultParallelism)

    def run(self, function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
        if arguments:
            yield from self._context.parallelize(list(arguments), len(arguments)).map(function).collect()
