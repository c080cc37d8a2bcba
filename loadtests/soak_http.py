"""The soak's HTTP client: JSON records over REST v3, one request after another, and questions about the topic."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

from loadtests.soak_books import RestBook, Wrong
from loadtests.soak_clients import Worker, Workload, make_rolling_topic, read_to_end
from loadtests.system import System

PAUSE_S = 0.05
RECORDS_MAX = 5
"""In one request."""
QUESTION_EVERY = 10
TIMEOUT_S = 20.0
AWAY_PAUSE_S = 0.2
LAST_TRIES = 200


class RestClient(Worker):
    """Sends some records in each request; what has no receipt is sent again, until it has one."""

    def __init__(self, address: tuple[str, int], book: RestBook, seed: int) -> None:
        super().__init__("REST client")
        self.book = book
        self._address, self._rng = address, random.Random(seed)
        self._connection: http.client.HTTPConnection | None = None
        self._path = ""

    def run(self) -> None:
        pending: list[int] = []
        requests = tries = 0
        try:
            while pending or not self._ending.wait(PAUSE_S):
                if not pending:
                    count = self._rng.randint(1, RECORDS_MAX)
                    pending = list(range(self.book.asked, self.book.asked + count))
                    self.book.asked += count
                requests += 1
                try:
                    if not self._path or requests % QUESTION_EVERY == 0:
                        self._question()
                    pending = self._send(pending)
                    tries = 0
                except (OSError, http.client.HTTPException, ValueError, KeyError):
                    self._forget()
                    self.book.retried += len(pending)
                    tries += 1
                    if self._ending.wait(AWAY_PAUSE_S) and tries > LAST_TRIES:
                        self.book.errors.append(f"{self.book.topic}: HTTP gives no receipt for records {pending}")
                        return
        except Wrong as wrong:
            self.wrong = str(wrong)
        finally:
            self._forget()

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise ValueError(f"{path} answers {answer.status}")
        return found

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _question(self) -> None:
        """About the topic. Raises: Wrong if the answer is of another."""
        cluster = json.loads(self._ask("GET", "/v3/clusters"))["data"][0]["cluster_id"]
        self._path = f"/v3/clusters/{cluster}/topics/{self.book.topic}"
        answer = json.loads(self._ask("GET", self._path))
        if (answer["topic_name"], answer["partitions_count"]) != (self.book.topic, self.book.partitions):
            raise Wrong(f"HTTP tells of topic {self.book.topic}: {answer}")
        self.book.reads += 1

    def _send(self, numbers: list[int]) -> list[int]:
        """The numbers that got no receipt."""
        body = "".join(
            json.dumps({"partition_id": n % self.book.partitions, "value": {"type": "JSON", "data": self.book.data(n)}})
            for n in numbers
        )
        left = []
        receipts = list(documents(self._ask("POST", f"{self._path}/records", body).decode()))
        for place, number in enumerate(numbers):
            receipt = receipts[place] if place < len(receipts) else {}
            if receipt.get("error_code") == 200:
                self.book.receipt(number, int(receipt["partition_id"]), int(receipt["offset"]))
            else:
                left.append(number)
        self.book.retried += len(left)
        return left


def documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, one after the other. Raises: ValueError."""
    decoder, place = json.JSONDecoder(), 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        found, place = decoder.raw_decode(text, place)
        yield found


class Rest(Workload):
    """One topic that is written over HTTP and read by a consumer at the end."""

    name = "HTTP"

    def __init__(self, bootstrap: str, address: tuple[str, int], seed: int) -> None:
        super().__init__()
        self.book = RestBook("rest", 2)
        self._bootstrap = bootstrap
        self._client = RestClient(address, self.book, seed)
        self.watched = (self._client,)
        self._left = 0

    def prepare(self, system: System) -> None:
        make_rolling_topic(system, self.book.topic, self.book.partitions)

    def start(self) -> None:
        self._client.start()

    def stop_writing(self) -> None:
        self._client.stop()
        self.wrong += self.book.errors[:3]
        self.gather()

    def settle(self) -> None:
        """Nobody reads along."""

    def finish(self) -> None:
        read: dict[tuple[int, int], object] = {}
        try:
            for message in read_to_end(self._bootstrap, self.book.topic, self.book.partitions):
                read[message.partition() or 0, message.offset() or 0] = json.loads(message.value() or b"null")
        except (Wrong, ValueError) as wrong:
            self.wrong.append(f"{self.book.topic}: {wrong}")
            return
        self._left = len(read)
        self.wrong += self.book.check_all(read)
        if not self.book.places:
            self.wrong.append(f"{self.book.topic}: HTTP gave no receipt at all")

    def counts(self) -> dict[str, int]:
        return {
            "receipts": len(self.book.places),
            "records sent again": self.book.retried,
            "read at the end": self._left,
            "questions answered": self.book.reads,
        }
