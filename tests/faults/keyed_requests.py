"""Keyed requests over HTTP, in rounds, while the broker, the HTTP process and the store process are killed, and answers are lost.

    python -m tests.faults.keyed_requests FOLDER [--keys 10000] [--durability disk|object] [--seed 1] [--seconds-max 3600]
    python -m tests.faults.keyed_requests --resume FOLDER [--seconds-max 3600]

Each round has a new cluster of one broker. With ``object`` the broker loses its disk at each kill. At the end of a round each key
is stored once for readers of committed records, and each answer to it has the same bytes. Then ``FOLDER/progress.json`` has it. A
run that is ended in between (Ctrl-C), or whose time is over, goes on with ``--resume``: a round that was not ended is done again.
A round that fails ends the run, and keeps its directory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.faults.pipeline import QUIET
from tests.faults.served import HTTP_PROCESS, STORE_PROCESS, Served, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

TOPIC = "orders"
PARTITIONS = 3
CALLERS = 6
LOST_SHARE = 0.2
"""Of requests whose client leaves before the answer."""
REPEATED_SHARE = 0.3
"""Of keys that are asked for again once they are answered."""
BROKER = "broker"
KILLS = (BROKER, HTTP_PROCESS, BROKER, STORE_PROCESS, BROKER, HTTP_PROCESS)
"""Of one round, in this order."""
ANSWER_S = 60.0
READ_S = 180.0
"""A transaction of a killed process is open for a minute at most, and its markers come after it."""
ROUND = 500
"""Keys of a round."""
OBJECT = {"firn.durability": "object", "firn.wal.linger.ms": "20", "remote.storage.enable": "true"}
ON_OBJECT = {"wal.bytes": 256 * 1024, "wal.buffer.bytes": 4 * 1024 * 1024}


def body_of(number: int) -> bytes:
    """A batch with records in two partitions."""
    entries = [
        {
            "id": side,
            "partition_id": (number + place) % PARTITIONS,
            "value": {"type": "STRING", "data": f"{number}{side}"},
        }
        for place, side in enumerate("ab")
    ]
    return json.dumps({"entries": entries}).encode()


class Caller(threading.Thread):
    """Asks for one key after the other, each until it is answered."""

    def __init__(self, port: int, path: str, numbers: list[int], seed: str) -> None:
        super().__init__(daemon=True)  # a round that fails ends the program
        self._port = port
        self._path = path
        self._numbers = numbers
        self._rng = random.Random(seed)
        self._pause = threading.Event()
        self.answers: dict[int, bytes] = {}
        self.lost = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        for number in self._numbers:
            self.answers[number] = self.until_answered(number)
            if self._rng.random() < REPEATED_SHARE and self.until_answered(number) != self.answers[number]:
                self.wrong.append(f"key {number} was answered in two ways")

    def until_answered(self, number: int) -> bytes:
        while True:
            status, answer = self._asked(number)
            if status == 207:
                return answer
            if status not in (0, 409, 503):
                self.wrong.append(f"key {number}: {status} {answer[:300]!r}")
                return answer
            self._pause.wait(0.05)

    def _asked(self, number: int) -> tuple[int, bytes]:
        """Status and body of an answer; status 0 if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        headers = {"content-type": "application/json", "idempotency-key": f"key-{number}"}
        try:
            connection.request("POST", self._path, body_of(number), headers)
            if self._rng.random() < LOST_SHARE:
                self.lost += 1
                return 0, b""
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def get(port: int, path: str, body: bytes | None = None) -> bytes | None:
    """An answer with a status below 300; None if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        return content if response.status < 300 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def committed(broker: Served) -> Counter[bytes]:
    """The values that a reader of committed records gets."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "check", "isolation.level": "read_committed"} | QUIET
    )
    found: Counter[bytes] = Counter()
    places = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
    # The end for all readers: a transaction of a killed process is open until its time-out ends it.
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "ends", "isolation.level": "read_uncommitted"}
    everything = Consumer(settings | QUIET)
    ends = {place.partition: everything.get_watermark_offsets(place, 30)[1] for place in places}
    everything.close()
    consumer.assign(places)

    def read_all() -> bool:
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            found[message.value() or b""] += 1
        return all(one.offset >= ends[one.partition] for one in consumer.position(places))

    block_until(read_all, "the topic is read to its end", READ_S)
    consumer.close()
    return found


