"""``make soak``: one broker writes, tiers, replays and expires with faults for a while; every record is accounted for.

    python -m loadtests.soak [--minutes 10] [--seed 1] [--json FILE]

Two topics are produced to and read, from the end and from the start, while their segments roll, go to a local S3 server, leave
the local disk, and expire. In the first half the broker is killed, stopped in order and started again, its store process is
killed, and the S3 server hangs for seconds. In the second half nothing is restarted but the S3 server still hangs: there
memory, descriptors and lag must be flat. Then everything is read back and held against what was acknowledged, and
``firn verify`` proves the bucket. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.lab import TIER_AT_ONCE
from loadtests.measuring import make_topic
from loadtests.processes import children, descriptors, family, memory_mb
from loadtests.soak_clients import NOT_ACKNOWLEDGED, Book, Producing, Replaying, Tailing, Worker, Wrong, read_partition
from loadtests.start_up import S3_ENVIRONMENT, s3_url
from loadtests.system import ROOT, System, free_port

KEPT = Book("kept", 4)
EXPIRING = Book("expiring", 2)
RECORDS_PER_S = 1_000
"""Of each topic, of 1,000 bytes."""
SEGMENT_BYTES = 2 << 20
RETENTION_MS = 20_000
SETTINGS = TIER_AT_ONCE | {"firn.chunk.cache.bytes": str(32 << 20)}
"""With a cache that is full soon: each chunk in it may hold a descriptor, and what is kept grows as long as the soak goes on."""
REPLAY_PAUSE_S = 2.0
SAMPLE_S = 1.0
FAULT_PAUSE_S = (8.0, 16.0)
S3_HANG_S = (1.0, 6.0)
WARM_UP_SHARE = 0.25
"""Of the calm half, before anything is compared."""
GROWTH_MB = 12.0
GROWTH_SHARE = 0.10
DESCRIPTORS_GROWTH = 30
LAG_RECORDS_MAX = 5 * RECORDS_PER_S
QUIET_TIMEOUT_S = 90.0
VERDICT = "OK: every record is accounted for; memory, descriptors and lag were flat in the calm half; firn verify found nothing"


@dataclass(slots=True)
class Sample:
    """One second of one incarnation of the broker."""

    at_s: float
    incarnation: int
    calm: bool
    broker_mb: float
    store_mb: float
    descriptors: int
    lag_records: int
    local_mb: float


@dataclass(slots=True)
class Outcome:
    """What the soak found."""

    wrong: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


class Soaked:
    """The broker, and what is done to it."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory, self.rng = directory, rng
        self.port = free_port()
        self.incarnation = 0
        self.system: System | None = None
        self._running = ExitStack()
        self._s3 = subprocess.Popen(
            [sys.executable, "-m", "loadtests.slow_s3", str(directory / "bucket"), "--delay-ms", "5"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._s3.stdout is not None
        self.store = s3_url(f"http://127.0.0.1:{int(self._s3.stdout.readline())}")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.incarnation += 1
        self.system = self._running.enter_context(
            firn_running(
                self.directory, settings=SETTINGS, store=self.store, environment=S3_ENVIRONMENT, port=self.port
            )
        )

    def stop(self) -> None:
        self.system = None
        self._running.close()
        self._running = ExitStack()

    def close(self) -> None:
        self.stop()
        self._s3.send_signal(signal.SIGCONT)
        self._s3.kill()
        self._s3.communicate()

    def restart_in_order(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        assert self.system is not None
        os.kill(self.system.pid, signal.SIGKILL)
        self.restart_in_order()

    def kill_store_process(self) -> None:
        assert self.system is not None
        for child in children(self.system.pid):
            os.kill(child, signal.SIGKILL)

    def hang_s3(self) -> None:
        self._s3.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(*S3_HANG_S))
        self._s3.send_signal(signal.SIGCONT)


class Watch(Worker):
    """Takes a sample every second."""

    def __init__(self, soaked: Soaked, tails: list[Tailing], outcome: Outcome) -> None:
        super().__init__("watch")
        self.calm = False
        self._soaked, self._tails, self._outcome = soaked, tails, outcome
        self._began = time.monotonic()

    def run(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            system = self._soaked.system
            if system is None:
                continue
            try:
                sample = Sample(
                    at_s=round(time.monotonic() - self._began, 1),
                    incarnation=self._soaked.incarnation,
                    calm=self.calm,
                    broker_mb=memory_mb(system.pid),
                    store_mb=sum(memory_mb(child) for child in children(system.pid)),
                    descriptors=sum(descriptors(member) for member in family(system.pid)),
                    lag_records=sum(tail.lag for tail in self._tails),
                    local_mb=sum(path.stat().st_size for path in system.logs.glob("*/*.log")) / 1e6,
                )
            except (FileNotFoundError, ProcessLookupError, ValueError):
                continue  # it ended between two looks
            self._outcome.samples.append(sample)


def soak(directory: Path, seconds: float, rng: random.Random) -> Outcome:
    """Run it. Raises: SystemFailed if the broker does not start."""
    outcome = Outcome()
    soaked = Soaked(directory, rng)
    try:
        soaked.start()
        assert soaked.system is not None
        common = {"segment_bytes": str(SEGMENT_BYTES), "local_retention_ms": "2000"}
        make_topic(soaked.system, KEPT.topic, KEPT.partitions, retention_ms="-1", **common)
        make_topic(
            soaked.system,
            EXPIRING.topic,
            EXPIRING.partitions,
            retention_ms=str(RETENTION_MS),
            firn_remote_delete_delay_ms="2000",
            **common,
        )
        producers = [Producing(soaked.bootstrap, book, RECORDS_PER_S) for book in (KEPT, EXPIRING)]
        tails = [Tailing(soaked.bootstrap, book) for book in (KEPT, EXPIRING)]
        replay = Replaying(soaked.bootstrap, KEPT, REPLAY_PAUSE_S)
        watch = Watch(soaked, tails, outcome)
        clients = [*producers, *tails, replay, watch]
        for client in clients:
            client.start()
        began = time.monotonic()
        faults: dict[str, Callable[[], None]] = {
            "kill -9": soaked.kill,
            "restart in order": soaked.restart_in_order,
            "kill -9 of the store process": soaked.kill_store_process,
            "S3 hangs": soaked.hang_s3,
        }
        while (elapsed := time.monotonic() - began) < seconds:
            watch.calm = elapsed > seconds / 2
            time.sleep(min(rng.uniform(*FAULT_PAUSE_S), max(0.0, seconds - elapsed)))
            if any(tail.wrong for tail in tails) or replay.wrong:
                break
            name = "S3 hangs" if time.monotonic() - began > seconds / 2 else rng.choice(list(faults))
            print(f"{time.monotonic() - began:>6.0f} s  {name}", flush=True)
            faults[name]()
            outcome.faults[name] = outcome.faults.get(name, 0) + 1
        for client in (*producers, watch, replay):
            client.stop()
        _settle(outcome, tails)
        for tail in tails:
            tail.stop()
        outcome.wrong += [wrong for wrong in (*(tail.wrong for tail in tails), replay.wrong) if wrong]
        outcome.wrong += [error for book in (KEPT, EXPIRING) for error in book.errors[:3]]
        outcome.facts |= {
            "produced": sum(len(book.offsets) for book in (KEPT, EXPIRING)),
            "acknowledged": sum(book.acknowledged for book in (KEPT, EXPIRING)),
            "read at the end of the log": sum(tail.read for tail in tails),
            "replays of a partition": replay.replays,
            "records replayed": replay.read,
        }
        for book in (KEPT, EXPIRING):
            _account(soaked, book, outcome)
        outcome.wrong += flatness(outcome)
        soaked.stop()
        _verify_bucket(soaked, outcome)
    finally:
        soaked.close()
    return outcome


def _settle(outcome: Outcome, tails: list[Tailing]) -> None:
    """Wait until the tails have read what was acknowledged; of what expires some may have gone before it was read."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while tails[0].lag and tails[0].wrong is None:
        if time.monotonic() > deadline:
            outcome.wrong.append(f"the tail of {tails[0].book.topic} is {tails[0].lag} records behind and stays there")
            return
        time.sleep(0.2)


def _account(soaked: Soaked, book: Book, outcome: Outcome) -> None:
    """Read everything that is there; every record acknowledged at or above the log start must be at its offset."""
    missing = unacknowledged = expired = there = 0
    for partition in range(book.partitions):
        try:
            start, found = read_partition(soaked.bootstrap, book, partition)
        except Wrong as wrong:
            outcome.wrong.append(str(wrong))
            continue
        first = min(found.values(), default=start)
        there += len(found)
        for sequence in range(partition, len(book.offsets), book.partitions):
            offset = book.offsets[sequence]
            if offset == NOT_ACKNOWLEDGED:
                unacknowledged += sequence in found
            elif offset < first:
                expired += 1
            elif found.get(sequence) != offset:
                missing += 1
        if book is KEPT and start:
            outcome.wrong.append(f"{book.topic}-{partition} begins at {start}, though nothing of it expires")
    outcome.facts |= {
        f"{book.topic}: there at the end": there,
        f"{book.topic}: expired": expired,
        f"{book.topic}: there, but never acknowledged": unacknowledged,
        f"{book.topic}: acknowledged and missing": missing,
    }
    if missing:
        outcome.wrong.append(f"{missing} acknowledged records of {book.topic} are not where they were")
    if book is EXPIRING and not expired:
        outcome.wrong.append(f"nothing of {book.topic} expired")


def flatness(outcome: Outcome) -> list[str]:
    """What grew in the calm half: the last quarter of its samples against the first, after a warm-up."""
    calm = [sample for sample in outcome.samples if sample.calm]
    calm = calm[int(len(calm) * WARM_UP_SHARE) :]
    quarter = len(calm) // 4
    if quarter < 5:
        return ["the calm half was too short to say whether anything grows"]
    wrong = []
    for what, room in (("broker_mb", GROWTH_MB), ("store_mb", GROWTH_MB), ("descriptors", DESCRIPTORS_GROWTH)):
        first, last = (statistics.median(getattr(s, what) for s in part) for part in (calm[:quarter], calm[-quarter:]))
        outcome.facts[f"{what}, calm half: first quarter"] = first
        outcome.facts[f"{what}, calm half: last quarter"] = last
        if last > first + max(room, first * GROWTH_SHARE):
            wrong.append(f"{what} grew from {first:.0f} to {last:.0f} in the calm half")
    lag = statistics.median(sample.lag_records for sample in calm[-quarter:])
    outcome.facts["lag of the tails, records, last quarter"] = lag
    if lag > LAG_RECORDS_MAX:
        wrong.append(f"the tails are {lag:.0f} records behind")
    return wrong


def _verify_bucket(soaked: Soaked, outcome: Outcome) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "verify", "--store", soaked.store],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(os.environ) | S3_ENVIRONMENT,
        check=False,
    )
    outcome.facts["firn verify: exit code"] = done.returncode
    if done.returncode:
        outcome.wrong.append(f"firn verify: {(done.stdout + done.stderr).strip()[-300:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the choice of faults")
    parser.add_argument("--directory", type=Path, help="where to keep data meanwhile")
    parser.add_argument("--json", type=Path, help="write what was found, with a sample a second")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    directory = Path(tempfile.mkdtemp(prefix="firn-soak-", dir=arguments.directory))
    outcome = Outcome()
    try:
        outcome = soak(directory, arguments.minutes * 60, random.Random(arguments.seed))
    finally:
        if outcome.wrong:
            print(f"kept for a look: {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print()
    for name, count in outcome.faults.items():
        print(f"{name:<50} {count:>12,}")
    for name, value in outcome.facts.items():
        print(f"{name:<50} {value:>12,.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    for line in outcome.wrong:
        print(f"WRONG: {line}")
    print(VERDICT if not outcome.wrong else "FAILED", flush=True)
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
