"""``make soak``: one broker under all kinds of use, with faults, for a while; every record is accounted for.

    python -m loadtests.soak [--minutes 10] [--seed 1] [--json FILE]

Records are produced and read from the end and from the start, while their segments roll, go to a local S3 server, leave the
local disk, and expire. Beside that there are consumer groups of both protocols, transactions, a compacted topic, a share group
and HTTP, each a workload with a line of its own at the end. In the first half the broker is killed, stopped in order and started
again, the processes beside it are killed, and the S3 server hangs for seconds. In the second half nothing is restarted but the
S3 server still hangs: there memory, descriptors and lag must be flat. Then everything is read back and held against what was
acknowledged, and ``firn verify`` proves the bucket. Exits with 1 if anything is wrong.
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
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.lab import TIER_AT_ONCE
from loadtests.measuring import make_topic
from loadtests.processes import children, descriptors, family, memory_mb
from loadtests.soak_books import NOT_ACKNOWLEDGED, Book, Wrong
from loadtests.soak_clients import Producing, Replaying, Tailing, Worker, Workload, read_partition
from loadtests.soak_compaction import Compaction
from loadtests.soak_groups import Groups
from loadtests.soak_http import Rest
from loadtests.soak_shares import Shares
from loadtests.soak_transactions import Transactions
from loadtests.start_up import S3_ENVIRONMENT, s3_url
from loadtests.system import ROOT, STOP_TIMEOUT_S, System, free_port

RECORDS_PER_S = 1_000
"""Of each topic, of 1,000 bytes."""
SEGMENT_BYTES = 2 << 20
RETENTION_MS = 20_000
SETTINGS = TIER_AT_ONCE | {
    "firn.chunk.cache.bytes": str(32 << 20),
    "log.cleaner.backoff.ms": "2000",
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.delivery.count.limit": "10",
}
"""With a cache that is full soon: each chunk in it may hold a descriptor, and what is kept grows as long as the soak goes on.
Members are missed soon, and a record may be released many times."""
REPLAY_PAUSE_S = 2.0
SLOW_STEP_S = 10.0
"""Longer steps at the end are told of, while they are waited for."""
SAMPLE_S = 1.0
FAULT_PAUSE_S = (8.0, 16.0)
FAULT_PAUSE_SHARE = 0.2
"""Of the first half, at most: so that a short soak has every fault too."""
S3_HANG_S = (1.0, 6.0)
WARM_UP_SHARE = 0.25
"""Of the calm half, before anything is compared."""
GROWTH_MB = 12.0
GROWTH_SHARE = 0.10
DESCRIPTORS_GROWTH = 30
CLEANER_MB_MAX = 256.0
"""The cleaner process comes when there is something to compact, so that its memory has a limit instead of a growth."""
BESIDE = {
    "app.tiering.store.store_process": "store_mb",
    "app.http": "http_mb",
    "app.hot.cleaning.process": "cleaner_mb",
}
"""Module of a process beside the broker to its figure."""
LAG_RECORDS_MAX = 5 * RECORDS_PER_S
VERDICT = "OK: every record is accounted for; memory, descriptors and lag were flat in the calm half; firn verify found nothing"
SHORT_MINUTES = 3.0
"""A shorter soak does not say that nothing expired: a segment has to roll, to be uploaded and to grow old first."""


@dataclass(slots=True)
class Sample:
    """One second of one incarnation of the broker."""

    at_s: float
    incarnation: int
    calm: bool
    broker_mb: float
    store_mb: float
    http_mb: float
    cleaner_mb: float
    """0 while there is no such process."""
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
    lines: list[str] = field(default_factory=list)
    """One of each workload."""


class Soaked:
    """The broker, and what is done to it."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory, self.rng = directory, rng
        self.port, self.http_port = free_port(), free_port()
        self.incarnation = 0
        self.slowest_stop_s = 0.0
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
                self.directory,
                settings=SETTINGS,
                store=self.store,
                environment=S3_ENVIRONMENT,
                port=self.port,
                http=f"127.0.0.1:{self.http_port}",
            )
        )

    def stop(self) -> None:
        """In order; ``slowest_stop_s`` tells of a broker that had to be killed for it."""
        self.system = None
        began = time.monotonic()
        self._running.close()
        self.slowest_stop_s = max(self.slowest_stop_s, time.monotonic() - began)
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

    def kill_others(self) -> None:
        """Its store, HTTP and cleaner processes."""
        assert self.system is not None
        for child in children(self.system.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def hang_s3(self) -> None:
        self._s3.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(*S3_HANG_S))
        self._s3.send_signal(signal.SIGCONT)


