"""The core of a connection by itself: no socket, no loop; a test reads, takes answers and completes requests in any order."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ProtocolError
from app.transport.buffers import BufferPool
from app.transport.core import OUT_BYTES_MAX, OWN_FRAME_BYTES_MIN, SLOTS_MAX, ConnectionCore, Slot
from app.transport.frame_memory import CLAIM_BYTES_MIN
from app.transport.sending import Part

HEAD = Struct(">i10sB")
"""Size, what every request has and nobody looks at here, and how it is to be answered."""
AT_ONCE, LATER, ALONE, IN_PIECES, NEVER, WRONG = range(6)


class Memory:
    """What the connections of a server share; room for frames is what a test says."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.scratch = memoryview(bytearray(64 << 10))
        self.buffers = BufferPool()
        self.request_bytes_max = 1 << 20
        self.room = room
        self.claimed: dict[ConnectionCore, int] = {}
        self.time_s = 0.0
        self.refused = 0
        self.held = 0

    def now_s(self) -> float:
        return self.time_s

    def claim(self, connection: ConnectionCore, size_bytes: int) -> bool:
        more = size_bytes - self.claimed.get(connection, 0)
        if more > self.room:
            self.refused += 1
            return False
        self.room -= more
        self.claimed[connection] = size_bytes
        return True

    def hold(self, size_bytes: int) -> None:
        self.held += size_bytes

    def keep(self, size_bytes: int) -> None:
        self.room -= size_bytes

    def unreserve(self, size_bytes: int) -> None:
        self.room += size_bytes

    def release(self, connection: ConnectionCore) -> None:
        self.room += self.claimed.pop(connection, 0)


class Range:
    """A range of a file, as far as the core is concerned."""

    position = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.length = 1
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Meter:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def observe(self, seconds: float, count: int) -> None:
        self.seconds += [seconds] * count


class Numbering(ConnectionCore):
    """Answers each request with its number, in the way that the request asks for."""

    def __init__(self, server: Memory) -> None:
        super().__init__(server)
        self.count = 0
        self.waiting: list[tuple[int, Slot]] = []
        self.meter = Meter()
        self.served: list[bytes] = []
        self.calls = 0

    def serve(self, view: memoryview, position: int, end: int) -> int:
        self.calls += 1
        while end - position >= HEAD.size and not self.is_congested() and self.ending is None:
            size, _, way = HEAD.unpack_from(view, position)
            self.check_size(size)
            if position + 4 + size > end:
                break
            if way == WRONG:
                raise ProtocolError("this is wrong")
            number, self.count = self.count, self.count + 1
            self.served.append(bytes(view[position + HEAD.size : position + 4 + size]))
            if way in (LATER, ALONE):
                self.waiting.append((number, self.open_slot(self.meter, stops_parsing=way == ALONE)))
            elif way != NEVER:
                self.answer(answer_of(number, way))
            position += 4 + size
        return position


def answer_of(number: int, way: int) -> Any:
    text = b"<%d>" % number
    return [text, Range(number), b"!"] if way == IN_PIECES else text


def frame(way: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size - 4 + len(payload), b"", way) + payload


class Shell:
    """Does what the shell does, when the test says so."""

    def __init__(self, core: Numbering) -> None:
        self.core = core
        core.opened("peer", 1)
        core.ready = self.settle
        self.client_reads = True
        self.sent: list[Part] = []
        self.to_come: deque[bytes] = deque()

    def arrive(self) -> None:
        """Read once, as long as the core wants it."""
        core = self.core
        if not core.reads or not self.to_come or core.ending is not None:
            return
        data = self.to_come.popleft()
        room = core.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        if count < len(data):
            self.to_come.appendleft(data[count:])
        left = core.received(count, core.server.now_s())
        self.flush()
        while left:
            left = core.go_on()
            self.flush()

    def settle(self) -> None:
        self.flush()
        if not self.core.reads:
            left = self.core.resume(self.core.server.now_s())
            self.flush()
            while left:
                left = self.core.go_on()
                self.flush()

    def flush(self) -> None:
        if not self.client_reads:
            return
        core = self.core
        if core.pieces:
            assert not core.out, "what is behind pieces waits for them"
            self.sent += core.pieces
            core.pieces.clear()
            core.pieces_left()
        elif core.out:
            self.sent.append(core.take_out())

    def text(self) -> bytes:
        return b"".join(b"[%d]" % part.number if isinstance(part, Range) else bytes(part) for part in self.sent)  # type: ignore[arg-type]


def expected(ways: list[int]) -> bytes:
    return b"".join(
        b"<%d>[%d]!" % (number, number) if way == IN_PIECES else b"<%d>" % number
        for number, way in enumerate(ways)
        if way != NEVER
    )


