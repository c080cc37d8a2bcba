"""INV-15, walked: no timer, sweep or tick holds the loop for more than 50 ms of CPU.

The loop of a crowded broker is given a clock that runs ahead to the next timer whenever there is nothing to do. So minutes of a
broker's periodic work pass within seconds, and each turn of it is measured. The clock of the wall jumps ahead by days in between,
so that all that expires is expired at once.

A function that waits for time and has no line in ``timed_work.py`` fails.
"""

from __future__ import annotations

import threading
import time
from asyncio import Handle
from pathlib import Path

import pytest

from app.core.units import TimestampMs
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from app.wire.framing import frame
from app.wire.header import encode_request_header
from tests.support.crowded import CROWD, FULL, SMALL, WIDE, Crowded, Sizes, crowded
from tests.support.fillings import Names
from tests.support.timed_work import TIMED_WORK, functions_that_wait_for_time
from tests.support.turns import TURN_MS_MAX, Line
from tests.support.walked_apis import Floor, floor_request

DAY_MS = 86_400_000
SESSION_MS = 600_000
"""Of members of consumer groups, so that they are all there when a slow machine has made the crowd."""
SESSIONS_S = 615.0
CHECKS_S = 700.0
"""The rarest checks are made every 10 minutes."""


def test_every_function_that_waits_for_time_has_an_entry() -> None:
    assert functions_that_wait_for_time() == TIMED_WORK.keys()


class WallClock:
    """The machine's clock, and days more."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000 + self.ahead_ms)


def longest_ms(on: Crowded, seconds: float) -> float:
    """The longest call by the loop while so much time passes.

    Not the longest turn: when time jumps, all timers are due in one. No limit is set to what several do together.
    """
    on.measured.settle()
    took_ns = 0
    run = Handle._run
    loop_thread = int(on.measured.call(threading.get_ident))

    def timed(self: Handle) -> None:
        nonlocal took_ns
        if threading.get_ident() != loop_thread:
            run(self)
            return
        began_ns = time.thread_time_ns()
        run(self)
        took_ns = max(took_ns, time.thread_time_ns() - began_ns)

    Handle._run = timed  # type: ignore[method-assign]
    try:
        on.measured.hurry(seconds)
        on.measured.settle()
    finally:
        Handle._run = run  # type: ignore[method-assign]
    return took_ns / 1e6


def write_everywhere(on: Crowded) -> None:
    """A record in each partition of the wide topic."""
    for first in range(0, on.sizes.partitions, 1_000):
        count = min(1_000, on.sizes.partitions - first)
        asked = floor_request(on, ApiKey.PRODUCE, Floor(("topic_data", "partition_data"), count, Names.EXISTING))
        with Line(on.broker.port) as line:
            assert line.ask(frame(encode_request_header(asked.key, asked.version, 1, "walk"), asked.body()))


def members_left(on: Crowded) -> int:
    answer = on.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, ConsumerGroupDescribeRequest([CROWD], False))
    return len(answer.groups[0].members)


def offset_of(on: Crowded, group: str) -> int:
    wanted = OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(name=WIDE, partition_indexes=[0])])
    answer = on.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[wanted]))
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def check_timers(path: Path, sizes: Sizes) -> None:
    clock = WallClock()
    sessions = dict.fromkeys(("group_consumer_session_timeout_ms", "group_consumer_max_session_timeout_ms"), SESSION_MS)
    with crowded(path, sizes, clock=clock, **sessions) as on:
        write_everywhere(on)
        assert (members_left(on), offset_of(on, "group-00001")) == (sizes.members, 1)
        took_ms = {"sessions": longest_ms(on, SESSIONS_S)}
        assert members_left(on) == 0
        took_ms["a quiet broker"] = longest_ms(on, CHECKS_S)
        clock.ahead_ms += 9 * DAY_MS
        took_ms["expiry"] = longest_ms(on, CHECKS_S)
        assert offset_of(on, "group-00001") == -1
        assert int(on.measured.call(lambda: on.broker.log(WIDE).log_start_offset)) >= 1
    assert {work: ms for work, ms in took_ms.items() if ms > TURN_MS_MAX} == {}


@pytest.mark.ci
def test_no_timer_holds_the_loop(tmp_path: Path) -> None:
    check_timers(tmp_path, SMALL)


@pytest.mark.slow
def test_no_timer_of_a_large_broker_holds_the_loop(tmp_path: Path) -> None:
    check_timers(tmp_path, FULL)