def memory_beside(broker: int) -> dict[str, float]:
    """MB of each kind of process that a broker has beside it."""
    held = dict.fromkeys(BESIDE.values(), 0.0)
    for child in children(broker):
        command = Path(f"/proc/{child}/cmdline").read_bytes().decode()
        for module, what in BESIDE.items():
            if module in command:
                held[what] += memory_mb(child)
    return held


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
                    **memory_beside(system.pid),
                    descriptors=sum(descriptors(member) for member in family(system.pid)),
                    lag_records=sum(tail.lag for tail in self._tails),
                    local_mb=sum(path.stat().st_size for path in system.logs.glob("*/*.log")) / 1e6,
                )
            except (FileNotFoundError, ProcessLookupError, ValueError):
                continue  # it ended between two looks
            self._outcome.samples.append(sample)


class Logs(Workload):
    """Two topics, one of which expires, that are produced to, read from their ends, and replayed."""

    name = "logs"

    def __init__(self, bootstrap: str, *, short: bool) -> None:
        super().__init__()
        self.books = (Book("kept", 4), Book("expiring", 2))
        self._bootstrap, self._short = bootstrap, short
        self._producers = [Producing(bootstrap, book, RECORDS_PER_S) for book in self.books]
        self.tails = [Tailing(bootstrap, book) for book in self.books]
        self._replay = Replaying(bootstrap, self.books[0], REPLAY_PAUSE_S)
        self.watched = (*self.tails, self._replay)
        self._there = self._expired = self._unacknowledged = 0

    def prepare(self, system: System) -> None:
        common = {"segment_bytes": str(SEGMENT_BYTES), "local_retention_ms": "2000"}
        kept, expiring = self.books
        make_topic(system, kept.topic, kept.partitions, retention_ms="-1", **common)
        make_topic(
            system,
            expiring.topic,
            expiring.partitions,
            retention_ms=str(RETENTION_MS),
            firn_remote_delete_delay_ms="2000",
            **common,
        )

    def start(self) -> None:
        for worker in (*self._producers, *self.tails, self._replay):
            worker.start()

    def stop_writing(self) -> None:
        for worker in (*self._producers, self._replay):
            worker.stop()
        self.wrong += [error for book in self.books for error in book.errors[:3]]

    def settle(self) -> None:
        """Of what expires some may have gone before it was read."""
        tail = self.tails[0]

        self.wait_until(
            lambda: not tail.lag, lambda: f"the tail of {tail.book.topic} is {tail.lag} records behind and stays there"
        )

    def finish(self) -> None:
        for tail in self.tails:
            tail.stop()
        self.gather()
        for book in self.books:
            self._account(book)

    def _account(self, book: Book) -> None:
        """Read everything that is there; every record acknowledged at or above the log start must be at its offset."""
        missing = expired = 0
        for partition in range(book.partitions):
            try:
                start, found = read_partition(self._bootstrap, book, partition)
            except Wrong as wrong:
                self.wrong.append(str(wrong))
                continue
            first = min(found.values(), default=start)
            self._there += len(found)
            for sequence in range(partition, len(book.offsets), book.partitions):
                offset = book.offsets[sequence]
                if offset == NOT_ACKNOWLEDGED:
                    self._unacknowledged += sequence in found
                elif offset < first:
                    expired += 1
                elif found.get(sequence) != offset:
                    missing += 1
            if book is self.books[0] and start:
                self.wrong.append(f"{book.topic}-{partition} begins at {start}, though nothing of it expires")
        self._expired += expired
        if missing:
            self.wrong.append(f"{missing} acknowledged records of {book.topic} are not where they were")
        if book is self.books[1] and not expired and not self._short:
            self.wrong.append(f"nothing of {book.topic} expired")

    def counts(self) -> dict[str, int]:
        return {
            "acknowledged": sum(book.acknowledged for book in self.books),
            "read as they came": sum(tail.read for tail in self.tails),
            "replayed": self._replay.read,
            "there at the end": self._there,
            "of them never acknowledged": self._unacknowledged,
            "expired": self._expired,
        }