@pytest.mark.ci
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_however_bytes_come_and_answers_get_ready_they_leave_once_and_in_order(data: st.DataObject) -> None:
    ways = data.draw(st.lists(st.sampled_from([AT_ONCE, LATER, ALONE, IN_PIECES, NEVER]), max_size=12))
    sizes = st.one_of(st.integers(0, 40), st.sampled_from([OWN_FRAME_BYTES_MIN, 200_000]))
    payloads = [bytes([number]) * data.draw(sizes) for number in range(len(ways))]
    whole = b"".join(frame(way, payload) for way, payload in zip(ways, payloads, strict=True))
    memory = Memory()
    core = Numbering(memory)
    shell = Shell(core)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    shell.to_come.extend(
        piece for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if (piece := whole[start:end])
    )
    while shell.to_come or core.waiting or not shell.client_reads:
        can_read = bool(shell.to_come) and core.reads
        step = data.draw(st.sampled_from(["read"] * can_read + ["complete"] * bool(core.waiting) + ["client"]))
        if step == "read":
            shell.arrive()
        elif step == "complete":
            number, slot = core.waiting.pop(data.draw(st.integers(0, len(core.waiting) - 1)))
            core.complete(slot, answer_of(number, AT_ONCE))
        else:
            shell.client_reads = not shell.client_reads
            if shell.client_reads:
                shell.settle()
    assert core.served == payloads
    assert shell.text() == expected(ways)
    assert memory.room == 1 << 30, "memory of frames is given back"


def test_nothing_behind_a_request_that_stands_alone_is_served_before_its_answer() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.to_come.append(frame(ALONE) + frame(AT_ONCE))
    shell.arrive()
    assert (core.count, core.reads) == (1, False)
    shell.settle()
    assert core.calls == 1, "what is held back is not looked at in vain"
    core.complete(core.waiting.pop()[1], b"<0>")
    assert (shell.text(), core.reads) == (b"<0><1>", True)


