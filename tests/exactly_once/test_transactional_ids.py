"""Transactional ids of keyed requests: whose they are, and which may be used now."""

from __future__ import annotations

from app.exactly_once.transactional_ids import (
    IDS_MAX,
    REST_MS,
    SET_ASIDE_MS,
    TransactionalIds,
    is_of_requests,
    may_use,
    prefix_of,
)


def test_no_principal_owns_the_ids_of_another() -> None:
    one = TransactionalIds(prefix_of("User:a"), "b.1").take(0)
    assert one is not None
    assert may_use("User:a", one)
    assert not may_use("User:a.b", one)
    assert not may_use("User:a", "__http.User:a.1")
    assert is_of_requests(one)
    assert not is_of_requests("my-app")
    assert len(prefix_of("User:a")) == len(prefix_of("User:" + "long" * 50))


def test_requests_side_by_side_have_ids_of_their_own() -> None:
    ids = TransactionalIds("p.", "x")
    taken = [ids.take(0) for _ in range(IDS_MAX)]
    assert taken[:2] == ["p.x.1", "p.x.2"]
    assert len(set(taken)) == IDS_MAX
    assert ids.take(0) is None
    ids.give_back("p.x.2", 0, complete=True)
    assert ids.take(0) == "p.x.2"


def test_an_id_whose_transaction_is_not_complete_rests_until_it_has_timed_out() -> None:
    ids = TransactionalIds("p.", "x")
    assert ids.take(0) == "p.x.1"
    ids.give_back("p.x.1", 10, complete=False)
    assert ids.take(SET_ASIDE_MS + 9) == "p.x.2"
    ids.give_back("p.x.2", SET_ASIDE_MS + 9, complete=True)
    later = SET_ASIDE_MS + 9 + REST_MS
    assert {ids.take(later), ids.take(later)} == {"p.x.1", "p.x.2"}


def test_an_id_rests_while_the_markers_of_its_transaction_are_written() -> None:
    ids = TransactionalIds("p.", "x")
    for expected, now_ms in (("p.x.1", 0), ("p.x.2", 1), ("p.x.1", REST_MS), ("p.x.2", REST_MS + 1)):
        assert ids.take(now_ms) == expected
        ids.give_back(expected, now_ms, complete=True)
    others = [ids.take(0) for _ in range(IDS_MAX - 2)]
    assert len(set(others)) == IDS_MAX - 2
    assert ids.take(0) == "p.x.1", "it has rested longest"