def soak(directory: Path, seconds: float, seed: int) -> Outcome:
    """Run it. Raises: SystemFailed if the broker does not start."""
    outcome, rng = Outcome(), random.Random(seed)
    soaked = Soaked(directory, rng)
    try:
        soaked.start()
        assert soaked.system is not None
        logs = Logs(soaked.bootstrap, short=seconds < SHORT_MINUTES * 60)
        workloads: list[Workload] = [
            logs,
            Groups(soaked.bootstrap, seed),
            Transactions(soaked.bootstrap, seed),
            Compaction(soaked.bootstrap, seed),
            Shares(soaked.bootstrap, seed),
            Rest(soaked.bootstrap, ("127.0.0.1", soaked.http_port), seed),
        ]
        for workload in workloads:
            workload.prepare(soaked.system)
        for workload in workloads:
            workload.start()
        watch = Watch(soaked, logs.tails, outcome)
        watch.start()
        _disturb(soaked, watch, workloads, outcome, seconds, rng)
        watch.stop()
        for step in ("stop_writing", "settle", "finish"):
            for workload in workloads:
                began = time.monotonic()
                getattr(workload, step)()
                if (took := time.monotonic() - began) > SLOW_STEP_S:
                    print(f"{workload.name}: {step.replace('_', ' ')} took {took:.0f} s", flush=True)
        for workload in workloads:
            outcome.wrong += workload.wrong
            outcome.lines.append(workload.line())
            outcome.facts |= {f"{workload.name}: {what}": count for what, count in workload.counts().items()}
        outcome.wrong += flatness(outcome)
        soaked.stop()
        outcome.facts["slowest stop in order, s"] = soaked.slowest_stop_s
        if soaked.slowest_stop_s >= STOP_TIMEOUT_S:
            outcome.wrong.append(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s and was killed")
        _verify_bucket(soaked, outcome)
    finally:
        soaked.close()
    return outcome


def _disturb(
    soaked: Soaked, watch: Watch, workloads: list[Workload], outcome: Outcome, seconds: float, rng: random.Random
) -> None:
    """Faults of all kinds in the first half, by turns in an order by chance, each at least once; then only those of the S3 server.
    Ends early if something is found wrong."""
    faults: dict[str, Callable[[], None]] = {
        "kill -9": soaked.kill,
        "restart in order": soaked.restart_in_order,
        "kill -9 of the processes beside it": soaked.kill_others,
        "S3 hangs": soaked.hang_s3,
    }
    longest = min(FAULT_PAUSE_S[1], seconds / 2 * FAULT_PAUSE_SHARE)
    shortest = longest * FAULT_PAUSE_S[0] / FAULT_PAUSE_S[1]
    began = time.monotonic()
    turns: list[str] = []
    end = began + seconds
    while (now := time.monotonic()) < end:
        if not watch.calm and now > began + seconds / 2 and len(outcome.faults) == len(faults):
            watch.calm, end = True, now + seconds / 2
        elif not watch.calm:
            end = now + seconds  # the calm half is still to come
        time.sleep(min(rng.uniform(shortest, longest), max(0.0, end - now)))
        if any(workload.wrong_so_far() for workload in workloads):
            return
        if not turns:
            turns = rng.sample(list(faults), len(faults))
        name = "S3 hangs" if watch.calm else turns.pop()
        print(f"{time.monotonic() - began:>6.0f} s  {name}", flush=True)
        faults[name]()
        outcome.faults[name] = outcome.faults.get(name, 0) + 1


def flatness(outcome: Outcome) -> list[str]:
    """What grew in the calm half: the last quarter of its samples against the first, after a warm-up."""
    calm = [sample for sample in outcome.samples if sample.calm]
    calm = calm[int(len(calm) * WARM_UP_SHARE) :]
    quarter = len(calm) // 4
    if quarter < 5:
        return ["the calm half was too short to say whether anything grows"]
    wrong = []
    for what, room in (
        ("broker_mb", GROWTH_MB),
        ("store_mb", GROWTH_MB),
        ("http_mb", GROWTH_MB),
        ("descriptors", DESCRIPTORS_GROWTH),
    ):
        first, last = (statistics.median(getattr(s, what) for s in part) for part in (calm[:quarter], calm[-quarter:]))
        outcome.facts[f"{what}, calm half: first quarter"] = first
        outcome.facts[f"{what}, calm half: last quarter"] = last
        if last > first + max(room, first * GROWTH_SHARE):
            wrong.append(f"{what} grew from {first:.0f} to {last:.0f} in the calm half")
    cleaner_mb = max(sample.cleaner_mb for sample in calm)
    outcome.facts["cleaner_mb, calm half: highest"] = cleaner_mb
    if cleaner_mb > CLEANER_MB_MAX:
        wrong.append(f"the cleaner process held {cleaner_mb:.0f} MB")
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
        outcome = soak(directory, arguments.minutes * 60, arguments.seed)
    finally:
        if outcome.wrong:
            print(f"kept for a look: {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print()
    for name, count in outcome.faults.items():
        print(f"{name:<50} {count:>12,}")
    for name, value in outcome.facts.items():
        if not any(name.startswith(f"{line[6:].partition('  ')[0].strip()}: ") for line in outcome.lines):
            print(f"{name:<50} {value:>12,.0f}")
    print()
    for line in outcome.lines:
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    for line in outcome.wrong:
        print(f"WRONG: {line}")
    print(VERDICT if not outcome.wrong else "FAILED", flush=True)
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
