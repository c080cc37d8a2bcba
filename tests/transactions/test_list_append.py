"""The checker of list-append histories finds each anomaly, and nothing in a history without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.transactions.list_append import Outcome, Txn, find_anomalies

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
Lists = Mapping[str, Sequence[int]]


def kinds(history: list[Txn], final: Lists) -> set[str]:
    return {one.kind for one in find_anomalies(history, final)}


def test_a_history_in_one_order_has_no_anomaly() -> None:
    history = [
        Txn("a", COMMITTED, {"x": [1, 2], "y": [3]}),
        Txn("b", ABORTED, {"x": [4], "y": [5]}),
        Txn("c", UNKNOWN, {"x": [6], "y": [7]}),
        Txn("d", UNKNOWN, {"x": [8], "y": [9]}),
        Txn("e", COMMITTED, {"z": [10]}, {"x": [1, 2], "y": [3]}),
        Txn("f", COMMITTED, {}, {"x": [1, 2, 6], "y": [3, 7], "z": []}),
    ]
    assert find_anomalies(history, {"x": [1, 2, 6], "y": [3, 7], "z": [10]}) == []


@pytest.mark.parametrize(
    ("kind", "history", "final"),
    [
        (
            "G0",
            [Txn("a", COMMITTED, {"x": [1], "y": [2]}), Txn("b", COMMITTED, {"x": [3], "y": [4]})],
            {"x": [1, 3], "y": [4, 2]},
        ),
        ("G1a", [Txn("a", ABORTED, {"x": [1]})], {"x": [1]}),
        ("G1a", [Txn("a", ABORTED, {"x": [1]}), Txn("b", COMMITTED, {}, {"x": [1]})], {}),
        ("G1b", [Txn("a", COMMITTED, {"x": [1, 2]}), Txn("b", COMMITTED, {}, {"x": [1]})], {"x": [1, 2]}),
        (
            "G1c",
            [Txn("a", COMMITTED, {"x": [1]}, {"y": [2]}), Txn("b", COMMITTED, {"y": [2]}, {"x": [1]})],
            {"x": [1], "y": [2]},
        ),
        (
            "G1c",
            [
                Txn("a", COMMITTED, {"x": [1], "y": [2]}),
                Txn("b", COMMITTED, {"x": [3], "z": [4]}),
                Txn("c", COMMITTED, {"y": [5]}, {"z": [4]}),
            ],
            {"x": [1, 3], "y": [5, 2], "z": [4]},
        ),
        ("lost", [Txn("a", COMMITTED, {"x": [1], "y": [2]})], {"x": [1], "y": []}),
        ("torn", [Txn("a", UNKNOWN, {"x": [1], "y": [2]})], {"x": [1], "y": []}),
        ("twice", [Txn("a", COMMITTED, {"x": [1]})], {"x": [1, 1]}),
        ("garbage", [], {"x": [1]}),
        ("order", [Txn("a", COMMITTED, {"x": [1]}), Txn("b", COMMITTED, {"x": [2]}, {"x": [2]})], {"x": [1, 2]}),
    ],
)
def test_each_anomaly_is_found_and_called_by_its_name(kind: str, history: list[Txn], final: Lists) -> None:
    assert kinds(history, final) >= {kind}
    if kind in ("G1c", "G0", "torn", "lost", "twice", "G1b"):
        assert kinds(history, final) == {kind}
