"""Which replicas and leaderships move, and how much is copied (ADR 0029: O3 to O5). Pure, and the same for the same input.

The cost of a move is the *tail* of a partition: the bytes that are on its leader's disk only. Records in the object store are not
copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple

BALANCED: Final = 0.1
"""Loads that differ from the mean by less than this share count as even."""
EXCHANGES_MAX: Final = 10_000
"""Steps of one plan."""
TRIED_MAX: Final = 64
"""Partitions that are tried for one step, those of the greatest load or the least tail."""


class Seat(NamedTuple):
    """A broker that may get replicas."""

    broker_id: int
    rack: str | None = None


class PlacedPartition(NamedTuple):
    """A partition as it is."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """The preferred leader first."""
    tail_bytes: int = 0
    """Bytes that a new replica copies."""
    load: float = 0.0
    """How much it is written and read, in any unit."""


class Move(NamedTuple):
    """A partition that gets other replicas, or another preferred leader."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_bytes: int

    @property
    def copies(self) -> bool:
        """Whether a broker gets a new replica. Otherwise only the order changes."""
        return not set(self.after) <= set(self.before)


class Stuck(NamedTuple):
    """A partition that cannot leave a broker."""

    topic: str
    partition: int
    why: str


def move(held: PlacedPartition, after: Sequence[int]) -> Move:
    """The move of a partition to these replicas."""
    new = len(set(after) - set(held.replicas))
    return Move(held.topic, held.partition, held.replicas, tuple(after), new * held.tail_bytes)


# --- one broker is left empty ---------------------------------------------------------------------------------------


def plan_drain(
    partitions: Iterable[PlacedPartition], seats: Sequence[Seat], broker_id: int
) -> tuple[list[Move], list[Stuck]]:
    """Moves after which a broker has no replica, and the partitions for which no other broker has room.

    A replica goes to a rack that the partition does not have yet, if there is one, and then to the broker with the fewest replicas.
    """
    held = sorted(partitions)
    racks = {seat.broker_id: seat.rack for seat in seats}
    others = [seat.broker_id for seat in seats if seat.broker_id != broker_id]
    count = Counter(replica for one in held for replica in one.replicas)
    taken: Counter[int] = Counter()
    moves: list[Move] = []
    stuck: list[Stuck] = []
    for one in held:
        if broker_id not in one.replicas:
            continue
        stay = [each for each in one.replicas if each != broker_id]
        free = [each for each in others if each not in stay]
        if not free:
            factor = len(one.replicas)
            stuck.append(
                Stuck(
                    one.topic,
                    one.partition,
                    f"its factor {factor} needs {factor} living brokers besides broker {broker_id}, and there are {len(others)}",
                )
            )
            continue
        known = {racks.get(each) for each in stay}
        to = min(free, key=lambda each: (racks[each] in known, count[each], taken[each], each))
        count[to] += 1
        taken[to] += one.tail_bytes
        moves.append(move(one, [to if each == broker_id else each for each in one.replicas]))
    return moves, stuck


# --- all brokers are evenly used ------------------------------------------------------------------------------------


def plan_rebalance(partitions: Iterable[PlacedPartition], seats: Sequence[Seat]) -> list[Move]:
    """Moves after which brokers have about as many replicas, load and leaderships as each other, those that copy the least
    first.

    No partition gets two replicas on one broker, or fewer racks than it had. Replicas on brokers that are not among ``seats`` stay.
    """
    plan = _Plan(sorted(partitions), seats)
    plan.even_counts()
    plan.even_loads()
    plan.even_leaders()
    return sorted(plan.moves(), key=lambda one: (one.copies, one.copied_bytes, one.topic, one.partition))


