"""Finds anomalies in a history of transactions that append to lists and read them (Adya; Kingsbury and Alvaro, Elle).

A value is appended by one transaction, to one key. The longest list that was read of a key is its order. From the order follow the
dependencies of transactions: *ww*, who appended after whom; *wr*, who read what another appended.

    G0   a cycle of ww                    two keys have two transactions in different orders
    G1a  an aborted value was read
    G1b  a list was read that ends within the values that one transaction appended to it
    G1c  a cycle of ww and wr
    lost, torn, twice                     a committed value is missing; a transaction is there in part; a value is there twice
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

Key = Hashable
Value = Hashable


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Nobody was told. It is committed if any of its values was read."""


@dataclass(frozen=True, slots=True)
class Txn:
    """One transaction: what it appended to each key, in order, and the lists that it read, from their beginnings."""

    name: str
    outcome: Outcome
    appends: Mapping[Key, Sequence[Value]] = field(default_factory=dict)
    reads: Mapping[Key, Sequence[Value]] = field(default_factory=dict)


class Anomaly(NamedTuple):
    kind: str
    what: str


def find_anomalies(history: Sequence[Txn], final: Mapping[Key, Sequence[Value]]) -> list[Anomaly]:
    """All anomalies of ``history``. ``final``: the lists as they are when all transactions have ended."""
    found: list[Anomaly] = []
    writer = {value: txn for txn in history for values in txn.appends.values() for value in values}
    readers = [
        *(txn for txn in history if txn.outcome is not Outcome.ABORTED),
        Txn("final", Outcome.COMMITTED, {}, final),
    ]
    order: dict[Key, Sequence[Value]] = {}
    for txn in readers:
        for key, values in txn.reads.items():
            longer, shorter = sorted((order.get(key, ()), values), key=len, reverse=True)
            if list(longer[: len(shorter)]) != list(shorter):
                found.append(Anomaly("order", f"two reads of {key} differ: {longer} and {shorter}"))
            order[key] = longer
            found += _bad_values(txn, key, values, writer)
    seen = {txn.name for values in order.values() for value in values if (txn := writer.get(value)) is not None}
    for txn in history:
        if txn.outcome is Outcome.ABORTED:
            continue
        for key, values in txn.appends.items():
            missing = set(values) - set(final.get(key, ()))
            if missing and (txn.outcome is Outcome.COMMITTED or txn.name in seen):
                kind = "lost" if txn.outcome is Outcome.COMMITTED else "torn"
                found.append(Anomaly(kind, f"{txn.name} appended {sorted(map(str, missing))} to {key}"))
    ww: dict[str, set[str]] = defaultdict(set)
    for values in order.values():
        names = [txn.name for value in values if (txn := writer.get(value)) is not None]
        for before, after in pairwise(names):
            if before != after:
                ww[before].add(after)
    found += (Anomaly("G0", f"a cycle of appends: {' → '.join(cycle)}") for cycle in _cycles(ww))
    if not any(one.kind == "G0" for one in found):
        both = defaultdict(set, {name: set(others) for name, others in ww.items()})
        for txn in readers:
            for values in txn.reads.values():
                for value in values:
                    if (author := writer.get(value)) is not None and author.name != txn.name:
                        both[author.name].add(txn.name)
        found += (Anomaly("G1c", f"a cycle of appends and reads: {' → '.join(cycle)}") for cycle in _cycles(both))
    return found


def _bad_values(txn: Txn, key: Key, values: Sequence[Value], writer: Mapping[Value, Txn]) -> Iterable[Anomaly]:
    if len(set(values)) != len(values):
        twice = sorted({str(value) for value in values if list(values).count(value) > 1})
        yield Anomaly("twice", f"{txn.name} read {twice} more than once in {key}")
    for value in values:
        author = writer.get(value)
        if author is None:
            yield Anomaly("garbage", f"{txn.name} read {value} in {key}, which nobody appended")
        elif author.outcome is Outcome.ABORTED:
            yield Anomaly("G1a", f"{txn.name} read {value} in {key}, which {author.name} appended and aborted")
    last = writer.get(values[-1]) if values else None
    if last is not None and last.name != txn.name and last.appends.get(key, ())[-1:] != [values[-1]]:
        yield Anomaly("G1b", f"{txn.name} read {key} to {values[-1]}, which is not the last that {last.name} appended")


def _cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """One cycle of each strongly connected component of more than one node (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    cycles: list[list[str]] = []
    for root in list(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        cycles.append(component[::-1])
    return cycles
