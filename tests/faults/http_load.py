"""Callers of HTTP with different rights take turns on one HTTP process. Each writes to its own topic, and tries the other's."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition

from tests.support.cluster import PARTITIONS, ROOT, WAIT_S, Brokers, ends_of
from tests.support.ports import free_port
from tests.support.secured_cluster import Security
from tests.support.waiting import block_until

CALLERS = {"app": "hers", "other": "his"}
"""The topic that each may write to."""


class HttpCallers:
    """A process that serves HTTPS, and a thread for each caller."""

    name = "callers of HTTP"
    between_brokers = False

    def __init__(self, path: Path, brokers: Brokers, security: Security) -> None:
        self._bootstrap = brokers.bootstrap
        self._security = security
        self._stop = threading.Event()
        self.acknowledged: dict[str, dict[str, tuple[int, int]]] = {user: {} for user in CALLERS}
        """Partition and offset by what was written, of each caller."""
        self.refused = dict.fromkeys(CALLERS, 0)
        """How often each was refused the other's topic."""
        self.wrong: list[str] = []
        config = path / "http.properties"
        config.write_text(f"security.protocol=SASL_SSL\nssl.truststore.location={security.authority}\n")
        port = free_port()
        self._url = f"https://127.0.0.1:{port}"
        self._log = (path / "http.log").open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "app.cli", "--client-config", str(config), "http",
                "--bootstrap", self._bootstrap, "--listen", f"127.0.0.1:{port}",
                "--tls-certificate", str(security.folder / "broker.pem"),
            ],
            stdout=self._log, stderr=self._log, cwd=ROOT,
        )  # fmt: skip
        self._threads = [threading.Thread(target=self._call, args=(user,)) for user in CALLERS]
        for thread in self._threads:
            thread.start()

    def _call(self, user: str) -> None:
        own = CALLERS[user]
        [others] = [topic for name, topic in CALLERS.items() if name != user]
        login = (user, self._security.passwords[user])
        trusted = ssl.create_default_context(cafile=str(self._security.authority))
        number = 0
        with httpx.Client(base_url=self._url, auth=login, verify=trusted, timeout=20) as client:
            cluster = ""
            while not self._stop.wait(0.01):
                try:
                    if not cluster:
                        [found] = client.get("/v3/clusters").json()["data"]
                        cluster = found["cluster_id"]
                    value = f"{user} {number}"
                    number += 1
                    place = self._write(client, cluster, own, value, number % PARTITIONS)
                    if place is not None:
                        self.acknowledged[user][value] = place
                    self._try(client, cluster, others, user)
                except (httpx.TransportError, KeyError, ValueError):
                    continue  # it is not there yet, or has not reached a broker in time

    def _write(
        self, client: httpx.Client, cluster: str, topic: str, value: str, partition: int
    ) -> tuple[int, int] | None:
        answer = self._post(client, cluster, topic, value, partition)
        if answer.status_code == 200:
            said = answer.json()
            return said["partition_id"], said["offset"]
        if answer.status_code < 500:
            self.wrong.append(f"{value} to {topic}: {answer.status_code} {answer.text}")
        return None

    def _try(self, client: httpx.Client, cluster: str, topic: str, user: str) -> None:
        answer = self._post(client, cluster, topic, f"{user} forbidden", 0)
        if answer.status_code == 403:
            self.refused[user] += 1
        elif answer.status_code < 500:
            self.wrong.append(f"{user} to {topic}: {answer.status_code} {answer.text}")

    @staticmethod
    def _post(client: httpx.Client, cluster: str, topic: str, value: str, partition: int) -> httpx.Response:
        body: dict[str, Any] = {"partition_id": partition, "value": {"type": "STRING", "data": value}}
        return client.post(f"/v3/clusters/{cluster}/topics/{topic}/records", json=body)

    def more(self) -> Callable[[], bool]:
        """Whether each caller has written, and was refused, since this call."""
        written = {user: len(found) for user, found in self.acknowledged.items()}
        refused = dict(self.refused)
        return lambda: all(
            len(self.acknowledged[user]) > written[user] + 5 and self.refused[user] > refused[user] + 5
            for user in CALLERS
        )

    def stop(self) -> None:
        """A second call does nothing."""
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        self._process.kill()
        self._process.wait(WAIT_S)
        self._log.close()

    def check(self) -> None:
        """After ``stop``: what was acknowledged is where it was said to be, and nobody wrote to another's topic."""
        assert self.wrong == []
        for user, topic in CALLERS.items():
            places = self._read(topic)
            assert [value for value in places.values() if not value.startswith(f"{user} ")] == []
            assert [value for value in places.values() if value.endswith("forbidden")] == []
            lost = {value for value, place in self.acknowledged[user].items() if places.get(place) != value}
            assert lost == set()

    def _read(self, topic: str) -> dict[tuple[int, int], str]:
        """What is at which partition and offset."""
        client = self._security.client("admin")
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "g", **client})
        places: dict[tuple[int, int], str] = {}
        try:
            ends = {}
            for partition in range(PARTITIONS):
                _, ends[partition] = ends_of(consumer, topic, partition)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])

            def all_read() -> bool:
                for message in consumer.consume(5_000, 0.5):
                    assert message.error() is None
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    places[partition, offset] = value.decode()
                return len(places) >= sum(ends.values())

            block_until(all_read, f"{topic} is read")
        finally:
            consumer.close()
        return places
