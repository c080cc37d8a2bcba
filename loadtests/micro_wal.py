"""What the write-ahead log costs, without a store: on the path of each produced batch, of each object, and of a take-over.

    python -m loadtests.micro_wal [--rounds 9]

- µs of CPU to append one batch of 16 KB: the check for room, the question for the state, and the append;
- ms of CPU to cut an object of 8 MiB of 500 batches over 1, 100 and 1,000 partitions, and the bytes of its footer;
- ms of CPU to cut while much more waits behind the object: it must cost the same;
- ms of CPU to take over 1,000 partitions from 64 objects: to decode the footers, and to find where each partition goes on.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Final

from app.core.limits import KIB, MIB
from app.core.units import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId, WalRange
from app.metadata.log.append_attempt import PutOutcome
from app.records.batch import parse_header
from app.records.builder import build_batch
from app.wal.format import PartitionState, WalFooter, batch_fields, decode_footer, footer_tail_bytes
from app.wal.states import captured
from app.wal.takeover import TakeOver, continue_from
from app.wal.writer import WalWriter

WAL: Final = WalId(1, 1)
TOPIC: Final = TopicId(uuid.UUID(int=7))
BATCHES: Final = 500
BATCH_BYTES: Final = 16 * KIB


class Load:
    """Partitions that grow by batches of one size, each of its own idempotent producer."""

    def __init__(self, partitions: int, *, producers: int = 1) -> None:
        self.writer = WalWriter(WAL, new_nonce=lambda: bytes(16), buffer_bytes=32 * 8 * MIB)
        self.keys = [TopicIdPartition(TOPIC, PartitionIndex(index)) for index in range(partitions)]
        self._ends = [0] * partitions
        self._next = 0
        self._value = bytes(BATCH_BYTES - 61 - 12)
        self._states = ProducerStates()
        for producer_id in range(producers):
            for sequence in range(5):
                self._states.apply(producer_id, 0, sequence, sequence, sequence, 1000, 0)
        for key in self.keys:
            self.writer.lead(key)

    def prepared(self, count: int) -> list[Callable[[], None]]:
        """The next appends, with everything done that the log does in any case."""
        return [self._prepared() for _ in range(count)]

    def _prepared(self) -> Callable[[], None]:
        index = self._next
        self._next = (index + 1) % len(self.keys)
        key, offset = self.keys[index], self._ends[index]
        self._ends[index] += 1
        data = build_batch(
            [(1_700_000_000_000 + offset, None, self._value, ())],
            base_offset=Offset(offset),
            leader_epoch=LeaderEpoch(3),
            producer_id=ProducerId(index),
            producer_epoch=ProducerEpoch(0),
            base_sequence=offset,
        )
        fields = batch_fields(parse_header(data))
        writer = self.writer

        def append() -> None:
            writer.check_room(key, len(data))
            state = self._state(offset) if writer.wants_state(key) else None
            writer.append(key, data, fields, now_ms=1000 + offset, linger_ms=250, state=state)

        return append

    def _state(self, offset: int) -> PartitionState:
        return captured(self._states, (), Offset(offset))

    def cut(self) -> int:
        """Cut one object. Returns: its number."""
        put = self.writer.cut(10**15, TimestampMs(0))
        assert put is not None
        return put.number

    def acknowledge(self, number: int) -> None:
        self.writer.on_put(number, PutOutcome.WRITTEN)
        self.writer.take_acknowledged()


def _cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _measure_append(rounds: int) -> None:
    for partitions in (1, 1000):
        load, costs = Load(partitions), []
        for _ in range(rounds + 2):
            appends = load.prepared(BATCHES)

            def append_all(appends: list[Callable[[], None]] = appends) -> None:
                for append in appends:
                    append()

            costs.append(_cpu_s(append_all) / BATCHES * 1e6)
            load.acknowledge(load.cut())
            while load.writer.cut_ms is not None:
                load.acknowledge(load.cut())
        _print(f"append 16 KB, {partitions:4} partitions", costs[2:], "µs")


def _measure_cut(rounds: int) -> None:
    for partitions, producers in ((1, 1), (100, 1), (1000, 1), (1000, 100)):
        load, costs, footer_bytes = Load(partitions, producers=producers), [], 0
        for _ in range(rounds):
            for append in load.prepared(BATCHES):
                append()
            numbers: list[int] = []
            costs.append(_cpu_s(lambda numbers=numbers, load=load: numbers.append(load.cut())) * 1e3)  # type: ignore[misc]
            whole = load.writer.bytes_of(numbers[0])
            footer_bytes = max(footer_bytes, footer_tail_bytes(whole[-16:], len(whole), "it"))
            load.acknowledge(numbers[0])
            while load.writer.cut_ms is not None:
                load.acknowledge(load.cut())
        _print(
            f"cut 8 MiB, {partitions:4} partitions of {producers:3} producers, footer {footer_bytes:,} bytes",
            costs,
            "ms",
        )


def _measure_cut_before_many(rounds: int) -> None:
    load, costs = Load(100), []
    for _ in range(min(rounds, 7)):
        for append in load.prepared(8 * BATCHES):
            append()
        numbers: list[int] = []
        costs.append(_cpu_s(lambda numbers=numbers: numbers.append(load.cut())) * 1e3)  # type: ignore[misc]
        load.acknowledge(numbers[0])
        while load.writer.cut_ms is not None:
            load.acknowledge(load.cut())
    _print("cut 8 MiB,  100 partitions, 56 MiB wait behind it", costs, "ms")


def _measure_take_over(rounds: int) -> None:
    partitions, objects = 1000, 64
    load = Load(partitions)
    tails: dict[int, tuple[bytes, int]] = {}
    for number in range(objects):
        for append in load.prepared(BATCHES):
            append()
        assert load.cut() == number
        whole = load.writer.bytes_of(number)
        tails[number] = (whole[-footer_tail_bytes(whole[-16:], len(whole), "it") :], len(whole))
        load.acknowledge(number)
        while load.writer.cut_ms is not None:
            load.acknowledge(load.cut())
    end = max(tails) + 1
    ranges = [WalRange(*WAL, 3, 0, end - 1)]
    decode_costs, costs = [], []
    for _ in range(min(rounds, 5)):
        footers: dict[int, WalFooter] = {}

        def decode(footers: dict[int, WalFooter] = footers) -> None:
            for number, (tail, size) in tails.items():
                footers[number] = decode_footer(tail, size, "it", WAL, number)

        decode_costs.append(_cpu_s(decode) * 1e3)

        def take_over(footers: dict[int, WalFooter] = footers) -> None:
            for key in load.keys:
                assert isinstance(continue_from(key, ranges, {WAL: footers}, None), TakeOver)

        costs.append(_cpu_s(take_over) * 1e3)
    _print(f"decode {objects} footers of {objects * BATCHES} batches", decode_costs, "ms")
    _print(f"take over {partitions} partitions", costs, "ms")


def _print(title: str, costs: list[float], unit: str) -> None:
    print(f"{title:75} least {min(costs):8.2f} {unit}   median {statistics.median(costs):8.2f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    _measure_append(options.rounds)
    _measure_cut(options.rounds)
    _measure_cut_before_many(options.rounds)
    _measure_take_over(options.rounds)


if __name__ == "__main__":
    main()
