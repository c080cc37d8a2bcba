"""Callers who lost three times are admitted alone for a moment (ADR 0041, SR10)."""

from __future__ import annotations

from app.schemas.reservations import CALLERS_MAX, LOSSES_MAX, RESERVED_MS, REST_MS, Reservations


def lose(reservations: Reservations, caller: str, now_ms: int = 0, times: int = LOSSES_MAX) -> list[bool]:
    return [reservations.lost(caller, now_ms) for _ in range(times)]


def test_the_third_loss_in_a_row_admits_the_caller_alone_until_it_has_written() -> None:
    reservations = Reservations()
    assert lose(reservations, "a") == [False, False, True]
    assert reservations.wait_ms("a", 50) == 0
    assert reservations.wait_ms("b", 50) == RESERVED_MS - 50
    reservations.won("a")
    assert reservations.wait_ms("b", 50) == 0


def test_a_write_in_between_begins_the_count_again() -> None:
    reservations = Reservations()
    assert lose(reservations, "a", times=2) == [False, False]
    reservations.won("a")
    assert lose(reservations, "a", times=2) == [False, False]


def test_a_reservation_that_is_not_used_ends_and_its_caller_rests() -> None:
    reservations = Reservations()
    lose(reservations, "a")
    assert reservations.wait_ms("b", RESERVED_MS) == 0
    now_ms = RESERVED_MS + REST_MS
    assert lose(reservations, "a", now_ms - 1) == [False, False, False]
    assert lose(reservations, "a", now_ms, times=1) == [True]


def test_another_caller_who_lost_gets_the_next_reservation() -> None:
    reservations = Reservations()
    lose(reservations, "a")
    assert lose(reservations, "b") == [False, False, False]
    reservations.won("a")
    assert lose(reservations, "b", times=1) == [True]
    assert reservations.wait_ms("a", 0) == RESERVED_MS


def test_losses_of_many_callers_are_bounded() -> None:
    reservations = Reservations()
    lose(reservations, "first", times=2)
    for number in range(CALLERS_MAX):
        reservations.lost(number, 0)
    assert lose(reservations, "first", times=1) == [False], "it was forgotten"
