"""The Java client and aiokafka as producers of a cluster whose brokers die."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from tests.faults.transaction_load import Lists, check_history, final
from tests.interop.java_programs import JavaProgram
from tests.support.cluster import PARTITIONS, WAIT_S, check_numbers
from tests.support.threads import LoopThread
from tests.transactions.list_append import Outcome, Txn

PACE_S: Final = 0.005
UNDER_WAY_MAX: Final = 5_000
TXN_PARTITIONS: Final = 4


class JavaProducers:
    """An idempotent and a transactional producer of the Java client, in one process.

    The first writes numbers to the topic ``java``, the second transactions to ``java-txn``.
    """

    name = "producers of the Java client"
    between_brokers = True  # one of them is transactional
    transactional: Final = "java"

    def __init__(self, program: JavaProgram, bootstrap: str, seed: int) -> None:
        self._program = program
        self._bootstrap = bootstrap
        self._ask("numbers", bootstrap, "java", PARTITIONS, int(PACE_S * 1000))
        self._ask("transactions", bootstrap, "java-txn", TXN_PARTITIONS, self.transactional, seed)

    def _ask(self, *words: object) -> list[str]:
        ok, *answer = self._program.ask(*words).split(" ")
        assert ok == "ok", answer
        return [word for word in answer if word]

    def _counts(self) -> list[int]:
        return [int(word) for word in self._ask("counts")]

    def more(self) -> Callable[[], bool]:
        before = self._counts()
        least = [*[20] * PARTITIONS, 1]
        return lambda: all(now >= old + more for now, old, more in zip(self._counts(), before, least, strict=True))

    def finish(self) -> None:
        """Write no more, and wait for what was written. A second call does nothing."""
        self._ask("end")

    def check(self) -> None:
        """After ``finish``: numbers are there once and in order; transactions are whole."""
        assert self._ask("refused") == []
        acknowledged: list[dict[int, int]] = []
        for partition in range(PARTITIONS):
            pairs = (word.split(":") for word in self._ask("acknowledged", partition))
            acknowledged.append({int(number): int(offset) for number, offset in pairs})
        check_numbers(self._bootstrap, "java", acknowledged)
        history = [self._transaction(number, Outcome(outcome)) for number, outcome in enumerate(self._ask("history"))]
        lists: Lists = final(self._bootstrap, "java-txn")[0]
        check_history(history, lists)

    def _transaction(self, number: int, outcome: Outcome) -> Txn:
        name = f"{self.transactional} {number}"
        appends = {
            (partition, self.transactional): [f"{name} {partition} {part}" for part in "ab"]
            for partition in range(TXN_PARTITIONS)
        }
        return Txn(name, outcome, appends)


class AioWriting:
    """aiokafka's idempotent producer in a thread with a loop of its own. It writes numbers to the topic ``aiokafka``."""

    name = "aiokafka's idempotent producer"
    between_brokers = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.refused: list[str] = []
        self._under_way = 0
        self._stop = threading.Event()
        self._thread = LoopThread(self._write)

    async def _write(self) -> None:
        # An idempotent batch is tried again for ever; the time limit is that of one request, which a paused broker never answers.
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            request_timeout_ms=5_000,
            retry_backoff_ms=50,
            metadata_max_age_ms=5_000,
        )
        await producer.start()
        try:
            number = 0
            while not self._stop.is_set():
                for partition in range(PARTITIONS):
                    await self._send(producer, partition, number)
                number += 1
                await asyncio.sleep(PACE_S)
                while self._under_way > UNDER_WAY_MAX:
                    await asyncio.sleep(PACE_S)
            async with asyncio.timeout(WAIT_S):
                await producer.flush()
        finally:
            async with asyncio.timeout(WAIT_S):
                await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, partition: int, number: int) -> None:
        def done(future: asyncio.Future[Any]) -> None:
            self._under_way -= 1
            error = future.exception()
            if error is None:
                self.acknowledged[partition][number] = future.result().offset
            else:
                self.refused.append(f"{partition} {number}: {error!r}")

        while True:
            try:
                sent = await producer.send("aiokafka", b"%d" % number, partition=partition)
            except KafkaTimeoutError:
                continue  # there was no room for it
            except KafkaError as error:
                self.refused.append(f"{partition} {number}: {error!r}")
                return
            self._under_way += 1
            sent.add_done_callback(done)
            return

    def more(self) -> Callable[[], bool]:
        before = [len(found) for found in self.acknowledged]

        def holds() -> bool:
            self._thread.check()
            assert self.refused == []
            return all(len(found) > old + 20 for found, old in zip(self.acknowledged, before, strict=True))

        return holds

    def finish(self) -> None:
        """Write no more, and wait for what was written. A second call does nothing."""
        self._stop.set()
        self._thread.join(3 * WAIT_S)

    def check(self) -> None:
        """After ``finish``."""
        self._thread.check()
        assert self.refused == []
        check_numbers(self._bootstrap, "aiokafka", self.acknowledged)
