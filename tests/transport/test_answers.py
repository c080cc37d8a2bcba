"""Connections whose responses became done in one turn of the loop are told once, at its end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from app.transport.answers import Answers


class Told:
    """A connection that notes when it is told."""

    def __init__(self, order: list[Told]) -> None:
        self.order = order
        self.answers: Answers | None = None

    def hand_over(self) -> None:
        self.order.append(self)
        if self.answers is not None:
            answers, self.answers = self.answers, None
            answers.due(cast("Any", self))


async def test_connections_are_told_once_in_the_order_of_their_first_response() -> None:
    answers = Answers(asyncio.get_running_loop())
    order: list[Told] = []
    first, second = Told(order), Told(order)
    for connection in (first, second, first):
        answers.due(cast("Any", connection))
    assert order == []
    await asyncio.sleep(0)
    assert order == [first, second]
    answers.due(cast("Any", first))
    await asyncio.sleep(0)
    assert order == [first, second, first]


async def test_a_response_that_becomes_due_while_connections_are_told_is_told_in_the_next_turn() -> None:
    answers = Answers(asyncio.get_running_loop())
    order: list[Told] = []
    again = Told(order)
    again.answers = answers
    answers.due(cast("Any", again))
    await asyncio.sleep(0)
    assert order == [again]
    await asyncio.sleep(0)
    assert order == [again, again]
