"""The memory of arriving frames: what is only announced takes none, one frame always goes on, and who stops is ended."""

from __future__ import annotations

import random

import pytest

from app.transport.frame_memory import AHEAD, CLAIM_BYTES_MIN, SECOND_BYTES_MIN, FrameMemory, claim_bytes

MIB = 1 << 20


class Frame:
    """A connection whose frame arrives."""

    def __init__(self, memory: FrameMemory[Frame], total: int, *, is_proven: bool = True) -> None:
        self.memory, self.total, self.is_proven = memory, total, is_proven
        self.arrived_bytes = 0
        self.claimed = 0
        self.reads = True
        self.woken = 0

    def arrive(self, size: int) -> bool:
        """So many bytes more, as far as they were claimed. Returns: whether it goes on."""
        assert self.reads
        room = self.claimed - self.arrived_bytes if self.claimed else size
        self.arrived_bytes = min(self.total, self.arrived_bytes + min(size, room))
        return self.claim()

    def claim(self) -> bool:
        if self.arrived_bytes == self.total:
            self.memory.release(self)
            self.claimed = 0
            return True
        wanted = claim_bytes(self.arrived_bytes, self.total, self.claimed)
        self.reads = self.memory.claim(self, wanted)
        if self.reads:
            self.claimed = wanted
        return self.reads

    def memory_freed(self) -> None:
        self.woken += 1
        self.claim()


def test_a_frame_claims_as_it_arrives_and_never_more_than_it_is_long() -> None:
    assert claim_bytes(15, 100 * MIB) == CLAIM_BYTES_MIN
    assert claim_bytes(15, 20_000) == 20_000
    assert claim_bytes(MIB, 100 * MIB) == AHEAD * MIB
    assert claim_bytes(90 * MIB, 100 * MIB) == 100 * MIB
    assert claim_bytes(MIB, 100 * MIB, 3 * MIB) == 3 * MIB


def test_frames_that_are_only_announced_leave_room_for_others() -> None:
    memory: FrameMemory[Frame] = FrameMemory(256 * MIB)
    for _ in range(600):
        assert Frame(memory, 100 * MIB).arrive(15)
    other = Frame(memory, 100 * MIB)
    while other.arrived_bytes < other.total:
        assert other.arrive(MIB)
    assert memory.bytes == 600 * CLAIM_BYTES_MIN


def test_in_full_memory_the_longest_arriving_frame_goes_on_and_the_next_one_after_it() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB)
    frames = [Frame(memory, MIB) for _ in range(8)]
    for one in frames:
        one.arrive(200_000)
    assert [one.reads for one in frames] == [True, *[False] * 7]
    for at, one in enumerate(frames):
        while one.arrived_bytes < one.total:
            assert one.arrive(300_000), at
        while memory.wake():
            pass
        assert memory.bytes <= 2 * MIB
    assert memory.bytes == 0
    assert not memory.is_waited_for


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_in_any_order_is_bounded_and_ends(seed: int) -> None:
    rng = random.Random(seed)
    memory: FrameMemory[Frame] = FrameMemory(2 * MIB)
    open_frames = [Frame(memory, rng.randrange(20_000, 3 * MIB)) for _ in range(40)]
    while open_frames:
        reading = [one for one in open_frames if one.reads]
        assert reading, "somebody is always read"
        one = rng.choice(reading)
        if rng.random() < 0.02:
            memory.forget(one)
            open_frames.remove(one)
        else:
            one.arrive(rng.randrange(1, 500_000))
            if one.arrived_bytes == one.total:
                open_frames.remove(one)
        if rng.random() < 0.7 or not any(each.reads for each in open_frames):
            while memory.wake():
                pass
        assert memory.bytes <= 2 * MIB + 3 * MIB
        assert memory.bytes == sum(each.claimed for each in open_frames)
    assert (memory.bytes, memory.is_waited_for) == (0, False)