class _Plan:
    """A plan under way."""

    def __init__(self, held: Sequence[PlacedPartition], seats: Sequence[Seat]) -> None:
        self._held = held
        self._racks: Mapping[int, str | None] = {seat.broker_id: seat.rack for seat in seats}
        self._now = [one.replicas for one in held]
        self._of: dict[int, set[int]] = {seat.broker_id: set() for seat in seats}
        """Partitions, as indexes of ``held``, by broker."""
        self._may_go: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        """By the broker that has a replica and the one that may get it: a heap of tails and partitions.
        It has every partition that may move, and also some that may not any more."""
        self._load = dict.fromkeys(self._of, 0.0)
        for index, one in enumerate(held):
            for replica in one.replicas:
                if replica in self._of:
                    self._of[replica].add(index)
                    self._load[replica] += one.load

    def moves(self) -> list[Move]:
        return [move(one, now) for one, now in zip(self._held, self._now, strict=True) if now != one.replicas]

    def even_counts(self) -> None:
        """Replicas go from the brokers with the most to those with the fewest, cheap ones first."""
        for _ in range(EXCHANGES_MAX):
            full = sorted(self._of, key=lambda each: (-len(self._of[each]), each))
            step = None
            for from_id in full:
                for to_id in reversed(full):
                    if len(self._of[from_id]) - len(self._of[to_id]) < 2:
                        break
                    step = self._cheapest(from_id, to_id)
                    if step is not None:
                        self._put(step, from_id, to_id)
                        break
                if step is not None:
                    break
            if step is None:
                return

    def even_loads(self) -> None:
        """The broker with the most load exchanges a busy partition for an idle one of the broker with the least."""
        if not self._of or not any(self._load.values()):
            return
        mean = sum(self._load.values()) / len(self._load)
        for _ in range(EXCHANGES_MAX):
            most = max(self._load, key=lambda each: (self._load[each], -each))
            least = min(self._load, key=lambda each: (self._load[each], each))
            gap = self._load[most] - self._load[least]
            if gap <= 2 * BALANCED * mean:
                return
            exchange = self._exchange(most, least, gap)
            if exchange is None:
                return
            self._put(exchange[0], most, least)
            self._put(exchange[1], least, most)

    def even_leaders(self) -> None:
        """Preferred leaders go to another replica of their partition. Nothing is copied."""
        leads = Counter(now[0] for now in self._now if now)
        for _ in range(EXCHANGES_MAX):
            changed = False
            for index, now in enumerate(self._now):
                if len(now) < 2 or now[0] not in self._of:
                    continue
                to = min(
                    (each for each in now[1:] if each in self._of), key=lambda each: (leads[each], each), default=None
                )
                if to is not None and leads[now[0]] - leads[to] >= 2:
                    leads[now[0]] -= 1
                    leads[to] += 1
                    self._now[index] = (to, *(each for each in now if each != to))
                    changed = True
            if not changed:
                return

    # --- steps --------------------------------------------------------------------------------------------------------

    def _cheapest(self, from_id: int, to_id: int) -> int | None:
        """The partition with the least tail that may go from one broker to another."""
        heap = self._may_go[from_id].get(to_id)
        if heap is None:
            heap = self._may_go[from_id][to_id] = [(self._held[index].tail_bytes, index) for index in self._of[from_id]]
            heapify(heap)
        while heap:
            _, index = heap[0]
            if index in self._of[from_id] and self._may(index, from_id, to_id):
                return index
            heappop(heap)  # it comes back when its replicas change
        return None

    def _exchange(self, most: int, least: int, gap: float) -> tuple[int, int] | None:
        """Two partitions whose exchange brings the loads closest to each other, of those that are tried."""
        busy = nsmallest(TRIED_MAX, self._of[most], key=lambda index: (-self._held[index].load, index))
        idle = nsmallest(TRIED_MAX, self._of[least], key=lambda index: (self._held[index].load, index))
        best: tuple[float, int, int, int] | None = None
        for one in busy:
            for other in idle:
                shift = self._held[one].load - self._held[other].load
                if shift <= 0 or shift >= gap:
                    continue
                if not self._may(one, most, least) or not self._may(other, least, most):
                    continue
                tail = self._held[one].tail_bytes + self._held[other].tail_bytes
                found = (abs(gap - 2 * shift), tail, one, other)
                if best is None or found < best:
                    best = found
        if best is None or gap - best[0] < BALANCED * gap:
            return None
        return best[2], best[3]

    def _may(self, index: int, from_id: int, to_id: int) -> bool:
        now = self._now[index]
        if to_id in now:
            return False
        before = {self._racks.get(each) for each in now}
        after = {self._racks.get(to_id if each == from_id else each) for each in now}
        return len(after) >= len(before)

    def _put(self, index: int, from_id: int, to_id: int) -> None:
        self._now[index] = tuple([to_id if each == from_id else each for each in self._now[index]])
        self._of[from_id].discard(index)
        self._of[to_id].add(index)
        for replica in self._now[index]:
            for heap in self._may_go[replica].values() if replica in self._may_go else ():
                heappush(heap, (self._held[index].tail_bytes, index))
        self._load[from_id] -= self._held[index].load
        self._load[to_id] += self._held[index].load
