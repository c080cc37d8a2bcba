"""Many faults on three brokers under clients of all kinds, in rounds, with compaction and tiering under way.

    python -m tests.faults.long_run FOLDER [--faults 100] [--store directory|moto|s3s-fs|MinIO] [--seed 1] [--seconds-max 600]
    python -m tests.faults.long_run --resume FOLDER [--seconds-max 600]

Each round has a new cluster, and faults that its number and the seed choose. In its end everything that was acknowledged is read
and compared; then ``FOLDER/progress.json`` has it. A run that is ended in between (Ctrl-C), or whose time is over, goes on with
``--resume``: a round that was not ended counts for nothing, and is done again. A round that fails keeps its brokers' logs and
directories, and what was acknowledged, in ``FOLDER/round-<number>``. The next ``--resume`` begins the round after it.

In all rounds a producer with ``acks=all`` may not stand still for more than ``--limit-s`` while a majority of brokers is up and
hears each other (``tests.faults.stand_stills``).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from app.metadata.image.records import LEVEL_MAX
from tests.faults import every_load
from tests.faults.every_load import EveryLoad
from tests.faults.served import BUG
from tests.faults.stand_stills import LIMIT_S, Watch, Watched
from tests.support.cluster import STORE, Brokers, Bucket, brokers_running, have_left_the_disks
from tests.support.cluster_faults import Fault, Faults
from tests.support.s3_server import CREDENTIALS, s3_server
from tests.support.waiting import block_until

DIRECTORY: Final = "directory"
STORES: Final = (DIRECTORY, "moto", "s3s-fs", "MinIO")
ROUND: Final = 25
"""Faults of a round: each kind once, and some again."""
TIERED: Final = {
    "remote_storage_enable": "true",
    "segment_ms": "3000",
    "local_retention_ms": "2000",
    "file_delete_delay_ms": "100",
    "retention_ms": "-1",
}
"""Segments roll and leave the disk all the time."""
SETTINGS: Final[Mapping[str, Any]] = every_load.SETTINGS | {"remote_log_manager_task_interval_ms": 200}
ON_DIRECTORY: Final[Mapping[str, Any]] = SETTINGS | {"new_level": LEVEL_MAX}
ON_S3: Final[Mapping[str, Any]] = SETTINGS | {
    "firn_log_dir_free_bytes_min": 0,
    # Twice as many processes share the machine.
    "broker_heartbeat_interval_ms": 500,
    "broker_session_timeout_ms": 3_000,
}


@dataclass
class Round:
    """What came of one."""

    faults: int = 0
    kinds: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """That were acknowledged, by topic."""
    longest: dict[str, str] = field(default_factory=dict)
    """The longest stand-still, by topic."""
    longest_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    counted_s: float = 0.0
    """How long a majority was up and heard each other under the faults."""
    failure: str | None = None


@dataclass
class Progress:
    """What a folder knows of a run."""

    seed: int
    store: str
    faults: int
    """That are wanted."""
    limit_s: float = LIMIT_S
    rounds: list[Round] = field(default_factory=list)

    @property
    def done(self) -> int:
        return sum(one.faults for one in self.rounds)

    @property
    def failures(self) -> int:
        return sum(one.failure is not None for one in self.rounds)

    @classmethod
    def read(cls, folder: Path) -> Progress:
        found = json.loads((folder / "progress.json").read_text())
        return cls(**found | {"rounds": [Round(**one) for one in found["rounds"]]})

    def write(self, folder: Path) -> None:
        new = folder / "progress.json.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(folder / "progress.json")

    def __str__(self) -> str:
        records = sum(sum(one.records.values()) for one in self.rounds)
        counted_s = sum(one.counted_s for one in self.rounds)
        lines = [
            f"{self.done} of {self.faults} faults on {self.store} in {len(self.rounds)} rounds, {records} records",
            f"a majority was up and heard each other for {counted_s:.0f} s under the faults",
        ]
        for topic in sorted({topic for one in self.rounds for topic in one.longest_s}):
            longest = max((one for one in self.rounds if topic in one.longest_s), key=lambda one: one.longest_s[topic])
            lines.append(f"longest of {topic}: {longest.longest[topic]}")
        lines += [f"round {number} failed: {one.failure}" for number, one in enumerate(self.rounds, 1) if one.failure]
        return "\n".join(lines)


@contextmanager
def cluster(path: Path, store: str, settings: Mapping[str, Any]) -> Iterator[Brokers]:
    """Brokers that can be cut off from each other and from the store."""
    if store == DIRECTORY:
        with brokers_running(path, proxied=True, settings={**ON_DIRECTORY, **settings}) as brokers:
            yield brokers
        return
    with s3_server(store, path / "bucket") as s3:
        bucket = Bucket(s3.store_at, s3.port, CREDENTIALS)
        with brokers_running(path, proxied=True, settings={**ON_S3, **settings}, bucket=bucket) as brokers:
            yield brokers


def wait_until_linked(brokers: Brokers) -> None:
    """Until all brokers reach each other, and an S3 server, where they can be cut off."""
    links = brokers.links
    assert links is not None
    ways = [way for way in links.ports if way[0] != STORE]
    block_until(lambda: all(links.carries(way) for way in ways), "all ways are in use")


def usual(faults: Faults, rng: random.Random) -> Sequence[Fault]:
    """Every kind in a new order, kills and isolation more often."""
    found = [*faults.all(), faults.cut_beside_the_controller, faults.kill_in_turn]
    found += [faults.kill, faults.kill_the_controller, faults.isolate]
    return rng.sample(found, len(found))


def do_round(
    path: Path,
    store: str,
    seed: str,
    count: int,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    kinds: Callable[[Faults, random.Random], Sequence[Fault]] = usual,
    limit_s: float = LIMIT_S,
    settings: Mapping[str, Any] | None = None,
) -> Round:
    """So many faults on a new cluster in ``path``, or fewer where ``goes_on`` says no. ``settings`` are of its brokers, beside the
    usual ones. A failure is in what it returns."""
    rng = random.Random(seed)
    found = Round()
    began_s = time.monotonic()
    try:
        with cluster(path, store, settings or {}) as brokers:
            load = EveryLoad(brokers, rng.randrange(1 << 30), tiered=TIERED, one_by_one=store != DIRECTORY)
            wait_until_linked(brokers)
            watch = Watch(brokers, load.counts, limit_s=limit_s)
            faults = Faults(brokers, rng, [Watched(one, watch) for one in load.loads])
            watch.fault = lambda: faults.under_way
            load.know(faults)
            try:
                faults.run(kinds(faults, rng), count, goes_on)
                watch.stop()
                watch.check()
                block_until(lambda: have_left_the_disks(brokers), "what was written first has left all disks")
                load.finish()
            finally:
                watch.stop()
                found.counted_s = round(watch.counted_s, 1)
                found.faults, found.kinds = faults.count, faults.done
                for topic, longest in watch.longest.items():
                    found.longest[topic], found.longest_s[topic] = str(longest), round(longest.lasted_s, 1)
                for (topic, _), records in load.counts().items():
                    found.records[topic] = found.records.get(topic, 0) + records
                (path / "acknowledged.json").write_text(json.dumps(load.book))
                brokers.mend()  # of a fault in which it failed
                load.stop()
            load.check()
            said = "".join(brokers.lines(node_id) for node_id in brokers.nodes)
            assert [line for line in said.splitlines() if BUG.search(line)] == []
    except Exception:  # noqa: BLE001 - whatever it was, the run keeps it, tells it, and goes on with another cluster
        found.failure = traceback.format_exc()
        print(found.failure, flush=True)
    found.seconds = round(time.monotonic() - began_s, 1)
    return found


def run(folder: Path, progress: Progress, seconds_max: float, each: int = ROUND) -> None:
    """Rounds until there were enough faults, or the time is over."""
    end_s = time.monotonic() + seconds_max
    while progress.done < progress.faults and time.monotonic() < end_s:
        number = len(progress.rounds) + 1
        path = folder / f"round-{number}"
        shutil.rmtree(path, ignore_errors=True)  # of a round that was not ended
        path.mkdir(parents=True)
        count = min(each, progress.faults - progress.done)
        print(f"{time.time():.2f} round {number} of seed {progress.seed}: {count} faults", flush=True)
        found = do_round(
            path,
            progress.store,
            f"{progress.seed}/{number}",
            count,
            goes_on=lambda: time.monotonic() < end_s,
            limit_s=progress.limit_s,
        )
        progress.rounds.append(found)
        progress.write(folder)
        if found.failure is None:
            shutil.rmtree(path)
        print(f"{time.time():.2f} round {number}, {found.seconds} s: {found.kinds}\n{progress}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new, or with --resume one of an earlier run")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--store", choices=STORES, default=DIRECTORY)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument(
        "--seconds-max", type=float, default=600.0, help="no fault begins later; the round is ended then"
    )
    parser.add_argument("--round", type=int, default=ROUND, help="faults of a round")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    if given.resume:
        progress = Progress.read(folder)
    else:
        folder.mkdir(parents=True)
        progress = Progress(given.seed, given.store, given.faults, given.limit_s)
        progress.write(folder)
    before = progress.failures
    run(folder, progress, given.seconds_max, given.round)
    return int(progress.failures > before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
