"""How long until partitions are led again: the first acknowledged write to each of them, from a moment on.

A prober asks the living brokers for the topic's leaders, and sends a Produce with acks=all to every partition that has a leader and
is not written yet, over one connection for each broker and for up to 50 partitions in one request, as a producer of many partitions
does. A refused partition is tried again. The broker that is dead or stopped is never spoken to.
"""

from __future__ import annotations

import random
import select
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress

from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.header import parse_response_header
from app.wire.produce import decode_produce_response, encode_produce_request
from loadtests.raw_load import PRODUCE_VERSION, make_batch
from loadtests.raw_wire import Wire

ASK_EVERY_S = 0.05
"""Between two questions for leaders, while some are not known."""
ASK_AGAIN_S = 0.5
"""… and once all are."""
ASKED_SHARE = 0.25
"""Of the time that questions may take: the answer for thousands of partitions costs this process, and the brokers, some."""
GIVES_UP_S = 120.0
SENT_AT_ONCE = 20
"""Requests of one connection that wait for answers."""
PARTITIONS_EACH = 50
"""Of one request, at most."""


class _Way:
    """A connection to one broker, with the partitions that are asked of it."""

    def __init__(self, port: int) -> None:
        self.wire = Wire("127.0.0.1", port)
        self.waiting: deque[list[int]] = deque()
        """Partitions of each request that is not answered."""


def first_writes(
    ports: Mapping[int, int], dead: Collection[int], topic: str, partitions: Collection[int], began_s: float
) -> dict[int, float]:
    """Seconds from ``began_s`` (monotonic) until the first acknowledged write of each partition.

    ``ports``: by node id. ``dead``: brokers that are not spoken to. Raises: SystemExit if it takes too long.
    """
    batch = memoryview(make_batch(1, 200, -1, random.Random(7)))
    written: dict[int, float] = {}
    asked: set[int] = set()
    refused: set[int] = set()
    ways: dict[int, _Way] = {}
    living = [node_id for node_id in ports if node_id not in dead]
    leaders: dict[int, int] = {}
    next_ask_s, turn, changed = 0.0, 0, False
    while len(written) < len(partitions):
        now_s = time.monotonic()
        if now_s - began_s > GIVES_UP_S:
            raise SystemExit(f"{len(partitions) - len(written)} partitions are not led after {GIVES_UP_S:.0f} s")
        if now_s >= next_ask_s:
            turn += 1
            with suppress(OSError, SystemExit):
                leaders = _leaders(ports[living[turn % len(living)]], topic)
            asked -= refused
            missing = bool(refused) or any(leaders.get(one, -1) < 0 or leaders[one] in dead for one in partitions)
            asked_s = time.monotonic() - now_s
            next_ask_s = now_s + max(ASK_EVERY_S if missing else ASK_AGAIN_S, asked_s / ASKED_SHARE)
            refused.clear()
            changed = True
        if changed:
            changed = False
            _ask(ports, dead, topic, leaders, [one for one in partitions if one not in written], asked, ways, batch)
        ready = select.select([way.wire.socket for way in ways.values()], (), (), 0.01)[0] if ways else ()
        if not ways:
            time.sleep(0.01)
        for node_id, way in tuple(ways.items()):
            if way.wire.socket in ready:
                _take(node_id, way, asked, refused, written, ways, began_s)
                changed = True
                if refused:
                    next_ask_s = min(next_ask_s, time.monotonic() + ASK_EVERY_S)
    for way in ways.values():
        way.wire.socket.close()
    return written


def _leaders(port: int, topic: str) -> dict[int, int]:
    wire = Wire("127.0.0.1", port)
    try:
        wire.socket.settimeout(2)
        answer = wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        return {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
    finally:
        wire.socket.close()


def _ask(
    ports: Mapping[int, int],
    dead: Collection[int],
    topic: str,
    leaders: Mapping[int, int],
    wanted: Collection[int],
    asked: set[int],
    ways: dict[int, _Way],
    batch: memoryview,
) -> None:
    """Produce to those that have a living leader and are not asked."""
    by_leader: dict[int, list[int]] = {}
    for partition in wanted:
        leader = leaders.get(partition, -1)
        if partition not in asked and leader >= 0 and leader not in dead:
            by_leader.setdefault(leader, []).append(partition)
    for leader, of_leader in by_leader.items():
        if leader not in ways:
            try:
                ways[leader] = _Way(ports[leader])
            except OSError:
                continue
        way = ways[leader]
        for first in range(0, len(of_leader), PARTITIONS_EACH):
            if len(way.waiting) >= SENT_AT_ONCE:
                break
            some = of_leader[first : first + PARTITIONS_EACH]
            pieces = encode_produce_request(
                PRODUCE_VERSION,
                1,
                "raw-failover",
                [(topic, [(partition, batch) for partition in some])],
                acks=-1,
                timeout_ms=30_000,
            )
            way.waiting.append(some)
            asked.update(some)
            with suppress(OSError):
                way.wire.socket.sendall(b"".join(pieces))


def _take(
    node_id: int,
    way: _Way,
    asked: set[int],
    refused: set[int],
    written: dict[int, float],
    ways: dict[int, _Way],
    began_s: float,
) -> None:
    """Read what has come over one connection. A refused partition is asked again when the leaders were."""
    while way.waiting and select.select([way.wire.socket], (), (), 0)[0]:
        try:
            answer = way.wire.read_frame()
        except (OSError, SystemExit):
            asked.difference_update(*way.waiting)
            way.wire.socket.close()
            ways.pop(node_id, None)
            return
        body = answer[parse_response_header(answer, ApiKey.PRODUCE, PRODUCE_VERSION).body_start :]
        way.waiting.popleft()
        for found in decode_produce_response(PRODUCE_VERSION, body).responses[0].partition_responses:
            if found.error_code:
                refused.add(found.index)
            else:
                written.setdefault(found.index, time.monotonic() - began_s)