def test_what_requests_keep_makes_arriving_frames_wait_but_one() -> None:
    memory: FrameMemory[Frame] = FrameMemory(2 * MIB)
    memory.keep(3 * MIB)
    first, second = Frame(memory, MIB), Frame(memory, MIB)
    assert first.arrive(MIB // 2)
    assert not second.arrive(MIB // 2)
    memory.keep(-3 * MIB)
    while memory.wake():
        pass
    assert second.woken == 1


def test_no_arriving_frame_waits_for_what_throttled_connections_hold_back() -> None:
    memory: FrameMemory[Frame] = FrameMemory(2 * MIB)
    for _ in range(1_000):
        memory.hold(256 << 10)
    for _ in range(4):
        assert Frame(memory, 200_000).arrive(100_000)
    assert (memory.held_bytes, memory.bytes) == (1_000 * (256 << 10), 800_000)


def test_a_connection_that_has_ended_waits_no_more() -> None:
    memory: FrameMemory[Frame] = FrameMemory(CLAIM_BYTES_MIN)
    first, second = Frame(memory, MIB), Frame(memory, MIB)
    first.arrive(15)
    second.arrive(15)
    assert memory.is_waited_for
    memory.forget(second)
    assert not memory.is_waited_for


def test_who_stops_in_the_middle_is_ended_while_others_wait_and_who_goes_on_is_not() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB)
    oldest, silent, steady = Frame(memory, MIB), Frame(memory, 4 * MIB), Frame(memory, MIB)
    waits = Frame(memory, MIB)
    for one in (oldest, silent, steady):
        assert one.arrive(50_000)
    steady.arrive(100_000)
    assert not waits.arrive(200_000)
    assert memory.ended_after_a_second() == [], "nobody has been seen for a whole second"
    for second in range(5):
        oldest.arrive(SECOND_BYTES_MIN)
        steady.arrive(1)
        assert memory.ended_after_a_second() == ([silent] if second >= 1 else [])


def test_the_longest_arriving_frame_is_ended_if_it_only_trickles() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB)
    trickle, other = Frame(memory, 4 * MIB), Frame(memory, MIB)
    assert trickle.arrive(250_000)
    assert not other.arrive(200_000)
    memory.ended_after_a_second()
    trickle.arrive(1)
    assert memory.ended_after_a_second() == [trickle]


def test_a_connection_that_was_not_read_for_the_whole_second_is_not_judged_by_it() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB)
    oldest, next_one, third = (Frame(memory, MIB) for _ in range(3))
    assert oldest.arrive(50_000)
    assert next_one.arrive(100_000)
    assert oldest.arrive(150_000)
    assert not next_one.arrive(200_000), "it holds a part and waits for more"
    assert not third.arrive(200_000)
    memory.ended_after_a_second()
    assert oldest.arrive(600_000)
    memory.ended_after_a_second()
    assert oldest.arrive(MIB)
    memory.wake()  # Just before the second is over.
    assert next_one.reads
    assert memory.is_waited_for
    assert memory.ended_after_a_second() == [], "it has been read for a moment only"
    assert memory.ended_after_a_second() == [next_one], "it has been read for a second, and nothing came"


def test_a_connection_that_had_to_wait_within_a_second_is_not_judged_by_it() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB)
    oldest, next_one, third = (Frame(memory, MIB) for _ in range(3))
    assert oldest.arrive(50_000)
    assert next_one.arrive(100_000)
    assert oldest.arrive(150_000)
    assert not third.arrive(200_000)
    assert memory.ended_after_a_second() == []
    assert not next_one.arrive(200_000)
    assert oldest.arrive(600_000)
    assert oldest.arrive(MIB)
    memory.wake()
    assert next_one.reads
    assert memory.is_waited_for
    next_one.arrived_bytes -= 200_000 - SECOND_BYTES_MIN // 2  # It had to wait after a few bytes.
    assert memory.ended_after_a_second() == []


def test_before_a_login_nobody_waits_and_the_longest_arriving_frame_makes_room() -> None:
    memory: FrameMemory[Frame] = FrameMemory(MIB, unproven_bytes_max=1000)
    first, second, third = (Frame(memory, MIB, is_proven=False) for _ in range(3))
    assert memory.claim_unproven(first, 400) == []
    assert memory.claim_unproven(second, 400) == []
    assert memory.claim_unproven(third, 300) == [first]
    assert memory.claim_unproven(second, 800) == [third], "what it has itself is not in its way"
    assert (memory.bytes, memory.unproven_bytes) == (0, 800)
    for one in (first, second, third):
        memory.release(one)
    assert memory.unproven_bytes == 0


def test_without_a_limit_nobody_waits() -> None:
    memory: FrameMemory[Frame] = FrameMemory(-1)
    for _ in range(10):
        assert Frame(memory, 100 * MIB).arrive(50 * MIB)
