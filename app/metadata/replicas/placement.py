"""Where the replicas of new partitions go. Pure, and the same for the same brokers and start number.

The goals are those of Kafka's StripedReplicaPlacer, in this order:

- The replicas of a partition are on different brokers.
- They are on different racks, as far as there are racks, and then on different hosts (of the advertised addresses). Brokers without
  a rack count as one rack.
- Leaders are spread evenly over the brokers. The second replica of a partition leads it when the first is dead (E1), so the second
  replicas of one broker's partitions are spread evenly over the others, too (E5).
- All replicas are spread evenly, as far as racks and hosts of different sizes allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise
from app.core.units import BrokerId
from app.metadata.image.image import BrokerImage, PartitionImage

LOOKED_AT_ONCE: Final = 2_000
"""Partitions that are looked at in one step: about 0.3 ms."""
ROUNDS_MAX: Final = 12
"""Turns of leaderships over all brokers until the placement repeats itself, so that 10,000 partitions on 100 brokers are placed in
time. After as many turns as there are other brokers, each of them was second once, so small clusters need fewer."""


@Stepwise
def staying(
    available: Sequence[BrokerId], partitions: Iterable[PartitionImage], factor: int
) -> Steps[Sequence[BrokerId]]:
    """The brokers among ``available`` that get new replicas: not those that replicas are leaving and none are coming to, because
    such a broker is being drained. Where the others are too few for ``factor``, all are available.

    A drain is known only by its moves: once they are over, the broker is as any other until it is stopped.
    """
    if len(available) <= factor:
        return available  # there is no choice, as on one broker: do not look at thousands of partitions for it
    leaving: set[BrokerId] = set()
    coming: set[BrokerId] = set()
    for seen, partition in enumerate(partitions):
        if partition.removing or partition.adding:
            leaving.update(partition.removing)
            coming.update(partition.adding)
        if not seen % LOOKED_AT_ONCE:
            yield
    leaving -= coming
    found = [each for each in available if each not in leaving] if leaving else available
    return found if len(found) >= factor else available


@Stepwise
def place(
    brokers: Mapping[int, BrokerImage],
    available: Sequence[BrokerId],
    count: int,
    factor: int,
    start: int,
    *,
    fenced: Sequence[BrokerId] = (),
) -> Steps[list[tuple[BrokerId, ...]]]:
    """Replicas of ``count`` partitions on ``available`` brokers, the leader of each first. ``start`` is any number: where the
    leaders begin. Where there are too few, the last replicas are on ``fenced`` brokers, as in Kafka: they may come back.

    Raises: RequestRejected INVALID_REPLICATION_FACTOR.
    """
    if factor <= 0:
        raise RequestRejected(ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor must be greater than 0.")
    if factor > len(available) + len(fenced) or not available:
        fenced_too = f"; {len(fenced)} more are fenced" if fenced else ""
        raise RequestRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor {factor} is greater than the number of live brokers, {len(available)}{fenced_too}.",
        )
    if factor > len(available):
        away = _ring([brokers[each] for each in fenced])
        missing = factor - len(available)
        placed: list[tuple[BrokerId, ...]] = []
        for index, here in enumerate((yield from place.steps(brokers, available, count, len(available), start))):
            placed.append((*here, *(away[(start + index + more) % len(away)].broker_id for more in range(missing))))
            if not index % STRIDE:
                yield
        return placed
    if len(available) == 1:
        return [(available[0],)] * count
    ring = _ring([brokers[each] for each in available])
    size = len(ring)
    if factor == 1:
        alone = [(each.broker_id,) for each in ring]
        return [alone[(start + index) % size] for index in range(count)]
    pattern = yield from _pattern(ring, min(count, size * min(size - 1, ROUNDS_MAX)), factor, start)
    return [pattern[index % len(pattern)] for index in range(count)]


def _ring(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """The brokers in an order in which neighbours are on different racks, and those of one rack on different hosts, as far as
    possible."""
    by_rack: dict[str, dict[str, list[BrokerImage]]] = {}
    for broker in sorted(brokers, key=lambda each: each.broker_id):
        by_rack.setdefault(broker.rack or "", {}).setdefault(broker.host, []).append(broker)
    racks = [_alternating(list(hosts.values())) for _, hosts in sorted(by_rack.items())]
    return _alternating(racks)


def _alternating(groups: Sequence[Sequence[BrokerImage]]) -> list[BrokerImage]:
    """The first of each group, then the second of each, and so on."""
    return [each for each in chain.from_iterable(zip_longest(*groups)) if each is not None]


def _pattern(ring: Sequence[BrokerImage], count: int, factor: int, start: int) -> Steps[list[tuple[BrokerId, ...]]]:
    """Replicas of ``count`` partitions. Each choice depends on the earlier ones."""
    size = len(ring)
    replicas_on = [0] * size
    second_of = [[0] * size for _ in range(size)]
    placed: list[tuple[BrokerId, ...]] = []
    for index in range(count):
        leader = (start + index) % size
        # Topics of few partitions begin anywhere on the ring, and so do their second replicas.
        after = leader + 1 + (start + index) // size
        chosen = [leader]
        if factor > 1:
            second = _best(ring, chosen, second_of[leader], after)
            second_of[leader][second] += 1
            chosen.append(second)
        while len(chosen) < factor:
            chosen.append(_best(ring, chosen, replicas_on, after))
        for each in chosen:
            replicas_on[each] += 1
        placed.append(tuple([ring[each].broker_id for each in chosen]))
        yield  # with a hundred brokers a partition takes 0.2 ms
    return placed


def _best(ring: Sequence[BrokerImage], chosen: Sequence[int], counts: Sequence[int], after: int) -> int:
    """The place on the ring for one more replica beside ``chosen``: on the rack, then on the host with the fewest of them. Among
    equals the one with the lowest count, then the next one ``after`` a place."""
    racks = [ring[each].rack or "" for each in chosen]
    hosts = [ring[each].host for each in chosen]
    return min(
        [each for each in range(len(ring)) if each not in chosen],
        key=lambda each: (
            racks.count(ring[each].rack or ""),
            hosts.count(ring[each].host),
            counts[each],
            (each - after) % len(ring),
        ),
    )