def do_round(path: Path, keys: int, seed: str, *, wiped: bool = False) -> None:
    """Ask for so many keys on a new cluster, and check their answers and records. ``wiped``: all topics are ``object``, and the
    broker has an empty disk after each kill. Raises: AssertionError."""
    port = free_port()
    arguments = ["--listen", f"127.0.0.1:{free_port()}", *(["--take-over"] if wiped else [])]
    settings = ON_OBJECT if wiped else {}
    with serving(path, *arguments, http=f"127.0.0.1:{port}", settings=settings) as broker:
        answered: Callable[[], bytes | None] = lambda: get(port, "/v3/clusters")  # noqa: E731
        clusters = json.loads(block_until(answered, "HTTP answers", 60))
        topics = f"/v3/clusters/{clusters['data'][0]['cluster_id']}/topics"
        configs = [{"name": name, "value": value} for name, value in OBJECT.items()] if wiped else []
        made = json.dumps({"topic_name": TOPIC, "partitions_count": PARTITIONS, "configs": configs}).encode()
        block_until(lambda: get(port, topics, made), "the topic is made", 60)
        url = f"{topics}/{TOPIC}/records:batch"
        callers = [
            Caller(port, url, list(range(first, keys, CALLERS)), seed=f"{seed}/{first}") for first in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        count: Callable[[], int] = lambda: sum(len(caller.answers) for caller in callers)  # noqa: E731
        for place, victim in enumerate(KILLS, 1):
            wanted = keys * place // (len(KILLS) + 1)
            block_until(lambda wanted=wanted: count() >= wanted, f"{wanted} keys are answered", 600)
            if victim == BROKER:
                broker.kill()
                if wiped:
                    shutil.rmtree(broker.data_dir)
                broker.start()
            else:
                broker.kill_child(victim)
        for caller in callers:
            caller.join(1_200)
            assert not caller.is_alive(), f"{count()} of {keys} keys are answered"
        assert [one for caller in callers for one in caller.wrong] == []
        assert sum(caller.lost for caller in callers) > 0
        answers = {number: answer for caller in callers for number, answer in caller.answers.items()}
        last = Caller(port, url, [], seed=seed)
        for number in range(0, keys, 10):
            assert last.until_answered(number) == answers[number], number
        assert committed(broker) == Counter(f"{number}{side}".encode() for number in range(keys) for side in "ab")


@dataclass
class KeysDone:
    """What a folder knows of a run."""

    seed: int
    wiped: bool
    keys: int
    """That are wanted."""
    done: int = 0
    rounds: int = 0

    @classmethod
    def read(cls, folder: Path) -> KeysDone:
        return cls(**json.loads((folder / "progress.json").read_text()))

    def write(self, folder: Path) -> None:
        new = folder / "progress.json.new"
        new.write_text(json.dumps(asdict(self)))
        new.replace(folder / "progress.json")


def run(folder: Path, progress: KeysDone, seconds_max: float, each: int = ROUND) -> None:
    """Rounds until there were enough keys. No round begins after ``seconds_max``. Raises: AssertionError."""
    end_s = time.monotonic() + seconds_max
    while progress.done < progress.keys and time.monotonic() < end_s:
        path = folder / f"round-{progress.rounds + 1}"
        shutil.rmtree(path, ignore_errors=True)  # of a round that was not ended
        path.mkdir(parents=True)
        count = min(each, progress.keys - progress.done)
        do_round(path, count, f"{progress.seed}/{progress.rounds + 1}", wiped=progress.wiped)
        progress.done += count
        progress.rounds += 1
        progress.write(folder)
        shutil.rmtree(path)
        print(f"{time.time():.2f} round {progress.rounds}: {progress.done} of {progress.keys} keys", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new, or with --resume one of an earlier run")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--durability", choices=("disk", "object"), default="disk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds-max", type=float, default=3_600.0, help="no round begins later")
    parser.add_argument("--round", type=int, default=ROUND, help="keys of a round")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    if given.resume:
        progress = KeysDone.read(folder)
    else:
        folder.mkdir(parents=True)
        progress = KeysDone(given.seed, given.durability == "object", given.keys)
        progress.write(folder)
    run(folder, progress, given.seconds_max, given.round)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
