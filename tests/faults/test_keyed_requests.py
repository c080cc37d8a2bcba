"""Keyed requests over HTTP while the broker, the HTTP process and the store process are killed, and answers are lost (ADR 0043).

Each key is stored once for readers of committed records, and each answer to it has the same bytes.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.faults.pipeline import QUIET
from tests.faults.served import Served, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

TOPIC = "orders"
PARTITIONS = 3
KEYS = 240
CALLERS = 6
LOST_SHARE = 0.2
"""Of requests whose client leaves before the answer."""
REPEATED_SHARE = 0.3
"""Of keys that are asked for again once they are answered."""
KILLS = ("broker", "app.http", "broker", "app.tiering.store.store_process", "broker", "app.http")
ANSWER_S = 60.0


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

    def __init__(self, port: int, path: str, numbers: list[int], seed: int) -> None:
        super().__init__()
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

    block_until(read_all, "the topic is read to its end", 120)
    consumer.close()
    return found


@pytest.mark.ci
def test_each_key_is_stored_once_and_answered_alike_while_processes_are_killed(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, "--listen", f"127.0.0.1:{free_port()}", http=f"127.0.0.1:{port}") as broker:
        answered: Callable[[], bytes | None] = lambda: get(port, "/v3/clusters")  # noqa: E731
        clusters = json.loads(block_until(answered, "HTTP answers", 60))
        topics = f"/v3/clusters/{clusters['data'][0]['cluster_id']}/topics"
        made = json.dumps({"topic_name": TOPIC, "partitions_count": PARTITIONS}).encode()
        block_until(lambda: get(port, topics, made), "the topic is made", 60)
        path = f"{topics}/{TOPIC}/records:batch"
        callers = [Caller(port, path, list(range(first, KEYS, CALLERS)), seed=first) for first in range(CALLERS)]
        for caller in callers:
            caller.start()
        count: Callable[[], int] = lambda: sum(len(caller.answers) for caller in callers)  # noqa: E731
        for place, victim in enumerate(KILLS, 1):
            wanted = KEYS * place // (len(KILLS) + 1)
            block_until(lambda wanted=wanted: count() >= wanted, f"{wanted} keys are answered", 300)
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                broker.kill_child(victim)
        for caller in callers:
            caller.join(600)
            assert not caller.is_alive(), f"{count()} of {KEYS} keys are answered"
        assert [one for caller in callers for one in caller.wrong] == []
        assert sum(caller.lost for caller in callers) > 0
        answers = {number: answer for caller in callers for number, answer in caller.answers.items()}
        last = Caller(port, path, [], seed=KEYS)
        for number in range(0, KEYS, 10):
            assert last.until_answered(number) == answers[number], number
        assert committed(broker) == Counter(f"{number}{side}".encode() for number in range(KEYS) for side in "ab")
