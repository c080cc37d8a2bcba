"""The protocol of a stream that writes, killed or held up after any request or answer, batch after batch, for many seeds.

Spark's part is played without a JVM: a driver that goes through the micro-batches of its checkpoint, a process for each attempt at
a task, and one for each commit, as Spark has them. Dying is real: SIGKILL, with requests on their way to a broker that lives. So is
sleeping: SIGSTOP to a driver and its tasks, which go on when their successor is at work, or has done everything.
``test_job_kills.py`` does the same to Spark itself, at chosen places.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.open_transactions import abort_what_is_open
from tests.spark.writers import committed, values
from tests.support.broker import running_broker

DEADLINE_S = 300.0
EVENTS = 12
STEPS_BETWEEN_MAX = 60
"""Requests and answers from one event to the next; a batch has about 70."""

STREAM = """
import asyncio, ctypes, fcntl, json, mmap, os, pickle, random, signal, struct, sys
from pathlib import Path
from app.client.connection import KafkaConnection
from pyspark_firn.writing import FirnStreamWriter, Slot, parse_write_options
from tests.spark.writers import SCHEMA, rows

BATCHES, TASKS, RECORDS = 8, 2, 7
bootstrap, scratch, events = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
options = parse_write_options({"bootstrap": bootstrap, "topic": "out", "transactionTimeout": "300000"}, SCHEMA)
writer = FirnStreamWriter(options)
shared, COUNTERS = mmap.mmap(-1, 16), struct.Struct("qq")  # Steps since the last event, events.
lock = open(scratch / "lock", "wb")
asleep = scratch / "asleep"  # Groups of processes.
asleep.touch()

def ends_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

def wake(groups):
    for group in groups:
        try:
            os.killpg(group, signal.SIGCONT)
        except ProcessLookupError:
            pass  # It has ended, or is no group yet.

def step():
    fcntl.lockf(lock, fcntl.LOCK_EX)
    steps, happened = COUNTERS.unpack_from(shared)
    steps, event = steps + 1, None
    if happened < len(events) and steps >= events[happened][0]:
        event = events[happened][1]
        steps, happened = 0, happened + 1
        if event == "sleeper":
            asleep.write_text(f"{asleep.read_text()} {os.getpgid(0)}")
        elif event == "waker":
            groups = [int(group) for group in asleep.read_text().split()]
            asleep.write_text("")
            wake(groups)
    COUNTERS.pack_into(shared, 0, steps, happened)
    fcntl.lockf(lock, fcntl.LOCK_UN)
    if event == "driver":
        os.kill(0, signal.SIGKILL)
    elif event == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "sleeper":
        os.kill(0, signal.SIGSTOP)

def dies(name, before):
    whole = getattr(KafkaConnection, name)

    def with_step(*arguments):
        if before:
            step()
        answer = whole(*arguments)
        if not before:
            step()
        return answer

    setattr(KafkaConnection, name, with_step)

async def rehearse():
    "What a process loads and compiles with its first requests it has from here then."
    given = {"bootstrap": bootstrap, "topic": "rehearsal", "commitTopic": "rehearsed"}
    writer = FirnStreamWriter(parse_write_options(given, SCHEMA))
    for batch in range(2):
        slot = Slot("run0", 0, True)
        await writer.commit_batch([await writer.write_attempt(rows(0, 1), "query", batch, str(batch), slot=slot)], batch)

asyncio.run(rehearse())
dies("_write", before=False)
dies("_frame_received", before=True)

def in_process(work):
    "What it answers; None if it was killed, and an exception if it raised one."
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        ends_with_parent()
        os.close(reading)
        try:
            answer = asyncio.run(work())
        except Exception as error:
            answer = error
        with open(writing, "wb") as file:
            pickle.dump([answer], file)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data)[0] if data else None

def drive(run_id):
    "One start of the query; answers whether it came to its end."
    attempts = 0
    for batch in range(BATCHES):
        commit = scratch / f"{batch}.commit"
        if commit.exists():
            continue
        messages = []
        for task in range(TASKS):
            message, number = None, 0
            while message is None:
                first = (batch * TASKS + task) * RECORDS
                attempt, slot = f"{run_id}-{task}-{attempts}", Slot(run_id, task, number == 0)
                message = in_process(lambda: writer.write_attempt(
                    rows(first, first + RECORDS), "query", batch, attempt, slot=slot
                ))
                attempts, number = attempts + 1, number + 1
            if isinstance(message, Exception):
                in_process(lambda: writer.abort_batch(messages, batch))
                return False
            messages.append(message)

        async def end():
            await writer.commit_batch(messages, batch)
            return "done"

        if in_process(end) != "done":
            in_process(lambda: writer.abort_batch(messages, batch))
            return False
        commit.touch()
    return True

def start(run_id):
    driver = os.fork()
    if not driver:
        ends_with_parent()
        os.setpgid(0, 0)
        os._exit(0 if drive(run_id) else 1)
    return driver

starts, is_done = 1, False
drivers = {start("run1")}
while drivers:
    if is_done:  # Whoever sleeps still, or falls asleep now, finds everything committed, and can only do harm.
        wake(drivers)
    driver, status = os.waitpid(-1, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, 1, -signal.SIGKILL), code
        drivers.remove(driver)
        is_done |= code == 0
    if not is_done:
        starts += 1
        drivers.add(start(f"run{starts}"))
print(json.dumps([starts, COUNTERS.unpack_from(shared)[1]]))
"""
RECORDS = 8 * 2 * 7


def drawn_events(seed: int) -> list[tuple[int, str]]:
    """After how many steps since the one before, and who dies, falls asleep, or wakes those that sleep."""
    rng = random.Random(seed)
    who = ("driver", "driver", "process", "sleeper", "sleeper", "waker")
    return [(rng.randint(1, STEPS_BETWEEN_MAX), rng.choice(who)) for _ in range(EVENTS)]


async def check(tmp_path: Path, seed: int) -> None:
    events = drawn_events(seed)
    async with running_broker(tmp_path) as broker:
        for topic in ("out", "rehearsal"):
            await broker.create_topic(topic)
        arguments = (broker.bootstrap, str(tmp_path), json.dumps(events))
        done: Any = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-W", "ignore", "-c", STREAM, *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        starts, happened = json.loads(done.stdout)
        assert happened == EVENTS, seed
        assert starts > 1
        await abort_what_is_open(broker)
        assert Counter(await committed(broker)) == Counter(values(0, RECORDS)), seed


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0])
async def test_a_stream_that_is_killed_or_held_up_after_any_request_writes_everything_once(
    tmp_path: Path, seed: int
) -> None:
    await check(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 26))
async def test_a_stream_that_is_killed_or_held_up_after_any_request_writes_everything_once_for_many_seeds(
    tmp_path: Path, seed: int
) -> None:
    await check(tmp_path, seed)