@pytest.mark.parametrize("way", [AT_ONCE, IN_PIECES])
def test_a_client_that_does_not_read_its_answers_is_not_read(way: int) -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.client_reads = False
    shell.to_come.extend(frame(way) for _ in range(OUT_BYTES_MAX // 4))
    while core.reads and shell.to_come:
        shell.arrive()
    assert not core.reads
    served = core.count
    assert served < OUT_BYTES_MAX // 3
    shell.client_reads = True
    shell.settle()
    assert core.reads
    assert shell.text() == expected([way] * core.count)


def test_a_client_that_has_read_what_was_behind_pieces_is_read_again() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.client_reads = False
    shell.to_come.append(frame(LATER) * 2)
    shell.arrive()
    (_, first), (_, second) = core.waiting
    core.complete(first, [b"", Range(0)])  # type: ignore[list-item]
    core.complete(second, bytes(OUT_BYTES_MAX + 1))
    shell.client_reads = True
    shell.settle()
    shell.to_come.append(frame(AT_ONCE))
    shell.arrive()
    assert core.count == 3


def test_no_more_requests_wait_at_a_time_than_slots_max() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.to_come.append(frame(LATER) * (SLOTS_MAX + 10))
    shell.arrive()
    assert (core.count, core.reads) == (SLOTS_MAX, False)
    while core.waiting:
        number, slot = core.waiting.pop(0)
        core.complete(slot, answer_of(number, AT_ONCE))
    assert core.count == SLOTS_MAX + 10
    assert shell.text() == expected([LATER] * (SLOTS_MAX + 10))


def test_what_was_answered_leaves_before_a_connection_ends_for_bytes_that_nobody_understands() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.to_come.append(frame(AT_ONCE) + frame(WRONG) + frame(AT_ONCE))
    shell.arrive()
    assert core.ending is not None
    assert core.ending.line == "closing the connection of peer:1: this is wrong"
    assert not core.ending.at_once
    assert (shell.text(), core.count) == (b"<0>", 1)
    core.abort()
    assert not core.ending.at_once, "the first reason counts"


def test_nothing_that_was_held_back_is_served_once_the_connection_is_to_end() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    shell.to_come.append(frame(ALONE) + frame(AT_ONCE))
    shell.arrive()
    core.fail("its answer cannot be made")
    core.complete(core.waiting.pop()[1], b"<0>")
    assert (core.count, core.calls, shell.text()) == (1, 1, b"<0>")


def test_a_frame_waits_for_memory_and_goes_on_when_there_is_some() -> None:
    memory = Memory(room=0)
    core = Numbering(memory)
    shell = Shell(core)
    whole = frame(AT_ONCE, bytes(100_000))
    shell.to_come.extend([whole[:1000], whole[1000:]])
    shell.arrive()
    assert not core.reads
    shell.settle()
    assert not core.reads, "nobody has made room"
    assert memory.refused == 1, "it is in the queue once"
    memory.room = 1 << 20
    core.memory_freed()
    assert core.reads
    while shell.to_come:
        shell.arrive()
    assert (shell.text(), memory.room) == (b"<0>", 1 << 20)


def test_a_frame_that_has_begun_keeps_what_it_has_while_it_waits_for_more_memory() -> None:
    memory = Memory(room=70_000)
    core = Numbering(memory)
    shell = Shell(core)
    whole = frame(AT_ONCE, bytes(range(250)) * 2000)
    shell.to_come.extend([whole[:15], whole[15:60_000], whole[60_000:]])
    shell.arrive()
    assert (core.reads, memory.claimed[core]) == (True, CLAIM_BYTES_MIN)
    assert len(core.get_buffer(-1)) == CLAIM_BYTES_MIN - 15, "no read brings more than was claimed"
    shell.arrive()
    assert not core.reads
    assert core.arrived_bytes == 60_000
    core.memory_freed()
    assert (core.reads, memory.refused) == (False, 2), "there is still too little"
    memory.room = 1 << 20
    core.memory_freed()
    while shell.to_come:
        assert core.reads
        shell.arrive()
    assert (shell.text(), memory.room, memory.claimed) == (b"<0>", (1 << 20) + CLAIM_BYTES_MIN, {})


def test_what_is_held_back_is_counted_until_it_is_served_or_the_client_leaves() -> None:
    for leaves in (False, True):
        memory = Memory()
        core = Numbering(memory)
        shell = Shell(core)
        core.stop_parsing()
        shell.to_come.append(frame(AT_ONCE, bytes(40_000)))
        shell.arrive()
        assert memory.held == len(frame(AT_ONCE, bytes(40_000)))
        assert memory.room == 1 << 30, "no arriving frame waits for what one read has brought"
        if leaves:
            core.lost()
        else:
            core.parse_on()
            assert shell.text() == b"<0>"
        assert (memory.held, memory.room) == (0, 1 << 30)


def test_a_long_frame_that_is_held_back_counts_as_arriving_frames_do() -> None:
    for leaves in (False, True):
        memory = Memory()
        core = Numbering(memory)
        shell = Shell(core)
        long = frame(AT_ONCE, bytes(100_000))
        shell.to_come.append(long[:60_000])
        shell.arrive()
        core.stop_parsing()
        shell.to_come.append(long[60_000:])
        while shell.to_come:
            shell.arrive()
        assert (memory.held, memory.claimed, memory.room) == (0, {}, (1 << 30) - len(long))
        if leaves:
            core.lost()
        else:
            core.parse_on()
            assert shell.text() == b"<0>"
        assert (memory.held, memory.room) == (0, 1 << 30)


def test_each_frame_of_a_stream_is_a_new_one_to_the_memory_of_frames() -> None:
    memory = Memory()
    core = Numbering(memory)
    shell = Shell(core)
    released: list[int] = []
    release = memory.release

    def counted(connection: ConnectionCore) -> None:
        released.append(connection.arrived_bytes)
        release(connection)

    memory.release = counted  # type: ignore[method-assign]
    stream = frame(AT_ONCE, bytes(200_000)) * 3
    for start in range(0, len(stream), 60_000):
        shell.to_come.append(stream[start : start + 60_000])
    while shell.to_come:
        shell.arrive()
    assert shell.text() == b"<0><1><2>"
    assert len(released) == 3
    assert memory.claimed == {}


def test_parsing_that_was_stopped_goes_on_with_what_came_meanwhile() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    core.stop_parsing()
    core.stop_parsing()
    shell.to_come.append(frame(AT_ONCE))
    shell.arrive()
    core.parse_on()
    assert core.count == 0
    core.parse_on()
    assert shell.text() == b"<0>"


def test_the_end_is_told_to_what_waits_for_it_and_ranges_are_given_back_once() -> None:
    memory = Memory(room=1 << 20)
    core = Numbering(memory)
    shell = Shell(core)
    shell.client_reads = False
    cancelled: list[str] = []

    class Waiting:
        def cancel(self) -> None:
            cancelled.append("cancelled")

    core.on_close.add(Waiting())
    shell.to_come.append(frame(LATER) + frame(LATER) + frame(AT_ONCE, bytes(100_000))[:50_000])
    shell.arrive()
    (_, first), (_, second) = core.waiting
    unsent, late = Range(0), Range(1)
    core.complete(first, [b"", unsent])  # type: ignore[list-item]
    core.lost()
    core.lost()
    core.complete(second, [b"", late])  # type: ignore[list-item]
    core.fail("too late")
    assert (cancelled, unsent.released, late.released) == (["cancelled"], 1, 1)
    assert (memory.room, core.ending) == (1 << 20, None)


def test_a_connection_that_has_ended_keeps_nothing_of_its_shell_until_a_garbage_collection() -> None:
    core = Numbering(Memory())
    shell = Shell(core)
    kept = weakref.ref(shell)
    gc.disable()
    try:
        core.lost()
        del shell
        assert kept() is None
    finally:
        gc.enable()


def test_a_request_is_timed_from_its_bytes_to_its_answer() -> None:
    memory = Memory()
    core = Numbering(memory)
    shell = Shell(core)
    memory.time_s = 5.0
    shell.to_come.append(frame(LATER))
    shell.arrive()
    memory.time_s = 7.5
    core.complete(core.waiting.pop()[1], b"<0>")
    assert core.meter.seconds == [2.5]
